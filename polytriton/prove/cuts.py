"""How a search narrows and divides boxes of inputs. Nothing here is trusted but `clip`, `meet_balls`, and that halves share their cut."""

from __future__ import annotations

import numpy as np

from polytriton.frontend.norm_balls import L2, BoxBalls

U = 2.0**-53
TINY = 1e-300
FLAT = 0.1
FEW = 64  # free inputs up to which boxes of them are divided
FEW_IN_BALLS = 16  # where balls cut them: half of a ball of many inputs reaches about as far as the whole


def clip(
    lo: np.ndarray, hi: np.ndarray, slopes: np.ndarray, constant: np.ndarray, slack: np.ndarray, flush: float
) -> tuple[np.ndarray, np.ndarray]:
    """The part of each box [rows, inputs] in which a form with this lower line can be at most zero, as a box; with an end above the
    other where there is none.

    An unsafe input x has form <= 0, so slopes . x + constant - slack <= 0, hence for every input i with slope a > 0

        a x_i  <=  slack - constant - sum over j != i of least(slope_j x_j)  =  -(least - least_i),     least = constant - slack + sum,

    and the other way round for a < 0. The right side is a float64 sum of `inputs + 2` terms, off by at most gamma times their magnitudes;
    it is enlarged by twice that, the quotient moved outward by its rounding. The network may flush an input below `flush`: the executed
    x, of which the line speaks, then lies that far from the box and from the input. A line that is not finite cuts nothing.
    """
    with np.errstate(all="ignore"):
        ends = slopes * lo, slopes * hi
        least = np.minimum(*ends)
        size = np.maximum(np.abs(ends[0]), np.abs(ends[1])).sum(1) + np.abs(constant) + slack
        total = constant - slack + least.sum(1)
        error = (4 * (slopes.shape[1] + 8) * U * size + 2 * flush * np.abs(slopes).sum(1) + TINY)[:, None]
        reach = (least - total[:, None] + error) / np.abs(slopes)  # how far x_i, times the slope's sign, may go
        reach = reach + 8 * U * np.abs(reach) + TINY + flush
        up = np.where(np.isfinite(reach) & (slopes > 0), reach, np.inf)
        down = np.where(np.isfinite(reach) & (slopes < 0), -reach, -np.inf)
    return np.maximum(lo, down), np.minimum(hi, up)


def meet_balls(lo: np.ndarray, hi: np.ndarray, balls: BoxBalls) -> tuple[np.ndarray, np.ndarray]:
    """The box around what each box [rows, inputs] and its ball share; with an end above the other where they share nothing.

    An input x_j of the box is at least d_j = max(l_j - c_j, c_j - h_j, 0) / s_j from the centre, so |x_i - c_i| / s_i is at most the
    R - sum over j != i of d_j in l1, the root of R^2 - sum over j != i of d_j^2 in l2. Each d_j (and d_j^2) is rounded a few times and
    so is each of the n additions; the whole sum less one term errs by as much. 4 (n + 8) U of the sum and of what it is taken from is
    more than twice that. The root, the product with s_i and the sum with c_i are moved outward.
    """
    root = balls.norm == L2
    with np.errstate(all="ignore"):
        apart = np.maximum(np.maximum(lo - balls.centre, balls.centre - hi), 0.0) / balls.scale
        given, apart = (balls.radius**2, apart**2) if root else (balls.radius, apart)
        total = apart.sum(1)
        left = given - total + 4 * (lo.shape[1] + 8) * U * (given + total) + TINY
        reach = left[:, None] + apart
        reach = balls.scale * (np.sqrt(np.maximum(reach, 0.0)) if root else reach) * (1 + 16 * U) + TINY
        slip = 4 * U * (np.abs(balls.centre) + reach) + TINY
        low, high = balls.centre - reach - slip, balls.centre + reach + slip
        low, high = np.where(np.isfinite(low), low, -np.inf), np.where(np.isfinite(high), high, np.inf)
    low, high = np.maximum(lo, low), np.minimum(hi, high)
    return np.where(left[:, None] < 0, np.inf, low), np.where(left[:, None] < 0, -np.inf, high)


def hull(lo: np.ndarray, hi: np.ndarray, at: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The least box around those of each of `count` domains, `at` tells whose they are."""
    low, high = np.full((count, lo.shape[1]), np.inf), np.full((count, lo.shape[1]), -np.inf)
    np.minimum.at(low, at, lo)
    np.maximum.at(high, at, hi)
    return low, high


def middle(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """A number between two ends, and one of them only where nothing lies between."""
    return np.clip(0.5 * lo + 0.5 * hi, lo, hi)


def widest_effect(lo: np.ndarray, hi: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The input of each box to cut: the greatest product of slope and width; -1 where no input has a number strictly between its ends.

    A bound's slope says little of what relaxed neurons lose along an input: no input counts for less than `FLAT` of the steepest.
    """
    cut = middle(lo, hi)
    divisible = (cut > lo) & (cut < hi)
    with np.errstate(over="ignore"):
        weight = np.where(divisible, weight, 0.0)
        steep = np.maximum(weight, FLAT * weight.max(1, keepdims=True, initial=0.0))
        score = np.minimum(np.where(steep > 0, steep, TINY) * (hi - lo), 1e300)
    return np.where(divisible.any(1), np.where(divisible, score, -1.0).argmax(1), -1)


def halves(lo: np.ndarray, hi: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of every box, lower ones first. They share the cut, so together they are the box."""
    at = np.arange(len(axis))
    cut = middle(lo[at, axis], hi[at, axis])
    low, high = lo.copy(), hi.copy()
    low[at, axis], high[at, axis] = cut, cut
    return np.concatenate([lo, low]), np.concatenate([high, hi])
