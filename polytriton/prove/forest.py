"""What is open of some questions, decided by the signs of neurons: box after box, a tree for what tight bounds leave open of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from polytriton.prove.neurons import NeuronSearch
from polytriton.prove.questions import Questions
from polytriton.prove.tight import Tight
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.engine import Progress
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Stopped

if TYPE_CHECKING:
    from polytriton.prove.attempt import Answers
    from polytriton.prove.decider import Decider

Box = tuple[Tensor, Tensor]


class Forest:
    """The trees of a query, one after another, and what is told of them together."""

    def __init__(self, decider: Decider, q: Questions, answers: Answers, deadline: float | None, progress: Progress) -> None:
        self.decider, self.q, self.answers, self.deadline, self.progress = decider, q, answers, deadline, progress
        self.parts = self.deepest = 0
        self.shares, self.worst, self.ended = list[float](), float("inf"), ""

    def run(self) -> SearchStats:
        begin = time.monotonic()
        with self.decider.turn, settings.pinned(self.decider.device), self.decider._threads():
            try:
                for image in np.unique(self.q.image[~self.answers.settled[self.q.group]]):
                    self._box(int(image))
            except Stopped:
                self.ended = "time"
        settled = self.answers.settled
        left = int((~settled).sum())
        share = float(np.mean(self.shares)) if self.shares and left else float(settled.mean())
        worst = self.worst if left and np.isfinite(self.worst) else None
        took = time.monotonic() - begin
        return SearchStats("neurons", self.parts, left, self.deepest, share, worst, took, self.ended if left else "")

    def _box(self, image: int) -> None:
        """Tight bounds, in float64 where rounding alone stands in their way; then the nearest form of each group still open."""
        q, answers = self.q, self.answers
        for how in dict.fromkeys(replace(t, rescue=False) for t in self.decider.tries(patient=False)):
            tight = Tight(self.decider, self.decider.engine(how), self.deadline)
            boxes, box, rows = tight.ask(q, answers, image, self.deadline, self.progress)
            if not (answers.raw[rows[~answers.settled[q.group[rows]]]] > 0).any():
                break
        nearest = self._nearest(rows)
        if not len(nearest):
            self.shares.append(1.0)
        elif tight.ascent.relus_before(self.decider.compiled.net.output):
            self._grow(tight, boxes, box, nearest)
        else:
            self.ended = "steps"

    def _nearest(self, rows: np.ndarray) -> np.ndarray:
        """Of each group still open the form with the greatest bound."""
        group = self.q.group
        order = rows[np.argsort(-self.answers.best[rows], kind="stable")]
        first = order[np.unique(group[order], return_index=True)[1]]
        return first[~self.answers.settled[group[first]]]

    def _grow(self, tight: Tight, boxes: Boxes, box: Box, rows: np.ndarray) -> None:
        """A search for these forms; what it proves stands even where the clock ends it."""
        answers, forms = self.answers, self.decider.forms(self.q, rows, np.zeros(len(rows), dtype=np.int64))
        search = NeuronSearch(tight, boxes, forms, box, self.deadline, self.progress)
        try:
            search.run()
        finally:
            waits = search.waiting
            still = np.unique(waits.forms[waits.open].numpy())
            proved = np.setdiff1d(np.arange(len(rows)), still)
            answers.best[rows[proved]] = np.maximum(answers.best[rows[proved]], search.refuted.numpy()[proved])
            answers.settled[self.q.group[rows[proved]]] = True
            self.parts, self.deepest = self.parts + search.done, max(self.deepest, search.deepest)
            self.shares.append(search.share())
            self.worst = min(self.worst, float(waits.worst.min()) if len(waits) else self.worst)
        if search.stuck:
            self.ended = "steps"


def search_neurons(decider: Decider, q: Questions, answers: Answers, deadline: float | None, progress: Progress) -> SearchStats:
    """Tight bounds, then a tree for every box with a group still open, over the one of its forms that came nearest."""
    return Forest(decider, q, answers, deadline, progress).run()
