"""`polytriton compile`, and the observer that shows what the passes do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.options import argument, option
from polytriton.commands.screen import as_text
from polytriton.commands.targets import Targets, describe_kernels, show
from polytriton.errors import UsageError
from polytriton.knobs import CROSS_CHECK, IR, SUMMARY, TIMES, knobs, note

if TYPE_CHECKING:
    from polytriton.api import Verifier


def compile(
    network: Annotated[Path, argument(metavar="NET.onnx", help="The ONNX model.")],
    targets: Targets,
    artifact: Annotated[
        Path | None, option("-o", "--artifact", metavar="NET.poly", help="Where to write; by default NET.poly in the current folder.")
    ] = None,
    output: Annotated[str | None, option("--output", metavar="NAME", help="Which output to verify, where the model has several.")] = None,
    input_map: Annotated[
        Path | None,
        option("--input-map", metavar="MAP.npz", help="Arrays A and b: compile the network of z, where its input is A z + b."),
    ] = None,
    candidates: Annotated[str, option("--candidates", help="Where bounds are taken: all or input.")] = "all",
    check: Annotated[bool, option("--check/--no-check", help="Compare the import with onnxruntime on random inputs.")] = True,
    dump_ir: Annotated[
        str | None, option("--dump-ir", metavar="[PASS|all]", help="Write the IR after every pass to NET.ir/, or print it after one pass.")
    ] = None,
    dump_dir: Annotated[Path | None, option("--dump-dir", metavar="DIR", help="The folder for --dump-ir=all.")] = None,
    as_json: Annotated[bool, option("--json", help="What was written, as one JSON document.")] = False,
) -> int:
    """Compile an ONNX network into an artifact, once for any number of queries."""
    for path in (network, artifact):
        if path is not None and not path.name:
            raise UsageError(f"`{path}` names no file", "polytriton compile NET.onnx -o NET.poly; is a variable of the shell empty?")
    place = artifact or Path(network.name).with_suffix(".poly")
    if place.suffix == ".onnx":
        raise UsageError(f"-o {place} looks like a model", "name the artifact NET.poly")
    if dump_dir is not None and dump_ir != "all":
        raise UsageError("--dump-dir belongs to --dump-ir=all", "add --dump-ir")
    if as_json and dump_ir not in (None, "all"):
        raise UsageError("--json and --dump-ir=PASS both print to standard output", "leave one out, or write the IR with --dump-ir=all")
    import polytriton
    from polytriton.artifact import pack, write_artifact

    order = targets.order()
    stages = Stages(dump_ir, dump_dir or place.with_suffix(".ir"))
    given = None if input_map is None else polytriton.InputMap.load(input_map)
    if given is not None and dump_ir is not None:
        raise UsageError("--dump-ir shows how a network is compiled without an input map", "leave one out")
    verifier = polytriton.compile(network, output=output, candidates=candidates, check=check, observe=stages)
    verifier = verifier if given is None else verifier.map_input(given)
    stages.finish()
    cross_check_folded(verifier)
    kernels = order.carry_out(verifier.compiled) if order else None
    write_artifact(verifier, place, kernels)
    if kernels is not None and kernels.gpus and verifier.imported is not None:
        from polytriton.known import remember

        remember(pack(verifier.compiled, verifier.imported, kernels)[0])
    if as_json:
        print(as_text({"artifact": str(place), **describe_kernels(kernels)}))
    else:
        out = sys.stderr if stages.only else sys.stdout
        if kernels is not None:
            show(kernels, out)
        print(place, file=out)
    note(SUMMARY, f"{len(verifier.net.nodes)} layers, {len(verifier.compiled.plan.programs)} programs")
    return 0


def known_stages() -> list[str]:
    from polytriton.passes.pipeline import PLAN_PASSES, SEQUENCE

    names = ["import", *SEQUENCE, *PLAN_PASSES]
    return [f"{k:02d}-{name}" for k, name in enumerate(names)]


class Stages:
    """Watches the passes: dumps, times and IR as asked for by --dump-ir and POLYTRITON_DEBUG."""

    def __init__(self, dump: str | None = None, folder: Path | None = None) -> None:
        self.count, self.folder = 0, folder if dump == "all" else None
        self.only = dump if dump not in (None, "all") else None
        names = known_stages()
        if self.only is not None and self.only not in {*names, *(n[3:] for n in names)}:
            raise UsageError(
                f"--dump-ir={self.only}: there is no such pass", f"use all, or one of: {', '.join(dict.fromkeys(n[3:] for n in names))}"
            )
        if self.folder is not None:
            self._clear(self.folder)

    @staticmethod
    def _clear(folder: Path) -> None:
        """A dump of an earlier compiler may have had more passes."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.iterdir():
                if re.fullmatch(r"\d\d-\w+\.ptir", old.name):
                    old.unlink()
        except OSError as error:
            raise UsageError(
                f"cannot write the IR to {folder}: {error.strerror or error}", "choose another folder with --dump-dir"
            ) from error

    def __call__(self, stage: str, text: str, seconds: float) -> None:
        name = f"{self.count:02d}-{stage}"
        self.count += 1
        note(TIMES, f"{name} {1000 * seconds:.1f} ms")
        note(IR, f"{name}:\n{text}")
        if self.folder is not None:
            (self.folder / f"{name}.ptir").write_text(text, encoding="utf-8")
        if self.only in (stage, name):
            print(f"// {name}\n{text}", end="")

    def finish(self) -> None:
        if self.folder is not None:
            print(f"polytriton: IR after each pass in {self.folder}/", file=sys.stderr)


def cross_check_folded(verifier: Verifier) -> None:
    """POLYTRITON_DEBUG=5: the folded network against the original model on random inputs."""
    if knobs().debug < CROSS_CHECK:
        return
    import numpy as np

    from polytriton.ir import interp

    x = np.random.default_rng(0).random((4, verifier.inputs)).astype(np.float32).astype(np.float64)
    ours, theirs = interp.run(verifier.net, x), verifier.predict(x)
    gap = float(np.abs(ours - theirs).max() / max(1e-30, float(np.abs(theirs).max())))
    note(CROSS_CHECK, f"the folded network differs from onnxruntime by {gap:.3g} of its largest output")
