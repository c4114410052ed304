"""Device functions every kernel shares: where a row reads its tables, and how its scalars are paid.

A row's constant and error are float64 and obey  target >= sum M_j x_j + constant - error.
"""

import triton
import triton.language as tl

U64 = tl.constexpr(2.0**-53)
TINY = tl.constexpr(1e-300)  # what underflow may take from a float64 sum


@triton.jit
def pay(constant, error, more, charge):
    """The scalars after `more` joins the constant and `charge` the error.

    The sum constant + more is off by U64 |sum|, the error's two operations by a factor (1 + U64)^2 each: both are charged
    with room to spare, so fusing the operations or not makes no difference.
    """
    constant = constant + more
    error = (error + charge) * (1 + 8 * U64) + 4 * U64 * tl.abs(constant) + TINY
    return constant, error


@triton.jit
def position(row_ptr, rows, live, MOVES: tl.constexpr):
    """Where rows stand along an axis; 0, and nothing is read, where windows do not move with them."""
    at = rows.to(tl.int64) * 0
    if MOVES:
        at = tl.load(row_ptr + rows, mask=live, other=0)
    return at


@triton.jit
def taken_rows(first, count, slot_ptr, image_ptr, row_h_ptr, row_w_ptr, c: tl.constexpr):
    """Rows first to first + BR: their numbers, which of them count, image and position of each, and where its coefficients lie."""
    rows = first + tl.arange(0, c.BR)
    live = rows < count
    image = tl.load(image_ptr + rows, mask=live, other=0)
    row_h = position(row_h_ptr, rows, live, c.RH != 0)
    row_w = position(row_w_ptr, rows, live, c.RW != 0)
    at_row = rows.to(tl.int64)
    if c.SLOT:
        at_row = tl.load(slot_ptr + rows, mask=live, other=0)
    return rows, live, image, row_h, row_w, at_row


@triton.jit
def table_base(image, row_h, row_w, START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr, C: tl.constexpr,
               RH: tl.constexpr, OH: tl.constexpr, RW: tl.constexpr, OW: tl.constexpr):  # fmt: skip
    """Where a row's window begins in a node's tables: cell (row_h*RH - OH, row_w*RW - OW) of its image."""
    return image * PLANE + START + (row_h * RH - OH) * PITCH + (row_w * RW - OW) * C


@triton.jit
def finite_or_worst(x):
    """x, or minus infinity where x is NaN or infinite: no bound."""
    return tl.where(tl.abs(x) < float("inf"), x, float("-inf"))
