"""One back-substitution step through a convolution: the paper's GBC as an output-stationary implicit matrix product."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import BackThroughConv
from polytriton.kernels.device.numerics import position
from polytriton.kernels.device.products import multiply
from polytriton.kernels.device.rows import RowScalars, row_scalars


@dataclass(frozen=True)
class ConvStep(BackThroughConv, RowScalars):
    """A tile is of SPAN neighbouring cells a row, BK terms at a time; a program of scalars takes BS rows."""

    FORM: str
    SPAN: int
    BK: int
    BS: int


@triton.jit
def conv_step(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr, constant_ptr,
    error_ptr, w_ptr, out_ptr, count_ptr, c: tl.constexpr,
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
    UH: tl.constexpr = (c.HO + c.PH - 1) // c.PH
    UW: tl.constexpr = (c.WO + c.PW - 1) // c.PW
    COG: tl.constexpr = c.CO // c.G
    CIG: tl.constexpr = c.CI // c.G
    NT: tl.constexpr = (CIG + c.BN - 1) // c.BN
    SIZE: tl.constexpr = c.H * c.W * c.CO
    LINE: tl.constexpr = c.W * c.CO
    if c.RELU or c.CHARGE:
        if tl.program_id(1) == c.G * NT:
            for first in range(tl.program_id(0) * c.BS, tl.minimum(tl.program_id(0) * c.BS + c.BS, count), c.BR):
                row_scalars(
                    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
                    constant_ptr, error_ptr, None, count, first, SIZE, LINE, c.CO, c,
                )  # fmt: skip
            return
    tile = tl.program_id(0)
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
    lane = tl.arange(0, c.BM)
    row = first_row.to(tl.int64) + lane // c.SPAN
    cell = first_cell
    if c.SPAN > 1:
        cell = first_cell + lane % c.SPAN
    to_y = cell // UW
    to_x = cell % UW
    last_cell = tl.minimum(first_cell + c.SPAN, UH * UW) - 1
    top = first_cell // UW
    bottom = last_cell // UW
    left = tl.where(top == bottom, first_cell % UW, 0)
    right = tl.where(top == bottom, last_cell % UW, UW - 1)
    if c.PH > 1:
        to_y = to_y * c.PH + p_h
        top = top * c.PH + p_h
        bottom = bottom * c.PH + p_h
    if c.PW > 1:
        to_x = to_x * c.PW + p_w
        left = left * c.PW + p_w
        right = right * c.PW + p_w
    live = (row < count) & (cell < UH * UW) & (to_y < c.HO) & (to_x < c.WO)
    at_row = row
    if c.SLOT:
        at_row = tl.load(slot_ptr + row, mask=live, other=0)
    group = tl.program_id(1) // NT
    n = tl.program_id(1) % NT * c.BN + tl.arange(0, c.BN)
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
    # some cell of the tile meets tap i: i DH lies between to_y + TOP - (H - 1) SH and to_y + TOP
    skip_h = (tl.maximum(top + c.TOP - (c.H - 1) * c.SH - i0 * c.DH, 0) + c.PH * c.DH - 1) // (c.PH * c.DH)
    skip_w = (tl.maximum(left + c.LEFT - (c.W - 1) * c.SW - j0 * c.DW, 0) + c.PW * c.DW - 1) // (c.PW * c.DW)
    meet_h = tl.maximum(tl.minimum((bottom + c.TOP - i0 * c.DH + c.PH * c.DH) // (c.PH * c.DH), taps_h) - skip_h, 0)
    meet_w = tl.maximum(tl.minimum((right + c.LEFT - j0 * c.DW + c.PW * c.DW) // (c.PW * c.DW), taps_w) - skip_w, 0)
    # where tap (i0, j0) leads; every next tap of the phase lies DH lines, or DW cells, before (the divisions are exact)
    y0 = to_y + c.TOP - i0 * c.DH
    x0 = to_x + c.LEFT - j0 * c.DW
    if c.PH == c.SH:
        y0 = y0 // c.SH
    if c.PW == c.SW:
        x0 = x0 // c.SW
    at = at_row * SIZE + group * COG
    if c.RELU:
        image = tl.load(image_ptr + row, mask=live, other=0)
        row_h = position(row_h_ptr, row, live, c.RH != 0)
        row_w = position(row_w_ptr, row, live, c.RW != 0)
        base = image * c.PLANE + c.START + (row_h * c.RH - c.OH) * c.PITCH + (row_w * c.RW - c.OW) * c.CO + group * COG
    BLOCKS: tl.constexpr = (COG + c.BK - 1) // c.BK
    acc = tl.full((c.BM, c.BN), 0.0, tl.float64)
    for step in range(meet_h * meet_w * BLOCKS):
        tap = step // BLOCKS
        tap_h = skip_h + tap // meet_w
        tap_w = skip_w + tap % meet_w
        k = step % BLOCKS * c.BK + tl.arange(0, c.BK)
        y = y0 - tap_h * c.DH
        x = x0 - tap_w * c.DW
        meets = (y >= 0) & (x >= 0)
        if c.PH != c.SH:
            meets = meets & (y % c.SH == 0)
            y = y // c.SH
        if c.PW != c.SW:
            meets = meets & (x % c.SW == 0)
            x = x // c.SW
        meets = live & meets & (y < c.H) & (x < c.W)
        inside = meets[:, None] & (k < COG)[None, :]
        m = tl.load(m_ptr + (at + (y * c.W + x) * c.CO)[:, None] + k[None, :], mask=inside, other=0.0)
        if c.RELU:
            where = (base + y * c.PITCH + x * c.CO)[:, None] + k[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            m = m * tl.where(m < 0, above, below)
        at_w = (((i0 + tap_h * c.PH) * c.KW + j0 + tap_w * c.PW) * c.CO + group * COG + k)[:, None] * CIG + n[None, :]
        w = tl.load(w_ptr + at_w, mask=(k < COG)[:, None] & (n < CIG)[None, :], other=0.0)
        acc = multiply(m, w, acc, c.T, c.FORM)
    if c.MASK:
        row_h = position(row_h_ptr, row, live, c.TO_RH != 0)
        row_w = position(row_w_ptr, row, live, c.TO_RW != 0)
        on_y = row_h * c.TO_RH - c.TO_OH + to_y
        on_x = row_w * c.TO_RW - c.TO_OW + to_x
        on = (on_y >= 0) & (on_y < c.IH) & (on_x >= 0) & (on_x < c.IW)
        acc = tl.where(on[:, None], acc, 0.0)
    to = (row * (c.HO * c.WO * c.CI) + (to_y * c.WO + to_x) * c.CI + group * CIG)[:, None] + n[None, :]
    tl.store(out_ptr + to, acc.to(c.T), mask=live[:, None] & (n < CIG)[None, :])
