"""Searches over odd boxes, and of networks that move, repeat or drop their inputs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.prove.audited import around, audit, cube, lowered, over, spread
from tests.prove.piecewise import Small, drawn
from tests.prove.watched import asked, compiled, searched


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
