"""Nets that compute other numbers are told apart; names of a model's tensors, however alike, never make one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.errors import InvalidIR, PassError, UnsupportedModel, UsageError
from polytriton.frontend.onnx import load_onnx
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir.agree import disagreement
from polytriton.ir.net import Builder, Net, Node
from polytriton.passes import layout, pipeline
from tests.oracle.nets import random_net, toy_conv, toy_residual

F32 = np.float32


def model(nodes: list[onnx.NodeProto], shape: list[int], **weights: np.ndarray) -> onnx.ModelProto:
    ends = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)]]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def answer(m: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x.astype(F32)})[0]).reshape(1, -1)


# ---- names of tensors --------------------------------------------------------------------------------------------------

node = helper.make_node


def moved_and_picked(a: str, b: str) -> onnx.ModelProto:
    """A Transpose called `a` and a Gather called `b`: both are tables of cells."""
    nodes = [
        node("Transpose", ["x"], [a], perm=[0, 2, 1]), node("Gather", ["x", "i"], [b], axis=2), node("Relu", [a], ["r"]),
        node("LeakyRelu", [b], ["s"], alpha=-1.0), node("Reshape", ["r", "sh"], ["r1"]), node("Reshape", ["s", "sh"], ["s1"]),
        node("Sub", ["r1", "s1"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [1, 2, 3], i=np.array([1, 0, 2]), sh=np.array([1, 6]))


@pytest.mark.parametrize("a,b", list(permutations(["t/1", "t.1", "t_1", "t 1", "t_1_index", "t_1_1"], 2)))
def test_tensors_whose_names_differ_in_punctuation_are_apart(a: str, b: str) -> None:
    """Found by an attack: one's table of cells took the place of the other's, and `unsat` was said of what onnxruntime violates."""
    m, x = moved_and_picked(a, b), np.arange(1, 7, dtype=np.float64).reshape(1, 2, 3)
    wanted = answer(m, x)
    found = polytriton.compile(m, semantics="real", check=False).bounds(x.reshape(1, -1), x.reshape(1, -1))
    assert (found.lo <= wanted).all() and (wanted <= found.hi).all()


SUFFIXES = ("view", "flat", "wide", "index", "w", "b", "a", "c", "1", "1_1", "index_0", "sum", "ab")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bounds_by_a_tensors_name_are_that_tensors(suffix: str) -> None:
    """What an operator does on the way to its result has a name of its own, and no tensor of the file's."""
    other = f"d_{suffix}"
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("ReduceMean", ["t"], ["m"], axes=[2]), node("Add", ["t", "m"], ["d"]),
        node("Relu", ["d"], ["e"]), node("Flatten", ["e"], ["f"]), node("MatMul", ["f", "u"], [other]), node("Relu", [other], ["g"]),
        node("MatMul", ["g", "v"], ["y"]),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    m = model(nodes, [1, 2, 3], u=rng.standard_normal((6, 4)).astype(F32), v=rng.standard_normal((4, 2)).astype(F32))
    x = rng.standard_normal((1, 2, 3))
    with_all = onnx.ModelProto()
    with_all.CopyFrom(m)
    with_all.graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("d", other))
    values = ort.InferenceSession(with_all.SerializeToString(), providers=["CPUExecutionProvider"]).run(["d", other], {"x": x.astype(F32)})
    at = x.astype(F32).astype(np.float64).reshape(1, -1)
    layers = polytriton.compile(m, check=False).bounds(at, at).layers
    assert other in layers
    for name, value in zip(("d", other), values, strict=True):
        if name in layers:
            lo, hi, value = (v.reshape(-1) for v in (layers[name].lo, layers[name].hi, value))
            assert (lo <= value).all() and (value <= hi).all(), name


# ---- nets that differ --------------------------------------------------------------------------------------------------


def test_a_new_weight_may_not_take_the_place_of_another() -> None:
    net = toy_conv()
    name = next(iter(net.weights))
    with pytest.raises(InvalidIR, match="would take the place of another"):
        net.rebuild(net.nodes, {name: net.weights[name] + 1})
    assert net.rebuild(net.nodes, {name: net.weights[name]}) == net


