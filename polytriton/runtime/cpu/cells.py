"""Tables that are made cell by cell, in one compiled loop each: a search's many small batches spend more on calls than on numbers.

The loops round as the tensor forms in runtime/relax.py do, operation by operation, so both give the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polytriton.rounding import GROW, U64
from polytriton.runtime.cpu import fused

# The float32 number beside y lies between half a step and a step and a half from it, where a step is between |y| 2^-24 and |y| 2^-23,
# or 2^-149: y + max(|y| STEP, LEAST) rounds to it. Loops compiled ahead call no library, nextafter neither.
STEP = 2.0**-24 * (1 + 2.0**-20)
LEAST = 2.0**-150 * (1 + 2.0**-20)
LARGEST = 2.0**128 - 2.0**104


def up_to(near, value):  # type: ignore[no-untyped-def]
    """The coefficient beside `near`, which is the nearest one to a value, where that is greater."""
    if near < value:
        return -LARGEST if near == -np.inf else near + max(abs(near) * STEP, LEAST)
    return near


@fused.compile_loop("D D T T T T", fused.PLAIN)
def _relu_cells(lo, hi, below, above, cut, gap):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        low, high = lo[i], hi[i]
        if low >= 0 or high <= 0:
            below[i] = above[i] = 1.0 if low >= 0 else 0.0
            cut[i] = gap[i] = 0.0
            continue
        chord = (high - 0.0 * low) / (high - low)
        below[i] = 1.0 if high > -low else 0.0
        above[i] = chord if abs(chord) < np.inf else 0.0
        k = np.float64(above[i])
        worst = 0.0
        for y in (low, high):
            f = y if y >= 0 else 0.0 * y
            product = k * y
            moved = f - product
            if k == 0 and not abs(y) < np.inf:
                moved = f
            moved = moved + (8 * U64 * (abs(f) + abs(product)) + 1e-300)
            if (k == 1 and y >= 0) or (k == 0 and y < 0) or y == 0:
                moved = 0.0
            elif k == 0 and y >= 0:
                moved = f
            if not moved <= worst and worst == worst:  # NaN stays
                worst = moved
        cut[i] = worst
        cut[i] = up_to(np.float64(cut[i]), worst)
        widest = -low if high > -low else high
        gap[i] = widest
        gap[i] = up_to(np.float64(gap[i]), widest)


@fused.compile_loop("D D T T", fused.PLAIN)
def _outward_cells(lo, hi, low, high):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        low[i] = lo[i]
        low[i] = -up_to(-np.float64(low[i]), -lo[i])
        high[i] = hi[i]
        high[i] = up_to(np.float64(high[i]), hi[i])


@fused.compile_loop("D D D D", fused.PLAIN)
def _positive_cells(lo, hi, low, high):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        known = abs(lo[i]) < np.inf and abs(hi[i]) < np.inf  # NaN is not
        low[i] = (lo[i] if lo[i] > 0 else 0.0) if known else -np.inf
        high[i] = (hi[i] if hi[i] > 0 else 0.0) if known else np.inf


@fused.compile_loop("D D B", fused.PLAIN)
def _running_cells(lo, hi, runs):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        runs[i] = not hi[i] <= 0 or lo[i] >= 0


@fused.compile_loop("D D D D", fused.PLAIN)
def _sum_sizes(lo, hi, sizes, sums):  # type: ignore[no-untyped-def]
    each = len(lo) // max(1, len(sums))
    for b in range(len(sums)):
        total = 0.0
        for i in range(b * each, (b + 1) * each):
            low, high = abs(lo[i]), abs(hi[i])
            sizes[i] = low if low >= high or low != low else high  # NaN stays
            total += sizes[i]
        sums[b] = total


@fused.compile_loop("D D d T D D", fused.PLAIN)
def _centre_cells(lo, hi, least, point, exact, radius):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        point[i] = 0.5 * lo[i] + 0.5 * hi[i]
        middle = np.float64(point[i])
        if not least <= abs(middle) < np.inf:  # what is rounded by more than its share is left at 0
            point[i] = middle = 0.0
        over, under = hi[i] - middle, middle - lo[i]
        exact[i] = middle
        radius[i] = (over if over >= under or over != over else under) * GROW


def gets_rows(low, high, every, settled):  # type: ignore[no-untyped-def]
    """Whether a neuron with this box does: `undecided.find_undecided`."""
    return every or (high > 0 and (settled or low < 0))


@fused.compile_loop("D D b b", fused.PLAIN)
def _count_undecided(lo, hi, every, settled):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(lo)):
        if gets_rows(lo[i], hi[i], every, settled):
            count += 1
    return count


@fused.compile_loop("D D b b i i i I2 D2", fused.PLAIN)
def _note_undecided(lo, hi, every, settled, height, width, channels, places, bounds):  # type: ignore[no-untyped-def]
    k = 0
    for i in range(len(lo)):
        if gets_rows(lo[i], hi[i], every, settled):
            pixel = i // channels
            line = pixel // width
            places[0, k], places[1, k], places[2, k] = i, line // height, line % height
            places[3, k], places[4, k] = pixel % width, i % channels
            bounds[0, k], bounds[1, k] = lo[i], -hi[i]
            k += 1


@fused.compile_loop("D2 D2 D I I D d T2 D D", fused.PLAIN)
def _form_cells(forms, off, subtracted, block, image, largest, flush, start, constant, error):  # type: ignore[no-untyped-def]
    n = forms.shape[1]
    for r in range(len(block)):
        row, total = block[r], 0.0
        biggest = largest[image[row] * n : (image[row] + 1) * n]
        for j in range(n):
            exact = forms[row, j]
            start[r, j] = exact
            apart = abs(exact - np.float64(start[r, j])) + (off[row, j] if len(off) > 0 else 0.0)
            total += (apart * biggest[j] if apart > 0 else 0.0) + abs(exact) * flush
        error[r] = total * (1 + 2.0**-30)
        constant[r] = 0.0 - subtracted[row] if len(subtracted) > 0 else 0.0


@fused.compile_loop("I D2 D D", fused.PLAIN)
def _write_cells(at, bounds, lo, hi):  # type: ignore[no-untyped-def]
    for k in range(len(at)):
        lo[at[k]], hi[at[k]] = bounds[0, k], -bounds[1, k]


def serves(values: Tensor) -> bool:
    """Whether there are loops for tensors like this one."""
    return fused.AVAILABLE and values.device.type == "cpu"


def flat(values: Tensor) -> np.ndarray:
    return values.numpy().ravel()


def relu_cells(lo: Tensor, hi: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slopes below and above an exact ReLU, the cut above it and the gap below: `relax.relu_lines` for slope 0."""
    below, above, cut, gap = (torch.empty(lo.shape, dtype=dtype) for _ in range(4))
    _relu_cells(flat(lo), flat(hi), flat(below), flat(above), flat(cut), flat(gap))
    return below, above, cut, gap


