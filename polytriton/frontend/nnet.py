"""Networks of fully connected layers with ReLU in the text format .nnet, of Reluplex, Marabou and the ACAS Xu networks, as ONNX.

Lines that begin with // are remarks. Then, a line each with commas between numbers: layers, inputs, outputs, the widest layer; the widths
of the input and of every layer; a flag of no use; least inputs; greatest inputs; means of the inputs and one of all outputs; their ranges;
and for every layer its rows of weights, then its biases, one a line. ReLU stands behind every layer but the last.

Decimals become the nearest float64, and that the nearest float32: the network is the one that has these float32 weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polytriton.errors import ResourceError, UsageError
from polytriton.frontend.model_files import model_bytes
from polytriton.guard import guard
from polytriton.limit import go_on

FORMAT = "a .nnet file has its widths, input bounds, means and ranges, then each layer's rows and biases; or give the network as ONNX"
OPSET, IR_VERSION = 13, 8
MAX_WEIGHTS = 1 << 28


def is_nnet(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".nnet")


@guard
def read_nnet(path: str | os.PathLike[str], *, normalize: bool = False) -> onnx.ModelProto:
    """A .nnet file as an ONNX model, to compile or to save.

    As it stands the network takes normalised inputs and gives normalised outputs, as its published ONNX twins do. `normalize` puts layers
    around it that clip inputs to the file's bounds, subtract means, divide by ranges, and undo both for the outputs.
    """
    path = Path(path)
    lines = _NumberLines(path, model_bytes(path).decode("latin-1"))
    head = lines.integers(4)
    layers, inputs, outputs = head[:3]
    widths = lines.integers(layers + 1)
    if (widths[0], widths[-1]) != (inputs, outputs):
        raise lines.fail(f"its widths {widths[0]} to {widths[-1]} are not those of {inputs} inputs and {outputs} outputs")
    if sum(a * b for a, b in pairwise(widths)) > MAX_WEIGHTS:
        raise ResourceError(f"{path} says that it has more than {MAX_WEIGHTS} weights", "give the network as ONNX")
    lines.skip()
    box = [lines.row(inputs) for _ in range(2)]
    scale = [lines.row(inputs + 1) for _ in range(2)]
    model = _LayerWriter()
    if normalize:
        if not (box[0] <= box[1]).all() or not (scale[1] > 0).all():
            raise lines.fail("its least inputs exceed its greatest, or a range is not above 0, so it states no normalisation")
        for op, value in (("Max", box[0]), ("Min", box[1]), ("Sub", scale[0][:-1]), ("Div", scale[1][:-1])):
            model.emit(op, value)
    for k, (before, width) in enumerate(pairwise(widths)):
        go_on()
        rows = np.stack([lines.row(before) for _ in range(width)])
        model.emit("Gemm", rows, np.concatenate([lines.row(1) for _ in range(width)]), transB=1)
        if k + 1 < layers:
            model.emit("Relu")
    lines.end()
    if normalize:
        model.emit("Mul", scale[1][-1:])
        model.emit("Add", scale[0][-1:])
    return model.finish(path.name.removesuffix(".gz").removesuffix(".nnet"), inputs, outputs)


class _NumberLines:
    """The file's lines of numbers, one after the other; what does not fit is told by its line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.at = path, 0
        self.lines = self._skip_comments(text)

    def _skip_comments(self, text: str) -> Iterator[str]:
        for self.at, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("//"):
                yield line

    def fail(self, why: str) -> UsageError:
        return UsageError(f"{self.path}, line {self.at}: {why}"[:400], FORMAT)

    def skip(self) -> list[str]:
        line = next(self.lines, None)
        if line is None:
            raise self.fail("the file ends too early")
        return [v for v in (v.strip() for v in line.split(",")) if v]

    def integers(self, count: int) -> list[int]:
        words = self.skip()
        if len(words) < count or not all(w.isascii() and w.isdigit() and len(w) < 10 and int(w) for w in words[:count]):
            raise self.fail(f"{count} whole numbers above 0 must stand here, not {', '.join(words)[:80]!r}")
        return [int(w) for w in words[:count]]

    def row(self, count: int) -> np.ndarray:
        words = self.skip()
        if len(words) != count:
            raise self.fail(f"{count} numbers must stand here, not {len(words)}")
        try:
            values = [float(w) for w in words]
        except ValueError:
            raise self.fail(f"numbers must stand here, not {', '.join(words)[:80]!r}") from None
        with np.errstate(over="ignore"):
            row = np.array(values, np.float64).astype(np.float32)
        if not all(isfinite(v) for v in row.tolist()):
            raise self.fail("it holds a number that no float32 is")
        return row

    def end(self) -> None:
        if next(self.lines, None) is not None:
            raise self.fail("the file goes on behind its last layer")


class _LayerWriter:
    """Layers in a row, from "input" on."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.last = "input"

    def emit(self, op: str, *arrays: np.ndarray, **attributes: Any) -> None:
        name = f"{op.lower()}{len(self.nodes)}"
        held = [f"{name}_{k}" for k in ("w", "b")[: len(arrays)]]
        self.tensors += [numpy_helper.from_array(a, n) for n, a in zip(held, arrays, strict=True)]
        self.nodes.append(helper.make_node(op, [self.last, *held], [name], name=name, **attributes))
        self.last = name

    def finish(self, name: str, inputs: int, outputs: int) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "output"
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", w]) for n, w in (("input", inputs), ("output", outputs))]
        graph = helper.make_graph(self.nodes, name or "nnet", ends[:1], ends[1:], self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="polytriton")
        model.ir_version = IR_VERSION
        return model
