"""Sums that a runtime makes inside a layer: the residual starts its accumulators, and is rounded as often as a product."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.api import Verifier
from polytriton.ir.addends import find_addends, sums_behind
from polytriton.ir.net import Builder, Net
from tests.oracle.small import linear, net_of, scale
from tests.soundness.inserted import CASES, SMALL, TERMS, Graph, Inserted

BELOW = 2.0**-32  # too small for any one of its products to move a sum that starts at 1


def residual(kind: str, terms: int) -> bytes:
    """relu(a + W a) with a = relu(x), all weights alike: as a convolution, or as a matrix product that becomes a Gemm."""
    if kind == "conv":
        first, second = np.ones((terms, 1, 1, 1), np.float32), np.full((terms, terms, 3, 3), BELOW, np.float32)
        nodes = [
            helper.make_node("Conv", ["x", "v"], ["u"], kernel_shape=[1, 1]),
            helper.make_node("Relu", ["u"], ["a"]),
            helper.make_node("Conv", ["a", "w"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ]
        shapes = [1, 1, 2, 2], [1, terms, 2, 2]
    else:
        first, second = np.ones((1, terms), np.float32), np.full((terms, terms), BELOW, np.float32)
        nodes = [
            helper.make_node("MatMul", ["x", "v"], ["u"]),
            helper.make_node("Relu", ["u"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["b"]),
        ]
        shapes = [1, 1], [1, terms]
    nodes += [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    inputs, outputs = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", shapes, strict=True))
    weights = [numpy_helper.from_array(first, "v"), numpy_helper.from_array(second, "w")]
    graph = helper.make_graph(nodes, "residual", [inputs], [outputs], weights)
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


@pytest.mark.parametrize(("kind", "terms"), [("conv", 64), ("dense", 512)])
def test_no_output_of_onnxruntime_lies_outside_its_bounds(kind: str, terms: int) -> None:
    """Whatever order and start the runtime's own optimiser chooses; the exact value is `terms` times BELOW larger than the residual."""
    model = residual(kind, terms)
    net = polytriton.compile(model, check=False)
    n = int(np.prod(net.net.input.shape))
    ones = np.ones((1, n))
    bounds = net.bounds(ones, ones)
    for level in (onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(model, options)
        (y,) = session.run(None, {"x": ones.astype(np.float32).reshape(session.get_inputs()[0].shape)})
        y = y.reshape(-1).astype(np.float64)
        assert (bounds.lo[0] <= y).all() and (y <= bounds.hi[0]).all()


def tail(terms: int, weight: float) -> Net:
    """relu(a + W a) with a = relu(V x), and a scale between W and the sum."""

    def make(b: Builder, x: str) -> str:
        a = b.add("relu", (linear(b, x, np.ones((terms, 1)), np.zeros(terms)),))
        w = linear(b, a, np.full((terms, terms), weight), np.zeros(terms))
        return b.add("relu", (b.add("add", (a, w)),))

    return net_of(make)


@pytest.mark.parametrize("semantics", ["float32", "tf32"])
def test_an_addend_may_be_rounded_at_every_step(semantics: str) -> None:
    """Starting at 1, products that are negative and too small to be seen: rounding toward zero each addition takes 2^-24."""
    terms, ones = 200, np.ones((1, 1))
    low = Verifier.from_net(tail(terms, -(2.0**-60)), semantics=semantics).bounds(ones, ones, effort="quick").lo[0]
    reached = np.float32(1.0)
    for _ in range(terms):
        reached = np.nextafter(reached, np.float32(0.0))
    assert 1 - 3e-3 < low.max() <= reached < 1 - 1e-5


def test_what_an_addend_passes() -> None:
    """Further sums and scales on the way add to it; a ReLU ends it. `behind`: sums that a layer's products may meet in it."""

    def make(b: Builder, x: str) -> str:
        first = linear(b, x, np.ones((3, 3)), np.zeros(3))
        scaled = scale(b, first, 2.0, 0.0)
        one = b.add("add", (scaled, x))
        two = b.add("sub", (one, x))
        a = b.add("relu", (two,))
        last = b.add("add", (a, x))
        return linear(b, last, np.ones((2, 3)), np.zeros(2))

    net = net_of(make, 3)
    behind, by_op = sums_behind(net), [n.name for n in net]
    x, first, scaled, one, two, a, last, out = by_op
    assert find_addends(net).sums == {one: 3 + 1 + 2 + 1, two: 8, last: 1}
    assert behind == {x: 2, first: 2, scaled: 2, one: 1, two: 0, a: 1, last: 0, out: 0}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_addends_in_layers_before_them(case: Inserted) -> None:
    net = polytriton.compile(case.model(), check=False)
    low = net.bounds(np.ones((1, 1)), np.ones((1, 1)), effort="quick").lo[0][case.at]
    assert 1 - 8 * case.roundings * 2.0**-23 < low <= case.reached()


@pytest.mark.parametrize("how", ["itself", "a sum", "scaled"])
def test_what_two_operators_make_anew_differs_between_them(how: str) -> None:
    """a - a, (a + b) - a and relu(8 a) - relu(7 a) - 1, with a = 1 + W h: made with the one last and first they differ by what one
    of them rounds.
    """
    g = Graph()
    h, one = g.hidden(), g.hidden()
    a = g.add("Add", g.tiny(h), one)
    if how == "scaled":
        eight, seven = (g.add("Relu", g.add("Mul", a, np.array([by]))) for by in (8.0, 7.0))
        g.add("Sub", g.add("Sub", eight, seven), one)
    else:
        g.add("Sub", g.add("Add", a, g.tiny(h)) if how == "a sum" else a, a)
    net = polytriton.compile(g.model([1, TERMS]), check=False)
    low = net.bounds(np.ones((1, 1)), np.ones((1, 1)), effort="quick").lo[0].max()
    assert low <= -TERMS * 2.0**-24 * (8 if how == "scaled" else 1) + TERMS * SMALL


def test_gemms_that_onnxruntime_makes_start_with_the_constant() -> None:
    """A product and a constant, as exported, and a batch norm with a pruned channel: one Gemm each, by default."""
    terms, width = 4096, 16
    weights, constant = np.full((terms, width), -(2.0**-24) * 0.98 / 256), np.full(width, 1 + 2.0**-12)
    one, zero, pruned = np.ones(width), np.zeros(width), np.where(np.arange(width) == 5, 0.0, 1.0)
    for last in (["Add", constant], ["BatchNormalization", pruned, constant, zero, one]):
        g = Graph()
        g.add(str(last[0]), g.add("MatMul", g.hidden(terms=terms), weights), *last[1:], **({"epsilon": 0.0} if len(last) > 2 else {}))
        model = g.model([1, width])
        bounds = polytriton.compile(model, check=False).bounds(np.ones((1, 1)), np.ones((1, 1)), effort="quick")
        (y,) = onnxruntime.InferenceSession(model).run(None, {"x": np.ones((1, 1), np.float32)})
        assert (bounds.lo[0] <= y[0]).all() and (y[0] <= bounds.hi[0]).all()


def test_what_constants_pass_and_which_operands_are_shared() -> None:
    def make(b: Builder, x: str) -> str:
        first = linear(b, x, np.ones((3, 3)), np.ones(3))
        scaled = scale(b, first, 2.0, 1.0)
        one = b.add("add", (scaled, first))
        second = linear(b, one, np.ones((3, 3)), np.ones(3))
        a = b.add("relu", (second,))
        return b.add("add", (linear(b, a, np.ones((3, 3)), np.ones(3)), a))

    net = net_of(make, 3)
    _, first, scaled, one, second, _, third, _ = [n.name for n in net]
    found, behind = find_addends(net), sums_behind(net)
    assert found.late == {scaled: 4}
    assert {n: found.beside[n] - behind[n] for n in behind if found.beside[n] != behind[n]} == {second: 4 + 2 + 4 + 1}
    assert {first, third} <= found.beside.keys()
    assert found.shared == {scaled: (first,), one: (first,)}
