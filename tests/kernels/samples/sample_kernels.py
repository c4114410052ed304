"""Two kernels that use most of what the specialiser knows."""

import triton
import triton.language as tl
from sample_helpers import charge, place, put


# scale rows and sum them
@triton.jit
def scale_rows(
    x_ptr, bias_ptr,  # one row of C channels each
    gap_ptr, out_ptr, total_ptr, n,
    T: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SHIFT: tl.constexpr, BIAS: tl.constexpr, GAP: tl.constexpr, TOTAL: tl.constexpr,
    RAGGED: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = 2 x + bias for the first n rows of W*C cells.

    BIAS: "none", "channel" or "cell".
    """
    tl.static_assert(BK > 0, "BK must be positive")
    SIZE: tl.constexpr = W * C
    if TOTAL and SIZE > 1:
        STEP: tl.constexpr = min(BK, 8)
    else:
        STEP: tl.constexpr = BK
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    live = rows < n
    base = place(rows, SIZE, SHIFT, RAGGED)
    other = place(rows, 1, 0, False)
    gap = 0.0
    # the gap between rows
    if GAP is not None:
        gap = tl.load(gap_ptr) * GAP
    total = tl.full((BM,), 0.0, tl.float64)
    for start in range(0, SIZE, STEP):  # blocks of cells
        k = start * 1 + tl.arange(0, STEP)
        inside = live[:, None] & (k < SIZE)[None, :] & (W > 0)
        x = tl.load(x_ptr + (rows * (W * C))[:, None] + (k + SHIFT - SHIFT)[None, :],
                    mask=inside, other=0.0)  # fmt: skip
        x = (x * 2).to(T)
        if BIAS == "channel":
            # one value a channel
            x += tl.load(bias_ptr + k % C, mask=k < SIZE, other=0.0)[None, :].to(T)
        elif BIAS == "cell":  # one value a cell
            x += tl.load(bias_ptr + k, mask=k < SIZE, other=0.0)[None, :].to(T)
        if TOTAL:
            total = total + tl.sum(tl.where(inside, x.to(tl.float64), 0.0), 1)
        put(out_ptr, base[:, None] + SHIFT + k[None, :], x + gap if GAP is not None else x, inside, True)
        put(total_ptr, base[:, None] + k[None, :], x, inside, False)

    if TOTAL:
        tl.store(total_ptr + other, charge(total, 1.0 / SIZE), mask=live)


@triton.jit
def early_exit(
    a_ptr, out_ptr, count_ptr, n,
    MODE: tl.constexpr, DEPTH: tl.constexpr, FACTOR: tl.constexpr, FLAG: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    count = tl.load(count_ptr)
    if tl.program_id(0) * B >= count:
        return
    i = tl.arange(0, B)
    a = tl.load(a_ptr + i, mask=i < n, other=0)
    if FLAG and n > 3:
        a = a + 1
    elif MODE == 1 or n > 5:
        a = a - 1
    elif n > 100:
        pass
    else:
        a = a * FACTOR
    if not FLAG and MODE == 0:
        tl.store(out_ptr + i, a, mask=i < n)
        return
    for d in tl.static_range(DEPTH):
        a = a + (d if MODE == 2 else -FACTOR)
        if d == 1:
            a = a * (3 if FLAG else 2)
    steps = 0
    while steps < DEPTH:
        a = a + FACTOR * steps + -FACTOR
        steps += 1
    tl.store(out_ptr + i, a + (B // 4 - MODE), mask=(i < n) & FLAG if not FLAG else i < n)
    return
