"""Runs as their CSV files tell them, and what changed between two of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.report.fit import FLOOR, Change, compare_pairs, threshold

ABOUT = ("device", "machine", "threads", "python", "torch", "triton", "polytriton", "commit", "date", "clock", "conv_gflops")
PLACE = ("device", "machine", "threads", "clock")  # what must be the same for times to be compared
SINGLE = ("distribution", "data")  # parts that time every image once
KEYS = ("network", "kind", "eps", "engine", "numerics", "batch", "axis", "value")
MICRO = ("case", "numerics", "step", "variant", "rows")
MEMORY, LEAST_MB = 0.10, 16.0  # growth of the peak that is named: relative, and absolute
LOOSER = 1e-4  # loss of a margin that is named, relative to it
BAD = ("slower", "looser", "more memory", "lost", "failed")

Row = dict[str, str]
Key = tuple[str, ...]


class Unreadable(Exception):
    """No measurements in a file or folder."""


@dataclass
class MeasuredRun:
    """One run: rows by part, and where they were taken."""

    name: str
    about: dict[str, str]
    parts: dict[str, list[Row]] = field(default_factory=dict)

    def timed_rows(self, part: str) -> list[Row]:
        return [r for r in self.parts.get(part, []) if seconds(r) is not None]


@dataclass(frozen=True)
class Finding:
    """What is known of one row in two runs. `what` is one of BAD, or faster, tighter, less memory, won, same, one run."""

    part: str
    label: str
    what: str
    change: Change | None = None
    detail: str = ""


def number(row: Row, column: str) -> float | None:
    try:
        value = float(row.get(column) or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def seconds(row: Row) -> float | None:
    found = number(row, "seconds")
    if found is None and (micro := number(row, "microseconds")) is not None:
        found = micro / 1e6
    return found if found is not None and found > 0 else None


def read_times(row: Row) -> tuple[float, float, int]:
    """Median, spread and number of runs; a spread without a number of runs was of five."""
    spread = number(row, "spread")
    scale = 1e-6 if "microseconds" in row else 1.0
    runs = number(row, "runs")
    return seconds(row) or 0.0, (spread or 0.0) * scale, int(runs) if runs is not None else 5 if spread is not None else 1


def read_run(path: Path) -> MeasuredRun:
    """A CSV file, or a folder of them."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    run = MeasuredRun(path.stem if path.is_file() else path.resolve().name, {})
    for file in files:
        try:
            with file.open(newline="", encoding="utf-8") as f:
                rows = [{k: v or "" for k, v in r.items() if k is not None} for r in csv.DictReader(f)]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise Unreadable(f"cannot read {file}: {error}") from None
        for row in rows:
            part = row.get("part") or file.stem.rsplit("_", 1)[-1]
            run.parts.setdefault(part, []).append(row)
            about = {"clock": "wall"} | {k: row[k] for k in ABOUT if row.get(k)}  # files from before --cpu do not say
            if clash := [k for k in PLACE if k in run.about and about.get(k, run.about[k]) != run.about[k]]:
                raise Unreadable(f"{path} mixes runs: {clash[0]} is {run.about[clash[0]]!r} and {about[clash[0]]!r}")
            run.about = {**about, **run.about}
    if not run.parts:
        raise Unreadable(f"no measurements in {path}: give a CSV file or folder that bench.suite, bench.gpu or bench.compare wrote")
    return run


def key(row: Row) -> Key:
    return tuple(row.get(k, "") for k in (MICRO if "case" in row else KEYS))


def label(row: Row) -> str:
    """A row's name for people."""
    if "case" in row:
        return " ".join(filter(None, (row.get(k, "") for k in MICRO)))
    words = [row.get("network", ""), row.get("kind", "")]
    if row.get("axis"):
        words = [row["axis"], row.get("value", "")]
    elif row.get("batch", "1") not in ("", "1"):
        words.append(f"batch {row['batch']}")
    if row.get("engine") not in ("", None, "torch"):
        words += [row["engine"], row.get("numerics", "")]
    return " ".join(filter(None, words))


