"""The interval products against exact integers: whatever choice inside the intervals one makes, its exact result is inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polytriton.kernels.device.interval_products import IntervalConv, interval_conv
from tests.kernels.intervals import (
    BLOCK,
    TYPES,
    UNIT,
    above,
    below,
    choices,
    exact,
    flavours,
    integers,
    intervals,
    numbers,
    rows_in_use,
    run_dense,
    seeds,
    tensors,
    types,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


def in_steps(x: np.ndarray, block: int, dtype: type) -> np.ndarray:
    """x [K, ...], not below zero and in units of 2**-UNIT, and a step more where it is not zero.

    A step is a 62nd of the block's largest at most, which may have been rounded up, or twice the least normal number.
    """
    least, blocks = 2 * exact(float(np.finfo(dtype).tiny)), [x[k : k + block] for k in range(0, len(x), block)]
    return np.concatenate([np.where(b > 0, b + np.maximum(b.max(0) // 62, least), 0) for b in blocks])


def check_products(
    draw: np.random.Generator, lo: np.ndarray, hi: np.ndarray, matrix: np.ndarray, out: tuple[np.ndarray, np.ndarray], block: int
) -> None:
    """lo, hi [R, K]; matrix [K, N] of numbers; out [R, N]. Enclosure of every choice, and no wider than its roundings allow.

    Widths and weights below zero are taken in whole steps, `block` terms at a time: so a product of them is larger by what the steps
    add to its factors.
    """
    weights = integers(matrix)
    for m in choices(draw, lo, hi):
        sums = m.dot(weights)
        for r, n in np.ndindex(*sums.shape):
            assert below(out[0][r, n], sums[r, n]), (r, n)
            assert above(out[1][r, n], sums[r, n]), (r, n)
    low, high, positive = integers(lo), integers(hi), np.where(matrix >= 0, weights, 0)
    least = low.dot(positive) + high.dot(weights - positive)
    most = high.dot(positive) + low.dot(weights - positive)
    size = np.maximum(abs(low), abs(high)).dot(abs(weights))
    info, terms = np.finfo(lo.dtype), lo.shape[1]
    spread = in_steps((high - low).T, block, lo.dtype.type).T.dot(in_steps(positive - weights, block, lo.dtype.type))
    more = spread - (high - low).dot(positive - weights)
    for r, n in np.ndindex(*least.shape):
        if 2 * size[r, n] >= exact(float(info.max)) << UNIT or max(high[r] - low[r]) >= exact(float(info.max)) * 63 // 64:
            continue
        tiny = 127**2 * terms * exact(float(info.smallest_subnormal)) << UNIT  # a step's product, rounded up
        lost = 4 * (terms + 1) * (size[r, n] + more[r, n]) // 2**info.nmant + tiny
        room = 8 * (lost + more[r, n])
        assert above(out[0][r, n], 8 * least[r, n] - room), (r, n)
        assert below(out[1][r, n], 8 * most[r, n] + room), (r, n)


@settings(max_examples=30)
@given(types, st.integers(1, 6), st.integers(1, 12), st.sampled_from([1, 3, 5]), flavours, flavours, seeds)
def test_dense_encloses_every_choice(dtype: type, rows: int, k: int, n: int, of_rows: str, of_weights: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lo, hi = intervals(draw, (rows, k), of_rows, dtype)
    w = numbers(draw, (k, n), of_weights, dtype)
    check_products(draw, lo, hi, w, run_dense(lo, hi, w), BLOCK["BK"])


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_beyond_the_count_are_left_alone(dtype: type) -> None:
    draw = np.random.default_rng(1)
    lo, hi = intervals(draw, (9, 3), "plain", dtype)
    w = numbers(draw, (3, 5), "plain", dtype)
    for used in (0, 1, 5):
        low, high = run_dense(lo, hi, w, used)
        assert (low[used:] == 7).all() and (high[used:] == 7).all()
        check_products(draw, lo[:used], hi[:used], w, (low[:used], high[:used]), BLOCK["BK"])


@pytest.mark.parametrize("dtype", TYPES)
def test_every_rounding_of_a_spread_is_outward(dtype: type) -> None:
    """One coefficient, so that nothing rounds but its width, its product with a weight below zero, and the ends that they make."""
    draw = np.random.default_rng(4)
    rows, columns = 64, 8
    lo = draw.standard_normal((rows, 1)).astype(dtype)
    hi = (lo + draw.random((rows, 1)) * 2.0 ** draw.integers(-3, 3, (rows, 1))).astype(dtype)
    w = -draw.random((1, columns)).astype(dtype)
    check_products(draw, lo, hi, w, run_dense(lo, hi, w), BLOCK["BK"])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [3, 4])
def test_what_is_no_number_bounds_nothing(dtype: type, k: int) -> None:
    """Wherever NaN or infinity stands, no finite end comes out of it unless it encloses every choice that is a number."""
    inf, most, ones = np.inf, np.finfo(dtype).max, np.array([-1], np.int32 if dtype is np.float32 else np.int64)
    nan = (ones & np.iinfo(ones.dtype).max).view(dtype)[0]  # as GPUs make it
    for lo, hi, w in ((nan, 1, 1), (1, nan, 1), (nan, nan, -1), (1, 2, nan), (-inf, 1, -1), (-inf, 1, 0), (0, inf, -2), (-inf, inf, 1),
                      (-most, most, -1), (-most, most, 2), (1, 2, -inf)):  # fmt: skip
        ends, weights = np.ones((2, 2, k), dtype), np.ones((k, 3), dtype)
        ends[:, 0, k - 1], weights[k - 1] = (lo, hi), w
        low, high = run_dense(*ends, weights)
        assert not np.isfinite(low[0]).any() and not (low[0] == inf).any(), (lo, hi, w)
        assert not np.isfinite(high[0]).any() and not (high[0] == -inf).any(), (lo, hi, w)
        assert np.isfinite(low[1]).all() == np.isfinite(w)


@pytest.mark.parametrize("dtype", TYPES)
def test_as_many_steps_as_eight_bits_hold(dtype: type) -> None:
    """Widths and weights next to a power of two and to the last that is 127 steps below it, either side: none becomes 0 of 128."""
    at = np.array([2 - 2.0**-6, 2, 1], dtype)
    near = np.concatenate([np.nextafter(at, dtype(0)), at, np.nextafter(at, dtype(3))])
    hi, w = near[:, None], -near[None]
    draw = np.random.default_rng(5)
    check_products(draw, 0 * hi, hi, w, run_dense(0 * hi, hi, w), BLOCK["BK"])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_width_just_above_whole_steps_is_a_step_more(dtype: type) -> None:
    """[-1, tiny] times -1: its width, to nearest, is 64 steps, and the lower end would be 0."""
    lo, hi = np.full((1, 1), -1, dtype), np.full((1, 1), np.finfo(dtype).eps / 64, dtype)
    low, high = run_dense(lo, hi, lo)
    assert low[0, 0] <= -hi[0, 0] and high[0, 0] >= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sum_of_an_end_and_a_whole_spread_is_rounded_outward(dtype: type) -> None:
    """A point c and an interval of whole steps, so that nothing rounds but -1 - c below and 1 + c above."""
    c = np.finfo(dtype).eps / 64
    w = np.array([[1], [-1]], dtype)
    low, _ = run_dense(np.array([[-c, 0]], dtype), np.array([[-c, 1]], dtype), w)
    _, high = run_dense(np.array([[c, -1]], dtype), np.array([[c, 0]], dtype), w)
    assert low[0, 0] < -1 and high[0, 0] > 1


@pytest.mark.parametrize("dtype", TYPES)
def test_a_spread_too_small_for_a_number_is_the_least(dtype: type) -> None:
    hi = np.full((1, 1), np.finfo(dtype).tiny, dtype)
    low, high = run_dense(0 * hi, hi, -hi)
    assert low[0, 0] < 0 <= high[0, 0]


def test_many_small_terms_after_a_large_one() -> None:
    """weights [1, 0.6*2^-23, ...]: to nearest every addition rounds up; an outward step a product would not make up for them."""
    w = np.full((784, 1), 0.6 * 2.0**-23, np.float32)
    w[0] = 1
    ones = np.ones((1, 784), np.float32)
    total = np.float32(0)
    for v in w[:, 0]:
        total = np.float32(total + v)
    value = 8 * sum(exact(v) for v in w[:, 0].tolist()) << UNIT
    low, high = run_dense(ones, ones, w)
    assert not below(float(total), value)
    assert below(low[0, 0], value)
    assert above(high[0, 0], value)
    assert high[0, 0] - low[0, 0] <= 784 * 2.0**-22


@pytest.mark.parametrize("dtype", TYPES)
def test_the_folded_enclosure_meets_the_interval_one(dtype: type) -> None:
    """Scalar rows: a float64 product give or take gamma_K |M||W| is the folded scheme's enclosure of the same number."""
    draw = np.random.default_rng(2)
    m, w = numbers(draw, (6, 30), "wide", dtype), numbers(draw, (30, 7), "wide", dtype)
    low, high = run_dense(m, m, w)
    wide = (m.astype(np.float64), w.astype(np.float64))
    product, error = wide[0] @ wide[1], 31 * 2.0**-53 * (abs(wide[0]) @ abs(wide[1]))
    assert (low <= product + error).all() and (product - error <= high).all()
    assert (low <= high).all()


