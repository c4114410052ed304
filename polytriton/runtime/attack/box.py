"""Exact boxes in the numbers of the model's own type."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from polytriton.frontend.query import Disjunct, Exact

Box = tuple[np.ndarray, np.ndarray]


def inner_box(disjunct: Disjunct, dtype: np.dtype) -> Box | None:
    """The least and greatest numbers of the type inside the exact box; None where some input has none."""
    lo, hi = _inward(disjunct, dtype)
    return (lo, hi) if bool(np.all(lo <= hi)) and bool(np.isfinite(lo).all() and np.isfinite(hi).all()) else None


def nearest_box(disjunct: Disjunct, dtype: np.dtype) -> Box | None:
    """The same, but an input without a number of the type in its interval gets the one nearest to the interval.

    A property may fix an input at 0.61035156, which no binary number equals. The model can then only be run beside the box;
    `exact_point` says for which point of the box such a run stands.
    """
    lo, hi = _inward(disjunct, dtype)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        return None
    for i in np.flatnonzero(lo > hi).tolist():  # hi and lo are neighbours, the interval lies between them
        below, above = disjunct.exact_lo[i] - Fraction(hi[i].item()), Fraction(lo[i].item()) - disjunct.exact_hi[i]
        lo[i] = hi[i] = hi[i] if below <= above else lo[i]
    return lo, hi


def exact_point(disjunct: Disjunct, point: np.ndarray) -> Exact | None:
    """The point of the exact box nearest to a point beside it; None where strict bounds leave no nearest one, or the ball misses it."""
    made = tuple(min(max(Fraction(v), lo), hi) for v, lo, hi in zip(point.tolist(), disjunct.exact_lo, disjunct.exact_hi, strict=True))
    left_out = [made[i] == disjunct.exact_lo[i] for i in disjunct.open_lo] + [made[i] == disjunct.exact_hi[i] for i in disjunct.open_hi]
    return None if any(left_out) or not (disjunct.ball is None or disjunct.ball.holds(made)) else made


def _inward(disjunct: Disjunct, dtype: np.dtype) -> Box:
    """Both ends rounded inward, and past the end where it is strict."""
    lo = _round_toward(disjunct.exact_lo, dtype, disjunct.open_lo, up=True)
    hi = _round_toward(disjunct.exact_hi, dtype, disjunct.open_hi, up=False)
    return lo, hi


def _round_toward(exact: Sequence[Fraction], dtype: np.dtype, strict: frozenset[int], up: bool) -> np.ndarray:
    """Each number rounded to the type in one direction. The nearest one is at most one step away, even when rounded twice."""
    top = np.finfo(dtype).max
    with np.errstate(over="ignore"):
        near = np.clip(np.array([float(v) for v in exact], dtype=np.float64).astype(dtype), -top, top)
        wrong = [Fraction(n) < v if up else Fraction(n) > v for n, v in zip(near.tolist(), exact, strict=True)]
        beyond = np.array(np.inf if up else -np.inf, dtype=dtype)
        made = np.where(wrong, np.nextafter(near, beyond), near)
        for i in strict:
            if Fraction(made[i].item()) == exact[i]:
                made[i] = np.nextafter(made[i], beyond)
    return made
