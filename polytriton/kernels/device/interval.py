"""The paper's interval arithmetic: coefficient intervals times scalar weights, every operation rounded outward.

A row is a coefficient interval [lo, hi] a cell and a constant interval [constant_lo, constant_hi]. Invariant: for every
reachable x there are m_j in [lo_j, hi_j] and c in [constant_lo, constant_hi] (they may depend on x) with

    target  >=  sum m_j x_j  +  c.

So the least value of sum [lo_j, hi_j] x_j over the box, plus constant_lo, bounds the target from below. Each kernel keeps the
invariant by enclosing, for every choice inside the old intervals, the numbers that exact arithmetic makes of that choice.
The affine node x = W y + b + delta, |delta| <= e, takes two steps: its constants join by `interval_concretize` over the box
[b - e, b + e], its weights by `interval_dense` or `interval_conv`. NaN means "no bound", as does -inf. interval_steps.py holds
the other steps of a program.

Boxes and cuts are float64 whatever the coefficients. Coefficients of row r lie at slot[r] where SLOT is on, else at r.

Sums over cells are taken lane by lane, rounded outward at each step; only the lanes of a tile are then added to nearest, and
that is charged. INTERPRET picks the emulation of directed.py, for Triton's interpreter.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import BackThroughConv, RowPass
from polytriton.kernels.device.directed import (
    add_down,
    add_down_emulated,
    add_up,
    add_up_emulated,
    fma_down,
    fma_down_emulated,
    fma_up,
    fma_up_emulated,
    mul_down,
    mul_down_emulated,
    mul_up,
    mul_up_emulated,
)  # fmt: skip
from polytriton.kernels.device.numerics import U64, position, table_base, taken_rows


@triton.jit
def lesser(x, y):
    """min(x, y), NaN where either is NaN."""
    return tl.where((x < y) | (x != x), x, y)


@triton.jit
def greater(x, y):
    """max(x, y), NaN where either is NaN."""
    return tl.where((x > y) | (x != x), x, y)


@triton.jit
def lane_error(sums, LANES: tl.constexpr):
    """At least what float64 loses when it adds the numbers of each row of `sums`, LANES of which are not zero, to nearest in any order.

    The loss is at most gamma_(LANES-1) sum |s_i|; twice LANES unit roundoffs cover that, the rounding of this very sum and of the
    product. Subnormal sums are exact, so underflow needs no term. A sum that overflows makes this infinite, and the bound with it.
    """
    return tl.sum(tl.abs(sums), 1) * (2 * LANES * U64)


@triton.jit
def down_by(a, b, least, most, low, INTERPRET: tl.constexpr):
    """low + the least m v over m in [a, b], v in [least, most], rounded down; float64.

    The least product lies at a corner. For fixed m it is m least (m >= 0) or m most (m < 0), which is concave in m: so the end
    m = a or m = b decides, two corners out of four.
    """
    at_a = tl.where(a >= 0, least, most)
    at_b = tl.where(b >= 0, least, most)
    if INTERPRET:
        from_a, from_b = tl.split(fma_down_emulated(tl.join(a, b), tl.join(at_a, at_b), tl.join(low, low)))
        return lesser(from_a, from_b)
    else:
        return lesser(fma_down(a, at_a, low), fma_down(b, at_b, low))


@triton.jit
def up_by(a, b, least, most, high, INTERPRET: tl.constexpr):
    """high + the greatest m v, rounded up: `down_by` of the negated."""
    at_a = tl.where(a >= 0, most, least)
    at_b = tl.where(b >= 0, most, least)
    if INTERPRET:
        from_a, from_b = tl.split(fma_up_emulated(tl.join(a, b), tl.join(at_a, at_b), tl.join(high, high)))
        return greater(from_a, from_b)
    else:
        return greater(fma_up(a, at_a, high), fma_up(b, at_b, high))


@triton.jit
def outward(near, far, w, low, high, INTERPRET: tl.constexpr):
    """near w + low rounded down, far w + high rounded up. Up is down of the negated: the emulation does both in one go."""
    if INTERPRET:
        w = tl.broadcast_to(w, low.shape)
        down, up = tl.split(fma_down_emulated(tl.join(near, -1.0 * far), tl.join(w, w), tl.join(low, -1.0 * high)))
        return down, -1.0 * up
    else:
        return fma_down(near, w, low), fma_up(far, w, high)


@triton.jit
def plus_lanes_down(start, low, LANES: tl.constexpr, INTERPRET: tl.constexpr):
    """start + the sum of each row of `low`, rounded down."""
    if INTERPRET:
        return add_down_emulated(start, add_down_emulated(tl.sum(low, 1), -1.0 * lane_error(low, LANES)))
    else:
        return add_down(start, add_down(tl.sum(low, 1), -1.0 * lane_error(low, LANES)))


@triton.jit
def plus_lanes_up(start, high, LANES: tl.constexpr, INTERPRET: tl.constexpr):
    """start + the sum of each row of `high`, rounded up."""
    if INTERPRET:
        return add_up_emulated(start, add_up_emulated(tl.sum(high, 1), lane_error(high, LANES)))
    else:
        return add_up(start, add_up(tl.sum(high, 1), lane_error(high, LANES)))


@triton.jit
def interval_dense(
    lo_m_ptr, hi_m_ptr, slot_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, SLOT: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """out[r, n] encloses sum over k of [lo, hi][r, k] w[k, n]: two FMAs a product, the end point chosen by the weight's sign.

    m w over m in [lo, hi] lies between near w and far w, with near = lo, far = hi where w >= 0, the other way round elsewhere; so
    RD(near w + low) and RU(far w + high) enclose the sum so far of every choice. NaN in either end reaches one end of every output.
    Grid: (blocks of BM rows, tiles of BN columns). One warp with BM = 8 and BN = 64 or 128 gives a thread a few rows times a few
    columns, all in registers.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BM
    if first >= count:
        return
    rows = first + tl.arange(0, BM)
    live = rows < count
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < N
    at_row = rows.to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    at_row *= K
    at_w = n.to(tl.int64)
    low = tl.full((BM, BN), 0.0, T)
    high = tl.full((BM, BN), 0.0, T)
    for k in range(K):
        lo = tl.load(lo_m_ptr + at_row + k, mask=live, other=0.0)[:, None]
        hi = tl.load(hi_m_ptr + at_row + k, mask=live, other=0.0)[:, None]
        w = tl.load(w_ptr + at_w, mask=inside, other=0.0)[None, :]
        near = tl.where(w >= 0, lo, hi)
        far = tl.where(w >= 0, hi, lo)
        low, high = outward(near, far, w, low, high, INTERPRET)
        at_w += N
    to = (rows.to(tl.int64) * N)[:, None] + n[None, :]
    tl.store(out_lo_ptr + to, low, mask=live[:, None] & inside[None, :])
    tl.store(out_hi_ptr + to, high, mask=live[:, None] & inside[None, :])


