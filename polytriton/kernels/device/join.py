"""Two contributions to one node add up on the union of their windows; a window alone can be widened the same way."""

import triton
import triton.language as tl

from polytriton.kernels.device.numerics import pay, position, table_base


@triton.jit
def join_rows(
    a_ptr, a_slot_ptr, b_ptr, b_slot_ptr, image_ptr, row_h_ptr, row_w_ptr, lo_ptr, hi_ptr, floor_ptr,
    constant_ptr, error_ptr, out_ptr, count_ptr,
    SECOND: tl.constexpr, A_SLOT: tl.constexpr, B_SLOT: tl.constexpr, A_SIGN: tl.constexpr, B_SIGN: tl.constexpr,
    C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    AH: tl.constexpr, AW: tl.constexpr, A_RH: tl.constexpr, A_OH: tl.constexpr, A_RW: tl.constexpr, A_OW: tl.constexpr,
    BH: tl.constexpr, BW: tl.constexpr, B_RH: tl.constexpr, B_OH: tl.constexpr, B_RW: tl.constexpr, B_OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    A_REL: tl.constexpr, B_REL: tl.constexpr, OUT_REL: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """out = A_SIGN a + B_SIGN b, each read at its own offset: cell y of `out` is cell y - row_h (A_RH - RH) + A_OH - OH of a.

    With SECOND every sum is rounded once, which costs OUT_REL sum |out_j| xabs_j (and the image's floor for underflow);
    a part whose coefficients a ReLU multiplied (A_REL, B_REL not 0) pays that rounding first, since it may cancel here.
    Without SECOND nothing is rounded and nothing paid. Cells off the new window are dropped: off the image xabs is zero.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    row_h = position(row_h_ptr, rows, live, A_RH != RH or (SECOND and (RH != 0 or B_RH != 0)))
    row_w = position(row_w_ptr, rows, live, A_RW != RW or (SECOND and (RW != 0 or B_RW != 0)))
    a_row = rows.to(tl.int64)
    if A_SLOT:
        a_row = tl.load(a_slot_ptr + rows, mask=live, other=0)
    if SECOND:
        b_row = rows.to(tl.int64)
        if B_SLOT:
            b_row = tl.load(b_slot_ptr + rows, mask=live, other=0)
        image = tl.load(image_ptr + rows, mask=live, other=0)
        base = table_base(image, row_h, row_w, START, PLANE, PITCH, C, RH, OH, RW, OW)
        a_sizes = tl.full((BR, BQ), 0.0, tl.float64)
        b_sizes = tl.full((BR, BQ), 0.0, tl.float64)
        sizes = tl.full((BR, BQ), 0.0, tl.float64)
    SIZE: tl.constexpr = HO * WO * C
    LINE: tl.constexpr = WO * C
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        y = q // LINE
        x = q % LINE // C
        c = q % C
        a_y = y[None, :] - (row_h * (A_RH - RH))[:, None] + (A_OH - OH)
        a_x = x[None, :] - (row_w * (A_RW - RW))[:, None] + (A_OW - OW)
        a_on = inside & (a_y >= 0) & (a_y < AH) & (a_x >= 0) & (a_x < AW)
        out = tl.load(a_ptr + a_row[:, None] * (AH * AW * C) + (a_y * AW + a_x) * C + c[None, :], mask=a_on, other=0.0) * A_SIGN
        if SECOND:
            b_y = y[None, :] - (row_h * (B_RH - RH))[:, None] + (B_OH - OH)
            b_x = x[None, :] - (row_w * (B_RW - RW))[:, None] + (B_OW - OW)
            b_on = inside & (b_y >= 0) & (b_y < BH) & (b_x >= 0) & (b_x < BW)
            b = tl.load(b_ptr + b_row[:, None] * (BH * BW * C) + (b_y * BW + b_x) * C + c[None, :], mask=b_on, other=0.0) * B_SIGN
            where = base[:, None] + (y * PITCH + q % LINE)[None, :]
            lo = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
            hi = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
            xabs = tl.maximum(tl.abs(lo), tl.abs(hi))
            if A_REL > 0:
                a_sizes += tl.abs(out.to(tl.float64)) * xabs
            if B_REL > 0:
                b_sizes += tl.abs(b.to(tl.float64)) * xabs
            out = out + b
            sizes += tl.abs(out.to(tl.float64)) * xabs
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], out, mask=inside)
    if SECOND:
        constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
        error = tl.load(error_ptr + rows, mask=live, other=0.0)
        floor = tl.load(floor_ptr + image, mask=live, other=0.0)
        if A_REL > 0:
            constant, error = pay(constant, error, 0.0, A_REL * tl.sum(a_sizes, 1) + floor)
        if B_REL > 0:
            constant, error = pay(constant, error, 0.0, B_REL * tl.sum(b_sizes, 1) + floor)
        constant, error = pay(constant, error, 0.0, OUT_REL * tl.sum(sizes, 1) + floor)
        tl.store(constant_ptr + rows, constant, mask=live)
        tl.store(error_ptr + rows, error, mask=live)


@triton.jit
def merge_scalars(lane_constant_ptr, lane_error_ptr, constant_ptr, error_ptr, count_ptr, B: tl.constexpr):
    """The scalars of a second branch join the rows': constant += lane_constant, error += lane_error (numerics.pay charges the sums).

    One branch began with what the row had, the other with zero, and what either paid is in its own pair (kernels/lanes.py):

        target >= sum M x + (constant + lane_constant) - (error + lane_error).

    The second pair is zero again afterwards, for the next region.
    """
    rows = tl.program_id(0) * B + tl.arange(0, B)
    live = rows < tl.load(count_ptr)
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    more = tl.load(lane_constant_ptr + rows, mask=live, other=0.0)
    charge = tl.load(lane_error_ptr + rows, mask=live, other=0.0)
    constant, error = pay(constant, error, more, charge)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)
    tl.store(lane_constant_ptr + rows, 0.0, mask=live)
    tl.store(lane_error_ptr + rows, 0.0, mask=live)
