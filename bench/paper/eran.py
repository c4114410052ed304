"""Networks in ERAN's text format (.pyt, .tf) as ONNX, with the normalisation apart.

    python -m bench.paper.eran NET.pyt [--out NET.onnx]

Each layer is a line with its kind (ReLU, Affine, Conv2D, MaxPooling2D), for windows a line of settings, then its weights and its biases as
lists. Convolutions store [height, width, in, out] and `padding=1` means that the image keeps its size, as TensorFlow pads. In a .pyt file
dense layers read cells channel by channel, as PyTorch stores them, in a .tf file position by position. A first line
`Normalize mean=[...] std=[...]` is no layer here: it is printed, for `--mean` and `--std`, which take it as exact decimals. Weights become
float32; where a number of the file is none, the largest change is printed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bench.core.command import parser
from polytriton.errors import PolytritonError, UnsupportedModel, UsageError

DENSE = ("ReLU", "Affine")
ELSEWHERE = "take the network's ONNX file from ERAN's README, or export it from the framework it was trained in"


@dataclass
class EranNet:
    """The model, the normalisation as written, and by how much weights changed."""

    model: onnx.ModelProto
    mean: str = ""
    std: str = ""
    change: float = 0.0


@dataclass
class _Writer:
    pytorch: bool
    shape: tuple[int, ...]  # of the activation: [channels, height, width], or [cells]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "input"
    change: float = 0.0

    def emit(self, op: str, *tensors: tuple[str, np.ndarray], **attrs: Any) -> None:
        name = f"{op.lower()}{len(self.nodes)}"
        held = []
        for key, array in tensors:
            near = array.astype(np.float32) if array.dtype == np.float64 else array
            if array.dtype == np.float64:
                self.change = max(self.change, float(np.abs(near - array).max(initial=0.0)))
            self.weights.append(numpy_helper.from_array(near, f"{name}.{key}"))
            held.append(f"{name}.{key}")
        self.nodes.append(helper.make_node(op, [self.last, *held], [name], name=name, **attrs))
        self.last = name

    def conv(self, settings: dict[str, Any], w: np.ndarray, b: np.ndarray) -> None:
        self._image(settings)
        stride, same = list(settings.get("stride", [1, 1])), bool(settings.get("padding", 0))
        if w.ndim != 4 or w.shape[2] != self.shape[0] or b.shape != (w.shape[3],):
            raise UnsupportedModel(f"a convolution's weights of shape {list(w.shape)} do not fit {list(self.shape)}", ELSEWHERE)
        lo, hi = [], []
        for size, k, s in zip(self.shape[1:], w.shape[:2], stride, strict=True):
            total = max(0, (-(-size // s) - 1) * s + k - size) if same else 0
            lo.append(total // 2)
            hi.append(total - total // 2)
        self.emit("Conv", ("weight", np.ascontiguousarray(w.transpose(3, 2, 0, 1))), ("bias", b), strides=stride, pads=[*lo, *hi])
        spans = zip(self.shape[1:], w.shape[:2], stride, lo, hi, strict=True)
        self.shape = (w.shape[3], *((n + a + c - k) // s + 1 for n, k, s, a, c in spans))

    def pool(self, settings: dict[str, Any]) -> None:
        self._image(settings)
        k = list(settings["pool_size"])
        stride = list(settings.get("stride", k))
        self.emit("MaxPool", kernel_shape=k, strides=stride)
        self.shape = (self.shape[0], *((n - a) // s + 1 for n, a, s in zip(self.shape[1:], k, stride, strict=True)))

    def dense(self, w: np.ndarray, b: np.ndarray) -> None:
        if len(self.shape) == 3:
            if not self.pytorch:
                self.emit("Transpose", perm=[0, 2, 3, 1])
            self.emit("Flatten", axis=1)
            self.shape = (int(np.prod(self.shape)),)
        if w.ndim != 2 or w.shape[1] != self.shape[0] or b.shape != (w.shape[0],):
            raise UnsupportedModel(f"a dense layer's weights of shape {list(w.shape)} do not fit {self.shape[0]} cells", ELSEWHERE)
        self.emit("Gemm", ("weight", w), ("bias", b), transB=1)
        self.shape = (w.shape[0],)

    def _image(self, settings: dict[str, Any]) -> None:
        h, w, c = settings["input_shape"]
        if self.shape != (c, h, w):
            raise UnsupportedModel(f"a layer of {[c, h, w]} behind one of {list(self.shape)}", ELSEWHERE)


def read_eran(path: Path) -> EranNet:
    """Reads a .pyt or .tf file."""
    if path.suffix not in (".pyt", ".tf"):
        raise UsageError(f"{path} is no .pyt or .tf file", "ONNX files need no conversion")
    try:
        lines = iter(path.read_text().splitlines())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text", "name a network in ERAN's text format") from error
    net, writer = EranNet(onnx.ModelProto()), None
    first: tuple[int, ...] = ()
    for line in map(str.strip, lines):
        if not line:
            continue
        if line.startswith("Normalize"):
            net.mean, net.std = (_setting(line, key) for key in ("mean", "std"))
            continue
        if line in DENSE:
            w, b = _numbers(lines), _numbers(lines)
            if writer is None:
                first = _guess(w)
                writer = _Writer(path.suffix == ".pyt", first)
            writer.dense(w, b)
            if line == "ReLU":
                writer.emit("Relu")
        elif line == "Conv2D":
            told = _next(lines)
            kind, _, rest = told.partition(",")
            if kind.strip() not in DENSE:
                raise UnsupportedModel(f"a convolution with {kind.strip()!r}: only ReLU and Affine are supported", ELSEWHERE)
            settings = _settings(rest)
            if writer is None:
                h, width, c = settings["input_shape"]
                first = (c, h, width)
                writer = _Writer(path.suffix == ".pyt", first)
            writer.conv(settings, _numbers(lines), _numbers(lines))
            if kind.strip() == "ReLU":
                writer.emit("Relu")
        elif line == "MaxPooling2D" and writer is not None:
            writer.pool(_settings(_next(lines)))
        else:
            raise UnsupportedModel(f"{path.name}: layer {line[:40]!r} is not supported", ELSEWHERE)
    if writer is None or not writer.nodes:
        raise UsageError(f"{path.name} holds no layer", "name a network in ERAN's text format")
    net.model, net.change = _model(writer, first, path.stem), writer.change
    return net


def _guess(w: np.ndarray) -> tuple[int, ...]:
    """The input of a network that begins with a dense layer: an image where the size is MNIST's or CIFAR-10's."""
    return {784: (1, 28, 28), 3072: (3, 32, 32)}.get(w.shape[1] if w.ndim == 2 else 0, (w.shape[-1],))


def _model(writer: _Writer, first: tuple[int, ...], name: str) -> onnx.ModelProto:
    writer.nodes[-1].output[0] = "output"
    value = helper.make_tensor_value_info
    x, y = value("input", 1, [1, *first]), value("output", 1, [1, *writer.shape])
    graph = helper.make_graph(writer.nodes, re.sub(r"\W", "_", name), [x], [y], writer.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="polytriton.bench")
    onnx.checker.check_model(model, full_check=True)
    return model


def _next(lines: Iterator[str]) -> str:
    found = next(lines, None)
    if found is None:
        raise UsageError("the file ends within a layer", "download it again")
    return found


def _numbers(lines: Iterator[str]) -> np.ndarray:
    try:
        found = np.array(json.loads(_next(lines)), dtype=np.float64)
    except ValueError as error:
        raise UsageError(f"a line that should hold a list of numbers does not: {str(error)[:80]}", "download the file again") from error
    if not np.isfinite(found).all():
        raise UnsupportedModel("the file holds NaN or infinity", "no bound can be certified; repair or retrain the network")
    return found


def _settings(text: str) -> dict[str, Any]:
    """`filters=32, kernel_size=[3, 3], ...`: integers and lists of them."""
    found = {key: ast.literal_eval(value) for key, value in re.findall(r"(\w+)\s*=\s*(\[[\d,\s]*\]|\d+)", text)}
    if len(found.get("input_shape", [])) != 3:
        raise UnsupportedModel("a layer's settings lack input_shape=[height, width, channels]", ELSEWHERE)
    return found


def _setting(line: str, key: str) -> str:
    found = re.search(rf"{key}=\[([^\]]*)\]", line)
    if found is None:
        raise UsageError(f"the line {line[:40]!r} lacks {key}=[...]", "download the file again")
    return found[1].replace(" ", "")


def main() -> int:
    p = parser("paper.eran", __doc__)
    p.add_argument("net", type=Path)
    p.add_argument("--out", type=Path, help="the ONNX file (beside the network)")
    a = p.parse_args()
    out = a.out or a.net.with_suffix(".onnx")
    try:
        net = read_eran(a.net)
    except PolytritonError as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, UnsupportedModel) else 2
    out.write_bytes(net.model.SerializeToString())
    told = f" --mean {net.mean} --std {net.std}" if net.mean else ""
    print(f"{out}{told}")
    if net.change:
        print(f"weights were rounded to float32, by {net.change:.3g} at most", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