@dataclass(frozen=True)
class IntervalConv(BackThroughConv):
    INTERPRET: bool


@triton.jit
def interval_conv(lo_m_ptr, hi_m_ptr, slot_ptr, row_h_ptr, row_w_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr):
    """Rows on windows [H, W, CO] over a convolution's output become rows on windows [HO, WO, CI] over its input.

    Tap (i, j) carries cell (y, x) to cell (y SH + i DH - TOP, x SW + j DW - LEFT) of the new window; what falls outside it is
    dropped, cells that nothing reaches are 0. w is [KH, KW, CO, CI/G]; source channel o is of group o // (CO/G). A program owns BM
    (row, cell) pairs and BN channels of one group, and sums over taps and source channels as `interval_dense` does over k; a
    coefficient that a tap does not find is [0, 0], which adds nothing and rounds nothing. Of PH x PW phases of cells (PH = SH where
    DH is 1) each meets only its own ceil(KH/SH) x ceil(KW/SW) taps. MASK: cells off the image IH x IW become [0, 0]. x is 0 there,
    whatever the choice of m. Grid: (blocks of (row, cell) pairs times phases, tiles of BN channels of all groups).
    """
    count = tl.load(count_ptr)
    UH: tl.constexpr = (c.HO + c.PH - 1) // c.PH
    UW: tl.constexpr = (c.WO + c.PW - 1) // c.PW
    COG: tl.constexpr = c.CO // c.G
    CIG: tl.constexpr = c.CI // c.G
    NT: tl.constexpr = (CIG + c.BN - 1) // c.BN
    tile = tl.program_id(0)
    if c.PH * c.PW > 1:
        phase = tile % (c.PH * c.PW)
        tile = tile // (c.PH * c.PW)
        p_h = phase // c.PW
        p_w = phase % c.PW
    if tile.to(tl.int64) * c.BM >= count * (UH * UW):
        return
    pair = tile.to(tl.int64) * c.BM + tl.arange(0, c.BM)
    row = pair // (UH * UW)
    cell = (pair % (UH * UW)).to(tl.int32)
    to_y = cell // UW
    to_x = cell % UW
    if c.PH > 1:
        to_y = to_y * c.PH + p_h
    if c.PW > 1:
        to_x = to_x * c.PW + p_w
    live = (row < count) & (to_y < c.HO) & (to_x < c.WO)
    at_row = row
    if c.SLOT:
        at_row = tl.load(slot_ptr + row, mask=live, other=0)
    group = tl.program_id(1) // NT
    n = tl.program_id(1) % NT * c.BN + tl.arange(0, c.BN)
    inside = n < CIG
    i0 = 0
    taps_h = c.KH
    if c.PH > 1:  # the taps of this phase: those i with (to_y + TOP - i) divisible by SH
        i0 = (p_h + c.TOP % c.PH) % c.PH
        taps_h = (c.KH - i0 + c.PH - 1) // c.PH
    j0 = 0
    taps_w = c.KW
    if c.PW > 1:
        j0 = (p_w + c.LEFT % c.PW) % c.PW
        taps_w = (c.KW - j0 + c.PW - 1) // c.PW
    low = tl.full((c.BM, c.BN), 0.0, c.T)
    high = tl.full((c.BM, c.BN), 0.0, c.T)
    for tap in range(taps_h * taps_w):
        i = i0 + tap // taps_w * c.PH
        j = j0 + tap % taps_w * c.PW
        full_y = to_y + c.TOP - i * c.DH
        full_x = to_x + c.LEFT - j * c.DW
        y = full_y // c.SH
        x = full_x // c.SW
        meets = live & (full_y >= 0) & (full_x >= 0) & (y < c.H) & (x < c.W)
        if c.PH != c.SH:
            meets = meets & (full_y % c.SH == 0)
        if c.PW != c.SW:
            meets = meets & (full_x % c.SW == 0)
        at = at_row * (c.H * c.W * c.CO) + (y * c.W + x) * c.CO + group * COG
        at_w = ((i * c.KW + j) * c.CO + group * COG) * CIG + n
        for o in range(COG):
            lo = tl.load(lo_m_ptr + at + o, mask=meets, other=0.0)[:, None]
            hi = tl.load(hi_m_ptr + at + o, mask=meets, other=0.0)[:, None]
            w = tl.load(w_ptr + at_w + o * CIG, mask=inside, other=0.0)[None, :]
            near = tl.where(w >= 0, lo, hi)
            far = tl.where(w >= 0, hi, lo)
            low, high = outward(near, far, w, low, high, c.INTERPRET)
    if c.MASK:
        on_y = position(row_h_ptr, row, live, c.TO_RH != 0) * c.TO_RH - c.TO_OH + to_y
        on_x = position(row_w_ptr, row, live, c.TO_RW != 0) * c.TO_RW - c.TO_OW + to_x
        on = (on_y >= 0) & (on_y < c.IH) & (on_x >= 0) & (on_x < c.IW)
        low = tl.where(on[:, None], low, 0.0)
        high = tl.where(on[:, None], high, 0.0)
    to = (row * (c.HO * c.WO * c.CI) + (to_y * c.WO + to_x) * c.CI + group * CIG)[:, None] + n[None, :]
    tl.store(out_lo_ptr + to, low, mask=live[:, None] & inside[None, :])
    tl.store(out_hi_ptr + to, high, mask=live[:, None] & inside[None, :])


