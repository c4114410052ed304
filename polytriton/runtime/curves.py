"""Lines beside a smooth function, valid for the stored numbers, and its least and greatest value over a box.

Everything is one question: what is the greatest value of s (f(x) - k x) on [l, h], for a stored slope k and s = +-1? Whatever k is, the
answer is an upper bound (`Boxed.greatest`). On a piece where s f is convex the ends have it. On a piece [a, b] where s f is concave any
point p has a tangent: with g = s (f - k x) and |d - g'(p)| <= eps

    g(x)  <=  g(p) + d' (x - p)  for some d' within eps of d,  so   g  <=  g(p) + max(0, (d + eps) (b - p), (eps - d) (p - a)),

true for every p, and tight for one near the summit. On an enclosure of a bend, of width w, g lies at most max |f''| w^2 / 8 above the
greater of its ends. How far values and slopes of f are off stands in ir/curves.py.

The slope is free. Of all lines above f over [l, h] the one that is lowest in the middle has the least area beside f, so k belongs to the
concave hull of f there: the greatest of f(x) - k x lies left of the middle for a larger k, right of it for a smaller one (`Boxed.touch`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.curves import SLOPE, TINY, VALUE, Curve
from polytriton.ir.net import Node
from polytriton.ir.ops import NORMAL, curve_of
from polytriton.runtime.relax import Lines, round_down, round_up
from polytriton.runtime.soundness import U64

STEPS, OUTER, INNER = 26, 34, 14  # halvings: for a summit, for a slope, for a summit on the way to a slope
FAR = 2.0**20  # beyond, the periods of an argument are not counted
STEEP = 2.0**10  # slopes beside a jump go no further
CELLS = 1 << 14  # taken at once: some dozen arrays of them stay in the cache
Piece = tuple[np.ndarray, np.ndarray, int | None]  # from, to, and the sign of f''; None where a bend is enclosed


class Boxed:
    """A curve over boxes [lo, hi] of finite numbers inside its domain; flat float64 arrays."""

    def __init__(self, curve: Curve, parameter: float, lo: np.ndarray, hi: np.ndarray) -> None:
        self.curve, self.parameter, self.lo, self.hi = curve, parameter, lo, hi
        self.middle = 0.5 * lo + 0.5 * hi
        self.bends = [(np.clip(a, lo, hi), np.clip(b, lo, hi)) for a, b in self._enclose_bends(curve)]
        self.beyond = self._find_far(curve)

    def _enclose_bends(self, curve: Curve) -> Iterator[tuple[np.ndarray | float, np.ndarray | float]]:
        """Enclosures of the bends, of a periodic function those beside the nearest multiple of the period.

        The multiple is off by 2^-52 of itself, its sums with bends by as much again.
        """
        if not curve.period:
            yield from curve.bends
            return
        base = curve.period * np.rint(self.middle / curve.period)
        room = 2.0**-50 * (np.abs(base) + 16)
        yield from ((base + a - room, base + b + room) for a, b in curve.bends)

    def _find_far(self, curve: Curve) -> np.ndarray | None:
        """Boxes of which nothing but the span is known."""
        if not curve.period:
            return None
        return (self.hi - self.lo > 2 * curve.period) | (np.maximum(np.abs(self.lo), np.abs(self.hi)) > FAR)

    def value(self, x: np.ndarray) -> np.ndarray:
        return self.curve.value(x, self.parameter)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self.curve.slope(x, self.parameter)

    def pieces(self) -> Iterator[Piece]:
        """The parts of every box between bends; some are single points."""
        start = self.lo
        for sign, bend in zip(self.curve.signs, [*self.bends, None], strict=True):
            end = self.hi if bend is None else bend[0]
            yield start, end, sign
            if bend is not None:
                start = bend[1]
                if self.curve.most:
                    yield end, start, None

    def _summit(self, side: int, k: np.ndarray, a: np.ndarray, b: np.ndarray, right: bool, steps: int) -> np.ndarray:
        """About where s (f - k x) is greatest on [a, b], s f being concave there; `right`: beyond the one bend of an f' that is even."""
        if self.curve.invert is not None:
            x = self.curve.invert(k)
            return np.clip(x if right else -x, a, b)
        low, high = a, b
        for _ in range(steps):
            x = 0.5 * low + 0.5 * high
            rises = side * (self.slope(x) - k) > 0
            low, high = np.where(rises, x, low), np.where(rises, high, x)
        first, last = self.slope(low), self.slope(high)
        share = np.divide(first - k, first - last, out=np.zeros_like(k), where=first != last)
        return np.clip(low + (high - low) * np.clip(share, 0, 1), a, b)

    def _gap(self, side: int, k: np.ndarray, x: np.ndarray) -> np.ndarray:
        """s (f(x) - k x), moved up by what the stored value may be off and the roundings of three operations."""
        f, product = self.value(x), k * x
        off = VALUE * np.abs(f) + self.curve.off * (1 + np.abs(x)) + self.curve.slack + 2 * TINY
        return side * (f - product) + off + 8 * U64 * (np.abs(f) + np.abs(product) + off)

    def greatest(self, side: int, k: np.ndarray) -> np.ndarray:
        """An upper bound of s (f(x) - k x) over every box."""
        best = np.full_like(k, -np.inf)
        for at, (a, b, sign) in enumerate(self.pieces()):
            if sign is not None and sign * side < 0:
                p = self._summit(side, k, a, b, at > 0, STEPS)
                slope = self.slope(p)
                d = side * (slope - k)
                eps = 2 * SLOPE * np.abs(slope) + 2 * self.curve.off * (1 + np.abs(p)) + 4 * U64 * np.abs(k) + 2 * TINY
                rise = np.maximum(np.maximum((d + eps) * (b - p), (eps - d) * (p - a)), 0) * (1 + 8 * U64)
                found = self._gap(side, k, p) + rise
            else:
                found = np.maximum(self._gap(side, k, a), self._gap(side, k, b))
                if sign is None:
                    found = found + self.curve.most * (b - a) ** 2 / 4
            best = np.maximum(best, found)
        if self.beyond is not None:
            span = max(side * v for v in self.curve.span)
            best = np.where(self.beyond, span + _most(-side * k, self.lo, self.hi), best)
        return best + 8 * U64 * np.abs(best)

    def touch(self, side: int) -> np.ndarray:
        """The slope of a line above s f (times s), the lowest at the middle; nobody trusts it."""
        if len(self.curve.signs) == 1:
            return self.slope(self.middle) if side * self.curve.signs[0] < 0 else self._chord()
        bends = [0.5 * a + 0.5 * b for a, b in self.bends]
        slopes = np.stack([self.slope(x) for x in (self.lo, self.hi, *bends)])
        low, high = slopes.min(0), slopes.max(0)
        fixed = [(x, side * self.value(x)) for x in (self.lo, self.hi, *bends)]
        rounded = [(a, b, at > 0) for at, (a, b, sign) in enumerate(self.pieces()) if sign is not None and sign * side < 0]
        for _ in range(OUTER):
            k = 0.5 * low + 0.5 * high
            points = [*fixed]
            for a, b, right in rounded:
                x = self._summit(side, k, a, b, right, INNER)
                points.append((x, side * self.value(x)))
            heights = np.stack([y - side * k * x for x, y in points])
            where = np.stack([x for x, _ in points])
            summit = np.take_along_axis(where, heights.argmax(0)[None], 0)[0]
            steeper = (summit > self.middle) == (side > 0)
            low, high = np.where(steeper, k, low), np.where(steeper, high, k)
        found = 0.5 * low + 0.5 * high
        return found if self.beyond is None else np.where(self.beyond, 0.0, found)

    def _chord(self) -> np.ndarray:
        width = self.hi - self.lo
        rise = self.value(self.hi) - self.value(self.lo)
        return np.divide(rise, width, out=self.slope(self.middle), where=width > 0)


