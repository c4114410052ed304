"""The order in which float32 products are summed, seen from outside: what their charge takes from the loops is asked of their results.

Terms of 1 beside B and -B, B = 2^60: a sum that holds one of the two loses its ones, a sum that holds both is zero. So the result
counts the terms outside of the least sum that holds both. For one place of B, the different counts over all places of -B are the sums
that the term passes through; one more rounding may be its product's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from polytriton.passes import windows as win
from polytriton.runtime.cpu import blocks
from polytriton.runtime.cpu.products import ConvShape
from tests.runtime.scenes import backend, numba

pytestmark = numba
B = 2.0**60
Entry = Callable[[np.ndarray], np.ndarray]  # terms [rows, n] to sums [rows]


def count_sums(entry: Entry, n: int, place: int) -> int:
    """Through how many sums the term at a place passes."""
    rows = np.ones((n, n), np.float32)
    rows[:, place] = B
    rows[np.arange(n), np.arange(n)] = -B
    found = entry(np.delete(rows, place, 0))
    assert ((found >= 0) & (found <= n - 2) & (found == np.round(found))).all()
    return len(set(found.tolist()))


def test_a_sum_in_a_row_is_seen() -> None:
    def entry(rows: np.ndarray) -> np.ndarray:
        total = rows[:, 0]
        for k in range(1, rows.shape[1]):
            total = total + rows[:, k]
        return total

    assert [count_sums(entry, 5, k) for k in range(5)] == [4, 4, 3, 2, 1]


@pytest.mark.parametrize("n", [2, 3, 15, 16, 17, 33, 127, 128, 129, 144, 257, 300, 513])
def test_of_dense_layers_no_sum_is_left_out_of_the_charge(n: int) -> None:
    w, charged = blocks.pack(torch.ones(n, 3)), blocks.depths(torch.arange(n), torch.tensor(n)).tolist()
    some = np.random.default_rng(n).choice(n, min(n, 20), replace=False)
    for place in {0, n - 1, *some.tolist()}:
        sums = count_sums(lambda rows: blocks.multiply(torch.from_numpy(rows), w, 1, 1)[:, 1].numpy(), n, place)
        assert sums + 1 <= charged[place] <= sums + 2, (place, sums)


@pytest.mark.parametrize("seed", range(30))
def test_of_convolutions_no_sum_is_left_out_of_the_charge(seed: int) -> None:
    """Any kernel, stride and dilation, a few channels: one cell of the operand, all products that reach it."""
    rng = np.random.default_rng(seed)
    co, ci = int(rng.choice([1, 2, 7, 16, 17, 20])), int(rng.choice([1, 3, 5, 8]))
    kernel, size = (int(rng.integers(1, 6)), int(rng.integers(1, 6))), (int(rng.integers(2, 7)), int(rng.integers(2, 7)))
    stride, dilation = (int(rng.integers(1, 3)), int(rng.integers(1, 3))), (int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 3])))
    shape = ConvShape(kernel, stride, dilation, (0, 0, 0, 0), 1, win.whole(*size))
    y, x = ((n - 1) * s // 2 + (k - 1) * d // 2 for n, s, k, d in zip(size, stride, kernel, dilation, strict=True))
    out = win.whole(*((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, stride, kernel, dilation, strict=True)))
    reach = [
        (h, w)
        for h in range(size[0])
        for w in range(size[1])
        if (y - h * stride[0]) in range(0, kernel[0] * dilation[0], dilation[0])
        and (x - w * stride[1]) in range(0, kernel[1] * dilation[1], dilation[1])
    ]
    terms = [(h, w, o) for h, w in reach for o in range(co)]
    if len(terms) < 2:
        return
    weight, compute = blocks.pack(torch.ones(co, ci, *kernel)), backend(True)

    def entry(rows: np.ndarray) -> np.ndarray:
        m = torch.zeros(len(rows), *size, co)
        for k, at in enumerate(terms):
            m[(slice(None), *at)] = torch.from_numpy(rows[:, k])
        return compute.conv(m, weight, shape, out)[:, y, x, ci - 1].numpy()

    own = blocks.tap_depths(blocks.depths(torch.arange(co), torch.tensor(co)), (co, ci, *kernel), stride, dilation).tolist()
    for place in rng.choice(len(terms), min(len(terms), 12), replace=False).tolist():
        assert count_sums(entry, len(terms), place) + 1 <= own[terms[place][2]]
