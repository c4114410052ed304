"""From one property to a verdict: the quickest proof, a quick look for counterexamples, patient proofs, a thorough look, then search."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from polytriton.errors import UsageError
from polytriton.frontend.query import Property
from polytriton.ir.net import Net
from polytriton.prove.attempt import Answers
from polytriton.prove.crew import Others
from polytriton.prove.cuts import FEW, FEW_IN_BALLS
from polytriton.prove.decider import Decider
from polytriton.prove.forest import Forest
from polytriton.prove.hints import aim
from polytriton.prove.options import OWN
from polytriton.prove.questions import Questions, questions, rivals
from polytriton.prove.search import InputSearch, free_inputs
from polytriton.prove.tight import DENSE, tighten
from polytriton.prove.trail import Trail
from polytriton.results import ENDED_BY, Counterexample, LayerStats, Result, SearchStats
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent
from polytriton.runtime.attack import QUICK, THOROUGH, Aim, Attack
from polytriton.runtime.chain import ChainAscent
from polytriton.runtime.engine import Progress

SEARCHES = ("auto", "none", "input", "slopes", "neurons")
SECONDS = 60.0  # of a search that no time limit ends
FOR_PROOFS = 0.9  # of a timeout, where counterexamples are looked for too
PROBE = Attack(restarts=2, steps=10, samples=256, operations=2e9)  # a search's first look from where its bounds are least

_LOG = logging.getLogger(__name__)


def check_search(search: str) -> None:
    if search not in SEARCHES:
        raise UsageError(f"search={search!r} is unknown", f"use one of: {', '.join(SEARCHES)}")


def check_time(seconds: float | None) -> None:
    """A limit that a caller gives is some time, or None."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"a time of {seconds:g} is no time", "give seconds above 0, or leave it out for no limit")


def threads_of(net: Net) -> int:
    """Threads of torch's for a decision: one for a small chain of dense layers, whose products gain nothing by more; else as many as
    processors are idle. Threads of one product wait for the last of them: beside a busy program two took up to ten times as long as one.
    """
    small = ChainAscent.serves(net) and sum(n.size for n in net) <= DENSE
    most = 1 if small else torch.get_num_threads()
    return most if most == 1 else min(most, settings.idle_processors())


def divider(decider: Decider) -> Decider:
    """Who divides: of a chain of dense layers the host, which has loops for its small boxes, and behind the sign of a neuron bounds all
    others anew. A GPU does not: it bounds many more parts, each worth less.
    """
    here = decider.device.type != "cuda" or decider.options.numerics == "interval"
    return decider if here or not ChainAscent.serves(decider.compiled.net) else decider.on_host


Falsify = Callable[[Sequence[Aim], Attack, float | None], list[Counterexample | None]]  # until a moment, if any


