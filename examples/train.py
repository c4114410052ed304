"""Trains the four example networks on scikit-learn's digits and writes them with their properties.

Run from anywhere: `python examples/train.py [FOLDER]`. One thread, fixed seeds: on one machine the same files come out every
time. `normal` networks see plain cross-entropy; `ibp` networks also see the worst logits that interval arithmetic allows
within EPSILON, which is what makes them provable.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

HELD_OUT, SHOWN, EPOCHS, BATCH, EPSILON = 400, 50, 60, 64, 0.1
# (network, epsilon, provable ones, ones with a counterexample)
SPECS = (
    ("digits_conv_normal", "0.01", 2, 0),
    ("digits_conv_normal", "0.05", 0, 1),
    ("digits_conv_ibp", "0.05", 2, 0),
    ("digits_conv_ibp", "0.1", 1, 1),
    ("digits_resnet_normal", "0.01", 2, 0),
    ("digits_resnet_normal", "0.05", 0, 1),
    ("digits_resnet_ibp", "0.05", 2, 0),
    ("digits_resnet_ibp", "0.1", 1, 1),
)
TIMEOUT = 20


# ---- networks: a list of layers, so that one walk gives values, another intervals, a third ONNX ------------


State = tuple[Tensor, Tensor | None, Tensor | None]  # values, and intervals where they are wanted


@dataclass
class Residual:
    """relu is not included: body(x) + shortcut(x)."""

    body: nn.Sequential
    shortcut: nn.Sequential


class Network(nn.Module):
    def __init__(self, *layers: nn.Module | Residual) -> None:
        super().__init__()
        self.layers = layers
        self.parts = nn.ModuleList(m for x in layers for m in ((x.body, x.shortcut) if isinstance(x, Residual) else (x,)))

    def forward(self, x: Tensor) -> Tensor:
        return self.bounds(x, None, None)[0]

    def bounds(self, x: Tensor, lo: Tensor | None, hi: Tensor | None) -> State:
        """Values, and beside them intervals where lo and hi are given."""
        state: State = (x, lo, hi)
        for layer in self.layers:
            if isinstance(layer, Residual):
                a, b = _through(layer.body, state), _through(layer.shortcut, state)
                state = _sum(a, b)
            else:
                state = _step(layer, state)
        return state


def _sum(a: State, b: State) -> State:
    (x, lo, hi), (y, lo2, hi2) = a, b
    return x + y, None if lo is None or lo2 is None else lo + lo2, None if hi is None or hi2 is None else hi + hi2


def _through(layers: nn.Sequential, state: State) -> State:
    for layer in layers:
        state = _step(layer, state)
    return state


def _step(layer: nn.Module, state: State) -> State:
    x, lo, hi = state
    if isinstance(layer, nn.BatchNorm2d) and layer.training:  # the intervals share the statistics of the values
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        with torch.no_grad():
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.lerp_(mean, 0.1)
            layer.running_var.lerp_(var, 0.1)
    elif isinstance(layer, nn.BatchNorm2d):
        mean, var = layer.running_mean, layer.running_var  # type: ignore[assignment]
    if isinstance(layer, nn.BatchNorm2d):
        a = layer.weight / torch.sqrt(var + layer.eps)
        scale, shift = a[:, None, None], (layer.bias - mean * a)[:, None, None]
        y = x * scale + shift
        if lo is None or hi is None:
            return y, None, None
        c, r = (lo + hi) / 2 * scale + shift, (hi - lo) / 2 * scale.abs()
        return y, c - r, c + r
    y = layer(x)
    if lo is None or hi is None:
        return y, None, None
    if isinstance(layer, nn.Linear):
        c, r = layer((lo + hi) / 2), F.linear((hi - lo) / 2, layer.weight.abs())
        return y, c - r, c + r
    if isinstance(layer, nn.Conv2d):
        c, r = layer((lo + hi) / 2), F.conv2d((hi - lo) / 2, layer.weight.abs(), None, layer.stride, layer.padding)
        return y, c - r, c + r
    return y, layer(lo), layer(hi)


def conv_net() -> Network:
    return Network(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def residual_net() -> Network:
    def conv(a: int, b: int, k: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(a, b, k, stride=stride, padding=k // 2, bias=False), nn.BatchNorm2d(b)]

    return Network(
        *conv(1, 12, 3),
        nn.ReLU(),
        Residual(nn.Sequential(*conv(12, 12, 3), nn.ReLU(), *conv(12, 12, 3)), nn.Sequential()),
        nn.ReLU(),
        Residual(nn.Sequential(*conv(12, 16, 3, 2), nn.ReLU(), *conv(16, 16, 3)), nn.Sequential(*conv(12, 16, 1, 2))),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


# ---- training ------------------------------------------------------------------------------------------------


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then held-out ones; pixels are sixteenths, exact in binary."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.from_numpy((digits.images[order] / 16).astype(np.float32)[:, None])
    y = torch.from_numpy(digits.target[order].astype(np.int64))
    return x[HELD_OUT:], y[HELD_OUT:], x[:HELD_OUT], y[:HELD_OUT]


def worst_logits(net: Network, x: Tensor, y: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The logits, and the worst ones the intervals allow: the label at its least, the rivals at their greatest."""
    out, lo, hi = net.bounds(x, (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1))
    assert lo is not None and hi is not None
    return out, torch.where(F.one_hot(y, 10).bool(), lo, hi)


