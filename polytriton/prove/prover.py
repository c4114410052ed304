"""One network of which properties are decided: proofs by its engines, counterexamples that the original model confirms."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.arrays import Images, Number, Numbers, as_array, as_ends, as_pixels, exact_numbers, normalise
from polytriton.frontend.balls import ball, lazy_ball, norm_ball
from polytriton.frontend.norm_balls import LINF, check_norm
from polytriton.frontend.numbers import as_float64, as_fraction, as_numpy
from polytriton.frontend.onnx import Imported, Source
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.guard import guard_class
from polytriton.ir import interp
from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled
from polytriton.prove import effort as effort_of
from polytriton.prove.crew import Others
from polytriton.prove.decider import Try
from polytriton.prove.fleet import make_decider
from polytriton.prove.hints import reaches
from polytriton.prove.options import OWN, Options
from polytriton.prove.prepare import prepare_kernels
from polytriton.prove.questions import Questions
from polytriton.prove.strategy import Decision
from polytriton.prove.trail import Trail
from polytriton.results import Bounds, Counterexample, Origin, Result
from polytriton.runtime.attack import Aim, Attack, Replay, falsify_all, replayer
from polytriton.runtime.engine import Progress, _silent
from polytriton.runtime.soundness import state_functions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def limits_of(clip: Sequence[Number] | None) -> tuple[Fraction, Fraction] | None:
    return None if clip is None else (as_fraction(clip[0], "clip"), as_fraction(clip[1], "clip"))


def digest(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Path and SHA-256 of the file that a property was read from; empty of a text."""
    try:
        path = Path(source)
        return (os.fspath(source), hashlib.sha256(path.read_bytes()).hexdigest()) if path.is_file() else ("", "")
    except (OSError, ValueError):  # a text is no name of a file
        return "", ""


