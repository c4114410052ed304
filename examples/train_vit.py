"""Trains a two-head vision transformer on scikit-learn's digits, writes it as ONNX, and says how many images are proved at small radii.

    python examples/train_vit.py [FOLDER] [--epochs 60]

An image is four patches of 4x4 pixels. Each becomes a token of 16 numbers; one block of attention with two heads and one dense layer with
ReLU, both with shortcuts, follow, then the mean of the tokens and the logits. There is no layer norm. Softmax and the products of attention
are bounded by planes, so boxes must be small: two radii are asked about.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import polytriton

HERE = Path(__file__).parent
NAME, HELD_OUT, BATCH = "digits_vit.onnx", 400, 64
RADII = ("0.01", "0.02")


class Transformer(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.places = nn.Parameter(0.1 * torch.randn(4, width))
        self.asked, self.told, self.given, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow, self.last = nn.Linear(width, 32), nn.Linear(32, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places  # [batch, 4, width]
        tokens = tokens + self.joined(self.attention(tokens))
        tokens = tokens + self.narrow(F.relu(self.wide(tokens)))
        return self.last(tokens.mean(1))

    def attention(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        asked, told, given = (
            layer(tokens).reshape(batch, count, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.asked, self.told, self.given)
        )
        shares = torch.softmax(asked @ told.transpose(2, 3) / (width // self.heads) ** 0.5, -1)
        return (shares @ given).transpose(1, 2).reshape(batch, count, width)


def train(net: nn.Module, epochs: int) -> None:
    """On the digits but those that are held out, in examples/train.py's order."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))[HELD_OUT:]
    x, y = torch.tensor(digits.images[order] / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target[order])
    rng, optimiser = torch.Generator().manual_seed(1), torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    for _ in range(epochs):
        for pick in torch.randperm(len(x), generator=rng).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(net(x[pick]), y[pick]).backward()
            optimiser.step()


def proved_shares(net: polytriton.Verifier, count: int = 50) -> tuple[float, dict[str, float]]:
    """Of images that no training saw: the share classified rightly, and at each radius the share that is proved."""
    with np.load(HERE / "digits.npz") as held:
        images, labels = held["images"][:count], held["labels"][:count]
    shares = {}
    for radius in RADII:
        results: polytriton.ResultList = net.verify(images, epsilon=radius, label=labels, clip=(0, 1), falsifier=False)
        shares[radius] = float(np.mean([r.verdict == "unsat" for r in results]))
    return float((net.predict(images).argmax(1) == labels).mean()), shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "vit")
    parser.add_argument("--epochs", type=int, default=60)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = Transformer()
    train(module, wanted.epochs)
    made = polytriton.compile(module, torch.zeros(1, 1, 8, 8))
    assert made.imported is not None
    path = wanted.folder / NAME
    path.write_bytes(made.imported.model)
    accuracy, shares = proved_shares(polytriton.compile(path))
    told = ", ".join(f"{share:.0%} proved at {radius}" for radius, share in shares.items())
    print(f"{path.name}: {path.stat().st_size} bytes, accuracy {accuracy:.0%}, {told}")


if __name__ == "__main__":
    main()
