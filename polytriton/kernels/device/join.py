"""Two contributions to one node add up on the union of their windows; a window alone can be widened the same way."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import TableLayout, WindowSum
from polytriton.kernels.device.numerics import pay, position, table_base


@dataclass(frozen=True)
class JoinRows(WindowSum, TableLayout):
    A_REL: float
    B_REL: float
    OUT_REL: float


@triton.jit
def join_rows(
    a_ptr, a_slot_ptr, b_ptr, b_slot_ptr, image_ptr, row_h_ptr, row_w_ptr, lo_ptr, hi_ptr, floor_ptr, constant_ptr, error_ptr, out_ptr,
    count_ptr, c: tl.constexpr,
):  # fmt: skip
    """out = A_SIGN a + B_SIGN b, each read at its own offset: cell y of `out` is cell y - row_h (A_RH - RH) + A_OH - OH of a.

    With SECOND every sum is rounded once, which costs OUT_REL sum |out_j| xabs_j (and the image's floor for underflow);
    a part whose coefficients a ReLU multiplied (A_REL, B_REL not 0) pays that rounding first, since it may cancel here.
    All three 0: nobody claims anything of the sum (ascent.py), and nothing is paid.
    Without SECOND nothing is rounded and nothing paid. Cells off the new window are dropped: off the image xabs is zero.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows = first + tl.arange(0, c.BR)
    live = rows < count
    row_h = position(row_h_ptr, rows, live, c.A_RH != c.RH or (c.SECOND and (c.RH != 0 or c.B_RH != 0)))
    row_w = position(row_w_ptr, rows, live, c.A_RW != c.RW or (c.SECOND and (c.RW != 0 or c.B_RW != 0)))
    a_row = rows.to(tl.int64)
    if c.A_SLOT:
        a_row = tl.load(a_slot_ptr + rows, mask=live, other=0)
    if c.SECOND:
        b_row = rows.to(tl.int64)
        if c.B_SLOT:
            b_row = tl.load(b_slot_ptr + rows, mask=live, other=0)
    if c.SECOND and c.A_REL + c.B_REL + c.OUT_REL > 0:
        image = tl.load(image_ptr + rows, mask=live, other=0)
        base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
        a_sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
        b_sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
        sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    SIZE: tl.constexpr = c.HO * c.WO * c.C
    LINE: tl.constexpr = c.WO * c.C
    for q0 in range(0, SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        y = q // LINE
        x = q % LINE // c.C
        channel = q % c.C
        a_y = y[None, :] - (row_h * (c.A_RH - c.RH))[:, None] + (c.A_OH - c.OH)
        a_x = x[None, :] - (row_w * (c.A_RW - c.RW))[:, None] + (c.A_OW - c.OW)
        a_on = inside & (a_y >= 0) & (a_y < c.AH) & (a_x >= 0) & (a_x < c.AW)
        out = tl.load(
            a_ptr + a_row[:, None] * (c.AH * c.AW * c.C) + (a_y * c.AW + a_x) * c.C + channel[None, :], mask=a_on, other=0.0
        ) * c.A_SIGN
        if c.SECOND:
            b_y = y[None, :] - (row_h * (c.B_RH - c.RH))[:, None] + (c.B_OH - c.OH)
            b_x = x[None, :] - (row_w * (c.B_RW - c.RW))[:, None] + (c.B_OW - c.OW)
            b_on = inside & (b_y >= 0) & (b_y < c.BH) & (b_x >= 0) & (b_x < c.BW)
            b = tl.load(
                b_ptr + b_row[:, None] * (c.BH * c.BW * c.C) + (b_y * c.BW + b_x) * c.C + channel[None, :], mask=b_on, other=0.0
            ) * c.B_SIGN
            if c.A_REL + c.B_REL + c.OUT_REL > 0:
                where = base[:, None] + (y * c.PITCH + q % LINE)[None, :]
                lo = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
                hi = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
                xabs = tl.maximum(tl.abs(lo), tl.abs(hi))
                if c.A_REL > 0:
                    a_sizes += tl.abs(out.to(tl.float64)) * xabs
                if c.B_REL > 0:
                    b_sizes += tl.abs(b.to(tl.float64)) * xabs
            out = out + b
            if c.A_REL + c.B_REL + c.OUT_REL > 0:
                sizes += tl.abs(out.to(tl.float64)) * xabs
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], out, mask=inside)
    if c.SECOND and c.A_REL + c.B_REL + c.OUT_REL > 0:
        constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
        error = tl.load(error_ptr + rows, mask=live, other=0.0)
        floor = tl.load(floor_ptr + image, mask=live, other=0.0)
        if c.A_REL > 0:
            constant, error = pay(constant, error, 0.0, c.A_REL * tl.sum(a_sizes, 1) + floor)
        if c.B_REL > 0:
            constant, error = pay(constant, error, 0.0, c.B_REL * tl.sum(b_sizes, 1) + floor)
        constant, error = pay(constant, error, 0.0, c.OUT_REL * tl.sum(sizes, 1) + floor)
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
