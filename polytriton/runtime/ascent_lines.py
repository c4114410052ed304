"""What an ascent moves of one operator: slopes of a ReLU's line below and multipliers of its sign, of a smooth function's line, of a
product's plane.

A row with the coefficient L over f loses L (f(z) - k z - c(k)), z being where the row is least and c(k) the cut of the line of slope k:
the least of f - k x over the box where L > 0, the greatest where L < 0. By the envelope theorem c'(k) = -x*, x* being where that is taken:

    d bound / d k  =  L (z - x*)        for a ReLU's line through 0: L z

Cuts are taken at points of the box here, which is enough to choose a slope; what a walk charges is a cut that holds (`runtime/chosen.py`).
Everything is relative to the middle of the box: what is left of a float32 number's digits matters where boxes are narrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.ops import curve_of
from polytriton.runtime.cpu import ascent_loops
from polytriton.runtime.cpu.ascent_loops import flat

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's own
BESIDE = 0.25  # of the rate, for multipliers
STRIDE = 0.08  # of the rate, times the width of what slopes may be: a smooth function's
POINTS = 17  # of a box, where a smooth function is looked at
HALVINGS = 10  # for the slope of the line lowest in the middle, where an ascent begins
Operands = tuple[Tensor, ...]


@dataclass
class Found:
    """What the ascent proposes for one operator, [rows, *shape]: slopes of the lines that the rows take (of a product's planes, `second`
    those of its other factor), signed multipliers where signs were given, and how much a bound loses by this neuron's relaxation.
    """

    slopes: Tensor
    multipliers: Tensor | None
    loss: Tensor
    second: Tensor | None = None


class Moved(ABC):
    """Slopes of one operator's lines, the rows' coefficients over its output, and Adam's moments.

    Multipliers b, zero and above, are of what is assumed of the operand z: s (z - end) >= 0, s being 1 or -1.
    """

    def __init__(self, like: Tensor, sign: Tensor | None = None, multiplier: Tensor | None = None, end: Tensor | float = 0.0) -> None:
        self.coefficient, self.sign, self.end = torch.zeros_like(like), sign, end
        self.multiplier = None if sign is None else torch.zeros_like(like) if multiplier is None else multiplier.clamp(min=0)
        self.kept: Found | None = None
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def back(self, g: Tensor) -> Operands:
        """Coefficients over the operands from those over the output."""

    @abstractmethod
    def forward(self, *operands: Tensor) -> Tensor:
        """The lines' value, on the side that the coefficients ask for."""

    def penalty(self, *operands: Tensor) -> Tensor | float:
        """What multipliers take off a row's value."""
        less = self._less()
        return 0.0 if less is None else (less * (operands[0] - self.end)).flatten(1).sum(1)

    def _less(self) -> Tensor | None:
        """What multipliers take off coefficients."""
        return None if self.multiplier is None or self.sign is None else self.sign * self.multiplier

    def _press(self, z: Tensor, rate: float, k: int) -> None:
        """A step of the multipliers."""
        if self.multiplier is not None and self.sign is not None:
            slope = -self.sign * (z - self.end)
            self.multiplier = (self.multiplier + BESIDE * rate * self._move("multiplier", slope, k)).clamp(min=0)

    @abstractmethod
    def step(self, operands: Operands, rate: float, k: int) -> None:
        """One step of Adam uphill."""

    @abstractmethod
    def proposal(self) -> Found:
        """What is proposed now."""

    def keep(self, better: Tensor) -> None:
        """Notes what is proposed now for the rows that it serves better than what is kept."""
        now = self.proposal()
        if self.kept is None:
            self.kept = Found(now.slopes.clone(), now.multipliers, now.loss, now.second)
            return
        where, k = better.view(-1, *[1] * (now.loss.dim() - 1)), self.kept
        k.slopes, k.loss = torch.where(where, now.slopes, k.slopes), torch.where(where, now.loss, k.loss)
        if now.multipliers is not None and k.multipliers is not None:
            k.multipliers = torch.where(where, now.multipliers, k.multipliers)
        if now.second is not None and k.second is not None:
            k.second = torch.where(where, now.second, k.second)

    def _move(self, name: str, slope: Tensor, k: int) -> Tensor:
        first, second = self.moments.setdefault(name, (torch.zeros_like(slope), torch.zeros_like(slope)))
        first.lerp_(slope, 1 - FIRST)
        second.lerp_(slope * slope, 1 - SECOND)
        return (first / (1 - FIRST**k)) / ((second / (1 - SECOND**k)).sqrt() + TINY)


NO_CELLS = np.empty(0, np.float32)


def step_numbers(least: float, rate: float, k: int) -> tuple[float, ...]:
    """What `ascent_loops.climb` is given of the k-th step, with slopes from `least` on."""
    return least, rate, BESIDE * rate, FIRST, SECOND, 1 / (1 - FIRST**k), 1 / (1 - SECOND**k), TINY


