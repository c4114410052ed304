"""The interval passes over rows: the ReLU keeps the invariant, the value is the best corner, NaN stays NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.kernels.device.interval import IntervalConcretize, IntervalRelax, interval_concretize, interval_relax
from tests.kernels.intervals import (
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
EVERY = torch.zeros(1, dtype=torch.int64)  # no slots
ROW_BLOCK = {"BR": 2, "BQ": 16, "INTERPRET": True}
Tables = Callable[[np.random.Generator, tuple[int, ...]], list[np.ndarray]]


@dataclass(frozen=True)
class Frame:
    """Tables of a node [images, h, w, c] with a margin, and windows on them at row*stride - offset."""

    image: tuple[int, int]
    channels: int
    margin: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    offset: tuple[int, int]
    images: int = 2

    @property
    def padded(self) -> tuple[int, int]:
        return self.image[0] + 2 * self.margin[0], self.image[1] + 2 * self.margin[1]

    @property
    def size(self) -> int:
        return self.window[0] * self.window[1] * self.channels

    def constants(self) -> dict[str, int]:
        pitch = self.padded[1] * self.channels
        (top, left), (rh, rw), (oh, ow) = self.margin, self.stride, self.offset
        start, plane, line = top * pitch + left * self.channels, self.padded[0] * pitch, self.window[1] * self.channels
        own = {"SIZE": self.size, "LINE": line, "C": self.channels, "START": start, "PLANE": plane, "PITCH": pitch}
        return {**own, "RH": rh, "OH": oh, "RW": rw, "OW": ow}

    def positions(self, draw: np.random.Generator, rows: int) -> np.ndarray:
        """[3, rows]: images and positions whose windows lie inside the margin."""
        places = []
        for axis in (0, 1):
            stride, lead, last = self.stride[axis], self.margin[axis] - self.offset[axis], self.padded[axis] - self.window[axis]
            places.append(draw.choice([p for p in range(20) if 0 <= p * stride + lead <= last], rows))
        return np.stack([draw.integers(0, self.images, rows), *places]).astype(np.int64)

    def seen(self, table: np.ndarray, at: np.ndarray) -> np.ndarray:
        """[rows, size]: each row's window of a table [images, padded h, padded w, channels]."""
        out = np.empty((at.shape[1], self.size), table.dtype)
        for r, (image, row_h, row_w) in enumerate(at.T):
            y = row_h * self.stride[0] - self.offset[0] + self.margin[0]
            x = row_w * self.stride[1] - self.offset[1] + self.margin[1]
            out[r] = table[image, y : y + self.window[0], x : x + self.window[1]].ravel()
        return out

    def tables(self, draw: np.random.Generator, make: Tables) -> list[np.ndarray]:
        """Tables that are zero in the margin: cells off the image carry nothing."""
        (h, w), (top, left) = self.image, self.margin
        made = make(draw, (self.images, h, w, self.channels))
        padding = ((0, 0), (top, top), (left, left), (0, 0))
        return [np.pad(t, padding) for t in made]


FRAMES = [
    Frame((1, 1), 1, (0, 0), (1, 1), (1, 1), (0, 0)),
    Frame((4, 3), 3, (1, 2), (2, 3), (2, 1), (1, 2)),
    Frame((2, 3), 17, (1, 0), (4, 1), (0, 2), (1, 0)),  # a window larger than the image, one-sided offsets
    Frame((1, 9), 3, (0, 0), (1, 9), (0, 0), (0, 0)),  # a whole image
]
frames = st.sampled_from(FRAMES)


def boxes(draw: np.random.Generator, shape: tuple[int, ...], flavour: str, dtype: type) -> list[np.ndarray]:
    ends = [numbers(draw, shape, flavour, dtype) for _ in range(2)]
    return [np.minimum(*ends), np.maximum(*ends)]


