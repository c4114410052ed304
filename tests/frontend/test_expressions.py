"""Expressions and conditions in Python mean what they say at every point, exactly; what Python would decide by itself is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from polytriton import Property, variables
from polytriton.errors import PolytritonError, UnsupportedProperty, UsageError
from polytriton.frontend.query import Row
from tests.frontend import drawn_properties as drawn

X, Y = variables((2, 3), 4)
BOX = (0, 1)
TENTH = Fraction(3602879701896397, 1 << 55)


def only(condition: Any, box: Any = BOX) -> Row:
    """The row of a property that has one."""
    (disjunct,) = Property(box, [condition]).disjuncts
    (row,) = disjunct.rows
    return row


# Meaning


def check_meaning(seed: int, cases: int) -> None:
    rng, hits = Random(seed), 0
    x, y = variables(drawn.INPUTS, drawn.OUTPUTS)
    for _ in range(cases):
        case = drawn.draw(rng)
        lo, hi = ([[pair[k][0] for pair in row] for row in (case.box[:2], case.box[2:])] for k in (0, 1))
        prop = Property((lo, hi), [drawn.built(t, x, y) for t in case.unsafe], safe=[drawn.built(t, x, y) for t in case.safe])
        for xs, ys in case.points:
            found = prop.violated(xs, ys)
            assert (found is not None) == case.violated(xs, ys), (case, xs, ys)
            assert found is None or prop.disjuncts[found].contains(xs)
            hits += found is not None
    assert cases * 10 < hits < cases * 30  # of 40 each: neither answer is rare


def test_properties_mean_their_conditions() -> None:
    check_meaning(1, 250)


@pytest.mark.slow
def test_many_properties_mean_their_conditions() -> None:
    check_meaning(2, 900)


@pytest.mark.parametrize(
    ("given", "exact"),
    [
        (0.1, TENTH), ("0.1", Fraction(1, 10)), ("1/3", Fraction(1, 3)), ("-2.5e-3", Fraction(-1, 400)),
        (Decimal("0.1"), Fraction(1, 10)), (Fraction(2, 7), Fraction(2, 7)), (3, Fraction(3)), (2**70 + 1, Fraction(2**70 + 1)),
        (np.float32(0.1), Fraction(13421773, 1 << 27)), (np.uint8(200), Fraction(200)), (np.array(0.1), TENTH),
        (torch.tensor(0.1), Fraction(13421773, 1 << 27)), (5e-324, Fraction(1, 1 << 1074)),
        (np.longdouble(2) ** 60 + 1, Fraction(2**60 + 1)),
    ],
)  # fmt: skip
def test_numbers_keep_their_exact_value(given: Any, exact: Fraction) -> None:
    assert only(Y[0] <= given).const == exact
    assert only(given >= Y[0]).const == exact
    assert only(Y[0] + given <= 0).const == -exact
    assert only(given - Y[0] <= 0) == Row(((0, Fraction(-1)),), (), -exact)
    assert only(given * Y[0] <= Y[1]).y[0] == (0, exact)
    if exact > 1e-300:
        assert only(Y[0] / given <= Y[1]).y[0] == (0, 1 / exact)
    low, high = ([given] * 6, np.array([str(exact.numerator)] * 6)) if exact.denominator == 1 else ([[given] * 3] * 2, [[given] * 3] * 2)
    (d,) = Property((low, high), [Y[0] >= 0]).disjuncts
    assert set(d.exact_lo) == set(d.exact_hi) == {exact}
    assert (d.lo <= given).all() and (d.hi >= given).all() if isinstance(given, float) else d.lo.size == 6


def test_strict_comparisons_stay_strict() -> None:
    assert only(Y[0] < 1).strict and only(Y[0] > 1).strict and not only(Y[0] <= 1).strict and not only(Y[0] >= 1).strict
    assert only(~(Y[0] <= 1)) == Row(((0, Fraction(-1)),), (), Fraction(-1), True)
    (d,) = Property(BOX, (X[0, 1] > "0.25") & (X[1, 2] < 1) & (Y[0] >= 0)).disjuncts
    assert (d.exact_lo[1], d.open_lo, d.open_hi) == (Fraction(1, 4), {1}, {5})


def test_elements_sums_and_products_with_weights() -> None:
    ones = Row((), tuple((k, Fraction(1)) for k in range(6)), Fraction(2))
    for total in (X.sum(), sum(X), sum(X.flat), X.dot(np.ones((2, 3))), X.dot([1] * 6), sum(X[i, j] for i in range(2) for j in range(3))):
        assert only(total <= 2) == ones
    assert repr(X[1, -1] - 2 * X.flat[3] + "1/2") == "-2*x[1,0] + x[1,2] + 1/2"
    weights = [1, "0.5", 0, Decimal(-3)]
    row = Row(((0, Fraction(1)), (1, Fraction(1, 2)), (3, Fraction(-3))), (), Fraction(0))
    floats = np.array([1, 0.5, 0, -3])
    for product in (Y.dot(weights), weights @ Y, Y @ weights, floats @ Y, Y @ floats.astype(np.float32), torch.tensor(floats) @ Y):
        assert only(product <= 0) == row
    assert [repr(v) for v in Y] == [repr(Y[k]) for k in range(len(Y))] == ["y[0]", "y[1]", "y[2]", "y[3]"]
    assert repr(np.dot(np.ones(4), Y)) == repr(Y.sum()) and (X.size, X.shape, X.flat.shape) == (6, (2, 3), (6,))


def test_an_expression_is_never_changed() -> None:
    total = Y[0] - Y[1]
    rows = [only(total + 1 <= Y[2]), only(2 * total >= X[0, 0]), only(sum([total, total, -Y[0]]) <= 0)]
    assert (repr(total), repr(total <= 0), rows[2]) == ("y[0] - y[1]", "(y[0] - y[1] <= 0)", only(Y[0] - 2 * Y[1] <= 0))


def test_both_sides_of_conditions_that_cancel() -> None:
    true, false = Y[0] - Y[0] <= 0, Y[0] - Y[0] < 0
    assert len(Property(BOX, true).disjuncts) == 1 and not Property(BOX, false).disjuncts
    assert [len(Property(BOX, [false, Y[1] >= 0]).disjuncts), len(Property(BOX, safe=[true, Y[1] >= 0]).disjuncts)] == [1, 1]
    assert (repr(true), repr(false)) == ("true", "false")


def test_shown_as_they_are_written() -> None:
    assert repr((Y[0] - Y[3] >= 2) & (X[0, 1] <= 0.5) | ~(Y[2] < Y[1])) == "(((y[0] - y[3] >= 2) & (x[0,1] <= 1/2)) | (y[1] - y[2] <= 0))"
    assert repr(Y[0] * 2**200) == "1.60694e+60*y[0]" and len(repr(Y.dot([2**60] * 4) + X.sum() * 2**60)) <= 200
    assert repr(X) == "<Variables x, shape [2, 3]>"
    assert repr(Property(BOX, [Y[0] >= 1], name="p")) == "<Property p: 6 inputs, 4 outputs, 1 unsafe piece>"


# Boxes


@pytest.mark.parametrize(
    "box",
    [
        (0, 1), ("0", Decimal(1)), ([0] * 6, [1.0] * 6), (np.zeros((2, 3)), torch.ones(2, 3)),
        ([[0] * 3] * 2, np.ones((1, 2, 3), np.uint8)),
        (np.zeros(6, np.float16), [["1", 1, 1.0], [Fraction(1), np.int64(1), Decimal("1.0")]]),
    ],
)  # fmt: skip
def test_boxes_in_any_form(box: Any) -> None:
    (d,) = Property(box, [Y[0] >= 1]).disjuncts
    assert d.exact_lo == (0,) * 6 and d.exact_hi == (1,) * 6 and not d.open_lo and not d.open_hi


def test_text_among_floats_is_not_read_as_floats() -> None:
    (d,) = Property(([0.1, "0.1", 0, 0, 0, 0], 1), [Y[0] >= 1]).disjuncts
    assert d.exact_lo[:2] == (TENTH, Fraction(1, 10))


def test_conditions_cut_boxes_and_empty_ones_are_dropped() -> None:
    prop = Property(BOX, [(X[0, 0] >= 2) & (Y[0] >= 0), (X[0, 0] >= "0.5") & (Y[0] >= 0), (X[0, 0] < 0) & (Y[0] >= 0)])
    (d,) = prop.disjuncts
    assert d.exact_lo == (Fraction(1, 2), 0, 0, 0, 0, 0)
    assert len(Property(BOX, [Y[0] != 1, Y[1] == 2]).disjuncts) == 3


# What is refused

WHOLE, TRUTH, JOINED = "6 variables, no single one", "neither true nor false", "join conditions"
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "chained": (lambda: 0 <= Y[0] <= 1, TRUTH),
    "and": (lambda: (Y[0] >= 0) and (Y[1] >= 0), TRUTH),
    "or": (lambda: (Y[0] >= 0) or (Y[1] >= 0), TRUTH),
    "not": (lambda: not (Y[0] >= 0), TRUTH),
    "if": (lambda: 1 if Y[0] else 2, TRUTH),
    "max": (lambda: max(Y), TRUTH),
    "in": (lambda: Y[0] in [1, 2], TRUTH),
    "no brackets": (lambda: Y[0] >= 2 & X[0, 1] <= 1, JOINED),
    "no brackets either": (lambda: Y[0] >= X[0, 0] | X[0, 1] <= 1, JOINED),
    "not of a number": (lambda: ~Y[0], JOINED),
    "a truth value": (lambda: (Y[0] >= 2) | True, JOINED),
    "a truth value first": (lambda: np.bool_(True) & (Y[0] >= 2), JOINED),
    "an expression joined": (lambda: (Y[0] >= 2) & Y[1], JOINED),
    "conditions compared": (lambda: (Y[0] >= 2) == (Y[1] >= 2), "is a condition, no number"),
    "conditions not equal": (lambda: (Y[0] >= 2) != 1, "is a condition, no number"),
    "conditions added": (lambda: (Y[0] >= 2) + 1, "is a condition, no number"),
    "a number times a condition": (lambda: 2 * (Y[0] >= 2), "is a condition, no number"),
    "an expression and a condition": (lambda: Y[0] + (Y[0] >= 2), "is a condition, no number"),
    "product": (lambda: Y[0] * X[0, 0], "not linear"),
    "quotient": (lambda: 1 / Y[0], "not linear"),
    "power": (lambda: Y[0] ** 2, "not linear"),
    "magnitude": (lambda: abs(Y[0]), "not linear"),
    "floor": (lambda: Y[0] // 2, "not linear"),
    "by zero": (lambda: Y[0] / "0.0", "divided by zero"),
    "NaN": (lambda: Y[0] >= float("nan"), "NaN"),
    "infinity": (lambda: Y[0] * np.inf, "infinity"),
    "words": (lambda: Y[0] >= "two", "is no number"),
    "a quotient by zero": (lambda: Y[0] >= "1/0", "divides by zero"),
    "nothing": (lambda: Y[0] == None, "neither a number nor an expression"),  # noqa: E711
    "a list": (lambda: Y[0] >= [1], "neither a number nor an expression"),
    "an array": (lambda: Y[0] >= np.ones(3), "is no number"),
    "an array first": (lambda: np.ones(3) * Y[0], "is no number"),
    "True": (lambda: Y[0] >= True, "is a truth value"),
    "all at once": (lambda: X >= 1, WHOLE),
    "all at once, equal": (lambda: X == 1, WHOLE),
    "all at once, added": (lambda: X - X, WHOLE),
    "one and all": (lambda: Y[0] - X, WHOLE),
    "out of range": (lambda: Y[4], "has no element 4"),
    "out of range below": (lambda: Y[-5], "has no element -5"),
    "out of an axis": (lambda: X[0, 3], "has no element 3"),
    "too few indices": (lambda: X[1], "1 indices were given"),
    "too many indices": (lambda: Y[0, 0], "2 indices were given"),
    "a slice": (lambda: X[0, :], "has no element slice"),
    "a float index": (lambda: Y[1.0], "has no element 1.0"),
    "a truth value as index": (lambda: Y[True], "has no element True"),
    "a matrix": (lambda: np.eye(4) @ Y, "weights of shape"),
    "too few weights": (lambda: Y.dot([1, 2]), "weights of shape"),
    "a number as weights": (lambda: Y.dot(2), "weights of shape"),
    "weights of another shape": (lambda: X.dot(np.ones((3, 2))), "weights of shape"),
    "ragged weights": (lambda: X.dot([[1, 2], [1]]), "differ in length"),
    "NaN among weights": (lambda: Y.dot([1, 2, 3, np.nan]), "NaN"),
    "two networks": (lambda: Y[0] >= variables(6, 4)[0][0], "two networks"),
    "two networks joined": (lambda: (Y[0] >= 1) & (variables(6, 4)[0][0] >= 1), "two networks"),
    "no outputs": (lambda: variables(3, 0), "is no shape"),
    "half an input": (lambda: variables(1.5, 3), "is no shape"),  # type: ignore[arg-type]
    "a number beyond float64": (lambda: Y[0] * 2**20000, "beyond float64"),
    "products that grow": (lambda: prod([Y[0], *[2**1000] * 21]), "beyond any use"),
    "sums that grow": (lambda: sum([prod([Y[0], *[2**1000] * 19]) * 2**999] * 2), "beyond any use"),
    "no conditions": (lambda: Property(BOX), "says nothing"),
    "an empty list": (lambda: Property(BOX, []), "says nothing"),
    "expressions": (lambda: Property(BOX, [Y[0]]), r"unsafe\[0\] is y\[0\], no condition"),  # type: ignore[list-item]
    "a truth value as condition": (lambda: Property(BOX, [Y[0] >= 1, True]), r"unsafe\[1\] is True, no condition"),  # type: ignore[list-item]
    "safe of nothing": (lambda: Property(BOX, safe=[None]), r"safe\[0\] is NoneType"),  # type: ignore[list-item]
    "a number of conditions": (lambda: Property(BOX, 3), "unsafe=3 is no list"),  # type: ignore[arg-type]
    "conditions of two networks": (lambda: Property(BOX, [Y[0] >= 1], safe=[variables(6, 4)[1][0] >= 1]), "two networks"),
    "one end": (lambda: Property(np.zeros(6), [Y[0] >= 1]), "a box of ndarray"),  # type: ignore[arg-type]
    "three ends": (lambda: Property((0, 1, 2), [Y[0] >= 1]), "a box of tuple"),  # type: ignore[arg-type]
    "a box of another shape": (lambda: Property((np.zeros((3, 2)), 1), [Y[0] >= 1]), r"lower end has shape \[3, 2\]"),
    "a box of other sizes": (lambda: Property((0, np.ones(5)), [Y[0] >= 1]), r"upper end has shape \[5\]"),
    "an inverted box": (lambda: Property(([0, 0, 0, 0, "0.2", 0], 0.1), [Y[0] >= 1]), r"inverted box for x\[1,1\]: 0.2 > 0.1"),
    "a box of NaN": (lambda: Property((0, [1, 1, 1, 1, 1, np.nan]), [Y[0] >= 1]), "NaN"),
    "an unbounded box": (lambda: Property((-np.inf, 1), [Y[0] >= 1]), "infinity"),
    "a box of words": (lambda: Property(("low", 1), [Y[0] >= 1]), "is no number"),
    "a box of truths": (lambda: Property((np.zeros(6, bool), 1), [Y[0] >= 1]), "truth value"),
    "a name that is none": (lambda: Property(BOX, [Y[0] >= 1], name=3), "name"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told(case: str) -> None:
    attempt, words = WRONG[case]
    with pytest.raises(UsageError, match=words) as caught:
        attempt()
    assert caught.value.remedy and len(caught.value.message) < 400


def test_limits_are_those_of_files() -> None:
    either = [(Y[0] >= k) | (Y[1] >= k) for k in range(18)]
    every = either[0]
    for more in either[1:]:
        every &= more
    with pytest.raises(UnsupportedProperty, match="expands to 262,144 disjuncts"):
        Property(BOX, every)
    with pytest.raises(PolytritonError, match="beyond float64"):
        Property(BOX, Y[0] * 1e300 * 1e300 >= 1)
    chain = Y[0] >= 0
    for k in range(3000):
        chain = chain | (Y[1] >= k)
    assert len(Property(BOX, ~~chain).disjuncts) == 3001
    assert repr(chain).endswith(" ...")
