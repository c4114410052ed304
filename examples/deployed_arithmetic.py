"""A property that holds in real arithmetic and not in float32, and the order of execution that breaks it.

    python examples/deployed_arithmetic.py

Two small classifiers are built here; both answer 0 wherever their weights are read as exact numbers. docs/deployed-arithmetic.md
explains what is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import polytriton

BIG = 2.0**27
TERMS, SMALL = 20_000, 2.0**-25


def model(layers: Sequence[tuple[np.ndarray, np.ndarray]], name: str) -> onnx.ModelProto:
    """Dense layers with ReLUs between them."""
    nodes, weights, x = [], [], "x"
    for k, (w, b) in enumerate(layers):
        last = k + 1 == len(layers)
        weights += [numpy_helper.from_array(v.astype(np.float32), f"{kind}{k}") for kind, v in (("w", w), ("b", b))]
        nodes.append(helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], ["y" if last else f"z{k}"], transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{k}"], [f"h{k}"]))
        x = f"h{k}"
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s])
        for n, s in (("x", layers[0][0].shape[1]), ("y", layers[-1][0].shape[0]))
    ]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def cancelling(order: Sequence[int]) -> onnx.ModelProto:
    """h = relu(B x0, x1 + 1/2, B x0), y0 = h0 + h1 - h2, y1 = 1/4; `order` is that of the hidden neurons in the file."""
    first, shift = np.array([[BIG, 0], [0, 1], [BIG, 0]]), np.array([0, 0.5, 0])
    second = np.array([[1, 1, -1], [0, 0, 0]])
    at = list(order)
    return model([(first[at], shift[at]), (second[:, at], np.array([0, 0.25]))], "cancelling")


def long_sum() -> onnx.ModelProto:
    """y0 = x0 + 2^-25 (x1 + ... + x20000), y1 = 1.0003: no weight above 1, no cancellation."""
    w = np.zeros((2, TERMS + 1))
    w[0, 0], w[0, 1:] = 1, SMALL
    return model([(w, np.array([0, 1.0003]))], "long_sum")


def in_order(terms: Sequence[np.float32], order: Sequence[int]) -> np.float32:
    """A float32 machine that adds the terms one after another."""
    total = np.float32(0)
    for k in order:
        total = np.float32(total + terms[k])
    return total


def verdicts(proto: onnx.ModelProto, x: np.ndarray, epsilon: str) -> None:
    for semantics in ("real", "float32"):
        net = polytriton.compile(proto, semantics=semantics)
        result = net.verify(x, epsilon, label=0)
        found = f", onnxruntime answers {result.counterexample.y.ravel().tolist()}" if result.counterexample is not None else ""
        print(f"  --semantics {semantics}: {result.verdict}, margin {result.margin:.4g}{found}")


def main() -> None:
    x = np.array([0.75, 0.5])
    print(f"1. h = relu(2^27 x0, x1 + 1/2, 2^27 x0), y = (h0 + h1 - h2, 1/4) around x = {x.tolist()}, epsilon 1/4")
    for order in ((0, 1, 2), (0, 2, 1)):
        print(f" neurons of the file in the order {order}")
        verdicts(cancelling(order), x, "0.25")
    w = [Fraction(BIG), Fraction(1), -Fraction(BIG)]
    values = [Fraction(x[0]), Fraction(x[1]) + Fraction(1, 2), Fraction(x[0])]
    exact = sum(a * v for a, v in zip(w, values, strict=True))
    print(f" y0 at x, exactly: {exact}; in float32, by the order of its three terms:")
    terms = [np.float32(float(a * v)) for a, v in zip(w, values, strict=True)]
    for order in permutations(range(3)):
        y0 = in_order(terms, order)
        print(f"  {' '.join(('+B x0', '+h1', '-B x0')[k].ljust(5) for k in order)}  y0 = {y0:g}, answers {int(not y0 > 0.25)}")

    ones = np.ones(TERMS + 1)
    print(f"2. y = (x0 + 2^-25 (x1 + ... + x{TERMS}), 1.0003) around x = (1, ..., 1), epsilon 1/100000")
    verdicts(long_sum(), ones, "0.00001")
    exact = 1 + TERMS * Fraction(SMALL)
    rising, falling = ([np.float32(SMALL)] * TERMS + [np.float32(1)], [np.float32(1)] + [np.float32(SMALL)] * TERMS)
    print(f" y0 at x, exactly: {float(exact):.6f}; in float32:")
    for title, run in (("small terms first", rising), ("large term first", falling)):
        y0 = in_order(run, range(TERMS + 1))
        print(f"  {title.ljust(17)}  y0 = {y0:.6f}, answers {int(not y0 > np.float32(1.0003))}")


if __name__ == "__main__":
    main()
