"""Planes beside the product of two activations, valid for the stored numbers.

Over a box of x and y with middles m and n both planes have the slopes n (of x) and m (of y): between McCormick's two planes below, and
between his two above, which all lie as far from x y in the middle. The slopes are rounded to the coefficient type first. Then

    x y - a x - b y

is linear in x and in y, so its extremes over the box are at corners: cuts are the least and the greatest of four values, moved outward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.runtime.relax import round_down, round_up
from polytriton.runtime.soundness import U64

TINY = 1e-300


@dataclass(frozen=True)
class Planes:
    """first x + second y + lower_cut <= x y <= first x + second y + upper_cut."""

    first: Tensor
    second: Tensor
    lower_cut: Tensor
    upper_cut: Tensor


def _corners(lo: tuple[Tensor, Tensor], hi: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x in (lo[0], hi[0]) for y in (lo[1], hi[1])]


def product_planes(lo: tuple[Tensor, Tensor], hi: tuple[Tensor, Tensor], dtype: torch.dtype, error: Tensor | None) -> Planes:
    """lo, hi: the least and the greatest x and y, float64; `error` >= 0 is the deployed product's own."""
    first, second = (torch.nan_to_num(0.5 * lo[k] + 0.5 * hi[k], nan=0.0, posinf=0.0, neginf=0.0).to(dtype) for k in (1, 0))
    first, second = (torch.where(torch.isfinite(v), v, torch.zeros_like(v)) for v in (first, second))
    return Planes(first, second, *plane_cuts(first, second, lo, hi, error))


def plane_cuts(
    first: Tensor, second: Tensor, lo: tuple[Tensor, Tensor], hi: tuple[Tensor, Tensor], error: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Cuts below and above of planes of these stored slopes, in their type."""
    a, b, dtype = first.double(), second.double(), first.dtype
    low, high = torch.full_like(lo[0], float("inf")), torch.full_like(lo[0], float("-inf"))
    for x, y in _corners(lo, hi):
        parts = x * y, a * x, b * y
        value = parts[0] - parts[1] - parts[2]
        off = 8 * U64 * (parts[0].abs() + parts[1].abs() + parts[2].abs()) + TINY
        low, high = torch.minimum(low, value - off), torch.maximum(high, value + off)  # NaN stays
    if error is not None:
        low, high = low - error, high + error
        low, high = low - 4 * U64 * low.abs(), high + 4 * U64 * high.abs()
    inf = float("inf")
    low, high = torch.nan_to_num(low, nan=-inf, posinf=-inf, neginf=-inf), torch.nan_to_num(high, nan=inf, posinf=inf, neginf=inf)
    return round_down(low, dtype), round_up(high, dtype)


def product_range(lo: tuple[Tensor, Tensor], hi: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The least and the greatest x y, one number outward; NaN where an end is infinite and the other zero."""
    values = [x * y for x, y in _corners(lo, hi)]
    low, high = torch.stack(values).amin(0), torch.stack(values).amax(0)
    return low - 2 * U64 * low.abs() - TINY, high + 2 * U64 * high.abs() + TINY
