"""Helpers the sample kernels import."""

import triton
import triton.language as tl

UNIT = tl.constexpr(2.0**-53)
# the largest error a row may carry
CEILING = tl.constexpr(1e30)


@triton.jit
def charge(error, more):
    """The error after `more` joins it."""
    return tl.minimum(error + more * (1 + 4 * UNIT), CEILING)


@triton.jit
def place(row, SCALE: tl.constexpr, SHIFT: tl.constexpr, RAGGED: tl.constexpr):
    """Where a row begins."""
    if RAGGED:
        row = row + row // 2  # every second row leaves a gap
    return row * SCALE - SHIFT


@triton.jit
def put(out_ptr, to, x, live, WRITE: tl.constexpr):
    if WRITE:
        tl.store(out_ptr + to, x, mask=live)


@triton.jit
def unused_helper(x):
    return x
