"""A ReLU z = f(y) in one launch, once the box of y is final: its box, and what rows read of both.

The cells of y are those of z. What is made beside the box is told by constants, each part as its own kernel makes it (tables.py,
boxes.py): a pass over the cells that a GPU launches takes it as long to begin as to run.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.boxes import note_report, note_sizes, reach, relu_ends, taken_cells
from polytriton.kernels.device.constants import ChargedNode, TableLayout
from polytriton.kernels.device.tables import loaded_charge, rounded_up, store_ends, store_lines, table_cells


@dataclass(frozen=True)
class ReluBoxes(ChargedNode, TableLayout):
    """f has SLOPE below zero; GAMMA and LOST as `elementwise_error` has them. MEASURE: the sizes of y's box; TELL: what a report says
    of it; LINES: the lines of f in a table of T, with LOWER as `store_lines` has it and OFF for its DEPLOYED; ENDS: the box of z in
    one; CHARGE: t of y, in a table that lies as T_ says.
    """

    SLOPE: float
    GAMMA: float
    LOST: float
    MEASURE: bool
    TELL: bool
    LINES: bool
    LOWER: bool
    OFF: bool
    ENDS: bool
    CHARGE: bool
    T: tl.dtype
    LINE: int
    T_START: int
    T_PLANE: int
    T_PITCH: int
    SIZE: int
    BLOCK: int


@triton.jit
def relu_boxes(y, box, lines, ends, charged, c: tl.constexpr):
    """The box of z from y's, its error and its sizes; the rest where it is asked for."""
    y_lo_ptr, y_hi_ptr, y_biggest_ptr, y_total_ptr, told_ptr = y
    box_lo_ptr, box_hi_ptr, error_ptr, biggest_ptr, total_ptr = box
    below_ptr, above_ptr, lower_ptr, cut_ptr = lines
    lo_ptr, hi_ptr = ends
    magnitude_ptr, own_error_ptr, babs_ptr, operand_ptr, numbers_ptr, t_ptr = charged
    image, cell, inside, at = taken_cells(c.SIZE, c.BLOCK)
    y_low = tl.load(y_lo_ptr + at, mask=inside, other=0.0)
    y_high = tl.load(y_hi_ptr + at, mask=inside, other=0.0)
    low, high, error = relu_ends(y_low, y_high, c.SLOPE, c.GAMMA, c.LOST)
    if c.SLOPE != 0.0 and c.SLOPE != 1.0:
        tl.store(error_ptr + at, error, mask=inside)
    tl.store(box_lo_ptr + at, low, mask=inside)
    tl.store(box_hi_ptr + at, high, mask=inside)
    note_sizes(low, high, inside, biggest_ptr, total_ptr)
    if c.MEASURE:
        note_sizes(y_low, y_high, inside, y_biggest_ptr, y_total_ptr)
    if c.TELL:
        note_report(y_low, y_high, inside, told_ptr)
    to = table_cells(image, cell, c.LINE, c.START, c.PLANE, c.PITCH)
    if c.LINES:
        store_lines(y_low, y_high, error, to, inside, below_ptr, above_ptr, lower_ptr, cut_ptr, c.SLOPE, c.LOWER, c.OFF, c.T)
    if c.ENDS:
        store_ends(low, high, to, inside, lo_ptr, hi_ptr, c.T)
    if c.CHARGE:
        t = loaded_charge(
            reach(y_low, y_high), image, cell, at, inside, magnitude_ptr, own_error_ptr, babs_ptr, operand_ptr, numbers_ptr, c
        )
        tl.store(t_ptr + table_cells(image, cell, c.LINE, c.T_START, c.T_PLANE, c.T_PITCH), rounded_up(t, c.T), mask=inside)
