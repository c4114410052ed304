"""Searches that other processes take a share of: the same results, whoever is lost, and nobody left behind."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from polytriton.prove import crew as crew_module
from polytriton.prove.attempt import Answers
from polytriton.prove.crew import Crew
from polytriton.prove.forest import Forest
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.results import Stopped
from tests.prove.audited import cube, lowered, over, spread
from tests.prove.piecewise import drawn
from tests.prove.test_neurons import ends_after, fresh
from tests.prove.watched import asked, compiled


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many are idle, whatever else runs."""
    idle = [2]
    monkeypatch.setattr(settings, "idle_processors", lambda: idle[0])
    return idle


@dataclass(frozen=True)
class Slow:
    """Tells a number's square and who made it, after a while."""

    seconds: float = 0.02
    add: int = 0

    def open(self) -> Callable[[int], tuple[int, int]]:
        def square(k: int) -> tuple[int, int]:
            time.sleep(self.seconds)
            return k * k + self.add, os.getpid()

        return square


@dataclass(frozen=True)
class Fails:
    """Can be opened nowhere."""

    def open(self) -> Callable[[int], tuple[int, int]]:
        raise MemoryError("nothing left")


def waits(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_items_are_shared_and_a_killed_helper_loses_nothing() -> None:
    crew = Crew(1, after=0.0)
    every = crew.share(Slow(), Slow().open(), None)
    try:
        waits(lambda: len({who for _, who in every(range(20))}) == 2)
        (child,) = crew._helpers
        killer = threading.Timer(0.1, os.kill, (child.pid, signal.SIGKILL))
        killer.start()
        made = every(range(40))
        killer.join()
        assert [square for square, _ in made] == [k * k for k in range(40)]
        assert made[0][1] == os.getpid() and {who for _, who in every(range(9))} == {os.getpid()}
    finally:
        crew.close()


def test_work_that_opens_nowhere_else_is_done_here() -> None:
    crew = Crew(1, after=0.0)
    every = crew.share(Fails(), Slow(0.001).open(), None)
    try:
        tried = 0
        while not tried or any(t.is_alive() for t in crew._pool._threads):
            assert [s for s, _ in every(range(5))] == [0, 1, 4, 9, 16]
            tried += 1
        (child,) = crew._helpers
        assert child.pid is not None
    finally:
        crew.close()
    assert not child.alive()


def test_a_helper_opens_each_work() -> None:
    crew = Crew(1, after=0.0)
    try:
        for seconds in (0.02, 0.03):
            every = crew.share(Slow(seconds, add=int(1000 * seconds)), Slow(seconds, int(1000 * seconds)).open(), None)
            expected = [k * k + int(1000 * seconds) for k in range(20)]
            who: set[int] = set()
            while len(who) < 2:
                made = every(range(20))
                assert [s for s, _ in made] == expected
                who = {w for _, w in made}
    finally:
        crew.close()


def test_time_that_is_up_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that never answers: its item is not made here, and the deadline ends the wait."""

    over = threading.Event()
    for name, made in {"start": lambda self: None, "alive": lambda self: True, "ask": lambda self, part: over.wait(60.0)}.items():
        monkeypatch.setattr(crew_module._Helper, name, made)
    crew = Crew(1, after=0.0)
    every = crew.share(Slow(), Slow(0.2).open(), time.monotonic() + 1.0)
    with pytest.raises(Stopped):
        every(range(2))
    over.set()
    crew.close()


def test_a_busy_machine_gets_helpers_when_it_is_idle(processors: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "AGAIN", 0.05)
    processors[0] = 1
    crew = Crew(1, after=0.0)
    every = crew.share(Slow(), Slow(0.0).open(), None)
    try:
        for _ in range(5):
            every(range(3))
            time.sleep(0.03)
        assert not crew._helpers
        processors[0] = 8
        waits(lambda: bool(every(range(3)) and crew._helpers))
        assert len(crew._helpers) == 1
    finally:
        crew.close()


def test_one_processor_starts_nobody() -> None:
    assert [Crew.helpers_for(t, m << 20) for t, m in ((1, 4096), (2, 4096), (16, 4096), (16, 1024), (4, 1))] == [0, 1, 7, 1, 0]


def told(stats: SearchStats, answers: Answers) -> tuple[object, ...]:
    return stats.domains, stats.open, stats.depth, stats.share, stats.ended, answers.best.round(9).tolist()


def test_a_helper_bounds_what_is_bounded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches by signs and by boxes, in which a helper does all but the first item of a list, find what they find alone."""
    shared: list[int] = []

    def leaves(self: Crew, batch: Any, deadline: float | None) -> int | None:
        while len(batch.made) < len(batch.items):
            self._listen(batch, 60.0)
        shared.append(len(batch.items) - 1)
        return None

    monkeypatch.setattr(Crew, "_next", leaves)
    ends: dict[float, list[object]] = {0.0: [], 1e9: []}
    for seed, part in ((113, Fraction(1, 12)), (104, Fraction(0)), (118, Fraction(0))):
        net = drawn(np.random.default_rng(seed), 2, [4, 3])
        group, _ = lowered(net, [over(net, 1.0)], cube(2), part * spread(net, [over(net, 1.0)], cube(2)))
        decider, q = compiled(net)._decider, questions(asked([cube(2)], [(0, group)], 1))
        assert q is not None
        for after, found in ends.items():
            monkeypatch.setattr(Crew.__init__, "__defaults__", (after,))
            answers = fresh(q)
            if part:
                stats = Forest(decider, q, answers, None, ends_after(6), threads=2).run()
            else:
                stats = InputSearch(decider, q, answers, deadline=None, progress=ends_after(6), threads=2).run()
            found.append(told(stats, answers))
    assert ends[0.0] == ends[1e9] and len(shared) > 6 and sum(shared) > 12


def test_a_helper_opens_what_a_search_sends() -> None:
    """Networks, plans, parts and boxes travel; bounds made of them elsewhere are the same."""
    net = drawn(np.random.default_rng(9), 2, [4, 3])
    verifier = compiled(net)
    again = pickle.loads(pickle.dumps(verifier._decider.compiled))
    assert again == verifier._decider.compiled
    weights = again.net.weights
    assert all(np.array_equal(v, weights[k]) for k, v in verifier.net.weights.items()) and len(weights) == len(verifier.net.weights)