@dataclass(frozen=True)
class Shape:
    """A convolution's back-substitution on windows: source and new window, tap geometry, offsets."""

    source: tuple[int, int]
    to: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    lead: tuple[int, int]
    groups: int
    of: tuple[int, int]  # source and new channels of a group

    def constants(self) -> dict[str, int]:
        names = ("H", "W", "HO", "WO", "KH", "KW", "SH", "SW", "DH", "DW", "TOP", "LEFT")
        values = (*self.source, *self.to, *self.kernel, *self.stride, *self.dilation, *self.lead)
        channels = {"G": self.groups, "CO": self.groups * self.of[0], "CI": self.groups * self.of[1]}
        phases = {p: s if d == 1 else 1 for p, s, d in zip(("PH", "PW"), self.stride, self.dilation, strict=True)}
        mask = {"MASK": False, **dict.fromkeys(("IH", "IW", "TO_RH", "TO_OH", "TO_RW", "TO_OW"), 0)}
        return {**dict(zip(names, values, strict=True)), **channels, **phases, **mask}

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """w [CO, CI/G, KH, KW] as the matrix from source cells to new ones: tap (i, j) carries (y, x) to (y SH + i DH, x SW + j DW)."""
        (h, wide), (ho, wo), (co, ci) = self.source, self.to, self.of
        matrix = np.zeros((h, wide, self.groups * co, ho, wo, self.groups * ci), w.dtype)
        for y, x, i, j in np.ndindex(h, wide, *self.kernel):
            to_y = y * self.stride[0] + i * self.dilation[0] - self.lead[0]
            to_x = x * self.stride[1] + j * self.dilation[1] - self.lead[1]
            if 0 <= to_y < ho and 0 <= to_x < wo:
                for g in range(self.groups):
                    of, to = slice(g * co, (g + 1) * co), slice(g * ci, (g + 1) * ci)
                    matrix[y, x, of, to_y, to_x, to] = w[of, :, i, j]
        return matrix.reshape(h * wide * self.groups * co, -1)


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