class ReluLines(Moved):
    """The line below, through 0, of slopes in [the operator's own, 1]; multipliers of known signs, zero and above.

    On a CPU the passes are compiled loops; slopes and multipliers are moved where they lie.
    """

    def __init__(self, lo: Tensor, hi: Tensor, slope: float, sign: Tensor | None, below: Tensor | None, multiplier: Tensor | None) -> None:
        super().__init__(lo, sign, multiplier)
        self.low = slope
        self.open = (lo < 0) & (hi > 0)
        decided = torch.where(lo >= 0, 1.0, slope)
        self.chord = torch.where(self.open, (hi - slope * lo) / (hi - lo).clamp(min=1e-30), decided)
        self.below = torch.where(self.open, torch.where(hi > -lo, 1.0, slope) if below is None else below, decided)
        self.cut = torch.where(self.open, (slope - self.chord) * lo, torch.zeros_like(lo))
        self.fast = ascent_loops.serves(lo.device)
        if self.fast:
            self.below = self.below.contiguous()
            self.multiplier = None if self.multiplier is None else self.multiplier.contiguous()
            none = lo.new_empty(len(lo), 0)
            signs = (none, none) if self.multiplier is None or self.sign is None else (self.sign, self.multiplier)
            self._signs, (self._chord, self._cut, self._below) = tuple(map(flat, signs)), map(flat, (self.chord, self.cut, self.below))
            self._moments = [np.zeros_like(v) for v in (self._below, self._below, self._signs[1], self._signs[1])]

    def back(self, g: Tensor) -> Operands:
        self.coefficient = g
        if self.fast:
            out = torch.empty(g.shape)
            ascent_loops.fold_back(flat(g), self._below, self._chord, NO_CELLS, *self._signs, 0, flat(out))
            return (out,)
        n, less = torch.where(g >= 0, g * self.below, g * self.chord), self._less()
        return (n if less is None else n - less,)

    def forward(self, *operands: Tensor) -> Tensor:
        (z,) = operands
        if self.fast:
            out, none = torch.empty(z.shape), self._signs[0][:, :0]
            lines = flat(self.coefficient), self._below, self._chord, self._cut, NO_CELLS
            ascent_loops.follow_lines(flat(z), *lines, none, none, 0, flat(out), np.zeros(len(z), np.float32))
            return out
        return torch.where(self.coefficient >= 0, self.below * z, self.chord * z + self.cut)

    def proposal(self) -> Found:
        return Found(self.below, self._less(), -self.coefficient.clamp(max=0) * self.cut)

    def step(self, operands: Operands, rate: float, k: int) -> None:
        (z,) = operands
        if self.fast:
            lines, signs = (self._cut, self._below, *self._moments[:2]), (*self._signs, *self._moments[2:])
            ascent_loops.climb(flat(z), flat(self.coefficient), *lines, *signs, 0, *step_numbers(self.low, rate, k))
            return
        slope = torch.where(self.open, self.coefficient.clamp(min=0) * z, torch.zeros_like(z))
        self.below = torch.where(self.open, (self.below + rate * self._move("below", slope, k)).clamp(self.low, 1.0), self.below)
        self._press(z, rate, k)


