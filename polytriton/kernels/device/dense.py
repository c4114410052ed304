"""One back-substitution step through a dense layer: ReLU, scalars and product in one kernel; and the sum of a product made in parts.

With SK > 1 (`reduction split`) SK programs share the terms of a tile: where rows are few there are too few tiles to fill a device.
"""

import triton
import triton.language as tl

from polytriton.kernels.device.products import multiply
from polytriton.kernels.device.rows import row_scalars


@triton.jit
def dense_step(
    m_ptr, slot_ptr, image_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
    constant_ptr, error_ptr, w_ptr, out_ptr, count_ptr,
    T: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr, CHARGE: tl.constexpr, SLOT: tl.constexpr,
    K: tl.constexpr, N: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    T_START: tl.constexpr, T_PLANE: tl.constexpr, T_PITCH: tl.constexpr,
    BIAS: tl.constexpr, SUM_ERROR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
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
    if (RELU or CHARGE) and tl.program_id(1) == (N + BN - 1) // BN * SK:
        for start in range(first, tl.minimum(first + BM, count), BR):
            row_scalars(
                m_ptr, slot_ptr, image_ptr, None, None, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
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
    if SK > 1:
        # program s of a tile takes the s-th of SK stretches of whole blocks and writes out[r, s, n]; sum_parts has the bound
        part = tl.program_id(1) % SK
        n = tl.program_id(1) // SK * BN + tl.arange(0, BN)
    else:
        n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.full((BM, BN), 0.0, tl.float64)
    for k0 in range(0, (K + SK * BK - 1) // (SK * BK) * BK if SK > 1 else K, BK):
        k = k0 + tl.arange(0, BK)
        if SK > 1:
            k += part * ((K + SK * BK - 1) // (SK * BK) * BK)
        inside = live[:, None] & (k < K)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * K + k[None, :], mask=inside, other=0.0)
        if RELU:
            where = base[:, None] + ((k // LINE) * PITCH + k % LINE)[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            x = x * tl.where(x < 0, above, below)
        w = tl.load(w_ptr + k.to(tl.int64)[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = multiply(x, w, acc, T, FORM)
    if SK > 1:
        at = (rows.to(tl.int64) * SK + part)[:, None] * N + n[None, :]
        tl.store(out_ptr + at, acc.to(T), mask=live[:, None] & (n < N)[None, :])
    else:
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * N + n[None, :], acc.to(T), mask=live[:, None] & (n < N)[None, :])


@triton.jit
def sum_parts(
    parts_ptr, out_ptr, count_ptr, T: tl.constexpr, N: tl.constexpr, SK: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr
):  # fmt: skip
    """out[r, n] = sum over s of parts[r, s, n], in that order: a dense step whose terms were split.

    Bound: an entry has K terms in SK stretches of blocks of BK (16 to 32), t of the terms are not zero. float64: a term takes part
    in the roundings of its own stretch and in one for every other stretch that is not zero, at most t in all, as in one chain.
    float32: a term passes m <= min(t, 32) roundings to u = 2^-24 in its block, D in float64 (blocks of its stretch, then
    stretches: D < t, and D <= K / (16 SK) + SK + 1), one where its stretch is stored and one here. An unsplit product is charged
    gamma_(min(t, 32) + 2)(u), and that covers it: with n = min(t, 32) + 2

        (1 + u)^n (1 + 2^-53)^D - 1  <=  gamma_n(u) - (n u)^2 / 2 + 1.01 D 2^-53  <=  gamma_n(u),

    for 1.01 D <= 16 n^2: if t <= 32 since D < t, else since 16 n^2 = 18496 and D <= 500000 / 32 + 3 (layers.WIDEST). Split
    products are charged 4 u behind their blocks, and it is 3 u. Each of the K products and K additions is charged eta for
    underflow; the first term of a block takes part in no addition, which pays for storing its stretch. Infinity and NaN stay.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    n = tl.program_id(1) * BQ + tl.arange(0, BQ)
    inside = (rows < count)[:, None] & (n < N)[None, :]
    total = tl.full((BR, BQ), 0.0, tl.float64)
    for s in range(SK):
        at = (rows.to(tl.int64) * SK + s)[:, None] * N + n[None, :]
        total += tl.load(parts_ptr + at, mask=inside, other=0.0).to(tl.float64)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * N + n[None, :], total.to(T), mask=inside)
