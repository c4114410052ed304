"""A radius that tells something of a network, where the paper's does not: some images are proved there, and some are not.

The first image's limit is found by doubling, halving and bisection; then a few more are asked there, and the radius moves a little until
they part. It is stated beside the paper's. Bounds of neurons cost most where the radius is large, so a quicker method that proves less is
asked first, and the search goes up from where that one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

SAME = 3  # images alike that decide what is to be said of a radius
BOTH, MOST = 2, 7  # images of each kind that end its search, among as many
STEPS, TRIES = 24, 6  # radii that one image is asked at, and a few
NEAR = Fraction(5, 4)  # how far apart the ends of the first image's bracket may be, and a few's first steps go
WHOLE = Fraction(1)  # the pixels' range

Share = Callable[[Fraction, int], float]  # of images proved at a radius, among so many at most


def share_of_few(proved: Iterable[bool], most: int = MOST) -> float:
    """The share of proved images among the first few: as many as tell that it is 0, 1 or well between; 0 of none.

    Two of each kind among at most 39 images are a share strictly between 5 and 95 %.
    """
    good = bad = 0
    for held in proved:
        good, bad = good + held, bad + (not held)
        if min(good, bad) == BOTH or good + bad == (most if min(good, bad) else min(SAME, most)):
            break
    return good / max(1, good + bad)


def first_limit(of: Share, start: Fraction, proved: Fraction | None = None) -> Fraction | None:
    """Up to where the first image is proved, if it is anywhere; `proved` where it is known to be."""
    failed, radius = None, start
    for _ in range(STEPS):
        if of(radius, 1) > 0:
            proved = radius
        else:
            failed = radius
        if proved is None:
            radius = radius / 2
        elif failed is None:
            radius = 2 * proved
        elif failed <= NEAR * proved:
            break
        else:
            radius = (proved + failed) / 2
        if radius > WHOLE:
            break
    return proved


def parting_radius(of: Share, start: Fraction) -> Fraction | None:
    """Where a quarter to three quarters of a few images are proved, or as near to it as TRIES come; None where they never part."""
    proved = failed = best = None
    told, radius = 0.0, start
    for _ in range(TRIES):
        share = of(radius, MOST)
        if 0 < share < 1 and (best is None or abs(share - 0.5) < abs(told - 0.5)):
            best, told = radius, share
        if 0.25 <= share <= 0.75:
            break
        if share > 0.5:
            proved = radius
        else:
            failed = radius
        if proved is not None and failed is not None:
            radius = (proved + failed) / 2
        else:
            radius = radius / NEAR if proved is None else radius * NEAR
        if radius > WHOLE:
            break
    return best


def stated_radius(own: Share, quicker: Share, paper: Fraction, near: Fraction | None = None) -> Fraction | None:
    """`quicker` is of a method that proves no image that `own` does not; `near` is where the search begins, if somebody knows."""
    if near is not None:
        return parting_radius(own, near)
    below = first_limit(quicker, paper)
    start = first_limit(own, paper if below is None else min(2 * below, WHOLE), below)
    return None if start is None else parting_radius(own, start)
