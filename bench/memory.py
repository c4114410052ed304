"""What memory searches take: `polytriton verify` with a budget, and the resident memory of its processes meanwhile.

    python -m bench.memory [--data DIR] [--memory 1G ...] [--timeout 300] [--workers N] [--only ID ...] [--csv OUT.csv] [-- MORE OPTIONS]

By default one property of cifar_biasfield and one of sri_resnet_a. `base` is what a process holds that has loaded all that it needs, the
network included, and asked nothing; `peak` the most that all held together, looked at twenty times a second. The budget is for what the
analysis takes beyond the base: `share` is (peak - bases) / budget, which may be 1.2 at most, or the exit code is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.core.command import parser
from bench.core.machine import data_folder, describe
from bench.core.table import Table, read_rows
from bench.instances import select
from polytriton.commands.groups import parse_size

COLUMNS = ("id", "network", "memory", "workers", "verdict", "clock", "base_mb", "peak_mb", "processes", "share")
IDS = ("v0183", "v0163")
EVERY, MOST = 0.05, 1.2
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def main() -> int:
    p = parser("memory", __doc__)
    p.add_argument("--data", type=Path)
    p.add_argument("--memory", nargs="+", default=["1G"])
    p.add_argument("--timeout", type=float, default=300.0)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--only", nargs="*", default=IDS)
    p.add_argument("--csv", type=Path)
    p.add_argument("more", nargs="*", metavar="MORE")
    a = p.parse_args()
    data, over = a.data or data_folder(), False
    table = Table(COLUMNS, a.csv, describe(), COLUMNS)
    for row in select(read_rows(data / "instances.csv"), a.only, undecided=False):
        files = [str(data / row["net"]), str(data / row["spec"])]
        for memory in a.memory:
            command = [
                sys.executable, "-m", "polytriton", "verify", *files, "--memory", memory, "--timeout", str(a.timeout),
                "--semantics", "real", "--no-falsify", *(["--workers", str(a.workers)] if a.workers else ["--engine", "local"]), *a.more,
            ]  # fmt: skip
            base = watch([*command, "--prepare"])[1]
            began = time.monotonic()
            verdict, peak, processes = watch(command)
            share = (peak - processes * base) / parse_size(memory)
            over |= share > MOST
            table.add(
                {"id": row["id"], "network": Path(row["net"]).stem, "memory": memory, "workers": a.workers, "verdict": verdict,
                 "clock": round(time.monotonic() - began, 1), "base_mb": base >> 20, "peak_mb": peak >> 20, "processes": processes,
                 "share": round(share, 3)}
            )  # fmt: skip
    table.close()
    return int(over)


def watch(command: list[str]) -> tuple[str, int, int]:
    """The first line that a command prints, the most memory that it and what it started held together, and by how many processes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    most, count = 0, 0
    while process.poll() is None:
        held = [resident(pid) for pid in family(process.pid)]
        most, count = max(most, sum(held)), max(count, len(held))
        time.sleep(EVERY)
    assert process.stdout is not None
    return process.stdout.readline().strip(), most, count


def family(pid: int) -> Iterator[int]:
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
