"""Plots of bench.report, as inline SVG, on the frame of polytriton's own report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.report.fit import Power
from polytriton.pages import html
from polytriton.pages.plots import BOTTOM, RIGHT, TOP, Axes, H, W, decade_ends, decades, stairs

WIDE = 640.0
COLOURS = 6  # classes r0 to r5; more runs share them
STYLE = """
:root { --r0: #2a64a8; --r1: #b3501e; --r2: #1c7a46; --r3: #66539a; --r4: #8a5a00; --r5: #40464e; }
@media (prefers-color-scheme: dark) {
  :root { --r0: #7fb0ea; --r1: #f0a06a; --r2: #62c48d; --r3: #b9a5ee; --r4: #e3b04b; --r5: #c2c8d0; }
}
.run { fill: none; stroke-width: 2; } .dot { stroke: none; } .fitted { stroke-width: 1; stroke-dasharray: 4 3; fill: none; }
.plots figure { max-width: 44rem; }
.wide { max-width: 60rem; }
td.num, th.num { text-align: right; white-space: nowrap; }
td.bad { color: var(--sat); font-weight: 600; } td.good { color: var(--unsat); }
.keys span { margin-right: 1.2rem; }
.keys i { display: inline-block; width: 1.4rem; height: .3rem; margin-right: .35rem; vertical-align: middle; }
""" + "".join(
    f".run.r{k}, .fitted.r{k} {{ stroke: var(--r{k}); }} .dot.r{k} {{ fill: var(--r{k}); }} .keys i.r{k} {{ background: var(--r{k}); }}\n"
    for k in range(COLOURS)
)


def colour(run: int) -> str:
    return f"r{run % COLOURS}"


def ticks(lo: float, hi: float) -> list[float]:
    """Powers of ten, and twice and five times them where there are few."""
    tens = [v for v in decades(lo, hi) if lo <= v <= hi * 1.0001]
    return tens if len(tens) > 3 else [v * k for v in tens for k in (1, 2, 5) if v * k <= hi * 1.0001]


def _frame(axes: Axes, y: tuple[float, float], x: Sequence[tuple[float, str]], title: str) -> list[str]:
    """A logarithmic y too: the axis carries log10 of the seconds."""
    return axes.frame(x, [(math.log10(v), html.time(v)) for v in ticks(*y)], title)


def growth(axis: str, runs: Sequence[tuple[str, Sequence[tuple[float, float]], Power | None]]) -> str:
    """Seconds over a size, both logarithmic; each run's points and the power through the larger half of them."""
    xs, ys = [x for _, p, _ in runs for x, _ in p], [y for _, p, _ in runs for _, y in p]
    y = decade_ends(min(ys), max(ys))
    lo, hi = min(xs) / 1.1, max(xs) * 1.1
    axes = Axes((lo, hi), (math.log10(y[0]), math.log10(y[1])), logarithmic=True)
    sizes = sorted(set(xs))
    parts = _frame(axes, y, [(v, f"{v:g}") for v in sizes[:: max(1, math.ceil(len(sizes) / 7))]], axis)
    said = []
    for k, (name, points, fitted) in enumerate(runs):
        held = sorted(points)
        parts.append(html.path([axes.place(a, math.log10(b)) for a, b in held], f"run {colour(k)}"))
        parts += [html.circle(*axes.place(a, math.log10(b)), f"dot {colour(k)}", f"{name}: {axis} {a:g}, {html.time(b)}") for a, b in held]
        if fitted is not None:
            ends = [(x, min(max(fitted.value(x), y[0]), y[1])) for x in (held[0][0], held[-1][0])]
            parts.append(html.path([axes.place(a, math.log10(b)) for a, b in ends], f"fitted {colour(k)}"))
            said.append(f"{name}: exponent {fitted.exponent:.2f}")
    return html.svg(W, H, f"Seconds over {axis}. {'; '.join(said)}.", parts)


def cdf(network: str, runs: Sequence[tuple[str, Sequence[float]]]) -> str:
    """The share of images that were decided within a time."""
    every = [t for _, times in runs for t in times]
    lo, hi = decade_ends(min(every), max(every))
    axes = Axes((lo, hi), (0.0, 1.0), logarithmic=True)
    parts = axes.frame([(v, html.time(v)) for v in ticks(lo, hi)], [(v, f"{100 * v:.0f} %") for v in (0, 0.5, 1)], "at most")
    said = []
    for k, (name, times) in enumerate(runs):
        held = sorted(times)
        climbs = [(held[0], 0.0), *((v, n / len(held)) for n, v in enumerate(held, 1))]
        parts.append(html.path(stairs(axes, climbs, hi), f"run {colour(k)}"))
        said.append(f"{name}: half of {len(held)} within {html.time(held[(len(held) - 1) // 2])}, all within {html.time(held[-1])}")
    return html.svg(W, H, f"Runtimes of {network}. {'; '.join(said)}.", parts)


def medians(rows: Sequence[tuple[str, Sequence[tuple[int, float, float]]]]) -> str:
    """Networks below each other: (run, seconds, spread) as a dot on a logarithmic axis with its spread."""
    step, left = 22.0, 190.0
    height = TOP + BOTTOM + step * len(rows)
    every = [s for _, some in rows for _, s, _ in some]
    lo, hi = decade_ends(min(every), max(every))

    def place(value: float) -> float:
        share = math.log10(min(max(value, lo), hi) / lo) / math.log10(hi / lo)
        return left + share * (WIDE - RIGHT - left)

    parts = []
    for v in ticks(lo, hi):
        parts += [html.line(place(v), TOP, place(v), height - BOTTOM, "grid"), html.label(place(v), height - BOTTOM + 17, html.time(v))]
    for n, (name, some) in enumerate(rows):
        y = TOP + step * (n + 0.5)
        parts.append(html.label(left - 8, y + 4, name, "end", "name"))
        for run, value, spread in some:
            shift = y + 4 * (run - (len(some) - 1) / 2)
            parts.append(html.path([(place(value - spread / 2), shift), (place(value + spread / 2), shift)], f"run {colour(run)}"))
            parts.append(html.circle(place(value), shift, f"dot {colour(run)}", f"{name}: {html.time(value)}, spread {html.time(spread)}"))
    return html.svg(WIDE, height, f"Seconds an image of {len(rows)} rows; bars are the spreads.", parts)
