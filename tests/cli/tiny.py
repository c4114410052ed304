"""Networks and properties small enough to see through, written as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(
    path: Path, nodes: Sequence[onnx.NodeProto], shape: Sequence[int], outputs: int, weights: dict[str, np.ndarray], double: bool = False
) -> Path:
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, [1, outputs])],
        [numpy_helper.from_array(np.asarray(w, np.float64 if double else np.float32), k) for k, w in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def brightest(path: Path, scale: float = 1.0) -> Path:
    """Three labels for an image of 2x2 pixels: the brightest of its first three."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w0", "b0"], ["h"], name="first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["y"], name="second", transB=1),
    ]
    return save(path, nodes, [1, 1, 2, 2], 3, {"w0": scale * np.eye(4), "b0": np.zeros(4), "w1": np.eye(4)[:3], "b1": np.zeros(3)})


def zero(path: Path) -> Path:
    """relu(x) - relu(x) through two neurons: zero, which no relaxation of each alone can show."""
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], name="first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["h1"], name="second", transB=1),
        helper.make_node("Relu", ["h1"], ["r1"], name="act1"),
        helper.make_node("Gemm", ["r1", "w2", "b2"], ["y"], name="third", transB=1),
    ]
    weights = {
        "w0": np.ones((2, 1)), "b0": np.zeros(2), "w1": np.eye(2), "b1": np.zeros(2), "w2": np.array([[1.0, -1.0]]), "b2": np.zeros(1)
    }  # fmt: skip
    return save(path, nodes, [1, 1], 1, weights)


def unsupported(path: Path) -> Path:
    return save(path, [helper.make_node("Cosh", ["x"], ["y"], name="squash")], [1, 3], 3, {})


def vnnlib(path: Path, box: Sequence[tuple[float, float]], unsafe: str, outputs: int = 3) -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(len(box))] + [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (lo, hi) in enumerate(box):
        lines += [f"(assert (>= X_{i} {lo!r}))", f"(assert (<= X_{i} {hi!r}))"]
    path.write_text("\n".join([*lines, f"(assert {unsafe})", ""]))
    return path


BRIGHT = (0.9, 0.1, 0.2, 0.5)  # label 0


def robust(path: Path, epsilon: float) -> Path:
    """Label 0 over a ball around BRIGHT: true below 0.35."""
    return vnnlib(path, [(v - epsilon, v + epsilon) for v in BRIGHT], "(or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2)))")


def hard(path: Path, size: float = 1.0) -> Path:
    """A property of `zero` that holds and cannot be proved; looking for a counterexample takes a while."""
    return vnnlib(path, [(-size, size)], "(<= Y_0 -0.01)", 1)
