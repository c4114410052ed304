"""Searches that other processes take a share of: the same results, whoever is lost, and nobody left behind."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton.prove import crew as crew_module
from polytriton.prove.attempt import Answers
from polytriton.prove.crew import Crew, Flow, Others
from polytriton.prove.forest import Forest
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch
from polytriton.prove.trail import Trail
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.results import Stopped
from polytriton.workers.process import Process
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


@pytest.fixture(autouse=True)
def small_searches_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.prove.search.ALONE", 0)


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


def shared(crew: Crew, work: Any, mine: Callable[[int], Any] | None = None, deadline: float | None = None) -> Callable[[Any], list[Any]]:
    """What comes of a list of numbers."""
    flow: Flow[int, Any] = Flow(crew, work, mine or work.open(), deadline)

    def every(items: range) -> list[Any]:
        flow.send(items)
        return flow.receive()

    return every


def test_items_are_shared_and_a_killed_helper_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started again, but not for ever."""
    monkeypatch.setattr(crew_module, "STARTS", 2)
    crew = Crew(1, after=0.0)
    every, dead = shared(crew, Slow()), set[int | None]()
    try:
        for _ in range(2):
            waits(lambda: len({who for _, who in every(range(20))} - dead) == 2)
            (child,) = crew._helpers
            dead.add(child._distant.pid)  # type: ignore[attr-defined]
            killer = threading.Timer(0.1, os.kill, (child._distant.pid, signal.SIGKILL))  # type: ignore[attr-defined]
            killer.start()
            made = every(range(40))
            killer.join()
            assert [square for square, _ in made] == [k * k for k in range(40)]
        assert len(dead) == 2 and made[0][1] == os.getpid()
        waits(lambda: not any(t.is_alive() for t in crew._pool._threads))
        assert {who for _, who in every(range(9))} == {os.getpid()}
    finally:
        crew.close()


def test_lists_are_received_as_they_were_sent_and_dropped_ones_never() -> None:
    for helpers in (0, 1):
        crew = Crew(helpers, after=0.0)
        flow: Flow[int, Any] = Flow(crew, Slow(0.001), Slow(0.001).open(), None)
        try:
            for first in (0, 10, 20):
                flow.send(range(first, first + 3))
            assert [k for k, _ in flow.receive()] == [0, 1, 4] and flow.items() == [10, 11, 12, 20, 21, 22] and len(flow) == 2
            assert flow.drop() == [10, 11, 12, 20, 21, 22] and not flow.items()
            flow.send(range(5))
            assert [k for k, _ in flow.receive()] == [0, 1, 4, 9, 16] and not len(flow)
        finally:
            crew.close()


class Waits:
    """Far away, and done with its first item when three are done here."""

    def __init__(self) -> None:
        self.done, self.all = list[int](), threading.Event()

    def alive(self) -> bool:
        return True

    def start(self) -> None: ...

    def end(self) -> None: ...

    def stop(self) -> None:
        self.all.set()

    def exchange(self, data: bytes) -> bytes:
        what, given = pickle.loads(data)
        if what == "do":
            self.all.wait(60.0)
        return pickle.dumps(None if what == "open" else given * given)

    def here(self, k: int) -> int:
        self.done.append(k)
        if len(self.done) == 3:
            self.all.set()
        return k * k


def test_whoever_waits_begins_the_next_list() -> None:
    """What comes of it is the next list's, though it is there first."""
    far = Waits()
    crew = Crew(0, others=Others(1, lambda: [far]))
    flow: Flow[int, int] = Flow(crew, Slow(), far.here, None)  # type: ignore[arg-type]
    try:
        flow.send([2, 3])
        flow.send([4, 5])
        crew._staff()
        waits(lambda: len(crew._pool._waiting._jobs) == 3)  # type: ignore[attr-defined]
        assert flow.receive() == [4, 9] and far.done == [3, 4, 5]
        assert flow.receive() == [16, 25] and far.done == [3, 4, 5]
    finally:
        crew.close()


@pytest.mark.slow
def test_work_that_opens_nowhere_else_is_done_here() -> None:
    crew = Crew(1, after=0.0)
    every = shared(crew, Fails(), Slow(0.001).open())
    try:
        tried = 0
        while not tried or any(t.is_alive() for t in crew._pool._threads):
            assert [s for s, _ in every(range(5))] == [0, 1, 4, 9, 16]
            tried += 1
        (child,) = crew._helpers
    finally:
        crew.close()
    assert not child.alive()


