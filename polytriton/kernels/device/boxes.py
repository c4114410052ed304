"""Boxes of the interval pass, cell by cell: what comes after an affine layer's sums, ReLUs, sums of two nodes, and sizes.

Boxes are float64 [images, SIZE]; a program takes BLOCK cells of one image. Every kernel that makes a box also notes how large it
is: `biggest` and `total`, the maximum and the sum of max(|lo|, |hi|) over the program's cells, [images, parts] with
parts = ceil(SIZE / BLOCK), so that no pass over the image is needed to know them. A NaN counts as infinite. Where asked, it notes what a
report says (TELL) and how many neurons are undecided (OPEN) too, a line for each program: each would take a launch longer than its work.

A deployed layer's own error e (runtime.soundness.deployed_error) and every half width are sums and products of non-negative
float64 numbers, enlarged by GROW past their own roundings, fused or not. A bound that is no finite number becomes infinite: NaN,
overflow and "no bound" are one. Where the operand has no bound, what a ReLU makes of it has none: the deployed operand may be NaN.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.charges import node_charge
from polytriton.kernels.device.forward import GROW

BIG = tl.constexpr(2.0**60)  # magnitudes up to here cannot have overflowed before layers were merged (runtime.soundness.BIG)


@dataclass(frozen=True)
class BoxNotes:
    """What is noted of a box beside its sizes; TIGHT: a neuron is undecided where it can be on."""

    TELL: bool
    OPEN: bool
    TIGHT: bool


@triton.jit
def larger(a, b):
    """The larger of two; NaN where either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):
    """The smaller of two; NaN where either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def finite_low(low):
    """A lower bound, or minus infinity for none."""
    return tl.where(tl.abs(low) < float("inf"), low, float("-inf"))


@triton.jit
def finite_high(high):
    """An upper bound, or infinity for none."""
    return tl.where(tl.abs(high) < float("inf"), high, float("inf"))


@triton.jit
def reach(low, high):
    """max(|low|, |high|), infinite where that is no number."""
    size = larger(tl.abs(low), tl.abs(high))
    return tl.where(size < float("inf"), size, float("inf"))


@triton.jit
def taken_cells(SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The image a program takes a part of, the part's cells, which of them are the image's, and where they lie among all."""
    PARTS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    image = program // PARTS
    cell = program % PARTS * BLOCK + tl.arange(0, BLOCK)
    return image, cell, cell < SIZE, image.to(tl.int64) * SIZE + cell


@triton.jit
def note_sizes(low, high, inside, biggest_ptr, total_ptr):
    """The program's own line of `biggest` and `total`; the sum's rounding is for the reader to cover (GROW does)."""
    size = tl.where(inside, reach(low, high), 0.0)
    tl.store(biggest_ptr + tl.program_id(0), tl.max(size, 0))
    tl.store(total_ptr + tl.program_id(0), tl.sum(size, 0))


@triton.jit
def is_undecided(low, high, TIGHT: tl.constexpr):
    """Whether a neuron's sign is open, or (TIGHT) whether it can be on; NaN is neither."""
    if TIGHT:
        return high > 0
    return (low < 0) & (high > 0)


@triton.jit
def note_report(low, high, inside, told_ptr):
    """The program's own line for reports: the sum of hi - lo, and how many signs are undecided. No bound reads it."""
    line = told_ptr + 2 * tl.program_id(0).to(tl.int64)
    tl.store(line, tl.sum(tl.where(inside, high - low, 0.0), 0))
    tl.store(line + 1, tl.sum((inside & is_undecided(low, high, False)).to(tl.float64), 0))


@triton.jit
def note_cells(low, high, inside, biggest_ptr, total_ptr, told_ptr, blocks_ptr, c: tl.constexpr):
    """The sizes of the program's cells, what a report says of them, how many are undecided."""
    note_sizes(low, high, inside, biggest_ptr, total_ptr)
    if c.TELL:
        note_report(low, high, inside, told_ptr)
    if c.OPEN:
        tl.store(blocks_ptr + tl.program_id(0), tl.sum((inside & is_undecided(low, high, c.TIGHT)).to(tl.int64), 0))


@triton.jit
def elementwise_error(magnitude, GAMMA: tl.constexpr, LOST: tl.constexpr):
    """e of one float32 operation on results of that magnitude: GAMMA of it and LOST to underflow, infinite past BIG; GAMMA 0: exact."""
    error = tl.full(magnitude.shape, 0.0, tl.float64)
    if GAMMA > 0:
        error = tl.where(magnitude <= BIG, (GAMMA * magnitude + LOST) * GROW, float("inf"))
    return error


