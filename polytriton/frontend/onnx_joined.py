"""Several networks as one model: they read parts of one input, and its output is theirs, one after another.

Tensors of each get names of their own. Taking parts and putting outputs together moves cells and computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import Imported, Source, load_onnx

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
X, Y = "x", "y"


def join_models(networks: Sequence[tuple[str, Imported]], parts: Sequence[np.ndarray], size: int) -> Imported:
    """`parts`: which of the `size` joint inputs each network reads, in its own order."""
    sources = [n.source for _, n in networks]
    _check_same("opset", [(name, str(n.source.opset)) for name, n in networks], "export them for one opset, or use onnx.version_converter")
    _check_same("input type", [(name, n.source.input_dtype) for name, n in networks], "convert the models to one type")
    whole = np.arange(size)
    shared = all(np.array_equal(p, whole) for p in parts)
    proto = onnx.ModelProto()
    proto.opset_import.add(domain="", version=sources[0].opset)
    graph, dtype = proto.graph, TYPES[sources[0].input_dtype]
    graph.name = "_".join(name for name, _ in networks)
    shape = sources[0].input_shape if shared else (1, size)
    graph.input.append(helper.make_tensor_value_info(X, dtype, shape))
    outputs = []
    for k, ((_, network), part) in enumerate(zip(networks, parts, strict=True)):
        model = onnx.ModelProto.FromString(network.model)
        proto.ir_version = max(proto.ir_version, model.ir_version, 8)
        prefix, source = f"n{k}_", network.source
        _rename(model.graph, prefix)
        graph.node.extend([*_entrance(prefix, source, part, shape), *model.graph.node, *_exit(prefix, source)])
        graph.initializer.extend(model.graph.initializer)
        outputs.append(f"{prefix}flat")
    graph.node.append(helper.make_node("Concat", outputs, [Y], axis=1))
    graph.output.append(helper.make_tensor_value_info(Y, dtype, [1, sum(n.net.node(n.net.output).size for _, n in networks)]))
    return load_onnx(proto, name=graph.name)


def _check_same(what: str, found: Sequence[tuple[str, str]], remedy: str) -> None:
    if len({value for _, value in found}) > 1:
        raise UnsupportedModel(f"the networks differ in {what}: " + ", ".join(f"{name} has {value}" for name, value in found), remedy)


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    """Every tensor and every node; an empty name is an operand that is left out."""
    for node in graph.node:
        node.name = prefix + node.name if node.name else ""
        node.input[:] = [prefix + t if t else "" for t in node.input]
        node.output[:] = [prefix + t if t else "" for t in node.output]
    for tensor in graph.initializer:
        tensor.name = prefix + tensor.name


def _entrance(prefix: str, source: Source, part: np.ndarray, shape: Sequence[int]) -> list[onnx.NodeProto]:
    """Its part of the input, in its own shape."""
    nodes, at = [], X
    if not (np.array_equal(part, np.arange(int(np.prod(shape))))):
        nodes += [_constant(f"{prefix}part", part), helper.make_node("Gather", [X, f"{prefix}part"], [f"{prefix}taken"], axis=1)]
        at = f"{prefix}taken"
    to = np.array(source.input_shape)
    return [*nodes, _constant(f"{prefix}shape", to), helper.make_node("Reshape", [at, f"{prefix}shape"], [prefix + source.input_name])]


def _exit(prefix: str, source: Source) -> list[onnx.NodeProto]:
    return [
        _constant(f"{prefix}row", np.array([1, -1])),
        helper.make_node("Reshape", [prefix + source.output_name, f"{prefix}row"], [f"{prefix}flat"]),
    ]


def _constant(name: str, values: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values.astype(np.int64), name))
