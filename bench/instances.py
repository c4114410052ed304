"""Runs the published instances and prints verdicts beside the official ones.

    python -m bench.instances [--data DIR] [--semantics real] [--timeout 60] [--only GROUP_OR_ID ...] [--crown]
                              [--open] [--search [HOW]] [--device cuda] [--csv OUT.csv]

`--crown` runs only the instances that plain CROWN proves, `--open` only official unsats that it does not prove. `--search` goes
on where one bound decides nothing.
Exit code 1 where a verdict contradicts an official one. The part `data` of
bench.suite runs the same, a benchmark a process.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polytriton
from bench.core.command import parser
from bench.core.machine import data_folder, describe
from bench.core.measure import Clock, PartJob, now_by
from bench.core.table import Row, Table, read_rows
from polytriton.frontend.vnnlib import read_vnnlib

CONTRADICTS = {("sat", "unsat"), ("unsat", "sat")}
COLUMNS = (
    "network", "benchmark", "id", "official", "verdict", "margin", "crown_verified", "crown_margin", "seconds", "engine", "numerics",
    "searched", "parts", "ended", "note",
)  # fmt: skip
SHOWN = ("network", "id", "official", "verdict", "margin", "crown_margin", "seconds", "searched", "parts", "ended", "note")
TIMEOUT, QUICK = 60.0, 3  # seconds an instance; instances of a benchmark in a quick run


def main() -> int:
    p = parser("instances", __doc__)
    p.add_argument("--data", type=Path)
    p.add_argument("--semantics", default="real")
    p.add_argument("--candidates", default="all")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--device", default="cpu")
    p.add_argument("--timeout", type=float, default=TIMEOUT)
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--crown", action="store_true")
    p.add_argument("--open", action="store_true")
    p.add_argument("--no-falsify", action="store_true")
    p.add_argument("--search", nargs="?", const="auto", default="none", metavar="HOW")
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    data = a.data or data_folder()
    rows = select(read_rows(data / "instances.csv"), a.only, undecided=a.open)
    if a.crown:
        rows = [r for r in rows if r["crown_verified"] == "1"]
    if not rows:
        p.error("no instance is left: --only names groups or ids of instances.csv")
    options = {"semantics": a.semantics, "candidates": a.candidates, "dtype": a.dtype, "device": a.device}
    table = Table(COLUMNS, a.csv, {"part": "data", **describe()}, SHOWN)
    for row in answers(data, rows, options, a.timeout, not a.no_falsify, a.search):
        table.add(row)
    table.close()
    summarise(table.rows)
    return 1 if any(r["note"] == "CONTRADICTS" for r in table.rows) else 0


def select(rows: list[dict[str, str]], only: Sequence[str], undecided: bool) -> list[dict[str, str]]:
    """Those of the groups, benchmarks or ids named, if any are; `undecided`: official unsats that plain CROWN does not prove."""
    if only:
        rows = [r for r in rows if r["id"] in only or r["group"] in only or benchmark(r) in only]
    return [r for r in rows if r["verdict"] == "unsat" and r["crown_verified"] != "1"] if undecided else rows


def benchmark(row: dict[str, str]) -> str:
    return Path(row["net"]).parts[1]


def answers(
    data: Path, rows: Iterable[dict[str, str]], options: dict[str, Any], timeout: float, falsifier: bool, search: str = "none",
    clock: Clock = "wall",
) -> Iterator[Row]:  # fmt: skip
    nets: dict[str, polytriton.Verifier] = {}
    for r in rows:
        if r["net"] not in nets:
            nets[r["net"]] = polytriton.compile(data / r["net"], **options)
            nets[r["net"]].prepare()
        net = nets[r["net"]]
        prop = read_vnnlib(data / r["spec"], n_in=int(r["n_in"]), n_out=int(r["n_out"]))
        start = now_by(clock)
        got = net.verify_property(prop, timeout=timeout, falsifier=falsifier, search=search)
        seconds = now_by(clock) - start
        lost = (r["crown_verified"] == "1" and got.verdict != "unsat") or (r["verdict"] == "sat" and got.verdict != "sat")
        yield {
            "network": Path(r["net"]).stem,
            "benchmark": benchmark(r),
            "id": r["id"],
            "official": r["verdict"],
            "verdict": got.verdict,
            "margin": got.margin,
            "crown_verified": r["crown_verified"],
            "crown_margin": r["crown_margin"],
            "seconds": seconds,
            "engine": "torch" if net.options.device == "cpu" else "kernels",
            "numerics": options["dtype"],
            **({} if got.search is None else {"searched": got.search.kind, "parts": got.search.domains, "ended": got.search.ended}),
            "note": "CONTRADICTS" if (r["verdict"], got.verdict) in CONTRADICTS else "missed" if lost else "",
        }


# ---- the part of bench.suite ---------------------------------------------------------------------------------------------


def groups(quick: bool) -> list[str]:
    return list(dict.fromkeys(benchmark(r) for r in read_rows(data_folder() / "instances.csv")))[: 2 if quick else None]


def work(group: str, job: PartJob) -> Iterator[Row]:
    data = data_folder()
    rows = [r for r in read_rows(data / "instances.csv") if benchmark(r) == group]
    options = {**job.options(), "dtype": "auto"}
    yield from answers(data, rows[: QUICK if job.quick else None], options, 2.0 if job.quick else TIMEOUT, True, clock=job.clock)


def summarise(out: Sequence[Row]) -> None:
    by_name: dict[str, list[Row]] = defaultdict(list)
    done = [o for o in out if "verdict" in o]
    for o in done:
        by_name[str(o["benchmark"])].append(o)
    heads = ("verified", "falsified", "unknown", "timeout", "official u/s/?", "crown proves", "of them proved", "sat found", "median s")
    print(f"\n{'benchmark':<18}" + "".join(f"{h:>16}" for h in heads))
    for name, some in [*by_name.items(), *[("all", done)] * bool(done)]:
        n = {v: sum(o["verdict"] == v for o in some) for v in ("unsat", "sat", "unknown", "timeout")}
        official = "/".join(str(sum(o["official"] == v for o in some)) for v in ("unsat", "sat", "unknown"))
        crown = [o for o in some if o["crown_verified"] == "1"]
        proved = sum(o["verdict"] == "unsat" for o in crown)
        known = [o for o in some if o["official"] == "sat"]
        found = f"{sum(o['verdict'] == 'sat' for o in known)}/{len(known)}"
        seconds = statistics.median(float(str(o["seconds"])) for o in some)
        cells = (*(str(n[v]) for v in n), official, str(len(crown)), str(proved), found, f"{seconds:.3f}")
        print(f"{name:<18}" + "".join(f"{c:>16}" for c in cells))


if __name__ == "__main__":
    sys.exit(main())
