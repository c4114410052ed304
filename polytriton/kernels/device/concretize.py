"""Candidate bounds: the least value of every row over the box of its frontier, and which rows are done."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import RowPass
from polytriton.kernels.device.numerics import TINY, U64, finite_or_worst, table_base, taken_rows


@dataclass(frozen=True)
class ConcretizeRows(RowPass):
    REL: float
    FIRST: bool
    LAST: bool
    NODES: int


@triton.jit
def concretize_rows(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, lo_ptr, hi_ptr, floor_ptr, constant_ptr, error_ptr,
    value_ptr, raw_ptr, slack_ptr, index_ptr, results, limit_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Adds one frontier node to the rows' bounds; the LAST one settles them.

    value = constant - error + sum over nodes of  least = sum M_j lo_j (M_j >= 0) or M_j hi_j (M_j < 0), in float64;
    slack = sum over nodes of REL * weight + floor,  weight = sum |M_j| max(|lo_j|, |hi_j|). NaN and infinity mean "no bound".

    Bound, U = 2^-53: a product is rounded once and takes part in at most SIZE - 1 additions of its node, in any order, and NODES
    to the scalars and the other nodes: gamma_(SIZE + NODES)(U) of its magnitude, also where these cancel and the value is small.
    REL = 2 (SIZE + NODES - 1 + 8) U covers that and the rounding of weight and slack; where a ReLU's product is pending, REL has
    u (1 + 2^-20) for it on top. The additions of constant, error, value and slack themselves, at most NODES + 8, are charged at
    the end with 16 + 8 NODES unit roundoffs of their magnitudes.

    Where the best bound so far exceeds the limit (0, the number just below it, or infinity: never), the row's group is done.
    """
    group_ptr, best_ptr, raw_best_ptr, done_ptr = results
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows, live, image, row_h, row_w, at_row = taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c)
    base = table_base(image, row_h, row_w, c.START, c.PLANE, c.PITCH, c.C, c.RH, c.OH, c.RW, c.OW)
    sums = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    sizes = tl.full((c.BR, c.BQ), 0.0, tl.float64)
    for q0 in range(0, c.SIZE, c.BQ):
        q = q0 + tl.arange(0, c.BQ)
        inside = live[:, None] & (q < c.SIZE)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * c.SIZE + q[None, :], mask=inside, other=0.0).to(tl.float64)
        where = base[:, None] + ((q // c.LINE) * c.PITCH + q % c.LINE)[None, :]
        lo = tl.load(lo_ptr + where, mask=inside, other=0.0).to(tl.float64)
        hi = tl.load(hi_ptr + where, mask=inside, other=0.0).to(tl.float64)
        sums += x * tl.where(x < 0, hi, lo)
        sizes += tl.abs(x) * tl.maximum(tl.abs(lo), tl.abs(hi))
    least = tl.sum(sums, 1)
    slack = c.REL * tl.sum(sizes, 1) + tl.load(floor_ptr + image, mask=live, other=0.0)
    if c.FIRST or c.LAST:
        constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
        error = tl.load(error_ptr + rows, mask=live, other=0.0)
    if c.FIRST:
        value = constant - error + least
        raw = constant + least
    else:
        value = tl.load(value_ptr + rows, mask=live, other=0.0) + least
        raw = tl.load(raw_ptr + rows, mask=live, other=0.0) + least
        slack = tl.load(slack_ptr + rows, mask=live, other=0.0) + slack
    if c.LAST:
        spread = tl.abs(value) + error + slack + tl.abs(raw) + tl.abs(constant)
        value = finite_or_worst(value - slack - (16 + 8 * c.NODES) * U64 * spread - TINY)
        raw = finite_or_worst(raw)
        index = tl.load(index_ptr + rows, mask=live, other=0)
        best = tl.maximum(tl.load(best_ptr + index, mask=live, other=0.0), value)
        tl.store(best_ptr + index, best, mask=live)
        tl.store(raw_best_ptr + index, tl.maximum(tl.load(raw_best_ptr + index, mask=live, other=0.0), raw), mask=live)
        group = tl.load(group_ptr + index, mask=live, other=0)
        tl.store(done_ptr + group, tl.full((c.BR,), 1, tl.int8), mask=live & (best > tl.load(limit_ptr)))
    else:
        tl.store(value_ptr + rows, value, mask=live)
        tl.store(raw_ptr + rows, raw, mask=live)
        tl.store(slack_ptr + rows, slack, mask=live)
