"""Machine code of the paper's networks, made where there is no GPU, so that a GPU's minutes go to measuring.

    python -m bench.gpu.code [GROUP ...] --target cuda:90 [--numerics float64 tf32x3] --out FOLDER
    python -m bench.gpu zoo --code FOLDER

The first writes FOLDER/GROUP.zip: what an artifact holds under kernels/. The second launches that code, as a run launches an artifact's,
where the release of Triton is the one that made it; else each kernel is compiled there, and a line says so.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.core.command import check_known, parser
from bench.core.table import say
from polytriton.artifact import CODE
from polytriton.kernels.build import compile_all, triton_version
from polytriton.kernels.files import REPORT, Kernels, emit_files, read_files
from polytriton.knobs import knobs
from polytriton.passes.pipeline import Compiled
from polytriton.workers.processors import processors


def compile_code(compiled: Compiled, target: str, numerics: Sequence[str], cache: Path | None) -> Kernels:
    """What an artifact would hold of a network's kernels; `cache`: where single ones are kept."""
    files = emit_files(compiled, [target], numerics)
    built = compile_all(files.machine, target, cache=cache, jobs=processors())
    return files.with_code([b.report for b in built], {target: {b.kernel.name: b.cubin for b in built}}, triton_version())


def with_code(compiled: Compiled, files: Kernels) -> Compiled:
    """The network as it is with these in its artifact."""
    return replace(compiled, filed=replace(files.filed, plan=compiled.plan))


def write_code(compiled: Compiled, target: str, numerics: Sequence[str], path: Path) -> int:
    """How many kernels there are."""
    files = compile_code(compiled, target, numerics, knobs().cubins)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.comment = f"{target} {','.join(numerics)}".encode()
        for name, data in files.contents().items():
            out.writestr(name, data)
    return len(files.machine)


def read_code(compiled: Compiled, path: Path) -> Compiled:
    """The network with what was written of it."""
    with zipfile.ZipFile(path) as held:
        contents = {name: held.read(name) for name in held.namelist()}
        target, numerics = held.comment.decode().split(" ")
    code = {target: contents[CODE[target]]}
    return with_code(compiled, read_files(contents, [target], numerics.split(",")).with_reports(contents[REPORT], code))


def main() -> int:
    from bench.gpu import zoo

    p = parser("gpu.code", __doc__)
    p.add_argument("groups", nargs="*", metavar="GROUP", help="networks (all that have a goal)")
    p.add_argument("--target", default="cuda:90", help="the GPU (%(default)s)")
    p.add_argument("--numerics", nargs="+", default=["float64", "tf32x3"], help="arithmetics (%(default)s)")
    p.add_argument("--out", type=Path, required=True, help="folder of the files")
    a = p.parse_args()
    check_known(p, "group", a.groups, zoo.groups(dry=False))
    a.out.mkdir(parents=True, exist_ok=True)
    for group in a.groups or [f"{name}-{kind}" for name, kind in zoo.GOALS]:
        name, _, kind = group.rpartition("-")
        made = write_code(zoo.Problem(name, kind, 1).compiled, a.target, a.numerics, a.out / f"{group}.zip")
        say(f"{group}: {made} kernels")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
