"""Rows of single neurons: found and made on the device from the cells that the interval pass left open, their bounds brought back.

Neuron k of `begin` + the launch's own lies at cell `at[k]` of the boxes [images, SIZE]; its bounds of +x and -x are results
2 k and 2 k + 1, the likelier sign's first: that row may settle the neuron, and then the other leaves at once (group k is done).
"""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

from polytriton.kernels.device.boxes import is_undecided


@triton.jit
def undecided(box_lo_ptr, box_hi_ptr, at, inside, TIGHT: tl.constexpr):
    """Of cells of a box; see is_undecided."""
    high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
    low = high
    if not TIGHT:
        low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
    return is_undecided(low, high, TIGHT)


@triton.jit
def count_open(box_lo_ptr, box_hi_ptr, blocks_ptr, TIGHT: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """blocks[p] = how many neurons of program p's cells are undecided; every image takes ceil(SIZE / BLOCK) programs."""
    PARTS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    block = tl.program_id(0).to(tl.int64)
    cell = block % PARTS * BLOCK + tl.arange(0, BLOCK)
    found = undecided(box_lo_ptr, box_hi_ptr, block // PARTS * SIZE + cell, cell < SIZE, TIGHT)
    tl.store(blocks_ptr + block, tl.sum(found.to(tl.int64), 0))


@triton.jit
def find_open(
    box_lo_ptr, box_hi_ptr, blocks_ptr, at_ptr, found_ptr,
    TIGHT: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """at[k] = the cell of the k-th undecided neuron, in order, and found = how many there are: a prefix sum over earlier blocks."""
    PARTS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    block = tl.program_id(0).to(tl.int64)
    cell = block % PARTS * BLOCK + tl.arange(0, BLOCK)
    at = block // PARTS * SIZE + cell
    found = undecided(box_lo_ptr, box_hi_ptr, at, cell < SIZE, TIGHT).to(tl.int64)
    before = tl.sum(tl.full((NB,), 0, tl.int64), 0)
    for first in range(0, block, NB):
        earlier = first + tl.arange(0, NB)
        before += tl.sum(tl.load(blocks_ptr + earlier, mask=earlier < block, other=0), 0)
    tl.store(at_ptr + before + tl.cumsum(found, 0) - 1, at, mask=found > 0)
    if block == tl.num_programs(0) - 1:
        tl.store(found_ptr, before + tl.sum(found, 0))


@triton.jit
def likelier(box_lo_ptr, box_hi_ptr, at, live, LEAVES: tl.constexpr):
    """1 where a neuron is likelier on than off (its lower bound is nearer to zero), else -1; always 1 where no row leaves."""
    sign = tl.full(at.shape, 1.0, tl.float64)
    if LEAVES:
        low = tl.load(box_lo_ptr + at, mask=live, other=0.0)
        high = tl.load(box_hi_ptr + at, mask=live, other=0.0)
        sign = tl.where(low >= -high, sign, -1.0)
    return sign


@triton.jit
def open_neurons(
    at_ptr, box_lo_ptr, box_hi_ptr, begin_ptr, count_ptr, found_ptr, room_ptr, new, results,
    SECOND: tl.constexpr, AHEAD: tl.constexpr, LEAVES: tl.constexpr, SIZE: tl.constexpr, LINE: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows 0 to count of neurons `begin` on, of the likelier sign or (SECOND) the other: x = sign x + 0 - 0 is exact.

    The first time round their results are "no bound" and their group is open. Groups count where LEAVES: else nobody looks.
    AHEAD: the host knows no number; rows are those of all neurons found, as far as there is room, and `begin` and `count` say so.
    """
    image_ptr, row_h_ptr, row_w_ptr, channel_ptr, sign_ptr, constant_ptr, error_ptr, index_ptr = new
    group_ptr, best_ptr, raw_best_ptr, done_ptr = results
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if AHEAD:
        count = tl.minimum(tl.load(found_ptr), tl.load(room_ptr))
        if tl.program_id(0) == 0:
            tl.store(count_ptr, count)
            tl.store(begin_ptr, count - count)
        neuron = row
    else:
        count = tl.load(count_ptr)
        neuron = tl.load(begin_ptr) + row
    live = row < count
    at = tl.load(at_ptr + neuron, mask=live, other=0)
    cell = at % SIZE
    sign = likelier(box_lo_ptr, box_hi_ptr, at, live, LEAVES)
    index = 2 * neuron
    if SECOND:
        index = index + 1
        sign = -sign
    tl.store(image_ptr + row, at // SIZE, mask=live)
    tl.store(row_h_ptr + row, cell // LINE, mask=live)
    tl.store(row_w_ptr + row, cell % LINE // C, mask=live)
    tl.store(channel_ptr + row, cell % C, mask=live)
    tl.store(sign_ptr + row, sign, mask=live)
    tl.store(constant_ptr + row, tl.full((BLOCK,), 0.0, tl.float64), mask=live)
    tl.store(error_ptr + row, tl.full((BLOCK,), 0.0, tl.float64), mask=live)
    tl.store(index_ptr + row, index, mask=live)
    if not SECOND:
        worst = tl.full((BLOCK,), float("-inf"), tl.float64)
        for k in tl.static_range(2):
            tl.store(best_ptr + index + k, worst, mask=live)
            tl.store(raw_best_ptr + index + k, worst, mask=live)
            tl.store(group_ptr + index + k, neuron, mask=live)
        tl.store(done_ptr + neuron, tl.full((BLOCK,), 0, tl.int8), mask=live)


@triton.jit
def close_neurons(
    at_ptr, best_ptr, box_lo_ptr, box_hi_ptr, count_ptr, ALL: tl.constexpr, LEAVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The neurons' boxes after both signs: the best of all candidates, or (ALL off) what was found at the input where anything was."""
    neuron = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = neuron < tl.load(count_ptr)
    at = tl.load(at_ptr + neuron, mask=live, other=0)
    low = tl.load(box_lo_ptr + at, mask=live, other=0.0)
    high = tl.load(box_hi_ptr + at, mask=live, other=0.0)
    sign = likelier(box_lo_ptr, box_hi_ptr, at, live, LEAVES)
    first = tl.load(best_ptr + 2 * neuron, mask=live, other=0.0)
    second = tl.load(best_ptr + 2 * neuron + 1, mask=live, other=0.0)
    found_low = tl.where(sign > 0, first, second)
    found_high = -tl.where(sign > 0, second, first)
    if ALL:
        low = tl.where(found_low > low, found_low, low)
        high = tl.where(found_high < high, found_high, high)
    else:
        low = tl.where(tl.abs(found_low) < float("inf"), found_low, low)
        high = tl.where(tl.abs(found_high) < float("inf"), found_high, high)
    tl.store(box_lo_ptr + at, low, mask=live)
    tl.store(box_hi_ptr + at, high, mask=live)
