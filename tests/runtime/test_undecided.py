"""Which neurons get rows, where they are, and that the loops find what the tensor forms find."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.runtime.cpu import cells
from polytriton.runtime.relax import find_running
from polytriton.runtime.undecided import Undecided, find_undecided

ODD = (0.0, -0.0, 5e-324, -5e-324, 1.0, -2.0, math.inf, -math.inf, math.nan)


@pytest.fixture(params=["loops", "tensors"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tensors":
        monkeypatch.setattr(cells, "serves", lambda values: False)
    elif not cells.serves(torch.zeros(1)):
        pytest.skip("Numba is not installed: there are no compiled loops")
    return str(request.param)


def draw_boxes() -> tuple[Tensor, Tensor]:
    """Three images of 2 x 9 x 3 cells: every pair of odd numbers, then others; not contiguous."""
    rng = np.random.default_rng(0)
    pairs = np.array([*product(ODD, ODD), *rng.normal(size=(81, 2))])
    lo, hi = (torch.from_numpy(v.copy()).view(3, 3, 2, 9).permute(0, 2, 3, 1) for v in pairs.T)
    assert lo.shape == (3, 2, 9, 3) and not lo.is_contiguous()
    return lo, hi


@pytest.mark.parametrize(("every", "settled"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("images", [None, (True, False, True), (False, False, False), (True, True, True)])
def test_neurons_are_found_cell_by_cell(every: bool, settled: bool, images: tuple[bool, ...] | None, form: str) -> None:
    lo, hi = draw_boxes()
    found = find_undecided(lo, hi, every=every, settled=settled, images=None if images is None else torch.tensor(images))
    told = list(zip(found.at.tolist(), *(v.tolist() for v in (*found.where, *found.bounds)), strict=True))
    wanted = []
    for at, (b, i, j, c) in enumerate(product(*map(range, lo.shape))):
        low, high = float(lo[b, i, j, c]), float(hi[b, i, j, c])
        if (images is None or images[b]) and (every or (high > 0 and (settled or low < 0))):
            wanted.append((at, b, i, j, c, low, -high))
    assert len(found) == len(told) and str(told) == str(wanted)  # NaN is no NaN's equal, and -0 is not 0


def test_what_is_found_is_written_back(form: str) -> None:
    lo, hi = (v.contiguous() for v in draw_boxes())
    found = find_undecided(lo, hi)
    assert len(found) > 20
    found.bounds[0].add_(0.25), found.bounds[1].add_(0.5)
    low, high = lo.clone(), hi.clone()
    found.write(low, high)
    changed = torch.zeros(lo.shape, dtype=torch.bool)
    changed[found.where] = True
    assert torch.equal(low[changed], lo[changed] + 0.25) and torch.equal(high[changed], hi[changed] - 0.5)
    assert torch.equal(low[~changed].nan_to_num(), lo[~changed].nan_to_num())
    assert torch.equal(high[~changed].nan_to_num(), hi[~changed].nan_to_num())


def test_some_of_what_is_found() -> None:
    found = find_undecided(*draw_boxes(), every=True)
    some = found.pick(torch.tensor([5, 2]))
    assert isinstance(some, Undecided) and some.at.tolist() == [5, 2]
    assert [v.tolist() for v in some.where] == [v[[5, 2]].tolist() for v in found.where]


def test_a_relu_runs_unless_it_is_off(form: str) -> None:
    """On [0, 0] it is both on and off, and NaN says nothing."""
    lo, hi = draw_boxes()
    wanted = [not high <= 0 or low >= 0 for low, high in zip(lo.flatten().tolist(), hi.flatten().tolist(), strict=True)]
    assert find_running(lo, hi).flatten().tolist() == wanted
