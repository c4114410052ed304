"""One self-contained HTML page of one run or several: tables, plots, and what became slower or looser.

    python -m bench.report RUN [RUN ...] [--out bench.html] [--floor 0.05] [--check] [--json]

A RUN is a folder of CSV files, or one, as bench.suite, bench.gpu, bench.instances and bench.compare write them. The last run is compared
with the first; those between are shown beside them. A time counts as changed when it left what the recorded spreads explain (the rule is in
bench/report/fit.py) and --floor on top; times of other machines, devices, thread counts or clocks are shown and not judged. Lost verdicts,
looser margins, larger peaks of memory and rows that fail now are named too. stdout carries the findings, --json as one document.

Exit code: 0, with --check 1 where something became worse, 2 for wrong usage.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.core.command import parser
from bench.core.table import say
from bench.report.fit import FLOOR
from bench.report.page import page
from bench.report.runs import BAD, Finding, MeasuredRun, Unreadable, compare, read_run, same_place
from polytriton.whole import write_whole

WORSE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("report", __doc__)
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    p.add_argument("--out", type=Path, default=Path("bench.html"), help="(%(default)s)")
    p.add_argument("--floor", type=float, default=FLOOR, help="relative change that is never named (%(default)g)")
    p.add_argument("--check", action="store_true", help="exit code 1 where something became worse")
    p.add_argument("--json", action="store_true")
    a = p.parse_args(arguments)
    if not 0 <= a.floor < 10:
        p.error("--floor is a fraction, for example 0.05")
    try:
        runs = number_runs([read_run(path) for path in a.runs])
    except Unreadable as error:
        p.error(str(error))
    findings = compare(runs[0], runs[-1], a.floor) if len(runs) > 1 else []
    judged = len(runs) < 2 or same_place(runs[0], runs[-1])
    if not judged:
        findings = [f for f in findings if f.change is None]
    try:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(a.out, page(runs, findings, judged, a.floor).encode())
    except OSError as error:
        p.error(f"cannot write {a.out}: {error.strerror}")
    worse = [f for f in findings if f.what in BAD]
    if a.json:
        print(
            json.dumps(
                {
                    "page": str(a.out),
                    "judged": judged,
                    "counts": Counter(f.what for f in findings),
                    "findings": [plain(f) for f in findings],
                }
            )
        )
    else:
        for f in worse:
            print(f"{f.what}: {f.part} {f.label}: {describe(f)}")
        if len(runs) > 1:
            print(
                f"{len(findings)} compared, {len(worse)} worse"
                + ("" if judged else "; other machine, device, threads or clock: times are not judged")
            )
    say(f"{a.out}: {len(runs)} run{'s' * (len(runs) > 1)}")
    return WORSE if a.check and worse else 0


def number_runs(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """Runs of one name get a number."""
    seen: Counter[str] = Counter()
    for run in runs:
        seen[run.name] += 1
        if seen[run.name] > 1:
            run.name = f"{run.name} ({seen[run.name]})"
    return runs


def describe(f: Finding) -> str:
    if f.change is None:
        return f.detail
    return f"{f.change.before:.4g} s before, {f.change.after:.4g} s after, {f.change.ratio:.2f}x (noise {100 * f.change.noise:.0f} %)"


def plain(f: Finding) -> dict[str, object]:
    row: dict[str, object] = {"part": f.part, "row": f.label, "what": f.what, "detail": f.detail}
    if f.change is not None:
        noise = f.change.noise if f.change.noise < float("inf") else None
        row |= {"before": f.change.before, "after": f.change.after, "ratio": f.change.ratio, "noise": noise}
    return row


if __name__ == "__main__":
    sys.exit(main())
