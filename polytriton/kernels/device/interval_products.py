"""Coefficient intervals times weights, the paper's core: two directed FMAs a product, and a spread that is none of their work.

interval_sums.py has the three sums and their proof. A thread owns RM x RN numbers of the tile BM x BN, and loads RM coefficients' ends
and RN weights for 2 RM RN FMAs. Tiles have the shape [RM, RN, BM/RM, BN/RN], whose last two axes are threads: so every value lies with
the threads that want it, and nothing is moved between them. Rows of an even number of float32 coefficients are read two at a time.
BK terms at a time the spread comes first, from a tile of ends and one of weights: their lines then lie in L1 for the FMAs.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import BackThroughConv
from polytriton.kernels.device.interval_sums import add_spread, add_term, ends_of_sums
from polytriton.kernels.device.numerics import position


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
    lo_ptr, hi_ptr, w_ptr, mask, low, high,
    STEP: tl.constexpr, NEXT: tl.constexpr, MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The next STEP terms, one or two; weights of the next term lie NEXT numbers on. MASKED: other coefficients are [0, 0]."""
    if STEP == 2:
        lo, next_lo = two_floats(lo_ptr, mask, MASKED)
        hi, next_hi = two_floats(hi_ptr, mask, MASKED)
        low, high = add_term(lo, hi, tl.load(w_ptr), low, high, INTERPRET)
        return add_term(next_lo, next_hi, tl.load(w_ptr + NEXT), low, high, INTERPRET)
    elif MASKED:
        lo = tl.load(lo_ptr, mask=mask, other=0.0)
        hi = tl.load(hi_ptr, mask=mask, other=0.0)
        return add_term(lo, hi, tl.load(w_ptr), low, high, INTERPRET)
    else:
        return add_term(tl.load(lo_ptr), tl.load(hi_ptr), tl.load(w_ptr), low, high, INTERPRET)


