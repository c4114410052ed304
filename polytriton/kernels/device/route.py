"""Coefficients that only move: a concatenation's go to its operands, a gather's to the cells it read."""

import triton
import triton.language as tl


@triton.jit
def part_rows(
    m_ptr, slot_ptr, out_ptr, count_ptr,
    SLOT: tl.constexpr, FROM: tl.constexpr, SIZE: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, BEGIN: tl.constexpr,
    BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """One operand's share of rows over a concatenation: of every OUTER values of a row (FROM in all) INNER from BEGIN on.

    Nothing is added and nothing rounded.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    at_row = rows.to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    inside = live[:, None] & (q < SIZE)[None, :]
    at = q // INNER * OUTER + BEGIN + q % INNER
    x = tl.load(m_ptr + at_row[:, None] * FROM + at[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], x, mask=inside)


@triton.jit
def gather_rows(
    m_ptr, slot_ptr, starts_ptr, readers_ptr, out_ptr, count_ptr,
    T: tl.constexpr, SLOT: tl.constexpr, FROM: tl.constexpr, SIZE: tl.constexpr, CO: tl.constexpr, CI: tl.constexpr,
    REPEATS: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Rows over a gather become rows over what it read, in blocks of CO values that become CI each (FROM and SIZE in all).

    Value s of a block was read by the values readers[starts[s]] to readers[starts[s + 1] - 1] of the new block, at most REPEATS
    of them: their coefficients add up, one after the other. What reads padding is in no list: its value is zero.

    Bound: an entry adds at most REPEATS coefficients, the first to zero: REPEATS - 1 roundings, gamma_(REPEATS - 1)(u) sum |M_j|,
    which the gather's vector t charges (its own pass, rows.relax_rows) as it charges what is pending on the M_j.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * BR
    if first >= count:
        return
    rows = first + tl.arange(0, BR)
    live = rows < count
    at_row = rows.to(tl.int64)
    if SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    wanted = (q < SIZE)[None, :]  # lists stay two-dimensional: Triton loses the layout of a mask of fewer values than threads
    begin = tl.load(starts_ptr + (q % CI)[None, :], mask=wanted, other=0)
    end = tl.load(starts_ptr + (q % CI)[None, :] + 1, mask=wanted, other=0)
    sums = tl.full((BR, BQ), 0.0, T)
    for k in range(REPEATS):
        reads = begin + k < end
        at = (q // CI * CO)[None, :] + tl.load(readers_ptr + begin + k, mask=reads, other=0)
        sums += tl.load(m_ptr + at_row[:, None] * FROM + at, mask=live[:, None] & reads, other=0.0)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], sums, mask=live[:, None] & wanted)
