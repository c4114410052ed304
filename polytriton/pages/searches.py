"""One card a search: how the worst bound and the share proved moved over time, the tree by depth, and why it stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polytriton.pages import html, plots
from polytriton.pages.gallery import FIRST
from polytriton.results import Level, Sample, SearchStats
from polytriton.runs.records import Record
from polytriton.show import words

CARDS = 60  # searches shown
SAMPLES, LEVELS = 1000, 2000  # of a record; polytriton writes fewer
ROWS = 40  # of a tree; deeper ones are told several depths a row
COUNT = 10**15  # what lies beyond is taken for it
LONGEST = 1e9  # seconds
STILL = 0.005  # of the share: what moves less in the second half of a search stands still

WHY = {
    "": "every part was proved",
    "sat": "a counterexample was found",
    "time": "its time was over",
    "rounding": "a part was left that no number divides: rounding stands in the way",
}
STEPS = {"slopes": "slopes were chosen, and that was all it does", "neurons": "a part was left with no neuron to divide"}


@dataclass(frozen=True)
class Cards:
    """By the query's number; the undecided first where not all fit."""

    made: Mapping[int, str]
    left_out: int


def cards(records: Sequence[Record]) -> Cards:
    rank = {v: k for k, v in enumerate(("unknown", "timeout", *FIRST))}
    able = [k for k, r in enumerate(records) if r.search is not None and r.search.samples]
    chosen = sorted(sorted(able, key=lambda k: (rank.get(records[k].verdict, len(rank)), k))[:CARDS])
    return Cards({k: card(k, records[k]) for k in chosen}, len(able) - len(chosen))


def card(k: int, r: Record) -> str:
    s = r.search
    assert s is not None
    samples = clean_samples(s.samples)
    last = samples[-1]
    drawn = [("worst bound of the parts left", worst(samples)), ("share of the tree proved", share(samples)), ("tree by depth", tree(s))]
    figures = "".join(html.figure(a, b) for a, b in drawn if b)
    lines = [
        ("searched by", html.text({"input": "boxes of inputs", "neurons": "signs of neurons"}.get(s.kind, s.kind), 40)),
        ("parts bounded", html.count(_whole(last.domains))), ("left", html.count(_whole(last.open))),
        ("deepest", html.count(_whole(last.depth))), ("time", html.time(last.seconds)), ("it ended", html.text(reason(s), 300)),
    ]  # fmt: skip
    return (
        f'<article class="card" data-j="{k}" id="s{k}"><h3>{html.text(r.property, 200)} {html.chip(r.verdict)}</h3>'
        f"{html.lines(lines)}{figures}</article>"
    )


def reason(s: SearchStats) -> str:
    """Why it stopped, and whether more time would have helped."""
    why = STEPS.get(s.kind, s.ended) if s.ended == "steps" else WHY.get(s.ended, s.ended)
    samples = clean_samples(s.samples)
    if s.ended != "time" or len(samples) < 2:
        return why
    last = samples[-1]
    before = [p for p in samples if p.seconds <= last.seconds / 2]
    moved = last.share - (before[-1].share if before else 0.0)
    if moved < STILL:
        return f"{why}; its share stood still in the second half: more time will hardly help"
    return f"{why}; its share grew by {100 * moved:.1f} points in the second half: more time may help"


