"""L1 and L2 balls of inputs: the exact set, and the float64 set around it that a proof covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.numbers import exact_value, exact_values
from polytriton.frontend.query import Exact, Row, float_bounds
from polytriton.guard import guard_class

if TYPE_CHECKING:
    from polytriton.frontend.expressions import Numbers

LINF, L2, L1 = "linf", "l2", "l1"
NORMS = (LINF, L2, L1)
FLUSHED = 2.0**-126  # an input nearer to 0 than this may be read as 0


def check_norm(norm: str) -> str:
    if norm not in NORMS:
        raise UsageError(f"the norm {str(norm)[:20]!r} is unknown", f"use one of: {', '.join(NORMS)}")
    return norm


def _without_tens(n: int) -> int:
    """Without its factors 2 and 5."""
    for p in (2, 5):
        while n % p == 0:
            n //= p
    return n


def kernel_refusal(norm: str) -> UsageError:
    return UsageError(f"generated kernels bound boxes, no {norm} balls", "add --device cpu; in Python device='cpu'")


@dataclass(frozen=True, eq=False)
class BoxBalls:
    """For each of some boxes the ball that its inputs lie in too, {x : ||(x - centre) / scale|| <= radius}: float64 [boxes, values] and
    [boxes]. They hold the exact balls, and what a network that flushes reads of their points.
    """

    norm: str
    centre: np.ndarray
    scale: np.ndarray
    radius: np.ndarray

    def pick(self, boxes: np.ndarray) -> BoxBalls:
        return BoxBalls(self.norm, self.centre[boxes], self.scale[boxes], self.radius[boxes])

    @staticmethod
    def join(parts: Sequence[BoxBalls | None]) -> BoxBalls | None:
        """None where no box has one; all have one of the same norm otherwise."""
        balls = [b for b in parts if b is not None]
        if not balls:
            return None
        if len(balls) < len(parts) or len({b.norm for b in balls}) > 1:
            problem = "boxes and balls, or balls of several norms, in one question"
            raise UsageError(problem, "ask about each norm by a property of its own")
        return BoxBalls(balls[0].norm, *(np.concatenate([getattr(b, f) for b in balls]) for f in ("centre", "scale", "radius")))


@guard_class
class NormBall:
    """The inputs x with ||weights (x - centre)|| <= radius in the l2 or the l1 norm, exactly.

    centre: in the network's own order of inputs; weights: one number, or one an input, above 0 (1 / weights are the ball's half axes for a
    radius of 1). Numbers are taken at their exact value: 0.1 is the float, "0.1" a tenth.
    """

    def __init__(self, centre: Numbers, radius: float | str | Fraction, norm: str = L2, *, weights: Numbers = 1) -> None:
        exact, _ = exact_values(centre, "the centre")
        given, shape = exact_values(weights, "weights")
        weighed = given * len(exact) if not shape else given
        if len(weighed) != len(exact):
            raise UsageError(f"{len(weighed)} weights for {len(exact)} inputs", "give one number, or one an input")
        near = np.array([float_bounds(v) for v in exact]).reshape(-1, 2)
        self._set(check_norm(norm), tuple(exact), (near[:, 0], near[:, 1]), tuple(weighed), exact_value(radius, "the radius"))

    @staticmethod
    def from_near(norm: str, centre: Exact, near: tuple[np.ndarray, np.ndarray], weights: Sequence[Fraction], radius: Fraction) -> NormBall:
        """`near`: float64 numbers below and above the centre, flat."""
        made = object.__new__(NormBall)
        made._set(norm, centre, near, weights, radius)
        return made

    def _set(self, norm: str, centre: Exact, near: tuple[np.ndarray, np.ndarray], weights: Sequence[Fraction], radius: Fraction) -> None:
        if norm == LINF:
            raise UsageError("an l-infinity ball is a box", "give box=(lo, hi), or norm='l2' or 'l1'")
        if radius < 0 or not len(near[0]):
            raise UsageError("a ball without inputs, or of a negative radius", "give a centre of numbers and a radius of at least 0")
        if min(weights) <= 0:
            raise UsageError(f"a weight of {float_bounds(min(weights))[0]:g}", "weights are above 0; a box fixes an input")
        sizes = [float_bounds(v)[1] for v in (radius, max(weights), 1 / min(weights))]
        if not (np.isfinite(sizes).all() and np.isfinite(near).all()):
            raise UnsupportedProperty("a ball's centre, radius or weights lie beyond float64", "rescale the inputs")
        self.norm, self.centre, self.near, self.weights, self.radius = norm, centre, near, weights, radius

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        return f"<NormBall: {self.norm} around {len(self)} inputs, radius {float_bounds(self.radius)[1]:g}>"

    def holds(self, point: Exact) -> bool:
        """Whether an exact point lies in the ball, its boundary included."""
        moved = [abs(v - c) * w for v, c, w in zip(point, self.centre, self.weights, strict=True)]
        return sum(moved) <= self.radius if self.norm == L1 else sum(d * d for d in moved) <= self.radius**2

    def meets(self, lows: Exact, highs: Exact) -> bool:
        """Whether some input of the box lies in the ball: the nearest does, which is nearest in every coordinate."""
        return self.holds(tuple(min(max(c, lo), hi) for c, lo, hi in zip(self.centre, lows, highs, strict=True)))

    def rows(self, free: Sequence[int], fixed: Exact) -> Iterator[Row]:
        """Linear inequalities that say the same of an l1 ball, the inputs that are not `free` being what `fixed` says. They are multiplied
        so that decimals write their numbers: a file of thirds is one that not every program reads, the checker of certificates among them.
        """
        assert self.norm == L1
        kept = set(range(len(self))) - set(free)
        left = self.radius - sum(abs(fixed[i] - self.centre[i]) * self.weights[i] for i in kept)
        for signs in product((-1, 1), repeat=len(free)):
            terms = tuple((i, s * self.weights[i]) for i, s in zip(free, signs, strict=True))
            const = left + sum((c * self.centre[i] for i, c in terms), start=Fraction(0))
            times = lcm(*(_without_tens(v.denominator) for v in (const, *(c for _, c in terms))))
            yield Row((), tuple((i, c * times) for i, c in terms), const * times)

    def box(self) -> tuple[Exact, Exact]:
        """The least box around it."""
        reach = {w: self.radius / w for w in set(self.weights)}
        both = [(c - reach[w], c + reach[w]) for c, w in zip(self.centre, self.weights, strict=True)]
        return tuple(lo for lo, _ in both), tuple(hi for _, hi in both)

    @cached_property
    def enclosed(self) -> BoxBalls:
        """Of one box. With c' = the lower end of `near`, s_i >= 1 / w_i, and e_i = |c_i - c'_i| + FLUSHED,

            ||(x' - c') / s||  <=  ||w (x - c)|| + ||w e||  <=  radius + sum w_i e_i     for every x' within FLUSHED of x, cell by cell,

        by the triangle inequality and since neither norm exceeds the sum of magnitudes. The sum is float64, of numbers rounded upward.
        """
        lo, hi = self.near
        ends = {w: (float_bounds(1 / w)[1], float_bounds(w)[1]) for w in set(self.weights)}
        scale, weight = np.array([ends[w] for w in self.weights]).T
        beside = float((np.nextafter(hi - lo + FLUSHED, np.inf) * weight).sum()) * (1 + 2.0**-30) + 1e-300
        radius = float_bounds(self.radius + Fraction(beside))[1] if np.isfinite(beside) else np.inf
        if not np.isfinite(radius):
            raise UnsupportedProperty("a ball's radius lies beyond float64", "rescale the inputs")
        return BoxBalls(self.norm, lo[None], scale[None], np.array([radius]))
