"""One back-substitution step through a dense layer: ReLU, scalars and product in one kernel; and the sum of a product made in parts.

With SK > 1 (`reduction split`) SK programs share the terms of a tile: where rows are few there are too few tiles to fill a device.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.products import multiply
from polytriton.kernels.device.rows import RowScalars, row_scalars


@dataclass(frozen=True)
class DenseStep(RowScalars):
    """Tiles of BM rows and BN of N columns, BK of K terms at a time, in SK parts; a row has no window here."""

    T: tl.dtype
    FORM: str
    K: int
    N: int
    LINE: int
    C: int
    BM: int
    BN: int
    BK: int
    SK: int


@triton.jit
def dense_step(
    m_ptr, slot_ptr, image_ptr, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr, constant_ptr, error_ptr, w_ptr, out_ptr,
    count_ptr, c: tl.constexpr,
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
    first = tl.program_id(0) * c.BM
    if first >= count:
        return
    if (c.RELU or c.CHARGE) and tl.program_id(1) == (c.N + c.BN - 1) // c.BN * c.SK:
        for start in range(first, tl.minimum(first + c.BM, count), c.BR):
            row_scalars(
                m_ptr, slot_ptr, image_ptr, None, None, below_ptr, above_ptr, cut_ptr, t_ptr, bias_ptr, floor_ptr,
                constant_ptr, error_ptr, None, count, start, c.K, c.LINE, c.C, c,
            )  # fmt: skip
        return
    rows = first + tl.arange(0, c.BM)
    live = rows < count
    at_row = rows.to(tl.int64)
    if c.SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    if c.RELU:
        base = tl.load(image_ptr + rows, mask=live, other=0) * c.PLANE + c.START
    if c.SK > 1:
        # program s of a tile takes the s-th of SK stretches of whole blocks and writes out[r, s, n]; sum_parts has the bound
        part = tl.program_id(1) % c.SK
        n = tl.program_id(1) // c.SK * c.BN + tl.arange(0, c.BN)
    else:
        n = tl.program_id(1) * c.BN + tl.arange(0, c.BN)
    acc = tl.full((c.BM, c.BN), 0.0, tl.float64)
    for k0 in range(0, (c.K + c.SK * c.BK - 1) // (c.SK * c.BK) * c.BK if c.SK > 1 else c.K, c.BK):
        k = k0 + tl.arange(0, c.BK)
        if c.SK > 1:
            k += part * ((c.K + c.SK * c.BK - 1) // (c.SK * c.BK) * c.BK)
        inside = live[:, None] & (k < c.K)[None, :]
        x = tl.load(m_ptr + at_row[:, None] * c.K + k[None, :], mask=inside, other=0.0)
        if c.RELU:
            where = base[:, None] + ((k // c.LINE) * c.PITCH + k % c.LINE)[None, :]
            above = tl.load(above_ptr + where, mask=inside, other=0.0)
            below = tl.load(below_ptr + where, mask=inside, other=0.0)
            x = x * tl.where(x < 0, above, below)
        w = tl.load(w_ptr + k.to(tl.int64)[:, None] * c.N + n[None, :], mask=(k < c.K)[:, None] & (n < c.N)[None, :], other=0.0)
        acc = multiply(x, w, acc, c.T, c.FORM)
    if c.SK > 1:
        at = (rows.to(tl.int64) * c.SK + part)[:, None] * c.N + n[None, :]
        tl.store(out_ptr + at, acc.to(c.T), mask=live[:, None] & (n < c.N)[None, :])
    else:
        tl.store(out_ptr + rows.to(tl.int64)[:, None] * c.N + n[None, :], acc.to(c.T), mask=live[:, None] & (n < c.N)[None, :])


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
