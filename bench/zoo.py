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
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from bench.core.command import parser
from bench.nets.layers import Shape, Stack, ZooLayer
from bench.nets.settle import Params, Settle, ball, he, intervals

Kind = Literal["normal", "robust"]

KINDS: tuple[Kind, ...] = get_args(Kind)
OPSET, IR_VERSION = 13, 8
ALLOWED = (0.005, 0.03)  # unstable neurons of a robust network
CALIBRATION = 8  # images a robust network is settled on, the published one among them


# ---- shapes ---------------------------------------------------------------------------------------------


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


# ---- weights --------------------------------------------------------------------------------------------


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
