"""Plots of all results together, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from polytriton.pages import html
from polytriton.pages.facts import RadiusFacts, number, proved_radius, radius_text
from polytriton.runs.records import Record
from polytriton.show.verdicts import look
from polytriton.show.words import share

W, H = 460.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 20.0, 12.0, 44.0
LEGEND = 34.0  # where a frame begins below a legend: no curve comes near its words
LARGEST = 1e100  # what lies beyond is drawn there
MOST_POINTS = 400  # of a curve; more could not be told apart
BINS = 36


class Axes:
    """A frame with its scales: data to pixels."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], logarithmic: bool = False, top: float = TOP) -> None:
        self.logarithmic, self.top = logarithmic, top
        self.x = (math.log10(x[0]), math.log10(x[1])) if logarithmic else x
        self.y = y

    def place(self, x: float, y: float) -> tuple[float, float]:
        x = math.log10(x) if self.logarithmic else x
        u = (x - self.x[0]) / (self.x[1] - self.x[0])
        v = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + u * (W - LEFT - RIGHT), H - BOTTOM - v * (H - self.top - BOTTOM)

    def frame(self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], title: str) -> list[str]:
        parts = []
        for value, words in ys:
            _, y = self.place(10 ** self.x[0] if self.logarithmic else self.x[0], value)
            parts += [html.line(LEFT, y, W - RIGHT, y, "grid"), html.label(LEFT - 6, y + 4, words, "end")]
        for value, words in xs:
            x, _ = self.place(value, self.y[0])
            parts += [html.line(x, H - BOTTOM, x, H - BOTTOM + 4, "axis"), html.label(x, H - BOTTOM + 17, words)]
        base = html.line(LEFT, H - BOTTOM, W - RIGHT, H - BOTTOM, "axis")
        return [*parts, base, html.label((LEFT + W - RIGHT) / 2, H - 5, title, css="name")]


def legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    """A line and a word for each kind of curve, above the frame."""
    parts, x = [], LEFT
    for css, words in entries:
        parts += [html.line(x, LEGEND - 20, x + 18, LEGEND - 20, f"curve {css}"), html.label(x + 23, LEGEND - 16, words, "start")]
        x += 40 + 7 * len(words)
    return parts


