"""Points of a box with few inputs: all over it, then closer and closer around the best."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import numpy as np

from polytriton.runtime.attack.box import Box


class Sampler:
    """Gradients of a network with few inputs often lead to one place; samples see every place that is not too small."""

    INPUTS: ClassVar = 16  # inputs up to which sampling pays
    CORNERS: ClassVar = 10  # inputs up to which all corners are tried
    VALUES: ClassVar = 1 << 24  # numbers of all samples together
    KEPT: ClassVar = 32  # best points that are looked around
    SPLITS: ClassVar = 5  # inputs that are halved: the best point of every part is looked around too
    TARGETS: ClassVar = 4  # pieces that are looked into closer
    RADII: ClassVar = tuple(0.25 * 0.5**k for k in range(8))  # relative to the box

    def __init__(self, box: Box, rng: np.random.Generator) -> None:
        self.lo, self.hi = (v.astype(np.float64) for v in box)
        self.rng = rng

    @staticmethod
    def pays(box: Box) -> bool:
        """Whether few inputs are free: a box that is wide in five of a thousand inputs is a small one."""
        free = int(np.count_nonzero(box[0] < box[1]))
        return 0 < free <= Sampler.INPUTS

    @staticmethod
    def corners(box: Box) -> np.ndarray:
        """All corners where they are few, else the two of least and of greatest inputs."""
        lo, hi = (v.astype(np.float64) for v in box)
        free = np.flatnonzero(lo < hi)
        if len(free) > Sampler.CORNERS:
            return np.stack([lo, hi])
        made = np.repeat(lo[None], 1 << len(free), axis=0)
        made[:, free] = np.where(np.array(list(product((False, True), repeat=len(free)))), hi[free], lo[free])
        return made

    def spread(self, samples: int) -> np.ndarray:
        samples = min(samples, self.VALUES // self.lo.size)
        return self.lo + (self.hi - self.lo) * self.rng.random((samples, self.lo.size))

    def best(self, points: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The points of least residual, of the box and of every part of it: a wide basin must not hide a narrow, deeper one."""
        order = np.argsort(residuals, kind="stable")
        free = np.flatnonzero(self.lo < self.hi)
        split = self.rng.permutation(free)[: self.SPLITS]
        part = (points[order][:, split] > (self.lo + self.hi)[split] / 2) @ (1 << np.arange(len(split)))
        first = np.union1d(order[: self.KEPT], order[np.unique(part, return_index=True)[1]])
        return points[first], residuals[first]

    def points_around(self, parents: np.ndarray, radius: float, count: int) -> np.ndarray:
        """About `count` points within so much of the box's width around the parents."""
        near = np.repeat(parents, max(1, count // len(parents)), axis=0)
        moved = near + radius * (self.hi - self.lo) * self.rng.uniform(-1, 1, near.shape)
        return np.clip(moved, self.lo, self.hi)
