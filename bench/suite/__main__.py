"""The suites: how fast bounds are, on the CPU or a GPU, with what every row needs to be compared with another day's.

    python -m bench.suite [PART ...] [--device cpu] [--threads 1] [--out FOLDER] [--quick] [--only GROUP ...]

goals         three synthetic networks with goals (bench.cpu)
zoo           the paper's networks, synthetic, normal and robust, alone and in a batch
growth        how the time grows with rows, depth, channels, image size, batch and dense width
distribution  many images of each network, each decided once: the spread of runtimes that the paper's appendix plots
data          real networks with published properties: verdicts, margins, times (bench.instances)

Rows go to FOLDER/PART.csv as they come and to stdout, progress goes to stderr. Every group of a part runs in a process of its own; a
row that takes longer than --limit seconds ends its group, and the row says so. --cpu: seconds, but for --limit's, are the processor's.
--quick: the small ends of the sizes, to see that everything works. Several runs are compared by `python -m bench.report FOLDER FOLDER`.

Exit code: 0, 1 where a process died or a verdict contradicts a published one, 2 for wrong usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from bench.core.command import add_parts, check_known, parser, run_folder, run_groups
from bench.core.machine import data_folder, describe, found_data
from bench.core.measure import PartJob, convolution_rate
from bench.core.remote import rows_of
from bench.core.table import Row, Table, say

PARTS = {
    "goals": "bench.cpu", "zoo": "bench.suite.zoo", "growth": "bench.suite.growth", "distribution": "bench.suite.distribution",
    "data": "bench.instances",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("suite", __doc__)
    add_parts(p, PARTS)
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    p.add_argument("--cpu", action="store_true", help="count processor time, where other work shares the machine")
    p.add_argument("--out", type=Path, help="folder of the CSV files (build/bench/DATE-COMMIT)")
    p.add_argument("--list", action="store_true", help="print the groups and stop")
    p.add_argument("--quick", action="store_true", help="small sizes: a trial of the suite, not of the machine")
    p.add_argument("--runs", type=int, default=5, help="repetitions of a row at most (%(default)s)")
    p.add_argument("--budget", type=float, default=20.0, help="seconds that the repetitions of a row may take (%(default)g)")
    p.add_argument("--limit", type=float, default=300.0, help="seconds after which a row is given up (%(default)g)")
    p.add_argument("--nets", type=Path, help="folder of the networks of `goals`")
    p.add_argument("--data", type=Path, help="folder of the data of `data` and `distribution` ($POLYTRITON_DATA)")
    a = p.parse_args(arguments)
    check_known(p, "part", a.parts, PARTS)
    if a.threads < 1 or a.runs < 1:
        p.error("--threads and --runs are 1 or more")
    if a.device != "cpu" and not a.device.startswith("cuda"):
        p.error(f"--device {a.device!r}: choose cpu, cuda or cuda:N")
    if a.device != "cpu" and (missing := no_gpu()):
        p.error(missing)
    if a.device != "cpu" and a.cpu:
        p.error("--cpu counts the processor's time, which says nothing of --device cuda")
    if a.data:
        os.environ["POLYTRITON_DATA"] = str(a.data.resolve())  # child processes read it
    if "data" in a.parts:
        data_folder()
    parts = a.parts or [part for part in PARTS if part != "data" or found_data()]
    if not a.parts and len(parts) < len(PARTS):
        say("no verification data: the part data is left out; set POLYTRITON_DATA")
    if a.list:
        for part in parts:
            print(f"{part}: {', '.join(module_of(part).groups(a.quick))}")
        return 0
    if a.only and not any(g in a.only for part in parts for g in module_of(part).groups(a.quick)):
        p.error(f"no group {a.only[0]!r}: --list names them")
    nets = a.nets and a.nets.resolve()
    job = PartJob(a.device, a.threads, a.quick, 2 if a.quick else a.runs, 2.0 if a.quick else a.budget, nets=nets)
    job = replace(job, clock="processor" if a.cpu else "wall")
    about = describe(device_name(a.device), a.threads)
    out = a.out or run_folder(about)
    say(f"{about['machine']}; {about['device']}, {a.threads} thread(s), commit {about['commit']}")
    if a.device == "cpu":
        job = replace(job, **next(rows_of(convolution_rate, a.threads, job.clock, seconds=lambda: a.limit, threads=a.threads)))
    about |= {"clock": job.clock, "conv_gflops": f"{job.conv_gflops:.1f}"}
    codes = [run_part(part, a.only, job, a.limit, out / f"{part}.csv", about) for part in parts]
    say(f"in {out}; a page of it: python -m bench.report {out}")
    return max(codes)


def no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "--device cuda needs an NVIDIA GPU and a PyTorch built for CUDA"


def device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device)


def module_of(part: str) -> ModuleType:
    return importlib.import_module(PARTS[part])


def run_part(part: str, only: Sequence[str], job: PartJob, limit: float, path: Path, about: Row) -> int:
    """All groups of a part, each in a process of its own; 0 or FAILED."""
    module = module_of(part)
    wanted = [g for g in module.groups(job.quick) if not only or g in only]
    if not wanted:
        return 0
    print(f"\n{part}", flush=True)
    table = Table(module.COLUMNS, path, {"part": part, **about}, module.SHOWN)
    code = run_groups(table, wanted, lambda group: rows_of(module.work, group, job, seconds=lambda: limit, threads=job.threads))
    if hasattr(module, "summarise"):
        module.summarise(table.rows)
    return code


if __name__ == "__main__":
    sys.exit(main())
