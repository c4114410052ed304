"""Writes networks of sigmoids and tanhs of the shapes that are usual in papers, random weights from fixed seeds, for bench.compare:

python -m bench.smooth_nets FOLDER
python -m bench.compare auto_lirpa --onnx FOLDER/*.onnx --eps 1/255 --dtype float64
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, GAIN = 10, 1.6
SHAPES = {"6x100": (0, [100] * 5), "6x500": (0, [500] * 5), "conv": (2, [100])}  # convolutions of stride 2, then widths


def write(folder: Path) -> list[Path]:
    """One file for each shape and function."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for seed, (name, (convs, widths)) in enumerate(SHAPES.items()):
        for op in ("Sigmoid", "Tanh"):
            made.append(folder / f"{op.lower()}-{name}.onnx")
            onnx.save(network(op, convs, widths, seed), made[-1])
    return made


def network(op: str, convs: int, widths: list[int], seed: int) -> onnx.ModelProto:
    """Images of 28 x 28, each layer's weights of a variance that keeps its outputs'."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    held: list[onnx.TensorProto] = []

    def layer(kind: str, at: str, shape: tuple[int, ...], **attrs: int | list[int]) -> str:
        k = len(held) // 2
        weights = rng.standard_normal(shape) * np.sqrt(GAIN / np.prod(shape[1:]))
        for letter, array in (("w", weights), ("b", rng.standard_normal(shape[0]) * 0.1)):
            held.append(numpy_helper.from_array(array.astype(np.float32), f"{letter}{k}"))
        nodes.append(helper.make_node(kind, [at, f"w{k}", f"b{k}"], [f"h{k}"], **attrs))
        return f"h{k}"

    def bend(at: str) -> str:
        nodes.append(helper.make_node(op, [at], [f"{at}_bent"]))
        return f"{at}_bent"

    at, channels, side = "x", 1, 28
    for k in range(convs):
        at = bend(layer("Conv", at, (8 << k, channels, 4, 4), kernel_shape=[4, 4], strides=[2, 2], pads=[1, 1, 1, 1]))
        channels, side = 8 << k, side // 2
    nodes.append(helper.make_node("Flatten", [at], ["flat"]))
    at, size = "flat", channels * side * side
    for width in widths:
        at, size = bend(layer("Gemm", at, (width, size), transB=1)), width
    at = layer("Gemm", at, (CLASSES, size), transB=1)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 1, 28, 28]), (at, [1, CLASSES]))]
    graph = helper.make_graph(nodes, op.lower(), ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit((__doc__ or "").strip())
    for path in write(Path(sys.argv[1])):
        print(path)
