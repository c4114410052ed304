"""The suites: how fast bounds are, on the CPU or a GPU, with what every row needs to be compared with another day's.

    python -m bench.suite [PART ...] [--device cpu] [--threads 1] [--out FOLDER] [--quick] [--only GROUP ...]

goals         three synthetic networks with goals (bench.cpu)
zoo           the paper's networks, synthetic, normal and robust, alone and in a batch
growth        how the time grows with rows, depth, channels, image size, batch and dense width
distribution  many images of each network, each decided once: the spread of runtimes that the paper's appendix plots
data          real networks with published properties: verdicts, margins, times (bench.instances)

Rows go to FOLDER/PART.csv as they come and to stdout, progress goes to stderr. Every group of a part runs in a process of its own; a
row that takes longer than --limit seconds ends its group, and the row says so. --quick: the small ends of the sizes, to see that
everything works. Several runs are compared by `python -m bench.report FOLDER FOLDER`.

Exit code: 0, 1 where a process died or a verdict contradicts a published one, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from bench.core.children import Gone, MeasuringChild
from bench.core.machine import ROOT, data_folder, describe, found_data
from bench.core.measure import PartJob
from bench.core.serve import Message
from bench.core.table import Row, Table, say

PARTS = {
    "goals": "bench.cpu", "zoo": "bench.suite.zoo", "growth": "bench.suite.growth", "distribution": "bench.suite.distribution",
    "data": "bench.instances",
}  # fmt: skip
FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="bench.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    p.add_argument("--out", type=Path, help="folder of the CSV files (build/bench/DATE-COMMIT)")
    p.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="some groups of the parts; --list names them")
    p.add_argument("--list", action="store_true", help="print the groups and stop")
    p.add_argument("--quick", action="store_true", help="small sizes: a trial of the suite, not of the machine")
    p.add_argument("--runs", type=int, default=5, help="repetitions of a row at most (%(default)s)")
    p.add_argument("--budget", type=float, default=20.0, help="seconds that the repetitions of a row may take (%(default)g)")
    p.add_argument("--limit", type=float, default=300.0, help="seconds after which a row is given up (%(default)g)")
    p.add_argument("--nets", type=Path, help="folder of the networks of `goals`")
    p.add_argument("--data", type=Path, help="folder of the data of `data` and `distribution` ($POLYTRITON_DATA)")
    a = p.parse_args(arguments)
    if unknown := [part for part in a.parts if part not in PARTS]:
        p.error(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if a.threads < 1 or a.runs < 1:
        p.error("--threads and --runs are 1 or more")
    if a.device != "cpu" and not a.device.startswith("cuda"):
        p.error(f"--device {a.device!r}: choose cpu, cuda or cuda:N")
    if a.device != "cpu" and (missing := no_gpu()):
        p.error(missing)
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
    job = PartJob(a.device, a.threads, a.quick, 2 if a.quick else a.runs, 2.0 if a.quick else a.budget, nets=a.nets)
    about = describe(device_name(a.device), a.threads)
    out = a.out or ROOT / "build" / "bench" / f"{time.strftime('%Y%m%d-%H%M%S')}-{about['commit']}"
    say(f"{about['machine']}; {about['device']}, {a.threads} thread(s), commit {about['commit']}")
    with MeasuringChild("bench.suite.child", threads=a.threads) as child:
        job = replace(job, conv_gflops=answer_of(child, {"rate": a.threads}, a.limit)["rate"] if a.device == "cpu" else 0.0)
    about["conv_gflops"] = f"{job.conv_gflops:.1f}"
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
    """All groups of a part, one after another; 0 or FAILED."""
    module = module_of(part)
    wanted = [g for g in module.groups(job.quick) if not only or g in only]
    if not wanted:
        return 0
    print(f"\n{part}", flush=True)
    table, code = Table(module.COLUMNS, path, {"part": part, **about}, module.SHOWN), 0
    for group in wanted:
        for row in rows_of(part, group, job, limit):
            code |= FAILED * (row.pop("died", False) or row.get("note") == "CONTRADICTS")
            table.add(row)
    table.close()
    if hasattr(module, "summarise"):
        module.summarise(table.rows)
    return code


def rows_of(part: str, group: str, job: PartJob, limit: float) -> Iterator[Row]:
    """What a process of its own finds; one row more, with a note, where it dies or takes too long."""
    first = module_of(part).COLUMNS[0]
    with MeasuringChild("bench.suite.child", [part, group], threads=job.threads) as child:
        try:
            answer_of(child, {"start": {**vars(job), "nets": str(job.nets.resolve()) if job.nets else ""}}, limit)
            while (row := answer_of(child, {"next": True}, limit)["row"]) is not None:
                yield row
        except Gone as error:
            yield {first: group, "note": str(error), "died": not error.late}


def answer_of(child: MeasuringChild, question: Message, seconds: float) -> Message:
    found = child.ask(question, seconds)
    if "error" in found:
        raise Gone(found["error"])
    return found


if __name__ == "__main__":
    sys.exit(main())
