"""One back-substitution step through a max pool: coefficients go to the winning cells, or into the constant."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import MovingWindow, TableLayout, Taps
from polytriton.kernels.device.numerics import pay, table_base, taken_rows


@dataclass(frozen=True)
class PoolRows(MovingWindow, TableLayout, Taps):
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
    PENDING: float
    REL: float
    SUM_ERROR: float
    BR: int
    BQ: int


@triton.jit
def pool_scalars(
    m_ptr, image, at_row, base, winner_ptr, most_ptr, largest_ptr, lo_ptr, hi_ptr, own_floor_ptr, floor_ptr, constant_ptr, error_ptr,
    rows, live, SIZE: tl.constexpr, LINE: tl.constexpr, c: tl.constexpr,
):  # fmt: skip
    """What the pool costs its rows' scalars; see pool_rows."""
    fixed = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    if c.PENDING > 0:
        weights = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        where = base[:, None] + ((q // LINE) * c.PITCH + q % LINE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * SIZE + q[None, :], mask=inside, other=0.0).to(tl.float64)
        winner = tl.load(winner_ptr + where, mask=inside, other=0)
        most = tl.load(most_ptr + where, mask=inside, other=0.0).to(tl.float64)
        largest = tl.load(largest_ptr + where, mask=inside, other=0.0).to(tl.float64)
        goes = (x > 0) | (winner % 2 == 1)
        fixed += tl.where(goes, 0.0, x) * most + x * 0.0  # what is no number survives the selection
        sizes += tl.abs(x) * largest
        if c.PENDING > 0:
            lo = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
            hi = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
            weights += tl.abs(x) * tl.maximum(tl.abs(lo), tl.abs(hi))
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    if c.PENDING > 0:
        own_floor = tl.load(own_floor_ptr + image, mask=live, other=0.0)
        constant, error = pay(constant, error, 0.0, c.PENDING * tl.sum(weights, 1) + own_floor)
    floor = tl.load(floor_ptr + image, mask=live, other=0.0)
    constant, error = pay(constant, error, tl.sum(fixed, 1), (c.REL * tl.sum(sizes, 1) + floor) * c.SUM_ERROR)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)


@triton.jit
def pool_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, winner_ptr, most_ptr, largest_ptr, lo_ptr, hi_ptr, own_floor_ptr, floor_ptr,
    constant_ptr, error_ptr, out_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows on windows [H, W, C] over a max pool's output become rows on windows [HO, WO, C] over its input.

    winner = 2 (tap + 1) + sure: the tap whose lower bound is greatest, and whether it is the maximum for certain; 0 off the image.
    Where M_j > 0 or the winner is sure, M_j goes to the winner's cell, since max >= it, or max = it. Elsewhere
    M_j max >= M_j most, a constant. Tap (i, j) lies at cell (y SH + i DH - TOP, x SW + j DW - LEFT) of the new window; a winner
    is never off the image, so what falls outside the window cannot win. Every program owns BR rows times BQ values of the new
    window and gathers what they receive: where DH is 1 (PH = SH) a cell meets only ceil(KH/SH) windows, else KH at most (PH = 1).
    Grid: (blocks of BR rows, tiles of BQ values and one more column of programs for the rows' scalars).

    Bound: an entry adds the coefficients of the windows that meet in its cell, the first to zero. Along an axis those are at most
    ceil(k / (s / gcd(s, d))): every (s / gcd(s, d))-th tap. With K the product of both axes it is K - 1 roundings to u, none where
    windows lie apart, each coefficient standing for a value of at most `largest`, the greatest magnitude under its window.
    The float64 sum of the constants is off by dot_error sum |M_j| largest_j, |most_j| being at most largest_j. So

        error += (REL sum |M_j| largest_j + floor) SUM_ERROR,   REL = gamma_(K - 1)(u) + dot_error(H W C),

    SUM_ERROR enlarging that sum past its own rounding. PENDING: the rounding of M_j itself, which a nonlinear operator over the
    pool made, is paid before it is forgotten: PENDING sum |M_j| max(|lo_j|, |hi_j|) + own_floor.
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
        pool_scalars(
            m_ptr, image, at_row, base, winner_ptr, most_ptr, largest_ptr, lo_ptr, hi_ptr, own_floor_ptr, floor_ptr,
            constant_ptr, error_ptr, rows, live, SIZE, c.W * c.C, c,
        )  # fmt: skip
        return
    q = tl.program_id(1) * c.BQ + tl.arange(0, c.BQ)
    channel = q % c.C
    full_y = q // (c.WO * c.C) + c.TOP
    full_x = q % (c.WO * c.C) // c.C + c.LEFT
    reached = (q < OUT) & (full_y >= 0) & (full_x >= 0)
    NH: tl.constexpr = (c.KH + c.PH - 1) // c.PH
    NW: tl.constexpr = (c.KW + c.PW - 1) // c.PW
    sums = tl.full((c.BR, c.BQ), 0.0, c.T)
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
        m = tl.load(m_ptr + at_row[:, None] * SIZE + ((y * c.W + x) * c.C + channel)[None, :], mask=inside, other=0.0)
        winner = tl.load(winner_ptr + base[:, None] + (y * c.PITCH + x * c.C + channel)[None, :], mask=inside, other=0)
        wins = (winner // 2 == (i * c.KW + j + 1)[None, :]) & ((m > 0) | (winner % 2 == 1))
        sums += tl.where(wins, m, 0.0)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * OUT + q[None, :], sums, mask=live[:, None] & (q < OUT)[None, :])
