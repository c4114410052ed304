"""Several properties of one network at once: their boxes fill a device that one of them leaves idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from polytriton.frontend.query import Property
from polytriton.guard import guard
from polytriton.prove.hints import aim
from polytriton.prove.prover import NetProver
from polytriton.prove.questions import questions, rivals, unite
from polytriton.results import ENDED_BY, Counterexample, Result
from polytriton.runtime.attack import QUICK, THOROUGH
from polytriton.runtime.engine import Progress, _silent

_LOG = logging.getLogger(__name__)


@guard
def decide_together(
    verifier: NetProver,
    props: Sequence[Property],
    labels: Sequence[int | None],
    *,
    falsifier: bool = True,
    progress: Progress = _silent,
    seed: int = 0,
) -> Iterator[tuple[int, Result]]:
    """The properties as the rows of one batch: each one's place and Result, as soon as it is known.

    The steps are those of `verify_property`, the last one property by property: a thorough search takes its time. `seconds` are a
    property's share of what was done for several. The Results have no statistics: what a proof did, it did for all.
    """
    for prop in props:
        verifier.check_property(prop)
    verifier.prepare()
    start, decider, o = time.monotonic(), verifier._decider, verifier.options
    asked = {k: q for k, q in enumerate(map(questions, props)) if q is not None}
    best, found, share = np.zeros(0), dict[int, Counterexample](), 0.0

    def result(k: int, verdict: str, more: float = 0.0) -> tuple[int, Result]:
        margins = best[slice(*places[k])] if k in asked else np.zeros(0)
        shown = rivals(props[k]) if labels[k] is not None else ()
        return k, Result(
            verdict, margins, share + more, found.get(k), labels[k], shown, o.semantics, numerics=o.numerics, ended_by=ENDED_BY[verdict]
        )  # fmt: skip

    yield from (result(k, "unsat") for k in range(len(props)) if k not in asked)  # nothing is unsafe
    if not asked:
        return
    together, ends = unite(list(asked.values()))
    places = dict(zip(asked, pairwise(ends.tolist()), strict=True))
    quick, *patient = [*decider.tries(patient=False), *decider.tries(patient=True)]
    answers = decider.prove(together, [quick], progress=progress, slopes=falsifier, statistics=False)

    def split(keys: Iterable[int]) -> tuple[list[int], list[int]]:
        """Proved ones and others; margins are brought up to date."""
        nonlocal best
        best = np.full(int(ends[-1]), -np.inf)
        np.maximum.at(best, together.group, answers.best)
        parts: tuple[list[int], list[int]] = ([], [])
        for k in keys:
            parts[not answers.settled[slice(*places[k])].all()].append(k)
        return parts

    proved, left = split(asked)
    if falsifier and left:
        progress("looking for counterexamples", 0, 1)
        aims = [aim(props[k], together, answers, places[k][0]) for k in left]
        attack = replace(QUICK, operations=QUICK.operations * len(aims), seed=seed)
        found = {k: c for k, c in zip(left, verifier._falsify(aims, attack, None), strict=True) if c is not None}
    _LOG.info("%d images together: %d proved, %d falsified", len(props), len(proved), len(found))
    share = (time.monotonic() - start) / len(asked)
    yield from (result(k, "unsat") for k in proved)
    yield from (result(k, "sat") for k in found)
    left = [k for k in left if k not in found]
    if not left:
        return
    start = time.monotonic()
    for k in found:
        answers.settled[slice(*places[k])] = True  # no proof is looked for any more
    decider.prove(together, patient, answers=answers, progress=progress, slopes=falsifier, statistics=False)
    proved, left = split(left)
    share += (time.monotonic() - start) / (len(proved) + len(left))
    yield from (result(k, "unsat") for k in proved)
    for k in left:
        start = time.monotonic()
        if falsifier:
            progress("looking for a counterexample", 0, 1)
            (hit,) = verifier._falsify([aim(props[k], together, answers, places[k][0])], replace(THOROUGH, seed=seed), None)
            if hit is not None:
                found[k] = hit
        yield result(k, "sat" if k in found else "unknown", time.monotonic() - start)
