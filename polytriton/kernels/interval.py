"""The paper's interval arithmetic: coefficient intervals times scalar weights, every operation rounded outward.

A row is a coefficient interval [lo, hi] a cell and a constant interval [constant_lo, constant_hi]. Invariant: for every
reachable x there are m_j in [lo_j, hi_j] and c in [constant_lo, constant_hi] (they may depend on x) with

    target  >=  sum m_j x_j  +  c.

So the least value of sum [lo_j, hi_j] x_j over the box, plus constant_lo, bounds the target from below. Each kernel keeps the
invariant by enclosing, for every choice inside the old intervals, the numbers that exact arithmetic makes of that choice.
The affine node x = W y + b + delta, |delta| <= e, takes two steps: its constants join by `interval_concretize` (GREATEST) over the
box [b - e, b + e], its weights by `interval_dense` or `interval_conv`. NaN means "no bound", as does -inf.

Sums over cells are taken lane by lane, rounded outward at each step; only the lanes of a tile are then added to nearest, and
that is charged. INTERPRET picks the emulation of directed.py, for Triton's interpreter.
"""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

from polytriton.kernels.directed import (
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
from polytriton.kernels.numerics import U64, table_base


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
    """At least what float64 loses when it adds the LANES numbers of each row of `sums` to nearest, in any order.

    The loss is at most gamma_(LANES-1) sum |s_i|; twice LANES unit roundoffs cover that, the rounding of this very sum and of the
    product. Subnormal sums are exact, so underflow needs no term. A sum that overflows makes this infinite, and the bound with it.
    """
    return tl.sum(tl.abs(sums), 1) * (2 * LANES * U64)


@triton.jit
def interval_dense(
    lo_m_ptr, hi_m_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, INTERPRET: tl.constexpr,
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
    at_row = rows.to(tl.int64) * K
    at_w = n.to(tl.int64)
    low = tl.full((BM, BN), 0.0, T)
    high = tl.full((BM, BN), 0.0, T)
    for k in range(K):
        lo = tl.load(lo_m_ptr + at_row + k, mask=live, other=0.0)[:, None]
        hi = tl.load(hi_m_ptr + at_row + k, mask=live, other=0.0)[:, None]
        w = tl.load(w_ptr + at_w, mask=inside, other=0.0)[None, :]
        near = tl.where(w >= 0, lo, hi)
        far = tl.where(w >= 0, hi, lo)
        if INTERPRET:
            low = fma_down_emulated(near, w, low)
            high = fma_up_emulated(far, w, high)
        else:
            low = fma_down(near, w, low)
            high = fma_up(far, w, high)
        at_w += N
    to = (rows.to(tl.int64) * N)[:, None] + n[None, :]
    tl.store(out_lo_ptr + to, low, mask=live[:, None] & inside[None, :])
    tl.store(out_hi_ptr + to, high, mask=live[:, None] & inside[None, :])


@triton.jit
def interval_conv(
    lo_m_ptr, hi_m_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, G: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, CI: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Rows on windows [H, W, CO] over a convolution's output become rows on windows [HO, WO, CI] over its input.

    Tap (i, j) carries cell (y, x) to cell (y SH + i DH - TOP, x SW + j DW - LEFT) of the new window; what falls outside it is
    dropped, cells that nothing reaches are 0. w is [CO, CI/G, KH, KW]; source channel o is of group o // (CO/G). A program owns one
    cell, BM rows and BN channels of one group, and sums over taps and source channels as `interval_dense` does over k.
    Grid: (blocks of BM rows times HO WO cells, tiles of BN channels of all groups).
    """
    count = tl.load(count_ptr)
    first = (tl.program_id(0) // (HO * WO)).to(tl.int64) * BM
    if first >= count:
        return
    COG: tl.constexpr = CO // G
    CIG: tl.constexpr = CI // G
    NT: tl.constexpr = (CIG + BN - 1) // BN
    cell = tl.program_id(0) % (HO * WO)
    full_y = cell // WO + TOP
    full_x = cell % WO + LEFT
    group = tl.program_id(1) // NT
    n = tl.program_id(1) % NT * BN + tl.arange(0, BN)
    inside = n < CIG
    rows = first + tl.arange(0, BM)
    live = rows < count
    low = tl.full((BM, BN), 0.0, T)
    high = tl.full((BM, BN), 0.0, T)
    for i in range(KH):
        for j in range(KW):
            y = full_y - i * DH
            x = full_x - j * DW
            meets = (y >= 0) & (y < H * SH) & (x >= 0) & (x < W * SW)
            if SH > 1:
                meets = meets & (y % SH == 0)
            if SW > 1:
                meets = meets & (x % SW == 0)
            if meets:
                at_row = rows * (H * W * CO) + (y // SH * W + x // SW) * CO + group * COG
                at_w = ((group * COG).to(tl.int64) * CIG + n) * (KH * KW) + i * KW + j
                for o in range(COG):
                    lo = tl.load(lo_m_ptr + at_row + o, mask=live, other=0.0)[:, None]
                    hi = tl.load(hi_m_ptr + at_row + o, mask=live, other=0.0)[:, None]
                    w = tl.load(w_ptr + at_w + o * (CIG * KH * KW), mask=inside, other=0.0)[None, :]
                    near = tl.where(w >= 0, lo, hi)
                    far = tl.where(w >= 0, hi, lo)
                    if INTERPRET:
                        low = fma_down_emulated(near, w, low)
                        high = fma_up_emulated(far, w, high)
                    else:
                        low = fma_down(near, w, low)
                        high = fma_up(far, w, high)
    to = (rows * (HO * WO * CI) + cell * CI + group * CIG)[:, None] + n[None, :]
    tl.store(out_lo_ptr + to, low, mask=live[:, None] & inside[None, :])
    tl.store(out_hi_ptr + to, high, mask=live[:, None] & inside[None, :])


@triton.jit
def interval_relax(
    lo_m_ptr, hi_m_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, lo_ptr, hi_ptr,
    constant_lo_ptr, constant_hi_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    BR: tl.constexpr, BQ: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Rows over f(y) = relu(y) become rows over y, given  below y <= f(y) <= above y + cut  and f(y) in the box [lo, hi].

    Take a reachable y and the choice m, c that the invariant gives for x = f(y); [a, b] is the coefficient interval of a cell.
        a >= 0      m f(y) >= m below y: the coefficient becomes [a, b] below, which holds m below.
        b <= 0      m f(y) >= m above y + m cut: [a, b] above, and [a, b] cut joins the constant interval.
        a < 0 < b   m may have either sign, and no line serves both: the coefficient becomes [0, 0] and m f(y) itself joins the
                    constant, enclosed from its least value over the box to its greatest.
    So target >= sum m'_j y_j + c' with m' in the new coefficient intervals and c' in the new constant interval. A NaN in a
    row or a table makes the constant NaN. out may be the rows themselves. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    image = tl.load(image_ptr + rows, mask=live, other=0)
    row_h = tl.load(row_h_ptr + rows, mask=live, other=0)
    row_w = tl.load(row_w_ptr + rows, mask=live, other=0)
    base = table_base(image, row_h, row_w, START, PLANE, PITCH, C, RH, OH, RW, OW)
    low = tl.full((BR, BQ), 0.0, tl.float64)
    high = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        at = (rows.to(tl.int64) * SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // LINE) * PITCH + q % LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        below = tl.load(below_ptr + where, mask=inside, other=0.0)
        above = tl.load(above_ptr + where, mask=inside, other=0.0)
        cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
        least = tl.load(lo_ptr + where, mask=inside, other=0.0)
        most = tl.load(hi_ptr + where, mask=inside, other=0.0)
        strange = (below != below) | (above != above) | (cut != cut) | (least != least) | (most != most)
        slope = tl.where(a >= 0, below, tl.where(b <= 0, above, 0.0))
        near = tl.where(slope >= 0, a, b)
        far = tl.where(slope >= 0, b, a)
        # what the constant takes is [a, b] times a box: [0, 0], [cut, cut] or that of f(y)
        least = tl.where(a >= 0, 0.0, tl.where(b <= 0, cut, least)).to(tl.float64)
        most = tl.where(a >= 0, 0.0, tl.where(b <= 0, cut, most)).to(tl.float64)
        least = tl.where(strange, float("nan"), least)
        most = tl.where(strange, float("nan"), most)
        a = a.to(tl.float64)
        b = b.to(tl.float64)
        # m v is least where v is least for m >= 0, greatest for m < 0; of all m one of the ends decides
        a_least = tl.where(a >= 0, least, most)
        b_least = tl.where(b >= 0, least, most)
        a_most = tl.where(a >= 0, most, least)
        b_most = tl.where(b >= 0, most, least)
        if INTERPRET:
            out_lo = mul_down_emulated(near, slope)
            out_hi = mul_up_emulated(far, slope)
            low = lesser(fma_down_emulated(a, a_least, low), fma_down_emulated(b, b_least, low))
            high = greater(fma_up_emulated(a, a_most, high), fma_up_emulated(b, b_most, high))
        else:
            out_lo = mul_down(near, slope)
            out_hi = mul_up(far, slope)
            low = lesser(fma_down(a, a_least, low), fma_down(b, b_least, low))
            high = greater(fma_up(a, a_most, high), fma_up(b, b_most, high))
        tl.store(out_lo_ptr + at, out_lo, mask=inside)
        tl.store(out_hi_ptr + at, out_hi, mask=inside)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    if INTERPRET:
        constant_lo = add_down_emulated(constant_lo, add_down_emulated(tl.sum(low, 1), -1.0 * lane_error(low, BQ)))
        constant_hi = add_up_emulated(constant_hi, add_up_emulated(tl.sum(high, 1), lane_error(high, BQ)))
    else:
        constant_lo = add_down(constant_lo, add_down(tl.sum(low, 1), -1.0 * lane_error(low, BQ)))
        constant_hi = add_up(constant_hi, add_up(tl.sum(high, 1), lane_error(high, BQ)))
    tl.store(constant_lo_ptr + rows, constant_lo, mask=live)
    tl.store(constant_hi_ptr + rows, constant_hi, mask=live)


@triton.jit
def interval_concretize(
    lo_m_ptr, hi_m_ptr, image_ptr, row_h_ptr, row_w_ptr, lo_ptr, hi_ptr,
    constant_lo_ptr, constant_hi_ptr, value_lo_ptr, value_hi_ptr, count_ptr,
    GREATEST: tl.constexpr, SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    BR: tl.constexpr, BQ: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """value_lo = constant_lo + sum over cells of the least m v, m in [a, b], v in the box [lo, hi]; GREATEST: value_hi likewise.

    The least product lies at a corner. For fixed m it is m lo (m >= 0) or m hi (m < 0), which is concave in m: so the end m = a or
    m = b decides, two corners out of four. float64, rounded down (up) throughout, the sum of lanes charged; NaN stays NaN, and
    0 times an infinite bound is one. A value may replace the constant it came from. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    image = tl.load(image_ptr + rows, mask=live, other=0)
    row_h = tl.load(row_h_ptr + rows, mask=live, other=0)
    row_w = tl.load(row_w_ptr + rows, mask=live, other=0)
    base = table_base(image, row_h, row_w, START, PLANE, PITCH, C, RH, OH, RW, OW)
    low = tl.full((BR, BQ), 0.0, tl.float64)
    high = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        at = (rows.to(tl.int64) * SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // LINE) * PITCH + q % LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        least = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        most = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        if INTERPRET:
            at_a = fma_down_emulated(a, tl.where(a >= 0, least, most), low)
            low = lesser(at_a, fma_down_emulated(b, tl.where(b >= 0, least, most), low))
        else:
            low = lesser(fma_down(a, tl.where(a >= 0, least, most), low), fma_down(b, tl.where(b >= 0, least, most), low))
        if GREATEST:
            if INTERPRET:
                at_a = fma_up_emulated(a, tl.where(a >= 0, most, least), high)
                high = greater(at_a, fma_up_emulated(b, tl.where(b >= 0, most, least), high))
            else:
                high = greater(fma_up(a, tl.where(a >= 0, most, least), high), fma_up(b, tl.where(b >= 0, most, least), high))
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    if INTERPRET:
        value = add_down_emulated(constant_lo, add_down_emulated(tl.sum(low, 1), -1.0 * lane_error(low, BQ)))
    else:
        value = add_down(constant_lo, add_down(tl.sum(low, 1), -1.0 * lane_error(low, BQ)))
    tl.store(value_lo_ptr + rows, value, mask=live)
    if GREATEST:
        constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
        if INTERPRET:
            value = add_up_emulated(constant_hi, add_up_emulated(tl.sum(high, 1), lane_error(high, BQ)))
        else:
            value = add_up(constant_hi, add_up(tl.sum(high, 1), lane_error(high, BQ)))
        tl.store(value_hi_ptr + rows, value, mask=live)
