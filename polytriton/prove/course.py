"""How a search goes: told while it runs, and kept as a few samples over time and counts by depth. It decides nothing."""

from __future__ import annotations

import math
import time

import numpy as np

from polytriton.results import Level, Sample
from polytriton.runtime.engine import Progress, _silent

MOST = 200  # samples kept: every second one goes when they are more
LEVELS = 400  # depths told; what lies deeper is told with the last


class Course:
    """Of the trees of `boxes` boxes, one after another. `parts`: what a tree's nodes are called."""

    def __init__(self, parts: str, progress: Progress = _silent, boxes: int = 1) -> None:
        self.parts, self.progress, self.boxes = parts, progress, boxes
        self.began = time.monotonic()
        self.samples: list[Sample] = []
        self.asked, self.every = 0, 1  # a sample is kept of so many
        self.last = Sample(0.0, 0, 0, 0, None, 0.0)
        self.before = self.last  # the boxes done: parts, those left, depth, worst bound, and the sum of the shares
        self.refuted: dict[int, int] = {}
        self.left: dict[int, int] = {}

    def close(self, depths: np.ndarray) -> None:
        """Parts of these depths are refuted."""
        _count(self.refuted, depths)

    def tell(self, domains: int, left: int, depth: int, worst: float, share: float) -> None:
        """What is known of this box's tree: parts bounded, parts left, most cuts of one, least bound of those, share refuted."""
        b = self.before
        bounds = [float(f"{v:.6g}") for v in (worst, b.worst) if v is not None and math.isfinite(v)]
        proved = math.floor(1e6 * min(1.0, max(0.0, (b.share + share) / self.boxes))) / 1e6  # never rounded up to all of it
        seconds = round(time.monotonic() - self.began, 4)
        self.last = Sample(seconds, b.domains + domains, b.open + left, max(b.depth, depth), min(bounds, default=None), proved)
        if self.asked % self.every == 0:
            self.samples.append(self.last)
            if len(self.samples) > MOST:
                self.samples, self.every = self.samples[::2], 2 * self.every
        self.asked += 1
        self.progress(self.line(), 0, 1)

    def finish(self, depths: np.ndarray) -> None:
        """A box is done, or given up with parts of these depths left: the next one's tree comes on top."""
        _count(self.left, depths)
        self.before = self.last._replace(share=self.last.share * self.boxes)

    def line(self) -> str:
        """For a terminal."""
        s = self.last
        worst = "" if s.worst is None else f"worst {s.worst:.4g}, "
        proved = f"{math.floor(1000 * s.share) / 10:.1f} % proved"
        return f"search: {s.domains:,} {self.parts}, {s.open:,} open, depth {s.depth}, {worst}{proved}"

    def pass_by(self) -> None:
        """A box needed no tree."""
        self.close(np.zeros(1, dtype=np.int64))
        self.tell(0, 0, 0, math.inf, 1.0)
        self.finish(np.zeros(0, dtype=np.int64))

    def both(self) -> tuple[tuple[Sample, ...], tuple[Level, ...]]:
        """What SearchStats keeps."""
        return self.history(), self.levels()

    def history(self) -> tuple[Sample, ...]:
        """Samples in their order, the last one among them."""
        if not self.samples or self.samples[-1] == self.last:
            return tuple(self.samples)
        return (*self.samples, self.last)

    def levels(self) -> tuple[Level, ...]:
        """By depth, parts refuted and parts left."""
        deepest = max([*self.refuted, *self.left], default=-1)
        return tuple(Level(self.refuted.get(d, 0), self.left.get(d, 0)) for d in range(deepest + 1))


def _count(counts: dict[int, int], depths: np.ndarray) -> None:
    found, times = np.unique(np.minimum(depths, LEVELS), return_counts=True)
    for d, n in zip(found.tolist(), times.tolist(), strict=True):
        counts[d] = counts.get(d, 0) + n
