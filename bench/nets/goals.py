"""Writes the networks and inputs of the part `goals`, random weights from fixed seeds: every machine measures the same numbers.

    python -m bench.nets.goals FOLDER
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.core.command import parser
from polytriton.whole import write_whole

INPUTS = {"mnist_x": (1, 1, 28, 28), "cifar_x": (1, 3, 32, 32)}


class OnnxGrower:
    """A network in the making; weights are drawn in the order of its layers."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.rng, self.shape = np.random.default_rng(seed), shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.named = 0

    def _name(self, letter: str) -> str:
        self.named += 1
        return f"{letter}{self.named}"

    def _draw_layer(self, shape: tuple[int, ...], fan: int, gain: float) -> list[str]:
        """A layer's weights, of a variance that keeps its outputs', and its bias."""
        w = (self.rng.standard_normal(shape) * gain * np.sqrt(2 / fan)).astype(np.float32)
        b = (self.rng.standard_normal(shape[0]) * 0.05).astype(np.float32)
        names = []
        for array in (w, b):
            names.append(self._name("p"))
            self.weights.append(numpy_helper.from_array(array, names[-1]))
        return names

    def op(self, kind: str, *operands: str, **attributes: Any) -> str:
        made = self._name("v")
        self.nodes.append(helper.make_node(kind, operands, [made], **attributes))
        return made

    def fc(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Gemm", x, *self._draw_layer((outputs, inputs), inputs, 1.0), transB=1)

    def conv(self, x: str, inputs: int, outputs: int, k: int, s: int, p: int, gain: float = 1.0) -> str:
        names = self._draw_layer((outputs, inputs, k, k), inputs * k * k, gain)
        return self.op("Conv", x, *names, kernel_shape=[k, k], strides=[s, s], pads=[p] * 4)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def model(self, name: str) -> bytes:
        self.nodes[-1].output[0] = "output"
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, *s]) for n, s in (("input", self.shape), ("output", (10,)))]
        graph = helper.make_graph(self.nodes, name, ends[:1], ends[1:], self.weights)
        made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
        return made


def fc6x500() -> bytes:
    n = OnnxGrower((1, 28, 28), 1)
    x, width = n.op("Flatten", "input", axis=1), 784
    for _ in range(6):
        x, width = n.relu(n.fc(x, width, 500)), 500
    n.fc(x, width, 10)
    return n.model("fc6x500")


def convbig() -> bytes:
    n = OnnxGrower((3, 32, 32), 2)
    x = n.relu(n.conv("input", 3, 32, 3, 1, 1))
    x = n.relu(n.conv(x, 32, 32, 4, 2, 1))
    x = n.relu(n.conv(x, 32, 64, 3, 1, 1))
    x = n.relu(n.conv(x, 64, 64, 4, 2, 1))
    x = n.relu(n.fc(n.op("Flatten", x, axis=1), 4096, 512))
    n.fc(n.relu(n.fc(x, 512, 512)), 512, 10)
    return n.model("convbig")


def resnet_small() -> bytes:
    n = OnnxGrower((3, 32, 32), 3)
    x = n.relu(n.conv("input", 3, 16, 3, 2, 1))
    y = n.conv(n.relu(n.conv(x, 16, 16, 3, 1, 1, 0.7)), 16, 16, 3, 1, 1, 0.7)
    x = n.relu(n.op("Add", y, x))
    y = n.conv(n.relu(n.conv(x, 16, 32, 3, 2, 1, 0.7)), 32, 32, 3, 1, 1, 0.7)
    x = n.relu(n.op("Add", y, n.conv(x, 16, 32, 1, 2, 0, 0.7)))
    x = n.relu(n.fc(n.op("Flatten", x, axis=1), 2048, 100))
    n.fc(x, 100, 10)
    return n.model("resnet_small")


NETS: dict[str, Callable[[], bytes]] = {"fc6x500": fc6x500, "resnet_small": resnet_small, "convbig": convbig}


def write(folder: Path) -> None:
    """Each file is there whole or not at all: several processes of a suite may write the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    points = {name: rng.random(shape, dtype=np.float32) for name, shape in INPUTS.items()}
    for name, model in NETS.items():
        write_whole(folder / f"{name}.onnx", model())
    for name, x in points.items():
        held = io.BytesIO()
        np.save(held, x)
        write_whole(folder / f"{name}.npy", held.getvalue())


if __name__ == "__main__":
    p = parser("nets.goals", __doc__)
    p.add_argument("folder", type=Path)
    write(p.parse_args().folder)
