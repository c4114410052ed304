"""What the deployed network sums beyond the cells of a merged layer: constants, padding that was shifted, repeated cells.

Each network here is one of which an earlier version proved bounds that onnxruntime's own float32 sums, or another order of them,
leave. The sums are done here, one float32 operation after another, not read from the network.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import polytriton

F32 = np.float32
TINY = F32(0.6 * 2.0**-23)  # added to 1 one after another each of these rounds up to a whole unit


def graph(nodes: list[onnx.NodeProto], inputs: list[int], outputs: list[int], **weights: np.ndarray) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def drift(n: int) -> np.ndarray:
    """One, and before and behind it n numbers in all that are lost or count double."""
    w = np.full(n + 1, TINY, F32)
    w[1] = 1
    return w


def summed(terms: np.ndarray) -> np.ndarray:
    """Plain float32 summation, in the order given, the largest first."""
    total = F32(0)
    for t in sorted(terms.astype(F32), key=lambda v: -abs(v)):
        total = F32(total + t)
    return total


def concat(order: str, reader: str) -> onnx.ModelProto:
    ones = np.ones((1, 101), F32)
    parts = {"before": ["c", "x"], "after": ["x", "c"], "around": ["c", "x", "d"]}[order]
    weights = {"c": ones[:, :50] if order == "around" else ones, "d": ones[:, 50:]}
    w = np.concatenate([drift(100), [F32(0.5)]] if order == "before" else [[F32(0.5)], drift(100)]).astype(F32)
    if order == "around":
        w = np.concatenate([drift(100)[:50], [F32(0.5)], drift(100)[50:]]).astype(F32)
    used = {k: v for k, v in weights.items() if k in parts}
    if reader == "Gemm":
        return graph([helper.make_node("Concat", parts, ["j"], axis=1), helper.make_node("Gemm", ["j", "w", "b"], ["y"], transB=1)],
                     [1, 1], [1, 1], w=w[None], b=np.zeros(1, F32), **used)  # fmt: skip
    return graph([helper.make_node("Concat", parts, ["j"], axis=1), helper.make_node("MatMul", ["j", "w"], ["y"])],
                 [1, 1], [1, 1], w=w[:, None], **used)  # fmt: skip


SHIFT: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "Add": ([helper.make_node("Add", ["p", "c"], ["s"])], {"c": np.ones(1, F32)}),
    "Sub": ([helper.make_node("Sub", ["p", "c"], ["s"])], {"c": -np.ones(1, F32)}),
    "BatchNormalization": (
        [helper.make_node("BatchNormalization", ["p", "g", "c", "m", "v"], ["s"], epsilon=0.0)],
        {"g": np.ones(1, F32), "c": np.ones(1, F32), "m": np.zeros(1, F32), "v": np.ones(1, F32)},
    ),
}


def padded(shift: str, reader: str) -> onnx.ModelProto:
    nodes, weights = SHIFT[shift]
    pads = helper.make_node("Pad", ["x", "pads"], ["p"])
    if reader == "MatMul":
        tail = [helper.make_node("Flatten", ["s"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
        w, out = drift(100)[:, None], [1, 1]
    else:
        tail, w, out = [helper.make_node("Conv", ["s", "w"], ["y"])], drift(100).reshape(1, 1, 1, 101), [1, 1, 1, 1]
    return graph([pads, *nodes, *tail], [1, 1, 1, 1], out, pads=np.array([0, 0, 0, 100, 0, 0, 0, 0]), w=w, **weights)


def repeated() -> onnx.ModelProto:
    """Most cells of the ReLU are off; a hundred live ones are read a hundred times each."""
    cells, bias = 2000, np.full(2000, -1, F32)
    bias[:20] = 1
    nodes = [
        helper.make_node("Gemm", ["x", "v", "bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gather", ["r", "i"], ["t"], axis=1),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    w = drift(1999)
    return graph(nodes, [1, 1], [1, 1], v=np.zeros((1, cells), F32), bias=bias, i=np.tile(np.arange(20), 100), w=w[:, None])


def behind_a_layer() -> onnx.ModelProto:
    """The constants join a layer that then merges with the one before it."""
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("Concat", ["h", "c"], ["j"], axis=1),
        helper.make_node("MatMul", ["j", "w"], ["y"]),
    ]
    w = np.concatenate([[F32(0.5)], drift(100)]).astype(F32)
    return graph(nodes, [1, 1], [1, 1], v=np.ones((1, 1), F32), c=np.ones((1, 101), F32), w=w[:, None])


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], int, float]] = {
    **{f"concat {o} {r}": (lambda o=o, r=r: concat(o, r), 100, 0.0) for o in ("before", "after", "around") for r in ("MatMul", "Gemm")},  # type: ignore[misc]
    **{f"pad {s} {r}": (lambda s=s, r=r: padded(s, r), 100, 0.0) for s in SHIFT for r in ("MatMul", "Conv")},  # type: ignore[misc]
    "behind a layer": (behind_a_layer, 100, 0.0),
    "repeats": (repeated, 1999, 0.0),
}


COPIES = {
    "Expand": (helper.make_node("Expand", ["x", "s"], ["e"]), {"s": np.array([1, 2])}),
    "Tile": (helper.make_node("Tile", ["x", "s"], ["e"]), {"s": np.array([1, 2])}),
    "Gather": (helper.make_node("Gather", ["x", "s"], ["e"], axis=1), {"s": np.array([0, 0])}),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "LeakyRelu"])
def test_copies_of_a_number_are_computed_with_one_by_one(op: str, copy: str) -> None:
    """Between the results of two operations on copies there may be one last place: one is rounded down, the other up."""
    make, weights = COPIES[copy]
    if op in ("Add", "Sub"):
        tiny = np.array([[2.0**-24 if op == "Add" else -(2.0**-24)]], F32)
        z = helper.make_node("Mul", ["x", "k"], ["z"])
        again = helper.make_node(make.op_type, ["z", "s"], ["w"], **({"axis": 1} if copy == "Gather" else {}))
        nodes, weights = [make, z, again, helper.make_node(op, ["e", "w"], ["y"])], {**weights, "k": tiny}
        at, apart = 1.0, 2.0**-23
    elif op == "Mul":
        nodes, weights = [make, helper.make_node("Mul", ["e", "k"], ["y"])], {**weights, "k": np.array([1 + 2.0**-12], F32)}
        at, apart = 1 + 2.0**-12, 2.0**-23
    else:
        nodes = [make, helper.make_node("LeakyRelu", ["e"], ["y"], alpha=1 / 3)]
        at, apart = -1 - 2.0**-12, 2.0**-25
    model, x = graph(nodes, [1, 1], [1, 2], **weights), np.array([at])
    margin = polytriton.compile(model).margins(x, x, np.array([[1.0, -1.0]])).item()
    assert margin <= -apart


@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_bounds_hold_the_sums_that_the_network_runs(case: str, semantics: str) -> None:
    make, terms, at = CASES[case]
    model = make()
    reached = summed(drift(terms))
    assert reached > 1 + 1.5 * terms * float(TINY), "sums in this order go a long way up"
    box = np.full(int(np.prod([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])), at)
    bounds = polytriton.compile(model, semantics=semantics).bounds(box, box)
    assert bounds.lo.item() <= 1 <= reached <= bounds.hi.item()
