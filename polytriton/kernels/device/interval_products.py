"""Coefficient intervals times weights, the paper's core: three directed FMAs a product and no choice of an end.

m w over m in [lo, hi] lies between lo w and hi w, in the order that the sign of w decides. To choose ends costs two selects a
product, on a GPU as dear as the FMAs. With the part of w below zero, v = min(w, 0), and d = RU(hi - lo) no choice is left:

    m = lo + t,  0 <= t <= d:       m w = lo w + t w >= lo w + d v         (t w >= 0 where w >= 0, t w >= d w elsewhere)
    m = hi - s,  0 <= s <= d:       m w = hi w - s w <= hi w - d v

The term d v is the same on both sides. So the sums over k

    low = RD sum lo w,     high = RU sum hi w,     spread = RD sum d v      give      [RD(low + spread), RU(high - spread)],

which holds sum m_k w_k for every choice of m_k in [lo_k, hi_k], whatever order the terms come in: every step is one FMA rounded
outward, from a sum that was outward already. d is rounded once a coefficient, v not at all. For the weights and roundings of a
network d is small beside lo and hi, and what the spread's own roundings lose is smaller by as much.

Where hi - lo overflows, d is infinite and d v NaN or -inf; a spread that is NaN is taken for -inf: no bound. NaN in an end makes
its sum NaN and the other end of the sum infinite, NaN in a weight makes both sums NaN.

A thread owns RM x RN numbers of the tile BM x BN, and loads RM coefficients' ends and RN weights for 3 RM RN FMAs. Tiles have the
shape [RM, RN, BM/RM, BN/RN], whose last two axes are threads: so every value lies with the threads that want it, and nothing is
moved between them. Rows of an even number of float32 coefficients are read two at a time.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import BackThroughConv
from polytriton.kernels.device.directed import (
    add_down,
    add_down_emulated,
    add_up,
    add_up_emulated,
    fma_down,
    fma_down_emulated,
    fma_up,
)
from polytriton.kernels.device.numerics import position


@triton.jit
def below_zero(w, INTERPRET: tl.constexpr):
    """min(w, 0), exactly. A float64 keeps its bits or loses them all by its sign bit, which asks no float64 unit."""
    if w.dtype == tl.float32:
        return tl.minimum(w, 0.0)
    elif INTERPRET:
        bits = w.to(tl.int64, bitcast=True)
        return (bits & (bits >> 63)).to(tl.float64, bitcast=True)
    else:
        code: tl.constexpr = """{ .reg .b32 l, h, s; mov.b64 {l, h}, $1; shr.s32 s, h, 31; and.b32 l, l, s; and.b32 h, h, s;
            mov.b64 $0, {l, h}; }"""
        return tl.inline_asm_elementwise(code, "=d,d", [w], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def width_up(lo, hi, INTERPRET: tl.constexpr):
    """The least float not below hi - lo."""
    if INTERPRET:
        return add_up_emulated(hi, -1.0 * lo)
    elif lo.dtype == tl.float32:
        return tl.inline_asm_elementwise("sub.rp.f32 $0, $1, $2;", "=f,f,f", [hi, lo], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("sub.rp.f64 $0, $1, $2;", "=d,d,d", [hi, lo], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def outward(lo, hi, w, low, high, spread, INTERPRET: tl.constexpr):
    """One term more in each of the three sums. Up is down of the negated: the emulation does two in one go."""
    v = below_zero(w, INTERPRET)
    d = width_up(lo, hi, INTERPRET)
    if INTERPRET:
        wide = tl.broadcast_to(w, low.shape)
        ends = tl.join(tl.broadcast_to(lo, low.shape), tl.broadcast_to(-1.0 * hi, low.shape))
        low, high = tl.split(fma_down_emulated(ends, tl.join(wide, wide), tl.join(low, -1.0 * high)))
        spread = fma_down_emulated(tl.broadcast_to(d, low.shape), tl.broadcast_to(v, low.shape), spread)
        return low, -1.0 * high, spread
    else:
        return fma_down(lo, w, low), fma_up(hi, w, high), fma_down(d, v, spread)


@triton.jit
def ends_of_sums(low, high, spread, INTERPRET: tl.constexpr):
    """The interval that three sums make."""
    spread = tl.where(spread == spread, spread, float("-inf"))
    if INTERPRET:
        return add_down_emulated(low, spread), add_up_emulated(high, -1.0 * spread)
    else:
        return add_down(low, spread), add_up(high, -1.0 * spread)


@triton.jit
def two_floats(ptr, mask, MASKED: tl.constexpr):
    """The float32 numbers at an address that is a multiple of 8 and behind it, in one load."""
    ptr = ptr.to(tl.pointer_type(tl.int64), bitcast=True)
    if MASKED:
        both = tl.load(ptr, mask=mask, other=0)
    else:
        both = tl.load(ptr)
    return both.to(tl.int32).to(tl.float32, bitcast=True), (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def add_terms(
    lo_ptr, hi_ptr, w_ptr, mask, low, high, spread,
    STEP: tl.constexpr, NEXT: tl.constexpr, MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The next STEP terms, one or two; weights of the next term lie NEXT numbers on. MASKED: other coefficients are [0, 0]."""
    if STEP == 2:
        lo, next_lo = two_floats(lo_ptr, mask, MASKED)
        hi, next_hi = two_floats(hi_ptr, mask, MASKED)
        low, high, spread = outward(lo, hi, tl.load(w_ptr), low, high, spread, INTERPRET)
        return outward(next_lo, next_hi, tl.load(w_ptr + NEXT), low, high, spread, INTERPRET)
    elif MASKED:
        lo = tl.load(lo_ptr, mask=mask, other=0.0)
        hi = tl.load(hi_ptr, mask=mask, other=0.0)
        return outward(lo, hi, tl.load(w_ptr), low, high, spread, INTERPRET)
    else:
        return outward(tl.load(lo_ptr), tl.load(hi_ptr), tl.load(w_ptr), low, high, spread, INTERPRET)