def clean_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Numbers as they can be drawn, whatever a file says."""
    made: list[Sample] = []
    for s in samples[:SAMPLES]:
        seconds = max(min(max(s.seconds, 0.0), LONGEST), made[-1].seconds if made else 0.0)
        bound = None if s.worst is None else min(max(s.worst, -plots.LARGEST), plots.LARGEST)
        bound = 0.0 if bound is not None and abs(bound) < 1 / plots.LARGEST else bound
        made.append(s._replace(seconds=seconds, worst=bound, share=min(max(s.share, 0.0), 1.0)))
    return made


def worst(samples: Sequence[Sample]) -> str:
    held = [(s.seconds, s.worst) for s in samples if s.worst is not None]
    if not held:
        return ""
    lo, hi = min(0.0, *(v for _, v in held)), max(0.0, *(v for _, v in held))
    axes = plots.Axes((0.0, max(samples[-1].seconds, 1e-3)), (lo, hi) if lo < hi else (-1.0, 1.0))
    parts = _frame(axes, [(v, html.short(v, 3)) for v in plots.nice(*axes.y)])
    (_, y), x1 = axes.place(0.0, 0.0), axes.place(axes.x[1], 0.0)[0]
    parts.append(html.line(plots.LEFT, y, x1, y, "zero"))
    parts.append(html.path(plots.stairs(axes, held, samples[-1].seconds), "curve"))
    said = f"Worst bound: {html.short(held[0][1])} at first, {html.short(held[-1][1])} at last."
    return html.svg(plots.W, plots.H, said, parts)


def share(samples: Sequence[Sample]) -> str:
    axes = plots.Axes((0.0, max(samples[-1].seconds, 1e-3)), (0.0, 1.0))
    parts = _frame(axes, [(v, f"{100 * v:.0f} %") for v in (0.0, 0.25, 0.5, 0.75, 1.0)])
    parts.append(html.path(plots.stairs(axes, [(s.seconds, s.share) for s in samples], samples[-1].seconds), "curve unsat"))
    said = f"Share proved: {words.share(samples[0].share)} at first, {words.share(samples[-1].share)} at last."
    return html.svg(plots.W, plots.H, said, parts)


def tree(s: SearchStats) -> str:
    """An icicle: a row a depth, as wide as what of the tree reaches it; of each row what is refuted there, left there, and divided."""
    levels = [Level(_whole(v.refuted), _whole(v.open)) for v in s.levels[:LEVELS]]
    weights = [tuple(math.ldexp(v, -d) for v in level) for d, level in enumerate(levels)]
    total = sum(map(sum, weights))
    if not total:
        return ""
    each = -(-len(levels) // ROWS)
    told = [tuple(sum(v[k] for v in levels[d : d + each]) for k in (0, 1)) for d in range(0, len(levels), each)]
    counted = [f"{n:,}" + f" + {m:,} left" * bool(m) for n, m in told]
    room = 12 + 7.0 * max(map(len, counted))  # for the numbers beside the bars
    high, wide, parts, gone = 14.0 if len(levels) <= ROWS // 2 else 8.0, plots.W - plots.LEFT - room, [], 0.0
    for row, d in enumerate(range(0, len(levels), each)):
        refuted, left = (sum(v[k] for v in weights[d : d + each]) / total for k in (0, 1))
        n, m = told[row]
        x, y = plots.LEFT + gone * wide, 4 + row * high
        name = f"depth {d}" if each == 1 else f"depths {d} to {min(d + each, len(levels)) - 1}"
        parts.append(html.rect(x, y, (1 - gone) * wide, high - 1, "track", f"{name}: divided"))
        parts.append(html.rect(x, y, refuted * wide, high - 1, "bar unsat", f"{name}: {n:,} refuted"))
        parts.append(html.rect(x + refuted * wide, y, left * wide, high - 1, "bar unknown", f"{name}: {m:,} left"))
        if high > 10 or row % 2 == 0:
            parts.append(html.label(plots.LEFT - 6, y + high - 3, str(d), "end"))
            parts.append(html.label(plots.LEFT + wide + 6, y + high - 3, counted[row], "start"))
        gone = min(1.0, gone + refuted + left)
    rows = -(-len(levels) // each)
    left_over, done = sum(v.open for v in levels), sum(v.refuted for v in levels)
    said = f"Tree: {done:,} parts refuted, {left_over:,} left, {len(levels) - 1} cuts deep; a row is as wide as what reaches it."
    return html.svg(plots.W, 8 + rows * high, said, parts)


def _frame(axes: plots.Axes, ys: Sequence[tuple[float, str]]) -> list[str]:
    return axes.frame([(v, html.short(v, 3)) for v in plots.nice(*axes.x)], ys, "seconds")


def _whole(count: int) -> int:
    return min(max(count, 0), COUNT)
