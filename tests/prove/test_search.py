"""Searches, against exact minima of piecewise linear networks and float32 executions of this directory's own.

Every search is watched (`watched.py`): whatever input is unsafe has to lie, after every round, in a domain that holds its group open.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove import search as module
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Stopped
from tests.prove.piecewise import TINIEST, Form, Numbers, Small, drawn, exact, least, pieces, uneven, unsafe, worst
from tests.prove.watched import Ended, Watched, asked, compiled, inside, searched

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


# ---- exact minima ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(8))
def test_one_input(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = (drawn if seed % 3 else uneven)(rng, 1, [6, 5, 4][: 1 + seed % 3])
    assert around(net, [over(net, 1.0)], cube(1), rounds=7, slopes=seed % 2 == 0, first=seed % 4 != 3) > 10


@pytest.mark.parametrize("seed", range(4))
def test_two_inputs(seed: int) -> None:
    rng = np.random.default_rng(10 + seed)
    net = drawn(rng, 2, [4, 3][: 1 + seed % 2])
    around(net, [over(net, 1.0)], cube(2), rounds=3, slopes=seed % 2 == 0)


def test_three_inputs() -> None:
    net = drawn(np.random.default_rng(20), 3, [3])
    around(net, [over(net, 1.0)], cube(3), rounds=2)


@pytest.mark.parametrize("seed", range(5))
def test_conjunctions_that_no_single_row_decides(seed: int) -> None:
    """Some row is positive at every input, and none everywhere: only parts can be refuted."""
    rng = np.random.default_rng(30 + seed)
    net = drawn(rng, 1, [5, 4], 2)
    forms = [over(net, *rng.integers(-2, 3, 2), d=[float(rng.integers(-2, 3))]) for _ in range(2 + seed % 2)]
    forms = [Form(f.c, f.d, least(net, [f], *cube(1))[0] + spread(net, [f], cube(1)) / 3) for f in forms]
    around(net, forms, cube(1), rounds=6)


def test_a_conjunction_that_needs_dividing_is_divided() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)),), 1)
    group = (over(net, 1.0, 0.0, k=-0.5), over(net, 0.0, 1.0, k=-0.5))  # x <= -1/2 and -x <= -1/2
    box = [-1.0], [1.0]
    ended = searched(compiled(net), asked([box], [(0, group)], 2))
    assert ended.unsat and ended.stats.domains >= 2 and {r.group for r in ended.search.refuted} == {0}
    audit(ended, net, [box], [(0, group)])


def test_rows_whose_clips_do_not_meet_refute_a_part() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)),), 1)
    group, box = (over(net, 1.0, 0.0, k=-0.5), over(net, 0.0, 1.0, k=-0.5)), ([-1.0], [1.0])  # x <= -1/2 and -x <= -1/2
    ended = searched(compiled(net), asked([box], [(0, group)], 2), first=False)
    assert ended.unsat, ended.stats.ended


def test_rows_whose_clips_do_not_meet_refute_no_other_group() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)),), 1)
    apart, reached = (over(net, 1.0, 0.0, k=-0.5), over(net, 0.0, 1.0, k=-0.5)), (over(net, 1.0, 0.0, k=-0.75),)
    box = ([-1.0], [1.0])
    ended = searched(compiled(net), asked([box], [(0, apart), (0, reached)], 2), 1.0, first=False, keep=[((Fraction(-1),), 1)])
    assert ended.answers.settled.tolist() == [True, False]


@pytest.mark.parametrize("seed", range(5))
def test_rows_over_inputs_too(seed: int) -> None:
    rng = np.random.default_rng(40 + seed)
    net = drawn(rng, 1 + seed % 2, [4], 2)
    around(net, [over(net, 1.0, -0.5, d=(rng.integers(-3, 4, net.inputs) / 2).tolist())], cube(net.inputs), rounds=3)


def drawn_pieces(
    rng: np.random.Generator, net: Small, gaps: Sequence[Fraction | None]
) -> tuple[list[Box], list[tuple[int, tuple[Form, ...]]], list[Any]]:
    """Boxes that overlap, some shared, each with groups of one or two forms; None: a gap that must be proved."""
    boxes: list[Box] = []
    for _ in range(2):
        lo = np.sort(rng.integers(-4, 3, net.inputs) / 2.0)
        boxes.append((lo.tolist(), (lo + rng.integers(1, 5, net.inputs) / 2).tolist()))
    groups, keep = [], []
    for g, gap in enumerate(gaps):
        at = int(rng.integers(2)) if g > 1 else g
        forms = [over(net, *rng.integers(-2, 3, net.outputs)) for _ in range(int(rng.integers(1, 3)))]
        group, x = lowered(net, forms, boxes[at], max(spread(net, forms, boxes[at]) / 8, Fraction(1, 10)) if gap is None else gap)
        groups.append((at, group))
        if gap is not None:
            keep.append((x, g))
    return boxes, groups, keep


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_many_pieces(seed: int, inputs: int) -> None:
    """One group is unsafe, or all are safe; each is settled on its own."""
    rng = np.random.default_rng(50 + seed)
    net = drawn(rng, inputs, [4, 3][: 3 - inputs], 2)
    for gaps in ([None] * 5, [None, Fraction(0), None, None], [Fraction(-1, 10**6), None, None, Fraction(0)]):
        boxes, groups, keep = drawn_pieces(rng, net, gaps)
        ended = searched(compiled(net), asked(boxes, groups, 2), 10.0, keep=keep, rounds=12 // inputs if keep else 10**9)
        audit(ended, net, boxes, groups)
        assert not ended.answers.settled[[g for _, g in keep]].any()
        assert ended.unsat == (not keep)


def test_a_box_with_one_safe_and_one_unsafe_group_settles_the_safe_one() -> None:
    net = drawn(np.random.default_rng(3), 1, [5, 4])
    safe, _ = lowered(net, [over(net, 1.0)], cube(1), Fraction(1, 4))
    bad, x = lowered(net, [over(net, -1.0)], cube(1), Fraction(-1, 8))
    for groups, k in (([(0, safe), (0, bad)], 1), ([(0, bad), (0, safe)], 0)):
        ended = searched(compiled(net), asked([cube(1)], groups, 1), keep=[(x, k)], rounds=9)
        assert ended.answers.settled.tolist() == [k == 1, k == 0]
        audit(ended, net, [cube(1)], groups)


@pytest.mark.parametrize("inputs", [1, 2])
def test_unsafe_inputs_of_several_groups_at_both_ends(inputs: int) -> None:
    """What one group's row cuts off is where the other's unsafe inputs are."""
    net = Small(((np.eye(inputs)[:1], np.zeros(1)),), inputs)
    groups = [(0, (over(net, 1.0, k=-1.0),)), (0, (over(net, -1.0, k=-1.0),))]
    rest = (Fraction(1, 3),) * (inputs - 1)
    keep = [((Fraction(v), *rest), g) for v, g in ((-2, 0), (-1, 0), (1, 1), (2, 1))]
    for some in (groups, groups[::-1]):
        turned = keep if some is groups else [(x, 1 - g) for x, g in keep]
        ended = searched(compiled(net), asked([cube(inputs)], some, 1), keep=turned, rounds=4, first=False)
        assert not ended.answers.settled.any() and ended.search.clips
        audit(ended, net, [cube(inputs)], some)


def test_groups_over_boxes_far_apart_are_not_mixed_up() -> None:
    """Equal forms over several boxes: safe in some, unsafe in one."""
    net = Small(((np.array([[1.0], [-1.0]]), np.array([0.0, 0.0])), (np.array([[1.0, 1.0]]), np.array([0.0]))), 1)  # |x|
    boxes = [([1.0], [3.0]), ([-3.0], [-1.0]), ([-1.0], [2.0]), ([0.75], [0.75])]
    f = over(net, 1.0, k=0.5)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        groups = [(at, (f,)) for at in order]
        bad = order.index(2)
        for first in (True, False):
            ended = searched(compiled(net), asked(boxes, groups, 1), keep=[((Fraction(1, 4),), bad)], rounds=6, first=first)
            assert ended.answers.settled.tolist() == [k != bad for k in range(4)]
            audit(ended, net, boxes, groups)


@pytest.mark.parametrize("bound, closed", [(0.0, False), (-0.0, False), (np.nan, False), (-np.inf, False), (5e-324, True), (np.inf, True)])
def test_a_bound_of_zero_refutes_nothing(bound: float, closed: bool) -> None:
    net = Small((), 1, gate=True)
    for k in range(2):  # the other group stays as it is
        ended = searched(compiled(net), asked([([0.0], [0.0])], [(0, (over(net, 1.0),))] * 2, 1), keep=[((Fraction(0),), 0)], first=False)
        batch = ended.search.pieces.roots(ended.q, np.zeros(2, dtype=bool), 0)
        best = np.where(np.arange(2) == k, bound, -1.0)
        found = SimpleNamespace(at=np.zeros(2, int), local=np.arange(2), best=best)
        InputSearch._close(ended.search, batch, found)  # type: ignore[arg-type]
        assert batch.open.tolist() == [[not (closed and g == k) for g in range(2)]]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_boxes_of_which_some_have_been_tried(known: int) -> None:
    """Slopes are known of some forms only: boxes without them are bounded before they are divided."""
    net = Small(((np.array([[1.0], [-1.0]]), np.array([0.0, 0.0])), (np.array([[1.0, 1.0]]), np.array([0.0]))), 1)  # |x|
    boxes = [([-1.0], [2.0]), ([-2.0], [1.5]), ([-1.5], [1.0])]
    groups = [(at, (over(net, 1.0, k=0.5), over(net, 2.0, k=1.0))) for at in range(3)]
    q = questions(asked(boxes, groups, 1))
    assert q is not None
    decider = compiled(net)._decider
    for gone in range(6):
        answers = decider.prove(q, slopes=True)
        assert answers.slopes is not None and len(answers.slopes) == 6
        answers.slopes = {k: v for k, v in answers.slopes.items() if k // 2 != gone % 3 and (known or k != (gone + 2) % 6)}
        keep = [((Fraction(0),), g) for g in range(3)] + [((Fraction(1, 2),), g) for g in range(3)]
        search = Watched(decider, q, answers, deadline=time.monotonic() + 2, keep=keep, rounds=3 + known)
        search.run()
        assert not answers.settled.any()


def test_a_piece_without_rows_is_unsafe_everywhere() -> None:
    net = drawn(np.random.default_rng(1), 1, [3])
    safe, _ = lowered(net, [over(net, 1.0)], cube(1), Fraction(1))
    ended = searched(compiled(net), asked([cube(1)], [(0, ()), (0, safe)], 1), keep=[((Fraction(v),), 0) for v in (-2, 0, 1, 2)], rounds=5)
    assert ended.answers.settled.tolist() == [False, True]


def test_text_with_strict_rows_and_pieces() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))), 1)
    head = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (>= X_0 -1))\n(assert (<= X_0 2))\n"
    for text, unsat in (
        ("(assert (< Y_0 0))", False),  # its closure is reached at zero
        ("(assert (< Y_0 -0.125))", True),
        ("(assert (<= (+ Y_0 X_0) -0.25))", True),
        ("(assert (<= (+ Y_0 X_0) 0))", False),
        ("(assert (or (and (<= Y_0 0.5) (>= X_0 0.75)) (and (>= Y_0 1.25) (<= X_0 0.5))))", True),
        ("(assert (or (and (<= Y_0 0.5) (>= X_0 0.75)) (and (>= Y_0 1.0) (<= X_0 0.5))))", False),
    ):
        prop = read_vnnlib(head + text, n_in=1, n_out=1)
        ended = searched(compiled(net), prop, rounds=10**9 if unsat else 6)
        assert ended.unsat == unsat, text


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_many_networks(inputs: int) -> None:
    begin, seed = time.monotonic(), 0
    while time.monotonic() < begin + 40 and seed < 60:
        rng = np.random.default_rng(1000 * inputs + seed)
        widths = {1: [7, 6, 5], 2: [5, 4], 3: [3]}[inputs][: int(rng.integers(1, 4))]
        net = (drawn if seed % 4 else uneven)(rng, inputs, widths, 2)
        forms = [over(net, *rng.integers(-2, 3, 2), d=(rng.integers(-1, 2, inputs) / 2).tolist()) for _ in range(int(rng.integers(1, 3)))]
        around(net, forms, cube(inputs), rounds=4, slopes=seed % 2 == 0, first=seed % 3 > 0, patient=len(forms) == 1)
        if inputs < 3:
            boxes, groups, keep = drawn_pieces(rng, net, [None, Fraction(0), None, Fraction(-1, 10**7), None])
            ended = searched(compiled(net), asked(boxes, groups, 2), 5.0, keep=keep, rounds=7)
            audit(ended, net, boxes, groups)
            assert not ended.answers.settled[[g for _, g in keep]].any()
        seed += 1
    assert seed >= 2


# ---- odd boxes and odd networks ---------------------------------------------------------------------------------------


def test_boxes_of_one_float() -> None:
    net = drawn(np.random.default_rng(4), 2, [5, 4])
    x = [0.1, -0.3]
    for semantics in ("real", "float32"):
        group, at = lowered(net, [over(net, 1.0)], (x, x), Fraction(0))
        ended = searched(compiled(net, semantics), asked([(x, x)], [(0, group)], 1), keep=[(at, 0)])
        assert not ended.unsat and ended.stats.ended == "rounding"
        group, _ = lowered(net, [over(net, 1.0)], (x, x), Fraction(1, 10))
        assert searched(compiled(net, semantics), asked([(x, x)], [(0, group)], 1), first=False).unsat


def test_boxes_of_neighbouring_floats() -> None:
    """No number lies between: a part that is not refuted ends the search, and claims nothing."""
    net = Small(((np.array([[1.0], [-1.0]]), np.array([0.0, 2.0])), (np.array([[1.0, 1.0]]), np.array([0.0]))), 1)
    box = [1.0], [float(np.nextafter(1.0, 2.0))]
    group, x = lowered(net, [over(net, 1.0)], box, Fraction(0))
    ended = searched(compiled(net), asked([box], [(0, group)], 1), keep=[(x, 0)])
    assert not ended.unsat and ended.stats.ended == "rounding" and ended.stats.open >= 1


@pytest.mark.parametrize("fixed", [0, 1])
def test_inputs_that_are_fixed(fixed: int) -> None:
    rng = np.random.default_rng(60 + fixed)
    net = drawn(rng, 3, [4])
    lo, hi = cube(3)
    lo[fixed] = hi[fixed] = 0.7
    around(net, [over(net, 1.0)], (lo, hi), rounds=3)


def test_a_decimal_that_is_no_float() -> None:
    """The exact end lies outside what float64 holds: the box is rounded outward, and its exact corners stay in it."""
    net = drawn(np.random.default_rng(5), 1, [4, 3])
    box: Any = ([Fraction(-1, 3)], [Fraction(7, 10)])
    group, x = lowered(net, [over(net, 1.0)], box, Fraction(0))
    assert not searched(compiled(net), asked([box], [(0, group)], 1), keep=[(x, 0)], rounds=12).unsat


@pytest.mark.parametrize("size", [2.0**-1060, 2.0**-140, 2.0**-40, 2.0**40])
def test_boxes_of_extreme_size(size: float) -> None:
    rng = np.random.default_rng(6)
    net = Small(tuple((w, b * size) for w, b in drawn(rng, 1, [4]).layers), 1)
    net = Small(tuple((w, np.float32(b).astype(np.float64)) for w, b in net.layers), 1)
    box = [-size], [size]
    for gap in (Fraction(0), -spread(net, [over(net, 1.0)], box) / 8, spread(net, [over(net, 1.0)], box) / 4):
        group, x = lowered(net, [over(net, 1.0)], box, gap)
        ended = searched(compiled(net), asked([box], [(0, group)], 1), 1.0, keep=[(x, 0)] if gap <= 0 else [], rounds=8)
        assert not (ended.unsat and gap <= 0)
        audit(ended, net, [box], [(0, group)])


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("first", ["Gather", "Slice", "Transpose"])
def test_networks_that_move_their_inputs(first: str, gate: bool) -> None:
    reads = {"Gather": (3, 0, 2), "Slice": (3, 1), "Transpose": (0, 2, 1, 3)}[first]
    rng = np.random.default_rng(70)
    net = Small(drawn(rng, len(reads), [3]).layers, 4, reads, gate)
    fixed = {"Gather": (1, 2), "Slice": (0, 2), "Transpose": (0, 2)}[first]
    lo, hi = [-1.0, 0.5, -0.5, -2.0], [1.0, 0.75, -0.25, 0.5]
    box = lo, [a if i in fixed else b for i, (a, b) in enumerate(zip(lo, hi, strict=True))]
    around(net, [over(net, 1.0)], box, rounds=3, moved=first)


def test_cells_that_are_read_twice() -> None:
    net = Small(drawn(np.random.default_rng(8), 3, [4]).layers, 2, (1, 1, 0))
    around(net, [over(net, 1.0)], cube(2), rounds=3)
    net = Small(net.layers, 2, (1, 1, 0), gate=True)
    around(net, [over(net, 1.0)], cube(2), rounds=3)


def test_inputs_that_the_network_drops_are_never_needed() -> None:
    net = Small(drawn(np.random.default_rng(9), 1, [4, 3]).layers, 3, (2,))
    group, _ = lowered(net, [over(net, 1.0)], cube(3), Fraction(1, 2))
    ended = searched(compiled(net), asked([cube(3)], [(0, group)], 1), 10.0, first=False)
    assert ended.unsat
    audit(ended, net, [cube(3)], [(0, group)])


# ---- deployed semantics -----------------------------------------------------------------------------------------------


def executed(
    net: Small, forms: Sequence[Form], points: Sequence[np.ndarray], rng: np.random.Generator, times: int, half: int = 0
) -> tuple[Fraction, Numbers]:
    """The least value of the greatest form over executions, and its input."""
    found = []
    for p in points:
        x = exact(p)
        found += [(worst(forms, (x, net.execute(p, rng, half))), x) for _ in range(times)]
    return min(found)


def cancelling(rng: np.random.Generator, inputs: int, big: float) -> Small:
    """What executions reach lies well beyond what exact arithmetic does."""
    w = np.float32(rng.normal(size=(3, inputs)) + np.array([[1.0], [-1.0], [0.5]]) * big)
    b = np.float32(np.array([3.0, 3.0, 2.0]) * big * inputs)
    last = np.array([[1.0, 1.0, -1.0], [0.5, -1.0, 0.25]])
    return Small(((w, b), (last, np.float32(rng.normal(size=2)))), inputs)


DEPLOYED = (("float32", 0, 2.0**12), ("tf32", 11, 4.0), ("bf16", 8, 1.0))


@pytest.mark.parametrize("semantics, half, big", DEPLOYED)
@pytest.mark.parametrize("seed", range(2))
def test_what_executions_reach_is_never_proved_away(seed: int, semantics: str, half: int, big: float) -> None:
    rng = np.random.default_rng(seed)
    inputs = 1 + seed
    net = cancelling(rng, inputs, big) if seed % 2 == 0 else uneven(rng, inputs, [5, 4], 2)
    forms, box = [over(net, 1.0, 1.0)], ([-1.0] * inputs, [1.0] * inputs)
    true, at = least(net, forms, *box)
    near = np.clip(np.array([float(v) for v in at], dtype=np.float32), -1, 1).astype(np.float64)
    step = [np.clip(near + s, -1, 1).astype(np.float32).astype(np.float64) for s in (0.0, 2.0**-20, -(2.0**-20), 2.0**-8)]
    low, x = executed(net, forms, step, rng, 40, half)
    assert low < true, "no execution left exact arithmetic: nothing was tested"
    verifier = compiled(net, semantics)
    for value in (low, (low + true) / 2):  # both are reached, by an execution or by more
        group = tuple(f.raised(value) for f in forms)
        for first in (True, False):
            ended = searched(verifier, asked([box], [(0, group)], 2), 1.0, keep=[(x, 0)], rounds=6, first=first)
            assert not ended.unsat
    gap = spread(net, forms, box) / 2 + 4 * (true - low) + Fraction(big) / 100
    group, _ = lowered(net, forms, box, gap)
    ended = searched(verifier, asked([box], [(0, group)], 2), 5.0)
    for r in ended.search.refuted:
        inner = [np.float32(np.clip(r.lo + rng.random(inputs) * (r.hi - r.lo), -1, 1)).astype(np.float64) for _ in range(3)]
        inner = [p for p in inner if inside(p.tolist(), r.lo, r.hi)]
        assert not inner or executed(net, group, inner, rng, 3, half)[0] > 0


def test_subnormal_inputs_are_read_as_zero_or_not() -> None:
    """x - 2^-128 * 5/2 over subnormal x, amplified: flushed, an input of 3 * 2^-128 gives what no kept one of the box gives."""
    big, tiny = 2.0**59, 2.0**-128
    net = Small(((np.array([[big]]), np.zeros(1)),), 1)
    for box, x in ((([3 * tiny], [4 * tiny]), 3 * tiny), (([3 * tiny], [1.0]), 3 * tiny), (([-1.0], [-3 * tiny]), -3 * tiny)):
        sign = 1.0 if x > 0 else -1.0
        group = (over(net, sign, k=big * tiny * 2),)  # kept: at least 3 * tiny * big
        ended = searched(compiled(net, "float32"), asked([box], [(0, group)], 1), 1.0, keep=[((Fraction(x),), 0)], rounds=12)
        assert not ended.unsat
        assert Fraction(abs(x)) < TINIEST
        gated = Small((), 1, gate=True)
        if x > 0:
            ended = searched(
                compiled(gated, "float32"),
                asked([box], [(0, (over(gated, 1.0, k=2 * tiny),))], 1),
                1.0,
                keep=[((Fraction(x),), 0)],
                rounds=12,
            )
            assert not ended.unsat


@pytest.mark.parametrize("semantics", ["real", "float32", "tf32", "bf16"])
def test_clips_know_what_may_be_flushed(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, clip = [], module.cuts.clip

    def noted(*args: Any) -> Any:
        given.append(args[5])
        return clip(*args)

    monkeypatch.setattr(module.cuts, "clip", noted)
    net, groups, x = hard()
    searched(compiled(net, semantics), asked([cube(2)], groups, 1), keep=[(x, 0)], rounds=2, first=False)
    assert given and set(given) == {0.0 if semantics == "real" else 2.0**-126}


@pytest.mark.slow
@pytest.mark.parametrize("semantics, half, big", DEPLOYED)
def test_many_executions(semantics: str, half: int, big: float) -> None:
    begin, seed = time.monotonic(), 0
    while time.monotonic() < begin + 45 and seed < 40:
        rng = np.random.default_rng(3000 + seed)
        inputs = 1 + seed % 3
        net = cancelling(rng, inputs, big * 2.0 ** rng.integers(-3, 4)) if seed % 2 else uneven(rng, inputs, [4, 3], 2)
        forms = [over(net, *rng.normal(size=2).astype(np.float32)) for _ in range(1 + seed % 2)]
        points = [rng.uniform(-1, 1, inputs).astype(np.float32).astype(np.float64) for _ in range(6)]
        points += [np.where(rng.random(inputs) < 0.5, -1.0, 1.0) for _ in range(6)]
        low, x = executed(net, forms, points, rng, 8, half)
        group = tuple(f.raised(low) for f in forms)
        box = [-1.0] * inputs, [1.0] * inputs
        assert not searched(compiled(net, semantics), asked([box], [(0, group)], 2), 1.0, keep=[(x, 0)], rounds=6, first=seed % 4 > 0).unsat
        seed += 1


# ---- how a search ends --------------------------------------------------------------------------------------------------


def hard() -> tuple[Any, Any, Numbers]:
    """A property that is reached, by a little."""
    net = drawn(np.random.default_rng(11), 2, [5, 4])
    group, x = lowered(net, [over(net, 1.0)], cube(2), Fraction(0))
    safe, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(1))
    return net, [(0, group), (0, safe)], x


def test_no_time_at_all() -> None:
    net, groups, x = hard()
    ended = searched(compiled(net), asked([cube(2)], groups, 1), -1.0, keep=[(x, 0)], first=False)
    assert not ended.answers.settled.any() and ended.stats.ended == "time" and not ended.search.refuted
    assert np.isneginf(ended.answers.best).all()


@pytest.mark.parametrize("where", ["refine", "query", "lines"])
def test_time_that_ends_anywhere(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch at hand goes back whole: its parts are held, and a later search can go on from there."""
    net, groups, x = hard()
    verifier, prop = compiled(net), asked([cube(2)], groups, 1)
    target, name = (module, "input_lines") if where == "lines" else (Engine, where)
    plain, safe = getattr(target, name), groups[1][1]
    for stop in range(1, 8):
        calls = iter(range(1, 100))

        def late(*args: Any, calls: Any = calls, stop: int = stop, **more: Any) -> Any:
            if next(calls) == stop:
                raise Stopped
            return plain(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(target, name, late)
            ended = searched(verifier, prop, 5.0, keep=[(x, 0)], rounds=9, first=False)
        assert not ended.answers.settled[0]
        if ended.stats.ended == "time":
            ended.search.check("after the stop")
            held(ended, 1, safe, net)


def held(ended: Ended, group: int, forms: Sequence[Form], net: Small) -> None:
    """Whatever was not refuted or clipped away still waits."""
    rng = np.random.default_rng(0)
    for x in sampled(rng, cube(2), []):
        waits = ended.search.holds(x, group)
        refuted = any(r.group == group and r.holds(x) for r in ended.search.refuted)
        clipped = any(inside(x, c.lo, c.hi) and not inside(x, c.low, c.high) for c in ended.search.clips)
        assert waits or refuted or clipped
        assert worst(forms, (x, net.value(x))) > 0


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_probe_that_finds_something_ends_the_search_and_proves_nothing(calls: int) -> None:
    net, groups, x = hard()
    seen: list[tuple[np.ndarray, list[int]]] = []

    def probe(points: np.ndarray, still: list[int]) -> bool:
        seen.append((points, still))
        return len(seen) == calls

    ended = searched(compiled(net), asked([cube(2)], [groups[0]], 1), 5.0, keep=[(x, 0)], probe=probe, first=False)
    assert ended.stats.ended == "sat" and len(seen) == calls and not ended.unsat and ended.stats.open > 0
    for points, still in seen:
        assert still == [0] and (points >= -2).all() and (points <= 2).all()


def test_a_search_that_cannot_divide_says_so_and_proves_nothing() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))), 1)
    box = [0.0], [float(2.0**-1073)]
    ended = searched(compiled(net), asked([box], [(0, (over(net, 1.0),))], 1), keep=[((Fraction(0),), 0)])
    assert ended.stats.ended == "rounding" and not ended.unsat and ended.stats.open > 0


