"""Planes beside products, in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton.runtime.planes import plane_cuts, product_planes, product_range

EXTREMES = [0.0, -0.0, 5e-324, -1e-310, 1e-45, 1e-38, -1e-20, 1.0, -1.0, 1 + 2**-52, 0.1, -3.0, 1e15, -1e30, 1e38, 3e38, -1e160]


def boxes(seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    ends = []
    for _ in range(2):
        middle = np.concatenate([rng.choice(EXTREMES, 120), rng.standard_normal(120) * 2.0 ** rng.integers(-20, 20, 120)])
        width = np.abs(middle) * rng.choice([0.0, 2**-52, 1e-6, 0.5, 3.0], 240) + rng.choice([0.0, 0.0, 1e-300, 1.0], 240)
        ends.append((middle - rng.random(240) * width, middle + rng.random(240) * width))
    (a, b), (c, d) = ends
    order = rng.permutation(240)
    c, d = c[order], d[order]
    lo, hi = (np.minimum(a, b), np.minimum(c, d)), (np.maximum(a, b), np.maximum(c, d))
    return (torch.from_numpy(lo[0]), torch.from_numpy(lo[1])), (torch.from_numpy(hi[0]), torch.from_numpy(hi[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_lies_between_its_planes(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    lo, hi = boxes(1)
    planes = product_planes(lo, hi, dtype, None)
    low, high = product_range(lo, hi)
    finite = 0
    for i in range(len(lo[0])):
        if not all(torch.isfinite(v[i]) for v in (planes.lower_cut, planes.upper_cut, low, high)):
            continue
        finite += 1
        xs, ys = ([lo[k][i].item(), hi[k][i].item(), lo[k][i].item() + rng.random() * (hi[k][i] - lo[k][i]).item()] for k in (0, 1))
        a, b = Fraction(planes.first[i].item()), Fraction(planes.second[i].item())
        below, above = Fraction(planes.lower_cut[i].item()), Fraction(planes.upper_cut[i].item())
        for x in map(Fraction, xs):
            for y in map(Fraction, ys):
                rest = x * y - a * x - b * y
                assert below <= rest <= above and Fraction(low[i].item()) <= x * y <= Fraction(high[i].item())
    assert finite > 150


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_planes_of_any_slopes_hold(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    lo, hi = boxes(2)
    first, second = (torch.from_numpy(rng.standard_normal(240) * 10.0 ** rng.integers(-9, 9, 240)).to(dtype) for _ in range(2))
    low, high = plane_cuts(first, second, lo, hi, None)
    finite = 0
    for i in np.flatnonzero((torch.isfinite(low) & torch.isfinite(high)).numpy()):
        finite += 1
        a, b = Fraction(first[i].item()), Fraction(second[i].item())
        for x in map(Fraction, (lo[0][i].item(), hi[0][i].item())):
            for y in map(Fraction, (lo[1][i].item(), hi[1][i].item())):
                assert Fraction(low[i].item()) <= x * y - a * x - b * y <= Fraction(high[i].item())
    assert finite > 150


def test_planes_are_as_near_as_mccormicks() -> None:
    """In the middle of the box both lie a quarter of the widths' product off."""
    lo = (torch.tensor([-1.0, 2.0]).double(), torch.tensor([0.5, -3.0]).double())
    hi = (torch.tensor([3.0, 2.5]).double(), torch.tensor([2.5, 1.0]).double())
    planes = product_planes(lo, hi, torch.float64, None)
    x, y = (0.5 * (lo[k] + hi[k]) for k in (0, 1))
    gap = (hi[0] - lo[0]) * (hi[1] - lo[1]) / 4
    at = planes.first * x + planes.second * y
    torch.testing.assert_close(x * y - (at + planes.lower_cut), gap, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at + planes.upper_cut - x * y, gap, rtol=1e-12, atol=1e-12)


def test_without_a_box_there_is_no_bound() -> None:
    inf = float("inf")
    lo = (torch.tensor([-inf, 0.0, float("nan"), 1.0]).double(), torch.tensor([0.0, 0.0, 0.0, 1.0]).double())
    hi = (torch.tensor([0.0, inf, 1.0, 2.0]).double(), torch.tensor([0.0, 1.0, 1.0, 2.0]).double())
    planes = product_planes(lo, hi, torch.float32, None)
    assert (torch.isfinite(planes.lower_cut) & torch.isfinite(planes.upper_cut)).tolist() == [False, False, False, True]
    assert torch.isfinite(planes.first).all() and torch.isfinite(planes.second).all()


def test_the_error_widens_both() -> None:
    lo, hi = (-torch.ones(2).double(),) * 2, (torch.ones(2).double(),) * 2
    plain, wide = (product_planes(lo, hi, torch.float64, e) for e in (None, torch.tensor([1e-3, float("inf")]).double()))
    assert wide.lower_cut[0] <= plain.lower_cut[0] - 1e-3 and wide.upper_cut[0] >= plain.upper_cut[0] + 1e-3
    assert wide.lower_cut[1] == -float("inf") and wide.upper_cut[1] == float("inf")
