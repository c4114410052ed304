"""The paper's tables with our columns beside its own, as rows of a CSV and as one page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.paper.ask import Answer
from bench.paper.rows import EVERY, HOW, METHODS, PaperRow
from bench.report import figures
from bench.report.fit import power
from bench.report.page import ALL_STYLE, table
from polytriton.pages import html
from polytriton.pages.document import document

COLUMNS = (
    "row", "model", "shape", "neurons", "training", "data", "seen", "accuracy", "radius", "stated", "method", "images", "candidates",
    "verified", "share", "median_seconds", "median_cpu_seconds", "speedup", "paper_candidates", "paper_verified", "paper_seconds", "sha256",
    "note",
)  # fmt: skip

GROWTH = ("networks and method", "exponent", "networks")


@dataclass(frozen=True)
class Measured:
    """One network by one method at one radius."""

    row: PaperRow
    about: Mapping[str, Any]
    method: str
    radius: str
    stated: bool  # our radius, where the paper's decides nothing of this network
    answers: Sequence[Answer]
    why: str = ""  # no more images were asked

    @property
    def candidates(self) -> list[Answer]:
        return [a for a in self.answers if a.candidate]

    @property
    def verified(self) -> int:
        return sum(a.proved for a in self.candidates)

    @property
    def median(self) -> float | None:
        return statistics.median(a.seconds for a in self.candidates) if self.candidates else None

    @property
    def cpu(self) -> float | None:
        return statistics.median(a.cpu_seconds for a in self.candidates) if self.candidates else None

    @property
    def note(self) -> str:
        if not self.answers:
            return "not run"
        if ended := [a for a in self.answers if a.verdict == "timeout"]:
            late = f"{len(ended)} not proved within {max(a.allowed for a in ended):.0f} s of the clock"
            return "; ".join(filter(None, (late, self.why)))
        over = next((a for a in self.answers if a.verdict == "over budget"), None)
        return f"an image takes more than {over.cpu_seconds or over.seconds:.0f} s of processor time" if over else self.why


def paper_numbers(row: PaperRow, method: str) -> tuple[int, int, float] | None:
    """Candidates, verified and median seconds, as the paper prints them."""
    if row.table == 0:
        return None
    if method == "polytriton":
        return row.candidates, row.verified, row.seconds
    if method == "crown-ibp":
        return row.candidates, row.crown_ibp, row.crown_ibp_seconds
    return row.deeppoly if method == "deeppoly" else None


def csv_rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    found = []
    for m in measured:
        ours = next((o for o in measured if (o.row, o.radius, o.method) == (m.row, m.radius, "polytriton")), None)
        ratio = m.median / ours.median if ours and ours.median and m.median and ours is not m else None
        paper = None if m.stated else paper_numbers(m.row, m.method)
        held = m.candidates
        found.append({
            "row": m.row.key, "model": m.row.model, "shape": m.row.zoo, "training": m.row.training,
            **{c: m.about[c] for c in ("neurons", "data", "seen", "accuracy", "sha256")}, "radius": m.radius, "stated": int(m.stated),
            "method": m.method, "images": len(m.answers), "candidates": len(held), "verified": m.verified,
            "share": m.verified / len(held) if held else "",
            "median_seconds": m.median if m.median is not None else "", "median_cpu_seconds": m.cpu if m.cpu is not None else "",
            "speedup": ratio or "", "note": m.note,
            **dict(zip(("paper_candidates", "paper_verified", "paper_seconds"), paper or ("", "", ""), strict=True)),
        })  # fmt: skip
    return found


# ---- the page ----------------------------------------------------------------------------------------------------------


def page(measured: Sequence[Measured], about: Mapping[str, str], missing: Mapping[str, str]) -> str:
    """`missing` are the rows that were not run, with the reason."""
    sections = [
        ("networks", "Networks", _networks(measured, missing)),
        ("small", "Tables 2 and 3: medium networks", _results(measured, 2)),
        ("big", "Table 4: residual networks", _results(measured, 4)),
        ("kinds", "The shapes trained otherwise", _results(measured, 0)),
        ("growth", "Growth with the number of neurons", _growth(measured)),
        ("curves", "Cumulative runtimes", _curves(measured)),
    ]
    told = ", ".join(about[k] for k in ("machine", "device", "threads", "torch", "polytriton", "commit", "date") if about.get(k))
    beginning = (
        f"<p>{html.text(told)}</p><p class=note>Networks have the paper's shapes and radii; weights and images are ours (stand-ins), so "
        "counts are not to be compared with the paper's, which stand beside them. Balls are met with [0, 1]. The paper's times "
        "are of a V100; its DeepPoly's of 14 CPU cores. CR-IBP, intervals and DeepPoly are run by the same engine here.</p>"
    )
    return document("bench.paper", "The paper's evaluation, re-created", beginning, sections, style=ALL_STYLE)


def _networks(measured: Sequence[Measured], missing: Mapping[str, str]) -> str:
    rows = []
    seen = {m.row.key: m for m in measured}
    for row in EVERY.values():
        m = seen.get(row.key)
        about = m.about if m else {}
        size, right = (f"{about['neurons']:,}", f"{100 * about['accuracy']:.1f} %") if about else ("", "")
        words = (row.model, f"{row.told}; here {HOW[row.training]}" if row.told else HOW[row.training])
        data, file = str(about.get("data", "")), about.get("sha256", "")[:12]
        why = missing.get(row.key, "")
        rows.append([("", row.key), *(("", w) for w in words), ("num", size), ("", data), ("num", right), ("", file), ("", why)])
    return table(("network", "model", "training", "neurons", "images", "accuracy", "SHA-256", "not run because"), rows)


def _results(measured: Sequence[Measured], number: int) -> str:
    rows = []
    some = [m for m in measured if m.row.table == number and m.answers]
    for m, told in zip(some, csv_rows(some), strict=True):
        share = f"{100 * told['share']:.0f} %" if told["share"] != "" else ""
        median = html.time(m.median) if m.median is not None else ""
        used = html.time(m.cpu) if m.cpu else ""
        ratio = f"{told['speedup']:.2f}x" if told["speedup"] != "" else ""
        rows.append([
            ("", m.row.key), ("", METHODS[m.method]), ("", m.radius + (" (ours)" if m.stated else "")),
            *(("num", str(n)) for n in (told["images"], told["candidates"], m.verified, share, median, used, ratio)), *_paper(told),
            ("", m.note),
        ])  # fmt: skip
    if not rows:
        return "<p>None of these was run.</p>"
    heads = (
        "network", "method", "radius", "images", "candidates", "verified", "share", "median", "CPU time", "times polytriton's",
        "paper: candidates", "verified", "median", "",
    )  # fmt: skip
    return table(heads, rows)


def _paper(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    if told["paper_candidates"] == "":
        return [("num", "")] * 3
    return [("num", f"{told['paper_candidates']:,}"), ("num", f"{told['paper_verified']:,}"), ("num", html.time(told["paper_seconds"]))]


def growth(measured: Sequence[Measured]) -> dict[str, list[tuple[float, float]]]:
    """Of both kinds of networks and every method: neurons and median CPU seconds, at the last radius that was asked."""
    last = {(m.row.key, m.method): m for m in measured if m.cpu}
    found: dict[str, list[tuple[float, float]]] = {}
    for m in last.values():
        kind = "robust" if m.row.training == "robust" else "normal"
        found.setdefault(f"{kind}, {METHODS[m.method]}", []).append((float(m.about["neurons"]), m.cpu or 0.0))
    return {k: sorted(v) for k, v in found.items() if len({x for x, _ in v}) >= 3}


def growth_rows(measured: Sequence[Measured]) -> list[tuple[str, str, str]]:
    """Cells under GROWTH."""
    fits = [(name, power(points), len(points)) for name, points in growth(measured).items()]
    return [(name, f"{fit.exponent:.2f} +- {fit.error:.2f}", str(count)) for name, fit, count in fits if fit is not None]


def _growth(measured: Sequence[Measured]) -> str:
    curves = [(name, points, power(points)) for name, points in growth(measured).items()]
    if not curves:
        return ""
    rows = [[("", name), *(("num", cell) for cell in cells)] for name, *cells in growth_rows(measured)]
    said = "<p class=note>Median CPU time of an image grows as the neurons to the power of the exponent; radii and depths differ.</p>"
    return said + html.plots([html.figure("CPU time over neurons", figures.growth("neurons", curves))]) + table(GROWTH, rows)


def _curves(measured: Sequence[Measured]) -> str:
    pictures = []
    for key in dict.fromkeys((m.row.key, m.radius) for m in measured):
        mine = [m for m in measured if (m.row.key, m.radius) == key and len(m.candidates) >= 2]
        if mine:
            curves = [(METHODS[m.method], [a.seconds for a in m.candidates]) for m in mine]
            pictures.append(html.figure(html.text(f"{key[0]} at {key[1]}"), figures.cdf(key[0], curves)))
    return html.plots(pictures) if pictures else "<p>Too few images.</p>"
