"""The interval arithmetic's other steps: single neurons, sums of two branches, scales, candidate bounds.

The invariant is interval.py's: for every reachable x there are m_j in [lo_j, hi_j] and c in [constant_lo, constant_hi] with
target >= sum m_j x_j + c. Rows begin with one coefficient a cell, lo = hi, which is exact. Rows that are one neuron, +x or -x, stay
so through sums, and become a slice of the first layer's weights without a product (start.start_rows).
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import RowPass, WindowSum
from polytriton.kernels.device.directed import (
    add_down,
    add_down_emulated,
    add_up,
    add_up_emulated,
    mul_down,
    mul_down_emulated,
    mul_up,
    mul_up_emulated,
)  # fmt: skip
from polytriton.kernels.device.interval import down_by, plus_lanes_down
from polytriton.kernels.device.numerics import finite_or_worst, position, table_base, taken_rows


@triton.jit
def interval_neurons(
    sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr, count_ptr,
    C: tl.constexpr, START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr, BR: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The constants of rows that are one neuron s x, s = +-1, of an affine node x = W y + b + delta, |delta| <= e.

    The neuron's own s (b + delta) lies in s times its cell of the box [b - e, b + e], whose ends swap for s = -1. Grid: (blocks of
    BR rows).
    """
    count = tl.load(count_ptr)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    live = rows < count
    sign = tl.load(sign_ptr + rows, mask=live, other=0.0)
    channel = tl.load(channel_ptr + rows, mask=live, other=0)
    image = tl.load(image_ptr + rows, mask=live, other=0)
    row_h = tl.load(row_h_ptr + rows, mask=live, other=0)
    row_w = tl.load(row_w_ptr + rows, mask=live, other=0)
    at = table_base(image, row_h, row_w, START, PLANE, PITCH, C, 1, 0, 1, 0) + channel
    least = tl.load(box_lo_ptr + at, mask=live, other=0.0)
    most = tl.load(box_hi_ptr + at, mask=live, other=0.0)
    low = tl.where(sign < 0, most, least) * sign
    high = tl.where(sign < 0, least, most) * sign
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    if INTERPRET:
        low = add_down_emulated(constant_lo, low)
        high = add_up_emulated(constant_hi, high)
    else:
        low = add_down(constant_lo, low)
        high = add_up(constant_hi, high)
    tl.store(constant_lo_ptr + rows, low, mask=live)
    tl.store(constant_hi_ptr + rows, high, mask=live)


@triton.jit
def window_of(
    lo_ptr, hi_ptr, at_row, y, x, channel, row_h, row_w, inside,
    SIGN: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, GAP_RH: tl.constexpr, GAP_H: tl.constexpr,
    GAP_RW: tl.constexpr, GAP_W: tl.constexpr,
):  # fmt: skip
    """SIGN [lo, hi] of rows on windows H x W, seen from another window: cell y there is cell y - row_h GAP_RH + GAP_H here.

    Cells that this window lacks have no coefficient: [0, 0]. The ends of -[lo, hi] swap.
    """
    from_y = y[None, :] - (row_h * GAP_RH)[:, None] + GAP_H
    from_x = x[None, :] - (row_w * GAP_RW)[:, None] + GAP_W
    on = inside & (from_y >= 0) & (from_y < H) & (from_x >= 0) & (from_x < W)
    at = at_row[:, None] * (H * W * C) + (from_y * W + from_x) * C + channel[None, :]
    lo = tl.load(lo_ptr + at, mask=on, other=0.0)
    hi = tl.load(hi_ptr + at, mask=on, other=0.0)
    if SIGN < 0:
        return -1.0 * hi, -1.0 * lo
    else:
        return lo, hi


@dataclass(frozen=True)
class IntervalJoin(WindowSum):
    INTERPRET: bool