@triton.jit
def tile_columns(first, N: tl.constexpr, BN: tl.constexpr, RN: tl.constexpr):
    """The N columns' tile that begins at `first`: where each column's weights are, its number, and whether this tile writes it.

    The last tile is moved back to end at N, so that what it reads exists; what the tile before it owns it does not write.
    """
    lane = tl.arange(0, RN)[None, :, None, None] * (BN // RN) + tl.arange(0, BN // RN)[None, None, None, :]
    if N < BN:
        return tl.minimum(lane, N - 1), lane, lane < N
    else:
        n = tl.minimum(first, N - BN) + lane
        return n, n, n >= first


@triton.jit
def interval_dense(
    lo_m_ptr, hi_m_ptr, slot_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, SLOT: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, RM: tl.constexpr, RN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """out[r, n] encloses sum over k of [lo, hi][r, k] w[k, n], by the three sums above.

    Rows past the count read a row that is there, and are not written. Grid: (blocks of BM rows, tiles of BN columns).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BM
    if first >= count:
        return
    rows = first + tl.arange(0, RM)[:, None, None, None] * (BM // RM) + tl.arange(0, BM // RM)[None, None, :, None]
    live = rows < count
    at_row = tl.where(live, rows, first).to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + at_row)
    of_w, n, inside = tile_columns(tl.program_id(1) * BN, N, BN, RN)
    lo_ptr = lo_m_ptr + at_row * K
    hi_ptr = hi_m_ptr + at_row * K
    w_ptr += of_w
    low = tl.full((RM, RN, BM // RM, BN // RN), 0.0, T)
    high = low
    spread = low
    STEP: tl.constexpr = 2 if T == tl.float32 and K % 2 == 0 else 1
    for _ in range(K // STEP):
        low, high, spread = add_terms(lo_ptr, hi_ptr, w_ptr, live, low, high, spread, STEP, N, False, INTERPRET)
        lo_ptr += STEP
        hi_ptr += STEP
        w_ptr += STEP * N
    low, high = ends_of_sums(low, high, spread, INTERPRET)
    to = rows.to(tl.int64) * N + n
    tl.store(out_lo_ptr + to, low, mask=live & inside)
    tl.store(out_hi_ptr + to, high, mask=live & inside)


@dataclass(frozen=True)
class IntervalConv(BackThroughConv):
    RM: int
    RN: int
    SPAN: int
    INTERPRET: bool


@triton.jit
def interval_conv(lo_m_ptr, hi_m_ptr, slot_ptr, row_h_ptr, row_w_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr):
    """Rows on windows [H, W, CO] over a convolution's output become rows on windows [HO, WO, CI] over its input.

    Tap (i, j) carries cell (y, x) to cell (y SH + i DH - TOP, x SW + j DW - LEFT) of the new window; what falls outside it is
    dropped, cells that nothing reaches are 0. w is [KH, KW, CO, CI/G]; source channel o is of group o // (CO/G). A program owns BM
    (row, cell) pairs, BM/SPAN rows of SPAN neighbouring cells, and BN channels of one group, and sums over taps and source channels
    as `interval_dense` does over k. On a GPU SPAN is 1: taps that do not meet the old window from there are not gone through.
    Elsewhere a coefficient that a tap does not find is [0, 0], which adds nothing and rounds nothing. Of PH x PW phases of cells
    (PH = SH where DH is 1) each meets only its own ceil(KH/SH) x ceil(KW/SW) taps. MASK: cells off the image IH x IW become [0, 0].
    x is 0 there, whatever the choice of m. Grid: (blocks of rows times blocks of cells times phases, tiles of BN channels of all
    groups).
    """
    count = tl.load(count_ptr)
    UH: tl.constexpr = (c.HO + c.PH - 1) // c.PH
    UW: tl.constexpr = (c.WO + c.PW - 1) // c.PW
    COG: tl.constexpr = c.CO // c.G
    CIG: tl.constexpr = c.CI // c.G
    NT: tl.constexpr = (CIG + c.BN - 1) // c.BN
    tile = tl.program_id(0)
    p_h = 0
    p_w = 0
    if c.PH * c.PW > 1:
        phase = tile % (c.PH * c.PW)
        tile = tile // (c.PH * c.PW)
        p_h = phase // c.PW
        p_w = phase % c.PW
    across = (UH * UW + c.SPAN - 1) // c.SPAN
    first_cell = tile % across * c.SPAN
    first_row = tile // across * (c.BM // c.SPAN)
    if first_row >= count:
        return
    pair = tl.arange(0, c.RM)[:, None, None, None] * (c.BM // c.RM) + tl.arange(0, c.BM // c.RM)[None, None, :, None]
    row = first_row.to(tl.int64) + pair // c.SPAN
    cell = first_cell
    if c.SPAN > 1:
        cell = first_cell + pair % c.SPAN
    to_y = cell // UW * c.PH + p_h
    to_x = cell % UW * c.PW + p_w
    there = (cell < UH * UW) & (to_y < c.HO) & (to_x < c.WO)
    live = (row < count) & there
    at_row = tl.where(row < count, row, first_row)
    if c.SLOT:
        at_row = tl.load(slot_ptr + at_row)
    group = tl.program_id(1) // NT
    of_w, n, inside = tile_columns(tl.program_id(1) % NT * c.BN, CIG, c.BN, c.RN)
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
    low = tl.full((c.RM, c.RN, c.BM // c.RM, c.BN // c.RN), 0.0, c.T)
    high = low
    spread = low
    STEP: tl.constexpr = 2 if c.T == tl.float32 and COG % 2 == 0 else 1
    for tap in range(taps_h * taps_w):
        i = i0 + tap // taps_w * c.PH
        j = j0 + tap % taps_w * c.PW
        full_y = to_y + c.TOP - i * c.DH
        full_x = to_x + c.LEFT - j * c.DW
        y = full_y // c.SH
        x = full_x // c.SW
        meets = there & (full_y >= 0) & (full_x >= 0) & (y < c.H) & (x < c.W)
        if c.PH != c.SH:
            meets = meets & (full_y % c.SH == 0)
        if c.PW != c.SW:
            meets = meets & (full_x % c.SW == 0)
        steps = COG // STEP
        if c.SPAN == 1:
            steps = tl.where(meets, steps, 0)
        at = at_row * (c.H * c.W * c.CO) + (y * c.W + x) * c.CO + group * COG
        lo_ptr = lo_m_ptr + at
        hi_ptr = hi_m_ptr + at
        tap_ptr = w_ptr + ((i * c.KW + j) * c.CO + group * COG) * CIG + of_w
        for _ in range(steps):
            low, high, spread = add_terms(lo_ptr, hi_ptr, tap_ptr, meets, low, high, spread, STEP, CIG, c.SPAN > 1, c.INTERPRET)
            lo_ptr += STEP
            hi_ptr += STEP
            tap_ptr += STEP * CIG
    low, high = ends_of_sums(low, high, spread, c.INTERPRET)
    if c.MASK:
        on_y = position(row_h_ptr, row, live, c.TO_RH != 0) * c.TO_RH - c.TO_OH + to_y
        on_x = position(row_w_ptr, row, live, c.TO_RW != 0) * c.TO_RW - c.TO_OW + to_x
        on = (on_y >= 0) & (on_y < c.IH) & (on_x >= 0) & (on_x < c.IW)
        low = tl.where(on, low, 0.0)
        high = tl.where(on, high, 0.0)
    to = row * (c.HO * c.WO * c.CI) + (to_y * c.WO + to_x) * c.CI + group * CIG + n
    tl.store(out_lo_ptr + to, low, mask=live & inside)
    tl.store(out_hi_ptr + to, high, mask=live & inside)
