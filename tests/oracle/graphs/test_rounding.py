"""Directed rounding of single operations and of sums against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.oracle.graphs import rounding as r

STATE = np.ones(1, np.uint64)
KINDS = {r.FLOAT32: np.float32, r.FLOAT64: np.float64, r.FLOAT16: np.float16}


def numbers(rng: np.random.Generator, kind: type, count: int) -> np.ndarray:
    """Of all sizes, and some that meet in ties."""
    small, large = {np.float32: (-149, 60), np.float64: (-200, 200), np.float16: (-24, 7)}[kind]
    x = rng.standard_normal(count) * 2.0 ** rng.integers(small, large, count)
    x[::3] = rng.integers(-9, 10, len(x[::3])) * 2.0 ** rng.integers(-12, 3, len(x[::3]))
    return x.astype(kind).astype(np.float64)


def rounded(exact: Fraction, kind: type, direction: int) -> float:
    """The neighbour of an exact number in a direction, by comparing rationals."""
    with np.errstate(over="ignore"):
        near = kind(float(exact))
    around = sorted({float(np.nextafter(near, kind(-np.inf))), float(near), float(np.nextafter(near, kind(np.inf)))})
    finite = [v for v in around if np.isfinite(v)]
    below = max((v for v in finite if Fraction(v) <= exact), default=-np.inf)
    above = min((v for v in finite if Fraction(v) >= exact), default=np.inf)
    if direction == r.ZERO:
        direction = r.DOWN if exact > 0 else r.UP
    if direction == r.AWAY:
        direction = r.UP if exact > 0 else r.DOWN
    if direction == r.UP:
        return above
    if direction == r.DOWN:
        return below
    if below == above:
        return below
    left, right = exact - Fraction(below), Fraction(above) - exact
    if left != right:
        return below if left < right else above
    return below if kind(below).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[kind(0).itemsize]) % 2 == 0 else above


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("direction", [r.UP, r.DOWN, r.NEAREST, r.ZERO, r.AWAY])
def test_single_operations(form: int, direction: int) -> None:
    rng, kind = np.random.default_rng(form), KINDS[form]
    a, b = numbers(rng, kind, 300), numbers(rng, kind, 300)
    a[:40], b[:40] = 1.0, numbers(rng, kind, 40) * 0 + 2.0**-24 * rng.integers(1, 5, 40)
    a, b = (v.astype(kind).astype(np.float64) for v in (a, b))
    exact = {r.ADD: lambda x, y: x + y, r.SUB: lambda x, y: x - y, r.MUL: lambda x, y: x * y, r.DIV: lambda x, y: x / y}
    for op, function in exact.items():
        for x, y in zip(a, b, strict=True):
            if op == r.DIV and y == 0:
                continue
            true = function(Fraction(x), Fraction(y))
            if true == 0 or abs(true) > Fraction(float(np.finfo(kind).max)) or (form == r.FLOAT64 and abs(true) < Fraction(2) ** -900):
                continue
            assert r.single(op, x, y, direction, form, r.KEEP, STATE) == rounded(true, kind, direction), (op, x, y)


@pytest.mark.parametrize("form", KINDS)
def test_roots(form: int) -> None:
    rng, kind = np.random.default_rng(9), KINDS[form]
    for x in np.abs(numbers(rng, kind, 200)):
        if x == 0:
            continue
        down, up = (r.single(r.SQRT, x, x, d, form, r.KEEP, STATE) for d in (r.DOWN, r.UP))
        assert Fraction(down) ** 2 <= Fraction(x) <= Fraction(up) ** 2
        assert up in (down, float(np.nextafter(kind(down), kind(np.inf))))
        assert r.single(r.SQRT, x, x, r.NEAREST, form, r.KEEP, STATE) == float(np.sqrt(kind(x)))


def test_fused_products_are_rounded_once() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (numbers(rng, np.float32, 500) for _ in range(3))
    for x, y, z in zip(a, b, c, strict=True):
        true = Fraction(x) * Fraction(y) + Fraction(z)
        if 0 < abs(true) < Fraction(2) ** 120:
            for d in (r.UP, r.DOWN, r.NEAREST):
                assert r.add(x * y, z, d, r.FLOAT32, r.KEEP, STATE) == rounded(true, np.float32, d)


def test_results_below_the_normal_range_are_kept_or_flushed() -> None:
    tiny, half = 2.0**-130, 0.5
    assert r.mul(tiny, half, r.NEAREST, r.FLOAT32, r.KEEP, STATE) == 2.0**-131
    assert r.mul(tiny, half, r.NEAREST, r.FLOAT32, r.FLUSH, STATE) == 0
    assert r.mul(tiny, half, r.UP, r.FLOAT32, r.SERVE, STATE) == 2.0**-131
    assert r.mul(tiny, half, r.DOWN, r.FLOAT32, r.SERVE, STATE) == 0
    assert r.mul(-tiny, half, r.UP, r.FLOAT32, r.SERVE, STATE) == 0
    assert {r.mul(tiny, half, r.UP, r.FLOAT32, r.MIXED, STATE) for _ in range(50)} == {0.0, 2.0**-131}
    assert r.mul(2.0**-100, 2.0**-100, r.UP, r.FLOAT32, r.KEEP, STATE) == 2.0**-149
    assert r.mul(2.0**-100, 2.0**-100, r.NEAREST, r.FLOAT32, r.KEEP, STATE) == 0


def test_overflow_follows_the_direction() -> None:
    most = float(np.finfo(np.float32).max)
    assert r.add(most, most, r.UP, r.FLOAT32, r.KEEP, STATE) == np.inf
    assert r.add(most, most, r.NEAREST, r.FLOAT32, r.KEEP, STATE) == np.inf
    assert r.add(most, most, r.DOWN, r.FLOAT32, r.KEEP, STATE) == most
    assert r.add(-most, -most, r.ZERO, r.FLOAT32, r.KEEP, STATE) == -most
    assert r.quantize(70000.0, 11, -14, 65504.0, r.DOWN) == 65504 and r.quantize(70000.0, 11, -14, 65504.0, r.NEAREST) == np.inf


@pytest.mark.parametrize(("bits", "least", "most", "kind"), [(11, -14, 65504.0, np.float16), (24, -126, 3.4028234663852886e38, np.float32)])
def test_conversions_agree_with_numpy(bits: int, least: int, most: float, kind: type) -> None:
    rng = np.random.default_rng(bits)
    x = rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 15, 2000)
    for v in x:
        near = r.quantize(v, bits, least, most, r.NEAREST)
        assert near == float(kind(v))
        up, down = (r.quantize(v, bits, least, most, d) for d in (r.UP, r.DOWN))
        assert down <= v <= up and near in (down, up)
        assert up == down or float(np.nextafter(kind(down), kind(np.inf))) == up


def table(rng: np.random.Generator, terms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One output of `terms` products and a bias: values, and the tables of cells."""
    v = np.zeros((1, 2 + 2 * terms + 2))
    v[0, 2:-1] = numbers(rng, np.float32, 2 * terms + 1)
    x = np.arange(2, 2 + terms, dtype=np.int32)[None]
    return v, x, x + terms, np.array([2 + 2 * terms], np.int32)


