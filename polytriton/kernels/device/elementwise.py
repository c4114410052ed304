"""Row passes of operators that act on every cell alone: a ReLU with a slope of its own, a multiplication cell by cell."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import RowPass
from polytriton.kernels.device.numerics import pay, table_base, taken_rows


@dataclass(frozen=True)
class SlopeRows(RowPass):
    LOWER: bool
    PENDING: float
    SUM_ERROR: float


@triton.jit
def slope_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, lower_ptr, cut_ptr, lo_ptr, hi_ptr, floor_ptr, constant_ptr,
    error_ptr, out_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows over f(y) become rows over y, where below y + lower <= f(y) <= above y + cut, lower <= 0 <= cut (LOWER off: lower is 0).

    N_j = M_j above_j where M_j < 0, M_j below_j elsewhere (NaN stays NaN);
    constant += sum of M_j cut_j over M_j < 0 and of M_j lower_j over M_j > 0. All SIZE terms have one sign, so enlarging the
    float64 sum by SUM_ERROR covers its additions, in any order, and its products.
    The rounding of N_j, at most u |N_j|, is pending: whoever substitutes or bounds y charges it.
    PENDING: so is that of M_j, which a nonlinear operator made over f(y); it would be forgotten here, so it is paid:
    error += PENDING sum |M_j| max(|lo_j|, |hi_j|) + the image's floor. PENDING holds the enlargement for that sum.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    total = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    if c.PENDING > 0:
        sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * c.SIZE + q[None, :], mask=inside, other=0.0)
        above = tl.load(above_ptr + where, mask=inside, other=0.0)
        below = tl.load(below_ptr + where, mask=inside, other=0.0)
        cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
        total += tl.where(x >= 0, 0.0, x.to(tl.float64) * cut.to(tl.float64))
        if c.LOWER:
            lower = tl.load(lower_ptr + where, mask=inside, other=0.0)
            total += tl.where(x > 0, x.to(tl.float64) * lower.to(tl.float64), 0.0)
        if c.PENDING > 0:
            lo = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
            hi = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
            sizes += tl.abs(x.to(tl.float64)) * tl.maximum(tl.abs(lo), tl.abs(hi))
        x = x * tl.where(x < 0, above, below)
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * c.SIZE + q[None, :], x, mask=inside)
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    if c.PENDING > 0:
        floor = tl.load(floor_ptr + image, mask=live, other=0.0)
        constant, error = pay(constant, error, 0.0, c.PENDING * tl.sum(sizes, 1) + floor)
    constant, error = pay(constant, error, tl.sum(total, 1) * c.SUM_ERROR, 0.0)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)


@dataclass(frozen=True)
class ScaleRows(RowPass):
    SUM_ERROR: float


@triton.jit
def scale_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, factor_ptr, shift_ptr, t_ptr, floor_ptr, constant_ptr, error_ptr, out_ptr,
    count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows over y = factor x + shift become rows over x: M_j factor_j, and constant += sum of M_j shift_j.

    `factor` and `shift` are one image's tables, the same for all, zero off the image. Every coefficient is one product, rounded
    once: K = 1, which t holds, as it holds the rounding of the shifts' sum, so error += sum |M_j| t_j (enlarged by SUM_ERROR
    past its own rounding) + floor of the row's image.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    plain = table_base(image * 0, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    charged = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    fixed = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        where = plain[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * c.SIZE + q[None, :], mask=inside, other=0.0)
        t = tl.load(t_ptr + (image * c.PLANE)[:, None] + where, mask=inside, other=0.0)
        shift = tl.load(shift_ptr + where, mask=inside, other=0.0)
        charged += tl.abs(x.to(tl.float64)) * t.to(tl.float64)
        fixed += x.to(tl.float64) * shift
        x = x * tl.load(factor_ptr + where, mask=inside, other=0.0)
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * c.SIZE + q[None, :], x, mask=inside)
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    floor = tl.load(floor_ptr + image, mask=live, other=0.0)
    constant, error = pay(constant, error, tl.sum(fixed, 1), tl.sum(charged, 1) * c.SUM_ERROR + floor)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)
