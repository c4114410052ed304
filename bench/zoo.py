"""The paper's networks with synthetic weights: the shapes of its Table 1, in two kinds.

    python -m bench.zoo [--out FOLDER] [--nets NAME ...] [--kinds normal robust] [--seed 0] [--stats] [--dry]

writes NAME-KIND.onnx and one input image NAME.npy, seeded, uniform in [0, 1].

- `normal`: He weights, biases 0.05 N(0, 1). Many neurons are unstable: back-substitution dominates.
- `robust`: the same shapes, scaled and biased until about 1.5 % of the neurons are unstable under interval analysis at the network's
  eps, as in a provably trained network: launches and memory traffic dominate. How, see `Settle`.

ERAN's README links several of the paper's trained networks; these have its shapes only, so that figures need no download: figures taken
on them are to be called synthetic.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod, sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from bench.core.command import parser

Kind = Literal["normal", "robust"]
Params = dict[str, tuple[np.ndarray, np.ndarray]]  # weight and bias of a layer, float32
Shape = tuple[int, ...]

KINDS: tuple[Kind, ...] = get_args(Kind)
OPSET, IR_VERSION = 13, 8
TARGET, ALLOWED = 0.015, (0.005, 0.03)  # unstable neurons of a robust network
CALIBRATION = 8  # images a robust network is settled on, the published one among them


# ---- shapes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZooLayer:
    """One affine layer or residual sum, and whether a ReLU follows. The first operand of a sum is the branch whose bias may move."""

    name: str
    op: Literal["conv", "dense", "add"]
    inputs: tuple[str, ...]
    shape: Shape
    relu: bool
    weight: Shape = ()
    stride: int = 1
    pad: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)


class Stack:
    """Grows a network; `at` is where it has got to."""

    def __init__(self, *shape: int) -> None:
        self.layers: list[ZooLayer] = []
        self.shapes: dict[str, Shape] = {"input": shape}
        self.at = "input"

    def _push(self, layer: ZooLayer) -> None:
        self.layers.append(layer)
        self.shapes[layer.name] = layer.shape
        self.at = layer.name

    def conv(self, channels: int, kernel: int, stride: int, pad: int, *, relu: bool = True, name: str = "") -> Stack:
        c, *image = self.shapes[self.at]
        shape = (channels, *((n + 2 * pad - kernel) // stride + 1 for n in image))
        name = name or f"conv{len(self.layers) + 1}"
        self._push(ZooLayer(name, "conv", (self.at,), shape, relu, (channels, c, kernel, kernel), stride, pad))
        return self

    def dense(self, *sizes: int, relu: bool = True) -> Stack:
        for n in sizes:
            self._push(ZooLayer(f"fc{len(self.layers) + 1}", "dense", (self.at,), (n,), relu, (n, prod(self.shapes[self.at]))))
        return self

    def output(self) -> Stack:
        return self.dense(10, relu=False)

    def block(self, name: str, planes: int, stride: int, shortcut: Literal["conv", "identity", "none"]) -> Stack:
        """conv 3x3 (stride), ReLU, conv 3x3, plus a conv 1x1 (stride), the block's input or nothing; ReLU."""
        start = self.at
        self.conv(planes, 3, stride, 1, name=f"{name}.conv1")
        self.conv(planes, 3, 1, 1, relu=shortcut == "none", name=f"{name}.conv2")
        if shortcut == "none":
            return self
        branch, self.at = self.at, start
        if shortcut == "conv":
            self.conv(planes, 1, stride, 0, relu=False, name=f"{name}.shortcut")
        self._push(ZooLayer(f"{name}.add", "add", (branch, self.at), self.shapes[branch], relu=True))
        return self


def _six_by_500(*shape: int) -> Stack:
    return Stack(*shape).dense(*[500] * 6)


def _convbig(*shape: int) -> Stack:
    return Stack(*shape).conv(32, 3, 1, 1).conv(32, 4, 2, 1).conv(64, 3, 1, 1).conv(64, 4, 2, 1).dense(512, 512)


def _convsuper(*shape: int) -> Stack:
    return Stack(*shape).conv(32, 3, 1, 0).conv(32, 4, 1, 0).conv(64, 3, 1, 0).conv(64, 4, 1, 0).dense(512, 512)


def _convlarge(*shape: int) -> Stack:
    return Stack(*shape).conv(64, 3, 1, 1).conv(64, 3, 1, 1).conv(128, 3, 2, 1).conv(128, 3, 1, 1).conv(128, 3, 1, 1).dense(512)


