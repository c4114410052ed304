"""Linear relaxations of the nonlinear operators, valid for the stored numbers.

f(y) = y for y >= 0, slope*y below. Over [l, u] with l < 0 < u the chord bounds f on one side, a line through 0 on the
other (the area rule picks it). A slope is chosen freely and rounded to the coefficient type; the intercept is then taken
at the break points l, 0, u, where f minus the line is extreme, and rounded outward past its own roundings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.runtime.cpu import cells
from polytriton.runtime.soundness import U64


def round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest values of `dtype` that are not below the float64 values x."""
    y = x.to(dtype)
    if dtype == torch.float64:
        return y
    return torch.where(y.double() < x, torch.nextafter(y, torch.full_like(y, float("inf"))), y)


def round_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    return -round_up(-x, dtype)


def round_outward(lo: Tensor, hi: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The narrowest boxes in `dtype` around float64 ones."""
    return cells.outward_cells(lo, hi, dtype) if cells.serves(lo) else (round_down(lo, dtype), round_up(hi, dtype))


def sum_sizes(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The largest magnitude in each box, float64 without margin, and their sums over an image's cells, [batch]."""
    if cells.serves(lo):
        return cells.sum_sizes(lo, hi)
    sizes = torch.maximum(lo.abs(), hi.abs())
    return sizes, sizes.sum((1, 2, 3))


def find_running(lo: Tensor, hi: Tensor) -> Tensor:
    """Where an exact ReLU over these boxes is not off."""
    return cells.running_cells(lo, hi) if cells.serves(lo) else ~(hi <= 0) | (lo >= 0)


@dataclass(frozen=True)
class Lines:
    """lower_slope*y + lower_cut <= f(y) <= upper_slope*y + upper_cut; cuts are None where all are zero. `gap`: how far an exact ReLU of
    slope 0 may lie above its line below, which is at an end of the box; None for others.
    """

    lower_slope: Tensor
    upper_slope: Tensor
    lower_cut: Tensor | None
    upper_cut: Tensor
    gap: Tensor | None = None


def relu_lines(lo: Tensor, hi: Tensor, slope: float, dtype: torch.dtype, error: Tensor | None = None) -> Lines:
    """Relaxation of every neuron over its float64 box; `error` >= 0 is the deployed operator's own."""
    if slope == 0.0 and error is None and cells.serves(lo):
        below, above, cut, gap = cells.relu_cells(lo, hi, dtype)
        return Lines(below, above, None, cut, gap)
    on, off = lo >= 0, hi <= 0
    one, low = torch.ones_like(lo), torch.full_like(lo, slope)
    chord = (hi - slope * lo) / (hi - lo)
    chord = torch.where(torch.isfinite(chord), chord, low if slope > 1 else torch.zeros_like(lo))
    steep = torch.where(hi > -lo, one, low)
    below, above = (steep, chord) if slope <= 1 else (chord, steep)
    below = torch.where(on, one, torch.where(off, low, below)).to(dtype)
    above = torch.where(on, one, torch.where(off, low, above)).to(dtype)
    upper_cut = _cut(lo, hi, slope, above, on, off, 1.0)
    if slope in (0.0, 1.0) and error is None:  # a lower slope of 0 or 1 is exact, and its line passes through 0
        gap = torch.where(on | off, torch.zeros_like(lo), torch.where(below == 1, -lo, hi))
        return Lines(below, above, None, round_up(upper_cut, dtype), round_up(gap, dtype) if slope == 0.0 else None)
    lower_cut = _cut(lo, hi, slope, below, on, off, -1.0)
    if error is not None:
        lower_cut, upper_cut = lower_cut - error, (upper_cut + error) * (1 + 2 * U64)
        lower_cut = lower_cut * (1 + 2 * U64)
    return Lines(below, above, round_down(lower_cut, dtype), round_up(upper_cut, dtype))


def _cut(lo: Tensor, hi: Tensor, slope: float, line: Tensor, on: Tensor, off: Tensor, side: float) -> Tensor:
    """max (side=+1) or min (-1) over the break points of f(y) - line*y, rounded outward; zero where they agree exactly."""
    k = line.double()
    zero = torch.zeros_like(lo)
    gap_lo = _gap(lo, k, slope, side)
    gap_hi = _gap(hi, k, slope, side)
    # at 0 the gap is 0; a box on one side of zero has no break point inside, so there only its ends count
    worst = torch.maximum(torch.maximum(gap_lo, gap_hi), zero) if side > 0 else torch.minimum(torch.minimum(gap_lo, gap_hi), zero)
    exact = (on & (k == 1)) | (off & (k == slope))
    return torch.where(exact, zero, worst)


def _gap(y: Tensor, k: Tensor, slope: float, side: float) -> Tensor:
    """f(y) - k*y in float64 moved outward by its own rounding: three operations on magnitudes |f|, |k y|."""
    f = torch.where(y >= 0, y, slope * y)
    product = k * y
    gap = f - product
    gap = torch.where((k == 0) & ~torch.isfinite(y), f, gap)
    exact = ((k == 1) & (y >= 0)) | ((k == slope) & (y < 0)) | (y == 0)
    moved = gap + side * (8 * U64 * (f.abs() + product.abs()) + 1e-300)
    return torch.where(exact, torch.zeros_like(gap), torch.where((k == 0) & (y >= 0), f, moved))


@dataclass(frozen=True)
class Winners:
    """Max pool: the tap whose lower bound is greatest; `sure` where it beats all others; else `most` bounds from above."""

    tap: Tensor
    sure: Tensor
    most: Tensor


def maxpool_winners(lo: Tensor, hi: Tensor) -> Winners:
    """lo, hi [..., taps] with -inf for cells off the image; those never win, not even against a cell without a bound."""
    tap = torch.where(hi > float("-inf"), lo.clamp(min=-1e308), lo).argmax(-1)
    best = lo.gather(-1, tap[..., None])[..., 0]
    others = hi.scatter(-1, tap[..., None], float("-inf")).amax(-1)
    most = hi.amax(-1)
    sure = best >= others
    return Winners(tap, sure, torch.where(sure, torch.zeros_like(most), most))