def test_a_pass_that_takes_a_name_twice_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault as it was, with the guard away: the numbers tell."""
    monkeypatch.setattr(layout, "_fresh", lambda net, stem, more=(): stem)
    monkeypatch.setattr(Net, "rebuild", unguarded)
    with pytest.raises(PassError, match="made another network"):
        polytriton.compile(moved_and_picked("t/1", "t.1"), check=False)


def unguarded(self: Net, nodes: Any, weights: Any = None, output: str | None = None) -> Net:
    return Net(self.name, tuple(nodes), output or self.output, {**self.weights, **(weights or {})})


def spoil_weight(net: Net) -> Net:
    name = next(k for k, v in net.weights.items() if v.dtype == F32 and v.size > 3)
    weight = net.weights[name].copy()
    weight.reshape(-1)[1] *= F32(1 + 2.0**-20)
    return replace(net, weights={**net.weights, name: weight})



def swap_operands(net: Net) -> Net:
    nodes = tuple(replace(n, op="sub") if n.op == "add" else n for n in net)
    return replace(net, nodes=nodes)


def other_slope(net: Net) -> Net:
    return replace(net, nodes=tuple(n.with_attrs(slope=0.25) if n.op == "relu" else n for n in net))


def other_output(net: Net) -> Net:
    return replace(net, output=net.nodes[-2].name)


@pytest.mark.parametrize("spoil", [spoil_weight, swap_operands, other_slope, other_output])
def test_what_differs_is_told(spoil: Callable[[Net], Net]) -> None:
    net = toy_residual()
    assert disagreement(net, net) is None
    assert disagreement(net, spoil(net)) is not None


def test_another_number_among_the_attributes_is_told() -> None:
    def make(slope: float) -> Net:
        b = Builder("n")
        r = b.add("relu", (b.input((4,)),))
        return b.build(b.add("relu", (r,), slope=slope))

    assert disagreement(make(0.5), make(0.25)) is not None and disagreement(make(0.5), make(0.5)) is None


def test_cells_in_another_order_are_told() -> None:
    def make(index: list[int]) -> Net:
        b = Builder("n")
        r = b.add("relu", (b.input((4,)),))
        return b.build(b.add("gather", (r,), index=b.constant(np.array(index)), to=(4,)))

    assert disagreement(make([0, 1, 2, 3]), make([0, 1, 3, 2])) is not None
    assert disagreement(make([0, 1, 2, -1]), make([0, 1, 2, 3])) is not None
    assert disagreement(make([3, 1, 2, -1]), make([3, 1, 2, -1])) is None


@pytest.mark.parametrize("seed", range(60))
def test_the_passes_make_the_same_network(seed: int) -> None:
    net = random_net(seed=seed, steps=8, image=seed % 2 == 0, scale=("normal", "ties", "zeros")[seed % 3])
    pipeline.fold_net(net)  # raises where they do not


def test_a_smaller_window_is_told() -> None:
    def make(k: int) -> Net:
        b = Builder("n")
        return b.build(b.add("maxpool", (b.add("relu", (b.input((1, 3, 3)),)),), k=(k, 3), s=(3, 3), p=(0, 0, 0, 0)))

    assert disagreement(make(3), make(2)) is not None


def test_a_deep_chain_takes_no_recursion() -> None:
    b = Builder("deep")
    x = b.input((2,))
    for _ in range(1500):
        x = b.add("reshape", (x,), to=(2,))
    net = b.build(b.add("relu", (x,)))
    other = replace(net, nodes=tuple(Node(n.name, n.op, n.inputs, n.shape, {"slope": 0.5}) if n.op == "relu" else n for n in net))
    assert disagreement(net, other) is not None


def test_names_are_kept_for_the_tensors_that_have_them() -> None:
    b = Builder("n", reserved={"a_view"})
    x = b.input((2, 2), "x")
    first = b.add("reshape", (x,), "a_view", False, to=(4,))
    assert first != "a_view" and b.add("relu", (first,), "a_view") == "a_view"
    assert {n.name for n in load_onnx(moved_and_picked("a", "b")).net} >= {"a"}


# ---- a second attack -----------------------------------------------------------------------------------------------------


def chain(*parts: tuple[str, float]) -> onnx.ModelProto:
    """float64 factors, by their operators, on one number."""
    nodes, last, held = [], "x", {}
    for k, (op, factor) in enumerate(parts):
        name = "y" if k == len(parts) - 1 else f"t{k}"
        if op == "Relu":
            nodes.append(node(op, [last], [name]))
        else:
            held[f"c{k}"] = np.full((1, 1), factor)
            nodes.append(node(op, [last, f"c{k}"], [name]))
        last = name
    ends = [[helper.make_tensor_value_info(n, TensorProto.DOUBLE, [1, 1])] for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, k) for k, v in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


RELU = ("Relu", 0.0)
EXTREME = {
    "scale after linear": [("MatMul", 1e300), RELU, ("MatMul", 1e-307), ("Mul", 2.0**-59), RELU, ("MatMul", 1e7 * 2.0**59)],
    "linear after linear": [("MatMul", 1e300), RELU, ("MatMul", 1e-307), ("MatMul", 2.0**-59), RELU, ("MatMul", 1e7 * 2.0**59)],
    "scale before linear": [("MatMul", 1e300), RELU, ("Mul", 2.0**-59), ("MatMul", 1e-307), RELU, ("MatMul", 1e7 * 2.0**59)],
    "a subnormal product": [("MatMul", 1e300), RELU, ("MatMul", 1e-300), ("Mul", 1.7e-18), RELU, ("MatMul", 1e18 / 1.7)],
    "a product beyond float64": [("MatMul", 1e-100), RELU, ("MatMul", 1e300), ("Mul", 2.0**59), RELU, ("MatMul", 1e-200 * 2.0**-59)],
}


@pytest.mark.parametrize("name", EXTREME)
def test_merges_keep_products_that_float64_holds(name: str) -> None:
    """Found by an attack: a product below float64's range became zero, on both sides of every comparison, and `unsat` was said."""
    m, at = chain(*EXTREME[name]), np.array([[1.5]])
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = float(np.asarray(session.run(None, {"x": at})[0]).item())
    found = polytriton.compile(m, semantics="real", check=False).bounds(at, at)
    assert abs(wanted - 1.5) < 1e-6 and abs(found.lo.item() - wanted) + abs(found.hi.item() - wanted) < 1e-6
    if name != "a subnormal product":  # which onnxruntime makes, and the exact value is another
        assert found.lo.item() - 1e-12 <= wanted <= found.hi.item() + 1e-12


