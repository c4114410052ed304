"""One back-substitution step through a convolution: the paper's GBC as an output-stationary implicit matrix product."""

import triton
import triton.language as tl

from polytriton.kernels.device.numerics import position
from polytriton.kernels.device.products import multiply
from polytriton.kernels.device.rows import row_scalars


@triton.jit
def conv_step(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
    constant_ptr, error_ptr, w_ptr, out_ptr, count_ptr,
    T: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr, CHARGE: tl.constexpr, SLOT: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, G: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, CI: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr,
    RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    T_START: tl.constexpr, T_PLANE: tl.constexpr, T_PITCH: tl.constexpr,
    BIAS: tl.constexpr, SUM_ERROR: tl.constexpr,
    MASK: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr,
    TO_RH: tl.constexpr, TO_OH: tl.constexpr, TO_RW: tl.constexpr, TO_OW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, SPAN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Rows on windows [H, W, CO] over a convolution's output become rows on windows [HO, WO, CI] over its input.

    Tap (i, j) carries cell (y, x) to cell (y SH + i DH - TOP, x SW + j DW - LEFT) of the new window; what falls outside it is
    dropped. Every program owns BM (row, cell) pairs times BN channels and gathers what its cells receive: the sum over taps and
    source channels. Its pairs are BM/SPAN rows of SPAN neighbouring cells, of one cell on a GPU, so that a tile goes through those
    taps alone that meet the old window from there. Of PH x PW phases of cells (PH = SH where DH is 1) each meets only its own
    ceil(KH/SH) x ceil(KW/SW) taps. w is [KH, KW, CO, CI/G]. MASK: cells of the new window off the image IH x IW get zero.
    Grid: (blocks of rows times blocks of cells times phases, column tiles of all groups and, with RELU or CHARGE, one more for
    the scalars).

    Bound: an entry adds at most ceil(KH/SH) ceil(KW/SW) CO/G terms (all taps where dilation is above one: the others' terms are
    exact zeros, which round nothing) in blocks of BK, as in dense.dense_step; K is that count.
    """
    count = tl.load(count_ptr)
    UH: tl.constexpr = (HO + PH - 1) // PH
    UW: tl.constexpr = (WO + PW - 1) // PW
    COG: tl.constexpr = CO // G
    CIG: tl.constexpr = CI // G
    NT: tl.constexpr = (CIG + BN - 1) // BN
    SIZE: tl.constexpr = H * W * CO
    LINE: tl.constexpr = W * CO
    if RELU or CHARGE:
        if tl.program_id(1) == G * NT:
            for first in range(tl.program_id(0) * BS, tl.minimum(tl.program_id(0) * BS + BS, count), BR):
                row_scalars(
                    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
                    constant_ptr, error_ptr, out_ptr, count, first,
                    RELU, CHARGE, False, SLOT, SIZE, LINE, CO, RH, OH, RW, OW, START, PLANE, PITCH, T_START, T_PLANE, T_PITCH,
                    BIAS, SUM_ERROR, BR, BQ,
                )  # fmt: skip
            return
    tile = tl.program_id(0)
    if PH * PW > 1:
        phase = tile % (PH * PW)
        tile = tile // (PH * PW)
        p_h = phase // PW
        p_w = phase % PW
    across = (UH * UW + SPAN - 1) // SPAN
    first_cell = tile % across * SPAN
    first_row = tile // across * (BM // SPAN)
    if first_row >= count:
        return
    lane = tl.arange(0, BM)
    row = first_row.to(tl.int64) + lane // SPAN
    cell = first_cell
    if SPAN > 1:
        cell = first_cell + lane % SPAN
    to_y = cell // UW
    to_x = cell % UW
    last_cell = tl.minimum(first_cell + SPAN, UH * UW) - 1
    top = first_cell // UW
    bottom = last_cell // UW
    left = tl.where(top == bottom, first_cell % UW, 0)
    right = tl.where(top == bottom, last_cell % UW, UW - 1)
    if PH > 1:
        to_y = to_y * PH + p_h
        top = top * PH + p_h
        bottom = bottom * PH + p_h
    if PW > 1:
        to_x = to_x * PW + p_w
        left = left * PW + p_w
        right = right * PW + p_w
    live = (row < count) & (cell < UH * UW) & (to_y < HO) & (to_x < WO)
    at_row = row
    if SLOT:
        at_row = tl.load(slot_ptr + row, mask=live, other=0)
    group = tl.program_id(1) // NT
    n = tl.program_id(1) % NT * BN + tl.arange(0, BN)
    i0 = 0
    taps_h = KH
    if PH > 1:  # the taps of this phase: those i with (to_y + TOP - i) divisible by SH
        i0 = (p_h + TOP % PH) % PH
        taps_h = (KH - i0 + PH - 1) // PH
    j0 = 0
    taps_w = KW
    if PW > 1:
        j0 = (p_w + LEFT % PW) % PW
        taps_w = (KW - j0 + PW - 1) // PW
    # some cell of the tile meets tap i: i DH lies between to_y + TOP - (H - 1) SH and to_y + TOP
    skip_h = (tl.maximum(top + TOP - (H - 1) * SH - i0 * DH, 0) + PH * DH - 1) // (PH * DH)
    skip_w = (tl.maximum(left + LEFT - (W - 1) * SW - j0 * DW, 0) + PW * DW - 1) // (PW * DW)
    meet_h = tl.maximum(tl.minimum((bottom + TOP - i0 * DH + PH * DH) // (PH * DH), taps_h) - skip_h, 0)
    meet_w = tl.maximum(tl.minimum((right + LEFT - j0 * DW + PW * DW) // (PW * DW), taps_w) - skip_w, 0)
    # where tap (i0, j0) leads; every next tap of the phase lies DH lines, or DW cells, before (the divisions are exact)
    y0 = to_y + TOP - i0 * DH
    x0 = to_x + LEFT - j0 * DW
    if PH == SH:
        y0 = y0 // SH
    if PW == SW:
        x0 = x0 // SW
    at = at_row * SIZE + group * COG
    if RELU:
        image = tl.load(image_ptr + row, mask=live, other=0)
        row_h = position(row_h_ptr, row, live, RH != 0)
        row_w = position(row_w_ptr, row, live, RW != 0)
        base = image * PLANE + START + (row_h * RH - OH) * PITCH + (row_w * RW - OW) * CO + group * COG
    BLOCKS: tl.constexpr = (COG + BK - 1) // BK
    acc = tl.full((BM, BN), 0.0, tl.float64)
    for step in range(meet_h * meet_w * BLOCKS):
        tap = step // BLOCKS
        tap_h = skip_h + tap // meet_w
        tap_w = skip_w + tap % meet_w
        k = step % BLOCKS * BK + tl.arange(0, BK)
        y = y0 - tap_h * DH
        x = x0 - tap_w * DW
        meets = (y >= 0) & (x >= 0)
        if PH != SH:
            meets = meets & (y % SH == 0)
            y = y // SH
        if PW != SW:
            meets = meets & (x % SW == 0)
            x = x // SW
        meets = live & meets & (y < H) & (x < W)
        inside = meets[:, None] & (k < COG)[None, :]
        m = tl.load(m_ptr + (at + (y * W + x) * CO)[:, None] + k[None, :], mask=inside, other=0.0)
        if RELU:
            where = (base + y * PITCH + x * CO)[:, None] + k[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            m = m * tl.where(m < 0, above, below)
        at_w = (((i0 + tap_h * PH) * KW + j0 + tap_w * PW) * CO + group * COG + k)[:, None] * CIG + n[None, :]
        w = tl.load(w_ptr + at_w, mask=(k < COG)[:, None] & (n < CIG)[None, :], other=0.0)
        acc = multiply(m, w, acc, T, FORM)
    if MASK:
        row_h = position(row_h_ptr, row, live, TO_RH != 0)
        row_w = position(row_w_ptr, row, live, TO_RW != 0)
        on_y = row_h * TO_RH - TO_OH + to_y
        on_x = row_w * TO_RW - TO_OW + to_x
        on = (on_y >= 0) & (on_y < IH) & (on_x >= 0) & (on_x < IW)
        acc = tl.where(on[:, None], acc, 0.0)
    to = (row * (HO * WO * CI) + (to_y * WO + to_x) * CI + group * CIG)[:, None] + n[None, :]
    tl.store(out_ptr + to, acc.to(T), mask=live[:, None] & (n < CIG)[None, :])
