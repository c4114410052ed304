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
from polytriton.errors import InvalidIR, PassError
from polytriton.frontend.onnx import load_onnx
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