HEAD = "(vnnlib-version <2.0>)(declare-network f (declare-input X float32 [{}]) (declare-output {} float32 [{}]))"


def test_a_property_of_another_output_is_refused() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"])]
    m = model(nodes, [1, 1])
    m.graph.output.insert(0, helper.make_tensor_value_info("a", 1, [1, 1]))
    text = HEAD.format("1,1", "b", "1,1") + "(assert (>= X[0,0] 1.0))(assert (<= X[0,0] 2.0))(assert (<= b[0,0] -0.5))"
    with pytest.raises(UsageError, match="compiled for 'a'"):
        polytriton.compile(m, check=False).verify_property(read_vnnlib(text))
    assert polytriton.compile(m, output="b", check=False).verify_property(read_vnnlib(text)).verdict == "sat"


@pytest.mark.parametrize("shape,fits", [("1,2,3", True), ("2,3", True), ("6", True), ("1,6", True), ("1,3,2", False), ("3,2", False)])
def test_a_property_of_another_shape_is_refused(shape: str, fits: bool) -> None:
    m = model([node("Relu", ["x"], ["r"]), node("Flatten", ["r"], ["y"])], [1, 2, 3])
    cells = np.ndindex(*(int(k) for k in shape.split(",")))
    box = "".join(f"(assert (>= X[{k}] 0.0))(assert (<= X[{k}] 1.0))" for k in (",".join(map(str, c)) for c in cells))
    prop = read_vnnlib(HEAD.format(shape, "Y", "1,6") + box + "(assert (<= Y[0,0] -0.5))")
    verifier = polytriton.compile(m, check=False)
    if fits:
        assert verifier.verify_property(prop).verdict == "unsat"
    else:
        with pytest.raises(UsageError, match="declares X of shape"):
            verifier.verify_property(prop)


def test_slices_of_shapes_are_as_onnx_has_them() -> None:
    """A start before the axis is its first cell, also where the step is negative."""
    nodes = [node("Slice", ["k", "s", "e", "i", "t"], ["j"]), node("Gather", ["x", "j"], ["y"], axis=1)]
    held = {"k": np.array([2, 1, 0]), "s": np.array([-100]), "e": np.array([-1000]), "i": np.array([0]), "t": np.array([-1])}
    m, x = model(nodes, [1, 3], **held), np.array([[1.0, 2.0, 4.0]])
    found = polytriton.compile(m, semantics="real", check=False).bounds(x, x)
    assert np.allclose(found.lo, answer(m, x)) and found.lo.shape == (1, 1)


def test_a_squeeze_of_no_axes_is_refused() -> None:
    m = model([node("Squeeze", ["x", "i"], ["s"]), node("Relu", ["s"], ["y"])], [1, 1, 3], i=np.zeros(0, np.int64))
    with pytest.raises(UnsupportedModel, match="axes are empty"):
        load_onnx(m)
