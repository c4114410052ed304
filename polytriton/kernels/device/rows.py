"""Passes over rows that cost memory traffic only: the ReLU's substitution and the scalars of the affine step behind it."""

import triton
import triton.language as tl

from polytriton.kernels.device.numerics import pay, table_base, taken_rows


@triton.jit
def row_scalars(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
    constant_ptr, error_ptr, out_ptr, count, first,
    RELU: tl.constexpr, CHARGE: tl.constexpr, WRITE: tl.constexpr, SLOT: tl.constexpr,
    SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    T_START: tl.constexpr, T_PLANE: tl.constexpr, T_PITCH: tl.constexpr,
    BIAS: tl.constexpr, SUM_ERROR: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Rows `first` to first + BR over f(y): what substituting the ReLU and the affine node y costs their scalars.

    RELU   N_j = M_j above_j where M_j < 0, M_j below_j elsewhere (NaN stays NaN); constant += sum of M_j cut_j over M_j < 0.
           All those terms have one sign, so enlarging the sum by SUM_ERROR covers its rounding.
    CHARGE constant += sum N_j bias_j, error += sum |N_j| t_j (enlarged by SUM_ERROR) + floor of the row's image.
    The sums are float64 over exact products (float32 coefficients) or products whose rounding SUM_ERROR and t count, in any order.
    """
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, SLOT, RH, RW, BR)
    base = table_base(image, row_h, row_w, START, PLANE, PITCH, C, RH, OH, RW, OW)
    t_base = table_base(image, row_h, row_w, T_START, T_PLANE, T_PITCH, C, RH, OH, RW, OW)
    total = tl.full((BR, BQ), 0.0, tl.float64)
    charged = tl.full((BR, BQ), 0.0, tl.float64)
    fixed = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * SIZE + q[None, :], mask=inside, other=0.0)
        if RELU:
            where = base[:, None] + ((q // LINE) * PITCH + q % LINE)[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
            total += tl.where(x >= 0, 0.0, x.to(tl.float64) * cut.to(tl.float64))
            x = x * tl.where(x < 0, above, below)
            if WRITE:
                tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], x, mask=inside)
        if CHARGE:
            t = tl.load(t_ptr + t_base[:, None] + ((q // LINE) * T_PITCH + q % LINE)[None, :], mask=inside, other=0.0)
            charged += tl.abs(x.to(tl.float64)) * t.to(tl.float64)
            if BIAS == "line":
                bias = tl.load(bias_ptr + q % C, mask=q < SIZE, other=0.0)
                fixed += x.to(tl.float64) * bias[None, :]
            if BIAS == "image":
                bias = tl.load(bias_ptr + q, mask=q < SIZE, other=0.0)
                fixed += x.to(tl.float64) * bias[None, :]
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    if RELU:
        constant, error = pay(constant, error, tl.sum(total, 1) * SUM_ERROR, 0.0)
    if CHARGE:
        floor = tl.load(floor_ptr + image, mask=live, other=0.0)
        constant, error = pay(constant, error, tl.sum(fixed, 1), tl.sum(charged, 1) * SUM_ERROR + floor)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)


@triton.jit
def relax_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
    constant_ptr, error_ptr, out_ptr, count_ptr,
    RELU: tl.constexpr, CHARGE: tl.constexpr, SLOT: tl.constexpr,
    SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    T_START: tl.constexpr, T_PLANE: tl.constexpr, T_PITCH: tl.constexpr,
    BIAS: tl.constexpr, SUM_ERROR: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The pass on its own (see row_scalars): rows over f(y) are written as rows over y, or only charged where RELU is off."""
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first < count:
        row_scalars(
            m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
            constant_ptr, error_ptr, out_ptr, count, first,
            RELU, CHARGE, RELU, SLOT, SIZE, LINE, C, RH, OH, RW, OW, START, PLANE, PITCH, T_START, T_PLANE, T_PITCH,
            BIAS, SUM_ERROR, BR, BQ,
        )  # fmt: skip
