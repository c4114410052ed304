"""Cutting boxes, against exact rationals: nothing unsafe is cut off, and halves are the box."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from polytriton.prove import cuts

ETA = 2.0**-126
TOP = np.finfo(np.float64).max
LEAST = 2.0**-1074
NONE = Fraction(1), Fraction(0)


def reaches(
    lo: list[float], hi: list[float], slopes: list[float], constant: float, slack: float, flush: float
) -> list[tuple[Fraction, Fraction]]:
    """Per input the least and the greatest value of a point of the box at which the line, of what is then read, is at most zero.

    A point may be read as it is or, below `flush`, as zero: per input the values that are read and lead furthest down.
    """
    low, high, m = ([Fraction(v) for v in values] for values in (lo, hi, slopes))
    eta, rest = Fraction(flush), Fraction(constant) - Fraction(slack)
    down = []
    for a, b, s in zip(low, high, m, strict=True):
        read = [s * a, s * b]
        if a < eta and b > -eta and eta:
            read.append(Fraction(0))
        down.append(min(read))
    total, found = sum(down, rest), []
    for a, b, s, d in zip(low, high, m, down, strict=True):
        spare = -(total - d)  # s x' may be this large
        if s == 0:
            found.append((a, b) if spare >= 0 else NONE)
            continue
        end = spare / s
        candidates = []
        if s > 0 and a <= min(b, end):
            candidates += [a, min(b, end)]
        elif s < 0 and max(a, end) <= b:
            candidates += [max(a, end), b]
        if spare >= 0 and eta:  # what is flushed is read as zero
            first, last = max(a, -eta), min(b, eta)
            if first <= last:
                candidates += [first, last]  # ends of an open interval: their neighbours inside will do for a closed box
        found.append((min(candidates), max(candidates)) if candidates else NONE)
    return found


def check(lo: np.ndarray, hi: np.ndarray, slopes: np.ndarray, constant: np.ndarray, slack: np.ndarray, flush: float = 0.0) -> int:
    """How many cells were cut. Ends that cross say that nothing is left."""
    low, high = cuts.clip(lo, hi, slopes, constant, slack, flush)
    assert (lo <= low).all() and (high <= hi).all()
    for k in range(len(lo)):
        values = [v[k].tolist() for v in (lo, hi, slopes)]
        if not np.isfinite(np.concatenate([v[k].ravel() for v in (slopes, constant, slack)])).all():
            assert (low[k] == lo[k]).all() and (high[k] == hi[k]).all()
            continue
        inner = flush and math.nextafter(flush, 0.0)  # the largest number that may be flushed
        for i, (a, b) in enumerate(reaches(*values, float(constant[k]), float(slack[k]), inner)):
            if a <= b:
                assert Fraction(float(low[k, i])) <= a and b <= Fraction(float(high[k, i])), (
                    k,
                    i,
                    float(a),
                    float(b),
                    low[k, i],
                    high[k, i],
                )
    return int((low > lo).sum() + (high < hi).sum())


def lines(rng: np.random.Generator, rows: int, inputs: int, size: float = 1.0) -> tuple[np.ndarray, ...]:
    lo = rng.normal(size=(rows, inputs)) * size
    hi = lo + rng.exponential(size=(rows, inputs)) * size
    slopes = rng.normal(size=(rows, inputs)).astype(np.float32).astype(np.float64)
    ends = np.where(slopes > 0, lo, hi)
    width = np.abs(slopes) * (hi - lo)
    constant = -(slopes * ends).sum(1) - rng.random(rows) * width.max(1)  # so that the line passes through the box
    return lo, hi, slopes, constant, np.zeros(rows)


@pytest.mark.parametrize("inputs", [1, 2, 5, 30])
def test_no_unsafe_point_is_cut_off(inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    assert check(*lines(rng, 300, inputs)) > 100


@pytest.mark.parametrize("inputs", [1, 2, 3, 8])
def test_sums_that_cancel(inputs: int) -> None:
    """Terms 2^30 larger than what is left of them: the last bits of the sum decide."""
    rng = np.random.default_rng(7 + inputs)
    lo, hi, slopes, constant, slack = lines(rng, 400, inputs)
    slopes *= rng.choice([1.0, 2.0**15, 2.0**30], size=slopes.shape)
    far = 2.0**20 * rng.random(lo.shape)
    lo, hi = lo + far, hi + far
    constant = -(np.where(slopes > 0, lo, hi) * slopes).sum(1) - rng.random(400) * (np.abs(slopes) * (hi - lo)).min(1)
    assert check(lo, hi, slopes, constant, slack) > 100


def test_large_terms_that_leave_a_small_sum() -> None:
    """Neither the sum nor the constant is large, and still the roundings are those of large terms."""
    rng = np.random.default_rng(17)
    lo, hi, slopes, _, slack = lines(rng, 400, 4)
    far = 2.0**40 * (1 + rng.random(400))
    slopes[:, 0] = rng.random(400).astype(np.float32) + 0.5
    slopes[:, 1] = -slopes[:, 0]
    lo[:, 0], lo[:, 1] = lo[:, 0] + far, lo[:, 1] + far
    hi = np.maximum(hi, lo)
    hi[:, 0], hi[:, 1] = lo[:, 0] + 2, lo[:, 1] + 3
    constant = []
    for a, b, m in zip(lo, hi, slopes, strict=True):
        down = sum(
            min(Fraction(s) * Fraction(u), Fraction(s) * Fraction(v)) for s, u, v in zip(m.tolist(), a.tolist(), b.tolist(), strict=True)
        )
        constant.append(float(-down) - float(rng.random()))
    assert check(lo, hi, slopes, np.array(constant), slack) > 100


def test_terms_of_half_an_ulp() -> None:
    """Each term is a tie of the sum so far and is lost, all in one direction: the least of the line is really far lower."""
    rows = []
    for n in (2, 5, 9, 40, 120):
        for sign in (1.0, -1.0):
            slopes = np.full(n, sign)
            slopes[0] = sign
            lo = np.full(n, -(2.0**-53)) if sign > 0 else np.full(n, 0.0)
            hi = np.full(n, 0.0) if sign > 0 else np.full(n, 2.0**-53)
            lo[0], hi[0] = (1.0, 1.0 + n * 2.0**-52) if sign > 0 else (-1.0 - n * 2.0**-52, -1.0)
            rows.append((lo, hi, slopes, -1.0, 0.0))
    for lo, hi, slopes, constant, slack in rows:
        check(lo[None], hi[None], slopes[None], np.array([constant]), np.array([slack]))
    for n in range(2, 12):  # constants and slacks at ties
        lo, hi = np.zeros((1, n)), np.full((1, n), 2.0**-52)
        for slack in (2.0**-53, 3 * 2.0**-53, 2.0**-54):
            check(lo, hi, np.ones((1, n)), np.array([1.0]), np.array([1.0 + slack]))
            check(-hi, -lo, -np.ones((1, n)), np.array([1.0 - slack]), np.array([1.0]))


def test_slack_is_given_away_once() -> None:
    rng = np.random.default_rng(3)
    lo, hi, slopes, constant, _ = lines(rng, 300, 3)
    check(lo, hi, slopes, constant + 0.1, np.full(300, 0.1))
    low, high = cuts.clip(np.array([[0.0]]), np.array([[4.0]]), np.array([[1.0]]), np.array([-1.0]), np.array([1.0]), 0.0)
    assert low[0, 0] == 0 and 2 <= high[0, 0] < 2.0000001  # x - 1 - 1 <= 0


@pytest.mark.parametrize("size", [2.0**-1070, 2.0**-1000, 2.0**-150, 2.0**-60, 2.0**60, 2.0**500, 2.0**1000])
def test_magnitudes(size: float) -> None:
    rng = np.random.default_rng(11)
    lo, hi, slopes, constant, slack = lines(rng, 100, 3)
    check(lo * size, hi * size, slopes, constant * size, slack)
    small = np.where(np.abs(slopes) > 1, slopes * 2.0**-149, slopes)
    check(lo * size, hi * size, small, constant * size, slack)
    check(lo, hi, slopes * size, constant * size, slack)


def test_neighbouring_equal_and_extreme_ends() -> None:
    rng = np.random.default_rng(5)
    base = np.array([0.0, 1.0, -1.0, LEAST, -LEAST, 2.0**-1022, ETA, -ETA, 1e300, -1e300, TOP / 4])
    lo = rng.choice(base, size=(600, 3))
    hi = lo.copy()
    for _ in range(3):
        hi = np.where(rng.random(hi.shape) < 0.6, np.nextafter(hi, np.inf), hi)
    slopes = rng.choice([0.0, -0.0, 1.0, -1.0, 0.1, 3e7, -(2.0**-149), 2.0**-126, 1e38], size=lo.shape)
    with np.errstate(all="ignore"):
        constant = -(slopes * rng.choice([0, 1], size=lo.shape) * lo).sum(1) + rng.choice(
            [0.0, LEAST, -LEAST, 1e-16, -1e-16, 1.0], size=600
        )
    constant = np.nan_to_num(constant)
    check(lo, hi, slopes, constant, rng.choice([0.0, LEAST, 1e-16, 1.0], size=600))
    check(lo, hi, slopes, constant, np.zeros(600), ETA)


def test_a_line_that_is_not_finite_cuts_nothing() -> None:
    lo, hi = np.zeros((1, 3)), np.ones((1, 3))
    for bad in (np.inf, -np.inf, np.nan):
        for where in range(3):
            slopes = np.array([[1.0, -2.0, 0.5]])
            slopes[0, where] = bad
            check(lo, hi, slopes, np.array([5.0]), np.array([0.0]))
        check(lo, hi, np.ones((1, 3)), np.array([bad]), np.array([0.0]))
        if bad != -np.inf:
            check(lo, hi, np.ones((1, 3)), np.array([5.0]), np.array([bad]))
    check(np.full((1, 2), -TOP), np.full((1, 2), TOP), np.full((1, 2), 1e38), np.array([1.0]), np.array([0.0]))
    low, high = cuts.clip(
        np.array([[-np.inf, 0.0]]), np.array([[np.inf, 1.0]]), np.array([[1.0, 1.0]]), np.array([0.0]), np.array([0.0]), 0.0
    )
    assert low[0, 0] == -np.inf and low[0, 1] == 0 and high[0, 1] == 1


def test_ends_cross_where_a_line_is_safe_all_over_the_box() -> None:
    low, high = cuts.clip(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]]), np.array([5.0]), np.array([0.0]), 0.0)
    assert low[0, 0] > high[0, 0]
    assert (low[0, 1], high[0, 1]) == (2.0, 4.0)  # no slope, no cut


def test_what_may_be_flushed_counts_as_zero() -> None:
    """Inputs below the flush are read as they are, or as zero: the line speaks of what is read."""
    tiny = ETA / 2
    for slopes, constant in (((1.0,), 0.0), ((-1.0,), 0.0), ((1.0,), -tiny / 2), ((-1.0,), -tiny / 2), ((1.0,), tiny / 2)):
        for lo, hi in ((tiny / 4, tiny), (-tiny, -tiny / 4), (-tiny, tiny), (tiny, 1.0), (-1.0, -tiny), (0.0, tiny)):
            check(np.array([[lo]]), np.array([[hi]]), np.array([slopes]), np.array([constant]), np.array([0.0]), ETA)
    # another input's flush moves the line, too: here by 3 * tiny
    lo, hi = np.array([[tiny, tiny, tiny, -1.0]]), np.array([[tiny, tiny, tiny, 1.0]])
    check(lo, hi, np.array([[1.0, 1.0, 1.0, 2.0**-100]]), np.array([0.0]), np.array([0.0]), ETA)
    check(
        -lo[:, [0, 1, 2, 3]] * [[1, 1, 1, -1]],
        -lo * [[1, 1, 1, -1]] + [[0, 0, 0, 2.0]],
        np.array([[-1.0, -1, -1, -(2.0**-100)]]),
        np.zeros(1),
        np.zeros(1),
        ETA,
    )


@pytest.mark.parametrize("seed", range(4))
def test_flushed_lines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lo = rng.integers(-4, 4, (300, 3)) * ETA / 4
    hi = lo + rng.integers(0, 5, (300, 3)) * ETA / 4
    slopes = rng.choice([0.0, 1.0, -1.0, 0.5, -3.0, 2.0**-20], size=lo.shape)
    constant = rng.integers(-8, 9, 300) * ETA / 8
    check(lo, hi, slopes, constant, rng.integers(0, 2, 300) * ETA / 4, ETA)


def test_hulls_hold_what_they_are_of() -> None:
    lo, hi = np.array([[0.0, 5.0], [2.0, 1.0], [3.0, 3.0]]), np.array([[1.0, 6.0], [4.0, 2.0], [3.0, 3.0]])
    low, high = cuts.hull(lo, hi, np.array([0, 0, 1]), 2)
    assert low.tolist() == [[0.0, 1.0], [3.0, 3.0]]
    assert high.tolist() == [[4.0, 6.0], [3.0, 3.0]]


PAIRS = [
    (0.0, 0.0), (0.0, LEAST), (LEAST, 2 * LEAST), (-LEAST, LEAST), (3 * LEAST, 5 * LEAST), (5 * LEAST, 7 * LEAST), (1.0, 1.0 + 2.0**-52),
    (1.0 - 2.0**-53, 1.0), (1.0 - 2.0**-53, 1.0 + 2.0**-52), (-TOP, TOP), (TOP / 2, TOP), (math.nextafter(TOP, 0.0), TOP), (-1.0, 1.0),
    (0.1, 0.3), (-3.5, -3.5), (2.0**52, 2.0**52 + 3), (-(2.0**-1022), 2.0**-1022), (1e-300, 1e300),
]  # fmt: skip


def test_a_middle_lies_strictly_between_where_anything_does() -> None:
    lo, hi = (np.array(v) for v in zip(*PAIRS, strict=True))
    for a, b, c in zip(lo, hi, cuts.middle(lo, hi), strict=True):
        assert a <= c <= b
        if math.nextafter(a, math.inf) < b:
            assert a < c < b


def test_halves_are_the_box_and_share_their_cut() -> None:
    rng = np.random.default_rng(0)
    lo, hi = (np.repeat(np.array(v)[:, None], 3, 1) for v in zip(*PAIRS, strict=True))
    axis = rng.integers(0, 3, len(lo))
    low, high = cuts.halves(lo.copy(), hi.copy(), axis)
    n = len(lo)
    assert low.shape == high.shape == (2 * n, 3)
    for k in range(n):
        a = axis[k]
        assert low[k, a] == lo[k, a] and high[n + k, a] == hi[k, a]
        assert high[k, a] == low[n + k, a]  # shared, and closed
        assert lo[k, a] <= high[k, a] <= hi[k, a]
        others = [i for i in range(3) if i != a]
        for half in (k, n + k):
            assert (low[half, others] == lo[k, others]).all() and (high[half, others] == hi[k, others]).all()


def test_the_input_to_cut() -> None:
    lo = np.array([[0.0, 0.0, 1.0], [1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    hi = np.array([[1.0, 4.0, 1.0], [1.0, 2.0, np.nextafter(3.0, 4.0)], [LEAST, 1.0, 2 * LEAST], [1e300, 1.0, 1.0]])
    weight = np.array([[8.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1e9, 1.0, 0.0], [np.inf, 1.0, 1.0]])
    assert cuts.widest_effect(lo, hi, np.nan_to_num(weight)).tolist() == [0, -1, 2, 0]
    assert cuts.widest_effect(lo[:1], hi[:1], np.array([[1.0, 1.0, 9.0]])).tolist() == [1]
    assert cuts.widest_effect(lo[:1], hi[:1], np.zeros((1, 3))).tolist() == [1]


def test_an_input_that_cannot_be_divided_is_never_cut() -> None:
    lo, hi = (np.array(v) for v in zip(*PAIRS, strict=True))
    rng = np.random.default_rng(1)
    for _ in range(50):
        pick = rng.integers(0, len(lo), (20, 4))
        axis = cuts.widest_effect(lo[pick], hi[pick], rng.exponential(size=pick.shape) * rng.choice([0, 1e-320, 1, 1e300], size=pick.shape))
        for k, a in enumerate(axis):
            between = [math.nextafter(lo[i], math.inf) < hi[i] for i in pick[k]]
            assert between[a] if a >= 0 else not any(between)
