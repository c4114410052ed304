"""A convolution in one loop: the numbers of its product and its sums called one after the other, for any rows at a time and any threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polytriton.runtime.cpu import blocks, convs, loops, sums

pytestmark = pytest.mark.skipif(not loops.AVAILABLE, reason="Numba is not installed")

SHAPES = [  # cells of a row, channels, kernel, channels below, stride, dilation
    ((5, 4), 20, (3, 3), 6, (1, 1), (1, 1)),
    ((3, 3), 17, (4, 4), 5, (2, 2), (1, 1)),
    ((2, 5), 33, (1, 2), 8, (1, 3), (1, 1)),
    ((4, 3), 8, (3, 2), 5, (1, 1), (2, 2)),
    ((1, 1), 130, (5, 5), 16, (1, 1), (1, 1)),
]


@pytest.fixture(autouse=True)
def _ready() -> None:
    if not blocks.is_available():
        pytest.skip("LLVM makes no tiles here")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 7])
def test_one_loop_gives_the_numbers_of_two(
    shape: tuple[tuple[int, int], int, tuple[int, int], int, tuple[int, int], tuple[int, int]], rows: int
) -> None:
    cells, terms, kernel, channels, stride, dilation = shape
    rng = torch.Generator().manual_seed(rows)
    m = torch.randn(rows, *cells, terms, generator=rng)
    w = blocks.pack(torch.randn(terms, channels, *kernel, generator=rng))
    (top, left), (kh, kw) = (1, 0), kernel
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(cells, stride, kernel, dilation, strict=True)]
    size = rows, full[0], max(1, full[1] - 1) * channels
    moves = channels, top, left, *stride, *dilation
    wanted = np.empty(size, dtype=np.float32)
    taps = blocks.multiply(m.view(-1, terms), w, 1, 1 << 30).view(rows, *cells, kh, kw * channels)
    sums.shifted_sums(taps.numpy(), wanted, *moves)
    assert np.abs(wanted).max() > 0
    for some in (1, 2, 3, rows, 100):
        for threads in (1, 2, 3):
            found = np.full(size, np.nan, dtype=np.float32)
            convs.convolve(m.numpy(), w, found, (kh, kw * channels), some, moves, threads)
            assert np.array_equal(found, wanted), (some, threads)


def test_no_rows_are_no_work() -> None:
    w = blocks.pack(torch.ones(4, 5, 3, 3))
    convs.convolve(np.empty((0, 2, 2, 4), np.float32), w, np.empty((0, 4, 20), np.float32), (3, 15), 1, (5, 0, 0, 1, 1, 1, 1), 2)


def test_rows_that_do_not_lie_together_are_refused() -> None:
    w, out = blocks.pack(torch.ones(4, 5, 3, 3)), np.zeros((2, 4, 20), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        convs.convolve(np.ones((2, 2, 2, 8), np.float32)[..., ::2], w, out, (3, 15), 1, (5, 0, 0, 1, 1, 1, 1), 1)
    assert not out.any()
