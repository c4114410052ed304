"""Runs the published instances and prints verdicts beside the official ones.

    python -m bench.instances [--data DIR] [--semantics real] [--timeout 60] [--only GROUP_OR_ID ...] [--crown] [--csv OUT.csv]

`--crown` runs only the instances that plain CROWN proves. Exit code 1 where a verdict contradicts an official one.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import polytriton
from bench.machine import data_folder, describe
from polytriton.frontend.vnnlib import read_vnnlib

CONTRADICTS = {("sat", "unsat"), ("unsat", "sat")}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path)
    p.add_argument("--semantics", default="real")
    p.add_argument("--candidates", default="all")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--timeout", type=float, default=60.0)
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--crown", action="store_true")
    p.add_argument("--no-falsify", action="store_true")
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    data = a.data or data_folder()
    rows = list(csv.DictReader((data / "instances.csv").open()))
    if a.only:
        rows = [r for r in rows if r["id"] in a.only or r["group"] in a.only or Path(r["net"]).parts[1] in a.only]
    if a.crown:
        rows = [r for r in rows if r["crown_verified"] == "1"]
    nets: dict[str, polytriton.Verifier] = {}
    out = []
    for i, r in enumerate(rows):
        if r["net"] not in nets:
            nets[r["net"]] = polytriton.compile(data / r["net"], semantics=a.semantics, candidates=a.candidates, dtype=a.dtype)
        prop = read_vnnlib(data / r["spec"], n_in=int(r["n_in"]), n_out=int(r["n_out"]))
        start = time.perf_counter()
        got = nets[r["net"]].verify_property(prop, timeout=a.timeout, falsifier=not a.no_falsify)
        seconds = time.perf_counter() - start
        lost = (r["crown_verified"] == "1" and got.verdict != "unsat") or (r["verdict"] == "sat" and got.verdict != "sat")
        note = "CONTRADICTS" if (r["verdict"], got.verdict) in CONTRADICTS else "missed" if lost else ""
        out.append(
            {
                "id": r["id"],
                "benchmark": Path(r["net"]).parts[1],
                "net": Path(r["net"]).name,
                "official": r["verdict"],
                "verdict": got.verdict,
                "margin": got.margin,
                "crown_verified": r["crown_verified"],
                "crown_margin": r["crown_margin"],
                "seconds": round(seconds, 3),
                "note": note,
            }
        )
        line = f"{i + 1}/{len(rows)} {r['id']} {r['net']} official {r['verdict']}: {got.verdict} {got.margin:.5g} {seconds:.2f}s {note}"
        print(line, file=sys.stderr, flush=True)
    if a.csv:
        with a.csv.open("w", newline="") as f:
            w = csv.DictWriter(f, [*out[0], *describe()])
            w.writeheader()
            w.writerows({**o, **describe()} for o in out)
    _summary(out)
    return 1 if any(o["note"] == "CONTRADICTS" for o in out) else 0


def _summary(out: list[dict[str, object]]) -> None:
    groups: dict[str, list[dict[str, object]]] = defaultdict(list)
    for o in out:
        groups[str(o["benchmark"])].append(o)
    heads = ("verified", "falsified", "unknown", "timeout", "official u/s/?", "crown proves", "of them proved", "sat found", "median s")
    print(f"{'benchmark':<18}" + "".join(f"{h:>16}" for h in heads))
    for name, some in [*groups.items(), ("all", out)]:
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
    raise SystemExit(main())
