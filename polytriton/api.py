"""The public interface: compile, load, and the Verifier they return."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

from polytriton.errors import UsageError
from polytriton.frontend.arrays import Images, Number, Numbers, as_pixels, as_radius, exact_numbers, is_path
from polytriton.frontend.expressions import Variables, variables
from polytriton.frontend.input_maps import InputMap
from polytriton.frontend.model_files import torch_file
from polytriton.frontend.norm_balls import LINF
from polytriton.frontend.onnx import Imported, cross_check, load_onnx
from polytriton.frontend.onnx_mapped import map_input
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import is_property
from polytriton.guard import guard, guard_class
from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, Observer, _quiet, compile_net
from polytriton.prove.options import DEFAULT_MEMORY, INTERPRET, GivenOptions, Options, capability
from polytriton.prove.origin import image_results
from polytriton.prove.prover import NetProver, limits_of
from polytriton.prove.strategy import check_search, check_time
from polytriton.prove.together import decide_together
from polytriton.results import Picture, Radius, Result, ResultList
from polytriton.runtime.config import DEFAULT
from polytriton.runtime.engine import Progress, _silent
from polytriton.tuned import config_here

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from onnx import ModelProto
    from torch import Tensor
    from torch.nn import Module
    from typing_extensions import Unpack

    from polytriton.artifact import Artifact
    from polytriton.frontend.joint import JointProperty
    from polytriton.kernels.files import Kernels
    from polytriton.tuned import Tuned

Epsilon = float | str | Fraction
Example: TypeAlias = "Tensor | ArrayLike | Sequence[Tensor]"  # of a torch module's input
_LOG = logging.getLogger(__name__)


@guard
def compile(
    model: str | os.PathLike[str] | bytes | ModelProto | Module,
    example_input: Example | None = None,
    *,
    output: str | None = None,
    check: bool = True,
    device: str = "cpu",
    semantics: str = "float32",
    dtype: str = "auto",
    candidates: str = "all",
    memory: int = DEFAULT_MEMORY,
    numerics: str = "folded",
    method: str = "polytriton",
    observe: Observer = _quiet,
) -> Verifier:
    """Compiles an ONNX model, or a torch.nn.Module with an example of its input, into a verifier.

    `check` compares the import with onnxruntime on random inputs, and a module's export with the module's own answers.
    `method`: other than "polytriton", bounds are those of "ibp", "crown-ibp" or "deeppoly", to compare with.
    """
    options = Options(device, semantics, dtype, candidates, memory, numerics=numerics, method=method)
    exported = None
    if hasattr(model, "named_parameters"):  # a torch module
        from polytriton.frontend.torch_module import export_module

        exported = export_module(model, example_input, output)
        imported = load_onnx(exported.model, output=exported.output, name=exported.name)
    else:
        if example_input is not None:
            raise UsageError("an example input is for torch modules", "leave it out: an ONNX model knows its input's shape")
        if is_path(model) and str(model).endswith((".pt", ".pth", ".pt2", ".ckpt")):
            raise UsageError(*torch_file(str(model)))
        imported = load_onnx(model, output=output)
    verifier = _verifier(imported, options, check, observe)
    if is_path(model):
        verifier.path = os.fspath(model)
    if check and exported is not None:
        exported.check(verifier.predict(exported.points), imported.source.input_dtype)
    return verifier


def _verifier(imported: Imported, options: Options, check: bool, observe: Observer) -> Verifier:
    begin = time.monotonic()
    if check:
        cross_check(imported)
    verifier = Verifier(compile_net(imported.net, options.candidates, observe), options, imported)
    _LOG.info("compiled %s: %d nodes in %.3f s", verifier.net.name, len(verifier.net.nodes), time.monotonic() - begin)
    return verifier


@guard
def compile_bytes(data: bytes, name: str, *, output: str | None, candidates: str, check: bool, observe: Observer) -> Verifier:
    """What `compile` makes of a file of this name that holds these bytes: whoever has read it once need not read it again."""
    return _verifier(load_onnx(data, output=output, name=name), Options(candidates=candidates), check, observe)


@guard
def load(path: str | os.PathLike[str], **options: Unpack[GivenOptions]) -> Verifier:
    """Opens a compiled artifact; options as for `compile`."""
    from polytriton.artifact import read_artifact

    verifier = Verifier.from_artifact(read_artifact(Path(path)), **options)
    verifier.path = os.fspath(path)
    return verifier


@guard_class
class Verifier(NetProver):
    """One compiled network; every method is sound for the chosen `semantics`."""

    def __init__(
        self, compiled: Compiled, options: Options, imported: Imported | None = None, kernels: Kernels | None = None,
        tuned: Tuned | None = None,
    ) -> None:  # fmt: skip
        super().__init__(compiled, options, imported)
        self.joint: JointProperty | None = None  # what it was joined for, of several networks
        self._kernels, self._tuned = kernels, tuned  # what the artifact held, to be saved with it again

    @staticmethod
    def from_net(net: Net, **options: Unpack[GivenOptions]) -> Verifier:
        """A verifier of an IR network; counterexamples are then replayed in the float64 interpreter only."""
        chosen = Options(**options)
        return Verifier(compile_net(net, chosen.candidates), chosen)

    @staticmethod
    def from_artifact(artifact: Artifact, **options: Unpack[GivenOptions]) -> Verifier:
        device = options.get("device", "cpu")
        config, compiled = config_here(artifact.tuned, artifact.compiled, device), artifact.compiled
        if artifact.kernels is not None:
            config = replace(config, rooms=artifact.kernels.rooms(capability(device)))
        found: GivenOptions = {"candidates": compiled.plan.candidates, "config": config}
        found.update(options)
        chosen = Options(**found)
        if artifact.kernels is not None and device.startswith((INTERPRET, "cuda")):
            from polytriton.known import filed_kernels

            compiled = replace(compiled, filed=filed_kernels(artifact))
        return Verifier(compiled, chosen, artifact.imported, artifact.kernels, artifact.tuned)

    @property
    def trusted_code(self) -> str:
        """What runs here and polytriton did not make, in words for records; "" where there is none."""
        filed = self.compiled.filed
        if filed is None or not filed.trusted or not self.options.device.startswith("cuda"):
            return ""
        from polytriton.kernels import load

        runs = filed.serves(capability(self.options.device), load.version())
        return "by machine code made elsewhere, which was trusted" if runs else ""

    def map_input(self, given: InputMap) -> Verifier:
        """The same network as a function of the map's few parameters z, where its input is x = A z + b."""
        if self.imported is None:
            raise UsageError("the network has no model behind it", "compile it from ONNX or torch")
        joined = map_input(self.imported, given)
        cross_check(joined)
        return Verifier(compile_net(joined.net, self.options.candidates), replace(self.options, config=DEFAULT), joined)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the artifact, whole or not at all."""
        from polytriton.artifact import write_artifact

        return write_artifact(self, Path(path), self._kernels, self._tuned)

    def __repr__(self) -> str:
        o, shape = self.options, "x".join(map(str, self.input_shape))
        how = f"semantics {o.semantics}, dtype {o.dtype}" + f", numerics {o.numerics}" * (o.numerics != "folded")
        return f"<Verifier {self.net.name}: {shape} -> {self.outputs}, device {o.device}, {how}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the network's layers and what bounding each costs."""
        from polytriton.results.notebook import verifier_html

        return verifier_html(self.compiled, repr(self)[1:-1])

    # ---- shapes -----------------------------------------------------------------------------------------

    def variables(self) -> tuple[Variables, Variables]:
        """Its inputs x and its outputs y, to write properties with: Property(box, unsafe=[y[0] >= y[3]])."""
        source = self.source
        if source is None:
            return variables(self.input_shape or (1,), self.outputs)
        inputs, outputs = (s[1:] if source.has_batch and len(s) > 1 else s for s in (source.input_shape, source.output_shape))
        return variables(inputs or (1,), outputs if outputs and prod(outputs) == self.outputs else self.outputs)

    # ---- verdicts ---------------------------------------------------------------------------------------

    @overload
    def verify(
        self,
        x: Property | str | os.PathLike[str],
        *,
        timeout: float | None = None,
        falsifier: bool = True,
        search: str | None = None,
        progress: Progress = _silent,
    ) -> Result: ...
    @overload
    def verify(
        self,
        x: Images,
        epsilon: Epsilon,
        label: int | Sequence[int] | None = None,
        *,
        norm: str = LINF,
        clip: Sequence[Number] | None = None,
        mean: Numbers = 0,
        std: Numbers = 1,
        targets: Sequence[int] | None = None,
        timeout: float | None = None,
        falsifier: bool = True,
        search: str | None = None,
        progress: Progress = _silent,
    ) -> Result | ResultList: ...
    def verify(
        self,
        x: Property | Images,
        epsilon: Epsilon | None = None,
        label: int | Sequence[int] | None = None,
        *,
        norm: str = LINF,
        clip: Sequence[Number] | None = None,
        mean: Numbers = 0,
        std: Numbers = 1,
        targets: Sequence[int] | None = None,
        timeout: float | None = None,
        falsifier: bool = True,
        search: str | None = None,
        progress: Progress = _silent,
    ) -> Result | ResultList:
        """Robustness of the label over a ball in the norm "linf", "l2" or "l1": one Result for one image, a `ResultList` for several.

        The ball lies in pixel space, is cut to `clip`, and then normalised by (pixel - mean) / std; without mean and std that
        is the network's own input. uint8 pixels stand for level/255, exactly. label: by default the file's, else the network's
        own answer. A Property, or the path or the text of a .vnnlib file, is verified as it stands. search: as for `verify_property`; by
        default "auto" for one image and "none" for several.
        """
        check_time(timeout)
        if isinstance(x, Property) or (is_path(x) and is_property(x)):
            if epsilon is not None or label is not None:
                raise UsageError("a property has no epsilon and no label", "leave them out, or give an image instead of the property")
            return self.verify_property(x, timeout=timeout, falsifier=falsifier, search=search or "auto", progress=progress)
        if epsilon is None:
            raise UsageError("no radius was given", 'net.verify(x, epsilon="8/255")')
        radius = as_radius(epsilon, norm)
        images = as_pixels(x, self.input_shape)
        means, stds = exact_numbers(mean), exact_numbers(std)
        labels = self._labels(images.labels if label is None else label, images.values, means, stds)
        props = [
            self.ball_property(image, radius, wanted, clip=clip, mean=means, std=stds, targets=targets, norm=norm)
            for image, wanted in zip(images.values, labels, strict=True)
        ]
        search = search or ("auto" if len(props) == 1 else "none")
        check_search(search)
        if len(props) > 1 and timeout is None and search == "none":
            found = dict(decide_together(self, props, labels, falsifier=falsifier, progress=progress))
            results = [found[k] for k in range(len(props))]
        else:
            results = [
                self.verify_property(p, timeout=timeout, falsifier=falsifier, search=search, progress=progress, label=label)
                for p, label in zip(props, labels, strict=True)
            ]
        seen = image_results(
            self, results, [Picture(image, radius, means, stds, norm) for image in images.values], Path(x).name if is_path(x) else "",
            None if label is None and images.labels is None else labels, clip=limits_of(clip),
            targets=None if targets is None else tuple(targets), timeout=timeout, falsifier=falsifier, search=search,
        )  # fmt: skip
        return seen[0] if images.single else seen

    def verify_vnnlib(self, path: str | os.PathLike[str], *, timeout: float | None = None, falsifier: bool = True) -> Result:
        """A VNN-LIB property from its file, .vnnlib or .vnnlib.gz."""
        check_time(timeout)
        return self.verify_property(path, timeout=timeout, falsifier=falsifier)

    def radius(
        self,
        x: Images,
        label: int | Sequence[int] | None = None,
        *,
        epsilon: Epsilon = "0.01",
        norm: str = LINF,
        clip: Sequence[Number] | None = None,
        mean: Numbers = 0,
        std: Numbers = 1,
        targets: Sequence[int] | None = None,
        tolerance: Number = "0.01",
        timeout: float | None = None,
        progress: Progress = _silent,
    ) -> Radius | list[Radius]:
        """The largest certified radius: one `Radius` for one image, a list for a batch. Images are given as to `verify`.

        The search begins at `epsilon` and ends with a bracket at most `tolerance` times its upper end wide; `timeout` is for each image.
        """
        from polytriton.prove.radius import radii

        return radii(
            self, x, label, epsilon=epsilon, clip=clip, mean=mean, std=std, targets=targets, tolerance=tolerance, timeout=timeout,
            progress=progress, norm=norm,
        )  # fmt: skip

    def certify(
        self,
        path: str | os.PathLike[str],
        certificate: str | os.PathLike[str],
        *,
        timeout: float | None = None,
        falsifier: bool = True,
        progress: Progress = _silent,
        seed: int = 0,
        search: str = "auto",
    ) -> Result:
        """The property of a .vnnlib file as `verify_property` decides it, with its options; the certificate of an unsat is written, for
        `polytriton check`. The model must have been compiled from its path. What would keep the file from being written is said first.
        """
        from polytriton.certificate.ask import Certifying

        if not is_path(path):
            raise UsageError("a certificate is about a property file", "write the property first, prop.save(path), and give that path")
        derived = self.joint is not None or any(n.integer("outside") for n in self.net)
        wanted = Certifying(Path(self.path), Path(path), Path(certificate), self.options.semantics, derived=derived)
        result = self.verify_property(
            Path(path), timeout=timeout, falsifier=falsifier, progress=progress, seed=seed, search=search, trail=wanted.trail
        )
        if result.verdict == "unsat":
            wanted.write()
        return result
