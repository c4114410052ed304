"""Rows of a query: linear forms over the network's output, as the first launches read them."""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

from polytriton.kernels.device.boxes import reach
from polytriton.kernels.device.forward import GROW


@triton.jit
def open_forms(
    rows_ptr, of_ptr, forms_ptr, gap_ptr, minus_ptr, group_of_ptr, numbers_ptr, box_lo_ptr, box_hi_ptr, count_ptr, new, results, start_ptr,
    GAP: tl.constexpr, T: tl.constexpr, SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Rows 0 to count of forms `begin` on (rows = [begin, count]): row r is C y - minus over the box of image `of`, C = forms[begin + r].

    Coefficients start as S = C rounded to T. The true ones lie within GAP's `gap` of C (which without it is exact), and the
    deployed output itself may be off by numbers[0] a unit of |C| where it was flushed to zero. So the form is at least

        S y - minus - error,  error = sum_j (|C_j - S_j| + gap_j) max(|lo_j|, |hi_j|) + numbers[0] sum_j |C_j|.

    C - S is exact: S has the leading bits of C (or is infinite, and then so is the error, or too small, and then it is C). All
    terms are of one sign, a product and SIZE additions each: GROW covers their roundings. Where C is exact a box without a bound
    costs nothing.

    The form's result is "no bound" and its group open: form k opens place k of `done`, and the host all of them where groups are
    more than forms or the forms take several blocks.
    """
    image_ptr, row_h_ptr, row_w_ptr, constant_ptr, error_ptr, index_ptr = new
    group_ptr, best_ptr, raw_best_ptr, done_ptr = results
    begin = tl.load(rows_ptr)
    count = tl.load(rows_ptr + 1)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    live = row < count
    form = begin + row
    if tl.program_id(0) == 0:
        tl.store(count_ptr, count)
    image = tl.load(of_ptr + form, mask=live, other=0)
    flushed = tl.load(numbers_ptr)
    lost = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        exact = tl.load(forms_ptr + form[:, None] * SIZE + q[None, :], mask=inside, other=0.0)
        start = exact.to(T)
        tl.store(start_ptr + row.to(tl.int64)[:, None] * SIZE + q[None, :], start, mask=inside)
        off = tl.abs(exact - start.to(tl.float64))
        if GAP:
            off += tl.load(gap_ptr + form[:, None] * SIZE + q[None, :], mask=inside, other=0.0)
        at = image[:, None] * SIZE + q[None, :]
        low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
        high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
        lost += tl.where(off == 0, 0.0, off * reach(low, high)) + flushed * tl.abs(exact)
    tl.store(error_ptr + row, tl.sum(lost, 1) * GROW, mask=live)
    tl.store(constant_ptr + row, 0.0 - tl.load(minus_ptr + form, mask=live, other=0.0), mask=live)
    nowhere = row.to(tl.int64) * 0
    tl.store(image_ptr + row, image, mask=live)
    tl.store(row_h_ptr + row, nowhere, mask=live)
    tl.store(row_w_ptr + row, nowhere, mask=live)
    tl.store(index_ptr + row, form, mask=live)
    tl.store(group_ptr + form, tl.load(group_of_ptr + form, mask=live, other=0), mask=live)
    worst = tl.full((BR,), float("-inf"), tl.float64)
    tl.store(best_ptr + form, worst, mask=live)
    tl.store(raw_best_ptr + form, worst, mask=live)
    tl.store(done_ptr + form, tl.full((BR,), 0, tl.int8), mask=live & (begin == 0))
