"""A frontier of many nodes: what adding their values to each other rounds is paid, though the value itself is small."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.cpu import fused
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms

FORMS = [pytest.param(True, marks=pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed")), False]


def branches(count: int) -> tuple[Net, Fraction]:
    """Ones, by a ReLU each, times 1, parts of its last place, and -1; and the sum as it is."""
    b, w = Builder("branches"), np.full((1, count), 0.51 * 2.0**-52)
    w[0, 0], w[0, -1] = 1, -1
    x, zero, one = b.input((1,)), b.constant(np.zeros(1)), b.constant(np.ones((1, 1)))
    parts = tuple(b.add("relu", (b.add("linear", (x,), w=one, b=zero),)) for _ in range(count))
    net = b.build(b.add("linear", (b.add("concat", parts, axis=0),), w=b.constant(w), b=zero))
    return net, sum((Fraction(float(v)) for v in w[0]), Fraction(0))


@pytest.mark.parametrize("fast", FORMS)
@pytest.mark.parametrize("count", [3, 60, pytest.param(200, marks=pytest.mark.slow)])
def test_a_bound_over_many_branches_is_no_higher_than_the_value(count: int, fast: bool) -> None:
    net, value = branches(count)
    engine = Engine(compile_net(net), dtype="float64", semantics="real")
    engine.walker.backend.fast = fast
    point = torch.ones(1, 1, dtype=torch.float64)
    found = engine.query(engine.refine(point, point), Forms(torch.zeros(1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.float64)))
    best = Fraction(found.best.item())
    assert value - 16 * count * Fraction(2.0**-52) <= best <= value
