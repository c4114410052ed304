"""An ascent's passes over a layer's neurons (runtime/ascent.py, runtime/chain.py), a compiled loop each.

As tensor operations they are some two dozen a ReLU and turn, which took longer than the products between them. What an ascent finds is a
proposal that nothing trusts. Arrays are float32, [rows, neurons]: the `below` of a line's slopes is of the first neurons, whose chords
and cuts are a row's own or one line for all; `on` is 1 or 0 for each neuron behind them. Multipliers, of the signs `sign` (a row's own or
one line for all), begin with the neuron `at`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polytriton.runtime.cpu import fused

HALF = np.float32(0.5)  # x ** HALF is the processor's square root; `np.sqrt` would be a library's, which loops compiled ahead cannot call


@fused.compile_loop("F2 F2 F2 F F2 F2 i F2")
def fold_back(over, below, chord, on, sign, multiplier, at, out):  # type: ignore[no-untyped-def]
    """Coefficients over the ReLUs' operands from those over their outputs: times the line below, or the chord where they are negative,
    less the signed multipliers.
    """
    lines, signs, undecided = len(chord), max(1, len(sign)), below.shape[1]
    for r in range(len(over)):
        x, low, high, to = over[r], below[r], chord[r % lines], out[r]
        for q in range(undecided):
            to[q] = x[q] * (low[q] if x[q] >= 0 else high[q])
        for q in range(len(on)):
            to[undecided + q] = x[undecided + q] * on[q]
        for q in range(multiplier.shape[1]):
            to[at + q] -= sign[r % signs, q] * multiplier[r, q]


@fused.compile_loop("F2 F2 F2 F2 F2 F F2 F2 i F2 F")
def follow_lines(z, over, below, chord, cut, on, sign, multiplier, at, out, taken):  # type: ignore[no-untyped-def]
    """The lines' values at the operands z, on the side that the coefficients `over` the outputs ask for; what multipliers take is added
    to `taken` [rows].
    """
    lines, signs, undecided = len(chord), max(1, len(sign)), below.shape[1]
    for r in range(len(z)):
        x, c, low, high, above, to = z[r], over[r], below[r], chord[r % lines], cut[r % lines], out[r]
        for q in range(undecided):
            to[q] = low[q] * x[q] if c[q] >= 0 else high[q] * x[q] + above[q]
        for q in range(len(on)):
            to[undecided + q] = x[undecided + q] * on[q]
        total = np.float32(0.0)
        for q in range(multiplier.shape[1]):
            total += sign[r % signs, q] * multiplier[r, q] * x[at + q]
        taken[r] += total


@fused.compile_loop("F2 F2 F2 F2 F2 F2 F2 F2 F2 F2 i d d d d d d d d")
def climb(  # type: ignore[no-untyped-def]
    z, over, cut, below, first, second, sign, multiplier, third, fourth, at, least, rate, beside, keep, hold, once, twice, tiny,
):  # fmt: skip
    """A step of Adam uphill: slopes by max(over, 0) z, kept between `least` and 1, multipliers by -sign z, kept from 0 on.

    Where the cut is 0 a neuron is decided, and its slope stays. `keep` and `hold` are the moments' weights, `once` and `twice` make up
    for their beginning at zero.
    """
    lines, signs, one, zero = len(cut), max(1, len(sign)), np.float32(1.0), np.float32(0.0)
    kept, held, more, add = np.float32(keep), np.float32(hold), np.float32(1 - keep), np.float32(1 - hold)
    scale, square, small = np.float32(once), np.float32(twice), np.float32(tiny)
    up, press, lowest = np.float32(rate), np.float32(beside), np.float32(least)
    for r in range(len(z)):
        x, c, above, slopes, a, b = z[r], over[r], cut[r % lines], below[r], first[r], second[r]
        for q in range(len(slopes)):
            slope = c[q] * x[q] if c[q] > zero and above[q] != zero else zero
            mean, size = kept * a[q] + more * slope, held * b[q] + add * slope * slope
            a[q] = mean
            b[q] = size
            moved = slopes[q] + up * (mean * scale / ((size * square) ** HALF + small))
            slopes[q] = lowest if moved < lowest else one if moved > one else moved
        m, a, b = multiplier[r], third[r], fourth[r]
        for q in range(len(m)):
            slope = -sign[r % signs, q] * x[at + q]
            mean, size = kept * a[q] + more * slope, held * b[q] + add * slope * slope
            a[q] = mean
            b[q] = size
            moved = m[q] + press * (mean * scale / ((size * square) ** HALF + small))
            m[q] = zero if moved < zero else moved


@fused.compile_loop("F F F2 F2 F2 F2")
def keep_better(bound, best, below, kept, multiplier, others):  # type: ignore[no-untyped-def]
    """What is proposed now, of the rows whose bound it makes better."""
    for r in range(len(bound)):
        if bound[r] > best[r]:
            for q in range(below.shape[1]):
                kept[r, q] = below[r, q]
            for q in range(multiplier.shape[1]):
                others[r, q] = multiplier[r, q]


def serves(device: torch.device) -> bool:
    """Whether there are loops for a device's numbers."""
    return fused.AVAILABLE and device.type == "cpu"


def flat(x: Tensor) -> np.ndarray:
    """Its rows' cells, one line each: the same memory where that is contiguous."""
    return x.contiguous().flatten(1).numpy()
