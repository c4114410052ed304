"""The paper's interval arithmetic: coefficient intervals times scalar weights, every operation rounded outward.

A row is a coefficient interval [lo, hi] a cell and a constant interval [constant_lo, constant_hi]. Invariant: for every
reachable x there are m_j in [lo_j, hi_j] and c in [constant_lo, constant_hi] (they may depend on x) with

    target  >=  sum m_j x_j  +  c.

So the least value of sum [lo_j, hi_j] x_j over the box, plus constant_lo, bounds the target from below. Each kernel keeps the
invariant by enclosing, for every choice inside the old intervals, the numbers that exact arithmetic makes of that choice.
The affine node x = W y + b + delta, |delta| <= e, takes two steps: its constants join by `interval_concretize` over the box
[b - e, b + e], its weights by `interval_dense` or `interval_conv` (interval_products.py). NaN means "no bound", as does -inf.
interval_steps.py holds the other steps of a program.

Boxes and cuts are float64 whatever the coefficients. Coefficients of row r lie at slot[r] where SLOT is on, else at r.

Sums over cells are taken lane by lane, rounded outward at each step; only the lanes of a tile are then added to nearest, and
that is charged. INTERPRET picks the emulation of directed.py, for Triton's interpreter.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import RowPass
from polytriton.kernels.device.directed import (
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
from polytriton.kernels.device.numerics import U64, table_base, taken_rows


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
    """At least what float64 loses when it adds the numbers of each row of `sums`, LANES of which are not zero, to nearest in any order.

    The loss is at most gamma_(LANES-1) sum |s_i|; twice LANES unit roundoffs cover that, the rounding of this very sum and of the
    product. Subnormal sums are exact, so underflow needs no term. A sum that overflows makes this infinite, and the bound with it.
    """
    return tl.sum(tl.abs(sums), 1) * (2 * LANES * U64)


@triton.jit
def down_by(a, b, least, most, low, INTERPRET: tl.constexpr):
    """low + the least m v over m in [a, b], v in [least, most], rounded down; float64.

    The least product lies at a corner. For fixed m it is m least (m >= 0) or m most (m < 0), which is concave in m: so the end
    m = a or m = b decides, two corners out of four.
    """
    at_a = tl.where(a >= 0, least, most)
    at_b = tl.where(b >= 0, least, most)
    if INTERPRET:
        from_a, from_b = tl.split(fma_down_emulated(tl.join(a, b), tl.join(at_a, at_b), tl.join(low, low)))
        return lesser(from_a, from_b)
    else:
        return lesser(fma_down(a, at_a, low), fma_down(b, at_b, low))


@triton.jit
def up_by(a, b, least, most, high, INTERPRET: tl.constexpr):
    """high + the greatest m v, rounded up: `down_by` of the negated."""
    at_a = tl.where(a >= 0, most, least)
    at_b = tl.where(b >= 0, most, least)
    if INTERPRET:
        from_a, from_b = tl.split(fma_up_emulated(tl.join(a, b), tl.join(at_a, at_b), tl.join(high, high)))
        return greater(from_a, from_b)
    else:
        return greater(fma_up(a, at_a, high), fma_up(b, at_b, high))


@triton.jit
def plus_lanes_down(start, low, LANES: tl.constexpr, INTERPRET: tl.constexpr):
    """start + the sum of each row of `low`, rounded down."""
    if INTERPRET:
        return add_down_emulated(start, add_down_emulated(tl.sum(low, 1), -1.0 * lane_error(low, LANES)))
    else:
        return add_down(start, add_down(tl.sum(low, 1), -1.0 * lane_error(low, LANES)))


@triton.jit
def plus_lanes_up(start, high, LANES: tl.constexpr, INTERPRET: tl.constexpr):
    """start + the sum of each row of `high`, rounded up."""
    if INTERPRET:
        return add_up_emulated(start, add_up_emulated(tl.sum(high, 1), lane_error(high, LANES)))
    else:
        return add_up(start, add_up(tl.sum(high, 1), lane_error(high, LANES)))


@dataclass(frozen=True)
class IntervalRelax(RowPass):
    LOWER: bool
    INTERPRET: bool


@triton.jit
def interval_relax(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, lower_ptr, cut_ptr, box_lo_ptr, box_hi_ptr,
    constant_lo_ptr, constant_hi_ptr, out_lo_ptr, out_hi_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Rows over f(y), a ReLU, become rows over y, given  below y + lower <= f(y) <= above y + cut  and f(y) in the box.

    Take a reachable y and the choice m, c that the invariant gives for x = f(y); [a, b] is the coefficient interval of a cell.
        a >= 0      m f(y) >= m below y + m lower: the coefficient becomes [a, b] below, which holds m below, and [a, b] lower
                    joins the constant interval. lower is 0, and never read, but for a leaky ReLU (LOWER).
        b <= 0      m f(y) >= m above y + m cut: [a, b] above, and [a, b] cut joins the constant interval.
        a < 0 < b   m may have either sign, and no line serves both: the coefficient becomes [0, 0] and m f(y) itself joins the
                    constant, enclosed from its least value over the box to its greatest.
    So target >= sum m'_j y_j + c' with m' in the new coefficient intervals and c' in the new constant interval. A NaN in a
    row or a table makes the constant NaN. out may be the rows themselves. Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    high = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        at = (at_row * c.SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0)
        below = tl.load(below_ptr + where, mask=inside, other=0.0)
        above = tl.load(above_ptr + where, mask=inside, other=0.0)
        cut = tl.load(cut_ptr + where, mask=inside, other=0.0)
        least = tl.load(box_lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        most = tl.load(box_hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        strange = (below != below) | (above != above) | (cut != cut) | (least != least) | (most != most)
        lower = tl.zeros_like(cut)
        if c.LOWER:
            lower = tl.load(lower_ptr + where, mask=inside, other=0.0)
            strange = strange | (lower != lower)
        slope = tl.where(a >= 0, below, tl.where(b <= 0, above, 0.0))
        near = tl.where(slope >= 0, a, b)
        far = tl.where(slope >= 0, b, a)
        # what the constant takes is [a, b] times a box: a cut, or that of f(y)
        least = tl.where(a >= 0, lower, tl.where(b <= 0, cut, least))
        most = tl.where(a >= 0, lower, tl.where(b <= 0, cut, most))
        least = tl.where(strange, float("nan"), least)
        most = tl.where(strange, float("nan"), most)
        low = down_by(a.to(tl.float64), b.to(tl.float64), least, most, low, c.INTERPRET)
        high = up_by(a.to(tl.float64), b.to(tl.float64), least, most, high, c.INTERPRET)
        if c.INTERPRET:
            out_lo = mul_down_emulated(near, slope)
            out_hi = mul_up_emulated(far, slope)
        else:
            out_lo = mul_down(near, slope)
            out_hi = mul_up(far, slope)
        to = (rows.to(tl.int64) * c.SIZE)[:, None] + q[None, :]
        tl.store(out_lo_ptr + to, out_lo, mask=inside)
        tl.store(out_hi_ptr + to, out_hi, mask=inside)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    tl.store(constant_lo_ptr + rows, plus_lanes_down(constant_lo, low, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
    tl.store(constant_hi_ptr + rows, plus_lanes_up(constant_hi, high, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)


@dataclass(frozen=True)
class IntervalConcretize(RowPass):
    INTERPRET: bool


@triton.jit
def interval_concretize(
    lo_m_ptr, hi_m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, box_lo_ptr, box_hi_ptr, constant_lo_ptr, constant_hi_ptr,
    value_lo_ptr, value_hi_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """value_lo = constant_lo + sum over cells of the least m v, m in [a, b], v in the box; value_hi = constant_hi + the greatest.

    float64, rounded down (up) throughout, the sum of lanes charged; NaN stays NaN, and 0 times an infinite bound is one. A value
    may replace the constant it came from: where v is the constant of a substituted node, that is its step of the constants.
    Grid: (blocks of BR rows).
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    low = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    high = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        at = (at_row * c.SIZE)[:, None] + q[None, :]
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        a = tl.load(lo_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        b = tl.load(hi_m_ptr + at, mask=inside, other=0.0).to(tl.float64)
        least = tl.load(box_lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        most = tl.load(box_hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        low = down_by(a, b, least, most, low, c.INTERPRET)
        high = up_by(a, b, least, most, high, c.INTERPRET)
    constant_lo = tl.load(constant_lo_ptr + rows, mask=live, other=0.0)
    constant_hi = tl.load(constant_hi_ptr + rows, mask=live, other=0.0)
    tl.store(value_lo_ptr + rows, plus_lanes_down(constant_lo, low, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
    tl.store(value_hi_ptr + rows, plus_lanes_up(constant_hi, high, min(c.BQ, c.SIZE), c.INTERPRET), mask=live)
