"""Numbers of every type: ends of boxes are rounded outward, points and coefficients kept exactly or refused, odd texts refused at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import PolytritonError, UsageError
from polytriton.frontend.arrays import as_array, as_ends, as_radius, exact_numbers
from polytriton.frontend.balls import ball, exact_ball
from polytriton.frontend.numbers import as_float64, as_fraction, as_numpy, enclose_numbers, exact_number
from polytriton.frontend.query import Property
from polytriton.ir.net import Builder

ODD = 2**53 + 1
WIDE = np.finfo(np.longdouble).nmant > 52


def identity(n: int = 1) -> Verifier:
    b = Builder("same")
    x = b.input((n,))
    return Verifier.from_net(b.build(b.add("linear", (x,), w=b.constant(np.eye(n)), b=b.constant(np.zeros(n)))), semantics="real")


FORMS: dict[str, Callable[[int], Any]] = {
    "int": lambda v: [v],
    "ints and floats": lambda v: [v],
    "int64": lambda v: np.array([v]),
    "uint64": lambda v: np.array([v], np.uint64),
    "object": lambda v: np.array([v], object),
    "tensor": lambda v: torch.tensor([v]),
    "tensors": lambda v: [torch.tensor(v)],
    "Fraction": lambda v: [Fraction(v)],
    "Decimal": lambda v: (Decimal(v),),
    "scalars": lambda v: [np.int64(v)],
}
if WIDE:
    FORMS["longdouble"] = lambda v: np.array([v]).astype(np.longdouble)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [ODD, 2**54 - 1, 2**62 + 1, 2**63 - 1])
def test_ends_are_rounded_outward(form: str, value: int) -> None:
    made = FORMS[form](value)
    lo, hi = as_ends(made, made)
    assert Fraction(lo.item()) < value < Fraction(hi.item())
    assert np.nextafter(lo, np.inf) == hi
    b = identity().bounds(made, made)
    assert Fraction(float(b.lo[0, 0])) <= value <= Fraction(float(b.hi[0, 0]))


def test_integers_among_floats_are_not_rounded() -> None:
    """Numpy makes one type of a list, and rounds to get there."""
    for given in ([ODD, 0.5], [[ODD], [0.5]], [torch.tensor([ODD]), torch.tensor([0.5])], [np.int64(ODD), np.float32(0.5)]):
        lo, hi = (v.ravel().tolist() for v in as_ends(given, given))
        assert (lo, hi) == ([2.0**53, 0.5], [2.0**53 + 2, 0.5])
    for given in ([2**63, -1], [2**70 + 1, 0], [np.uint64(2**64 - 1), np.int64(-1)]):
        lo, hi = as_ends(given, given)
        assert all(Fraction(float(a)) <= int(v) <= Fraction(float(b)) for a, v, b in zip(lo, given, hi, strict=True))
    assert as_ends([1e20, 3], [1e20, 3])[0].tolist() == [1e20, 3.0]


def test_decimals_and_fractions_hold_their_own_number() -> None:
    for v in (Fraction(1, 3), Decimal("0.1"), Fraction(10**400 + 1, 3 * 10**400), Decimal("1e-320"), Decimal("-1e-350")):
        lo, hi = as_ends([v], [v])
        assert Fraction(lo.item()) <= Fraction(v) <= Fraction(hi.item()) and lo < hi
    assert as_ends([Decimal("0.5")], [Fraction(1, 2)]) == (0.5, 0.5)


@pytest.mark.skipif(not WIDE, reason="no wider float here")
def test_longdoubles_are_rounded_outward_at_every_size() -> None:
    rng = np.random.default_rng(0)
    given = (rng.standard_normal(400) * 10.0 ** rng.integers(-330, 300, 400)).astype(np.longdouble) * (1 + np.longdouble(2) ** -62)
    lo, hi = enclose_numbers(given)
    for a, v, b in zip(lo.tolist(), given, hi.tolist(), strict=True):
        assert Fraction(a) <= Fraction(*v.as_integer_ratio()) <= Fraction(b)
        assert a == b or np.nextafter(a, np.inf) == b


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_narrow_tensors_are_exact(kind: torch.dtype) -> None:
    given = torch.tensor([0.1, -3.0, 6e-8, 60000.0], dtype=kind)
    assert as_array(given, "x").tolist() == given.double().tolist()


@pytest.mark.parametrize("form", FORMS)
def test_a_point_or_a_coefficient_that_is_no_float64_is_refused(form: str) -> None:
    net, made = identity(), FORMS[form](ODD)
    for call in (
        lambda: net.predict(made), lambda: net.verify(made, "0.1", 0), lambda: net.radius(made, 0), lambda: as_array(made, "x"),
        lambda: net.margins([0.0], [1.0], [made]), lambda: net.ball_property(made, Fraction(1, 10), 0),
    ):  # fmt: skip
        with pytest.raises(UsageError) as told:
            call()
        assert told.value.remedy
    even = FORMS[form](2**53 + 2)
    assert as_array(even, "x").tolist() == [2.0**53 + 2]
    assert net.margins([1.0], [1.0], [even])[0, 0] <= 2**53 + 2


def test_margins_of_exact_coefficients() -> None:
    assert identity().margins([1.0], [1.0], [[Fraction(1, 2)]])[0, 0] == pytest.approx(0.5)
    with pytest.raises(UsageError, match="no float64"):
        identity().margins([1.0], [1.0], [[Decimal("0.1")]])


def test_a_property_from_a_box_of_integers_keeps_every_point() -> None:
    prop = Property.from_box(np.array([ODD, 0]), np.array([ODD, 1]), 0, 2)
    d = prop.disjuncts[0]
    assert (d.lo.tolist(), d.hi.tolist()) == ([2.0**53, 0.0], [2.0**53 + 2, 1.0])
    assert (d.exact_lo[0], d.exact_hi[0]) == (ODD, ODD)
    with pytest.raises(UsageError, match="no float64"):
        prop.violated([Fraction(1, 3), Fraction(0)], [0, 1])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble])
def test_balls_around_narrow_pixels_hold_epsilon_as_it_is(kind: type) -> None:
    """Many values go through arithmetic in float64: in the pixels' own type the radius was rounded first."""
    rng, epsilon = np.random.default_rng(1), Fraction("0.0300001")
    pixels = np.concatenate([rng.random(20_000).astype(np.float32).astype(kind), np.full(1, 0.03).astype(np.float32).astype(kind)])[None]
    (lo,), (hi,) = ball(pixels, epsilon, clip=None)
    low, high = exact_ball(pixels[0], epsilon, clip=None)
    assert all(Fraction(a) <= v for a, v in zip(lo.tolist(), low, strict=True))
    assert all(v <= Fraction(b) for v, b in zip(high, hi.tolist(), strict=True))


