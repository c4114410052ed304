"""The page of bench.report: findings first, then every part with its plots and tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from bench.report import figures
from bench.report.fit import Power, power, tail
from bench.report.runs import BAD, Finding, MeasuredRun, Row, key, label, number, seconds
from polytriton.pages import html
from polytriton.pages.document import document
from polytriton.pages.style import STYLE

ALL_STYLE = STYLE + figures.STYLE
FEW = 5  # images that a distribution needs
TITLES = {
    "goals": "Networks with goals", "zoo": "The paper's networks, synthetic", "growth": "Growth",
    "distribution": "Distributions of runtimes",
    "data": "Published instances", "peer": "Beside the peer", "micro": "Single launches",
}  # fmt: skip
BETTER = ("faster", "tighter", "less memory", "won")


def page(runs: Sequence[MeasuredRun], findings: Sequence[Finding], judged: bool, floor: float) -> str:
    order = [*TITLES, *(part for run in runs for part in run.parts if part not in TITLES)]
    parts = [p for p in dict.fromkeys(order) if any(run.timed_rows(p) for run in runs)]
    sections = [("runs", "Runs", _runs(runs))]
    if len(runs) > 1:
        sections.append(("changes", "What changed", _changes(runs, findings, judged, floor)))
    for part in parts:
        body = {"growth": _growth, "distribution": _distribution, "data": _data, "peer": _peer}.get(part, _medians)(part, runs)
        sections.append((f"part-{part}", TITLES.get(part, part), body))
    keys = "".join(f'<span><i class="{figures.colour(k)}"></i>{html.text(r.name)}</span>' for k, r in enumerate(runs))
    return document("bench.report", "polytriton benchmarks", f'<p class="keys">{keys}</p>', sections, style=ALL_STYLE)


def table(heads: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """Cells are (class, text); the first column names the row, and columns of numbers are set to the right."""
    listed = list(rows)
    numeric = {k for row in listed[:1] for k, (css, _) in enumerate(row) if css.startswith("num")}
    titles = "".join(f'<th scope="col"{" class=num" if k in numeric else ""}>{html.text(t)}</th>' for k, t in enumerate(heads))
    body = []
    for (_, name), *cells in listed:
        shown = "".join(f'<td class="{css}">{html.text(words)}</td>' for css, words in cells)
        body.append(f'<tr><th scope="row">{html.text(name)}</th>{shown}</tr>')
    return html.table(html.text(heads[0]), f"<thead><tr>{titles}</tr></thead>", "".join(body))


def cell(value: float | None, shown: Callable[[float], str] = html.short) -> tuple[str, str]:
    return "num", "" if value is None else shown(value)


# ---- runs and changes ---------------------------------------------------------------------------------------------------------------


def _runs(runs: Sequence[MeasuredRun]) -> str:
    columns = ("date", "commit", "device", "machine", "threads", "python", "torch", "triton", "polytriton", "clock", "conv_gflops")
    rows = [
        [("", r.name), *(("", r.about.get(c, "")) for c in columns), ("num", html.count(sum(map(len, r.parts.values()))))] for r in runs
    ]
    said = ""
    rates = [float(r.about.get("conv_gflops") or 0) for r in (runs[0], runs[-1])]
    if min(rates) > 0 and not 1 / 1.1 < rates[1] / rates[0] < 1.1:
        moved = f"from {rates[0]:.0f} to {rates[1]:.0f} GFLOP/s"
        said = f"<p>The machine's own convolution rate went {moved}: changes of that size may be the machine's.</p>"
    return table(("run", *columns[:-1], "convolution GFLOP/s", "rows"), rows) + said


def _changes(runs: Sequence[MeasuredRun], findings: Sequence[Finding], judged: bool, floor: float) -> str:
    counts = Counter(f.what for f in findings)
    said = f"{html.text(runs[-1].name)} against {html.text(runs[0].name)}: " + (
        ", ".join(f"{n} {what}" for what, n in counts.most_common()) or "no row is in both"
    )
    rule = (
        f"A time is named where it moved by more than {100 * floor:.0f} % and by more than the spreads of both runs explain (about one "
        "false alarm in a thousand rows). A row of one run is not judged."
        if judged
        else "The runs are of different machines, devices, thread counts or clocks: times are not judged."
    )
    parts = [f"<p>{said}.</p><p class=note>{rule}</p>"]
    for title, wanted, css in (("Worse", BAD, "bad"), ("Better", BETTER, "good")):
        some = sorted((f for f in findings if f.what in wanted), key=lambda f: -abs(f.change.ratio - 1) if f.change else 0)
        parts.append(f"<h3>{title}: {len(some)}</h3>")
        if some:
            parts.append(table(("row", "part", "what", "before", "after", "ratio", "noise", ""), [_finding(f, css) for f in some]))
    return "".join(parts)


def _finding(f: Finding, css: str) -> list[tuple[str, str]]:
    c = f.change
    numbers = [("num", "")] * 4
    if c is not None:
        numbers = [
            cell(c.before, html.time),
            cell(c.after, html.time),
            cell(c.ratio, lambda v: f"{v:.2f}x"),
            cell(c.noise, lambda v: f"{100 * v:.0f} %"),
        ]
    return [("", f.label), ("", f.part), (css, f.what), *numbers, ("", f.detail)]


# ---- parts --------------------------------------------------------------------------------------------------------------------------


def _rows(part: str, runs: Sequence[MeasuredRun]) -> list[list[Row | None]]:
    """The same row of every run side by side; in the order of the last run that has it."""
    held = [{key(r): r for r in run.timed_rows(part)} for run in runs]
    keys = dict.fromkeys(k for some in reversed(held) for k in some)
    return [[some.get(k) for some in held] for k in keys]


def _notes(part: str, runs: Sequence[MeasuredRun]) -> str:
    """Rows without a time, and why."""
    lines = [
        f"<li>{html.text(run.name)}: {html.text(label(r))}: {html.text(r.get('note', ''))}</li>"
        for run in runs
        for r in run.parts.get(part, [])
        if seconds(r) is None and r.get("note")
    ]
    return f"<p>Without a time:</p><ul>{''.join(lines)}</ul>" if lines else ""


def _some(rows: Sequence[Row | None]) -> Row:
    """The latest run's row."""
    return next(r for r in reversed(rows) if r is not None)


