"""A search that is watched: what it refutes, what it clips, and whether an unsafe input it must not lose is still held."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

import polytriton
from polytriton.frontend.query import Disjunct, Property, Row, float_bounds
from polytriton.prove.attempt import Answers
from polytriton.prove.questions import Questions, questions
from polytriton.prove.search import InputSearch
from polytriton.results import SearchStats
from tests.prove.piecewise import Form, Numbers, Small

Box = tuple[np.ndarray, np.ndarray]
Piece = tuple[int, tuple[Form, ...]]  # which box, and the forms of the group


def compiled(net: Small, semantics: str = "real", first: str = "Gather", **options: Any) -> polytriton.api.Verifier:
    return polytriton.compile(net.model(first), semantics=semantics, **options)


def asked(
    boxes: Sequence[tuple[Sequence[Fraction | float], Sequence[Fraction | float]]], groups: Sequence[Piece], outputs: int
) -> Property:
    """A property of pieces in the order given; pieces of one box share it."""
    made = []
    for lo, hi in boxes:
        low, high = [Fraction(v) for v in lo], [Fraction(v) for v in hi]
        made.append((np.array([float_bounds(v)[0] for v in low]), np.array([float_bounds(v)[1] for v in high]), low, high))
    disjuncts = [
        Disjunct(*made[at], tuple(Row(_terms(f.c), _terms(f.d), f.k, strict=k % 2 == 1) for k, f in enumerate(forms)))
        for at, forms in groups
    ]
    return Property.from_disjuncts("p", len(boxes[0][0]), outputs, tuple(disjuncts))


def _terms(values: Numbers) -> tuple[tuple[int, Fraction], ...]:
    return tuple((i, v) for i, v in enumerate(values) if v)


@dataclass
class Refuted:
    lo: np.ndarray
    hi: np.ndarray
    group: int
    bound: float

    def holds(self, x: Sequence[Fraction | float]) -> bool:
        return inside(x, self.lo, self.hi)


@dataclass
class Clip:
    """What of a domain was cut to what; `groups` were open in it."""

    lo: np.ndarray
    hi: np.ndarray
    low: np.ndarray
    high: np.ndarray
    groups: list[int]


def inside(x: Sequence[Fraction | float], lo: np.ndarray, hi: np.ndarray) -> bool:
    return all(Fraction(a) <= Fraction(v) <= Fraction(b) for a, v, b in zip(lo.tolist(), x, hi.tolist(), strict=True))


class Watched(InputSearch):
    """`keep`: unsafe inputs with their groups. After every round each has to lie in a domain that holds its group open."""

    def __init__(self, *args: Any, keep: Sequence[tuple[Sequence[Fraction | float], int]] = (), rounds: int = 10**9, **more: Any) -> None:
        self.keep, self.most = keep, rounds
        self.refuted: list[Refuted] = []
        self.clips: list[Clip] = []
        self.taken: list[tuple[bytes, ...]] = []
        super().__init__(*args, **more)
        self.check("at the start")

    def check(self, when: str) -> None:
        for x, group in self.keep:
            assert self.holds(x, group), f"{when} no domain holds the unsafe input {[float(v) for v in x]} of group {group}"

    def holds(self, x: Sequence[Fraction | float], group: int) -> bool:
        """Whether the input waits in a domain in which the group is open."""
        w = self.waiting
        down, up = (np.array(v) for v in zip(*(float_bounds(Fraction(v)) for v in x), strict=True))  # no float64 lies between
        within = ((w.lo <= down) & (up <= w.hi)).all(1)
        return bool((within & (w.open & (self.pieces.groups[w.root] == group)).any(1)).any())

    def _begin(self) -> None:
        super()._begin()
        self.check("after the first cut")

    def _round(self) -> None:
        super()._round()
        self.check(f"after round {self.rounds}")
        if self.rounds >= self.most and not self.ended:
            self.ended = "enough"

    def _take(self, count: int) -> Any:
        batch = super()._take(count)
        self.taken.append((batch.lo.tobytes(), batch.hi.tobytes(), batch.open.tobytes()))
        return batch

    def _close(self, batch: Any, found: Any) -> None:
        before = batch.open.copy()
        super()._close(batch, found)
        best = np.full(before.shape, -np.inf)
        np.maximum.at(best, (found.at, found.local), found.best)
        for k, g in zip(*np.nonzero(before & ~batch.open), strict=True):
            self.refuted.append(
                Refuted(batch.lo[k].copy(), batch.hi[k].copy(), int(self.pieces.groups[batch.root[k], g]), float(best[k, g]))
            )

    def _clip(self, left: Any, *rest: Any) -> Box:
        before = left.open.copy()
        low, high = super()._clip(left, *rest)
        for k in range(len(left)):
            own, nothing = self.pieces.groups[left.root[k]], np.full(low.shape[1], np.inf)
            groups, gone = own[left.open[k]].tolist(), own[before[k] & ~left.open[k]].tolist()
            if groups:
                self.clips.append(Clip(left.lo[k].copy(), left.hi[k].copy(), low[k].copy(), high[k].copy(), groups))
            if gone:
                self.clips.append(Clip(left.lo[k].copy(), left.hi[k].copy(), nothing, -nothing, gone))
        return low, high


@dataclass
class Ended:
    search: Watched
    answers: Answers
    stats: SearchStats
    q: Questions

    @property
    def unsat(self) -> bool:
        return bool(self.answers.settled.all())


def searched(verifier: Any, prop: Property, seconds: float = 2.0, *, slopes: bool = True, first: bool = True, **more: Any) -> Ended:
    """The first try, then the search. `first`: whether there is a first try."""
    q = questions(prop)
    assert q is not None
    groups = int(q.group.max()) + 1
    answers = Answers(np.full(len(q.image), -np.inf), np.full(len(q.image), -np.inf), np.zeros(groups, dtype=bool))
    if first:
        answers = verifier._decider.prove(q, slopes=slopes)
    search = Watched(verifier._decider, q, answers, deadline=time.monotonic() + seconds, **more)
    return Ended(search, answers, search.run(), q)