def _most(k: np.ndarray, lo: np.ndarray | float, hi: np.ndarray | float) -> np.ndarray:
    """The greatest k x over a box, moved up by its rounding: what is added to it may cancel it."""
    found = np.maximum(k * lo, k * hi)
    return np.asarray(found + 2 * U64 * np.maximum(np.abs(k * lo), np.abs(k * hi)) + TINY)


class Stepped:
    """A function that jumps, over boxes as `Boxed` takes them: what may be flushed to zero stands for zero as well.

    For any slope k these are above s (f(x) - k x), and the least of them is taken:

        the greatest s f, at an end, plus the greatest -s k x;      (the band's) s (f - x), plus the greatest s (1 - k) x;

    and for s f of span [-1, 1] that jumps at 0, -1 - s k x on the side where it is -1, 1 - s k x on the other and where x may be flushed.
    """

    def __init__(self, curve: Curve, parameter: float, lo: np.ndarray, hi: np.ndarray) -> None:
        flushed = (lo < NORMAL) & (hi > -NORMAL)
        self.curve, self.lo, self.hi = curve, np.where(flushed, np.minimum(lo, 0), lo), np.where(flushed, np.maximum(hi, 0), hi)
        self.ends = tuple(curve.value(v, parameter) for v in (self.lo, self.hi))

    def greatest(self, side: int, k: np.ndarray) -> np.ndarray:
        best = np.maximum(side * self.ends[0], side * self.ends[1]) + _most(-side * k, self.lo, self.hi)
        if np.isfinite(self.curve.band[0]):
            along = [side * (x - k * x) + 4 * U64 * (np.abs(x) + np.abs(k * x)) for x in (self.lo, self.hi)]
            best = np.minimum(best, np.maximum(*along) + (max(side * v for v in self.curve.band) + NORMAL))
        else:
            low = (self.lo, np.minimum(self.hi, -NORMAL)) if side > 0 else (np.maximum(self.lo, NORMAL), self.hi)
            high = (np.maximum(self.lo, -NORMAL), self.hi) if side > 0 else (self.lo, np.minimum(self.hi, NORMAL))
            apart = np.maximum(_most(-side * k, *low) - 1, _most(-side * k, *high) + 1)
            best = np.where((self.lo < -NORMAL) & (self.hi > NORMAL), np.minimum(best, apart), best)
        return best + 8 * U64 * np.abs(best)

    def touch(self, side: int) -> np.ndarray:
        """Of a level line and one along the band, or from the end to the jump, the nearer at the middle."""
        middle, zero = 0.5 * self.lo + 0.5 * self.hi, np.zeros_like(self.lo)
        if np.isfinite(self.curve.band[0]):
            along = side * middle + max(side * v for v in self.curve.band)
            return np.where(along < np.maximum(side * self.ends[0], side * self.ends[1]), 1.0, 0.0)
        end = self.lo if side > 0 else self.hi
        steep = (self.lo < -NORMAL) & (self.hi > NORMAL) & (side * middle < 0)
        return np.where(steep, np.divide(2.0, np.abs(end), out=zero, where=steep), 0.0)


