"""Answers in one line each: what `repr` says. No array is ever printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from polytriton.results import Bounds, Counterexample, Interval, Picture, Radius, Result, SearchStats
from polytriton.results.reach import Reach
from polytriton.show.verdicts import LOOKS, name_verdict
from polytriton.show.words import decimal_above, decimal_below, plural, share

NAMES = 6  # of layers told


def margin_text(value: float) -> str:
    """A proved margin is never told larger than it is."""
    return decimal_below(Fraction(value)) if 0 < value < math.inf else f"{value:.4g}"


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _range(lo: np.ndarray, hi: np.ndarray) -> str:
    return f"[{lo.min():.4g}, {hi.max():.4g}]" if lo.size else "nothing"


def interval_line(b: Interval) -> str:
    return f"<Interval: {plural(len(b.lo), 'box', 'boxes')} of {_size(b.lo.shape[1:])} neurons in {_range(b.lo, b.hi)}>"


def bounds_line(b: Bounds) -> str:
    names = list(b.layers)
    rest = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    layers = f"; layers {', '.join(names[:NAMES])}{rest}" if names else ""
    boxes, outputs = plural(len(b.lo), "box", "boxes"), plural(int(np.prod(b.lo.shape[1:])), "output")
    return f"<Bounds: {boxes}, {outputs} in {_range(b.lo, b.hi)}{layers}>"


def reach_line(r: Reach) -> str:
    ended = f", ended by {r.ended_by}" if r.ended_by else ""
    forms = f"{plural(len(r.least), 'piece')} of {plural(len(r.directions), 'direction')}"
    return f"<Reach: {plural(r.outputs, 'output')} in {_range(r.lo, r.hi)}, {forms}, gap {r.gap:.3g}, {r.seconds:.3g} s{ended}>"


def counterexample_line(c: Counterexample) -> str:
    answer = f", the greatest number {int(c.y.argmax())}" if c.y.size > 1 else ""
    return f"<Counterexample: {plural(c.x.size, 'input')}, {plural(c.y.size, 'output')}{answer}>"


def picture_line(p: Picture) -> str:
    return f"<Picture: {_size(p.pixels.shape)} {p.pixels.dtype} pixels, epsilon {p.around}>"


def search_line(s: SearchStats) -> str:
    ended = f", ended by {s.ended}" if s.ended else ""
    parts = f"{plural(s.domains, 'part')}, {s.open:,} open, depth {s.depth}, {share(s.share)} refuted"
    return f"<SearchStats: divides {s.kind}, {parts}, {s.seconds:.3g} s{ended}>"


def radius_words(r: Radius) -> str:
    """What was proved, rounded down, and what was not, rounded up."""
    proved = "nothing proved" if r.proved is None else f"proved {decimal_below(r.proved)}"
    above = "" if r.not_proved is None else f", not proved at {decimal_above(r.not_proved)}" + f" ({r.verdict})" * bool(r.verdict)
    return proved + above + ", out of time" * (not r.finished)


def radius_line(r: Radius) -> str:
    return f"<Radius: {radius_words(r)}; {plural(r.queries, 'query', 'queries')}, {r.seconds:.3g} s>"


def result_line(r: Result) -> str:
    facts = [] if r.label is None else [f"label {r.label}"]
    if r.picture is not None:
        facts.append(f"epsilon {r.picture.around}")
    if r.margins.size:
        facts.append(f"margin {margin_text(r.margin)}")
    if r.radius is not None:
        facts.append(f"radius {radius_words(r.radius)}")
    if r.ended_by:
        facts.append(f"ended by {r.ended_by}")
    return f"<Result: {', '.join([name_verdict(r.verdict), *facts, f'{r.seconds:.3g} s'])}>"


def results_line(results: Sequence[Result]) -> str:
    counts = Counter(r.verdict for r in results)
    if not counts:
        return "<ResultList: empty>"
    told = [f"{counts[v]:,} {name_verdict(v)}" for v in (*LOOKS, *(v for v in counts if v not in LOOKS)) if counts[v]]
    found = sum(r.radius is not None for r in results)
    radii = f"; {plural(found, 'radius', 'radii')}" if found else ""
    return f"<ResultList of {len(results):,}: {', '.join(told)}{radii}; {sum(r.seconds for r in results):.3g} s>"
