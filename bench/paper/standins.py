"""Trained stand-ins for the paper's networks: its shapes, its ways of training, a committed recipe with fixed seeds.

    python -m bench.paper.standins [--nets ROW ...] [--mnist FOLDER] [--cifar FOLDER] [--epochs N] [--out FOLDER]

writes ROW.onnx and ROW.json, which holds the clean accuracy on held-out images, what it was trained on and how, the seconds it took and the
file's SHA-256. `normal` networks see plain cross-entropy, `pgd` ones images that projected gradient steps moved within the radius, `robust`
ones the worst logits that intervals allow there. The radius grows from nothing to the paper's until four fifths of the training are over,
with the sixth power of the time for intervals, whose growth through He weights would else end all learning; robust weights start at half.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench import zoo
from bench.core.command import parser
from bench.core.table import say
from bench.paper.images import Images, images_for
from bench.paper.rows import EVERY, PaperRow

RECIPE = 1  # of all that follows: another one makes other networks
BATCH, RATE = 64, 1e-3
EPOCHS = {"normal": 12, "pgd": 12, "robust": 40}
STEPS = 5  # of an attack on a batch
GROWN, POWER = 0.8, 6  # when the radius is whole, as a share of the training; how slowly it starts under intervals


class StandIn:
    """One network under training: He weights times a factor, in the layers of the zoo."""

    def __init__(self, name: str, seed: int, factor: float) -> None:
        rng = np.random.default_rng(seed)
        self.layers = zoo.network(name)
        drawn = {n.name: (np.float32(factor) * zoo.he(n, rng), np.zeros(n.weight[0], np.float32)) for n in self.layers if n.weight}
        self.params = {k: tuple(torch.from_numpy(p).requires_grad_() for p in pair) for k, pair in drawn.items()}

    def parameters(self) -> list[Tensor]:
        return [p for pair in self.params.values() for p in pair]

    def values(self, x: Tensor) -> Tensor:
        held = {"input": x}
        for n in self.layers:
            operands = [held[i] for i in n.inputs]
            y = operands[0] + operands[1] if n.op == "add" else self._affine(n, operands[0])
            held[n.name] = y.relu() if n.relu else y
        return held[self.layers[-1].name]

    def intervals(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs' interval, to nearest: a loss, not a bound."""
        held = {"input": ((lo + hi) / 2, (hi - lo) / 2)}
        for n in self.layers:
            operands = [held[i] for i in n.inputs]
            if n.op == "add":
                centre, radius = operands[0][0] + operands[1][0], operands[0][1] + operands[1][1]
            else:
                weight = self.params[n.name][0]
                centre, radius = self._affine(n, operands[0][0]), zoo.linear(n, operands[0][1], weight.abs())
            if n.relu:
                low, high = (centre - radius).relu(), (centre + radius).relu()
                centre, radius = (low + high) / 2, (high - low) / 2
            held[n.name] = centre, radius
        centre, radius = held[self.layers[-1].name]
        return centre - radius, centre + radius

    def _affine(self, n: zoo.ZooLayer, x: Tensor) -> Tensor:
        weight, bias = self.params[n.name]
        return zoo.linear(n, x, weight) + zoo.along(bias, n)

    def numbers(self) -> zoo.Params:
        return {k: (w.detach().numpy(), b.detach().numpy()) for k, (w, b) in self.params.items()}


def scaled(levels: np.ndarray) -> Tensor:
    return torch.from_numpy(levels.astype(np.float32) / np.float32(255))


def attacked(net: StandIn, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """Where projected gradient steps raise the loss."""
    lo, hi = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    point = lo + (hi - lo) * torch.rand_like(x)
    for _ in range(STEPS):
        point.requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(net.values(point), y), point)
        point = (point.detach() + 2.5 * epsilon / STEPS * slope.sign()).clamp(lo, hi)
    return point


def loss_of(net: StandIn, row: PaperRow, x: Tensor, y: Tensor, ramp: float) -> Tensor:
    epsilon = (ramp**POWER if row.training == "robust" else ramp) * float(row.epsilon)
    if row.training == "normal" or ramp == 0:
        return F.cross_entropy(net.values(x), y)
    if row.training == "pgd":
        return F.cross_entropy(net.values(attacked(net, x, y, epsilon)), y)
    lo, hi = net.intervals((x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1))
    worst = torch.where(F.one_hot(y, 10).bool(), lo, hi)
    return (1 - ramp / 2) * F.cross_entropy(net.values(x), y) + ramp / 2 * F.cross_entropy(worst, y)


