"""The interval arithmetic's other steps, one kernel at a time, against exact integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.kernels.device.interval_steps import (
    IntervalCheck,
    IntervalJoin,
    IntervalScale,
    interval_check,
    interval_join,
    interval_neurons,
    interval_scale,
)  # fmt: skip
from tests.kernels.intervals import (
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
    seeds,
    tensors,
    types,
)
from tests.kernels.test_interval_rows import EVERY, FRAMES, Frame, boxes, constants_of, frames

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
BLOCK = {"BR": 2, "BQ": 16, "INTERPRET": True}
SIGNS = st.sampled_from([1, -1])


def window(draw: np.random.Generator) -> tuple[int, int, int, int, int, int]:
    """Height, width, and per axis how a row's position moves it."""
    h, w, rh, rw, oh, ow = (int(draw.integers(a, b)) for a, b in ((1, 4), (1, 4), (0, 3), (0, 3), (-1, 2), (-1, 2)))
    return h, w, rh, rw, oh, ow


def seen_from(part: np.ndarray, own: tuple[int, ...], to: tuple[int, ...], at: np.ndarray) -> np.ndarray:
    """Rows' windows `own` of exact numbers [rows, h, w, c] on the windows `to`: cell (row_h rh - oh + y) of the image is the same cell."""
    out = np.zeros((len(part), to[0], to[1], part.shape[3]), dtype=object)
    for r, y, x in np.ndindex(len(part), to[0], to[1]):
        from_y = at[0, r] * to[2] - to[4] + y - (at[0, r] * own[2] - own[4])
        from_x = at[1, r] * to[3] - to[5] + x - (at[1, r] * own[3] - own[5])
        if 0 <= from_y < own[0] and 0 <= from_x < own[1]:
            out[r, y, x] = part[r, from_y, from_x]
    return out


def place(prefix: str, own: tuple[int, ...], names: tuple[str, str]) -> dict[str, int]:
    return {names[0]: own[0], names[1]: own[1], f"{prefix}RH": own[2], f"{prefix}RW": own[3], f"{prefix}OH": own[4], f"{prefix}OW": own[5]}