@dataclass(frozen=True)
class MeasureBoxes(BoxNotes):
    SIZE: int
    BLOCK: int


@triton.jit
def measure_boxes(box_lo_ptr, box_hi_ptr, biggest_ptr, total_ptr, told_ptr, blocks_ptr, c: tl.constexpr):
    """Of a box that another operator made, or that somebody has narrowed."""
    _image, _cell, inside, at = taken_cells(c.SIZE, c.BLOCK)
    low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
    high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
    note_cells(low, high, inside, biggest_ptr, total_ptr, told_ptr, blocks_ptr, c)


@triton.jit
def tell_boxes(box_lo_ptr, box_hi_ptr, told_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """What a report says of a box."""
    _image, _cell, inside, at = taken_cells(SIZE, BLOCK)
    low = tl.load(box_lo_ptr + at, mask=inside, other=0.0)
    high = tl.load(box_hi_ptr + at, mask=inside, other=0.0)
    note_report(low, high, inside, told_ptr)


@dataclass(frozen=True)
class AffineBoxes(BoxNotes):
    REAL: bool
    SHARE: int
    BIAS: int
    OPERAND: int
    WIDE: int
    FIRST: bool
    FLUSH: bool
    SIZE: int
    BLOCK: int


@triton.jit
def affine_boxes(
    centre_ptr, spread_ptr, magnitude_ptr, terms_ptr, babs_ptr, operand_ptr, numbers_ptr,
    box_lo_ptr, box_hi_ptr, error_ptr, noted, first, c: tl.constexpr,
):  # fmt: skip
    """The box of y = W x + b + delta from kernels.forward's centre, spread and magnitude.

    y in centre -+ (spread + e + widen (magnitude + |b|)),  widen = gamma64_(K+4) + rho (numbers[0]): forward's own sums, and what
    merging layers rounded. REAL: e = 0. Otherwise e is runtime.soundness.deployed_error's, with its constants in `numbers`:

        g = n u / (1 - n u),  n = a (terms + ops) + 1        roundings of the deployed sum; infinite from n u = 1/2 on
        factor = enter (1 + g) - 1 + slack                   operands converted before they are multiplied
        e = magnitude factor + (factor or g) |b| + 2 lost    (factor where layers were merged)
            + converted,   lost = eta (base + K x_max),   converted = eta_in (rest + K x_max)

    and infinite where magnitudes or x_max pass BIG, or operands or weights what a conversion can hold. The difference in `factor`
    is off by at most 3 U64 enter, which `slack` (at least 16 U64) covers. terms: a count for every SHARE cells. babs: one line for
    every BIAS cells. x_max: the greatest of the operand's OPERAND parts; WIDE is the power of two that holds them.

    FIRST: what rows that are single neurons of y are charged (`node_charge`), as float64 cells; their factors are `own_numbers`.
    """
    biggest_ptr, total_ptr, told_ptr, blocks_ptr = noted
    own_numbers_ptr, summed_ptr, first_ptr = first
    image, cell, inside, at = taken_cells(c.SIZE, c.BLOCK)
    centre = tl.load(centre_ptr + at, mask=inside, other=0.0)
    spread = tl.load(spread_ptr + at, mask=inside, other=0.0)
    magnitude = tl.load(magnitude_ptr + at, mask=inside, other=0.0)
    babs = tl.load(babs_ptr + cell % c.BIAS, mask=inside, other=0.0)
    width = spread + tl.load(numbers_ptr) * (magnitude + babs)
    error = tl.full((c.BLOCK,), 0.0, tl.float64)
    if not c.REAL:
        parts = tl.arange(0, c.WIDE)
        biggest = tl.load(operand_ptr + image.to(tl.int64) * c.OPERAND + parts, mask=parts < c.OPERAND, other=0.0)
        x_max = tl.full((c.BLOCK,), 0.0, tl.float64) + tl.max(biggest, 0)
        terms = tl.load(terms_ptr + image.to(tl.int64) * (c.SIZE // c.SHARE) + cell // c.SHARE, mask=inside, other=0.0)
        n = (tl.load(numbers_ptr + 1) * (terms + tl.load(numbers_ptr + 2)) + 1) * tl.load(numbers_ptr + 3)
        g = tl.where(n < 0.5, n / (1 - n) * GROW, float("inf"))
        factor = tl.load(numbers_ptr + 4) * (1 + g) - 1 + tl.load(numbers_ptr + 5)
        held = tl.load(numbers_ptr + 8) * x_max
        lost = tl.load(numbers_ptr + 6) * (tl.load(numbers_ptr + 7) + held)
        converted = tl.load(numbers_ptr + 9) * (tl.load(numbers_ptr + 10) + held)
        error = magnitude * factor + tl.where(tl.load(numbers_ptr + 12) > 0, factor, g) * babs + 2 * lost + converted
        sure = (magnitude + babs <= BIG) & (x_max <= BIG) & (x_max <= tl.load(numbers_ptr + 11))
        error = tl.where(sure, error * GROW, float("inf"))
        tl.store(error_ptr + at, error, mask=inside)
        width = width + error
    width = width * GROW + 1e-300
    low = finite_low(centre - width)
    high = finite_high(centre + width)
    tl.store(box_lo_ptr + at, low, mask=inside)
    tl.store(box_hi_ptr + at, high, mask=inside)
    note_cells(low, high, inside, biggest_ptr, total_ptr, told_ptr, blocks_ptr, c)
    if c.FIRST:
        t = node_charge(
            None, error, magnitude, babs, image, own_numbers_ptr, summed_ptr, False, not c.REAL, True, c.FLUSH, c.OPERAND, c.WIDE, c.BLOCK
        )
        tl.store(first_ptr + at, t, mask=inside)


@triton.jit
def relu_ends(y_low, y_high, SLOPE: tl.constexpr, GAMMA: tl.constexpr, LOST: tl.constexpr):
    """The box of f(y) = y for y >= 0, SLOPE y below, and its error. Slopes 0 and 1 are exact; another multiplies once, deployed with
    `elementwise_error`.
    """
    bounded = (tl.abs(y_low) < float("inf")) & (tl.abs(y_high) < float("inf"))
    low = y_low
    high = y_high
    error = tl.full(y_low.shape, 0.0, tl.float64)
    if SLOPE == 0.0:
        low = tl.where(y_low > 0, y_low, 0.0)
        high = tl.where(y_high > 0, y_high, 0.0)
    elif SLOPE != 1.0:
        of_low = tl.where(y_low >= 0, y_low, SLOPE * y_low)
        of_high = tl.where(y_high >= 0, y_high, SLOPE * y_high)
        crosses = (y_low < 0) & (y_high > 0)
        low = smaller(of_low, of_high)
        high = larger(of_low, of_high)
        low = tl.where(crosses & (low > 0), 0.0, low)
        high = tl.where(crosses & (high < 0), 0.0, high)
        magnitude = reach(low, high) * GROW
        error = elementwise_error(magnitude, GAMMA, LOST)
        width = (error + 2.0**-52 * magnitude) * GROW + 1e-300  # a product may underflow, a sum cannot
        low = low - width
        high = high + width
    low = tl.where(bounded, finite_low(low), float("-inf"))
    high = tl.where(bounded, finite_high(high), float("inf"))
    return low, high, error


@dataclass(frozen=True)
class SumBoxes(BoxNotes):
    MINUS: bool
    GAMMA: float
    LOST: float
    SIZE: int
    BLOCK: int


@triton.jit
def sum_boxes(
    a_lo_ptr, a_hi_ptr, b_lo_ptr, b_hi_ptr, box_lo_ptr, box_hi_ptr, error_ptr, biggest_ptr, total_ptr, told_ptr, blocks_ptr,
    c: tl.constexpr,
):  # fmt: skip
    """a + b, or a - b: one deployed addition, and one here, off by at most U64 of the magnitudes."""
    _image, _cell, inside, at = taken_cells(c.SIZE, c.BLOCK)
    a_low = tl.load(a_lo_ptr + at, mask=inside, other=0.0)
    a_high = tl.load(a_hi_ptr + at, mask=inside, other=0.0)
    b_low = tl.load(b_lo_ptr + at, mask=inside, other=0.0)
    b_high = tl.load(b_hi_ptr + at, mask=inside, other=0.0)
    magnitude = (reach(a_low, a_high) + reach(b_low, b_high)) * GROW
    error = elementwise_error(magnitude, c.GAMMA, c.LOST)
    tl.store(error_ptr + at, error, mask=inside)
    width = (error + 2.0**-52 * magnitude) * GROW
    low = a_low + b_low - width
    high = a_high + b_high + width
    if c.MINUS:
        low = a_low - b_high - width
        high = a_high - b_low + width
    low = finite_low(low)
    high = finite_high(high)
    tl.store(box_lo_ptr + at, low, mask=inside)
    tl.store(box_hi_ptr + at, high, mask=inside)
    note_cells(low, high, inside, biggest_ptr, total_ptr, told_ptr, blocks_ptr, c)
