"""Several properties of one network at once: their boxes fill a device that one of them leaves idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from polytriton.frontend.query import Property
from polytriton.prove.hints import aim
from polytriton.prove.questions import questions, rivals, united
from polytriton.results import Result
from polytriton.runtime.attack import QUICK
from polytriton.runtime.engine import Progress, _silent

if TYPE_CHECKING:
    from polytriton.api import Verifier

_LOG = logging.getLogger(__name__)


def decide_together(
    verifier: Verifier,
    props: Sequence[Property],
    labels: Sequence[int | None],
    *,
    falsifier: bool = True,
    progress: Progress = _silent,
    seed: int = 0,
) -> dict[int, Result]:
    """The properties as the rows of one batch: Results by place, of those proved so or falsified in one search.

    The others want a query of their own (`verify_property`), which tries harder. The Results have no statistics: what a proof
    did, it did for all.
    """
    start = time.monotonic()
    for prop in props:
        verifier.check_property(prop)
    asked = [(k, q) for k, q in ((k, questions(p)) for k, p in enumerate(props)) if q is not None]
    if not asked:
        return {}
    decider, o = verifier._decider, verifier.options
    together, groups = united([q for _, q in asked])
    answers = decider.prove(together, decider.tries(patient=False)[:1], progress=progress, slopes=falsifier, statistics=False)
    settled = {k: bool(answers.settled[a:b].all()) for (k, _), a, b in zip(asked, groups[:-1], groups[1:], strict=True)}
    first = {k: int(a) for (k, _), a in zip(asked, groups[:-1], strict=True)}
    aims = {k: aim(props[k], together, answers, first[k]) for k in first if falsifier and not settled[k]}
    quick = replace(QUICK, operations=QUICK.operations * len(aims), seed=seed)
    found = {k: c for k, c in zip(aims, verifier._falsify([*aims.values()], quick, None), strict=True) if c is not None}
    seconds = (time.monotonic() - start) / len(props)
    _LOG.info("%d images together: %d proved, %d falsified", len(props), sum(settled.values()), len(found))
    best = np.full(int(groups[-1]), -np.inf)
    np.maximum.at(best, together.group, answers.best)
    return {
        k: Result(
            "sat" if k in found else "unsat", best[a:b], seconds, found.get(k), labels[k],
            rivals(props[k]) if labels[k] is not None else (), o.semantics, numerics=o.numerics,
        )
        for (k, _), a, b in zip(asked, groups[:-1], groups[1:], strict=True)
        if k in found or settled[k]
    }  # fmt: skip