class CurveLines(Moved):
    """Lines below and above a smooth function, of slopes between the least and the greatest that it has on the box. What is no number
    of `begin` is chosen here.
    """

    def __init__(
        self, node: Node, lo: Tensor, hi: Tensor, sign: Tensor | None = None, begin: Tensor | None = None, multiplier: Tensor | None = None
    ) -> None:
        super().__init__(lo, sign, multiplier, 0.0 if sign is None else torch.where(sign > 0, lo, hi).nan_to_num(0.0, 0.0, 0.0))
        one = bool((lo == lo[:1]).all() and (hi == hi[:1]).all())  # rows over one box share its points
        low, high = ((v[:1] if one else v).double().numpy() for v in (lo, hi))
        curve, parameter = curve_of(node)
        share = np.linspace(0, 1, POINTS).reshape(-1, *[1] * low.ndim)
        with np.errstate(all="ignore"):  # without a bound a row has none, whatever the slope
            middle = 0.5 * low + 0.5 * high
            x = low + (high - low) * share
            base, f, slopes = curve.value(middle, parameter), curve.value(x, parameter), curve.slope(x, parameter)
            if curve.jumps:
                slopes = np.stack([(f[-1] - f[0]) / np.maximum(high - low, 1e-30), np.zeros_like(low), np.ones_like(low)])
            missed = np.zeros_like(low) if curve.jumps else np.abs(np.diff(f, 2, axis=0)).max(0) / 8  # of an extreme between two points
            self.at, self.rest = (torch.from_numpy(np.nan_to_num(v)).float() for v in (x - middle, f - base))
            ends = (torch.from_numpy(np.nan_to_num(v, posinf=0.0, neginf=0.0)).float() for v in (slopes.min(0), slopes.max(0)))
            self.middle, self.base, self.missed = (torch.from_numpy(np.nan_to_num(v)).float() for v in (middle, base, missed))
        self.least, self.most = ends
        own = (self._begin(side).expand_as(lo) for side in (1.0, -1.0))
        self.below, self.above = (v if begin is None else self._clamp(torch.where(begin.isnan(), v, begin)) for v in own)
        self.slope = self.cut = self.touch = torch.zeros_like(lo)

    def _clamp(self, slopes: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(slopes, self.least), self.most)

    def _touch(self, side: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The cut, and where it is taken: where s (f - k x) is least."""
        found = (side * (self.rest - slope * self.at)).min(0)
        return side * found.values, self.at.expand(-1, *slope.shape).gather(0, found.indices[None])[0]

    def _begin(self, side: float) -> Tensor:
        """The slope of the line nearest in the middle: f - k x is least left of it for smaller slopes, right of it for larger ones."""
        low, high, way = self.least, self.most, torch.full_like(self.least, side)
        for _ in range(HALVINGS):
            k = 0.5 * low + 0.5 * high
            steeper = (self._touch(way, k)[1] < 0) == (side > 0)
            low, high = torch.where(steeper, k, low), torch.where(steeper, high, k)
        return 0.5 * low + 0.5 * high

    def back(self, g: Tensor) -> Operands:
        self.coefficient = g
        self.slope = torch.where(g >= 0, self.below, self.above)
        self.cut, self.touch = self._touch(torch.where(g >= 0, 1.0, -1.0), self.slope)
        less = self._less()
        return (g * self.slope if less is None else g * self.slope - less,)

    def forward(self, *operands: Tensor) -> Tensor:
        below = torch.where(self.coefficient >= 0, -self.missed, self.missed)
        return self.base + self.slope * (operands[0] - self.middle) + self.cut + below

    def proposal(self) -> Found:
        """A neuron costs what its line misses of the function between its ends and the line's touch, about."""
        away = (self.rest - self.slope * self.at - self.cut).abs().amax(0)
        return Found(self.slope, self._less(), self.coefficient.abs() * away)

    def step(self, operands: Operands, rate: float, k: int) -> None:
        slope, wide = self.coefficient * (operands[0] - self.middle - self.touch), STRIDE * (self.most - self.least)
        for name, mine in (("below", self.coefficient >= 0), ("above", self.coefficient < 0)):
            moved = getattr(self, name) + rate * wide * self._move(name, torch.where(mine, slope, torch.zeros_like(slope)), k)
            setattr(self, name, self._clamp(moved))
        self._press(operands[0], rate, k)


class ProductPlanes(Moved):
    """A plane beside a product, of slopes between the least and the greatest of the other factor; its cut is taken at a corner."""

    def __init__(self, lo: Operands, hi: Operands) -> None:
        super().__init__(lo[0])
        self.middle = tuple((0.5 * a + 0.5 * b).nan_to_num(0.0, 0.0, 0.0) for a, b in zip(lo, hi, strict=True))
        self.radius = tuple((b - m).nan_to_num(0.0, 0.0, 0.0).clamp(min=0) for b, m in zip(hi, self.middle, strict=True))
        self.slopes = [torch.zeros_like(lo[0]) for _ in range(2)]  # beyond the middle of the other factor
        self.cut, self.touch = torch.zeros_like(lo[0]), [torch.zeros_like(lo[0]) for _ in range(2)]

    def back(self, g: Tensor) -> Operands:
        self.coefficient = g
        side = torch.where(g >= 0, 1.0, -1.0)
        corners = [(s * self.radius[0], t * self.radius[1]) for s in (1, -1) for t in (1, -1)]
        rests = torch.stack([side * (x * y - self.slopes[0] * x - self.slopes[1] * y) for x, y in corners])
        found = rests.min(0)
        self.cut = side * found.values
        self.touch = [torch.stack([c[k] for c in corners]).gather(0, found.indices[None])[0] for k in range(2)]
        return g * (self.slopes[0] + self.middle[1]), g * (self.slopes[1] + self.middle[0])

    def forward(self, *operands: Tensor) -> Tensor:
        x, y = (v - m for v, m in zip(operands, self.middle, strict=True))
        (a, b), (m, n) = self.slopes, self.middle
        return m * n + (a + n) * x + (b + m) * y + self.cut

    def proposal(self) -> Found:
        a, b = self.slopes[0] + self.middle[1], self.slopes[1] + self.middle[0]
        return Found(a, None, self.coefficient.abs() * self.radius[0] * self.radius[1], b)

    def step(self, operands: Operands, rate: float, k: int) -> None:
        for i in range(2):
            slope = self.coefficient * (operands[i] - self.middle[i] - self.touch[i])
            wide = self.radius[1 - i]
            moved = self.slopes[i] + 2 * rate * wide * self._move(f"slope {i}", slope, k)
            self.slopes[i] = torch.minimum(torch.maximum(moved, -wide), wide)
