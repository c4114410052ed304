"""Properties as the prover and the falsifier are given them: what rounding a rational may cost, and the rows of a classification."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import UsageError
from polytriton.frontend.query import Property, Row, classification, float_bounds, matrix


@settings(max_examples=400, deadline=None)
@given(
    st.fractions()
    | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
    | st.builds(lambda m, e: m * Fraction(10) ** e, st.integers(), st.integers(-400, 400))
)
def test_outward_encloses_tightly(q: Fraction) -> None:
    lo, hi = float_bounds(q)
    assert lo == -np.inf or Fraction(lo) <= q
    assert hi == np.inf or Fraction(hi) >= q
    assert hi == lo or hi == math.nextafter(lo, math.inf)
    assert (lo == hi) == (np.isfinite(lo) and np.isfinite(hi) and Fraction(lo) == q)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.fractions(-10, 10), st.fractions(-10, 10), st.fractions()), min_size=1, max_size=4))
def test_matrix_accounts_for_every_rounding(numbers) -> None:
    rows = [Row(((1, a),) if a else (), ((0, b),) if b else (), c) for a, b, c in numbers]
    m = matrix(rows, n_out=2, n_in=3)
    assert m.C.shape == m.C_err.shape == (len(rows), 2)
    assert m.D.shape == m.D_err.shape == (len(rows), 3)
    for k, (a, b, c) in enumerate(numbers):
        assert abs(a - Fraction(m.C[k, 1])) <= Fraction(m.C_err[k, 1])
        assert abs(b - Fraction(m.D[k, 0])) <= Fraction(m.D_err[k, 0])
        assert Fraction(m.const_up[k]) >= c
        assert (m.C_err[k, 1] == 0) == (Fraction(m.C[k, 1]) == a)
    assert not m.C[:, 0].any()
    assert not m.D[:, 1:].any()


def test_classification() -> None:
    rows = classification(1, 3)
    assert rows == (
        Row(((0, Fraction(-1)), (1, Fraction(1))), (), Fraction(0)),
        Row(((1, Fraction(1)), (2, Fraction(-1))), (), Fraction(0)),
    )
    prop = Property.from_box(np.zeros(2), np.ones(2), 1, 3, targets=[2])
    assert prop.violated([0.5, 0.5], [9, 1, 1]) == 0
    assert prop.violated([0.5, 0.5], [9, 1, 0.5]) is None
    assert prop.violated([0.5, 1.5], [9, 1, 1]) is None
    assert prop.violated([0.5, 0.5], [9, 1, np.nan]) is None
    for bad in (lambda: classification(3, 3), lambda: classification(1, 3, [1]), lambda: Property.from_box(np.ones(1), np.zeros(1), 0, 2)):
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(UsageError):
        prop.violated([0.5], [9, 1, 1])
