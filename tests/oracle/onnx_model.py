"""A Net of float32 numbers as an ONNX model, operator by operator, so that generated networks enter through the frontend too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def emit(self, op: str, inputs: list[str], output: str = "", **attrs: Any) -> str:
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    def reshape(self, x: str, shape: tuple[int, ...], output: str = "") -> str:
        return self.emit("Reshape", [x, self.constant(np.array([1, *shape], np.int64))], output)


def expressible(net: Net) -> bool:
    """Whether the model below can be written: a convolution's negative padding must leave something to read."""
    for n in net:
        if n.op == "conv":
            pads, (_, height, width) = n.ints("p", (0, 0, 0, 0)), net.node(n.inputs[0]).shape
            cut = [sum(max(0, -pads[i]) for i in (axis, 2 + axis)) for axis in (0, 1)]
            if cut[0] >= height or cut[1] >= width:
                return False
    return True


def to_onnx(net: Net) -> onnx.ModelProto:
    """The same network with a batch axis of one in front; an index of -1 reads a zero put before the cells."""
    w = _Writer()
    for node in net:
        _write(w, net, node)
    value = helper.make_tensor_value_info
    shapes = [1, *user_shape(net)], [1, *net.node(net.output).shape]
    graph = helper.make_graph(w.nodes, "g", [value("user_input", 1, shapes[0])], [value(f"n_{net.output}", 1, shapes[1])], w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)


def _gather(w: _Writer, x: str, index: np.ndarray, shape: tuple[int, ...], output: str) -> None:
    flat = w.emit("Reshape", [x, w.constant(np.array([1, -1], np.int64))])
    if (index < 0).any():
        flat = w.emit("Concat", [w.constant(np.zeros((1, 1), np.float32)), flat], axis=1)
        index = index + 1
    w.reshape(w.emit("Gather", [flat, w.constant(index.reshape(-1).astype(np.int64))], axis=1), shape, output)


def _write(w: _Writer, net: Net, node: Node) -> None:
    output = f"n_{node.name}"
    x = [f"n_{i}" for i in node.inputs]

    def weight(key: str) -> np.ndarray:
        found = net.weight(node, key)
        assert found is not None
        return np.asarray(found, np.float32) if key not in ("index", "take") else found

    if node.op == "input":
        take = net.weight(node, "take")
        if take is None:
            w.emit("Identity", ["user_input"], output)
        else:
            _gather(w, "user_input", take, node.shape, output)
    elif node.op == "linear":
        flat = w.emit("Flatten", x, axis=1)
        y = w.emit("Gemm", [flat, w.constant(weight("w")), w.constant(weight("b"))], transB=1)
        w.reshape(y, node.shape, output)
    elif node.op == "conv":
        attrs = {"kernel_shape": node.ints("k"), "strides": node.ints("s", (1, 1)), "dilations": node.ints("d", (1, 1))}
        pads, operand = node.ints("p", (0, 0, 0, 0)), x[0]
        if min(pads) < 0:
            high = np.iinfo(np.int64).max
            ends = [[max(0, -pads[i]) for i in (0, 1)], [min(0, pads[i]) or high for i in (2, 3)], [2, 3]]
            operand = w.emit("Slice", [operand, *(w.constant(np.array(v, np.int64)) for v in ends)])
            pads = tuple(max(0, v) for v in pads)
        w.emit("Conv", [operand, w.constant(weight("w")), w.constant(weight("b"))], output, pads=pads, group=node.integer("g", 1), **attrs)
    elif node.op == "scale":
        w.emit("Add", [w.emit("Mul", [x[0], w.constant(weight("a"))]), w.constant(weight("c"))], output)
    elif node.op in ("add", "sub"):
        w.emit(node.op.capitalize(), x, output)
    elif node.op == "concat":
        w.emit("Concat", x, output, axis=node.integer("axis") + 1)
    elif node.op == "relu":
        slope = node.number("slope")
        w.emit("LeakyRelu", x, output, alpha=slope) if slope else w.emit("Relu", x, output)
    elif node.op == "maxpool":
        attrs = {"kernel_shape": node.ints("k"), "strides": node.ints("s", (1, 1)), "dilations": node.ints("d", (1, 1))}
        w.emit("MaxPool", x, output, pads=node.ints("p", (0, 0, 0, 0)), **attrs)
    elif node.op == "reshape":
        w.reshape(x[0], node.shape, output)
    elif node.op == "transpose":
        w.emit("Transpose", x, output, perm=[0, *(i + 1 for i in node.ints("perm"))])
    elif node.op == "pad":
        pads = np.array([0, *node.ints("lo"), 0, *node.ints("hi")], np.int64)
        w.emit("Pad", [x[0], w.constant(pads)], output)
    elif node.op == "slice":
        start, step, size = (node.integer(k) for k in ("start", "step", "size"))
        last = start + (size - 1) * step
        end = last + (1 if step > 0 else -1)
        span = [start, end if end >= 0 else np.iinfo(np.int64).min, node.integer("axis") + 1, step]
        w.emit("Slice", [x[0], *(w.constant(np.array([v], np.int64)) for v in span)], output)
    else:
        assert node.op == "gather", node.op
        _gather(w, x[0], weight("index"), node.shape, output)
