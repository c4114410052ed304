"""Gaps once left in what deployed networks may do: conversions, tensor cores, overflow and flushing."""

from __future__ import annotations

from fractions import Fraction as F
from functools import reduce

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.ir.net import Builder
from polytriton.runtime.soundness import SEMANTICS, deployed_error
from tests.oracle.small import linear, net_of, output, scale

UNIT = {"tf32": 2.0**-12, "bf16": 2.0**-9}  # added to one, a conversion to nearest drops it


@pytest.mark.parametrize("semantics", ["tf32", "bf16"])
@pytest.mark.parametrize("layers", ["shift before", "two products", "three products", "many products"])
def test_constants_are_converted_with_the_values_they_join(semantics: str, layers: str) -> None:
    """The input is zero, so all a merged layer has is its bias; the deployed one carried it through conversions."""
    c = 1 + UNIT[semantics]
    if layers == "shift before":
        net = net_of(lambda b, x: linear(b, scale(b, x, 1, c), [[1]], [0]))
        deployed = 1.0
    elif layers == "two products":
        net = net_of(lambda b, x: linear(b, linear(b, x, [[1], [1]], [c, c]), [[1, 1]], [0]))
        deployed = 2.0
    elif layers == "many products":
        net = net_of(lambda b, x: reduce(lambda h, _: linear(b, h, [[c]], [0]), range(12), linear(b, x, [[1]], [c])))
        deployed = 1.0
    else:  # the weight loses its last bit too
        net = net_of(lambda b, x: linear(b, linear(b, linear(b, x, [[1]], [c]), [[c]], [UNIT[semantics]]), [[c]], [0]))
        deployed = 1.0
    lo, hi = output(net, [0], semantics=semantics, dtype="float64")
    assert lo <= deployed <= hi
    assert hi - lo < 0.6
    lo, hi = output(net, [0], semantics="float32", dtype="float64")
    assert not lo <= deployed <= hi, "the trap does not bite"


def charged(semantics: str, n: int, nonzero: int, ops: int, products: int) -> F:
    """The deployed error of a sum whose magnitudes add up to one."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    flushed = one * 0 if semantics == "float16" else None
    tiny = 2.0**-60
    return F(float(deployed_error(SEMANTICS[semantics], n, nonzero * one, ops, products, one, one * 0, one * tiny, 1.0, flushed, tiny)))


def truncated(semantics: str, n: int, products: int) -> F:
    """Four addends and the sum, aligned and cut off: five roundings of one unit for four products."""
    sem = SEMANTICS[semantics]
    return (1 + F(sem.u_in)) ** (2 * products) * (1 + F(5, 4) * n * F(sem.u)) - 1


@pytest.mark.parametrize("semantics", ["tf32", "bf16", "float16"])
@pytest.mark.parametrize("n", [256, 1 << 17])
def test_tensor_cores_round_more_often_than_plain_sums(semantics: str, n: int) -> None:
    assert charged(semantics, n, n, 0, 1) >= truncated(semantics, n, 1)


@pytest.mark.parametrize("semantics", ["tf32", "bf16"])
@pytest.mark.parametrize("n", [256, 1 << 17])
def test_tensor_cores_truncate_a_sum_that_a_merge_hid(semantics: str, n: int) -> None:
    """One input, n inner cells, one output: the inner sum is among the merged layer's ops."""
    assert charged(semantics, n, 1, n + 2, 2) >= truncated(semantics, n, 2)


@pytest.mark.parametrize("first,deployed", [(2.0**-20, 0.0), (2.0**20, np.inf)])
def test_a_chain_of_factors_hides_no_overflow(first: float, deployed: float) -> None:
    """Eight factors of 2^20 and eight of 2^-20: one in all, but infinity or zero on the way."""

    def make(b: Builder, x: str) -> str:
        x = linear(b, x, [[1]], [0])
        for f in [first] * 8 + [1 / first] * 8:
            x = scale(b, x, f, 0)
        return x

    value = np.float32(1)
    with np.errstate(all="ignore"):
        for f in [first] * 8 + [1 / first] * 8:
            value = value * np.float32(f)
    assert value == deployed, "the trap does not bite"
    lo, hi = output(net_of(make), [1], semantics="float32", dtype="float64")
    assert lo <= deployed <= hi


def test_an_operand_as_large_as_its_weight_is_small() -> None:
    """2^100 times 2^50 overflows, and only then comes 2^-95."""
    net = net_of(lambda b, x: linear(b, scale(b, x, 2.0**50, 0), [[2.0**-95]], [0]))
    lo, hi = output(net, [2.0**100], semantics="float32", dtype="float64")
    assert lo == -np.inf
    assert hi == np.inf


