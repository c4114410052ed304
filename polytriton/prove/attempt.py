"""One try at open questions, in the paper's order: query on interval bounds, refine, query again. A batch of boxes at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.prove.methods import INTERVALS, output_forms
from polytriton.prove.options import OWN
from polytriton.prove.questions import Questions
from polytriton.prove.trail import Trail
from polytriton.results import LayerStats
from polytriton.runtime.engine import Engine, Progress
from polytriton.runtime.forward import Boxes
from polytriton.runtime.lines import input_lines
from polytriton.runtime.trace import Trace

if TYPE_CHECKING:
    from polytriton.prove.decider import Decider

SLOPES = 64  # open forms a batch of boxes whose slopes are worth another walk


@dataclass
class Answers:
    """Per form the best lower bound and the same without rounding terms; per group whether it is settled."""

    best: np.ndarray
    raw: np.ndarray
    settled: np.ndarray
    expired: bool = False
    statistics: tuple[LayerStats, ...] = ()
    slopes: dict[int, np.ndarray] | None = None  # wanted: over the user's inputs, of some open forms' linear lower bounds, float32
    trail: Trail | None = None  # wanted: what a certificate needs to know

    def settle(self, q: Questions, forms: np.ndarray, chosen: bool = False) -> None:
        """These forms are above zero over their whole boxes, by lines chosen for them, or the usual ones."""
        if self.trail is not None:
            self.trail.bound(q.group[forms], forms, chosen)
        self.settled[q.group[forms]] = True

    def tell(self, trace: Trace | None) -> None:
        """Statistics are those of the try that decided, else of the first that refined bounds."""
        if trace is None:
            return
        first = not any(s.stage == "bound" for s in self.statistics)
        if not self.statistics or (trace.refined and (first or self.settled.all())):
            self.statistics = trace.read()


def batch_size(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that holds so many."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@dataclass(frozen=True)
class Attempt:
    """`engine` says how; what it finds goes to `answers`, what it did to `trace`, if anyone asks. `exhaustive`: forms never leave early."""

    decider: Decider
    engine: Engine
    q: Questions
    answers: Answers
    trace: Trace | None
    deadline: float | None
    progress: Progress
    exhaustive: bool

    def run(self, rows: np.ndarray) -> None:
        q, answers, method = self.q, self.answers, self.decider.options.method
        images = np.unique(q.image[rows])
        for part in self.decider.batches(len(images), self.engine):
            chosen = images[part]
            mine = rows if len(chosen) == len(images) else rows[np.isin(q.image[rows], chosen)]
            lo, hi = torch.from_numpy(q.lo[chosen]), torch.from_numpy(q.hi[chosen])
            if method in INTERVALS:
                self._ask(self.engine.interval(lo, hi, self.decider.balls(q, chosen)), mine, chosen)
                continue
            if not self.exhaustive and method == OWN:
                self._ask(self.engine.interval(lo, hi, self.decider.balls(q, chosen)), mine, chosen)
                mine = mine[~answers.settled[q.group[mine]]]
                if not len(mine):
                    continue
                chosen = np.unique(q.image[mine])
                lo, hi = self._filled_up(torch.from_numpy(q.lo[chosen]), torch.from_numpy(q.hi[chosen]), part.stop - part.start)
            balls = self.decider.balls(q, chosen)
            boxes = self.engine.refine(lo, hi, self.progress, self.deadline, self.trace, ball=balls, every=method != OWN)
            self._ask(boxes, mine, chosen)
            if answers.slopes is not None:
                self._note_slopes(boxes, mine, chosen, answers.slopes)
            del boxes  # before the next batch makes its own

    def _filled_up(self, lo: Tensor, hi: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """The boxes that are left, and points up to one of few batch sizes: kernels are bound and recorded for a size.

        Nobody asks about the points, and in hardly any neuron is one undecided: they have next to no rows. A trace would count them.
        """
        more = min(batch_size(len(lo)), most) - len(lo)
        if self.engine.kernels is None or self.trace is not None or not more:
            return lo, hi
        points = lo[-1:].expand(more, -1)
        return torch.cat([lo, points]), torch.cat([hi, points])

    def _ask(self, boxes: Boxes, rows: np.ndarray, images: np.ndarray) -> None:
        q, answers = self.q, self.answers
        forms = self.decider.forms(q, rows, np.searchsorted(images, q.image[rows]))
        method, groups = self.decider.options.method, None
        if not self.exhaustive and method == OWN:
            groups = torch.from_numpy(np.unique(q.group[rows], return_inverse=True)[1].astype(np.int64))
        if method == "ibp":
            got = output_forms(self.engine, boxes, forms, self.deadline)
        else:
            got = self.engine.query(boxes, forms, groups, self.deadline, self.trace)
        best, raw = got.best.cpu().numpy(), got.raw.cpu().numpy()
        answers.best[rows] = np.maximum(answers.best[rows], best)
        answers.raw[rows] = np.maximum(answers.raw[rows], raw)
        answers.settle(q, rows[best > 0])

    def _note_slopes(self, boxes: Boxes, rows: np.ndarray, images: np.ndarray, slopes: dict[int, np.ndarray]) -> None:
        """One more walk for what is left open, the worst bounds first: where it ends, over the user's inputs."""
        q, answers = self.q, self.answers
        rows = rows[~answers.settled[q.group[rows]]]
        rows = rows[np.argsort(answers.best[rows], kind="stable")[:SLOPES]]
        if len(rows):
            forms = self.decider.forms(q, rows, np.searchsorted(images, q.image[rows]))
            found = input_lines(self.engine, boxes, forms, self.deadline).slopes.float()
            slopes.update(zip(rows.tolist(), self.decider.user_columns(found).cpu().numpy(), strict=True))
