"""The radius that a network is asked at where the paper's tells nothing of it: found with few questions, and images part there."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bench.paper.radii import BOTH, MOST, SAME, parting_radius, side, stated_radius

PAPER = Fraction(8, 255)


def of(limits: list[Fraction], asked: list[Fraction] | None = None):
    """Images that are proved up to a limit each."""

    def told(radius: Fraction) -> int:
        if asked is not None:
            asked.append(radius)
        return side(radius <= limit for limit in limits)

    return told


def test_what_is_said_of_a_radius() -> None:
    assert [side([True] * 9), side([False] * 9), side([])] == [1, -1, -1]
    assert side([True, False, False, True]) == side([False, True, True, True, False]) == 0
    assert side([True, False]) == -1 and side([True, True, False]) == 1, "the majority of few"
    asked = iter([True] * SAME + [False] * 9)
    assert side(asked) == 1 and len(list(asked)) == 9, "images alike end it"
    asked = iter([True, False] + [True] * 20)
    assert side(asked) == 1 and len(list(asked)) == 22 - MOST
    asked = iter([True] * BOTH + [False] * BOTH + [True] * 5)
    assert side(asked) == 0 and len(list(asked)) == 5


@pytest.mark.parametrize("scale", [Fraction(1, 900), Fraction(1, 7), Fraction(1), Fraction(20)])
@pytest.mark.parametrize("start", [Fraction(1, 500), Fraction(3, 10)])
def test_images_part_at_the_radius_found(scale: Fraction, start: Fraction) -> None:
    limits = [PAPER * scale * Fraction(10 + (7 * k) % 20, 20) for k in range(20)]
    asked: list[Fraction] = []
    radius = parting_radius(of(limits, asked), start)
    assert radius is not None and radius in asked and len(asked) == len(set(asked)) <= 14
    share = sum(radius <= limit for limit in limits) / len(limits)
    assert 0.05 < share < 0.95
    assert radius.denominator < 10**7, "a fraction that a table can tell"


def test_where_images_never_part_no_radius_is_stated() -> None:
    assert parting_radius(lambda radius: 1, PAPER) is None, "a network that is constant"
    assert parting_radius(lambda radius: -1, PAPER) is None
    assert parting_radius(lambda radius: 1 if radius < PAPER / 3 else -1, PAPER) is None, "all at once"


def test_large_radii_are_not_asked_of_the_dear_method() -> None:
    """It goes up from what the quicker one proves; where that proves nothing at all, it begins at the paper's radius."""
    limits = [PAPER * Fraction(k, 400) for k in (5, 6, 7, 8, 9, 10)]
    asked: list[Fraction] = []
    radius = stated_radius(of(limits, asked), of([x / 5 for x in limits]), PAPER)
    assert radius is not None and max(asked) < PAPER / 25
    asked.clear()
    assert stated_radius(of(limits, asked), lambda radius: -1, PAPER) is not None and asked[0] == PAPER