def test_little_memory_takes_the_deepest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    net, groups, x = hard()
    verifier = compiled(net)
    monkeypatch.setattr(module, "MOST", 3)
    for share in (8, 10**12):
        monkeypatch.setattr(module, "MEMORY", share)
        ended = searched(verifier, asked([cube(2)], groups, 1), 5.0, keep=[(x, 0)], rounds=25, first=False)
        assert not ended.answers.settled[0]
        audit(ended, net, [cube(2)], groups)
        ended = searched(verifier, asked([cube(2)], groups[1:], 1), 20.0, first=False)
        assert ended.unsat
        audit(ended, net, [cube(2)], groups[1:])


@pytest.mark.parametrize("first", [True, False])
def test_the_same_search_twice_is_the_same_tree(first: bool) -> None:
    net, groups, _ = hard()
    verifier, prop = compiled(net), asked([cube(2)], groups, 1)
    one, two = (searched(verifier, prop, 20.0, rounds=8, first=first) for _ in range(2))
    assert one.search.taken == two.search.taken
    assert (one.stats.domains, one.stats.depth, one.stats.open) == (two.stats.domains, two.stats.depth, two.stats.open)
    assert (one.answers.settled == two.answers.settled).all() and (one.answers.best == two.answers.best).all()


def test_what_was_settled_before_stays_and_is_not_searched() -> None:
    net, groups, _ = hard()
    q = questions(asked([cube(2)], groups, 1))
    assert q is not None
    verifier = compiled(net)
    answers = verifier._decider.prove(q, slopes=True)
    answers.settled[:] = [False, True]
    answers.best[1] = 0.25
    search = InputSearch(verifier._decider, q, answers, deadline=time.monotonic() + 0.3)
    assert search.waiting.open.tolist() == [[False, True]] or search.waiting.open.tolist() == [[True, False]]
    search.run()
    assert answers.settled.tolist() == [False, True] and answers.best[1] == 0.25


