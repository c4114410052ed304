"""Tables of a batch, made from its boxes: what back-substitution reads of every node, in the coefficients' type T, one launch each.

A table is [images, PLANE] values: an image of lines of LINE cells, PITCH apart, from START on, in a margin of zeros that nobody
writes (the buffers are zero at first). A program takes BLOCK cells of one image (boxes.taken_cells). What the numbers mean is
told in runtime.tables and runtime.relax, whose formulas these are: float64, then rounded outward to T.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.boxes import larger, reach, smaller, taken_cells
from polytriton.kernels.device.charges import node_charge
from polytriton.kernels.device.constants import ChargedNode, TableLayout
from polytriton.kernels.device.forward import GROW
from polytriton.kernels.device.numerics import U64


@triton.jit
def rounded_up(x, T: tl.constexpr):
    """The smallest number of T that is not below the float64 x; NaN for NaN.

    Rounding to nearest may fall below x: then the next number up. The bits of a float, read as an integer, grow with a positive
    number and with the magnitude of a negative one; above either zero stands the smallest subnormal, whose bits are 1.
    """
    if T == tl.float64:
        return x
    else:
        near = x.to(tl.float32)
        bits = near.to(tl.int32, bitcast=True)
        after = tl.where(near == 0, 1, tl.where(near > 0, bits + 1, bits - 1)).to(tl.int32)
        return tl.where(near.to(tl.float64) < x, after.to(tl.float32, bitcast=True), near)


@triton.jit
def table_cells(image, cell, LINE: tl.constexpr, START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr):
    """Where an image's cells lie in a table."""
    return image.to(tl.int64) * PLANE + START + cell // LINE * PITCH + cell % LINE


@triton.jit
def gap(y, k, SLOPE: tl.constexpr, SIDE: tl.constexpr):
    """f(y) - k y moved outward (up for SIDE 1, down for -1) by its own rounding: three operations on magnitudes |f|, |k y|, fused
    or not. Zero where the line meets f exactly; f(y) itself where the line is flat and f needs no product."""
    slope = tl.full(y.shape, SLOPE, tl.float64)  # compared as it is, a number becomes float32
    f = tl.where(y >= 0, y, slope * y)
    product = k * y
    distance = tl.where((k == 0) & (tl.abs(y) == float("inf")), f, f - product)
    moved = distance + SIDE * (8 * U64 * (tl.abs(f) + tl.abs(product)) + 1e-300)
    exact = ((k == 1) & (y >= 0)) | ((k == slope) & (y < 0)) | (y == 0)
    return tl.where(exact, 0.0, tl.where((k == 0) & (y >= 0), f, moved))


