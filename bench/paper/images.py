"""Images to train and to verify on: MNIST and CIFAR-10 from a user's own files, else data that travels with the project.

Levels are 0 to 255, as in the files; a network sees level / 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from polytriton.errors import UsageError
from polytriton.frontend.datasets import read_dataset

HELD_OUT = 400
DRAWN = 4000  # images of the drawn set that are trained on


@dataclass(frozen=True)
class Images:
    """Levels [N, channels, height, width], the verifier's own apart; `name` says what they are."""

    name: str
    train: np.ndarray
    train_labels: np.ndarray
    held: np.ndarray
    held_labels: np.ndarray


def images_for(dataset: str, folder: Path | None) -> Images:
    """Of "mnist" or "cifar": those of the folder, or what stands in for them."""
    if folder is not None:
        return _published(dataset, folder)
    return enlarged_digits() if dataset == "mnist" else drawn_shapes()


def _published(dataset: str, folder: Path) -> Images:
    """The published files: idx files of MNIST, batches of CIFAR-10, training and test ones beside each other."""
    patterns = ("train-images*", "t10k-images*") if dataset == "mnist" else ("data_batch_*", "test_batch*")
    sides = []
    for pattern in patterns:
        pairs = [p for p in map(read_dataset, sorted(folder.rglob(pattern))) if p is not None]
        if not pairs or any(labels is None for _, labels in pairs):
            raise UsageError(f"{folder} holds no {pattern} with labels", "name the folder of the published files, packed or not")
        levels = np.concatenate([x if x.ndim == 4 else x[:, None] for x, _ in pairs])
        sides.append((levels.astype(np.uint8), np.concatenate([np.asarray(y) for _, y in pairs])))
    return Images("MNIST" if dataset == "mnist" else "CIFAR-10", *sides[0], *sides[1])


@cache
def enlarged_digits() -> Images:
    """scikit-learn's handwritten digits, 8 x 8, enlarged to 24 x 24 in a frame of 28 x 28."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    small = torch.from_numpy((digits.images[order] / 16).astype(np.float32)[:, None])
    large = F.pad(F.interpolate(small, (24, 24), mode="bilinear", align_corners=False), (2, 2, 2, 2))
    levels, labels = (large * 255).round().numpy().astype(np.uint8), digits.target[order].astype(np.int64)
    return Images("digits, enlarged", levels[HELD_OUT:], labels[HELD_OUT:], levels[:HELD_OUT], labels[:HELD_OUT])


def drawn_shapes(seed: int = 0, train: int = DRAWN) -> Images:
    """Ten shapes in two colours each, anywhere in 32 x 32 pixels, at any size, under noise."""
    rng = np.random.default_rng(seed)
    count = train + HELD_OUT
    labels = np.arange(count) % 10
    rng.shuffle(labels)
    levels = np.stack([_shape(rng, int(label)) for label in labels])
    return Images("drawn shapes", levels[HELD_OUT:], labels[HELD_OUT:], levels[:HELD_OUT], labels[:HELD_OUT])


def _shape(rng: np.random.Generator, label: int) -> np.ndarray:
    y, x = np.mgrid[0:32, 0:32] - 15.5
    y, x = y - rng.uniform(-5, 5), x - rng.uniform(-5, 5)
    r, turn = rng.uniform(7, 11), rng.uniform(0, 2 * np.pi)
    far, phase = np.hypot(x, y), rng.uniform(0, 2 * np.pi)
    inside = {
        0: far < r,
        1: np.maximum(np.abs(x), np.abs(y)) < 0.85 * r,
        2: (y > -0.6 * r) & (np.abs(x) < (r - y) * 0.6) & (y < r),
        3: (far < r) & (far > 0.6 * r),
        4: (np.minimum(np.abs(x), np.abs(y)) < 0.25 * r) & (far < 1.2 * r),
        5: np.sin(x * np.pi / 3 + phase) > 0,
        6: np.sin(y * np.pi / 3 + phase) > 0,
        7: np.sin((x + y) * np.pi / 4 + phase) > 0,
        8: (np.sin(x * np.pi / 4 + phase) > 0) ^ (np.sin(y * np.pi / 4 + phase) > 0),
        9: x * np.cos(turn) + y * np.sin(turn) > 0,
    }[label]
    front, back = rng.uniform(0, 1, 3), rng.uniform(0, 1, 3)
    while np.abs(front - back).mean() < 0.35:
        front, back = rng.uniform(0, 1, 3), rng.uniform(0, 1, 3)
    picture = np.where(inside, front[:, None, None], back[:, None, None]) + rng.normal(0, 0.03, (3, 32, 32))
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)