HUGE = ("1e999999999", "1e-99999999", "1/0", "9" * 1_000_000, "1e" + "9" * 1_000_000, "nan", "inf", "0x10", "1_0", "", "1/1/1", "1 2")


@pytest.mark.parametrize("text", HUGE, ids=lambda t: t[:12])
def test_malformed_and_enormous_numbers_are_refused_at_once(text: str) -> None:
    net, began = identity(), time.process_time()
    for call in (
        lambda: as_fraction(text, "clip"), lambda: exact_numbers(text), lambda: exact_numbers([text]), lambda: as_radius(text),
        lambda: net.verify([0.5], text, 0), lambda: net.verify([0.5], "0.1", 0, clip=(0, text)),
        lambda: net.radius([0.5], 0, tolerance=text), lambda: net.radius([0.5], 0, epsilon=text),
        lambda: net.verify([0.5], "0.1", 0, mean=text), lambda: net.verify([0.5], "0.1", 0, std=[text]),
    ):  # fmt: skip
        with pytest.raises(PolytritonError) as told:
            call()
        assert told.value.remedy and len(str(told.value)) < 400
    assert time.process_time() - began < 3


def test_enormous_objects_are_refused_at_once() -> None:
    net, began = identity(), time.process_time()
    decimals = map(Decimal, ("1e999999", "-1e99999999", "nan", "snan", "inf"))
    for v in (10**5000, -(10**5000), Fraction(10**5000, 3), float("nan"), *decimals):
        for call in (
            lambda v=v: net.bounds([v], [v]), lambda v=v: net.predict([v]), lambda v=v: net.margins([0.0], [1.0], [[v]]),
            lambda v=v: net.verify([0.5], v, 0), lambda v=v: net.verify([0.5], "0.1", 0, clip=(v, v)),
            lambda v=v: net.verify([0.5], "0.1", 0, mean=v),
        ):  # fmt: skip
            with pytest.raises(PolytritonError) as told:
                call()
            assert len(str(told.value)) < 400
    assert time.process_time() - began < 5
    with pytest.raises(UsageError, match="NaN or infinity"):
        exact_number(Decimal("1e-999999"), "x")


def test_numbers_are_read_as_they_are_written() -> None:
    assert as_fraction(0.1307, "mean") == as_fraction("0.1307", "mean") == as_fraction(Decimal("0.1307"), "mean") == Fraction(1307, 10_000)
    assert as_fraction(1e-300, "mean") == Fraction(1, 10**300) and as_fraction("8/255", "mean") == Fraction(8, 255)
    assert as_radius(0.03) == as_radius(Decimal("0.03")) == Fraction(3, 100)
    assert as_radius(0) == 0 and as_radius(1e-300) == Fraction(1, 10**300)
    assert exact_number(0.1, "x") == Fraction(0.1)
    assert as_numpy([1, 2], "x").dtype.kind == "i" and as_float64([True], "x").tolist() == [1.0]


def test_labels_are_whole_numbers() -> None:
    with pytest.raises(UsageError, match="whole"):
        identity(2).verify([0.1, 0.5], "0.01", 0.5)