def stairs(axes: Axes, points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """What a point says holds until the next, and the last until the end."""
    made = [axes.place(*points[0])]
    for (_, before), (x, y) in pairwise(points):
        made += [axes.place(x, before), axes.place(x, y)]
    return [*made, axes.place(end, points[-1][1])]


def nice(lo: float, hi: float, about: int = 5) -> list[float]:
    """Round numbers from lo to hi."""
    if not hi > lo:
        return [lo]
    step = 10.0 ** math.floor(math.log10((hi - lo) / about))
    for factor in (1, 2, 5, 10):
        if (hi - lo) / (step * factor) <= about:
            step *= factor
            break
    first = math.ceil(lo / step - 1e-9)
    return [k * step for k in range(first, first + about + 2) if k * step <= hi + 1e-9 * step]


def decades(lo: float, hi: float) -> list[float]:
    marks = [10.0**k for k in range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)]
    return marks[:: max(1, len(marks) // 6)]


def decade_ends(lo: float, hi: float) -> tuple[float, float]:
    """Powers of ten on both sides, two at least."""
    least, most = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
    return 10.0**least, 10.0 ** max(most, least + 1)


def counts(most: int) -> list[tuple[float, str]]:
    return [(v, html.count(v)) for v in nice(0, most, 4) if v == int(v)]


def runtimes(records: Sequence[Record]) -> str:
    """How many results there are after so much time each. What another radius decided took none."""
    records = [r for r in records if r.decided_at is None] or records
    groups = [("unsat", look("unsat").word), ("sat", look("sat").word), ("", "all results")]
    times = {key: sorted(min(max(r.seconds, 1e-4), LARGEST) for r in records if key in ("", r.verdict)) for key, _ in groups}
    every = times[""]
    lo, hi = decade_ends(every[0], every[-1])
    axes = Axes((lo, hi), (0, len(every)), logarithmic=True, top=LEGEND)
    parts = axes.frame([(v, html.time(v)) for v in decades(lo, hi) if lo <= v <= hi], counts(len(every)), "seconds of a query, at most")
    shown = [(key, words) for key, words in groups if times[key] and (key == "" or len(times[key]) < len(every) or key == "unsat")]
    for key, _ in reversed(shown):
        parts.append(html.path(_steps(axes, times[key], hi), f"curve {key or 'all'}"))
    half = every[(len(every) - 1) // 2]
    said = f"Runtimes: half of {len(every):,} results took at most {html.time(half)}, the slowest {html.time(every[-1])}."
    return html.svg(W, H, said, [*parts, *legend([(key or "all", words) for key, words in shown])])


def _steps(axes: Axes, times: Sequence[float], end: float) -> list[tuple[float, float]]:
    keep = sorted({round(k * (len(times) - 1) / (MOST_POINTS - 1)) for k in range(MOST_POINTS)})
    return stairs(axes, [(times[0], 0), *((times[k], k + 1) for k in keep)], end)


def margins(values: Sequence[float]) -> str:
    """A histogram of the worst margins; outliers are counted in the outermost bars."""
    held = sorted(min(max(v, -LARGEST), LARGEST) for v in values)
    cut = len(held) // 50
    lo, hi = min(held[cut], 0.0), max(held[-1 - cut], 0.0)
    if lo == hi:
        lo, hi = -1.0, 1.0
    step = (hi - lo) / BINS
    first = math.floor(lo / step)  # bars begin at multiples of their width: zero parts two of them
    bars = [0] * (math.ceil(hi / step) - first)
    for v in held:
        bars[min(len(bars) - 1, max(0, math.ceil(v / step) - 1 - first))] += 1
    axes = Axes((first * step, (first + len(bars)) * step), (0, max(bars)))
    parts = axes.frame([(v, html.short(v, 3)) for v in nice(axes.x[0], axes.x[1])], counts(max(bars)), "worst margin (above 0: proved)")
    for k, n in enumerate(bars):
        a, b = (first + k) * step, (first + k + 1) * step
        (x, y), (x1, y0) = axes.place(a, n), axes.place(b, 0)
        if n:
            tip = f"{n:,} between {html.short(a)} and {html.short(b)}"
            parts.append(html.rect(x + 0.5, y, x1 - x - 1, y0 - y, "bar unsat" if a > -step / 2 else "bar unknown", tip))
    x, _ = axes.place(0, 0)
    parts.append(html.line(x, TOP, x, H - BOTTOM, "zero"))
    positive = sum(v > 0 for v in held)
    return html.svg(W, H, f"Worst margins of {len(held):,} results: {positive:,} above zero, {len(held) - positive:,} not.", parts)


def radii(records: Sequence[Record]) -> str:
    """How many images are proved at each radius, of those whose radius was searched."""
    asked = [r for r in records if r.radius is not None]
    held = sorted(float(v) for r in asked if (v := proved_radius(r)) is not None)
    hi = max(held) * 1.05 if held and held[-1] > 0 else 1.0
    axes = Axes((0, hi), (0, len(asked)))
    parts = axes.frame([(v, html.short(v, 3)) for v in nice(0, hi)], counts(len(asked)), "radius in pixel space")
    falls = [(0.0, len(held)), *((r, len(held) - k) for k, r in enumerate(held, 1))]
    parts.append(html.path(stairs(axes, falls, falls[-1][0]), "curve unsat"))
    half = held[(len(held) - 1) // 2] if held else 0.0
    told = f"Certified radii of {len(asked):,} images: half of the {len(held):,} found are at least {radius_text(half)}."
    return html.svg(W, H, told, parts)


def _place(found: RadiusFacts) -> float:
    """A radius on its axis, whatever a record calls one."""
    return min(max(float(number(found.epsilon) or 0), 0.0), LARGEST)


def sweep(own: Sequence[RadiusFacts]) -> str:
    """The share of one network's images that is verified at each radius, and with it what is open."""
    hi = max(map(_place, own)) * 1.05 or 1.0
    axes = Axes((0, hi), (0, 100), top=LEGEND)
    parts = axes.frame([(v, html.short(v, 3)) for v in nice(0, hi)], [(v, f"{v:.0f} %") for v in nice(0, 100)], "radius in pixel space")
    for css, count in (("all", lambda f: f.verified + f.open), ("unsat", lambda f: f.verified)):
        parts.append(html.path([axes.place(_place(f), 100 * count(f) / f.images) for f in own], f"curve {css}"))
    told = ", ".join(f"{share(f.verified / f.images)} at {f.name}" for f in own)
    return html.svg(W, H, f"Images verified: {told}.", [*parts, *legend([("unsat", "verified"), ("all", "verified or open")])])
