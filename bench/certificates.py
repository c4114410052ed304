"""Certificates of published properties: what finding the proof, writing it and checking it cost.

    python -m bench.certificates [--only GROUP ...] [--ids v0001 ...] [--every] [--semantics real float32] [--timeout 60] [--checking 600]
                                 [--out FILE]
    python -m bench.certificates --notes 5 --ids v0003 v0065    so many searches with notes for a certificate and without, in turns, and
                                                                what the file costs

Seconds are CPU seconds of one thread, so that what else the machine does hardly shows. What is in the file already is left out, whatever
its verdict: a run that was cut off goes on. Writing includes reading both files as the checker does. `--every`: what one bound proves too.
`further`: how often the checker divided what the certificate's tree leaves open.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import polytriton
from bench.core.command import parser
from bench.core.machine import data_folder, processor
from bench.core.table import Row, Table, read_rows
from polytriton import checker
from polytriton.certificate.guide import Guide, enough
from polytriton.certificate.write import write
from polytriton.checker_files import Refused
from polytriton.errors import PolytritonError
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove.trail import Trail

OUT = Path(__file__).parent / "results" / "certificates-cpu-1thread.csv"
COLUMNS = (
    "id", "group", "network", "semantics", "verdict", "search_s", "write_s", "check_s", "bytes", "nodes", "leaves", "further", "margin",
    "note",
)  # fmt: skip
CHECKING = 600.0  # CPU seconds that a check may take


def instances(ids: list[str], groups: list[str], every: bool = False) -> Iterator[dict[str, str]]:
    """Those named; else the published ones that hold, and that one bound does not prove unless all are wanted."""
    for row in read_rows(data_folder() / "instances.csv"):
        holds = row["verdict"] == "unsat" and row["kind"] == "official" and (every or row["crown_verified"] == "0")
        if (row["id"] in ids if ids else holds) and (not groups or row["group"] in groups):
            yield row


def measure_row(row: dict[str, str], semantics: str, timeout: float, checking: float, folder: Path) -> Row:
    """One row of the table; `checking`: after so many CPU seconds a check divides no further."""
    data = data_folder()
    net, spec, target = data / row["net"], data / row["spec"], folder / "a.cert"
    found: Row = {"id": row["id"], "group": row["group"], "network": net.stem, "semantics": semantics}
    began = time.process_time()
    verifier, trail = polytriton.compile(net, semantics=semantics, device="cpu"), Trail(folder)
    prop = read_vnnlib(spec, n_in=verifier.inputs, n_out=verifier.outputs)
    found["verdict"] = verdict = verifier.verify_property(prop, timeout=timeout, falsifier=False, search="auto", trail=trail).verdict
    found["search_s"] = _seconds_since(began)
    if verdict != "unsat":
        return found
    began, step = time.process_time(), "write_s"
    try:
        found["bytes"] = write(net, spec, target, semantics, trail=trail, prop=prop)
        found["write_s"] = _seconds_since(began)
        began, step = time.process_time(), "check_s"
        guide = Guide(enough(1 << 20), began + checking, cuts=True, clock=time.process_time)
        told = checker.check(net, spec, target, guide=guide)
        found |= {"nodes": told.nodes, "leaves": told.leaves, "further": guide.count, "margin": f"{min(told.margins):.3g}"}
    except (Refused, PolytritonError, OSError, MemoryError) as error:
        found["note"] = f"{type(error).__name__}: {error}"[:100]
    found[step] = _seconds_since(began)
    return found


def _seconds_since(began: float) -> float:
    return round(time.process_time() - began, 3)


def writing_cost(row: dict[str, str], semantics: str, timeout: float, rounds: int, folder: Path) -> str:
    """CPU seconds of a search without notes, with them, and of the certificate made of them: medians of so many in turns."""
    data = data_folder()
    net, spec = data / row["net"], data / row["spec"]
    verifier = polytriton.compile(net, semantics=semantics, device="cpu")
    plain, noted, written, divided = list[float](), list[float](), list[float](), 0
    for k in range(rounds + 1):
        trail = Trail(folder)
        times = [time.process_time()]
        for some in (None, trail):
            verdict = verifier.verify_property(spec, timeout=timeout, falsifier=False, search="auto", trail=some).verdict
            times.append(time.process_time())
        if verdict != "unsat":
            return f"{row['id']} {semantics}: {verdict}"
        write(net, spec, folder / "a.cert", semantics, trail=trail)
        times.append(time.process_time())
        divided = len(trail.divisions())
        if k:  # the first warms up
            for seconds, begin, end in zip((plain, noted, written), times, times[1:], strict=False):
                seconds.append(end - begin)
    search, more, file = (statistics.median(v) for v in (plain, noted, written))
    return (
        f"{row['id']} {semantics}: {divided:,} divisions; search {search:.3f} s, with notes {more:.3f} s, file {file:.3f} s: "
        f"{(more + file) / search - 1:+.3f} of the search"
    )


def summary(rows: list[dict[str, str]]) -> str:
    """What was reached, of each semantics, beside the goals; and what was not."""
    kinds = [kind for kind in checker.SEMANTICS if any(r["semantics"] == kind for r in rows)]
    told = [line for kind in kinds for line in _summary(kind, [r for r in rows if r["semantics"] == kind])]
    return "\n".join(told + (_summary("both", rows)[:1] if len(kinds) > 1 else []))


def _summary(kind: str, rows: list[dict[str, str]]) -> list[str]:
    """A line, and one for each proof that is not confirmed."""
    proved = [r for r in rows if r["verdict"] == "unsat"]
    held = [r for r in proved if r["margin"]]
    first = f"{kind}: {len(held)} of {len(proved)} proofs confirmed, {len(rows) - len(proved)} searches ended without one"
    if held:
        search, written, check = (sum(float(r[key]) for r in held) for key in ("search_s", "write_s", "check_s"))
        sizes = [int(r["bytes"]) for r in held]
        first += (
            f"; CPU seconds: search {search:.1f}, writing {written:.1f} ({written / search:.3f} of the search, goal 0.1), "
            f"checking {check:.1f} ({check / search:.2f}, goal 5); "
            f"bytes: median {statistics.median(sizes):,.0f} (goal 2,000,000), most {max(sizes):,} (goal 200,000,000)"
        )
    return [first, *(f"  {r['id']} {r['semantics']} is not confirmed: {r['note']}" for r in proved if not r["margin"])]


def main() -> None:
    p = parser("certificates", __doc__)
    p.add_argument("--ids", nargs="*", default=[])
    p.add_argument("--only", nargs="*", default=[], metavar="GROUP")
    p.add_argument("--semantics", nargs="*", default=["real", "float32"], choices=checker.SEMANTICS)
    p.add_argument("--timeout", type=float, default=60.0)
    p.add_argument("--checking", type=float, default=CHECKING, metavar="SECONDS")
    p.add_argument("--out", type=Path, default=OUT)
    p.add_argument("--every", action="store_true")
    p.add_argument("--notes", type=int, default=0, metavar="ROUNDS")
    a = p.parse_args()
    if a.notes:
        with tempfile.TemporaryDirectory() as folder:
            for row in instances(a.ids, a.only, a.every):
                for semantics in a.semantics:
                    print(writing_cost(row, semantics, a.timeout, a.notes, Path(folder)), flush=True)
        return
    known = {(r["id"], r["semantics"]) for r in read_rows(a.out)} if a.out.exists() else set()
    stamp = {"machine": processor(), "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")}
    table = Table(COLUMNS, a.out, stamp, goes_on=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in instances(a.ids, a.only, a.every):
            for semantics in a.semantics:
                if (row["id"], semantics) not in known:
                    table.add(measure_row(row, semantics, a.timeout, a.checking, Path(folder)))
    table.close()
    print(summary(read_rows(a.out)))


if __name__ == "__main__":
    main()
