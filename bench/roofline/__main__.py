"""What machine code and a model say of a GPU that is not here: estimates, no measurements.

    python -m bench.roofline [kernels] [zoo] [ascent] [--target cuda:90] [--out FOLDER] [--only GROUP ...]

kernels   the launches of bench.gpu micro, compiled ahead of time: registers, shared memory, occupancy, instruction mix of the whole code
          and of the inner loop, padding, bytes, what binds, the estimated fraction of the peak beside its goal
zoo       the paper's networks with goals: launches, operations and bytes for the rows that a box needs, estimated seconds beside the
          goal and the paper's time on a V100
ascent    the launches of one turn of the ascent of slopes and multipliers over 4,096 domains of resnet_2b, and all of them together;
          the goal is of the time that its bytes and operations take at the peak of either

Peaks are data sheets' (H100 SXM: 67 TFLOP/s float64, 165 three-way tf32, 3.35 TB/s); docs/gpu-internals.md has the columns. Rows go to
FOLDER/roofline_GPU_estimate_PART.csv as they come and to stdout; progress goes to stderr. Cubins are kept in the user's cache. Needs
Triton, no GPU. The group `tiles` of kernels, many tile shapes of two steps, runs only where --only names it.

Exit code: 0, 1 where a group failed, 2 where there is no Triton or no such group.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.core.children import Gone
from bench.core.command import add_parts, check_known, parser, run_folder, run_groups
from bench.core.machine import describe
from bench.core.table import Row, Table, first_line, say, slug
from bench.roofline import ascent, kernels, zoo
from polytriton.errors import PolytritonError
from polytriton.kernels.build import triton_version
from polytriton.knobs import knobs
from polytriton.tuning.device import SHEETS

PARTS = ("kernels", "zoo", "ascent")
MISSING = 2


def main() -> int:
    p = parser("roofline", __doc__)
    add_parts(p, PARTS)
    p.add_argument("--target", choices=SHEETS, default="cuda:90", help="the GPU (%(default)s)")
    p.add_argument("--out", type=Path, help="folder of the CSV files (build/bench/DATE-COMMIT)")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile (%(default)s)")
    p.add_argument("--seconds", type=float, default=60.0, help="zoo: how long a refinement on the CPU may take; 0: none (%(default)g)")
    p.add_argument("--code", action="store_true", help="zoo: compile every kernel and use its registers and loop: many minutes")
    p.add_argument("--no-host", action="store_true", help="zoo: do not count the host's tensor operations")
    a = p.parse_args()
    check_known(p, "part", a.parts, PARTS)
    parts = a.parts or PARTS
    every = {"kernels": list(kernels.cases()), "zoo": zoo.groups(), "ascent": ascent.groups()}
    check_known(p, "group", a.only, [g for part in parts for g in every[part]])
    try:
        triton_version()
    except PolytritonError as error:
        say(str(error))
        return MISSING
    cache = knobs().cubins
    gpu = SHEETS[a.target].source
    about = describe(f"{gpu}: estimated, not measured")
    out = a.out or run_folder(about)
    print(f"estimates from machine code and a model, nothing was measured: {gpu}", flush=True)

    def work(part: str, group: str) -> Iterator[Row]:
        say(f"   {group}")
        try:
            if part in ("kernels", "ascent"):
                yield from (kernels if part == "kernels" else ascent).work(group, a.target, cache, a.jobs)
            else:
                yield from zoo.work(group, a.target, cache, a.jobs, seconds=a.seconds, with_code=a.code, hosts=not a.no_host)
        except Exception as error:
            raise Gone(first_line(error)) from error

    code = 0
    for part in parts:
        module = {"kernels": kernels, "zoo": zoo, "ascent": ascent}[part]
        wanted = [g for g in every[part] if g in a.only] if a.only else module.groups()
        path = out / f"roofline_{name_of(gpu)}_estimate_{part}.csv"
        table = Table(module.COLUMNS, path, {"part": part, "target": a.target, **about}, module.SHOWN)
        code |= run_groups(table, wanted, partial(work, part))
        if table.rows:
            say(f"   {len(table.rows)} estimates in {path}")
    return code


def name_of(source: str) -> str:
    """The GPU of a data sheet, for a file's name."""
    return slug(source.split()[0])


if __name__ == "__main__":
    sys.exit(main())
