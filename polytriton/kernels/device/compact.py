"""Rows whose group is done leave: a stable prefix sum on the device. Coefficients stay where they are, reached by `slot`."""

import triton
import triton.language as tl


@triton.jit
def count_staying(index_ptr, group_ptr, done_ptr, count_ptr, blocks_ptr, B: tl.constexpr):
    """blocks[p] = how many of the rows p B to (p+1) B stay."""
    count = tl.load(count_ptr)
    rows = tl.program_id(0) * B + tl.arange(0, B)
    live = rows < count
    index = tl.load(index_ptr + rows, mask=live, other=0)
    group = tl.load(group_ptr + index, mask=live, other=0)
    stays = live & (tl.load(done_ptr + group, mask=live, other=1) == 0)
    tl.store(blocks_ptr + tl.program_id(0), tl.sum(stays.to(tl.int64), 0))


@triton.jit
def move_rows(
    index_ptr, group_ptr, done_ptr, count_ptr, blocks_ptr, old, new, from_ptr, to_count_ptr,
    NEURON: tl.constexpr, B: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """The rows that stay move to the front, in order; from[new] = old. The row's place follows from a sum over earlier blocks: a single
    block needs nobody to have counted.
    """
    image_ptr, row_h_ptr, row_w_ptr, constant_ptr, error_ptr, sign_ptr, channel_ptr = old
    to_image_ptr, to_row_h_ptr, to_row_w_ptr, to_constant_ptr, to_error_ptr, to_index_ptr, to_sign_ptr, to_channel_ptr = new
    count = tl.load(count_ptr)
    block = tl.program_id(0)
    rows = block * B + tl.arange(0, B)
    live = rows < count
    index = tl.load(index_ptr + rows, mask=live, other=0)
    image = tl.load(image_ptr + rows, mask=live)  # of all rows: what waits for no other load is on its way the sooner
    row_h = tl.load(row_h_ptr + rows, mask=live)
    row_w = tl.load(row_w_ptr + rows, mask=live)
    constant = tl.load(constant_ptr + rows, mask=live)
    error = tl.load(error_ptr + rows, mask=live)
    earlier = tl.arange(0, NB)
    before = tl.sum(tl.load(blocks_ptr + earlier, mask=earlier < block, other=0), 0)
    group = tl.load(group_ptr + index, mask=live, other=0)
    stays = live & (tl.load(done_ptr + group, mask=live, other=1) == 0)
    to = before + tl.cumsum(stays.to(tl.int64), 0) - 1
    if block == tl.num_programs(0) - 1:
        tl.store(to_count_ptr, before + tl.sum(stays.to(tl.int64), 0))
    tl.store(from_ptr + to, rows.to(tl.int64), mask=stays)
    tl.store(to_index_ptr + to, index, mask=stays)
    tl.store(to_image_ptr + to, image, mask=stays)
    tl.store(to_row_h_ptr + to, row_h, mask=stays)
    tl.store(to_row_w_ptr + to, row_w, mask=stays)
    tl.store(to_constant_ptr + to, constant, mask=stays)
    tl.store(to_error_ptr + to, error, mask=stays)
    if NEURON:
        tl.store(to_sign_ptr + to, tl.load(sign_ptr + rows, mask=stays), mask=stays)
        tl.store(to_channel_ptr + to, tl.load(channel_ptr + rows, mask=stays), mask=stays)


@triton.jit
def follow_slots(from_ptr, slot_ptr, to_slot_ptr, count_ptr, B: tl.constexpr):
    """Where the coefficients of the rows that stayed lie: to_slot[i] = slot[from[i]]."""
    rows = tl.program_id(0) * B + tl.arange(0, B)
    live = rows < tl.load(count_ptr)
    source = tl.load(from_ptr + rows, mask=live, other=0)
    tl.store(to_slot_ptr + rows, tl.load(slot_ptr + source, mask=live, other=0), mask=live)