def test_bounds_handed_down_enclose_those_they_came_from() -> None:
    """Numbers of the network's nodes go to the parts in float32, rounded outward; each part's are its own box's."""
    net = uneven(np.random.default_rng(12), 2, [6, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(-1, 10))
    plain, checked = InputSearch._learnt, []

    class Learns(InputSearch):
        def _learnt(self, boxes: Any, which: np.ndarray) -> np.ndarray:
            made = plain(self, boxes, which)
            low, high = np.split(made.astype(np.float64), 2, axis=1)
            for k, row in enumerate(which):
                own = [np.concatenate([d[n][int(row)].flatten().numpy() for n in self.nodes]) for d in (boxes.lo, boxes.hi)]
                assert (low[k] <= own[0]).all() and (own[1] <= high[k]).all()
                assert (own[0] - low[k] <= 1e-6 * (1 + np.abs(own[0]))).all() and (high[k] - own[1] <= 1e-6 * (1 + np.abs(own[1]))).all()
                checked.append(int((low[k] < own[0]).sum()))
            return made

    verifier = compiled(net)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    search = Learns(verifier._decider, q, verifier._decider.prove(q), deadline=time.monotonic() + 0.4)
    search.run()
    assert len(checked) > 5 and sum(checked) > 0


def test_nodes_of_every_part_are_bounded_rightly() -> None:
    """At the corners and in the middle of every part that is bounded, every neuron lies within the bounds the search goes by."""
    net = uneven(np.random.default_rng(13), 2, [5, 4])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(0))
    count = 0

    class Looks(InputSearch):
        def _bound(self, engine: Any, batch: Any) -> Any:
            nonlocal count
            found = super()._bound(engine, batch)
            for k in range(len(batch)):
                for s in (0.0, 0.5, 1.0):
                    h = exact(batch.lo[k] + s * (batch.hi[k] - batch.lo[k]))
                    for name, (w, b) in zip(("h0", "h1"), net.layers[:-1], strict=True):
                        h = tuple(
                            sum((Fraction(float(a)) * v for a, v in zip(row, h, strict=True)), Fraction(float(c)))
                            for row, c in zip(w, b, strict=True)
                        )
                        low, high = (d[name][k].flatten().tolist() for d in (found.boxes.lo, found.boxes.hi))
                        assert all(Fraction(p) <= v <= Fraction(q) for p, v, q in zip(low, h, high, strict=True))
                        h = tuple(max(v, Fraction(0)) for v in h)
                        count += len(h)
            return found

    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    decider = compiled(net)._decider
    Looks(decider, q, decider.prove(q), deadline=time.monotonic() + 1.0).run()
    assert count > 500


def test_a_margin_is_a_lower_bound() -> None:
    """Forms at least 1/16 above zero, and no more: a proved margin cannot be larger."""
    for seed in (148, 157, 223, 258, 309, 381):
        rng = np.random.default_rng(seed)
        inputs = 1 + seed % 2
        net, box = drawn(rng, inputs, [[2], [5, 4]][seed // 2 % 2]), ([-1.0] * inputs, [1.0] * inputs)
        group, _ = lowered(net, [over(net, 1.0)], box, Fraction(1, 16))
        ended = searched(compiled(net), asked([box], [(0, group)], 1), 5.0, first=False)
        assert ended.unsat
        assert Fraction(float(ended.answers.best[0])) <= Fraction(1, 16), f"seed {seed}"