@triton.jit
def store_lines(
    low, high, own, to, inside, below_ptr, above_ptr, lower_ptr, cut_ptr,
    SLOPE: tl.constexpr, LOWER: tl.constexpr, DEPLOYED: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """below y + lower <= f(y) <= above y + cut over [lo, hi], for the stored numbers (runtime.relax.relu_lines).

    The chord's slope may be any number: it is rounded to T, and the cut is then taken at the break points lo, 0 and hi, where f
    minus the line is extreme (at 0 it is 0). LOWER off: both lower slopes are exact through 0, so `lower` is 0 and has no table.
    DEPLOYED: the deployed operator is off by `own` at most.
    """
    on = low >= 0
    off = high <= 0
    slope = tl.full(low.shape, SLOPE, tl.float64)
    chord = (high - slope * low) / (high - low)
    steep = tl.where(high > -low, 1.0, slope)
    if SLOPE > 1:
        below = tl.where(tl.abs(chord) < float("inf"), chord, slope)
        above = steep
    else:
        below = steep
        above = tl.where(tl.abs(chord) < float("inf"), chord, 0.0)
    below = tl.where(on, 1.0, tl.where(off, slope, below)).to(T)
    above = tl.where(on, 1.0, tl.where(off, slope, above)).to(T)
    tl.store(below_ptr + to, below, mask=inside)
    tl.store(above_ptr + to, above, mask=inside)
    k = above.to(tl.float64)
    cut = larger(larger(gap(low, k, SLOPE, 1), gap(high, k, SLOPE, 1)), 0.0)
    cut = tl.where((on & (k == 1)) | (off & (k == slope)), 0.0, cut)
    if DEPLOYED:
        cut = (cut + own) * (1 + 2 * U64)
    tl.store(cut_ptr + to, rounded_up(cut, T), mask=inside)
    if LOWER:
        k = below.to(tl.float64)
        lower = smaller(smaller(gap(low, k, SLOPE, -1), gap(high, k, SLOPE, -1)), 0.0)
        lower = tl.where((on & (k == 1)) | (off & (k == slope)), 0.0, lower)
        if DEPLOYED:
            lower = (lower - own) * (1 + 2 * U64)
        tl.store(lower_ptr + to, -rounded_up(-lower, T), mask=inside)


@triton.jit
def relu_tables(
    box_lo_ptr, box_hi_ptr, own_error_ptr, below_ptr, above_ptr, lower_ptr, cut_ptr,
    SLOPE: tl.constexpr, LOWER: tl.constexpr, DEPLOYED: tl.constexpr, T: tl.constexpr,
    LINE: tl.constexpr, START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A ReLU's lines over its operand's box (see store_lines)."""
    image, cell, inside, at = taken_cells(SIZE, BLOCK)
    low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
    high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
    own = tl.full((BLOCK,), 0.0, tl.float64)
    if DEPLOYED:
        own = tl.load(own_error_ptr + at, mask=inside, other=0.0)
    to = table_cells(image, cell, LINE, START, PLANE, PITCH)
    store_lines(low, high, own, to, inside, below_ptr, above_ptr, lower_ptr, cut_ptr, SLOPE, LOWER, DEPLOYED, T)


@triton.jit
def store_ends(low, high, to, inside, lo_ptr, hi_ptr, T: tl.constexpr):
    """A box in a table."""
    tl.store(lo_ptr + to, -rounded_up(-low, T), mask=inside)
    tl.store(hi_ptr + to, rounded_up(high, T), mask=inside)


@triton.jit
def box_tables(
    box_lo_ptr, box_hi_ptr, lo_ptr, hi_ptr,
    T: tl.constexpr, LINE: tl.constexpr, START: tl.constexpr, PLANE: tl.constexpr, PITCH: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The box itself."""
    image, cell, inside, at = taken_cells(SIZE, BLOCK)
    low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
    high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
    store_ends(low, high, table_cells(image, cell, LINE, START, PLANE, PITCH), inside, lo_ptr, hi_ptr, T)


@dataclass(frozen=True)
class ChargeTable(ChargedNode, TableLayout):
    T: tl.dtype
    LINE: int
    SIZE: int
    BLOCK: int


@triton.jit
def charge_table(box_lo_ptr, box_hi_ptr, magnitude_ptr, own_error_ptr, babs_ptr, operand_ptr, numbers_ptr, t_ptr, c: tl.constexpr):
    """t of a node (see node_charge); babs: one line for every BIAS cells."""
    image, cell, inside, at = taken_cells(c.SIZE, c.BLOCK)
    reached = tl.full((c.BLOCK,), 0.0, tl.float64)
    if c.PENDING:
        low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
        reached = reach(low, tl.load(box_hi_ptr + at, mask=inside, other=0.0))
    t = loaded_charge(reached, image, cell, at, inside, magnitude_ptr, own_error_ptr, babs_ptr, operand_ptr, numbers_ptr, c)
    tl.store(t_ptr + table_cells(image, cell, c.LINE, c.START, c.PLANE, c.PITCH), rounded_up(t, c.T), mask=inside)


@triton.jit
def loaded_charge(
    reached, image, cell, at, inside, magnitude_ptr, own_error_ptr, babs_ptr, operand_ptr, numbers_ptr, c: tl.constexpr,
):  # fmt: skip
    """t from the node's own tensors, in float64."""
    own = tl.full((c.BLOCK,), 0.0, tl.float64)
    magnitude = own
    babs = own
    if c.DEPLOYED:
        own = tl.load(own_error_ptr + at, mask=inside, other=0.0)
    if c.AFFINE:
        magnitude = tl.load(magnitude_ptr + at, mask=inside, other=0.0)
        babs = tl.load(babs_ptr + cell % c.BIAS, mask=inside, other=0.0)
    return node_charge(
        reached, own, magnitude, babs, image, numbers_ptr, operand_ptr, c.PENDING, c.DEPLOYED, c.AFFINE, c.FLUSH, c.OPERAND, c.WIDE, c.BLOCK
    )


@triton.jit
def image_floor(
    image, total_ptr, operand_ptr, numbers_ptr, OWN: tl.constexpr, OPERAND: tl.constexpr, WIDE: tl.constexpr, AFFINE: tl.constexpr
):
    """numbers[4] (sum |x| + numbers[5] sum |operand|), the latter AFFINE; sums over OWN and OPERAND parts."""
    parts = tl.arange(0, WIDE)
    own = tl.sum(tl.load(total_ptr + image.to(tl.int64) * OWN + parts, mask=parts < OWN, other=0.0), 0)
    if AFFINE:
        at = image.to(tl.int64) * OPERAND + parts
        own += tl.load(numbers_ptr + 5) * tl.sum(tl.load(operand_ptr + at, mask=parts < OPERAND, other=0.0), 0)
    return tl.load(numbers_ptr + 4) * own * GROW


@triton.jit
def floors(
    total_ptr, operand_ptr, numbers_ptr, floor_ptr, other_total_ptr, other_operand_ptr, other_numbers_ptr, other_floor_ptr,
    OWN: tl.constexpr, OPERAND: tl.constexpr, WIDE: tl.constexpr, AFFINE: tl.constexpr,
    OTHER: tl.constexpr, OTHER_OPERAND: tl.constexpr, OTHER_AFFINE: tl.constexpr,
):  # fmt: skip
    """What underflow may cost a row of each image, whatever its coefficients: numbers[4] (sum |x| + numbers[5] sum |operand|).

    numbers[4] is twice the smallest normal number: one a coefficient for a ReLU's product, and for the node's own K, with the
    weights' size, in numbers[5] (AFFINE). Sums over OWN and OPERAND parts. One program an image. OTHER: of another node in the same
    launch, of so many parts; 0 for none.
    """
    image = tl.program_id(0)
    tl.store(floor_ptr + image, image_floor(image, total_ptr, operand_ptr, numbers_ptr, OWN, OPERAND, WIDE, AFFINE))
    if OTHER > 0:
        other = image_floor(image, other_total_ptr, other_operand_ptr, other_numbers_ptr, OTHER, OTHER_OPERAND, WIDE, OTHER_AFFINE)
        tl.store(other_floor_ptr + image, other)