class Thresholded:
    """x above the threshold a > 0 and else 0, over boxes as `Boxed` takes them: two straight pieces, both closed at the jump.

    s (f - k x) is linear on either, so greatest at an end; the piece above is there where h > a, the other where l <= a. What may be
    flushed lies below a normal a: f is 0 of it and of zero.
    """

    def __init__(self, curve: Curve, parameter: float, lo: np.ndarray, hi: np.ndarray) -> None:
        self.lo, self.hi, self.jump = lo, hi, np.clip(parameter, lo, hi)
        self.below, self.above = lo <= parameter, hi > parameter

    def greatest(self, side: int, k: np.ndarray) -> np.ndarray:
        off = _most(-side * k, self.lo, self.jump)
        on = np.maximum(*(side * (x - k * x) + 4 * U64 * (np.abs(x) + np.abs(k * x)) for x in (self.jump, self.hi))) + TINY
        best = np.maximum(np.where(self.below, off, -np.inf), np.where(self.above, on, -np.inf))
        return best + 8 * U64 * np.abs(best)

    def touch(self, side: int) -> np.ndarray:
        """Of the hull's edges the one at the middle: below level or to the upper end, above one chord, or two where l >= 0."""
        lo, hi, a = self.lo, self.hi, self.jump
        left = 0.5 * lo + 0.5 * hi <= a
        if side < 0:
            edge = np.where(left, 0.0, _quotient(hi, hi - a))
        else:
            edge = np.where(lo < 0, _quotient(hi, hi - lo), np.where(left, _quotient(a, a - lo), 1.0))
        return np.where(self.above, np.where(self.below, edge, 1.0), 0.0)


def _quotient(rise: np.ndarray, width: np.ndarray) -> np.ndarray:
    """A slope; steep ones are no use to a row."""
    return np.minimum(np.divide(rise, width, out=np.full_like(rise, STEEP), where=width > 0), STEEP)


