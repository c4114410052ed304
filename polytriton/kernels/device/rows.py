"""Passes over rows that cost memory traffic only: the ReLU's substitution and the scalars of the affine step behind it."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import MovingWindow, TableLayout
from polytriton.kernels.device.numerics import pay, table_base, taken_rows


@dataclass(frozen=True)
class RowScalars(MovingWindow, TableLayout):
    """What row_scalars is told; the next node's tables lie as T_ says."""

    RELU: bool
    CHARGE: bool
    SLOT: bool
    T_START: int
    T_PLANE: int
    T_PITCH: int
    BIAS: str
    SUM_ERROR: float
    BR: int
    BQ: int


@triton.jit
def row_scalars(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr, constant_ptr,
    error_ptr, out_ptr, count, first, SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr, c: tl.constexpr,
):  # fmt: skip
    """Rows `first` to first + BR over f(y): what substituting the ReLU and the affine node y costs their scalars.

    RELU   N_j = M_j above_j where M_j < 0, M_j below_j elsewhere (NaN stays NaN); constant += sum of M_j cut_j over M_j < 0.
           All those terms have one sign, so enlarging the sum by SUM_ERROR covers its rounding.
    CHARGE constant += sum N_j bias_j, error += sum |N_j| t_j (enlarged by SUM_ERROR) + floor of the row's image.
    The sums are float64 over exact products (float32 coefficients) or products whose rounding SUM_ERROR and t count, in any order.
    """
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, C, c.RH, c.OH, c.RW, c.OW)
    t_base = table_base(image, row_h, row_w, c.T_START, c.T_PLANE, c.T_PITCH, C, c.RH, c.OH, c.RW, c.OW)
    total = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    charged = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    fixed = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * SIZE + q[None, :], mask=inside, other=0.0)
        if c.RELU:
            where = base[:, None] + ((q // LINE) * c.PITCH + q % LINE)[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
            total += tl.where(x >= 0, 0.0, x.to(tl.float64) * cut.to(tl.float64))
            x = x * tl.where(x < 0, above, below)
            if out_ptr is not None:
                tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], x, mask=inside)
        if c.CHARGE:
            t = tl.load(t_ptr + t_base[:, None] + ((q // LINE) * c.T_PITCH + q % LINE)[None, :], mask=inside, other=0.0)
            charged += tl.abs(x.to(tl.float64)) * t.to(tl.float64)
            if c.BIAS == "line":
                bias = tl.load(bias_ptr + q % C, mask=q < SIZE, other=0.0)
                fixed += x.to(tl.float64) * bias[None, :]
            if c.BIAS == "image":
                bias = tl.load(bias_ptr + q, mask=q < SIZE, other=0.0)
                fixed += x.to(tl.float64) * bias[None, :]
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    if c.RELU:
        constant, error = pay(constant, error, tl.sum(total, 1) * c.SUM_ERROR, 0.0)
    if c.CHARGE:
        floor = tl.load(floor_ptr + image, mask=live, other=0.0)
        constant, error = pay(constant, error, tl.sum(fixed, 1), tl.sum(charged, 1) * c.SUM_ERROR + floor)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)


@dataclass(frozen=True)
class RelaxRows(RowScalars):
    SIZE: int
    LINE: int
    C: int


@triton.jit
def relax_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr, constant_ptr,
    error_ptr, out_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """The pass on its own (see row_scalars): rows over f(y) are written as rows over y, or only charged where RELU is off."""
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first < count:
        row_scalars(
            m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
            constant_ptr, error_ptr, out_ptr, count, first, c.SIZE, c.LINE, c.C, c,
        )  # fmt: skip
