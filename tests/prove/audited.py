"""Forms about a network's exact least values, and what a watched search made of them, audited by exact comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tests.prove.piecewise import Form, Numbers, Small, drawn, exact, least, pieces, unsafe, worst
from tests.prove.watched import Ended, asked, compiled, inside, searched

Box = tuple[list[float], list[float]]
CUBE = [-2.0], [2.0]


def cube(inputs: int) -> Box:
    return CUBE[0] * inputs, CUBE[1] * inputs


def over(net: Small, *c: float, d: Sequence[float] = (), k: float = 0.0) -> Form:
    return Form(exact(c), exact(d) if d else (Fraction(0),) * net.inputs, Fraction(k))


def lowered(net: Small, forms: Sequence[Form], box: Box, gap: Fraction) -> tuple[tuple[Form, ...], Numbers]:
    """Forms whose greatest has the least value `gap` over the box, and where it has it."""
    value, x = least(net, forms, *box)
    return tuple(f.raised(value - gap) for f in forms), x


def spread(net: Small, forms: Sequence[Form], box: Box) -> Fraction:
    values = [worst(forms, v) for s in pieces(net, *box) for v in s]
    return max(values) - min(values)


def hard() -> tuple[Any, Any, Numbers]:
    """A property that is reached, by a little."""
    net = drawn(np.random.default_rng(11), 2, [5, 4])
    group, x = lowered(net, [over(net, 1.0)], cube(2), Fraction(0))
    safe, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(1))
    return net, [(0, group), (0, safe)], x


def some(rng: np.random.Generator, found: Sequence[Any], most: int) -> list[Any]:
    """The first of them, and others drawn."""
    if len(found) <= most:
        return list(found)
    return [*found[: most // 2], *(found[k] for k in rng.integers(most // 2, len(found), most // 2))]


def audit(
    ended: Ended, net: Small, boxes: Sequence[Box], groups: Sequence[tuple[int, tuple[Form, ...]]], seed: int = 0, most: int = 12
) -> int:
    """What was refuted is safe, and bounds are bounds; what was clipped away was safe; proved groups are covered. Exact comparisons."""
    count, found, rng = 0, ended.search, np.random.default_rng(seed)
    for r in some(rng, found.refuted, most):
        forms = groups[r.group][1]
        value, _ = least(net, forms, r.lo.tolist(), r.hi.tolist())
        assert value > 0, f"group {r.group} was refuted in a box that holds an unsafe input"
        assert Fraction(r.bound) <= max(least(net, [f], r.lo.tolist(), r.hi.tolist())[0] for f in forms), "a bound is too high"
        count += 2
    for c in some(rng, found.clips, most):
        assert ((c.lo <= c.low) & (c.low <= c.high) & (c.high <= c.hi)).all() or (c.low > c.high).all()  # or all of it is cut away
        for g in c.groups:
            for x in unsafe(net, groups[g][1], c.lo.tolist(), c.hi.tolist()):
                assert inside(x, c.low, c.high), f"an unsafe input of group {g} was clipped away"
                count += 1
    for g, (at, forms) in enumerate(groups):
        best = ended.answers.best[ended.q.group == g]
        mine = [r for r in found.refuted if r.group == g]
        if not ended.answers.settled[g]:
            for f, bound in zip(forms, best.tolist(), strict=False):
                assert bound == -np.inf or Fraction(bound) <= least(net, [f], *boxes[at])[0], "a bound of an open group is too high"
            continue
        assert not mine or best.max() <= min(r.bound for r in mine), "a margin is larger than a part's bound"
        if not mine:  # the first try proved it
            assert least(net, forms, *boxes[at])[0] > 0
            continue
        for x in sampled(rng, boxes[at], [v for r in mine[:6] for v in (r.lo, r.hi)]):
            assert any(r.holds(x) for r in mine) or worst(forms, (x, net.value(x))) > 0
            count += 1
    return count


def sampled(rng: np.random.Generator, box: Box, cuts: Sequence[np.ndarray]) -> list[Numbers]:
    """Corners, inner points, and the corners of parts."""
    lo, hi = (np.asarray(v, dtype=np.float64) for v in box)
    points = [np.where(rng.random(len(lo)) < 0.5, lo, hi) for _ in range(4)] + [lo + rng.random(len(lo)) * (hi - lo) for _ in range(12)]
    return [exact(np.clip(p, lo, hi)) for p in (*points, *cuts)]


def around(
    net: Small,
    forms: Sequence[Form],
    box: Box,
    *,
    rounds: int = 5,
    slopes: bool = True,
    first: bool = True,
    moved: str = "Gather",
    patient: bool = True,
) -> int:
    """Thresholds at the least value and next to it: never proved where it is reached, soon proved well below it."""
    verifier, count = compiled(net, first=moved), 0
    for gap in (Fraction(0), Fraction(-1, 10**9), -spread(net, forms, box) / 8):
        group, x = lowered(net, forms, box, gap)
        ended = searched(verifier, asked([box], [(0, group)], net.outputs), keep=[(x, 0)], rounds=rounds, slopes=slopes, first=first)
        assert not ended.unsat
        count += audit(ended, net, [box], [(0, group)])
    gap = max(spread(net, forms, box) / 16, Fraction(1, 100))
    group, _ = lowered(net, forms, box, gap)
    ended = searched(verifier, asked([box], [(0, group)], net.outputs), 20.0, slopes=slopes, first=first)
    if ended.unsat or patient:
        assert ended.unsat and ended.stats.open == 0 and ended.stats.share == 1.0
    assert ended.unsat or ended.stats.ended == "rounding"
    return count + audit(ended, net, [box], [(0, group)])