def _has_bound(curve: Curve, lo: Tensor, hi: Tensor) -> Tensor:
    """Where f has a bound: the box is finite and inside the domain, what is flushed there included."""
    found = torch.isfinite(lo) & torch.isfinite(hi)
    return found & (lo > curve.domain[0] + NORMAL) if curve.domain[0] > float("-inf") else found


def _boxes(node: Node, lo: Tensor, hi: Tensor) -> Iterator[tuple[slice, Boxed | Stepped | Thresholded]]:
    """The curve over all boxes, some at once; where there is no bound, over [1, 1]."""
    curve, parameter = curve_of(node)
    there = _has_bound(curve, lo, hi)
    low, high = (torch.where(there, v, torch.ones((), dtype=v.dtype)).flatten().numpy() for v in (lo, hi))
    kind = Thresholded if node.op == "thresholded" else Stepped if curve.jumps else Boxed
    for at in range(0, low.size, CELLS):
        part = slice(at, at + CELLS)
        yield part, kind(curve, parameter, low[part], high[part])


def curve_range(node: Node, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of f over the boxes, outward; infinite where there is no bound."""
    low, high = (np.empty(lo.numel()) for _ in range(2))
    with np.errstate(all="ignore"):  # what overflows is no bound
        for part, box in _boxes(node, lo, hi):
            flat = np.zeros_like(box.lo)
            low[part], high[part] = -box.greatest(-1, flat), box.greatest(1, flat)
    there = _has_bound(curve_of(node)[0], lo, hi)
    inf = torch.full((), float("inf"), dtype=torch.float64)
    return torch.where(there, torch.from_numpy(low).view_as(lo), -inf), torch.where(there, torch.from_numpy(high).view_as(hi), inf)


def curve_lines(node: Node, lo: Tensor, hi: Tensor, dtype: torch.dtype, error: Tensor | None) -> Lines:
    """Lines below and above f over the boxes; `error` >= 0 is how far the deployed f may lie from the exact one."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    slopes = [np.zeros(lo.numel(), kind) for _ in range(2)]
    cuts = [np.empty(lo.numel()) for _ in range(2)]
    with np.errstate(all="ignore"):
        for part, box in _boxes(node, lo, hi):
            for k, side in enumerate((-1, 1)):
                chosen = np.nan_to_num(box.touch(side), nan=0.0, posinf=0.0, neginf=0.0).astype(kind)
                slopes[k][part] = np.where(np.isfinite(chosen), chosen, 0)
                cuts[k][part] = side * box.greatest(side, slopes[k][part].astype(np.float64))
    there = _has_bound(curve_of(node)[0], lo, hi)
    below, above = (torch.where(there, torch.from_numpy(s).view_as(lo), torch.zeros((), dtype=dtype)) for s in slopes)
    lower, upper = (_outward(torch.from_numpy(c).view_as(lo), side, there, error, dtype) for c, side in zip(cuts, (-1, 1), strict=True))
    return Lines(below, above, lower, upper)


def curve_cuts(node: Node, lo: Tensor, hi: Tensor, slopes: Tensor, above: Tensor, error: Tensor | None) -> Tensor:
    """Cuts, in the slopes' type, of lines of these stored slopes: above f where `above`, else below it."""
    found = torch.zeros_like(lo)
    with np.errstate(all="ignore"):
        for side in (-1, 1):
            mine = above == (side > 0)
            low, high, k = lo[mine], hi[mine], slopes[mine].double().numpy()
            cuts = np.empty(len(k))
            for part, box in _boxes(node, low, high):
                cuts[part] = side * box.greatest(side, k[part])
            off = None if error is None else error[mine]
            there = _has_bound(curve_of(node)[0], low, high)
            found[mine] = _outward(torch.from_numpy(cuts), side, there, off, slopes.dtype).double()
    return found.to(slopes.dtype)


def _outward(cuts: Tensor, side: int, there: Tensor, error: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Cuts above f (`side` 1) or below it, `error` further out, rounded outward; infinite where there is no bound."""
    cuts = torch.where(there & ~torch.isnan(cuts), cuts, side * torch.full((), float("inf"), dtype=torch.float64))
    if error is not None:
        cuts = cuts + side * error
        cuts = cuts + side * 4 * U64 * cuts.abs()
    return round_up(cuts, dtype) if side > 0 else round_down(cuts, dtype)
