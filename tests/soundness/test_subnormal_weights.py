"""Weights too small for float32's normal numbers: the CPU counts them as zero, and rows pay for them.

The truth is exact: a layer behind another, each linear, has its least value at a corner of the box.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton.arithmetic import ARITHMETICS, LIBRARY
from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.passes.schedule import CHOICES
from polytriton.runtime.engine import Engine
from polytriton.runtime.executor import load_weights
from polytriton.runtime.forward import Forward
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms
from polytriton.runtime.soundness import find_semantics

TINY = 2.0**-126
EXPONENTS = (-149, -140, -127, -126, -125, -116, -107)  # of weights: subnormal, and normal ones beside them


def conv_net(weight: float) -> Net:
    """A convolution that keeps values apart, a ReLU that is always on, and a convolution with one tap of the weight."""
    b = Builder("subnormal")
    eye = np.zeros((2, 2, 1, 1), np.float32)
    eye[0, 0] = eye[1, 1] = 1
    x = b.add("conv", (b.input((2, 3, 3)),), w=b.constant(eye), b=b.constant(np.zeros(2, np.float32)), k=(1, 1), s=(1, 1), p=(0, 0, 0, 0))
    x = b.add("relu", (x,))
    w = np.zeros((1, 2, 3, 3), np.float32)
    w[0, 0, 1, 1], w[0, 1, 2, 0] = weight, -weight
    x = b.add("conv", (x,), w=b.constant(w), b=b.constant(np.zeros(1, np.float32)), k=(3, 3), s=(1, 1), p=(0, 0, 0, 0))
    return b.build(b.add("linear", (x,), w=b.constant(np.ones((1, 1), np.float32)), b=b.constant(np.zeros(1, np.float32))))


def dense_net(weight: float) -> Net:
    b = Builder("subnormal")
    x = b.add(
        "relu", (b.add("linear", (b.input((18,)),), w=b.constant(np.eye(18, dtype=np.float32)), b=b.constant(np.zeros(18, np.float32))),)
    )
    w = np.zeros((1, 18), np.float32)
    w[0, 4], w[0, 15] = weight, -weight
    x = b.add("linear", (x,), w=b.constant(w), b=b.constant(np.zeros(1, np.float32)))
    return b.build(b.add("linear", (x,), w=b.constant(np.ones((1, 1), np.float32)), b=b.constant(np.zeros(1, np.float32))))


@pytest.mark.parametrize("candidates", CHOICES)
@pytest.mark.parametrize("make", [conv_net, dense_net])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_what_they_multiply_is_paid(exponent: int, make: object, candidates: str) -> None:
    """Inputs of 2^99 to 2^100 make something of the smallest weight; what a weight adds and takes away again does not cancel."""
    weight, low, high = 2.0**exponent, 2.0**99, 2.0**100
    engine = Engine(compile_net(make(weight), candidates), semantics="real", dtype="float32")  # type: ignore[operator]
    boxes = engine.refine(torch.full((1, 18), low, dtype=torch.float64), torch.full((1, 18), high, dtype=torch.float64))
    forms = Forms(torch.zeros(2, dtype=torch.int64), torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    found = engine.query(boxes, forms).best
    least = (Fraction(low) - Fraction(high)) * Fraction(weight)  # of either sign
    for bound in found.tolist():
        assert Fraction(bound) <= least
        assert Fraction(bound) >= (1 + Fraction(1, 1000)) * least - 4000 * Fraction(TINY) * Fraction(high)


@pytest.mark.parametrize("make", [conv_net, dense_net])
def test_only_float32_on_the_cpu_leaves_them_out(make: object) -> None:
    """Interval arithmetic pays for nothing: it needs every weight as it is."""
    for exponent in EXPONENTS:
        compiled: Compiled = compile_net(make(2.0**exponent))  # type: ignore[operator]
        forward = Forward(compiled.net, find_semantics("real"), torch.device("cpu"))
        for arithmetic in (*ARITHMETICS.values(), *LIBRARY.values()):
            kit = Kit(compiled.net, compiled.plan, forward, arithmetic)
            flushes = arithmetic is LIBRARY["float32"] and exponent < -126
            for name, layer in forward.layers.items():
                stored = layer.w.to(arithmetic.dtype)
                want = torch.where(stored.abs() < TINY, 0.0, stored) if flushes else stored
                assert torch.equal(kit.weights[name].back, want), (exponent, arithmetic.name)
                assert sorted(kit.weights[name].rows.unique().tolist()) == sorted(want.unique().tolist())


def test_what_nobody_trusts_leaves_them_out() -> None:
    net = dense_net(2.0**-130)
    for dtype, kept in ((torch.float32, 0.0), (torch.float64, 2.0**-130)):
        found = [w for weights in load_weights(net, dtype, "cpu").values() for w in weights.values() if w.shape == (1, 18)]
        assert [w.max().item() for w in found] == [kept]