@guard_class
class NetProver:
    """A compiled network, how it is worked with, and the model that it came from, if any."""

    def __init__(self, compiled: Compiled, options: Options, imported: Imported | None) -> None:
        told = state_functions(options.semantics, compiled.net)
        options = replace(options, semantics=told)  # every result says what it takes of smooth functions
        self.compiled, self.options, self.imported = compiled, options, imported
        self._decider = make_decider(compiled, options)
        self._replay: Replay | None = None
        self._preparing, self._prepared = threading.Lock(), False
        self.path = compiled.net.name  # the model's or the artifact's as it was given; else a name

    # ---- shapes -----------------------------------------------------------------------------------------

    @property
    def net(self) -> Net:
        return self.compiled.net

    @property
    def source(self) -> Source | None:
        return self.imported.source if self.imported else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One input's shape, without a batch axis."""
        return interp.user_shape(self.net)

    @property
    def inputs(self) -> int:
        return self._decider.inputs

    @property
    def outputs(self) -> int:
        return self._decider.outputs

    def _batch(self, values: Images, what: str) -> np.ndarray:
        """Any array of one input or a batch of them as float64 [batch, values]."""
        array, inputs = as_array(values, what), self._decider.inputs
        if array.size == 0 or array.size % inputs:
            raise UsageError(
                f"{what} has shape {list(array.shape)}, the network takes {inputs} values an input",
                f"give [batch, {', '.join(map(str, self.input_shape))}]",
            )
        return np.ascontiguousarray(array.reshape(-1, inputs))

    def _boxes(self, lo: Images, hi: Images) -> tuple[np.ndarray, np.ndarray]:
        low, high = (self._batch(v, what) for v, what in zip(as_ends(lo, hi), ("lo", "hi"), strict=True))
        if len(low) != len(high):
            raise UsageError(f"lo holds {len(low)} boxes and hi {len(high)}", "give as many of one as of the other")
        bad = np.argwhere(low > high)
        if len(bad):
            i, j = bad[0]
            raise UsageError(f"inverted box: lo {float(low[i, j])!r} > hi {float(high[i, j])!r} at input {j} of box {i}", "swap the bounds")
        return low, high

    def prepare(self) -> float:
        """On a GPU compiles the network's kernels where no machine code came with it, once a machine: minutes for a large network.

        The seconds that it took. Queries ask for it themselves, before their clock runs.
        """
        with self._preparing:  # a second thread's query waits, its clock not yet running
            made = 0.0 if self._prepared else prepare_kernels(self._decider)
            self._prepared = True
        return made

    # ---- bounds -----------------------------------------------------------------------------------------

    def bounds(self, lo: Images, hi: Images, *, effort: str = "tight", progress: Progress = _silent) -> Bounds:
        """Sound bounds of every output and every nonlinear operator's input, for one box or a batch.

        effort: "quick" is one pass with the verifier's `candidates`; "tight" the better of both choices of them, number by number, so
        nothing is looser than CROWN's; "best" chooses slopes for every row besides.
        """
        effort_of.check_effort(effort)
        low, high = self._boxes(lo, hi)
        return effort_of.bounds(self._decider, low, high, effort, progress)

    def margins(
        self, lo: Images, hi: Images, forms: ArrayLike, *, effort: str = "tight", progress: Progress = _silent
    ) -> np.ndarray:
        """Sound lower bounds of forms @ y over each box, [batch, rows]; forms is [rows, outputs] or [batch, rows, outputs].

        effort: as for `bounds`.
        """
        effort_of.check_effort(effort)
        low, high = self._boxes(lo, hi)
        c, outputs = as_float64(forms, "forms"), self._decider.outputs
        if c.ndim not in (2, 3) or c.shape[-1] != outputs or (c.ndim == 3 and len(c) != len(low)) or not np.isfinite(c).all():
            raise UsageError(
                f"forms of shape {list(c.shape)} do not fit {len(low)} boxes and {outputs} outputs",
                f"give finite [rows, {outputs}] or [batch, rows, {outputs}]",
            )
        c = np.broadcast_to(c, (len(low), *c.shape[-2:]))
        rows = c.shape[1]
        image = np.repeat(np.arange(len(low)), rows)
        q = Questions(low, high, image, np.ascontiguousarray(c.reshape(-1, outputs)), np.zeros(len(image)), np.arange(len(image)))
        return effort_of.margins(self._decider, q, effort, progress).reshape(len(low), rows)

    # ---- images -----------------------------------------------------------------------------------------

    def predict(self, x: Images, *, mean: Numbers = 0, std: Numbers = 1) -> np.ndarray:
        """The network's own outputs, [batch, outputs]: the original model in onnxruntime, or the interpreter without one.

        `x` is given as to `verify`: numbers, uint8 levels of pixels or an image file, normalised by (pixel - mean) / std.
        """
        flat = self._batch(normalise(as_pixels(x, self.input_shape).values, exact_numbers(mean), exact_numbers(std)), "x")
        replay = self._replayer()
        return np.stack([np.asarray(replay(row), dtype=np.float64).reshape(-1) for row in flat])

    def _labels(self, label: object, pixels: np.ndarray, mean: Numbers, std: Numbers) -> list[int]:
        if label is None:
            return [int(v) for v in self.predict(pixels, mean=mean, std=std).argmax(1)]
        given = as_numpy(label, "label").ravel().tolist()
        labels = [int(v) for v in given if v == v // 1]
        if len(labels) != len(given):
            raise UsageError("a label is no whole number", "give one label, or one an image")
        if len(labels) == 1:
            labels *= len(pixels)
        if len(labels) != len(pixels):
            raise UsageError(f"{len(labels)} labels for {len(pixels)} image{'s' * (len(pixels) > 1)}", "give one label, or one an image")
        return labels

    def ball_property(
        self,
        image: np.ndarray,
        epsilon: Fraction,
        label: int,
        *,
        clip: Sequence[Number] | None = None,
        mean: Numbers = 0,
        std: Numbers = 1,
        targets: Sequence[int] | None = None,
        norm: str = LINF,
        name: str = "ball",
    ) -> Property:
        """The property `label wins over the ball`, with exact bounds. An l2 or l1 ball lies in that of l-infinity, which is its box."""
        limits = limits_of(clip)
        image, means, stds = np.asarray(image), exact_numbers(mean), exact_numbers(std)
        (lo,), (hi,) = ball(image[None], epsilon, mean=means, std=stds, clip=limits)
        sides = lazy_ball(image, epsilon, means, stds, limits)
        within = None if check_norm(norm) == LINF else norm_ball(image, epsilon, norm, means, stds, limits)
        return Property.from_box(lo, hi, label, self.outputs, targets, exact_box=sides, ball=within, name=name)

    # ---- properties -------------------------------------------------------------------------------------

    def verify_property(
        self,
        prop: Property | str | os.PathLike[str],
        *,
        timeout: float | None = None,
        falsifier: bool = True,
        progress: Progress = _silent,
        label: int | None = None,
        seed: int = 0,
        search: str = "auto",
        trail: Trail | None = None,
        others: Others | None = None,
    ) -> Result:
        """Proves the unsafe set empty, or finds a point of it that the original model confirms.

        `prop` may be the path of a .vnnlib file, or VNN-LIB text. What one bound leaves open is searched until `timeout`, or for a minute
        without one: "auto" divides boxes of few inputs ("input"), and executions by the signs of neurons where there are more ("neurons");
        "slopes" chooses slopes of relaxations alone, "none" takes the first answer. `trail` notes what a certificate wants to know,
        `others` are processes that take a share of a search.
        """
        path = sha = ""
        if not isinstance(prop, Property):
            source = prop
            prop = read_vnnlib(source if isinstance(source, str) else Path(source), n_in=self.inputs, n_out=self.outputs)
            path, sha = digest(source)
        self.check_property(prop)
        self.prepare()
        decision = Decision(self._decider, self._falsify, prop, timeout, falsifier, progress, seed, search, trail, others)
        origin = replace(self._origin(prop.name), path=path, digest=sha, timeout=timeout, falsifier=falsifier, seed=seed, search=search)
        return replace(decision.run(label), origin=origin)

    def _origin(self, name: str) -> Origin:
        """What every result tells of the question it answers."""
        o, source = self.options, self.source
        sha, output = ("", "") if source is None else (source.sha256, source.output_name)
        return Origin(self.path, name, sha, output, o.dtype, o.candidates, "" if o.method == OWN else o.method)

    def check_property(self, prop: Property) -> None:
        """Raises UsageError where the property is of a network of other sizes or shapes, or of another output of this one."""
        if prop.n_in != self.inputs or prop.n_out != self.outputs:
            raise UsageError(
                f"property {prop.name} has {prop.n_in} inputs and {prop.n_out} outputs, the network {self.inputs} and {self.outputs}",
                "this property belongs to another network",
            )
        source = self.source
        if source is None:
            return
        asked, chosen = source.output_name if prop.version.startswith("1") else prop.output.name, source.output_name  # 1.0 calls any Y
        if asked != chosen and asked in source.outputs:
            raise UsageError(
                f"property {prop.name} is about output {asked!r}, the network was compiled for {chosen!r}",
                f"polytriton compile NET.onnx --output {asked}; in Python compile(..., output={asked!r})",
            )
        for tensor, shape in ((prop.input, source.input_shape), (prop.output, source.output_shape)):
            declared, own = ([d for d in some if d != 1] for some in (tensor.shape, shape))
            if min(len(declared), len(own)) > 1 and declared != own:
                raise UsageError(
                    f"property {prop.name} declares {tensor.name} of shape {list(tensor.shape)}, the network's is {list(shape)}",
                    "declare the network's own shape, or a flat one",
                )

    def _replayer(self) -> Replay:
        if self._replay is None:
            if self.imported is not None:
                self._replay = replayer(self.imported.model, self.imported.source)
            else:
                net = self.net
                self._replay = lambda x: interp.run(net, np.asarray(x, dtype=np.float64).reshape(1, -1))[0]
        return self._replay

    def _falsify(self, aims: Sequence[Aim], attack: Attack, deadline: float | None) -> list[Counterexample | None]:
        if not aims:
            return []
        dtype = self.source.input_dtype if self.source else "float64"
        how = Try(self._decider.first_dtype(), self._decider.options.candidates)
        certify = partial(reaches, self._decider, how) if self.options.semantics == "real" else None  # points are exact there
        found = falsify_all(self.net, aims, self._replayer(), attack=attack, deadline=deadline, input_dtype=dtype, certify=certify)
        return [None if f is None else Counterexample(f.x, f.y) for f in found]