shapes = st.builds(
    Shape,
    pairs(1, 3),
    pairs(1, 4),
    pairs(1, 3),
    pairs(1, 4),
    pairs(1, 2),
    pairs(-2, 3),
    st.integers(1, 2),
    st.sampled_from([(1, 1), (2, 3), (3, 1)]),
)
GATHER = Shape((2, 3), (3, 1), (2, 2), (1, 2), (1, 1), (0, 1), 1, (17, 3))
SCATTER = Shape((1, 1), (2, 2), (3, 3), (1, 1), (1, 1), (0, 1), 1, (3, 17))
APART = Shape((2, 2), (5, 5), (1, 2), (3, 3), (1, 1), (-1, 0), 1, (1, 1))  # stride above kernel: cells that nothing reaches


def run_conv(
    shape: Shape, lo: np.ndarray, hi: np.ndarray, w: np.ndarray, used: int | None = None, span: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    rows, (ho, wo), channels, known = len(lo), shape.to, shape.of[1], shape.constants()
    out = tensors(*(np.full((rows, ho * wo * shape.groups * channels), 7, lo.dtype) for _ in range(2)))
    ph, pw = known["PH"], known["PW"]
    cells = -(-ho // ph) * -(-wo // pw)
    blocks = -(-max(1, rows) * span // BLOCK["BM"]) * -(-cells // span)
    grid = (blocks * ph * pw, shape.groups * -(-channels // BLOCK["BN"]))
    count, none = rows_in_use(rows if used is None else used), torch.zeros(1, dtype=torch.int64)
    given = (*tensors(lo, hi), none, none, none, *tensors(w.transpose(2, 3, 0, 1)))  # [KH, KW, CO, CI/G]
    interval_conv[grid](*given, *out, count, IntervalConv(T=TYPES[lo.dtype.type], SLOT=False, SPAN=span, **known, **BLOCK))
    return out[0].numpy(), out[1].numpy()


@settings(max_examples=12)
@given(shapes, types, st.integers(1, 5), st.sampled_from([1, 2, 4]), flavours, flavours, seeds)
@example(GATHER, np.float32, 1, 1, "plain", "plain", 0)
@example(SCATTER, np.float64, 2, 2, "cancel", "plain", 0)
@example(APART, np.float32, 5, 4, "subnormal", "wide", 0)
def test_conv_encloses_every_choice(shape: Shape, dtype: type, rows: int, span: int, of_rows: str, of_weights: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    c = shape.constants()
    lo, hi = intervals(draw, (rows, c["H"] * c["W"] * c["CO"]), of_rows, dtype)
    w = numbers(draw, (c["CO"], c["CI"] // c["G"], c["KH"], c["KW"]), of_weights, dtype)
    matrix = shape.matrix(w)
    low, high = run_conv(shape, lo, hi, w, span=span)
    assert (low[:, ~matrix.any(0)] == 0).all()
    check_products(draw, lo, hi, matrix, (low, high), len(matrix))


def test_conv_leaves_rows_beyond_the_count_alone() -> None:
    draw = np.random.default_rng(3)
    lo, hi = intervals(draw, (9, 4), "plain", np.float32)
    w = numbers(draw, (1, 1, 1, 2), "plain", np.float32)
    for used in (0, 3, 4):
        low, high = run_conv(APART, lo, hi, w, used)
        assert (low[used:] == 7).all() and (high[used:] == 7).all()
        check_products(draw, lo[:used], hi[:used], APART.matrix(w), (low[:used], high[:used]), 4)
