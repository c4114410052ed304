"""Searches, against exact minima of piecewise linear networks.

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
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch, free_inputs
from polytriton.prove.trail import Trail
from tests.prove.audited import Box, around, audit, cube, lowered, over, spread
from tests.prove.piecewise import Form, Small, drawn, least, uneven
from tests.prove.watched import Watched, asked, compiled, searched


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


@pytest.mark.slow
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


def test_inputs_fixed_at_decimals_are_not_free() -> None:
    """0.1 is no float64: it lies between two neighbours. Whoever counted it as free divided nothing where 64 are."""
    fixed = "".join(f"(declare-const X_{i} Real)\n(assert (<= X_{i} 0.{1 + i % 9}))(assert (>= X_{i} 0.{1 + i % 9}))\n" for i in range(80))
    free = "(declare-const X_80 Real)\n(assert (<= X_80 0.3))(assert (>= X_80 0.1))\n(declare-const Y_0 Real)\n(assert (<= Y_0 0))\n"
    q = questions(read_vnnlib(fixed + free, n_in=81, n_out=1))
    assert q is not None and free_inputs(q) == 1


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
@pytest.mark.parametrize("seed", [0, 4, 5, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
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
        batch = ended.search.pieces.roots(ended.q, np.zeros(2, dtype=bool), 0, Trail(wanted=False))
        best = np.where(np.arange(2) == k, bound, -1.0)
        found = SimpleNamespace(at=np.zeros(2, int), local=np.arange(2), form=np.arange(2), best=best)
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
    while seed < 2 or (time.monotonic() < begin + 6 and seed < 60):
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