def run_concretize(
    frame: Frame, lo: np.ndarray, hi: np.ndarray, at: np.ndarray, box: list[np.ndarray], constant: np.ndarray, used: int | None = None
) -> np.ndarray:
    rows = lo.shape[0]
    values = [torch.full((rows,), 7.0, dtype=torch.float64) for _ in range(2)]
    count = rows_in_use(rows if used is None else used)
    grid = (max(1, -(-rows // ROW_BLOCK["BR"])),)
    given = (*tensors(lo, hi), EVERY, *tensors(*at, *box, *constant))
    interval_concretize[grid](*given, *values, count, IntervalConcretize(SLOT=False, **frame.constants(), **ROW_BLOCK))
    return np.stack([v.numpy() for v in values])


def constants_of(draw: np.random.Generator, rows: int) -> np.ndarray:
    lo = draw.standard_normal(rows)
    return np.stack([lo, np.maximum(lo, draw.standard_normal(rows))])


@settings(max_examples=40)
@given(frames, types, st.integers(1, 5), flavours, flavours, st.booleans(), seeds)
def test_concretize_is_the_best_corner_rounded_outward(
    frame: Frame, dtype: type, rows: int, of_rows: str, of_box: str, wide_box: bool, seed: int
) -> None:
    """wide_box: float64 boxes under float32 rows, as for a bias."""
    draw = np.random.default_rng(seed)
    lo, hi = intervals(draw, (rows, frame.size), of_rows, dtype)
    box = frame.tables(draw, lambda d, s: boxes(d, s, of_box, np.float64 if wide_box else dtype))
    at, constant = frame.positions(draw, rows), constants_of(draw, rows)
    value = run_concretize(frame, lo, hi, at, box, constant)
    ends = [integers(lo), integers(hi)]
    corners = np.stack([m * v for m in ends for v in (integers(frame.seen(t, at)) for t in box)])
    shift = 2**UNIT
    least = corners.min(0).sum(1) + integers(constant[0]) * shift
    most = corners.max(0).sum(1) + integers(constant[1]) * shift
    size = abs(corners).max(0).sum(1) + abs(integers(constant)).max(0) * shift
    for r in range(rows):
        overflows = 2 * size[r] >= exact(float(np.finfo(np.float64).max)) * shift
        assert below(value[0, r], 8 * least[r]) or (overflows and np.isnan(value[0, r]))
        assert above(value[1, r], 8 * most[r]) or (overflows and np.isnan(value[1, r]))
        if not overflows:
            room = 8 * (64 + 2 * frame.size) * (size[r] // 2**52 + shift)
            assert above(value[0, r], 8 * least[r] - room) and below(value[1, r], 8 * most[r] + room)


@dataclass
class Relaxed:
    lo: np.ndarray
    hi: np.ndarray
    constant: np.ndarray


def run_relax(
    frame: Frame, lo: np.ndarray, hi: np.ndarray, at: np.ndarray, lines: list[np.ndarray], constant: np.ndarray, used: int | None = None
) -> Relaxed:
    """lines: below, above, cut, and the box of the ReLU's result."""
    rows = lo.shape[0]
    paid, out = tensors(*constant.copy()), tensors(np.full_like(lo, 7), np.full_like(lo, 7))
    count = rows_in_use(rows if used is None else used)
    grid = (max(1, -(-rows // ROW_BLOCK["BR"])),)
    below, above, cut, *box = lines
    tables = tensors(below, above, cut, cut, *box)  # the lower line has no cut: its table is not read
    given = (*tensors(lo, hi), EVERY, *tensors(*at), *tables, *paid, *out)
    interval_relax[grid](*given, count, IntervalRelax(SLOT=False, LOWER=False, **frame.constants(), **ROW_BLOCK))
    return Relaxed(out[0].numpy(), out[1].numpy(), np.stack([p.numpy() for p in paid]))


def relu_tables(draw: np.random.Generator, shape: tuple[int, ...], flavour: str, dtype: type) -> list[np.ndarray]:
    """Boxes of y, then lines that hold on them: the lower slope 0 or 1, the chord's intercept rounded well up; the box of relu(y)."""
    l, u = boxes(draw, shape, flavour, dtype)
    wide = [x.astype(np.float64) / 2 for x in (l, u)]  # halves: their difference does not overflow
    chord = wide[1] / np.maximum(wide[1] - wide[0], np.finfo(np.float64).tiny)
    above = np.where(l >= 0, 1.0, np.where(u <= 0, 0.0, np.clip(chord, 0, 1))).astype(dtype)
    steep = np.where(l >= 0, 1, np.where(u <= 0, 0, draw.integers(0, 2, shape))).astype(dtype)
    exact_cut = np.maximum(-above.astype(np.float64) * wide[0], (1 - above.astype(np.float64)) * wide[1]) * 2
    cut = np.minimum(exact_cut * (1 + 1e-6) + float(np.finfo(dtype).smallest_subnormal), float(np.finfo(dtype).max))
    cut = np.where((l >= 0) | (u <= 0), 0.0, cut).astype(dtype)
    return [l, u, steep, above, cut, np.maximum(l, dtype(0)), np.maximum(u, dtype(0))]


@settings(max_examples=40)
@given(frames, types, st.integers(1, 5), flavours, st.sampled_from(["plain", "wide", "subnormal", "huge"]), seeds)
def test_relax_keeps_the_invariant(frame: Frame, dtype: type, rows: int, of_rows: str, of_box: str, seed: int) -> None:
    """For choices m, c of the old rows and points y: sum m relu(y) + c is not below what the new rows promise."""
    draw = np.random.default_rng(seed)
    lo, hi = intervals(draw, (rows, frame.size), of_rows, dtype)
    tables = frame.tables(draw, lambda d, s: relu_tables(d, s, of_box, dtype))
    at, constant = frame.positions(draw, rows), constants_of(draw, rows)
    new = run_relax(frame, lo, hi, at, tables[2:], constant)
    seen = [integers(frame.seen(t, at)) for t in tables]
    slope_low, slope_high, cut = seen[2:5]
    shift, old = 2**UNIT, integers(constant)
    size = (np.maximum(abs(integers(lo)), abs(integers(hi))) * (cut + seen[5] + seen[6])).sum(1)
    overflows = 2 * size >= exact(float(np.finfo(np.float64).max)) * shift
    finite = np.isfinite(new.lo).all() and np.isfinite(new.hi).all()
    assert not np.isnan(new.lo).any() and not np.isnan(new.hi).any()
    mixed = (lo < 0) & (hi > 0)
    assert (new.lo[mixed] == 0).all() and (new.hi[mixed] == 0).all()
    for m in choices(draw, lo, hi):
        for point in choices(draw, frame.seen(tables[0], at), frame.seen(tables[1], at)):
            value = m * np.maximum(point, 0)  # in units of 1/64 of a product
            for r in range(rows):
                # the new coefficients hold the choice times its line's slope, the constant the rest of the line
                line = np.where(mixed[r], 0, np.where(m[r] >= 0, m[r] * slope_low[r], m[r] * slope_high[r]))
                for q in range(frame.size):
                    assert below(new.lo[r, q], line[q]) and above(new.hi[r, q], line[q])
                rest = 8 * np.where(m[r] < 0, m[r] * cut[r], 0)
                rest = np.where(mixed[r], value[r], rest).sum()
                low, high = new.constant[:, r]
                assert below(low, rest // 8 + 8 * old[0, r] * shift) or (overflows[r] and np.isnan(low))
                assert above(high, -(-rest // 8) + 8 * old[1, r] * shift) or (overflows[r] and np.isnan(high))
        if finite:  # the promise itself, at the last point
            low, high = integers(new.lo), integers(new.hi)
            for r in range(rows):
                promise = np.minimum(low[r] * point[r], high[r] * point[r]).sum() * 8
                if math.isfinite(new.constant[0, r]):
                    promise += 64 * exact(new.constant[0, r]) * shift
                    assert promise <= value[r].sum() + 64 * old[0, r] * shift


@pytest.mark.parametrize("dtype", TYPES)
def test_relax_of_scalar_rows_costs_only_roundings(dtype: type) -> None:
    draw, frame = np.random.default_rng(4), FRAMES[1]
    m = numbers(draw, (5, frame.size), "plain", dtype)
    tables = frame.tables(draw, lambda d, s: relu_tables(d, s, "plain", dtype))
    at, constant = frame.positions(draw, 5), constants_of(draw, 5)
    new = run_relax(frame, m, m, at, tables[2:], constant)
    slope_low, slope_high, cut = (frame.seen(t, at).astype(np.float64) for t in tables[2:5])
    lines = m * np.where(m >= 0, slope_low, slope_high)
    np.testing.assert_allclose(new.lo, lines, rtol=2 * np.finfo(dtype).eps, atol=0)
    np.testing.assert_allclose(new.hi, lines, rtol=2 * np.finfo(dtype).eps, atol=0)
    np.testing.assert_allclose(new.constant, constant + np.where(m < 0, m * cut, 0).sum(1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_row_passes_leave_rows_beyond_the_count_alone(used: int) -> None:
    draw, frame = np.random.default_rng(5), FRAMES[1]
    lo, hi = intervals(draw, (5, frame.size), "plain", np.float32)
    tables = frame.tables(draw, lambda d, s: relu_tables(d, s, "plain", np.float32))
    at, constant = frame.positions(draw, 5), constants_of(draw, 5)
    new = run_relax(frame, lo, hi, at, tables[2:], constant, used)
    assert (new.lo[used:] == 7).all() and (new.hi[used:] == 7).all() and (new.constant[:, used:] == constant[:, used:]).all()
    assert (new.lo[:used] != 7).all()
    value = run_concretize(frame, lo, hi, at, tables[:2], constant, used)
    assert (value[:, used:] == 7).all() and (value[:, :used] != 7).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("place", ["lo", "hi", "below", "above", "cut", "least", "most"])
def test_nan_reaches_the_constant(dtype: type, place: str) -> None:
    draw, frame = np.random.default_rng(6), FRAMES[3]
    lo, hi = intervals(draw, (4, frame.size), "plain", dtype)
    tables = frame.tables(draw, lambda d, s: relu_tables(d, s, "plain", dtype))
    at, constant = frame.positions(draw, 4), constants_of(draw, 4)
    for cell in (0, 4, frame.size - 1):
        rows = {"lo": lo.copy(), "hi": hi.copy()}
        lines = dict(zip(("below", "above", "cut", "least", "most"), (t.copy() for t in tables[2:]), strict=True))
        if place in rows:
            rows[place][:, cell] = np.nan
        else:
            lines[place].reshape(frame.images, -1)[:, cell] = np.nan
        new = run_relax(frame, rows["lo"], rows["hi"], at, list(lines.values()), constant)
        assert np.isnan(new.constant).all()
        if place in rows:
            assert np.isnan(run_concretize(frame, rows["lo"], rows["hi"], at, tables[:2], constant)).all()
        if place in ("least", "most"):
            value = run_concretize(frame, lo, hi, at, [lines["least"], lines["most"]], constant)
            used = (hi[:, cell] >= 0) | (lo[:, cell] < 0)
            assert np.isnan(value).any(0)[used].all()


@pytest.mark.parametrize("dtype", TYPES)
def test_nan_goes_through_a_product_into_the_value(dtype: type) -> None:
    draw, frame = np.random.default_rng(7), Frame((1, 1), 5, (0, 0), (1, 1), (1, 1), (0, 0), images=1)
    lo, hi = intervals(draw, (3, 6), "plain", dtype)
    w = numbers(draw, (6, 5), "plain", dtype)
    box = frame.tables(draw, lambda d, s: boxes(d, s, "plain", dtype))
    for place in ("lo", "hi", "weight"):
        given = {"lo": lo.copy(), "hi": hi.copy(), "weight": w.copy()}
        given[place][(1, 2) if place != "weight" else (2, 3)] = np.nan
        low, high = run_dense(given["lo"], given["hi"], given["weight"])
        value = run_concretize(frame, low, high, np.zeros((3, 3), np.int64), box, np.zeros((2, 3)))
        expected = [place == "weight", True, place == "weight"]
        assert np.isnan(value).tolist() == [expected, expected]


@pytest.mark.parametrize(("dtype", "power"), [(np.float32, 27), (np.float64, 56)])
def test_a_large_weight_that_cancels(dtype: type, power: int) -> None:
    """relu([B, 1, -B] x + 2) at x = (1, [0, 1], 1): 3 at x = (1, 1, 1), where sums to nearest answer less."""
    b, one = 2.0**power, np.ones((1, 1), dtype)
    y = Frame((1, 1), 1, (0, 0), (1, 1), (1, 1), (0, 0), images=1)
    x = Frame((1, 1), 3, (0, 0), (1, 1), (1, 1), (0, 0), images=1)
    at, w = np.zeros((3, 1), np.int64), np.array([[b, 1, -b]], dtype)

    def table(*values: float) -> np.ndarray:
        return np.array(values, dtype).reshape(1, 1, 1, -1)

    lines = [table(1), table(1), table(0), table(2), table(3)]
    bounds = []
    for sign in (1, -1):  # the ReLU's least value, then minus its greatest
        new = run_relax(y, sign * one, sign * one, at, lines, np.zeros((2, 1)))
        constant = run_concretize(y, new.lo, new.hi, at, [table(2).astype(np.float64)] * 2, new.constant)
        low, high = run_dense(new.lo, new.hi, w)
        bounds.append(run_concretize(x, low, high, at, [table(1, 0, 1), table(1, 1, 1)], constant)[0, 0])
    assert bounds[0] <= 2 and -bounds[1] >= 3
    room = 80 * b * 2.0**-53  # adding 16 lanes to nearest is charged by their size
    assert bounds[0] >= 2 - room and -bounds[1] <= 3 + room