def batches(n: int, rng: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(n, generator=rng).split(BATCH)


def train(net: Network, robust: bool, x: Tensor, y: Tensor) -> None:
    rng = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [EPOCHS * 7 // 10, EPOCHS * 9 // 10], 0.3)
    net.train()
    for epoch in range(EPOCHS):
        ramp = min(1.0, epoch / (EPOCHS * 0.5))
        for pick in batches(len(x), rng):
            if robust:
                out, worst = worst_logits(net, x[pick], y[pick], ramp * EPSILON)
                loss = (1 - ramp / 2) * F.cross_entropy(out, y[pick]) + ramp / 2 * F.cross_entropy(worst, y[pick])
            else:
                loss = F.cross_entropy(net(x[pick]), y[pick])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    net.eval()


# ---- ONNX ----------------------------------------------------------------------------------------------------


class Writer:
    """Walks the layers once and collects nodes and initialisers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def emit(self, op: str, inputs: list[str], tensors: dict[str, Tensor] | None = None, **attrs: Any) -> str:
        k = len(self.nodes)
        names = []
        for key, value in (tensors or {}).items():
            names.append(f"{op.lower()}{k}.{key}")
            self.weights.append(numpy_helper.from_array(value.detach().numpy().copy(), names[-1]))
        out = f"{op.lower()}{k}"
        self.nodes.append(helper.make_node(op, inputs + names, [out], name=out, **attrs))
        return out

    def layer(self, layer: nn.Module | Residual, x: str) -> str:
        if isinstance(layer, Residual):
            return self.emit("Add", [self.chain(layer.body, x), self.chain(layer.shortcut, x)])
        if isinstance(layer, nn.Conv2d):
            tensors = {"weight": layer.weight} | ({} if layer.bias is None else {"bias": layer.bias})
            pads = [int(p) for p in layer.padding] * 2
            return self.emit("Conv", [x], tensors, kernel_shape=list(layer.kernel_size), strides=list(layer.stride), pads=pads)
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            tensors = {"scale": layer.weight, "bias": layer.bias, "mean": layer.running_mean, "var": layer.running_var}
            return self.emit("BatchNormalization", [x], tensors, epsilon=layer.eps)
        if isinstance(layer, nn.Linear):
            return self.emit("Gemm", [x], {"weight": layer.weight, "bias": layer.bias}, transB=1)
        return self.emit("Relu" if isinstance(layer, nn.ReLU) else "Flatten", [x])

    def chain(self, layers: nn.Sequential | tuple[nn.Module | Residual, ...], x: str) -> str:
        for layer in layers:
            x = self.layer(layer, x)
        return x


def to_onnx(net: Network, name: str) -> onnx.ModelProto:
    writer = Writer()
    out = writer.chain(net.layers, "image")
    writer.nodes[-1].output[0] = "logits"
    assert out == writer.nodes[-1].name
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(writer.nodes, name, [image], [logits], writer.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], producer_name="polytriton-examples")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


# ---- properties ----------------------------------------------------------------------------------------------


def vnnlib(image: Tensor, label: int, epsilon: str, title: str) -> str:
    """VNN-LIB 1.0: the ball clipped to [0, 1], and any rival at least as large as the label. All decimals are exact."""
    e, lines = Decimal(epsilon), [f"; {title}"]
    lines += [f"(declare-const X_{i} Real)" for i in range(64)] + [f"(declare-const Y_{j} Real)" for j in range(10)]
    for i, pixel in enumerate(image.flatten().tolist()):
        lo, hi = max(Decimal(0), Decimal(pixel) - e), min(Decimal(1), Decimal(pixel) + e)
        lines += [f"(assert (>= X_{i} {lo}))", f"(assert (<= X_{i} {hi}))"]
    rivals = "".join(f"\n  (and (>= Y_{j} Y_{label}))" for j in range(10) if j != label)
    return "\n".join(lines) + f"\n(assert (or{rivals}\n))\n"


def attack(net: Network, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The least margin that projected gradient steps reach, an image each; negative means misclassified."""
    lo, hi = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    rival = ~F.one_hot(y, 10).bool()
    point, least = x.clone(), torch.full((len(x),), float("inf"))
    for k in range(40):
        point.requires_grad_(True)
        out = net(point)
        margin = out.gather(1, y[:, None])[:, 0] - out.masked_fill(~rival, float("-inf")).amax(1)
        (grad,) = torch.autograd.grad(margin.sum(), point)
        least = torch.minimum(least, margin.detach())
        point = (point.detach() - epsilon * 0.3 * (1 - k / 40) * grad.sign()).clamp(lo, hi)
    return least


def choose(net: Network, x: Tensor, y: Tensor, epsilon: str, provable: int, broken: int) -> list[int]:
    """Indices of shown images: those with the largest provable (else attacked) margin, then those clearly broken."""
    e = float(epsilon)
    out, worst = worst_logits(net, x, y, e)
    proved = worst.gather(1, y[:, None])[:, 0] - worst.masked_fill(F.one_hot(y, 10).bool(), float("-inf")).amax(1)
    least, right = attack(net, x, y, e), out.argmax(1) == y
    middling = proved.median() if (proved > 0).sum() > len(x) // 2 else proved.max()
    sound = proved > 0 if (proved > 0).any() else least > 0
    safe = [i for i in (proved - middling).abs().argsort().tolist() if right[i] and least[i] > 0 and sound[i]]
    unsafe = [i for i in least.argsort().tolist() if right[i] and least[i] < 0]
    if len(safe) < provable or len(unsafe) < broken:
        raise SystemExit(f"epsilon {epsilon}: {len(safe)} provable and {len(unsafe)} broken images are too few")
    return safe[:provable] + unsafe[:broken]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (folder / "specs").mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    x, y, held_x, held_y = data()
    nets: dict[str, Network] = {}
    for kind, make in (("conv", conv_net), ("resnet", residual_net)):
        torch.manual_seed(0)
        fresh = make()
        for mode in ("normal", "ibp"):
            begin, name, net = time.monotonic(), f"digits_{kind}_{mode}", copy.deepcopy(fresh)
            train(net, mode == "ibp", x, y)
            with torch.no_grad():
                accuracy = (net(held_x).argmax(1) == held_y).float().mean().item()
            nets[name] = net
            (folder / f"{name}.onnx").write_bytes(to_onnx(net, name).SerializeToString(deterministic=True))
            print(f"{name:22} accuracy {accuracy:.2%} on {HELD_OUT} held-out images, {time.monotonic() - begin:.0f} s")
    shown_x, shown_y = held_x[:SHOWN], held_y[:SHOWN]
    np.savez_compressed(folder / "digits.npz", images=shown_x.numpy(), labels=shown_y.numpy())
    for stale in (folder / "specs").glob("digits_*.vnnlib"):
        stale.unlink()
    rows = []
    for name, epsilon, provable, broken in SPECS:
        for i in choose(nets[name], shown_x, shown_y, epsilon, provable, broken):
            spec = f"specs/{name}_{i}_{epsilon}.vnnlib"
            title = f"{name}: digits image {i}, label {int(shown_y[i])}, L-infinity ball of {epsilon}"
            (folder / spec).write_text(vnnlib(shown_x[i], int(shown_y[i]), epsilon, title))
            rows.append(f"{name}.onnx,{spec},{TIMEOUT}\n")
    (folder / "instances.csv").write_text("".join(rows))


if __name__ == "__main__":
    main()