@pytest.mark.parametrize("order", range(len(r.ORDERS)))
@pytest.mark.parametrize("fma", [0, 1, 2])
def test_sums_enclose_the_exact_value(order: int, fma: int) -> None:
    rng = np.random.default_rng(order)
    for terms in (1, 2, 7, 40):
        for first in (False, True):
            v, x, w, bias = table(rng, terms)
            v[0, 2:-1] = np.clip(v[0, 2:-1], -(2.0**20), 2.0**20)
            exact = sum((Fraction(a) * Fraction(b) for a, b in zip(v[0, x[0]], v[0, w[0]], strict=True)), Fraction(v[0, bias[0]]))
            size = sum((abs(Fraction(a) * Fraction(b)) for a, b in zip(v[0, x[0]], v[0, w[0]], strict=True)), abs(Fraction(v[0, bias[0]])))
            found = {}
            for direction in (r.DOWN, r.NEAREST, r.UP):
                goal = np.full(v.shape, direction, np.int8)
                r.dots(v, goal, x, w, bias, v.shape[1] - 1, r.FLOAT32, order, fma, first, r.KEEP, False, STATE)
                found[direction] = Fraction(v[0, -1])
                limit = size * (2 * terms + 2) * Fraction(2) ** -23 + Fraction(2) ** -140
                assert abs(found[direction] - exact) <= limit
            assert found[r.DOWN] <= exact <= found[r.UP]
            assert found[r.DOWN] <= found[r.NEAREST] <= found[r.UP] or order == 7  # the order itself follows the goal


def test_sums_in_order_are_those_of_numpy() -> None:
    rng = np.random.default_rng(5)
    v, x, w, bias = table(rng, 30)
    v[0, 2:-1] = rng.standard_normal(61).astype(np.float32)
    goal = np.zeros(v.shape, np.int8)
    r.dots(v, goal, x, w, bias, v.shape[1] - 1, r.FLOAT32, 0, 0, True, r.KEEP, False, STATE)
    total = np.float32(v[0, bias[0]])
    for a, b in zip(v[0, x[0]], v[0, w[0]], strict=True):
        total = np.float32(total + np.float32(np.float32(a) * np.float32(b)))
    assert v[0, -1] == total