def batches(images: Images, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, each moved by up to two pixels."""
    levels, labels = images.train, images.train_labels
    for pick in torch.randperm(len(levels), generator=rng).split(BATCH):
        dx, dy = (int(v) for v in torch.randint(-2, 3, (2,), generator=rng))
        yield scaled(np.roll(levels[pick.numpy()], (dy, dx), (2, 3))), torch.from_numpy(labels[pick.numpy()])


def train(row: PaperRow, images: Images, epochs: int, seed: int = 0) -> StandIn:
    torch.manual_seed(seed)
    net, rng = StandIn(row.zoo, seed, 0.5 if row.training == "robust" else 1.0), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=1e-4 if row.training != "robust" else 0.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs * 7 // 10 + 1, epochs * 9 // 10 + 1], 0.3)
    begin, step, total = time.monotonic(), 0, epochs * -(-len(images.train) // BATCH)
    for epoch in range(epochs):
        for x, y in batches(images, rng):
            step += 1
            ramp = 0.0 if row.training == "normal" else min(1.0, step / (GROWN * total))
            loss = loss_of(net, row, x, y, ramp)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 8.0)
            optimiser.step()
        schedule.step()
        left = (time.monotonic() - begin) / (epoch + 1) * (epochs - epoch - 1)
        print(f"\r{row.key}: epoch {epoch + 1}/{epochs}, loss {loss.item():.3f}, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return net


@torch.inference_mode()
def accuracy(net: StandIn, levels: np.ndarray, labels: np.ndarray) -> float:
    found = [net.values(scaled(part)).argmax(1).numpy() for part in np.array_split(levels, -(-len(levels) // 200))]
    return float((np.concatenate(found) == labels).mean())


def make(row: PaperRow, images: Images, out: Path, epochs: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Trains and writes one network, or reads what is there and was made alike."""
    epochs = epochs or EPOCHS[row.training]
    wanted = {
        "row": row.key, "shape": row.zoo, "training": row.training, "radius": str(row.epsilon), "data": images.name,
        "epochs": epochs, "seed": seed, "recipe": RECIPE,
    }  # fmt: skip
    model, about = out / f"{row.key}.onnx", out / f"{row.key}.json"
    if model.exists() and about.exists():
        held: dict[str, Any] = json.loads(about.read_text())
        if {k: held.get(k) for k in wanted} == wanted and held["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest():
            return held
    begin = time.monotonic()
    net = train(row, images, epochs, seed)
    data = zoo.to_onnx(row.zoo, "robust" if row.training == "robust" else "normal", net.numbers()).SerializeToString(deterministic=True)
    held = {
        **wanted, "accuracy": accuracy(net, images.held, images.held_labels), "seconds": round(time.monotonic() - begin, 1),
        "neurons": zoo.neurons(net.layers), "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    model.write_bytes(data)
    about.write_text(json.dumps(held, indent=1) + "\n")
    return held


def main() -> int:
    p = parser("paper.standins", __doc__)
    p.add_argument("--nets", nargs="+", choices=EVERY, default=["mnist-6x500", "cifar-6x500"], metavar="ROW", help=", ".join(EVERY))
    add_data(p)
    p.add_argument("--epochs", type=int, help=f"passes over the images ({', '.join(f'{k} {v}' for k, v in EPOCHS.items())})")
    p.add_argument("--out", type=Path, default=Path("build/standins"), help="folder to write into (%(default)s)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1, help="CPU threads: the same number makes the same file (%(default)s)")
    a = p.parse_args()
    torch.set_num_threads(max(1, a.threads))
    for key in a.nets:
        row = EVERY[key]
        held = make(row, images_for(row.dataset, a.mnist if row.dataset == "mnist" else a.cifar), a.out, a.epochs, a.seed)
        say(f"{key}: {100 * held['accuracy']:.1f} % of held-out {held['data']}, {held['neurons']:,} neurons, {held['seconds']:.0f} s")
    return 0


def add_data(p: argparse.ArgumentParser) -> None:
    p.add_argument("--mnist", type=Path, metavar="FOLDER", help="MNIST's idx files; without it scikit-learn's digits, enlarged")
    p.add_argument("--cifar", type=Path, metavar="FOLDER", help="CIFAR-10's batches; without it ten drawn shapes")


if __name__ == "__main__":
    raise SystemExit(main())