def same_place(a: MeasuredRun, b: MeasuredRun) -> bool:
    return all(a.about.get(k) == b.about.get(k) for k in PLACE if a.about.get(k) and b.about.get(k))


def compare(before: MeasuredRun, after: MeasuredRun, floor: float = FLOOR) -> list[Finding]:
    """Every row that both runs have, and every row that the later one failed at."""
    found: list[Finding] = []
    for part, rows in after.parts.items():
        old = before.parts.get(part, [])
        found += _singles(part, old, rows, floor) if part in SINGLE else _medians(part, old, rows, floor)
    return found


def _medians(part: str, old: Sequence[Row], new: Sequence[Row], floor: float) -> Iterable[Finding]:
    known = {key(r): r for r in old if seconds(r) is not None}
    for row in new:
        was = known.get(key(row))
        if was is None:
            continue
        if seconds(row) is None:
            yield Finding(part, label(row), "failed", detail=row.get("note", ""))
            continue
        a, b = read_times(was), read_times(row)
        change = Change(a[0], b[0], threshold(a, b, floor))
        yield Finding(part, label(row), change.verdict, change)
        yield from _worth(part, was, row)
    for lost in known.keys() - {key(r) for r in new}:
        if why := _group_failed(known[lost], new):
            yield Finding(part, label(known[lost]), "failed", detail=why.get("note", ""))


def _group_failed(was: Row, new: Sequence[Row]) -> Row | None:
    """The row that says why a whole group came to nothing: it carries the group's name alone."""
    names = {was.get("network", ""), f"{was.get('network')}-{was.get('kind')}", was.get("axis", "")} - {""}
    return next((r for r in new if seconds(r) is None and r.get("note") and r.get("network") in names), None)


def _worth(part: str, was: Row, row: Row) -> Iterable[Finding]:
    """Memory and margins."""
    for column, better, worse in (("peak_mb", "less memory", "more memory"), ("worst", "tighter", "looser")):
        a, b = number(was, column), number(row, column)
        if a is None or b is None:
            continue
        if column == "peak_mb":
            moved = b - a if abs(b - a) > max(LEAST_MB, MEMORY * abs(a)) else 0.0
        else:
            moved = a - b if abs(b - a) > LOOSER * max(abs(a), 1e-12) else 0.0
        if moved:
            yield Finding(part, label(row), worse if moved > 0 else better, detail=f"{column} {a:.5g} before, {b:.5g} after")


def _singles(part: str, old: Sequence[Row], new: Sequence[Row], floor: float) -> Iterable[Finding]:
    """Images timed once each, paired: by network."""

    def item(r: Row) -> tuple[str, str, str]:
        return (r.get("network", ""), r.get("kind", ""), r.get("id") or r.get("image", ""))

    known = {item(r): r for r in old if seconds(r) is not None}
    pairs: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for row in new:
        was = known.get(item(row))
        if was is not None and seconds(row) is not None:
            pairs.setdefault(item(row)[:2], []).append((was, row))
    for pair, some in pairs.items():
        name = " ".join(pair).strip()
        times = [(seconds(a) or 0.0, seconds(b) or 0.0) for a, b in some if a.get("verdict") == b.get("verdict")]
        if times:
            change = compare_pairs([a for a, _ in times], [b for _, b in times], floor)
            yield Finding(part, f"{name}, {len(times)} images", change.verdict, change)
        for a, b in some:
            old_verdict, verdict = a.get("verdict", ""), b.get("verdict", "")
            if old_verdict != verdict:
                what = "lost" if old_verdict in ("unsat", "sat") else "won"
                yield Finding(part, f"{name} {item(b)[2]}", what, detail=f"{old_verdict} before, {verdict} after")
