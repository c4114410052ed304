"""One back-substitution step through a dense layer: ReLU, scalars and product in one kernel."""

import triton
import triton.language as tl

from polytriton.kernels.products import multiply
from polytriton.kernels.rows import row_scalars


@triton.jit
def dense_step(
    m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
    constant_ptr, error_ptr, w_ptr, out_ptr, count_ptr,
    T: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr, CHARGE: tl.constexpr, SLOT: tl.constexpr,
    K: tl.constexpr, N: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    T_START: tl.constexpr, T_PLANE: tl.constexpr, T_PITCH: tl.constexpr,
    BIAS: tl.constexpr, SUM_ERROR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """out[r, n] = sum over k of N[r, k] w[k, n], with N = M, or M times the ReLU's slopes by the sign of M (RELU).

    Grid: (blocks of BM rows, tiles of BN columns and, with CHARGE or RELU, one more column of programs for the rows' scalars).

    Bound: an entry of `out` adds K terms in blocks of BK. Inside a block any order, with or without FMA: at most BK roundings
    (products.multiply). float64: the blocks follow one another in the accumulator, K roundings in all. float32: every
    block starts at zero and the blocks are added in float64 (which the compiler cannot merge into the product), so

        |out - N w| <= (gamma_BK(2^-24) + gamma_(K/BK)(2^-53)) sum |N||w|  +  2^-24 |out|  +  K eta,

    which is at most gamma_(min(K, BK) + 2)(2^-24) sum |N||w| + K eta. Terms that are exactly zero take part in no rounding.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BM
    if first >= count:
        return
    if (RELU or CHARGE) and tl.program_id(1) == (N + BN - 1) // BN:
        for start in range(first, tl.minimum(first + BM, count), BR):
            row_scalars(
                m_ptr, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
                constant_ptr, error_ptr, out_ptr, count, start,
                RELU, CHARGE, False, SLOT, K, LINE, C, 0, 0, 0, 0, START, PLANE, PITCH, T_START, T_PLANE, T_PITCH,
                BIAS, SUM_ERROR, BR, BQ,
            )  # fmt: skip
        return
    rows = first + tl.arange(0, BM)
    live = rows < count
    at_row = rows.to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    if RELU:
        base = tl.load(image_ptr + rows, mask=live, other=0) * PLANE + START
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.full((BM, BN), 0.0, tl.float64)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        inside = live[:, None] & (k < K)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * K + k[None, :], mask=inside, other=0.0)
        if RELU:
            where = base[:, None] + ((k // LINE) * PITCH + k % LINE)[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            x = x * tl.where(x < 0, above, below)
        w = tl.load(w_ptr + k.to(tl.int64)[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = multiply(x, w, acc, T, FORM)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * N + n[None, :], acc.to(T), mask=live[:, None] & (n < N)[None, :])