def _resnettiny(*shape: int) -> Stack:
    net = Stack(*shape).conv(16, 3, 1, 1)
    for i, planes in enumerate((16, 32, 32, 32, 32)):
        net.block(f"block{i + 1}", planes, 1, "conv")
    return net.dense(500)


def _resnet(blocks: tuple[int, ...], identity: bool = True) -> Callable[..., Stack]:
    def stack(*shape: int) -> Stack:
        net = Stack(*shape).conv(64, 3, 1, 1)
        for i, count in enumerate(blocks):
            for j in range(count):
                stride, planes = 2 if i and not j else 1, 64 << i
                shortcut: Literal["conv", "identity", "none"] = "conv" if i and not j else "identity" if identity else "none"
                net.block(f"layer{i + 1}.{j}", planes, stride, shortcut)
        return net.dense(512, 512)

    return stack


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
# the input's shape, the layers before the output, the neurons as the paper prints them
NETS: dict[str, tuple[Shape, Callable[..., Stack], str]] = {
    "mnist-6x500": (MNIST, _six_by_500, "3,010"),
    "cifar-6x500": (CIFAR, _six_by_500, "3,010"),
    "mnist-convbig": (MNIST, _convbig, "48K"),
    "cifar-convbig": (CIFAR, _convbig, "62K"),
    "mnist-convsuper": (MNIST, _convsuper, "88K"),
    "mnist-ibplarge": (MNIST, _convlarge, "176K"),
    "cifar-convlarge": (CIFAR, _convlarge, "230K"),
    "cifar-ibplarge": (CIFAR, _convlarge, "230K"),
    "resnettiny": (CIFAR, _resnettiny, "311K"),
    "resnet18": (CIFAR, _resnet((2, 2, 2, 2)), "558K"),
    "skipnet18": (CIFAR, _resnet((2, 2, 2, 2), identity=False), "558K"),
    "resnet34": (CIFAR, _resnet((3, 4, 6, 3)), "967K"),
}

# The radii of the paper's table of times, the first where it has two; what it does not name takes 8/255, our choice.
EPS: dict[tuple[str, Kind], Fraction] = {(name, kind): Fraction(8, 255) for name in NETS for kind in KINDS}
EPS |= {("mnist-convbig", kind): Fraction(3, 10) for kind in KINDS}
EPS |= {("cifar-6x500", kind): Fraction(1, 500) for kind in KINDS}
EPS |= {("mnist-ibplarge", kind): Fraction(129, 500) for kind in KINDS}
EPS |= {(name, "normal"): Fraction(1, 500) for name in ("resnettiny", "resnet18")}
SECOND = {"mnist-ibplarge": Fraction(3, 10), "cifar-ibplarge": Fraction(2, 255)}  # the same networks' other radii there


def radii(name: str, kind: Kind) -> tuple[Fraction, ...]:
    """Those of the paper's table, the one the robust weights are settled at first."""
    return (EPS[name, kind], *((SECOND[name],) if name in SECOND else ()))


def network(name: str) -> list[ZooLayer]:
    """The layers in topological order; the last is the output."""
    shape, stack, _ = NETS[name]
    return stack(*shape).output().layers


def neurons(layers: list[ZooLayer]) -> int:
    """Counted as the paper does: the inputs of ReLUs, and the output."""
    return sum(n.size for n in layers if n.relu) + layers[-1].size


def image(name: str, seed: int = 0, count: int = 1) -> np.ndarray:
    """`count` input images, [count, channels, height, width] float32; more images begin with the same ones."""
    shape = NETS[name][0]
    return _generator(seed, f"{name} image").random((count, *shape), dtype=np.float32)


def margins_of(answers: np.ndarray) -> np.ndarray:
    """Forms of each row's best class over every other: [rows, outputs - 1, outputs]."""
    eye = np.eye(answers.shape[1])
    return np.stack([eye[k] - np.delete(eye, k, 0) for k in answers.argmax(1)])


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


# ---- intervals ------------------------------------------------------------------------------------------


@dataclass
class Box:
    """A centre and a radius for every value, [images, ...]."""

    centre: Tensor
    radius: Tensor

    def unstable(self) -> Tensor:
        return ~(self.centre.abs() >= self.radius)  # so are NaNs: a deep normal network overflows

    def relu(self) -> Box:
        return _box_between((self.centre - self.radius).clamp(min=0), (self.centre + self.radius).clamp(min=0))


def _box_between(lo: Tensor, hi: Tensor) -> Box:
    return Box((hi + lo) / 2, (hi - lo) / 2)


