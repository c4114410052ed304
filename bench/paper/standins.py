"""Trained stand-ins for the paper's networks: its shapes, its ways of training, a committed recipe with fixed seeds.

    python -m bench.paper.standins [--nets ROW ...] [--mnist FOLDER] [--cifar FOLDER] [--seen IMAGES] [--out FOLDER]

writes ROW.onnx and ROW.json, which holds the clean accuracy on held-out images, what it was trained on and how, the seconds it took and the
file's SHA-256: the same on the same machine with the same versions, others round otherwise. `normal` networks see plain cross-entropy,
`pgd` ones images that projected gradient steps moved within the radius, `robust` ones half the worst logits that intervals allow there. The
radius grows from nothing to the paper's between a tenth and seven tenths of the training.

Through random weights an interval grows tenfold a layer, and nothing is learnt behind it. So neurons of robust networks begin as one of
their inputs each, or as its complement to 1, through which a box passes as it is; and no step moves the sum of a neuron's weights by more
than a share: Adam with a rate over the number of inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import zlib
from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench import zoo
from bench.core.command import parser
from bench.core.table import say
from bench.nets.layers import ZooLayer
from bench.nets.settle import Params, broadcast, he, linear
from bench.paper.images import Images, images_for
from bench.paper.rows import EVERY, PaperRow

RECIPE = 2  # of all that follows: another one makes other networks
BATCH = 16
RATE, SHARE = 1e-3, 0.3  # of Adam; in robust networks what a step may add to the magnitudes of a neuron's weights
WORK = 6e10  # multiplications of as many images as are seen in training, each pass counted, within these bounds
LEAST, MOST = {"normal": 2_000, "pgd": 1_000, "robust": 2_000}, 8_000
DIGITS = (3_000, 16_000)  # for robust networks on digits, which radii of the paper's leave hardly apart
STEPS = 5  # of an attack on a batch
WARM, GROWN = 0.1, 0.7  # when the radius begins to grow, and when it is whole, as shares of the training
SLOWER = ((0.7, 0.3), (0.85, 0.1))  # from when on the rate is so much of itself


def one_input_each(layer: ZooLayer, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Every neuron is one of its inputs x or 1 - x: of dense layers another one each, of convolutions any place of the kernel."""
    out, channels, *kernel = layer.weight
    weight = np.zeros((out, channels, prod(kernel)), np.float32)
    chosen = np.concatenate([rng.permutation(channels) for _ in range(-(-out // channels))])[:out]
    sign = rng.choice(np.array([1, -1], np.float32), out)
    weight[np.arange(out), chosen, rng.integers(prod(kernel), size=out)] = sign
    return weight.reshape(layer.weight), (sign < 0).astype(np.float32)


class StandIn:
    """One network under training, in the layers of the zoo: He weights, or those of `one_input_each` with nothing in a residual sum's own
    branch and in the last layer."""

    def __init__(self, row: PaperRow, seed: int) -> None:
        rng = np.random.default_rng([seed, zlib.crc32(row.key.encode())])
        self.layers, self.robust = zoo.network(row.zoo), row.training == "robust"
        begun = one_input_each if self.robust else lambda n, rng: (he(n, rng), np.zeros(n.weight[0], np.float32))
        drawn = {n.name: begun(n, rng) for n in self.layers if n.weight}
        if self.robust:
            for name in (self.layers[-1].name, *(n.inputs[0] for n in self.layers if n.op == "add")):
                drawn[name] = tuple(0 * p for p in drawn[name])  # type: ignore[assignment]
        self.params = {k: tuple(torch.from_numpy(p).requires_grad_() for p in pair) for k, pair in drawn.items()}

    def optimiser(self) -> torch.optim.Adam:
        """Its groups keep their rate at the start as `base`."""
        if not self.robust:
            return torch.optim.Adam([{"params": self.parameters(), "base": RATE}], lr=RATE, weight_decay=1e-4)
        rates = {n.name: SHARE / prod(n.weight[1:]) for n in self.layers if n.weight}
        groups = [{"params": [p], "base": base} for k, (w, b) in self.params.items() for p, base in ((w, rates[k]), (b, SHARE / 10))]
        return torch.optim.Adam(groups, lr=RATE)

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
                centre, radius = self._affine(n, operands[0][0]), linear(n, operands[0][1], weight.abs())
            if n.relu:
                low, high = (centre - radius).relu(), (centre + radius).relu()
                centre, radius = (low + high) / 2, (high - low) / 2
            held[n.name] = centre, radius
        centre, radius = held[self.layers[-1].name]
        return centre - radius, centre + radius

    def _affine(self, n: ZooLayer, x: Tensor) -> Tensor:
        weight, bias = self.params[n.name]
        return linear(n, x, weight) + broadcast(bias, n)

    def numbers(self) -> Params:
        return {k: (w.detach().numpy(), b.detach().numpy()) for k, (w, b) in self.params.items()}


def scale(levels: np.ndarray) -> Tensor:
    return torch.from_numpy(levels.astype(np.float32) / np.float32(255))


def attack(net: StandIn, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """Where projected gradient steps raise the loss."""
    lo, hi = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    point = lo + (hi - lo) * torch.rand_like(x)
    for _ in range(STEPS):
        point.requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(net.values(point), y), point)
        point = (point.detach() + 2.5 * epsilon / STEPS * slope.sign()).clamp(lo, hi)
    return point


def loss_of(net: StandIn, row: PaperRow, x: Tensor, y: Tensor, ramp: float) -> Tensor:
    epsilon = ramp * float(row.epsilon)
    if row.training == "normal" or ramp == 0:
        return F.cross_entropy(net.values(x), y)
    if row.training == "pgd":
        return F.cross_entropy(net.values(attack(net, x, y, epsilon)), y)
    lo, hi = net.intervals((x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1))
    worst = torch.where(F.one_hot(y, 10).bool(), lo, hi)
    return (F.cross_entropy(net.values(x), y) + F.cross_entropy(worst, y)) / 2


def batches(images: Images, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, each moved by up to two pixels."""
    levels, labels = images.train, images.train_labels
    for pick in torch.randperm(len(levels), generator=rng).split(BATCH):
        dx, dy = (int(v) for v in torch.randint(-2, 3, (2,), generator=rng))
        yield scale(np.roll(levels[pick.numpy()], (dy, dx), (2, 3))), torch.from_numpy(labels[pick.numpy()])


def images_seen(row: PaperRow) -> int:
    """In training, where nobody says how many."""
    work = sum(n.size * prod(n.weight[1:]) for n in zoo.network(row.zoo) if n.weight)
    least, most = DIGITS if (row.dataset, row.training) == ("mnist", "robust") else (LEAST[row.training], MOST)
    return min(most, max(least, int(WORK / work)))


def train(row: PaperRow, images: Images, seen: int, seed: int = 0) -> StandIn:
    torch.manual_seed(seed)
    net, rng = StandIn(row, seed), torch.Generator().manual_seed(seed)
    optimiser = net.optimiser()
    begin, step, total = time.monotonic(), 0, -(-seen // BATCH)
    while step < total:
        for x, y in islice(batches(images, rng), total - step):
            done = step / total
            rate = min(1.0, (step + 1) / 20) * next((f for since, f in reversed(SLOWER) if done >= since), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = group["base"] * rate
            ramp = min(1.0, max(0.0, (done - WARM) / (GROWN - WARM)))
            loss = loss_of(net, row, x, y, ramp)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 8.0)
            optimiser.step()
            step += 1
            if step % 10 == 0 or step == total:
                left = (time.monotonic() - begin) / step * (total - step)
                said = f"{step * BATCH:,} of {total * BATCH:,} images, loss {loss.item():.3f}, {left:.0f} s left"
                print(f"\r{row.key}: {said} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return net


@torch.inference_mode()
def accuracy(net: StandIn, levels: np.ndarray, labels: np.ndarray) -> float:
    found = [net.values(scale(part)).argmax(1).numpy() for part in np.array_split(levels, -(-len(levels) // 200))]
    return float((np.concatenate(found) == labels).mean())


def make(row: PaperRow, images: Images, out: Path, seen: int | None = None, seed: int = 0, most: int | None = None) -> dict[str, Any]:
    """Trains and writes one network, or reads what is there and was made alike.

    Where `seen` is None that is one of however many images, and else one of the usual number, `most` at most.
    """
    wanted: dict[str, Any] = {
        "row": row.key, "shape": row.zoo, "training": row.training, "radius": str(row.epsilon), "data": images.name,
        "seed": seed, "recipe": RECIPE,
    } | ({"seen": seen} if seen else {})  # fmt: skip
    model, about = out / f"{row.key}.onnx", out / f"{row.key}.json"
    if model.exists() and about.exists():
        held: dict[str, Any] = json.loads(about.read_text())
        if {k: held.get(k) for k in wanted} == wanted and held["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest():
            return held
    begin, spent = time.monotonic(), time.process_time()
    usual = images_seen(row)
    seen = seen or min(usual, most or usual)
    net = train(row, images, seen, seed)
    data = zoo.to_onnx(row.zoo, "robust" if row.training == "robust" else "normal", net.numbers()).SerializeToString(deterministic=True)
    held = {
        **wanted, "seen": seen, "accuracy": accuracy(net, images.held, images.held_labels), "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - spent, 1),
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
    p.add_argument("--seen", type=int, metavar="IMAGES", help="in training, each pass counted (by default fewer of large networks)")
    p.add_argument("--out", type=Path, default=Path("build/standins"), help="folder to write into (%(default)s)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1, help="CPU threads: the same number makes the same file (%(default)s)")
    a = p.parse_args()
    torch.set_num_threads(max(1, a.threads))
    for key in a.nets:
        row = EVERY[key]
        held = make(row, images_for(row.dataset, a.mnist if row.dataset == "mnist" else a.cifar), a.out, a.seen, a.seed)
        say(f"{key}: {100 * held['accuracy']:.1f} % of held-out {held['data']}, {held['neurons']:,} neurons, {held['seconds']:.0f} s")
    return 0


def add_data(p: argparse.ArgumentParser) -> None:
    p.add_argument("--mnist", type=Path, metavar="FOLDER", help="MNIST's idx files; without it scikit-learn's digits, enlarged")
    p.add_argument("--cifar", type=Path, metavar="FOLDER", help="CIFAR-10's batches; without it ten drawn shapes")


if __name__ == "__main__":
    raise SystemExit(main())