def test_float16_overflow_behind_a_merged_shift() -> None:
    net = net_of(lambda b, x: linear(b, scale(b, x, 1, 1e5), [[1]], [-1e5]))
    verifier = Verifier.from_net(net, semantics="float16", dtype="float64")
    assert np.isposinf(verifier.bounds(np.zeros((1, 1)), np.ones((1, 1))).hi).all()


def test_float16_weights_may_be_rounded_away_from_zero() -> None:
    """1e-9 becomes float16's smallest number, 2^-24, under a rounding mode; to nearest 4e-8 does."""
    for weight in (1e-9, 4e-8):
        lo, hi = output(net_of(lambda b, x, weight=weight: linear(b, x, [[weight]], [0])), [60000], semantics="float16", dtype="float64")
        assert lo <= 0
        assert hi >= 2.0**-24 * 60000
        assert hi < 0.1


def test_an_operator_over_an_overflow_has_no_bound() -> None:
    """inf - inf is NaN, and relu(NaN) is not at least zero."""
    for op in ({}, {"slope": 1.0}, {"slope": 0.1}):
        net = net_of(lambda b, x, op=op: b.add("relu", (linear(b, x, [[1e38, -1e38]], [1]),), **op), 2)
        lo, hi = output(net, [5, 5], semantics="float32", dtype="float64")
        assert (lo, hi) == (-np.inf, np.inf)


# ---- subnormal inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16", "float16"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("first", ["relu", "leaky", "maxpool", "relu of a concat"])
def test_an_operator_that_reads_the_input_may_flush_it(first: str, sign: int, semantics: str) -> None:
    """maxss under DAZ and max.ftz turn a subnormal operand into zero: nothing before them charges that."""
    b = Builder("flush")
    x = b.input((1, 1, 2))
    if first == "maxpool":
        y = b.add("maxpool", (x,), k=(1, 2))
    elif first == "relu of a concat":
        y = b.add("relu", (b.add("concat", (x, x), axis=0),), slope=1.0 if sign < 0 else 0.0)
    else:
        y = b.add("relu", (x,), slope=0.5 if first == "leaky" else 1.0 if sign < 0 else 0.0)
    net = b.build(y)
    at = np.full((1, 2), sign * 2.0**-130)
    for dtype in ("float32", "float64"):
        found = Verifier.from_net(net, semantics=semantics, dtype=dtype).bounds(at, at)
        assert (found.lo <= 0).all()
        assert (found.hi >= 0).all()
        assert np.abs(found.lo).max() < 2.0**-120
    exact = Verifier.from_net(net, semantics="real", dtype="float64").bounds(at, at)
    assert sign * (exact.lo if sign > 0 else exact.hi).ravel()[0] > 0, "exact arithmetic flushes nothing"


def test_float16_may_round_a_constant_that_a_merge_hid_away_from_zero() -> None:
    """b1 = 2^-40 enters the second layer as 2^-24 where conversions round up; the merged layer shows neither."""
    b = Builder("hidden")
    inner = b.add("linear", (b.input((1,)),), w=b.constant(np.zeros((1, 1))), b=b.constant(np.full(1, 2.0**-40)))
    net = b.build(b.add("linear", (inner,), w=b.constant(np.ones((1, 1))), b=b.constant(np.zeros(1))))
    at = np.zeros((1, 1))
    for semantics, wide in (("float32", False), ("bf16", False), ("float16", True)):
        found = Verifier.from_net(net, semantics=semantics, dtype="float64").bounds(at, at)
        assert found.lo.item() <= 2.0**-40 <= found.hi.item()
        assert (found.hi.item() >= 2.0**-24) == wide


def test_a_weight_that_meets_padding_stays_in_sight_where_float16_cannot_hold_it() -> None:
    """65536 times a padding of zero is NaN after the conversion."""
    b = Builder("padded")
    padded = b.add("pad", (b.input((1, 1, 1)),), lo=(0, 0, 0), hi=(0, 0, 1))
    w = np.array([[1.0, 65536.0]])
    net = b.build(b.add("linear", (b.add("reshape", (padded,), to=(2,)),), w=b.constant(w), b=b.constant(np.zeros(1))))
    at = np.ones((1, 1))
    for semantics, bounded in (("float32", True), ("bf16", True), ("float16", False)):
        found = Verifier.from_net(net, semantics=semantics, dtype="float64").bounds(at, at)
        assert np.isfinite(found.lo).all() == bounded
        assert found.lo.item() <= 1 <= found.hi.item()
