"""Trains one network twice on scikit-learn's digits, as usual and by bounds, and asks the verifier what each is proved to withstand.

    python examples/certified_training.py [--epsilon 0.125] [--epochs 12]

The second training's loss adds the cross-entropy of the worst logits that `polytriton.torch.margins` leaves possible within epsilon. Those
bounds are float32 arithmetic to be differentiated, and decide nothing; the last lines are the verifier's, for every float32 execution.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import polytriton
import polytriton.torch

SHOWN = Path(__file__).with_name("digits.npz")  # 50 images that no training sees
BATCH, HELD_OUT = 64, 400


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))


def training_data() -> tuple[Tensor, Tensor]:
    """The digits but those that are held out, in examples/train.py's order."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))[HELD_OUT:]
    return torch.tensor(digits.images[order] / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target[order])


def worst_logits(net: nn.Module, x: Tensor, y: Tensor, epsilon: float, method: str) -> Tensor:
    """Logits with the label's at 0 and each rival's at the greatest lead over it that the bounds leave possible."""
    forms = F.one_hot(y, 10)[:, None] - torch.eye(10, dtype=torch.int64)  # row j is y_label - y_j
    lo, hi = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    return -polytriton.torch.margins(net, lo, hi, forms.float(), method=method)


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, epsilon: float, method: str = "crown-ibp") -> None:
    """The radius grows from 0 to epsilon in the first half; with epsilon = 0 it is usual training."""
    rng, optimiser = torch.Generator().manual_seed(1), torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(epochs):
        ramp = min(1.0, epoch / (epochs / 2))
        for pick in torch.randperm(len(x), generator=rng).split(BATCH):
            loss = F.cross_entropy(net(x[pick]), y[pick])
            if epsilon:
                loss = (loss + ramp * F.cross_entropy(worst_logits(net, x[pick], y[pick], ramp * epsilon, method), y[pick])) / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def proved_share(net: nn.Module, epsilon: float) -> tuple[float, float]:
    """Of the 50 images: the share that is classified rightly, and the share that keeps its label all over the ball, proved."""
    with np.load(SHOWN) as held:
        images, labels = held["images"], held["labels"]
    verifier = polytriton.compile(net, torch.zeros(1, 1, 8, 8))
    right = verifier.predict(images).argmax(1) == labels
    results: polytriton.ResultList = verifier.verify(images, epsilon=epsilon, label=labels, clip=(0, 1), falsifier=False)
    return float(right.mean()), float(np.mean([r.verdict == "unsat" for r in results]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=0.125)
    parser.add_argument("--epochs", type=int, default=12)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    usual = network()
    robust = copy.deepcopy(usual)
    x, y = training_data()
    for name, net, radius in (("usual", usual, 0.0), ("by bounds", robust, wanted.epsilon)):
        train(net, x, y, wanted.epochs, radius)
        accuracy, proved = proved_share(net, wanted.epsilon)
        print(f"trained {name}: accuracy {accuracy:.0%}, verified at epsilon {wanted.epsilon:g}: {proved:.0%}")


if __name__ == "__main__":
    main()
