"""Searches that a user has shared: with processes, or with the machines of a Ray cluster, some of which are lost."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton.cli import main
from polytriton.errors import UsageError
from polytriton.prove import refute, search
from polytriton.prove.crew import Flow, _Helper
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch
from polytriton.runs.sharers import RaySharer, sharers
from polytriton.workers.process import JobFailed, WorkerLost
from tests.prove.audited import cube, lowered, over, spread
from tests.prove.piecewise import drawn
from tests.prove.test_neurons import fresh
from tests.prove.watched import asked, compiled
from tests.runs.conftest import eventually
from tests.runs.test_cluster import two

__all__ = ["two"]  # a fixture


def test_who_shares_is_as_asked() -> None:
    for engine, workers, count in (("auto", None, None), ("local", None, 0), ("processes", 3, 3), ("auto", 2, 2)):
        with sharers(engine, workers, None) as others:
            assert (None if others is None else others.count) == count
            assert others is None or len(others.make()) == count
    with sharers("processes", None, None) as others:
        assert others is not None and others.count >= 1


def test_the_command_shares_a_search(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Who is asked for is there, and what is wrong is told."""
    seen: list[int] = []
    own = InputSearch._round

    def notes(self: InputSearch) -> None:
        self.crew._staff()
        seen.append(len(self.crew._helpers))
        own(self)

    monkeypatch.setattr(InputSearch, "_round", notes)
    command = ["verify", "zero.onnx", "hard0.vnnlib", "--no-falsify", "--semantics", "real"]
    for more, helpers in ((["--engine", "local"], 0), (["--workers", "1"], 1)):
        seen.clear()
        assert main([*command, *more]) == 0
        assert capfd.readouterr().out == "unsat\n" and set(seen) == {helpers}
    for wrong in (["--engine", "local", "--workers", "2"], ["--engine", "none"], ["--address", "here:1"], ["--workers", "0"]):
        assert main([*command, *wrong]) == 2
        assert capfd.readouterr().err.count("polytriton: ") == 1


class Lost(Exception):
    pass


class Rays:
    """As much of the library as the near end of an actor uses: what asking for anything comes to."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.killed = list(answers), 0
        self.exceptions = type("", (), {"RayTaskError": KeyError, "GetTimeoutError": TimeoutError, "RayError": Lost})
        self.pid = self.ready = self.answer = self

    def remote(self, *given: Any) -> Rays:
        return self

    def options(self, **given: Any) -> Rays:
        assert given["max_restarts"] == 0 and given["num_cpus"] == 1
        return self

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        made = self.answers.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed += no_restart


def test_what_a_cluster_says_is_lost_or_failed() -> None:
    import polytriton

    error = KeyError()
    error.cause = UsageError("no", "yes")  # type: ignore[attr-defined]
    sharer = RaySharer(ray := Rays(polytriton.__version__, 4711, b"made", error, Lost("left"), Lost("left"), "0.0", polytriton.__version__))
    with pytest.raises(WorkerLost):
        sharer.exchange(b"")
    assert not sharer.alive()
    sharer.start()
    assert sharer.alive() and sharer.exchange(b"") == b"made"
    with pytest.raises(JobFailed, match="UsageError: no"):
        sharer.exchange(b"")
    with pytest.raises(WorkerLost, match="left"):
        sharer.exchange(b"")
    assert not sharer.alive()
    with pytest.raises(WorkerLost, match=re.escape("has polytriton 0.0")):
        sharer.start()
    assert ray.killed == 1
    sharer.stop()
    with pytest.raises(WorkerLost, match="ended"):
        sharer.start()
    assert ray.killed == 2


@pytest.mark.slow
def test_a_killed_actor_costs_time_alone(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines share a search; one of its actors is killed at work. The tree is that of a search alone."""
    import ray

    net = drawn(np.random.default_rng(7), 2, [7, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), spread(net, [over(net, 1.0)], cube(2)) / 400)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    monkeypatch.setattr(refute, "MOST", 4)
    monkeypatch.setattr(search, "FILL", 2)
    made, lock, killed, calls = dict[int, int](), threading.Lock(), list[int](), list[int]()
    ask, own = _Helper.ask, Flow.receive

    def notes(self: Any, part: Any) -> Any:
        pid = ray.get(self._distant._actor.pid.remote())
        with lock:
            made[pid] = made.get(pid, 0) + 1
        return ask(self, part)

    def kills(self: Flow[Any, Any]) -> list[Any]:
        """At the third list, once one of them was asked something."""
        self._crew._staff()
        calls.append(1)
        if len(calls) == 3:
            eventually(lambda: bool(made))
            killed.append(next(iter(made)))
            os.kill(killed[0], signal.SIGKILL)
        return own(self)

    ends = []
    monkeypatch.setattr(_Helper, "ask", notes)
    for receive in (kills, own):
        monkeypatch.setattr(Flow, "receive", receive)
        with sharers("ray", None, two.address) as others:
            assert others is not None and others.count == 2
            answers = fresh(q)
            stats = InputSearch(compiled(net)._decider, q, answers, deadline=None, others=others).run()
        assert answers.settled.all() and stats.open == 0
        ends.append((stats.domains, stats.depth, answers.best.round(9).tolist()))
    assert killed and ends[0] == ends[1]
    assert sys.modules["ray"] is ray and not ray.is_initialized()
