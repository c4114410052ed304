"""Small ONNX models for the tests of the frontend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from polytriton.frontend.onnx import Imported, cross_check, load_onnx
from polytriton.ir.text import parse_net, print_net

RNG = np.random.default_rng(7)


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def node(op: str, inputs: str = "x", outputs: str = "y", **attrs: Any) -> onnx.NodeProto:
    """Operands as one string: `-` stands for an omitted one."""
    return helper.make_node(
        op,
        ["" if i == "-" else i for i in inputs.split()],
        ["" if o == "-" else o for o in outputs.split()],
        name=f"n_{op}_{outputs.split()[0]}",
        **attrs,
    )


def model(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    shape: Sequence[Any],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 13,
    dtype: Any = np.float32,
    outputs: Sequence[str] = ("y",),
    listed: bool = False,
) -> onnx.ModelProto:
    """A model with input x; `listed` repeats the weights among the inputs, as old exporters do."""
    nodes = [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    initial = [numpy_helper.from_array(np.asarray(w), k) for k, w in (weights or {}).items()]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initial]
    outs = [helper.make_tensor_value_info(o, kind, None) for o in outputs]
    graph = helper.make_graph(nodes, "g", inputs, outs, initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset < 23 else 11)


def holds(m: Any, **options: Any) -> Imported:
    """Imports, prints and parses back, and agrees with onnxruntime."""
    imported = load_onnx(m, **options)
    assert parse_net(print_net(imported.net), imported.net.weights) == imported.net
    assert cross_check(imported, samples=2) <= 0.6
    return imported


def ops(imported: Imported) -> list[str]:
    return [n.op for n in imported.net]


def small(**options: Any) -> onnx.ModelProto:
    """Two layers of three inputs and two outputs."""
    weights = {"w": rand(4, 3), "b": rand(4), "v": rand(2, 4), "c": rand(2)}
    return model(
        [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "r"), node("Gemm", "r v c", "y", transB=1)], ["N", 3], weights, **options
    )
