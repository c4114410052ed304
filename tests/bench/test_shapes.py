"""Small networks of the shapes of benchmarks whose files could not be had: each loads and has finite bounds that hold."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import polytriton


class Drawn:
    """A chain of layers with random weights, written as ONNX."""

    def __init__(self, *shape: int) -> None:
        self.rng, self.last = np.random.default_rng(0), "x"
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.input = [1, *shape]
        self.shape = list(self.input)

    def weight(self, *shape: int) -> str:
        return self.constant((self.rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def constant(self, value: np.ndarray) -> str:
        self.held.append(numpy_helper.from_array(value, f"c{len(self.held)}"))
        return str(self.held[-1].name)

    def add(self, op: str, *more: str, on: str = "", **attributes: object) -> str:
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [on or self.last, *more], [made], name=made, **attributes))
        self.last = made
        return made

    def conv(self, channels: int, kernel: int = 3, stride: int = 1, norm: bool = False) -> str:
        weights = self.weight(channels, self.shape[1], kernel, kernel), self.weight(channels)
        found = self.add("Conv", *weights, pads=[kernel // 2] * 4, strides=[stride] * 2)
        self.shape = [1, channels, *(-(-s // stride) for s in self.shape[2:])]
        if norm:
            ones = [self.constant(np.full(channels, v, np.float32)) for v in (1.1, 0.1, 0.2, 0.9)]
            found = self.add("BatchNormalization", *ones)
        return found

    def dense(self, size: int, op: str = "Gemm") -> None:
        features = int(np.prod(self.shape[1:]))
        if op == "Gemm":
            self.add("Gemm", self.weight(size, features), self.weight(size), transB=1)
        else:
            self.add("MatMul", self.weight(features, size))
            self.add("Add", self.weight(size))
        self.shape = [1, size]

    def model(self) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", self.input), (self.last, self.shape))]
        graph = helper.make_graph(self.nodes, "g", ends[:1], ends[1:], self.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def residual() -> Drawn:
    """cifar100, tinyimagenet: ResNets with batch norms and projected shortcuts, pooled before the last layer."""
    d = Drawn(3, 8, 8)
    d.conv(4, norm=True)
    start, shape = d.add("Relu"), d.shape
    for stride in (1, 2):
        d.conv(4, stride=stride, norm=True)
        d.add("Relu")
        side, inner = d.conv(4, norm=True), d.shape
        d.last, d.shape = start, shape
        short = d.conv(4, 1, stride, norm=True) if stride > 1 else start
        d.shape = inner
        d.add("Add", short, on=side)
        start, shape = d.add("Relu"), d.shape
    d.add("AveragePool", kernel_shape=[4, 4], strides=[4, 4])
    d.shape = [1, 4, 1, 1]
    d.add("Flatten")
    d.dense(10)
    return d


def colt() -> Drawn:
    """cifar2020: normalised images, convolutions, a reshaping whose shape the graph computes."""
    d = Drawn(3, 8, 8)
    d.add("Sub", d.constant(np.full((1, 3, 1, 1), 0.45, np.float32)))
    d.add("Div", d.constant(np.full((1, 3, 1, 1), 0.25, np.float32)))
    for _ in range(2):
        d.conv(4, stride=2)
        features = d.add("Relu")
    d.add("Shape")
    d.add("Gather", d.constant(np.array(0)))
    batch = d.add("Unsqueeze", d.constant(np.array([0])))
    d.add("Concat", d.constant(np.array([-1])), on=batch, axis=0)
    d.add("Reshape", d.last, on=features)
    d.dense(12)
    d.add("Relu")
    d.dense(10)
    return d


def pooled() -> Drawn:
    """vggnet16: convolutions and max pools, then dense layers with dropout."""
    d = Drawn(3, 16, 16)
    for channels in (4, 6):
        for _ in range(2):
            d.conv(channels)
            d.add("Relu")
        d.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        d.shape = [*d.shape[:2], *(s // 2 for s in d.shape[2:])]
    d.add("Flatten")
    d.dense(16)
    d.add("Relu")
    d.add("Dropout")
    d.dense(10)
    return d


def closed() -> Drawn:
    """cersyve: a value network of the state and of the state after one step of a network of the dynamics."""
    d = Drawn(3)
    d.dense(8)
    d.add("Relu")
    d.dense(3)
    after = d.add("Add", "x")
    weights = [(d.weight(6, 3), d.weight(6)), (d.weight(1, 6), d.weight(1))]
    values = []
    for state in ("x", after):
        d.add("Gemm", *weights[0], on=state, transB=1)
        d.add("Relu")
        values.append(d.add("Gemm", *weights[1], transB=1))
    d.add("Concat", values[1], on=values[0], axis=1)
    d.shape = [1, 2]
    return d


def formula() -> Drawn:
    """sat_relu: dense layers with ReLUs, products and sums apart."""
    d = Drawn(6)
    for size in (9, 9):
        d.dense(size, "MatMul")
        d.add("Relu")
    d.dense(1, "MatMul")
    return d


def mixed(op: str) -> Drawn:
    """soundnessbench: small convolutions and dense layers, with average pools, by ReLU, sigmoid or tanh."""
    d = Drawn(1, 6, 6)
    d.conv(3)
    d.add(op)
    d.add("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    d.shape = [1, 3, 3, 3]
    d.add("Flatten")
    d.dense(8)
    d.add(op)
    d.dense(2)
    return d


SHAPES = {
    "cifar100": residual, "cifar2020": colt, "vggnet16": pooled, "cersyve": closed, "sat_relu": formula,
    **{f"soundnessbench {op}": (lambda op=op: mixed(op)) for op in ("Relu", "Sigmoid", "Tanh")},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_of_the_shape_loads_and_is_bounded(name: str) -> None:
    model = SHAPES[name]().model()
    onnx.checker.check_model(model)
    net = polytriton.compile(model, semantics="real")
    lo, hi = np.full(net.inputs, 0.4), np.full(net.inputs, 0.42)
    found = net.bounds(lo, hi)
    assert np.isfinite(found.lo).all() and np.isfinite(found.hi).all()
    points = np.random.default_rng(1).uniform(lo, hi, (20, net.inputs))
    answers = net.predict(points.reshape(20, *net.input_shape))
    assert (found.lo <= answers + 1e-5).all() and (answers - 1e-5 <= found.hi).all()