def ball(images: np.ndarray, eps: float) -> Box:
    """All inputs in [0, 1] within eps of an image."""
    x = torch.from_numpy(images)
    return _box_between((x - eps).clamp(min=0), (x + eps).clamp(max=1))


def linear(layer: ZooLayer, x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, stride=layer.stride, padding=layer.pad) if layer.op == "conv" else F.linear(x.flatten(1), weight)


def broadcast(bias: Tensor, layer: ZooLayer) -> Tensor:
    """One number a channel, shaped to add to the layer's values."""
    return bias.view(-1, *[1] * (len(layer.shape) - 1))


def intervals(layers: list[ZooLayer], params: Params, start: Box, settle: Settle | None = None) -> Iterator[tuple[ZooLayer, Box]]:
    """Every layer with its box before the ReLU, in float32 to nearest: a measurement, not a bound. `settle` makes `params` on the way."""
    last = {i: n.name for n in layers for i in n.inputs}
    held = {"input": start}
    for layer in layers:
        operands = [held[i] for i in layer.inputs]
        if layer.op == "add":
            box = Box(operands[0].centre + operands[1].centre, operands[0].radius + operands[1].radius)
        else:
            if settle:
                params[layer.name] = settle.scale(layer, operands[0])
            weight, bias = (torch.from_numpy(p) for p in params[layer.name])
            (x,) = operands
            box = Box(linear(layer, x.centre, weight) + broadcast(bias, layer), linear(layer, x.radius, weight.abs()))
        if settle and (layer.relu or layer is layers[-1]):
            shift = settle.shift(layer, box)
            owner = layer.inputs[0] if layer.op == "add" else layer.name
            np.add(params[owner][1], shift.numpy(), out=params[owner][1])
            box.centre = box.centre + broadcast(shift, layer)
        yield layer, box
        held[layer.name] = box.relu() if layer.relu else box
        for name in layer.inputs:
            if last[name] == layer.name:
                held.pop(name, None)


# ---- weights --------------------------------------------------------------------------------------------


