"""The radius that a network is asked at where the paper's tells nothing of it: found with few questions, and images part there."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bench.paper.radii import MOST, SAME, Share, first_limit, parting_radius, share_of_few, stated_radius

PAPER = Fraction(8, 255)


def of(limits: list[Fraction], asked: list[Fraction] | None = None) -> Share:
    """Images that are proved up to a limit each."""

    def told(radius: Fraction, most: int) -> float:
        if asked is not None:
            asked.append(radius)
        return share_of_few((radius <= limit for limit in limits), most)

    return told


def test_what_is_said_of_a_radius() -> None:
    assert [share_of_few([True] * 9), share_of_few([False] * 9), share_of_few([])] == [1, 0, 0]
    assert share_of_few([True, False, False, True]) == 0.5 and share_of_few([False, True, True, True, False]) == 0.6
    assert share_of_few([False, True, True], 1) == 0
    for given, left in (([True] * 12, 12 - SAME), ([True, False] + [True] * 20, 22 - MOST), ([True, False, False, True] + [True] * 5, 5)):
        asked = iter(given)
        share_of_few(asked)
        assert len(list(asked)) == left, "no more is asked than tells"


@pytest.mark.parametrize("scale", [Fraction(1, 900), Fraction(1, 7), Fraction(1), Fraction(5)])
@pytest.mark.parametrize("start", [Fraction(1, 500), Fraction(3, 10)])
@pytest.mark.parametrize("turn", [0, 7, 13])
def test_images_part_at_the_radius_found(scale: Fraction, start: Fraction, turn: int) -> None:
    """Whichever image comes first, the least, a middling or the most robust one."""
    limits = [PAPER * scale * Fraction(10 + (7 * (k + turn)) % 20, 20) for k in range(20)]
    first = first_limit(of(limits), start)
    assert first is not None and first <= limits[0] <= first * Fraction(5, 4)
    asked: list[Fraction] = []
    radius = stated_radius(of(limits, asked), of([x / 9 for x in limits]), start)
    assert radius is not None and radius in asked and len(asked) <= 14
    share = sum(radius <= limit for limit in limits) / len(limits)
    assert 0.05 < share < 0.95


def test_where_images_never_part_no_radius_is_stated() -> None:
    one, none = (lambda radius, most: 1.0), (lambda radius, most: 0.0)
    assert stated_radius(one, one, PAPER) is None, "a network that is constant"
    assert stated_radius(none, none, PAPER) is None
    assert parting_radius(lambda radius, most: float(radius < PAPER), PAPER) is None, "all at once"


def test_large_radii_are_not_asked_of_the_dear_method() -> None:
    """It goes up from what the quicker one proves; where that proves nothing at all, it begins at the paper's radius."""
    limits = [PAPER * Fraction(k, 400) for k in (5, 6, 7, 8, 9, 10)]
    asked: list[Fraction] = []
    radius = stated_radius(of(limits, asked), of([x / 5 for x in limits]), PAPER)
    assert radius is not None and max(asked) < PAPER / 25
    asked.clear()
    assert stated_radius(of(limits, asked), lambda radius, most: 0.0, PAPER) is not None and asked[0] == PAPER
    asked.clear()
    assert stated_radius(of(limits, asked), of(limits), PAPER, near=PAPER / 50) is not None and asked[0] == PAPER / 50