@settings(max_examples=40, deadline=None)
@given(types, st.integers(1, 5), st.integers(1, 3), flavours, flavours, SIGNS, SIGNS, st.booleans(), seeds)
def test_a_join_holds_every_sum(
    dtype: type, rows: int, c: int, of_a: str, of_b: str, a_sign: int, b_sign: int, second: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    a_at, b_at, to = window(draw), window(draw), window(draw)
    at = draw.integers(0, 3, (2, rows))
    a, b = (intervals(draw, (rows, w[0], w[1], c), of, dtype) for w, of in ((a_at, of_a), (b_at, of_b)))
    slot = draw.permutation(rows)
    size = to[0] * to[1] * c
    out = tensors(*(np.full((rows, size), 7, dtype) for _ in range(2)))
    stored = [v[np.argsort(slot)] for v in a]  # row r of a lies at slot[r]
    constants = {
        "SECOND": second, "A_SLOT": True, "B_SLOT": False, "A_SIGN": a_sign, "B_SIGN": b_sign, "C": c,
        **place("", to, ("HO", "WO")), **place("A_", a_at, ("AH", "AW")), **place("B_", b_at, ("BH", "BW")),
    }  # fmt: skip
    given_ = (*tensors(*stored, slot.astype(np.int64), *b), EVERY, *tensors(*at.astype(np.int64)))
    interval_join[(-(-rows // 2),)](*given_, *out, rows_in_use(rows), IntervalJoin(**constants, **BLOCK))
    low, high = (v.numpy().reshape(rows, to[0], to[1], c) for v in out)
    for m, n in zip(choices(draw, *a), choices(draw, *b), strict=True):
        total = a_sign * seen_from(m, a_at, to, at) + second * b_sign * seen_from(n, b_at, to, at)
        for cell in np.ndindex(low.shape):
            assert below(low[cell], total[cell] << UNIT) and above(high[cell], total[cell] << UNIT)
    parts = [(a, a_at, a_sign), (b, b_at, b_sign)][: 1 + second]
    ends = [[sign * seen_from(integers(v), own, to, at) for v in part][::sign] for part, own, sign in parts]
    for k, (got, inward) in enumerate(((low, np.inf), (high, -np.inf))):
        total, nearer = sum(e[k] for e in ends), np.nextafter(got, dtype(inward))
        for cell in np.ndindex(got.shape):  # the nearest number that will do
            if np.isfinite(got[cell]) and np.isfinite(nearer[cell]):
                assert (1 - 2 * k) * (exact(float(nearer[cell])) - total[cell]) > 0 or exact(float(got[cell])) == total[cell]


@settings(max_examples=30, deadline=None)
@given(frames, types, st.integers(1, 4), flavours, flavours, seeds)
def test_a_scale_holds_every_product(frame: Frame, dtype: type, rows: int, of_rows: str, of_scale: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lo, hi = intervals(draw, (rows, frame.size), of_rows, dtype)
    (factor,) = frame.tables(draw, lambda d, s: [numbers(d, s, of_scale, dtype)])
    at = frame.positions(draw, rows)
    at[0] = 0
    out = tensors(np.full_like(lo, 7), np.full_like(lo, 7))
    given_ = (*tensors(lo, hi), EVERY, *tensors(*at[1:], factor[:1]))
    interval_scale[(-(-rows // 2),)](*given_, *out, rows_in_use(rows), IntervalScale(SLOT=False, **frame.constants(), **BLOCK))
    low, high = (v.numpy() for v in out)
    scale = integers(frame.seen(factor, at))
    for m in choices(draw, lo, hi):
        for cell in np.ndindex(lo.shape):
            assert below(low[cell], m[cell] * scale[cell]) and above(high[cell], m[cell] * scale[cell])
    size = np.maximum(abs(integers(lo)), abs(integers(hi))) * abs(scale)
    info = np.finfo(dtype)
    for cell in np.ndindex(lo.shape):
        room = 8 * (2 * size[cell] // 2**info.nmant + (2 * exact(float(info.smallest_subnormal)) << UNIT))
        if 2 * size[cell] < exact(float(info.max)) << UNIT:
            ends = sorted((8 * integers(lo)[cell] * scale[cell], 8 * integers(hi)[cell] * scale[cell]))
            assert above(low[cell], ends[0] - room) and below(high[cell], ends[1] + room)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), flavours, seeds)
def test_single_neurons_take_their_own_constant(rows: int, flavour: str, seed: int) -> None:
    draw, frame = np.random.default_rng(seed), FRAMES[1]
    box = frame.tables(draw, lambda d, s: boxes(d, s, flavour, np.float64))
    (h, w), images = frame.image, frame.images
    at = np.stack([draw.integers(0, images, rows), draw.integers(0, h, rows), draw.integers(0, w, rows)])
    channel, sign = draw.integers(0, frame.channels, rows), draw.choice([1.0, -1.0], rows)
    constant = constants_of(draw, rows)
    paid = tensors(*constant.copy())
    known = {k: v for k, v in frame.constants().items() if k in ("C", "START", "PLANE", "PITCH")}
    interval_neurons[(1,)](*tensors(sign, channel, *at, *box), *paid, rows_in_use(rows), **known, BR=16, INTERPRET=True)
    for r in range(rows):
        cell = tuple(at[:, r] + np.array([0, *frame.margin])) + (channel[r],)
        ends = sorted(int(sign[r]) * exact(float(t[cell])) for t in box)
        old = [exact(v) for v in constant[:, r]]
        for got, value, outside in ((paid[0][r], old[0] + ends[0], below), (paid[1][r], old[1] + ends[1], above)):
            assert outside(float(got), 8 * value << UNIT)
            step = 8 * (abs(value) // 2**51 + 2) << UNIT
            near = above(float(got), (8 * value << UNIT) - step) and below(float(got), (8 * value << UNIT) + step)
            assert near or abs(value) > exact(1e308)


@settings(max_examples=30, deadline=None)
@given(frames, types, st.integers(1, 4), flavours, st.sampled_from(["plain", "wide", "subnormal"]), seeds)
def test_a_candidate_is_the_least_value_and_settles_groups(
    frame: Frame, dtype: type, rows: int, of_rows: str, of_box: str, seed: int
) -> None:
    """Two nodes of the frontier, one after the other; of a row's groups those whose best bound passes the limit are done."""
    draw = np.random.default_rng(seed)
    lo, hi = intervals(draw, (rows, frame.size), of_rows, dtype)
    box = frame.tables(draw, lambda d, s: boxes(d, s, of_box, np.float64))
    at, constant = frame.positions(draw, rows), constants_of(draw, rows)
    value, raw, best, raw_best = (torch.full((rows,), v, dtype=torch.float64) for v in (7.0, 7.0, -np.inf, -np.inf))
    index, group, done = torch.arange(rows), torch.arange(rows) // 2, torch.zeros(rows, dtype=torch.int8)
    limit = torch.zeros(1, dtype=torch.float64)
    found = (value, raw, index, (group, best, raw_best, done), limit)
    given_ = (*tensors(lo, hi), EVERY, *tensors(*at, *box, *constant), *found, rows_in_use(rows))
    for first, last in ((True, False), (False, True)):
        interval_check[(-(-rows // 2),)](*given_, IntervalCheck(SLOT=False, FIRST=first, LAST=last, **frame.constants(), **BLOCK))
    corners = np.stack([m * v for m in (integers(lo), integers(hi)) for v in (integers(frame.seen(t, at)) for t in box)])
    shift = 2**UNIT
    least = 2 * corners.min(0).sum(1) + integers(constant[0]) * shift
    size = 2 * abs(corners).max(0).sum(1) + abs(integers(constant)).max(0) * shift
    for r in range(rows):
        got = float(best[r])
        assert below(got, 8 * least[r])
        if 4 * size[r] < exact(float(np.finfo(np.float64).max)) * shift:
            assert above(got, 8 * (least[r] - (128 + 4 * frame.size) * (size[r] // 2**52 + shift)))
            assert got <= float(raw_best[r]) or np.isclose(got, float(raw_best[r]), rtol=1e-9)
        assert bool(done[group[r]]) == bool((best[group == group[r]] > 0).any())


@pytest.mark.parametrize("place", ["lo", "hi", "box"])
def test_what_is_no_number_is_no_bound(place: str) -> None:
    draw, frame = np.random.default_rng(2), FRAMES[3]
    lo, hi = intervals(draw, (2, frame.size), "plain", np.float64)
    box = frame.tables(draw, lambda d, s: boxes(d, s, "plain", np.float64))
    {"lo": lo, "hi": hi, "box": box[0].reshape(frame.images, -1)}[place][:, 4] = np.nan
    if place == "box":
        box[1].reshape(frame.images, -1)[:, 4] = np.nan
    at, constant = frame.positions(draw, 2), constants_of(draw, 2)
    arrays = [torch.full((2,), v, dtype=torch.float64) for v in (0.0, 0.0, -np.inf, -np.inf)]
    done, limit = torch.zeros(2, dtype=torch.int8), torch.full((1,), -1e9, dtype=torch.float64)
    results = (torch.arange(2), *arrays[2:], done)
    given_ = (*tensors(lo, hi), EVERY, *tensors(*at, *box, *constant), *arrays[:2], torch.arange(2), results, limit, rows_in_use(2))
    interval_check[(1,)](*given_, IntervalCheck(SLOT=False, FIRST=True, LAST=True, **frame.constants(), **BLOCK))
    assert (arrays[2] == -np.inf).all() and not done.any()
