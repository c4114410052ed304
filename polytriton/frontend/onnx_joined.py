"""Several networks as one model: they read parts of one input, and its output is theirs, one after another.

Tensors of each get names of their own. Taking parts and putting outputs together moves cells and computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from polytriton.errors import ResourceError, UnsupportedModel
from polytriton.frontend.model_files import MAX_MODEL
from polytriton.frontend.onnx import Imported, Source

X, Y = "x", "y"


def join_models(networks: Sequence[tuple[str, Imported]], parts: Sequence[np.ndarray], size: int) -> bytes:
    """`parts`: which of the `size` joint inputs each network reads, in its own order."""
    sources = [n.source for _, n in networks]
    _check_same("opset", [(name, str(n.source.opset)) for name, n in networks], "export them for one opset, or use onnx.version_converter")
    _check_same("input type", [(name, n.source.input_dtype) for name, n in networks], "convert the models to one type")
    whole = np.arange(size)
    shared = all(np.array_equal(p, whole) for p in parts)
    proto = onnx.ModelProto()
    proto.opset_import.add(domain="", version=sources[0].opset)
    graph, dtype = proto.graph, helper.np_dtype_to_tensor_dtype(np.dtype(sources[0].input_dtype))
    graph.name = "_".join(name for name, _ in networks)
    shape = sources[0].input_shape if shared else (1, size)
    graph.input.append(helper.make_tensor_value_info(X, dtype, shape))
    outputs = []
    for k, ((_, network), part) in enumerate(zip(networks, parts, strict=True)):
        model = onnx.ModelProto.FromString(network.model)
        proto.ir_version = max(proto.ir_version, model.ir_version, 8)
        prefix, source = f"n{k}_", network.source  # no name of this module's begins so
        _rename(model.graph, prefix)
        graph.node.extend([*_entrance(k, prefix, source, part, shape), *model.graph.node, *_exit(k, prefix, source)])
        graph.initializer.extend(model.graph.initializer)
        outputs.append(f"flat{k}")
    graph.node.append(helper.make_node("Concat", outputs, [Y], axis=1))
    graph.output.append(helper.make_tensor_value_info(Y, dtype, [1, sum(prod(s.output_shape) for s in sources)]))
    if proto.ByteSize() > MAX_MODEL:
        raise ResourceError("the networks with their weights exceed 2 GiB", "make them smaller")
    return proto.SerializeToString(deterministic=True)


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


def _entrance(k: int, prefix: str, source: Source, part: np.ndarray, shape: Sequence[int]) -> list[onnx.NodeProto]:
    """Its part of the input, in its own shape."""
    nodes, at = [], X
    if not np.array_equal(part, np.arange(prod(shape))):
        nodes += [_constant(f"part{k}", part), helper.make_node("Gather", [X, f"part{k}"], [f"taken{k}"], axis=1)]
        at = f"taken{k}"
    to = np.array(source.input_shape)
    return [*nodes, _constant(f"shape{k}", to), helper.make_node("Reshape", [at, f"shape{k}"], [prefix + source.input_name])]


def _exit(k: int, prefix: str, source: Source) -> list[onnx.NodeProto]:
    return [
        _constant(f"row{k}", np.array([1, -1])),
        helper.make_node("Reshape", [prefix + source.output_name, f"row{k}"], [f"flat{k}"]),
    ]


def _constant(name: str, values: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values.astype(np.int64), name))
