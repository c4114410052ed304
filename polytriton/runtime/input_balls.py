"""Rows over the meeting of a box and an l1 or l2 ball: a lower bound with its rounding paid, and the point where it is about least.

Let x lie in [l, h] and ||(x - c) / s|| <= R, for numbers c, s > 0 and R as stored. For ANY split a = b + g of a row's coefficients

    a x  =  b x + g x  >=  sum_i least(b_i x_i over [l_i, h_i])  +  g c  -  R ||s g||*                                         (S)

with the dual norm: g (x - c) = sum (s_i g_i) ((x_i - c_i) / s_i) >= -||s g||* ||(x - c) / s|| (Hoelder); l2 is its own dual, that of l1 is
the greatest magnitude. g = 0 is the box alone, g = a the ball alone. The best split has one multiplier t: where t is that of the
constraint ||(x - c) / s|| <= R, x is the least point of a x + t (the constraint) over the box, and g = -t times the constraint's slope
there. `_split` looks for it and nobody need trust what it finds.

What (S) rounds, n cells, all float64: b_i = fl(a_i - g_i) errs by U |b_i|, each product once more, and the sums of 2 n terms by
gamma(2 n, U) of their magnitudes; s_i g_i, its square, n additions, the root and R's product make at most n + 6 roundings of R ||s g||*.
Three last sums round by U of the same magnitudes. `least_over` charges 4 (2 n + 16) U of all magnitudes, which were themselves summed with
as many roundings. Squares below the normal range lose at most 2^-1022 each: the root at most 2^-511 sqrt(n) < 1e-150, times R. What is not
finite is no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.frontend.norm_balls import L1

U = 2.0**-53
STEPS = 8  # of looking for a multiplier; further steps would change bounds by less than 1e-3 of what the ball gains
TINY = 1e-300
ROOT = 1e-150


@dataclass(frozen=True)
class InputBalls:
    """{x : ||(x - centre) / scale|| <= radius} for each of a batch: [batch, ...cells] and [batch]. They hold the exact balls, and what a
    network that flushes reads of their points."""

    norm: str
    centre: Tensor
    scale: Tensor
    radius: Tensor

    def pick(self, images: Tensor) -> InputBalls:
        return InputBalls(self.norm, self.centre[images], self.scale[images], self.radius[images])

    def move_cells(self, move: Callable[[Tensor], Tensor]) -> InputBalls:
        """The same, its cells elsewhere. Cells that are not the user's are 0 everywhere: the ball says nothing of them."""
        scale = move(self.scale)
        return InputBalls(self.norm, move(self.centre), torch.where(scale > 0, scale, torch.ones_like(scale)), self.radius)

    def float(self) -> InputBalls:
        """In float32, for what nobody trusts."""
        return InputBalls(self.norm, self.centre.float(), self.scale.float(), self.radius.float())


def least_over(rows: Tensor, lo: Tensor, hi: Tensor, balls: InputBalls) -> Tensor:
    """A number not above any row's value on its box and ball, float64 [rows]; all [rows, cells]."""
    a = rows.double()
    g = _split(a, lo, hi, balls)
    b = a - g
    least = torch.where(b < 0, b * hi, b * lo)
    centre, norm = g * balls.centre, _dual(balls.norm, g * balls.scale)
    loss = balls.radius * norm
    value = least.sum(1) + centre.sum(1) - loss
    size = (b.abs() * torch.maximum(lo.abs(), hi.abs())).sum(1) + centre.abs().sum(1) + loss
    value = value - (4 * (2 * a.shape[1] + 16) * U * size + balls.radius * ROOT + TINY)
    return torch.where(torch.isfinite(value), value, -torch.inf)


def least_points(rows: Tensor, lo: Tensor, hi: Tensor, balls: InputBalls) -> Tensor:
    """About where each row is least over its box and ball, [rows, cells]; nothing is promised but that it lies in the box."""
    if balls.norm == L1:
        return _knapsack(rows, lo, hi, balls)[1]
    t = _multiplier(rows, lo, hi, balls)
    return torch.clamp(torch.nan_to_num(balls.centre - rows * balls.scale**2 / t), lo, hi)


def _dual(norm: str, v: Tensor) -> Tensor:
    return v.abs().amax(1) if norm == L1 else v.square().sum(1).sqrt()


def _split(a: Tensor, lo: Tensor, hi: Tensor, balls: InputBalls) -> Tensor:
    """The coefficients g that meet the ball."""
    if balls.norm == L1:
        most = _knapsack(a, lo, hi, balls)[0][:, None] / balls.scale
        below, above = torch.where(balls.centre > hi, most, -most), torch.where(balls.centre < lo, -most, most)
        g = torch.clamp(a, below, above)  # of a cell beside the centre its distance is spent, whatever its coefficient
    else:
        t = _multiplier(a, lo, hi, balls) / balls.scale**2
        g = torch.clamp(a, t * (balls.centre - hi), t * (balls.centre - lo))
    return torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0)


def _multiplier(a: Tensor, lo: Tensor, hi: Tensor, balls: InputBalls) -> Tensor:
    """l2, with the constraint halved and squared: x(t) = c - a s^2 / t cut to the box. The first t is that of the ball alone, at least
    the best one; each step solves ||(x(t) - c) / s|| = R with the cells that are cut now kept there."""
    least = torch.finfo(a.dtype).tiny ** 0.25
    c, s, r = balls.centre, balls.scale, balls.radius.square()
    pull = a * s
    forced = ((torch.clamp(c, lo, hi) - c) / s).square().sum(1)
    t = (pull.square().sum(1) / (r - forced).clamp(min=least)).sqrt().clamp(min=least)[:, None]
    for _ in range(STEPS):
        x = c - pull * s / t
        free = (x > lo) & (x < hi)
        cut = torch.where(free, torch.zeros_like(x), ((torch.clamp(x, lo, hi) - c) / s).square()).sum(1)
        pulled = torch.where(free, pull, torch.zeros_like(x)).square().sum(1)
        better = (pulled / (r - cut).clamp(min=least)).sqrt().clamp(min=least)[:, None]
        t = torch.where((cut < r)[:, None], better, 2 * t)
    return t


def _knapsack(a: Tensor, lo: Tensor, hi: Tensor, balls: InputBalls) -> tuple[Tensor, Tensor]:
    """l1: a radius is spent on the steepest cells first, each moved to its end of the box. The multiplier is the slope of the cell at which
    the radius is spent; also the point."""
    c, s = balls.centre, balls.scale
    start = torch.clamp(c, lo, hi)
    end = torch.where(a > 0, lo, hi)
    room, steep = (end - start).abs() / s, a.abs() * s
    left = balls.radius - ((start - c).abs() / s).sum(1)
    worth, order = torch.where(room > 0, steep, torch.zeros_like(steep)).sort(dim=1, descending=True, stable=True)
    spent = room.gather(1, order).cumsum(1)
    at = (spent < left[:, None]).sum(1, keepdim=True)
    slope = torch.where(at < a.shape[1], worth.gather(1, at.clamp(max=a.shape[1] - 1)), torch.zeros_like(worth[:, :1])).squeeze(1)
    share = ((left[:, None] - spent + room.gather(1, order)) / room.gather(1, order).clamp(min=TINY if a.dtype == torch.float64 else 1e-30))
    share = torch.zeros_like(room).scatter(1, order, share.clamp(0.0, 1.0))
    return slope, torch.clamp(start + share * (end - start), torch.minimum(lo, hi), hi)