def outward_cells(lo: Tensor, hi: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Boxes in the coefficient type: `relax.round_down` and `relax.round_up`."""
    low, high = (torch.empty(lo.shape, dtype=dtype) for _ in range(2))
    _outward_cells(flat(lo), flat(hi), flat(low), flat(high))
    return low, high


def positive_cells(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """An exact ReLU's box, float64: `forward.positive_part`."""
    low, high = torch.empty(lo.shape, dtype=lo.dtype), torch.empty(lo.shape, dtype=lo.dtype)
    _positive_cells(flat(lo), flat(hi), flat(low), flat(high))
    return low, high


def running_cells(lo: Tensor, hi: Tensor) -> Tensor:
    """Where an exact ReLU is not off: `relax.find_running`."""
    runs = torch.empty(lo.shape, dtype=torch.bool)
    _running_cells(flat(lo), flat(hi), flat(runs))
    return runs


def note_undecided(lo: Tensor, hi: Tensor, every: bool, settled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Cells and their indices on every axis, [5, cells], and bounds of both sides, [2, cells]: `undecided.find_undecided`."""
    low, high = flat(lo), flat(hi)
    count = _count_undecided(low, high, every, settled)
    places, bounds = np.empty((5, count), dtype=np.int64), np.empty((2, count))
    _note_undecided(low, high, every, settled, *lo.shape[1:], places, bounds)
    return places, bounds


def sum_sizes(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The largest magnitude in each box, and their sums over an image's cells, [batch]."""
    sizes, sums = lo.new_empty(lo.shape), lo.new_empty(len(lo))
    _sum_sizes(flat(lo), flat(hi), flat(sizes), sums.numpy())
    return sizes, sums


def centre_cells(lo: Tensor, hi: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Points near the middles of boxes in this type, the same in float64, and how far the boxes reach from them: `centres.find_centre`."""
    point, exact, radius = torch.empty(lo.shape, dtype=dtype), lo.new_empty(lo.shape), lo.new_empty(lo.shape)
    _centre_cells(flat(lo), flat(hi), torch.finfo(dtype).tiny, flat(point), flat(exact), flat(radius))
    return point, exact, radius


def form_cells(
    forms: Tensor,
    off: Tensor | None,
    subtracted: Tensor | None,
    block: Tensor,
    image: Tensor,
    largest: Tensor,
    flush: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of these forms in this type, constants and errors: `results.form_rows` over an output of magnitudes [batch, ...]."""
    start = torch.empty(len(block), forms.shape[1], dtype=dtype)
    constant, error = np.empty((2, len(block)))
    assert largest.numel() == len(largest) * forms.shape[1]  # the loop looks at no length
    apart, taken = (np.empty((0, 0)) if off is None else off.contiguous().numpy()), np.empty(0) if subtracted is None else flat(subtracted)
    given = forms.contiguous().numpy(), apart, taken, block.numpy(), flat(image), flat(largest)
    _form_cells(*given, flush, start.numpy(), constant, error)
    return start, torch.from_numpy(constant), torch.from_numpy(error)


def write_cells(at: np.ndarray, bounds: np.ndarray, lo: Tensor, hi: Tensor) -> None:
    """Lower bounds of +x and of -x, [2, cells], become the boxes', which are contiguous, at these cells."""
    assert lo.is_contiguous() and hi.is_contiguous()  # else what is written would be a copy's
    _write_cells(at, bounds, flat(lo), flat(hi))