def test_a_helper_opens_each_work() -> None:
    crew = Crew(1, after=0.0)
    try:
        for seconds in (0.02, 0.03):
            every = shared(crew, Slow(seconds, add=int(1000 * seconds)))
            expected = [k * k + int(1000 * seconds) for k in range(20)]
            who: set[int] = set()
            while len(who) < 2:
                made = every(range(20))
                assert [s for s, _ in made] == expected
                who = {w for _, w in made}
    finally:
        crew.close()


@pytest.mark.parametrize("over", [True, False])
def test_a_helper_that_never_answers_costs_time_alone(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is at is done here in the end, unless the deadline comes first."""
    wait = threading.Event()
    for name, made in {"start": lambda self: None, "alive": lambda self: True, "exchange": lambda self, data: wait.wait(60.0)}.items():
        monkeypatch.setattr(Process, name, made)
    monkeypatch.setattr(crew_module, "SLOW", 60.0 if over else 0.3)
    crew = Crew(1, after=0.0)
    flow: Flow[int, Any] = Flow(crew, Slow(), Slow(0.2).open(), time.monotonic() + (1.0 if over else 60.0))
    try:
        flow.send(range(3))
        if over:
            with pytest.raises(Stopped):
                flow.receive()
        else:
            assert flow.receive() == [(k * k, os.getpid()) for k in range(3)]
    finally:
        wait.set()
        crew.close()


def test_a_busy_machine_gets_helpers_when_it_is_idle(processors: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "AGAIN", 0.05)
    processors[0] = 1
    crew = Crew(1, after=0.0)
    every = shared(crew, Slow(), Slow(0.0).open())
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


def test_a_helper_bounds_what_is_bounded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches by signs and by boxes, in which a helper does everything, find, and note on the disk, what they find alone."""
    done: list[int] = []
    monkeypatch.setattr("polytriton.prove.notes.BLOCK", 1)

    def leaves(self: Flow[Any, Any]) -> list[Any]:
        batch = self._lists[0]
        self._crew._staff()
        while len(batch.made) < len(batch.items):
            self._listen(60.0)
        done.append(len(batch.items))
        self._lists.popleft()
        return [batch.made[k] for k in range(len(batch.items))]

    own, ends = Flow.receive, dict[float, list[object]]({0.0: [], 1e9: []})
    for seed, part in ((113, Fraction(1, 12)), (104, Fraction(0)), (118, Fraction(0))):
        net = drawn(np.random.default_rng(seed), 2, [4, 3])
        group, _ = lowered(net, [over(net, 1.0)], cube(2), part * spread(net, [over(net, 1.0)], cube(2)))
        decider, q = compiled(net)._decider, questions(asked([cube(2)], [(0, group)], 1))
        assert q is not None
        for after, found in ends.items():
            monkeypatch.setattr(Crew.__init__, "__defaults__", (after, None))
            monkeypatch.setattr(Flow, "receive", own if after else leaves)
            answers = fresh(q)
            answers.trail = Trail(tmp_path)
            if part:
                stats = Forest(decider, q, answers, None, ends_after(6), threads=2).run()
            else:
                stats = InputSearch(decider, q, answers, deadline=None, progress=ends_after(6), threads=2).run()
            noted = answers.trail.divisions().tolist(), answers.trail.refutations().tolist()
            found.append((told(stats, answers), noted))
            assert part or not answers.settled.any()  # there are unsafe inputs
            assert all(noted) and isinstance(answers.trail.divisions(), np.memmap)
    assert ends[0.0] == ends[1e9] and len(done) > 6 and sum(done) > 12


@pytest.mark.parametrize("signs", [True, False])
def test_what_is_on_its_way_when_a_search_ends_waits_as_before(signs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in the end is what was not refuted when the search was last heard of."""
    net = drawn(np.random.default_rng(7), 2, [7, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), -spread(net, [over(net, 1.0)], cube(2)) / 2)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    monkeypatch.setattr("polytriton.prove.neurons.MOST", 8)
    monkeypatch.setattr("polytriton.prove.refute.MOST", 4)
    for module in ("search", "refute"):
        monkeypatch.setattr(f"polytriton.prove.{module}.FILL", 1)
    monkeypatch.setattr(Crew.__init__, "__defaults__", (1e9, None))
    sent: list[int] = []
    own = Flow.receive

    def receive(self: Flow[Any, Any]) -> list[Any]:
        sent.append(len(self))
        return own(self)

    monkeypatch.setattr(Flow, "receive", receive)
    for rounds in range(1, 7):
        answers, decider = fresh(q), compiled(net)._decider
        if signs:
            stats = Forest(decider, q, answers, None, ends_after(rounds), threads=2).run()
        else:
            stats = InputSearch(decider, q, answers, deadline=None, progress=ends_after(rounds), threads=2).run()
        assert stats.ended == "time" and not answers.settled.any()
        assert stats.share == pytest.approx(stats.samples[-1].share, abs=2e-6) and stats.open == stats.samples[-1].open
    assert max(sent) == 2


def test_a_small_search_is_dealt_out_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lists are those of one process: halves of a batch of few boxes cost as much. What was done says so, not the clock."""
    net = drawn(np.random.default_rng(7), 2, [7, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), -spread(net, [over(net, 1.0)], cube(2)) / 2)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    monkeypatch.setattr(Crew.__init__, "__defaults__", (1e9, None))
    sent: list[tuple[int, int]] = []
    own = Flow.send

    def send(self: Flow[Any, Any], items: Sequence[Any]) -> None:
        sent.append((len(items), sum(len(item[0]) for item in items)))
        own(self, items)

    monkeypatch.setattr(Flow, "send", send)

    def lists(threads: int, alone: float) -> tuple[list[tuple[int, int]], InputSearch]:
        sent.clear()
        monkeypatch.setattr("polytriton.prove.search.ALONE", alone)
        search = InputSearch(compiled(net)._decider, q, fresh(q), deadline=None, progress=ends_after(6), threads=threads)
        search.run()
        return list(sent), search

    alone, search = lists(1, 0)
    assert all(count == 1 for count, _ in alone) and len(alone) > 3
    assert lists(2, 1e30)[0] == alone, "the same tree"
    after = (alone[0][1] + alone[1][1]) * search.cost
    late, _ = lists(2, after)
    assert late[:2] == alone[:2] and all(count == 1 for count, _ in late[:2]) and any(count == 2 for count, _ in late[2:])


@pytest.mark.slow
@pytest.mark.parametrize("signs", [True, False])
def test_a_search_whose_helper_is_killed_ends_as_it_does_alone(signs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper is killed while it is at a batch, as the system does it where memory is short."""
    rng = np.random.default_rng(7)
    net = drawn(rng, 2, [7, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), spread(net, [over(net, 1.0)], cube(2)) / 200)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    monkeypatch.setattr("polytriton.prove.neurons.MOST", 16)
    monkeypatch.setattr("polytriton.prove.refute.MOST", 4)
    killed, calls, own, ends = set[int](), list[int](), Flow.receive, list[object]()

    def kills(self: Flow[Any, Any]) -> list[Any]:
        """Kills the helper when it has begun an item of the third list or a later one: it may be done with what was sent already."""
        self._crew._staff()
        calls.append(len(taken))
        end = time.monotonic() + (1.0 if taken else 60.0)
        while len(calls) >= 3 and not killed and len(taken) == calls[-1] and time.monotonic() < end:
            time.sleep(0.02)
        if len(calls) >= 3 and not killed and len(taken) > calls[-1]:
            pid = self._crew._helpers[0]._distant.pid  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return own(self)

    taken, ask = list[object](), crew_module._Helper.ask

    def notes(self: Any, part: Any) -> Any:
        taken.append(part)
        return ask(self, part)

    monkeypatch.setattr(crew_module._Helper, "ask", notes)
    for after in (0.0, 1e9):
        monkeypatch.setattr(Crew.__init__, "__defaults__", (after, None))
        monkeypatch.setattr(Flow, "receive", own if after else kills)
        answers, decider = fresh(q), compiled(net)._decider
        if signs:
            stats = Forest(decider, q, answers, None, ends_after(1000), threads=2).run()
        else:
            stats = InputSearch(decider, q, answers, deadline=None, threads=2).run()
        assert answers.settled.all()
        ends.append(told(stats, answers))
    assert killed and ends[0] == ends[1]


def test_a_helper_opens_what_a_search_sends() -> None:
    """Networks, plans, parts and boxes travel; bounds made of them elsewhere are the same."""
    net = drawn(np.random.default_rng(9), 2, [4, 3])
    verifier = compiled(net)
    again = pickle.loads(pickle.dumps(verifier._decider.compiled))
    assert again == verifier._decider.compiled
    weights = again.net.weights
    assert all(np.array_equal(v, weights[k]) for k, v in verifier.net.weights.items()) and len(weights) == len(verifier.net.weights)