class Decision:
    """One property on its way to a verdict."""

    def __init__(
        self, decider: Decider, falsify: Falsify, prop: Property, timeout: float | None, falsifier: bool, progress: Progress, seed: int,
        search: str, trail: Trail | None = None, others: Others | None = None,
    ) -> None:
        check_search(search)
        self.decider, self.falsify, self.prop, self.falsifier = decider, falsify, prop, falsifier
        self.progress, self.seed = progress, seed
        self.search = search if decider.options.method == OWN else "none"
        self.trail, self.others, self.start = trail, others, time.monotonic()
        self.deadline = None if timeout is None else self.start + timeout
        self.proof = None if timeout is None else self.start + timeout * (FOR_PROOFS if falsifier else 1)
        self.margins = np.full(len(prop.disjuncts), -np.inf)
        self.found: Counterexample | None = None
        self.statistics: tuple[LayerStats, ...] = ()
        self.searched: SearchStats | None = None
        self.settled, self.expired = not prop.disjuncts, False
        self.threads, self.looks = torch.get_num_threads(), 0

    def run(self, label: int | None) -> Result:
        q = questions(self.prop)
        if q is not None:
            with settings.threads(threads_of(self.decider.compiled.net)):
                self._decide(q)
        late = self.deadline is not None and time.monotonic() > self.deadline
        verdict = "sat" if self.found is not None else "unsat" if self.settled else "timeout" if self.expired or late else "unknown"
        o, seconds = self.decider.options, time.monotonic() - self.start
        shown = rivals(self.prop) if label is not None else ()
        result = Result(
            verdict, self.margins, seconds, self.found, label, shown, o.semantics, self.statistics, numerics=o.numerics,
            search=self.searched, ended_by=ENDED_BY[verdict],
        )  # fmt: skip
        _LOG.info("%s: %s, margin %.6g, %.3f s", self.prop.name, verdict, result.margin, result.seconds)
        return result

    def _decide(self, q: Questions) -> None:
        """The steps, from the cheapest on, until one decides."""
        decider = self.decider
        wanted = self.falsifier or self._divides(q)
        answers = decider.prove(q, deadline=self.proof, progress=self.progress, slopes=wanted, trail=self.trail)
        self._take(answers)
        self._falsify(q, answers, QUICK)
        if self._open() and not self.expired:
            patient = decider.tries(patient=True)
            answers = decider.prove(q, patient, answers=answers, deadline=self.proof, progress=self.progress, slopes=wanted)
            self._take(answers)
        searches = self.search != "none" and (self._divides(q) or Ascent.serves(self.decider.compiled.net))
        if self._open() and not self.expired and searches:
            self._search(q, answers)
        self._falsify(q, answers, THOROUGH)
        np.maximum.at(self.margins, q.group, answers.best)
        self.statistics = answers.statistics

    def _open(self) -> bool:
        return not self.settled and self.found is None

    def _take(self, answers: Answers) -> None:
        self.settled, self.expired = bool(answers.settled.all()), answers.expired

    def _falsify(self, q: Questions, answers: Answers, attack: Attack) -> None:
        if self._open() and self.falsifier:
            self.progress("looking for a counterexample", 0, 1)
            (self.found,) = self.falsify([aim(self.prop, q, answers)], replace(attack, seed=self.seed), self.deadline)

    # ---- search -------------------------------------------------------------------------------------------

    def _divides(self, q: Questions) -> bool:
        """Dividing boxes is for few inputs, unless it is asked for."""
        return self.search == "input" or (self.search == "auto" and free_inputs(q) <= (FEW if q.balls is None else FEW_IN_BALLS))

    def _search(self, q: Questions, answers: Answers) -> None:
        deadline = self.deadline if self.deadline is not None else self.start + SECONDS
        probe = self._probe if self.falsifier else None
        if self.search == "slopes":
            self.searched = tighten(self.decider, q, answers, deadline, self.progress)
        elif self._divides(q):
            self.searched = InputSearch(
                divider(self.decider), q, answers, deadline=deadline, progress=self.progress, probe=probe, threads=self.threads,
                others=self.others,
            ).run()  # fmt: skip
        else:
            self.searched = Forest(divider(self.decider), q, answers, deadline, self.progress, probe, self.threads, self.others).run()
        self.settled = bool(answers.settled.all())
        self.expired = self.searched.ended == "time" and self.deadline is not None  # a search's own minute is no limit of the query

    def _probe(self, points: np.ndarray, pieces: list[int]) -> bool:
        """Whether a counterexample lies at, or some steps from, these points, or elsewhere.

        A search asks after 0, 1, 3, 7, ... of its rounds, the first of them short ones. From the third on a look is twice the one before:
        looks take much the same share of the time throughout.
        """
        attack = replace(PROBE.grow(max(1, (1 << self.looks) // 4), THOROUGH), seed=self.seed + self.looks)
        self.looks += 1
        (self.found,) = self.falsify([Aim(self.prop, pieces, points=points)], attack, self.deadline)
        return self.found is not None
