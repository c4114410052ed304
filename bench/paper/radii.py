"""A radius that tells something of a network, where the paper's does not: some images are proved there, and some are not.

It is found on the first few images, by doubling, halving and then bisection, and stated beside the paper's. Bounds of neurons cost most
where the radius is large. So a quicker method that proves less is asked first, and the search goes up from where its images part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

SAME = 3  # images alike that decide what is to be said of a radius
BOTH, MOST = 2, 7  # images of each kind by which a radius is found, among as many; else the majority decides
STEPS = 14
WHOLE = Fraction(1)  # the pixels' range

Side = Callable[[Fraction], int]  # what `side` says of a radius


def side(proved: Iterable[bool]) -> int:
    """0 as soon as some images are proved and some are not; 1 where (nearly) all are, -1 where hardly one is, or there are none.

    Two of each kind among at most 39 images are a share strictly between 5 and 95 %.
    """
    good = bad = 0
    for held in proved:
        good, bad = good + held, bad + (not held)
        if min(good, bad) == BOTH:
            return 0
        if (good + bad == SAME and min(good, bad) == 0) or good + bad == MOST:
            break
    return 1 if good > bad else -1


def parting_radius(of: Side, start: Fraction) -> Fraction | None:
    """Where images part; None where STEPS tries find no such radius."""
    proved = failed = None
    radius = start
    for _ in range(STEPS):
        found = of(radius)
        if found == 0:
            return radius
        if found > 0:
            proved = radius
        else:
            failed = radius
        if proved is None:
            radius = radius / 2
        elif failed is None:
            radius = 2 * radius
        else:
            radius = (proved + failed) / 2
        if radius > WHOLE:
            return None
    return None


def stated_radius(own: Side, quicker: Side, paper: Fraction) -> Fraction | None:
    """`quicker` is of a method that proves no image that `own` does not, so at twice its radius some images may just be left."""
    below = parting_radius(quicker, paper)
    return parting_radius(own, paper if below is None else min(2 * below, WHOLE))