@dataclass(frozen=True)
class IntervalRelax(RowPass):
    LOWER: bool
    INTERPRET: bool


@triton.jit
def interval_relax(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, lower_ptr, cut_ptr, box_lo_ptr, box_hi_ptr,
    constant_lo_ptr, constant_hi_ptr, out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows over f(y), a ReLU, become rows over y, given  below y + lower <= f(y) <= above y + cut  and f(y) in the box.

    Take a reachable y and the choice m, c that the invariant gives for x = f(y); [a, b] is the coefficient interval of a cell.
        a >= 0      m f(y) >= m below y + m lower: the coefficient becomes [a, b] below, which holds m below, and [a, b] lower
                    joins the constant interval. lower is 0, and never read, but for a leaky ReLU (LOWER).
        b <= 0      m f(y) >= m above y + m cut: [a, b] above, and [a, b] cut joins the constant interval.
        a < 0 < b   m may have either sign, and no line serves both: the coefficient becomes [0, 0] and m f(y) itself joins the
                    constant, enclosed from its least value over the box to its greatest.
    So target >= sum m'_j y_j + c' with m' in the new coefficient intervals and c' in the new constant interval. A NaN in a
    row or a table makes the constant NaN. out may be the rows themselves. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    high = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        at = (at_row * c.SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        below = tl.load(below_ptr + where, mask=inside, other=0.0)
        above = tl.load(above_ptr + where, mask=inside, other=0.0)
        cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
        least = tl.load(box_lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        most = tl.load(box_hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        strange = (below != below) | (above != above) | (cut != cut) | (least != least) | (most != most)
        lower = tl.zeros_like(cut)
        if c.LOWER:
            lower = tl.load(lower_ptr + where, mask=inside, other=0.0)
            strange = strange | (lower != lower)
        slope = tl.where(a >= 0, below, tl.where(b <= 0, above, 0.0))
        near = tl.where(slope >= 0, a, b)
        far = tl.where(slope >= 0, b, a)
        # what the constant takes is [a, b] times a box: a cut, or that of f(y)
        least = tl.where(a >= 0, lower, tl.where(b <= 0, cut, least))
        most = tl.where(a >= 0, lower, tl.where(b <= 0, cut, most))
        least = tl.where(strange, float("nan"), least)
        most = tl.where(strange, float("nan"), most)
        low = down_by(a.to(tl.float64), b.to(tl.float64), least, most, low, c.INTERPRET)
        high = up_by(a.to(tl.float64), b.to(tl.float64), least, most, high, c.INTERPRET)
        if c.INTERPRET:
            out_lo = mul_down_emulated(near, slope)
            out_hi = mul_up_emulated(far, slope)
        else:
            out_lo = mul_down(near, slope)
            out_hi = mul_up(far, slope)
        to = (rows.to(tl.int64) * c.SIZE)[:, None] + q[None, :]
        tl.store(out_lo_ptr + to, out_lo, mask=inside)
        tl.store(out_hi_ptr + to, out_hi, mask=inside)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    tl.store(constant_lo_ptr + rows, plus_lanes_down(constant_lo, low, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
    tl.store(constant_hi_ptr + rows, plus_lanes_up(constant_hi, high, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)


@dataclass(frozen=True)
class IntervalConcretize(RowPass):
    INTERPRET: bool


@triton.jit
def interval_concretize(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr,
    value_lo_ptr, value_hi_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """value_lo = constant_lo + sum over cells of the least m v, m in [a, b], v in the box; value_hi = constant_hi + the greatest.

    float64, rounded down (up) throughout, the sum of lanes charged; NaN stays NaN, and 0 times an infinite bound is one. A value
    may replace the constant it came from: where v is the constant of a substituted node, that is its step of the constants.
    Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    high = tl.full((c.BR, c.BQ), 0.0, tl.float64)
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
        high = up_by(a, b, least, most, high, c.INTERPRET)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    tl.store(value_lo_ptr + rows, plus_lanes_down(constant_lo, low, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
    tl.store(value_hi_ptr + rows, plus_lanes_up(constant_hi, high, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
