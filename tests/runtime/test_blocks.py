"""Products in blocks: what they are, and through how many roundings a term really passes."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polytriton.ir.plan import Axis, Window
from polytriton.passes import windows as win
from polytriton.runtime.cpu import blocks
from polytriton.runtime.cpu.products import ConvShape
from polytriton.runtime.tables import Tables
from tests.runtime.scenes import backend, numba

pytestmark = numba
U = 2.0**-24
TINY = U * 0.999  # beside 1: lost, but for what rounds


def integers(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(-4, 5, shape).astype(np.float32))


def test_the_tiles_are_compiled_here() -> None:
    assert blocks.is_available()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
def test_small_integers_are_multiplied_exactly(rows: int) -> None:
    """In any order: every height of a tile, ends of blocks and groups, columns that fill no panel."""
    rng = np.random.default_rng(rows)
    for terms, columns in product((1, 2, 15, 16, 17, 40, 128, 129, 300), (1, 15, 16, 17, 35)):
        m, w = integers(rng, rows, terms), integers(rng, terms, columns)
        want = m.double() @ w.double()
        for threads in (1, 2):
            assert torch.equal(blocks.multiply(m, blocks.pack(w), threads, 1).double(), want), (terms, columns, threads)
        slow = torch.empty(rows, columns)
        blocks._multiply.function(m.numpy(), slow.numpy(), blocks.pack(w).panels.numpy())
        assert torch.equal(slow.double(), want)


def test_no_terms_make_zeros() -> None:
    assert torch.equal(blocks.multiply(torch.zeros(3, 0), blocks.pack(torch.zeros(0, 5)), 1, 1), torch.zeros(3, 5))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_reaches_every_column(bad: float) -> None:
    m, w = torch.ones(5, 40), torch.zeros(40, 20)
    m[2, 33] = bad
    found = blocks.multiply(m, blocks.pack(w), 1, 1)
    assert torch.isnan(found[2]).all() and torch.equal(found[[0, 1, 3, 4]], torch.zeros(4, 20))


def crowd(at: int, terms: int) -> np.ndarray:
    """A 1 at a place, and beside it one tiny number in every sum that it meets, so that each rounds."""
    chain, width = blocks.CHAIN, blocks.WIDTH
    row = np.zeros(terms, np.float32)
    block, group = at // chain, at // (chain * width)
    own = range(block * chain, min(terms, (block + 1) * chain))
    row[[k for k in own if k > at]] = TINY
    row[[k for k in own if k < at][:1]] = TINY
    others = range(group * width, min((group + 1) * width, -(-terms // chain)))
    row[[b * chain for b in others if b > block]] = TINY
    row[[b * chain for b in others if b < block][:1]] = TINY
    groups = range(-(-terms // (chain * width)))
    row[[g * chain * width for g in groups if g > group]] = TINY
    row[[g * chain * width for g in groups if g < group][:1]] = TINY
    row[at] = 1
    return row


@pytest.mark.parametrize("terms", [1, 2, 16, 17, 33, 128, 129, 300, 1100])
def test_a_term_passes_through_the_roundings_that_are_charged_and_hardly_fewer(terms: int) -> None:
    """Every sum but the product rounds here, by nearly u: what is lost counts them."""
    m = torch.from_numpy(np.stack([crowd(at, terms) for at in range(terms)]))
    lost = (m.double().sum(1) - blocks.multiply(m, blocks.pack(torch.ones(terms, 1)), 1, 1)[:, 0].double()) / U
    charged = blocks.depths(torch.arange(terms), torch.tensor(terms))
    assert (lost <= charged - 1).all()  # the product is exact
    assert (lost >= 0.99 * (charged - 2)).all()
    slow = np.empty((terms, 1), np.float32)
    blocks._multiply.slow()(m.numpy(), slow, blocks.pack(torch.ones(terms, 1)).panels.numpy())
    assert ((m.double().sum(1) - torch.from_numpy(slow)[:, 0].double()) / U <= charged - 1).all()


CASES = [((3, 3), (1, 1), (1, 1)), ((4, 4), (2, 2), (1, 1)), ((5, 2), (1, 1), (1, 1)), ((7, 3), (2, 1), (1, 2)), ((3, 5), (1, 1), (2, 3))]


@pytest.mark.parametrize("channels", [2, 6])
@pytest.mark.parametrize("kernel, stride, dilation", CASES)
def test_a_tap_passes_through_the_sums_that_are_charged(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], channels: int
) -> None:
    """One channel, all weights 1: a 1 in any cell, tiny numbers in all others; no sum may lose more than is charged."""
    w = torch.ones(1, channels, *kernel)
    h, wide = 6, 6 if channels > 2 else 24  # wider than the lines from which sums go plane by plane elsewhere
    m = torch.full((h * wide, h * wide), TINY)
    m.fill_diagonal_(1)
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip((h, wide), stride, kernel, dilation, strict=True)]
    shape, out = ConvShape(kernel, stride, dilation, (0, 0, 0, 0), 1, win.whole(h, wide)), win.whole(*full)
    packed = blocks.pack(w)
    found = backend(True).conv(m.view(-1, h, wide, 1), packed, shape, out)
    exact = backend(True).conv(m.double().view(-1, h, wide, 1), w.double(), shape, out)
    one = blocks.depths(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
    depth = float(blocks.tap_depths(one, tuple(w.shape), stride, dilation)[0])
    lost = (found.double() - exact).abs() / U
    assert float(lost.max()) <= depth - 2 + 1e-2  # the tap is no sum, and the tiny numbers' own roundings are tiny
    if dilation == (1, 1):
        assert float(lost.max()) >= depth - 2 - 2.1  # and hardly fewer


@pytest.mark.parametrize("size", [5, 24])
@pytest.mark.parametrize("channels", [3, 6])
@pytest.mark.parametrize("kernel, stride, dilation", CASES)
def test_convolutions_of_small_integers_are_exact(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], channels: int, size: int
) -> None:
    """Cut and widened windows too."""
    rng = np.random.default_rng(size + channels)
    m, w = integers(rng, 3, size, size, 7), integers(rng, 7, channels, *kernel)
    shape = ConvShape(kernel, stride, dilation, (1, 0, 2, 1), 1, win.whole(size, size))
    for out in (win.whole(size, size + 3), Window(Axis(size + 40, 1, 2), Axis(4, 1, -1))):
        want = backend(False).conv(m.double(), w.double(), shape, out)
        assert torch.equal(backend(True, 2).conv(m, blocks.pack(w), shape, out).double(), want)


def test_outputs_that_move_up_are_charged_for_both_places() -> None:
    """Of 40 outputs the last ten are live: where the others are left out, the second of them meets eight more in its chain."""
    live = (torch.arange(40) >= 30).view(1, 1, 1, 40)
    layer = SimpleNamespace(node=SimpleNamespace(op="linear"))
    found = Tables._depths(None, layer, live).flatten()  # type: ignore[arg-type]
    forty, ten = (blocks.depths(torch.arange(n), torch.tensor(n)) for n in (40, 10))
    assert found[31] == ten[1] > forty[31]
    assert (found[30:] >= ten).all() and (found >= forty).all()
