"""Several radii around one image: no more is asked than must be, and what is not asked has the answer that asking gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from polytriton.runs.asker import Answer, Opened, Settings
from polytriton.runs.queries import Ball, Certify, Query
from polytriton.runs.records import Point, Record
from polytriton.runs.runner import Run
from polytriton.runs.sweep import Ladder, imply, ladders
from polytriton.runs.task import Done, Event, Task

RADII = [Fraction(k, 100) for k in range(1, 8)]


def ball(epsilon: Fraction, index: int = 0, network: str = "a", **more: object) -> Query:
    pixels = np.full((1, 2, 2), index, np.uint8)
    subject = Ball(pixels.tobytes(), "|u1", pixels.shape, str(epsilon), label=1, file="i.npz", index=index)
    return Query(network, f"i[{index}]", msgspec.structs.replace(subject, **more))


@dataclass
class Answering:
    """An engine that knows every verdict by image and radius, and which queries it was asked."""

    truth: dict[tuple[int, Fraction], str]
    asked: list[tuple[int, Fraction]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def events(self) -> Iterator[Event]:
        while self.tasks:
            task = self.tasks.pop()
            query, blank = task.job.query, task.job.blank
            if query is None or blank is None:
                yield Done(task, Opened("sha", "y", "float32", "auto", "all"))
                continue
            assert isinstance(query.subject, Ball)
            key = query.subject.index, Fraction(query.subject.epsilon)
            self.asked.append(key)
            found = Point([float(key[1])], [0.0]) if self.truth[key] == "sat" else None
            record = msgspec.structs.replace(blank, verdict=self.truth[key], margin=0.5, margins=[0.5], label=1, counterexample=found)
            yield Done(task, Answer(record, query=query))

    def close(self) -> None:
        pass


def run(truth: dict[tuple[int, Fraction], str], queries: list[Query]) -> tuple[Answering, list[Record]]:
    engine = Answering(truth)
    asked = Run(engine, Settings())
    return engine, [a.record for a in asked.ask(queries)]


@pytest.mark.parametrize("proved", range(len(RADII) + 1))
def test_a_decided_sweep_is_a_bisection(proved: int) -> None:
    truth = {(0, e): "unsat" if k < proved else "sat" for k, e in enumerate(RADII)}
    engine, records = run(truth, [ball(e) for e in RADII])
    assert [r.verdict for r in records] == list(truth.values())
    assert len(engine.asked) <= 3, "seven radii are halved three times"
    for r, e in zip(records, RADII, strict=True):
        assert (r.decided_at is None) == ((0, e) in engine.asked)
        at = Fraction(r.decided_at or r.epsilon or 0)
        assert (at >= e if r.verdict == "unsat" else at <= e) and truth[0, at] == r.verdict
        assert r.counterexample is None or r.counterexample.x == [float(at)]
        assert (r.margin is None) == (r.verdict == "sat" and r.decided_at is not None), "a bound over a smaller ball says nothing here"


def test_every_pattern_gets_the_answers_it_gets_one_by_one() -> None:
    """Whatever can be: proved up to some radius, falsified from another on, unknown or failed between and among them."""
    for low, high in itertools.combinations_with_replacement(range(6), 2):
        for between in itertools.product(("unknown", "timeout", "error"), repeat=high - low):
            truth = {(0, e): v for e, v in zip(RADII, ["unsat"] * low + list(between) + ["sat"] * (5 - high), strict=False)}
            engine, records = run(truth, [ball(e) for _, e in truth])
            assert [r.verdict for r in records] == list(truth.values())
            assert len(engine.asked) == len(set(engine.asked))
            assert all((0, e) in engine.asked for e, v in zip(RADII, truth.values(), strict=False) if v not in ("unsat", "sat"))


def test_a_gap_in_what_is_proved_is_filled() -> None:
    """One bound may fail over a ball and hold over a larger one."""
    truth = {(0, e): v for e, v in zip(RADII[:3], ("unknown", "unsat", "unknown"), strict=True)}
    assert [r.verdict for r in run(truth, [ball(e) for e in RADII[:3]])[1]] == ["unsat", "unsat", "unknown"]


def test_images_tell_nothing_of_each_other() -> None:
    """Nor do networks, labels, targets, normalisations or cuts."""
    one = ball(RADII[0])
    others = [
        ball(RADII[1], index=1), ball(RADII[1], network="b"), ball(RADII[1], label=2), ball(RADII[1], targets=(0,)),
        ball(RADII[1], clip=("0", "1")), ball(RADII[1], mean=("0.5",)), ball(RADII[1], std=("2",)),
        ball(RADII[1], certify=Certify()), ball(RADII[1], pixels=bytes([9] * 4)),
    ]  # fmt: skip
    for other in others:
        assert len(set(map(id, ladders([one, other])))) == 2
    assert len(set(map(id, ladders([one, ball(RADII[1])])))) == 1
    searched = [ball(e, certify=Certify()) for e in RADII[:2]]
    assert len(set(map(id, ladders(searched)))) == 2, "each has a search of its own"


def test_radii_are_ordered_as_numbers() -> None:
    queries = [ball(Fraction(e)) for e in ("1/9", "1/10", "2/255", "1/2")]
    assert ladders(queries)[0].open == [2, 1, 0, 3]


def test_what_an_answer_tells() -> None:
    told = {v: Ladder(range(5)).close(2, v) for v in ("unsat", "sat", "unknown", "timeout", "error")}
    assert told == {"unsat": [0, 1], "sat": [3, 4], "unknown": [], "timeout": [], "error": []}


def test_an_implied_record_says_by_what() -> None:
    blank = Record(network="a", property="i[0]", verdict="error", epsilon="1/100", key="k")
    proof = {"margin": 0.25, "margins": [0.25], "rivals": [2], "label": 1, "key": "j"}
    source = Record(network="a", property="i[0]", verdict="unsat", epsilon="3/100", **proof)  # type: ignore[arg-type]
    found = imply(blank, source)
    assert (found.epsilon, found.key, found.verdict, found.margin, found.decided_at) == ("1/100", "k", "unsat", 0.25, "3/100")
    assert (found.seconds, found.note) == (0.0, "proved at epsilon 3/100")
    again = imply(msgspec.structs.replace(blank, epsilon="1/200"), found)
    assert (again.decided_at, again.note) == ("3/100", "proved at epsilon 3/100")
