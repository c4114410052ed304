"""Search: divides boxes of inputs until every part is proved, or a counterexample, the clock or the memory ends it.

What refutes a part, and what is left of one, is refute.py's; what decides which part comes next and when to stop need not be sound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from polytriton.prove.attempt import Answers
from polytriton.prove.course import Course
from polytriton.prove.crew import Crew, Flow, Others
from polytriton.prove.decider import Decider
from polytriton.prove.domains import Domains, Waiting
from polytriton.prove.questions import Questions
from polytriton.prove.refute import FILL, BoxBatch, BoxesTold, Refuter, Refuting
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.engine import Progress, _silent
from polytriton.runtime.results import Stopped

ALONE = 5 * 10**10  # operations, were every neuron of every box bounded: a second of a processor or two
KEPT = 64  # domains that must fit in what waits with the bounds of all nodes, or none keeps them
MEMORY = 8  # of the budget an eighth for what waits; beyond it the deepest come first

Probe = Callable[[np.ndarray, list[int]], bool]  # points worth trying, and pieces still open: whether a counterexample was found


def free_inputs(q: Questions) -> int:
    """The most inputs that some box leaves free; one fixed at a decimal lies between two neighbours."""
    return int((np.nextafter(q.lo, np.inf) < q.hi).sum(1).max(initial=0))


class InputSearch(Refuter):
    """Divides the boxes of what `answers` leaves open. `run` marks in `answers` what it proves."""

    def __init__(
        self,
        decider: Decider,
        q: Questions,
        answers: Answers,
        *,
        deadline: float | None,
        progress: Progress = _silent,
        probe: Probe | None = None,
        threads: int = 1,
        inherits: bool | None = None,
        others: Others | None = None,
    ) -> None:
        """`threads`: so many processors are for as many processes, or for `others`. `inherits`: whether parts keep bounds of nodes."""
        super().__init__(decider, q, answers, deadline)
        self.probe, total = probe, sum(self.cells)
        if inherits is None:  # kernels replay whole refinements
            inherits = not decider.kernels and 8 * total * KEPT <= decider.options.memory // MEMORY
        self.waiting = Waiting(self.pieces.roots(q, answers.settled, total if inherits else 0, self.trail))
        self.whole = float(self.waiting.open.sum())
        self.domains = self.rounds = self.lists = 0
        self.cost = sum(p.row_ops * decider.compiled.net.node(p.target).size for p in decider.compiled.plan)
        self.began, self.course = time.monotonic(), Course("boxes", progress)
        self.crew = Crew.for_search(decider, threads, others)
        options = self.crew.options(decider.options)
        work = Refuting(decider.compiled, options, q, answers.best.copy(), answers.settled.copy(), self.trail.wanted)
        self.flow: Flow[BoxBatch, BoxesTold] = Flow(self.crew, work, self.bound_batch, deadline)

    def _begin(self) -> None:
        """Boxes that an earlier try has bounded already are divided at once, by the slopes it left."""
        slopes, w = self.answers.slopes or {}, self.waiting
        at, _, form = self.pieces.rows(w)
        known = np.array([f in slopes for f in form.tolist()], dtype=bool)
        unknown = np.zeros(len(w), dtype=bool)
        unknown[at[~known]] = True
        rows = np.flatnonzero(~unknown[at])
        if len(rows):
            np.maximum.at(w.bound, at, self.answers.best[form])
            self.domains += int((~unknown).sum())
            weight = np.zeros(w.lo.shape)
            np.add.at(weight, at[rows], np.abs([slopes[f] for f in form[rows].tolist()]))
            begun = w.take(np.flatnonzero(~unknown))
            w.add(self._halves(begun, weight[~unknown], np.ones(len(begun), dtype=bool)))

    def run(self) -> SearchStats:
        """Until everything is refuted, `probe` finds a counterexample, or nothing can be divided any more."""
        d = self.decider
        with d.turn, settings.pin_settings(d.device), d._threads(), self.crew.threads():
            try:
                self._begin()
                while (len(self.waiting) or len(self.flow)) and not self.ended:
                    self._round()
            except Stopped:
                self.ended = "time"
            finally:
                self._put_back()
                self.crew.close()
        self.course.finish(self.waiting.depth)
        self._settle()
        return self.stats()

    def _settle(self) -> None:
        """A group is proved when no part that waits holds it open; its margin is the least bound of its parts."""
        w, a = self.waiting, self.answers
        still = np.zeros(len(a.settled), dtype=bool)
        still[self.pieces.groups[w.root][w.open]] = True
        mine = (~still & ~a.settled)[self.q.group]
        a.best[mine] = np.maximum(a.best, self.least[self.q.group])[mine]
        a.settled |= ~still

    def stats(self) -> SearchStats:
        """What was done so far."""
        worst = float(self.waiting.bound.min(initial=np.inf))
        return SearchStats(
            "input", self.domains, len(self.waiting), self.depth, self.share(), worst if np.isfinite(worst) else None,
            time.monotonic() - self.began, self.ended, *self.course.both(),
        )  # fmt: skip

    def share(self) -> float:
        """How much of the tree is refuted, every cut halving what it divides."""
        held = sum(float((np.exp2(-w.depth.astype(np.float64)) * w.open.sum(1)).sum()) for w in self._rest())
        return 1.0 - held / max(self.whole, 1.0)

    def _rest(self) -> list[Domains | Waiting]:
        """What is not refuted: what waits, and what is being bounded."""
        return [self.waiting, *(part for part, *_ in self.flow.items())]

    # ---- a batch ------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """Sends the worst parts, and takes in what came of those sent first. What is not whole when time is up waits as before."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Stopped
        while len(self.waiting) and len(self.flow) < (self.crew.lists if self._shares() else 1):
            self._send()
        try:
            told = self.flow.receive()
        except Stopped:
            self._put_back()
            raise
        self.rounds += 1
        for t in told:
            self.least, self.depth, self.ended = np.minimum(self.least, t.least), max(self.depth, t.depth), self.ended or t.ended
            self.ways = self.ways[-min(t.ways, len(self.ways)) :]
            self.course.close(t.closed)
            self.trail.add(t.trail)
            if t.left is not None:
                self.waiting.add(t.left)
            if t.points is not None:
                self._try_points(t.points)
        self.course.tell(self.domains, sum(map(len, self._rest())), self.depth, float(self.waiting.bound.min(initial=np.inf)), self.share())

    def _send(self) -> None:
        """A list of batches, one for each process; parts that wait are dealt out among the lists to be sent."""
        workers, lists = (1 + self.crew.helpers, self.crew.lists) if self._shares() else (1, 1)
        most = max(workers, workers * self.size // lists)
        batch = self._take(min(most, max(FILL, -(-len(self.waiting) // (lists - len(self.flow))))))
        self.domains += len(batch)
        each = -(-len(batch) // workers)
        parts = [batch.pick(np.arange(a, min(a + each, len(batch)))) for a in range(0, len(batch), each)]
        look, self.lists = self.probe is not None and self.lists & (self.lists + 1) == 0, self.lists + 1  # lists 0, 1, 3, 7, ...
        names = [int(self.trail.names(self._names(len(part)))[0]) for part in parts]
        self.flow.send([(part, len(self.ways), look and k == 0, names[k]) for k, part in enumerate(parts)])

    def _shares(self) -> bool:
        """Whether lists are dealt out among the processes: batches of a few boxes cost little less than one, and others are not there yet
        when a small search ends. What was done decides, not the clock: the tree is the same however fast a machine is.
        """
        return self.domains * self.cost >= ALONE

    def _put_back(self) -> None:
        for part, *_ in self.flow.drop():
            self.domains -= len(part)
            self.waiting.add(part)

    def _names(self, count: int) -> int:
        """How many numbers the halves of so many parts, and halves of halves, need at most."""
        return 2 * count + 4 * FILL

    def _take(self, count: int) -> Domains:
        """The worst bounds first; the deepest where memory runs out."""
        w = self.waiting
        if len(w) * w.each > self.decider.options.memory // MEMORY:
            order = np.argsort(-w.depth, kind="stable")
        else:
            order = np.argsort(w.bound, kind="stable")
        return w.take(order[:count])

    def _try_points(self, points: np.ndarray) -> None:
        """As counterexamples to what is open anywhere."""
        assert self.probe is not None
        if self.probe(points, np.unique(np.concatenate([self.pieces.groups[w.root][w.open] for w in self._rest()])).tolist()):
            self.ended = "sat"
