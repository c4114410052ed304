"""Coefficient intervals that move: a max pool's go to the winning cells or into the constant, a gather's to the cells it read.

The invariant is interval.py's. Where several meet in a cell their lower ends are added rounded down and their upper ends rounded up,
one after the other from zero: whatever is chosen from each, its sum lies between. The first is added to zero, which rounds nothing.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import MovingWindow, TableLayout, Taps
from polytriton.kernels.device.directed import add_down, add_down_emulated, add_up, add_up_emulated
from polytriton.kernels.device.interval import down_by, plus_lanes_down, plus_lanes_up, up_by
from polytriton.kernels.device.numerics import table_base, taken_rows


@dataclass(frozen=True)
class IntervalPool(MovingWindow, TableLayout, Taps):
    """From [H, W, C] to [HO, WO, C]: a cell meets windows of PH x PW phases."""

    T: tl.dtype
    SLOT: bool
    H: int
    W: int
    C: int
    HO: int
    WO: int
    PH: int
    PW: int
    BR: int
    BQ: int
    INTERPRET: bool


@triton.jit
def add_ends(low, high, a, b, INTERPRET: tl.constexpr):
    """[low, high] + [a, b], rounded outward."""
    if INTERPRET:
        return add_down_emulated(low, a), add_up_emulated(high, b)
    else:
        return add_down(low, a), add_up(high, b)


@triton.jit
def pool_constants(
    lo_m_ptr, hi_m_ptr, at_row, base, winner_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr, rows, live,
    SIZE: tl.constexpr, LINE: tl.constexpr, c: tl.constexpr,
):  # fmt: skip
    """What rows keep of a pool whose winner does not take their coefficients; see interval_pool."""
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    high = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        at = (at_row * SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // LINE) * c.PITCH + q % LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        winner = tl.load(winner_ptr + where, mask=inside, other=0)
        least = tl.load(box_lo_ptr + where, mask=inside, other=0.0)
        most = tl.load(box_hi_ptr + where, mask=inside, other=0.0)
        goes = (a >= 0) | (winner % 2 == 1)
        least = tl.where(goes, 0.0, tl.where(b <= 0, most, least))
        most = tl.where(goes, 0.0, most)
        low = down_by(a.to(tl.float64), b.to(tl.float64), least, most, low, c.INTERPRET)
        high = up_by(a.to(tl.float64), b.to(tl.float64), least, most, high, c.INTERPRET)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    tl.store(constant_lo_ptr + rows, plus_lanes_down(constant_lo, low, min(c.BQ, SIZE), c.INTERPRET), mask=live)
    tl.store(constant_hi_ptr + rows, plus_lanes_up(constant_hi, high, min(c.BQ, SIZE), c.INTERPRET), mask=live)


@triton.jit
def interval_pool(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, winner_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr,
    out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows on windows [H, W, C] over p, a max pool's output, become rows on windows [HO, WO, C] over its input.

    winner = 2 (tap + 1) + sure, as in maxpool.pool_rows: a tap x_w on the image, and whether p = x_w for certain; 0 off the image,
    where p is 0. Take a reachable input and the choice m, c that the invariant gives; [a, b] is the coefficient interval of a cell.
        sure        m p = m x_w: [a, b] moves to the winner.
        a >= 0      m p >= m x_w, since p >= x_w: [a, b] moves to the winner.
        b <= 0      m p >= m most, p being at most `most`: the coefficient is dropped and [a, b] most joins the constant interval.
        a < 0 < b   m may have either sign: the coefficient is dropped and m p itself joins the constant, enclosed over the box of p.
    So target >= sum m'_j x_j + c' with m' in the new intervals and c' in the new constant interval. Moving rounds nothing; where
    windows overlap a cell adds what they bring, outward. The constant's sum is rounded outward, its lanes charged (lane_error). A NaN
    in an end that moves moves, any other makes the constant NaN; so does 0 times an infinite end.

    Every program owns BR rows times BQ values of the new window and gathers what they receive, cells and taps as in
    maxpool.pool_rows. Grid: (blocks of BR rows, tiles of BQ values and one more column of programs for the constants).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    SIZE: tl.constexpr = c.H * c.W * c.C
    OUT: tl.constexpr = c.HO * c.WO * c.C
    if tl.program_id(1) == (OUT + c.BQ - 1) // c.BQ:
        pool_constants(
            lo_m_ptr, hi_m_ptr, at_row, base, winner_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr, rows, live,
            SIZE, c.W * c.C, c,
        )  # fmt: skip
        return
    q = tl.program_id(1) * c.BQ + tl.arange(0, c.BQ)
    channel = q % c.C
    full_y = q // (c.WO * c.C) + c.TOP
    full_x = q % (c.WO * c.C) // c.C + c.LEFT
    reached = (q < OUT) & (full_y >= 0) & (full_x >= 0)
    NH: tl.constexpr = (c.KH + c.PH - 1) // c.PH
    NW: tl.constexpr = (c.KW + c.PW - 1) // c.PW
    low = tl.full((c.BR, c.BQ), 0.0, c.T)
    high = tl.full((c.BR, c.BQ), 0.0, c.T)
    for step in range(NH * NW):
        i = full_y % c.PH + step // NW * c.PH
        j = full_x % c.PW + step % NW * c.PW
        rest_y = full_y - i * c.DH
        rest_x = full_x - j * c.DW
        y = rest_y // c.SH
        x = rest_x // c.SW
        meets = reached & (i < c.KH) & (j < c.KW) & (rest_y >= 0) & (rest_x >= 0) & (y < c.H) & (x < c.W)
        if c.PH != c.SH:
            meets = meets & (rest_y % c.SH == 0)
        if c.PW != c.SW:
            meets = meets & (rest_x % c.SW == 0)
        inside = live[:, None] & meets[None, :]
        at = (at_row * SIZE)[:, None] + ((y * c.W + x) * c.C + channel)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        winner = tl.load(winner_ptr + base[:, None] + (y * c.PITCH + x * c.C + channel)[None, :], mask=inside, other=0)
        wins = (winner // 2 == (i * c.KW + j + 1)[None, :]) & ((a >= 0) | (winner % 2 == 1))
        low, high = add_ends(low, high, tl.where(wins, a, 0.0), tl.where(wins, b, 0.0), c.INTERPRET)
    to = rows.to(tl.int64)[:, None] * OUT + q[None, :]
    kept = live[:, None] & (q < OUT)[None, :]
    tl.store(out_lo_ptr + to, low, mask=kept)
    tl.store(out_hi_ptr + to, high, mask=kept)


@triton.jit
def interval_gather(
    lo_m_ptr, hi_m_ptr, slot_ptr, starts_ptr, readers_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, SLOT: tl.constexpr, FROM: tl.constexpr, SIZE: tl.constexpr, CO: tl.constexpr, CI: tl.constexpr,
    REPEATS: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Rows over a gather that reads a value more than once become rows over what it read, lists and blocks as in route.gather_rows.

    A value x that several cells read stands for each of them: sum m_j x_j = (sum m_j) x, and the sum of the choices lies between the
    sum of the lower ends, rounded down, and that of the upper ends, rounded up. Grid: (blocks of BR rows, tiles of BQ values).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    at_row = rows.to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    wanted = (q < SIZE)[None, :]  # two-dimensional, as in gather_rows
    begin = tl.load(starts_ptr + (q % CI)[None, :], mask=wanted, other=0)
    end = tl.load(starts_ptr + (q % CI)[None, :] + 1, mask=wanted, other=0)
    low = tl.full((BR, BQ), 0.0, T)
    high = tl.full((BR, BQ), 0.0, T)
    for k in range(REPEATS):
        reads = begin + k < end
        at = (at_row * FROM)[:, None] + (q // CI * CO)[None, :] + tl.load(readers_ptr + begin + k, mask=reads, other=0)
        inside = live[:, None] & reads
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        low, high = add_ends(low, high, a, b, INTERPRET)
    to = rows.to(tl.int64)[:, None] * SIZE + q[None, :]
    tl.store(out_lo_ptr + to, low, mask=live[:, None] & wanted)
    tl.store(out_hi_ptr + to, high, mask=live[:, None] & wanted)