def _medians(part: str, runs: Sequence[MeasuredRun]) -> str:
    rows = _rows(part, runs)
    names = [label(_some(some)) for some in rows]
    factor = 1e-6 if any("microseconds" in _some(some) for some in rows) else 1.0
    dots = [
        (name, [(k, seconds(r) or 0.0, (number(r, "spread") or 0.0) * factor) for k, r in enumerate(some) if r is not None])
        for name, some in zip(names, rows, strict=True)
    ]
    heads = ["row", *(f"{r.name}, time an image" for r in runs), "ratio", "of goal", "GFLOP", "of peak", "peak MB", "worst margin"]
    cells = []
    for name, some in zip(names, rows, strict=True):
        last, ends = _some(some), (some[0], some[-1])
        first, final = (seconds(r) if r is not None else None for r in ends)
        ratio = final / first if first and final and len(runs) > 1 else None
        cells.append(
            [
                ("", name), *(cell(seconds(r) if r else None, html.time) for r in some), cell(ratio, lambda v: f"{v:.2f}x"),
                *(cell(number(last, c)) for c in ("of_goal", "gflop", "of_peak", "peak_mb", "worst")),
            ]
        )  # fmt: skip
    return f'<figure class="wide">{figures.medians(dots)}</figure>' + table(heads, cells) + _notes(part, runs)


def _points(run: MeasuredRun, axis: str, column: str = "seconds") -> list[tuple[float, float]]:
    held = ((number(r, "value"), number(r, column)) for r in run.timed_rows("growth") if r.get("axis") == axis)
    return [(x, y) for x, y in held if x and y]


def _growth(part: str, runs: Sequence[MeasuredRun]) -> str:
    axes = dict.fromkeys(r.get("axis", "") for run in runs for r in run.timed_rows(part))
    pictures, rows = [], []
    for axis in axes:
        curves = [(run.name, _points(run, axis), power(tail(_points(run, axis)))) for run in runs]
        pictures.append(html.figure(html.text(f"Time over {axis}"), figures.growth(axis, [c for c in curves if c[1]])))
        for run, (_, points, late) in zip(runs, curves, strict=True):
            ops = power(_points(run, axis, "gflop"))
            rows.append([("", axis), ("", run.name), *map(_exponent, (power(points), late, ops)), ("num", str(len(points)))])
    said = (
        "<p class=note>Time grows as size to the power of the exponent, +- its standard error; dashed: the fit through the larger half.</p>"
    )
    heads = ("size", "run", "exponent", "of the larger half", "of the operations", "points")
    return f'{said}{html.plots(pictures)}{table(heads, rows)}{_notes(part, runs)}'


