"""What is open of some questions, decided by the signs of neurons: box after box, a tree for what tight bounds leave open of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from polytriton.prove.course import Course
from polytriton.prove.crew import Crew, Others
from polytriton.prove.neurons import NeuronSearch
from polytriton.prove.questions import Questions
from polytriton.prove.search import Probe
from polytriton.prove.tight import Tight
from polytriton.prove.trail import Branch
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
    """Tight bounds, then a tree for every box with a group still open, over the one of its forms that came nearest.

    `threads`: so many processors are for as many processes, or for `others`.
    """

    def __init__(
        self,
        decider: Decider,
        q: Questions,
        answers: Answers,
        deadline: float | None,
        progress: Progress,
        probe: Probe | None = None,
        threads: int = 1,
        others: Others | None = None,
    ) -> None:
        self.decider, self.q, self.answers, self.deadline, self.progress, self.probe = decider, q, answers, deadline, progress, probe
        self.parts = self.deepest = 0
        self.shares, self.worst, self.ended = list[float](), float("inf"), ""
        self.course = Course("parts", progress, len(np.unique(q.image[~answers.settled[q.group]])))
        self.crew = Crew.for_search(decider, threads, others)

    def run(self) -> SearchStats:
        begin = time.monotonic()
        with self.decider.turn, settings.pin_settings(self.decider.device), self.decider._threads():
            try:
                for image in np.unique(self.q.image[~self.answers.settled[self.q.group]]):
                    self._box(int(image))
                    if self.ended == "sat":
                        break
            except Stopped:
                self.ended = "time"
            finally:
                self.crew.close()
        settled = self.answers.settled
        left = int((~settled).sum())
        share = float(np.mean(self.shares)) if self.shares and left else float(settled.mean())
        waits = max(left, self.course.last.open) if left else 0
        worst = self.worst if left and np.isfinite(self.worst) else None
        took = time.monotonic() - begin
        return SearchStats("neurons", self.parts, waits, self.deepest, share, worst, took, self.ended if left else "", *self.course.both())

    def _box(self, image: int) -> None:
        """Tight bounds, then a tree over the nearest form of each group still open.

        Both are charged in float64 where that is allowed: gradient steps, which take most of the time, are in float32 anyway, and what
        inner bounds lose by float32 shows in no bound's own rounding term.
        """
        tight = Tight(self.decider, replace(self.decider.tries(patient=False)[-1], rescue=False), self.deadline)
        boxes, box, rows = tight.ask(self.q, self.answers, image, self.deadline, self.progress)
        nearest = self._nearest(rows)
        if not len(nearest):
            self.shares.append(1.0)
            self.course.pass_by()
        elif tight.ascent.divided_before(self.decider.compiled.net.output):
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
        groups = self.q.group[rows]

        def probe(points: Tensor, still: list[int]) -> bool:
            return self.probe is not None and self.probe(points.double().cpu().numpy(), groups[still].tolist())

        points = None if self.probe is None else probe
        branch = None if answers.trail is None else Branch(answers.trail, int(self.q.image[rows[0]]), rows, groups)
        search = NeuronSearch(tight, boxes, forms, box, self.deadline, self.course, points, self.crew, branch)
        try:
            with self.crew.threads():
                search.run()
        finally:
            waits = search.waiting
            still = np.unique(waits.forms[waits.open].numpy())
            proved = np.setdiff1d(np.arange(len(rows)), still)
            answers.best[rows[proved]] = np.maximum(answers.best[rows[proved]], search.refuted.numpy()[proved])
            answers.settled[self.q.group[rows[proved]]] = True
            self.parts, self.deepest = self.parts + search.done, max(self.deepest, search.deepest)
            self.shares.append(search.share())
            self.course.finish(waits.depth.numpy())
            self.worst = min(self.worst, float(waits.worst.min()) if len(waits) else self.worst)
        if search.stuck or search.found:
            self.ended = "sat" if search.found else "steps"