@triton.jit
def interval_join(
    a_lo_ptr, a_hi_ptr, a_slot_ptr, b_lo_ptr, b_hi_ptr, b_slot_ptr, row_h_ptr, row_w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    c: tl.constexpr,
):  # fmt: skip
    """out = A_SIGN a + B_SIGN b on the window HO x WO: two branches meet at one node, or (SECOND off) a window becomes another.

    For choices m of a and n of b the sum m + n of a cell lies between RD(lo + lo) and RU(hi + hi). Where one branch has no
    coefficient the other's is added to 0, which is exact. Cells off the new window are dropped: they lie off the image, where
    x is 0 whatever the choice. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows = first + tl.arange(0, c.BR)
    live = rows < count
    row_h = position(row_h_ptr, rows, live, c.A_RH != c.RH or (c.SECOND and c.B_RH != c.RH))
    row_w = position(row_w_ptr, rows, live, c.A_RW != c.RW or (c.SECOND and c.B_RW != c.RW))
    a_row = rows.to(tl.int64)
    if c.A_SLOT:
        a_row = tl.load(a_slot_ptr + rows, mask=live, other=0)
    if c.SECOND:
        b_row = rows.to(tl.int64)
        if c.B_SLOT:
            b_row = tl.load(b_slot_ptr + rows, mask=live, other=0)
    SIZE: tl.constexpr = c.HO * c.WO * c.C
    LINE: tl.constexpr = c.WO * c.C
    for q0 in range(0, SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        low, high = window_of(
            a_lo_ptr, a_hi_ptr, a_row, q // LINE, q % LINE // c.C, q % c.C, row_h, row_w, inside,
            c.A_SIGN, c.C, c.AH, c.AW, c.A_RH - c.RH, c.A_OH - c.OH, c.A_RW - c.RW, c.A_OW - c.OW,
        )  # fmt: skip
        if c.SECOND:
            b_low, b_high = window_of(
                b_lo_ptr, b_hi_ptr, b_row, q // LINE, q % LINE // c.C, q % c.C, row_h, row_w, inside,
                c.B_SIGN, c.C, c.BH, c.BW, c.B_RH - c.RH, c.B_OH - c.OH, c.B_RW - c.RW, c.B_OW - c.OW,
            )  # fmt: skip
            if c.INTERPRET:
                low = add_down_emulated(low, b_low)
                high = add_up_emulated(high, b_high)
            else:
                low = add_down(low, b_low)
                high = add_up(high, b_high)
        to = rows.to(tl.int64)[:, None] * SIZE + q[None, :]
        tl.store(out_lo_ptr + to, low, mask=inside)
        tl.store(out_hi_ptr + to, high, mask=inside)


@dataclass(frozen=True)
class IntervalScale(RowPass):
    INTERPRET: bool


@triton.jit
def interval_scale(lo_m_ptr, hi_m_ptr, slot_ptr, row_h_ptr, row_w_ptr, factor_ptr, out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr):
    """Rows over x = s y become rows over y: m s lies between RD(near s) and RU(far s), near = lo where s >= 0, hi elsewhere.

    `factor` is s as one image's table, the same for all, 0 off the image. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows = first + tl.arange(0, c.BR)
    live = rows < count
    row_h = position(row_h_ptr, rows, live, c.RH != 0)
    row_w = position(row_w_ptr, rows, live, c.RW != 0)
    base = table_base(row_h * 0, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    at_row = rows.to(tl.int64)
    if c.SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        at = (at_row * c.SIZE)[:, None] + q[None, :]
        s = tl.load(factor_ptr + base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :], mask=inside, other=0.0)
        lo = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        hi = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        near = tl.where(s >= 0, lo, hi)
        far = tl.where(s >= 0, hi, lo)
        if c.INTERPRET:
            low = mul_down_emulated(near, s)
            high = mul_up_emulated(far, s)
        else:
            low = mul_down(near, s)
            high = mul_up(far, s)
        to = (rows.to(tl.int64) * c.SIZE)[:, None] + q[None, :]
        tl.store(out_lo_ptr + to, low, mask=inside)
        tl.store(out_hi_ptr + to, high, mask=inside)


@dataclass(frozen=True)
class IntervalCheck(RowPass):
    FIRST: bool
    LAST: bool
    INTERPRET: bool


@triton.jit
def interval_check(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr, value_ptr,
    raw_ptr, index_ptr, results, limit_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Adds one frontier node to the rows' bounds; the LAST one settles them.

    value = constant_lo + sum over nodes and cells of the least m x, m in [a, b], x in the box: by the invariant the target is not
    below it. Rounded down throughout, from node to node too; a value that is not finite becomes -inf, "no bound".
    raw, which no verdict is made of, takes every interval at its better end: constant_hi + sum of the greatest, over m, of the
    least m x. What lies between value and raw is what roundings may have cost.
    Where the best bound so far exceeds the limit (0, the number just below it, or infinity: never), the row's group is done.
    """
    group_ptr, best_ptr, raw_best_ptr, done_ptr = results
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    better = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        at = (at_row * c.SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        least = tl.load(box_lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        most = tl.load(box_hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        low = down_by(a, b, least, most, low, c.INTERPRET)
        ends = tl.maximum(a * tl.where(a >= 0, least, most), b * tl.where(b >= 0, least, most))
        better += tl.where((a < 0) & (b > 0), tl.maximum(ends, 0.0), ends)
    if c.FIRST:
        value = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
        raw = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    else:
        value = tl.load(value_ptr + rows, mask=live, other=0.0)
        raw = tl.load(raw_ptr + rows, mask=live, other=0.0)
    value = plus_lanes_down(value, low, min(c.BQ, c.SIZE), c.INTERPRET)
    raw += tl.sum(better, 1)
    if c.LAST:
        value = finite_or_worst(value)
        raw = finite_or_worst(raw)
        index = tl.load(index_ptr + rows, mask=live, other=0)
        best = tl.maximum(tl.load(best_ptr + index, mask=live, other=0.0), value)
        tl.store(best_ptr + index, best, mask=live)
        tl.store(raw_best_ptr + index, tl.maximum(tl.load(raw_best_ptr + index, mask=live, other=0.0), raw), mask=live)
        group = tl.load(group_ptr + index, mask=live, other=0)
        tl.store(done_ptr + group, tl.full((c.BR,), 1, tl.int8), mask=live & (best > tl.load(limit_ptr)))
    else:
        tl.store(value_ptr + rows, value, mask=live)
        tl.store(raw_ptr + rows, raw, mask=live)