def _exponent(p: Power | None) -> tuple[str, str]:
    return "num", "" if p is None else f"{p.exponent:.2f} +- {p.error:.2f}"


def _networks(part: str, runs: Sequence[MeasuredRun]) -> list[tuple[str, list[list[float]]]]:
    """Every network's times, a list a run."""
    held: dict[str, list[list[float]]] = {}
    for k, run in enumerate(runs):
        for r in run.timed_rows(part):
            name = f"{r.get('network', '')} {r.get('kind', '')}".strip()
            held.setdefault(name, [[] for _ in runs])[k].append(seconds(r) or 0.0)
    return sorted(held.items())


def _distribution(part: str, runs: Sequence[MeasuredRun]) -> str:
    pictures, rows = [], []
    for name, times in _networks(part, runs):
        curves = [(run.name, some) for run, some in zip(runs, times, strict=True) if len(some) >= FEW]
        if curves:
            pictures.append(html.figure(html.text(name), figures.cdf(name, curves)))
        for run, some in zip(runs, times, strict=True):
            if some:
                held = sorted(some)
                p90 = held[round(0.9 * (len(held) - 1))]
                shown = (held[0], statistics.median(held), p90, held[-1])
                rows.append([("", name), ("", run.name), ("num", str(len(held))), *(cell(v, html.time) for v in shown)])
    heads = ("network", "run", "images", "least", "median", "90 %", "most")
    return f'{html.plots(pictures)}{table(heads, rows)}{_notes(part, runs)}'


def _data(part: str, runs: Sequence[MeasuredRun]) -> str:
    verdicts = ("unsat", "sat", "unknown", "timeout")
    rows = []
    for run in runs:
        by_name: dict[str, list[Row]] = {}
        for r in run.timed_rows(part):
            by_name.setdefault(r.get("benchmark", ""), []).append(r)
        for name, some in sorted(by_name.items()):
            counts = Counter(r.get("verdict", "") for r in some)
            notes = Counter(r.get("note", "") for r in some)
            wrong = notes["CONTRADICTS"]
            cells = [("num", str(counts[v])) for v in verdicts]
            last = [("num", str(notes["missed"])), ("num bad" if wrong else "num", str(wrong))]
            rows.append([("", name), ("", run.name), *cells, *last, cell(statistics.median(seconds(r) or 0.0 for r in some), html.time)])
    heads = ("benchmark", "run", "proved", "violated", "unknown", "timeout", "missed", "contradict", "median")
    return table(heads, rows) + _distribution(part, runs)


def _peer(part: str, runs: Sequence[MeasuredRun]) -> str:
    rows = []
    for run in runs:
        held = run.timed_rows(part)
        for ours in (r for r in held if r.get("ratio")):
            theirs = next((r for r in held if _pairs(ours, r)), {})
            spread = f"{html.short(number(ours, 'ratio_lo'), 3)} to {html.short(number(ours, 'ratio_hi'), 3)}"
            rows.append(
                [
                    ("", label({**ours, "engine": ""})), ("", run.name), ("", ours.get("peer", "")), cell(seconds(ours), html.time),
                    cell(seconds(theirs), html.time), cell(number(ours, "ratio"), lambda v: f"{v:.2f}x"), ("num", spread),
                    cell(number(ours, "worst")), cell(number(theirs, "worst")), ("num", f"{ours.get('tighter')} / {ours.get('looser')}"),
                ]
            )  # fmt: skip
    heads = ("network", "run", "peer", "polytriton", "peer", "ratio", "quartiles", "worst margin", "peer's", "tighter / looser")
    said = "<p class=note>Asked alternately in two processes. Ratio: the peer's median over polytriton's; above 1 polytriton is faster.</p>"
    return said + table(heads, rows) + _notes(part, runs)


def _pairs(a: Row, b: Row) -> bool:
    columns = ("network", "kind", "eps", "numerics", "batch", "peer")
    return a.get("engine") != b.get("engine") and all(a.get(c) == b.get(c) for c in columns)
