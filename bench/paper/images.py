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
        return _read_published(dataset, folder)
    return enlarged_digits() if dataset == "mnist" else drawn_shapes()


def _read_published(dataset: str, folder: Path) -> Images:
    """The published files: idx files of MNIST, batches of CIFAR-10, training and test ones beside each other."""
    patterns = ("train-images*", "t10k-images*") if dataset == "mnist" else ("data_batch_*", "test_batch*")
    sides = []
    for pattern in patterns:
        pairs = [p for p in map(read_dataset, _files(folder, pattern)) if p is not None]
        if not pairs or any(labels is None for _, labels in pairs):
            raise UsageError(f"{folder} holds no {pattern} with labels", "name the folder of the published files, packed or not")
        levels = np.concatenate([x if x.ndim == 4 else x[:, None] for x, _ in pairs])
        sides.append((levels.astype(np.uint8), np.concatenate([np.asarray(y) for _, y in pairs])))
    return Images("MNIST" if dataset == "mnist" else "CIFAR-10", *sides[0], *sides[1])


def _files(folder: Path, pattern: str) -> list[Path]:
    """Each once, where torchvision keeps the packed file beside what was in it; of one set, where the folder holds several."""
    found = sorted(p for p in folder.rglob(pattern) if p.is_file() and not (p.suffix == ".gz" and p.with_suffix("").exists()))
    if len(places := list(dict.fromkeys(p.parent for p in found))) > 1:
        raise UsageError(f"{folder} holds {pattern} in {', '.join(map(str, places))}", "name the folder of one set")
    return found


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
    """Ten bright shapes on dark ground, each of a colour of its own, near the middle of 32 x 32 pixels, under noise.

    Bright and dark keep their sides, and shapes nearly their places: where they were swapped and moved freely, dense networks learnt a
    quarter of them and intervals nothing, since what tells such classes apart is linear nowhere.
    """
    rng = np.random.default_rng(seed)
    count = train + HELD_OUT
    labels = np.arange(count) % 10
    rng.shuffle(labels)
    levels = np.stack([_shape(rng, int(label)) for label in labels])
    return Images("ten drawn shapes", levels[HELD_OUT:], labels[HELD_OUT:], levels[:HELD_OUT], labels[:HELD_OUT])


def _shape(rng: np.random.Generator, label: int) -> np.ndarray:
    y, x = np.mgrid[0:32, 0:32] - 15.5
    y, x, r = y - rng.uniform(-2, 2), x - rng.uniform(-2, 2), rng.uniform(8, 12)
    far, wide = np.hypot(x, y), np.maximum(np.abs(x), np.abs(y))
    inside = {
        0: far < r,
        1: (far < r) & (far > 0.6 * r),
        2: (wide < 0.9 * r) & (wide > 0.55 * r),
        3: (y > -0.8 * r) & (np.abs(x) < (r + y) * 0.6) & (y < 0.8 * r),
        4: (np.minimum(np.abs(x), np.abs(y)) < 0.25 * r) & (wide < r),
        5: (np.minimum(np.abs(x + y), np.abs(x - y)) < 0.35 * r) & (wide < r),
        6: (np.abs(y) < 0.35 * r) & (np.abs(x) < 1.2 * r),
        7: (np.abs(x) < 0.35 * r) & (np.abs(y) < 1.2 * r),
        8: (x * y > 0) & (wide < r),
        9: (x * y < 0) & (wide < r),
    }[label]
    front, back = rng.uniform(0.5, 1, 3), rng.uniform(0, 0.4, 3)
    picture = np.where(inside, front[:, None, None], back[:, None, None]) + rng.normal(0, 0.05, (3, 32, 32))
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)