def he(layer: ZooLayer, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(layer.weight, dtype=np.float32) * np.float32(sqrt(2 / prod(layer.weight[1:])))


@dataclass
class Settle:
    """Makes a robust network layer by layer, given the boxes so far.

    Weights are scaled until the mean radius before the ReLU is again that of the input box: biases come after, so this moves no neuron,
    but the numbers stay small at any depth. Then every channel c gets a side s = +1 or -1 (on or off), a distance h uniform in [1/2, 3/2]
    and the bias that puts the mean of its centres at s b h (std of its centres + mean radius). The one b of the layer is bisected until a
    share TARGET of its neurons has |centre| < radius. A residual sum is settled through the bias of its branch's last convolution. The
    output's means are spread evenly over one mean radius: intervals decide no margin, and none is so small that rounding would.
    """

    radius: float
    rng: np.random.Generator

    def scale(self, layer: ZooLayer, x: Box) -> tuple[np.ndarray, np.ndarray]:
        weight = he(layer, self.rng)
        radius = float(linear(layer, x.radius, torch.from_numpy(weight).abs()).mean())
        return weight * np.float32(self.radius / radius), np.zeros(layer.weight[0], np.float32)

    def shift(self, layer: ZooLayer, box: Box) -> Tensor:
        """What to add to the biases."""
        channels = layer.shape[0]
        centre, radius = (v.transpose(0, 1).reshape(channels, -1) for v in (box.centre, box.radius))
        mean = centre.mean(1)
        if not layer.relu:
            places = torch.from_numpy(self.rng.permutation(np.linspace(-0.5, 0.5, channels, dtype=np.float32)))
            return places * radius.mean() - mean
        side = torch.from_numpy(self.rng.choice(np.array([-1, 1], np.float32), channels))
        distance = torch.from_numpy(self.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        unit = side * distance * (centre.std(1, correction=0) + radius.mean(1))
        near, far = 0.0, 64.0
        for _ in range(30):
            middle = (near + far) / 2
            moved = centre + (middle * unit - mean)[:, None]
            if Box(moved, radius).unstable().float().mean() > TARGET:
                near = middle
            else:
                far = middle
        return far * unit - mean


def weights(name: str, kind: Kind, seed: int = 0) -> Params:
    """Weights and biases of every affine layer; robust ones within ALLOWED on the network's own image, or an error."""
    layers, rng = network(name), _generator(seed, name)
    if kind == "normal":
        return {n.name: (he(n, rng), rng.standard_normal(n.weight[0], dtype=np.float32) * np.float32(0.05)) for n in layers if n.weight}
    params: Params = {}
    eps = float(EPS[name, kind])
    with torch.inference_mode():
        start = ball(image(name, seed, CALIBRATION), eps)
        for _ in intervals(layers, params, start, Settle(float(start.radius.mean()), rng)):
            pass
    share = sum(unstable(name, params, eps, image(name, seed)).values()) / neurons(layers)
    if not ALLOWED[0] <= share <= ALLOWED[1]:
        raise AssertionError(f"{name}: {share:.2%} of the neurons are unstable, wanted {ALLOWED[0]:.1%} to {ALLOWED[1]:.1%}")
    return params


def unstable(name: str, params: Params, eps: float, images: np.ndarray) -> dict[str, float]:
    """For every layer before a ReLU, how many neurons the interval pass leaves undecided: the mean over the images."""
    with torch.inference_mode():
        boxes = intervals(network(name), params, ball(images, eps))
        return {n.name: float(box.unstable().sum()) / len(images) for n, box in boxes if n.relu}


# ---- ONNX -----------------------------------------------------------------------------------------------


def to_onnx(name: str, kind: Kind, params: Params) -> onnx.ModelProto:
    """The graph as PyTorch's exporter writes it: batch of one, weights as initializers, a Flatten before the first Gemm."""
    layers = network(name)
    nodes: list[onnx.NodeProto] = []
    value = {"input": "input"}

    def node(path: str, op: str, inputs: list[str], **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"/{path}/{op}_output_0"], name=f"/{path}/{op}", **attrs))
        return nodes[-1].output[0]

    flat = False
    for n in layers:
        path, inputs = n.name.replace(".", "/"), [value[i] for i in n.inputs]
        own = [f"{n.name}.weight", f"{n.name}.bias"]
        if n.op == "dense" and not flat:
            inputs, flat = [node("flatten", "Flatten", inputs, axis=1)], True
        if n.op == "conv":
            k, s, p = n.weight[2:], [n.stride] * 2, [n.pad] * 4
            out = node(path, "Conv", inputs + own, dilations=[1, 1], group=1, kernel_shape=k, pads=p, strides=s)
        elif n.op == "dense":
            out = node(path, "Gemm", inputs + own, alpha=1.0, beta=1.0, transB=1)
        else:
            out = node(path, "Add", inputs)
        value[n.name] = node(path, "Relu", [out]) if n.relu else out
    nodes[-1].output[0] = "output"
    arrays = {f"{k}.{part}": p for k, pair in params.items() for part, p in zip(("weight", "bias"), pair, strict=True)}
    stored = [numpy_helper.from_array(p, k) for k, p in arrays.items()]
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, *NETS[name][0]])
    y = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, *layers[-1].shape])
    graph = helper.make_graph(nodes, f"{name}-{kind}".replace("-", "_"), [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="polytriton.bench")


def build(name: str, kind: Kind, seed: int = 0) -> onnx.ModelProto:
    """One network of the table with synthetic weights; the same for the same seed on one machine."""
    return to_onnx(name, kind, weights(name, kind, seed))


# ---- command --------------------------------------------------------------------------------------------


def main() -> int:
    p = parser("zoo", __doc__)
    p.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "polytriton-zoo", help="folder to write into (%(default)s)")
    p.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), metavar="NAME", help=", ".join(NETS))
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--stats", action="store_true", help="print the unstable neurons of every layer, on the written image")
    p.add_argument("--dry", action="store_true", help="write nothing")
    a = p.parse_args()
    if not a.dry:
        a.out.mkdir(parents=True, exist_ok=True)
    for name in a.nets:
        pixels = image(name, a.seed)
        if not a.dry:
            np.save(a.out / f"{name}.npy", pixels)
        for kind in a.kinds:
            start = time.perf_counter()
            params = weights(name, kind, a.seed)
            if not a.dry:
                onnx.save(to_onnx(name, kind, params), a.out / f"{name}-{kind}.onnx")
            seconds = time.perf_counter() - start
            layers, eps = network(name), EPS[name, kind]
            found = unstable(name, params, float(eps), pixels)
            total = neurons(layers)
            share = sum(found.values()) / total
            print(f"{name}-{kind}: {total:,} neurons, eps {eps}, {share:.2%} unstable, {seconds:.1f} s", file=sys.stderr, flush=True)
            if a.stats:
                for n in layers:
                    if n.relu:
                        print(f"  {n.name:<20}{n.size:>9,}{found[n.name]:>9.0f}{found[n.name] / n.size:>8.2%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