@triton.jit
def add_block(
    lo_ptr, hi_ptr, w_ptr, mask, low, high, left,
    BK: tl.constexpr, K: tl.constexpr, NEXT: tl.constexpr, MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The next BK terms, or those that are left of K: AT_ONCE in a turn, whose addresses are the first's and a constant."""
    STEP: tl.constexpr = 2 if low.dtype == tl.float32 and K % 2 == 0 else 1
    AT_ONCE: tl.constexpr = min(4, BK)
    tl.static_assert(AT_ONCE % STEP == 0, "a block must hold whole steps of terms")
    terms = tl.minimum(left, BK)
    for _ in range(terms // AT_ONCE):
        for k in tl.static_range(0, AT_ONCE, STEP):
            low, high = add_terms(lo_ptr + k, hi_ptr + k, w_ptr + k * NEXT, mask, low, high, STEP, NEXT, MASKED, INTERPRET)
        lo_ptr += AT_ONCE
        hi_ptr += AT_ONCE
        w_ptr += AT_ONCE * NEXT
    if K % AT_ONCE > 0:
        for _ in range(terms % AT_ONCE // STEP):
            low, high = add_terms(lo_ptr, hi_ptr, w_ptr, mask, low, high, STEP, NEXT, MASKED, INTERPRET)
            lo_ptr += STEP
            hi_ptr += STEP
            w_ptr += STEP * NEXT
    return low, high


@triton.jit
def weights_column(lane, first, N: tl.constexpr, BN: tl.constexpr):
    """Where the weights of a tile's column are."""
    if N < BN:
        return tl.minimum(lane, N - 1)
    else:
        return tl.minimum(first, N - BN) + lane


@triton.jit
def tile_columns(first, N: tl.constexpr, BN: tl.constexpr, RN: tl.constexpr):
    """The N columns' tile that begins at `first`: where each column's weights are, its number, and whether this tile writes it.

    The last tile is moved back to end at N, so that what it reads exists; what the tile before it owns it does not write.
    """
    lane = tl.arange(0, RN)[None, :, None, None] * (BN // RN) + tl.arange(0, BN // RN)[None, None, None, :]
    if N < BN:
        return weights_column(lane, first, N, BN), lane, lane < N
    else:
        n = weights_column(lane, first, N, BN)
        return n, n, n >= first


@triton.jit
def interval_dense(
    lo_m_ptr, hi_m_ptr, slot_ptr, w_ptr, out_lo_ptr, out_hi_ptr, count_ptr,
    T: tl.constexpr, SLOT: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RM: tl.constexpr, RN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """out[r, n] encloses sum over k of [lo, hi][r, k] w[k, n], by the three sums.

    Rows past the count read a row that is there, and are not written. Grid: (blocks of BM rows, tiles of BN columns).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BM
    if first >= count:
        return
    rows = first + tl.arange(0, RM)[:, None, None, None] * (BM // RM) + tl.arange(0, BM // RM)[None, None, :, None]
    live = rows < count
    at_row = tl.where(live, rows, first)
    row_of_line = tl.minimum(first + tl.arange(0, BM), count - 1).to(tl.int32)
    if SLOT:
        at_row = tl.load(slot_ptr + at_row).to(tl.int32)
        row_of_line = tl.load(slot_ptr + row_of_line).to(tl.int32)
    of_w, n, inside = tile_columns(tl.program_id(1) * BN, N, BN, RN)
    column = weights_column(tl.arange(0, BN), tl.program_id(1) * BN, N, BN)
    low = tl.full((RM, RN, BM // RM, BN // RN), 0.0, T)
    high = low
    spread = tl.full((BM, BN), 0.0, T)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        line = row_of_line.to(tl.int64)[:, None] * K + k[None, :]
        weights = w_ptr + tl.arange(0, BK)[:, None] * N + column[None, :]
        known = (k < K)[None, :]
        spread = add_spread(lo_m_ptr + line, hi_m_ptr + line, weights, known, (k < K)[:, None], spread, K % BK > 0, INTERPRET)
        at = at_row.to(tl.int64) * K + k0
        low, high = add_block(lo_m_ptr + at, hi_m_ptr + at, w_ptr + of_w, live, low, high, K - k0, BK, K, N, False, INTERPRET)
        w_ptr += BK * N
    low, high = ends_of_sums(low, high, spread, INTERPRET)
    to = rows.to(tl.int64) * N + n
    tl.store(out_lo_ptr + to, low, mask=live & inside)
    tl.store(out_hi_ptr + to, high, mask=live & inside)


@triton.jit
def of_pairs(x, SPAN: tl.constexpr, RM: tl.constexpr):
    """What is known of each of BM pairs, as a column of a tile; of one cell, SPAN 1, it is one value for all."""
    if SPAN == 1:
        return x
    else:
        return tl.reshape(x, (RM, 1, x.shape[0] // RM, 1))


@dataclass(frozen=True)
class IntervalConv(BackThroughConv):
    BK: int
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
    pair = tl.arange(0, c.BM)
    row_of_pair = tl.minimum(first_row + pair // c.SPAN, count - 1).to(tl.int32)
    cell = first_cell
    if c.SPAN > 1:
        cell = first_cell + pair % c.SPAN
    to_y = cell // UW * c.PH + p_h
    to_x = cell % UW * c.PW + p_w
    there = (cell < UH * UW) & (to_y < c.HO) & (to_x < c.WO)
    pair = tl.arange(0, c.RM)[:, None, None, None] * (c.BM // c.RM) + tl.arange(0, c.BM // c.RM)[None, None, :, None]
    row = first_row + pair // c.SPAN
    live = (row < count) & of_pairs(there, c.SPAN, c.RM)
    at_row = tl.where(row < count, row, first_row)
    if c.SLOT:
        at_row = tl.load(slot_ptr + at_row).to(tl.int32)
        row_of_pair = tl.load(slot_ptr + row_of_pair).to(tl.int32)
    group = tl.program_id(1) // NT
    of_w, n, inside = tile_columns(tl.program_id(1) % NT * c.BN, CIG, c.BN, c.RN)
    column = weights_column(tl.arange(0, c.BN), tl.program_id(1) % NT * c.BN, CIG, c.BN)
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
    spread = tl.full((c.BM, c.BN), 0.0, c.T)
    SOME: tl.constexpr = c.SPAN > 1 or COG % c.BK > 0
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
        terms = COG
        if c.SPAN == 1:
            terms = tl.where(meets, COG, 0)
        source = (y * c.W + x) * c.CO + group * COG
        weights = ((i * c.KW + j) * c.CO + group * COG) * CIG
        for k0 in range(0, terms, c.BK):
            k = k0 + tl.arange(0, c.BK)
            known = (k < COG)[None, :]
            if c.SPAN > 1:
                known = known & meets[:, None]
            at = (row_of_pair.to(tl.int64) * (c.H * c.W * c.CO) + source)[:, None] + k[None, :]
            of_k = w_ptr + weights + k[:, None] * CIG + column[None, :]
            spread = add_spread(lo_m_ptr + at, hi_m_ptr + at, of_k, known, (k < COG)[:, None], spread, SOME, c.INTERPRET)
            at = at_row.to(tl.int64) * (c.H * c.W * c.CO) + of_pairs(source, c.SPAN, c.RM) + k0
            low, high = add_block(
                lo_m_ptr + at, hi_m_ptr + at, w_ptr + weights + k0 * CIG + of_w, of_pairs(meets, c.SPAN, c.RM), low, high, COG - k0,
                c.BK, COG, CIG, c.SPAN > 1, c.INTERPRET,
            )  # fmt: skip
    low, high = ends_of_sums(low, high, spread, c.INTERPRET)
    if c.MASK:
        on_y = position(row_h_ptr, row, live, c.TO_RH != 0) * c.TO_RH - c.TO_OH + of_pairs(to_y, c.SPAN, c.RM)
        on_x = position(row_w_ptr, row, live, c.TO_RW != 0) * c.TO_RW - c.TO_OW + of_pairs(to_x, c.SPAN, c.RM)
        on = (on_y >= 0) & (on_y < c.IH) & (on_x >= 0) & (on_x < c.IW)
        low = tl.where(on, low, 0.0)
        high = tl.where(on, high, 0.0)
    to = row.to(tl.int64) * (c.HO * c.WO * c.CI) + of_pairs((to_y * c.WO + to_x) * c.CI, c.SPAN, c.RM) + group * CIG + n
    tl.store(out_lo_ptr + to, low, mask=live & inside)
    tl.store(out_hi_ptr + to, high, mask=live & inside)
