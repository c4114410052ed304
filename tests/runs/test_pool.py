"""Whatever becomes of workers, every task ends exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import ResourceError
from polytriton.runs.asker import Answer, Settings
from polytriton.runs.records import Record
from polytriton.runs.runner import Run
from polytriton.runs.share import Share, divide
from polytriton.runs.spread import SpreadEngine
from polytriton.runs.task import Backlog, Began, Done
from tests.runs.fakes import Fake, Fate, queries, tasks


def fated(script: list[str]) -> Fate:
    """One word of the script each time it is asked, then a long life."""
    lock, rest = threading.Lock(), iter(script)

    def say() -> str:
        with lock:
            return next(rest, "")

    return say


@settings(max_examples=30)
@given(
    networks=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12),
    scripts=st.lists(st.lists(st.sampled_from(["", "", "asked", "idle"]), max_size=20), min_size=1, max_size=4),
)
def test_nothing_is_lost_and_nothing_comes_twice(networks: list[str], scripts: list[list[str]]) -> None:
    workers = [Fake(fated(script)) for script in scripts]
    asked = queries(networks)
    pool = SpreadEngine(workers)
    run = Run(pool, Settings())
    told: list[Answer] = []
    run.listeners.append(told.append)
    answers = run.ask(asked)
    pool.close()
    assert [a.record.property for a in answers] == [q.name for q in asked]
    assert sorted(a.record.property for a in told) == sorted(q.name for q in asked)
    served = Counter(job.query.name for w in workers for job in w.served if job.query is not None)
    assert set(served.values()) <= {1}
    for a in answers:
        assert (a.record.verdict == "unsat") == (a.record.property in served)
        assert a.record.verdict == "unsat" or "lost 2 times" in a.record.note


def test_a_query_that_kills_is_an_error_and_the_others_are_answered() -> None:
    worker = Fake(lambda: "")
    ask = worker.ask

    def deadly(task):  # type: ignore[no-untyped-def]
        job = task.job
        if job.query is not None and job.query.name == "p1":
            worker.fate = lambda: "asked"
        try:
            return ask(task)
        finally:
            worker.fate = lambda: ""

    worker.ask = deadly  # type: ignore[method-assign]
    run = Run(SpreadEngine([worker]), Settings())
    answers = run.ask(queries(["a", "a", "a"]))
    assert [a.record.verdict for a in answers] == ["unsat", "error", "unsat"]
    assert "killed by SIGKILL" in answers[1].record.note
    assert isinstance(answers[1].error, ResourceError)
    assert "--memory" in answers[1].error.remedy
    assert [a.record.ended_by for a in answers] == ["", "worker", ""]
    assert run.exit_code() == 2
    assert worker.starts in (2, 3)  # the query comes back to others that wait, or to none


def test_an_idle_death_costs_no_try() -> None:
    """Dead before each job, of which no job is to blame."""
    worker = Fake(fated(["", *["idle", "", ""] * 3]))  # started; then found dead, started, asked
    pool = SpreadEngine([worker])
    for task in tasks(queries(["a", "a", "a"])):
        pool.submit(task)
    done = [e for e in pool.events() if isinstance(e, Done)]
    pool.close()
    assert [e.outcome.record.verdict for e in done if isinstance(e.outcome, Answer)] == ["unsat"] * 3
    assert worker.starts == 4


def test_no_worker_that_starts() -> None:
    pool = SpreadEngine([Fake(lambda: "start"), Fake(lambda: "start")])
    pool.submit(tasks(queries(["a"]))[0])
    with pytest.raises(ResourceError, match="no worker is left: the worker has no such machine"):
        list(pool.events())
    pool.close()


def test_one_worker_that_starts_is_enough() -> None:
    pool = SpreadEngine([Fake(lambda: "start"), Fake(lambda: "")])
    for task in tasks(queries(["a", "b"])):
        pool.submit(task)
    assert sum(isinstance(e, Done) for e in pool.events()) == 2
    pool.close()


def test_tasks_may_come_while_others_are_done() -> None:
    pool = SpreadEngine([Fake(lambda: "")])
    first, second = tasks(queries(["a", "b"]))
    pool.submit(first)

    def follow() -> Iterator[str]:
        for event in pool.events():
            if isinstance(event, Done) and event.task is first:
                pool.submit(second)
            yield f"{type(event).__name__} {event.task.job.network}"

    assert list(follow()) == ["Began a", "Done a", "Began b", "Done b"]
    pool.close()


def test_closing_ends_a_worker_that_waits() -> None:
    pool = SpreadEngine([Fake(lambda: "")])
    pool.submit(tasks(queries(["a"]))[0])
    events = pool.events()
    assert isinstance(next(events), Began)
    pool.close()
    assert not any(t.is_alive() for t in pool._pool._threads)


def test_held_records_are_not_asked_again() -> None:
    class Held:
        resumable = True

        def __init__(self) -> None:
            self.held = dict[str, Record]()

        def write(self, record: Record) -> None:
            assert record.key not in self.held
            self.held[record.key] = record

    sink, asked = Held(), queries(["a", "a", "b"])
    for served in (3, 0):
        worker = Fake(lambda: "")
        run = Run(SpreadEngine([worker]), Settings(), [sink])  # type: ignore[list-item]
        assert [a.resumed for a in run.ask(asked)] == [not served] * 3
        assert sum(job.query is not None for job in worker.served) == served


def test_the_backlog_keeps_order_and_prefers_what_is_open() -> None:
    backlog = Backlog()
    made = tasks(queries(["a", "b", "a", "b"]))
    for task in (made[2], made[3], made[0], made[1]):
        backlog.put(task)
    assert [backlog.take(last) for last in (None, None, made[1], made[0])] == [made[0], made[1], made[3], made[2]]
    assert not backlog


@pytest.mark.parametrize(
    "given, share",
    [
        ({"cpus": 8, "memory": 4 << 30, "queries": 1000}, Share(4, 2, 1 << 30)),  # as far as the budget reaches
        ({"cpus": 8, "memory": 64 << 30, "queries": 1000}, Share(8, 1, 8 << 30)),
        ({"cpus": 8, "memory": 64 << 30, "queries": 9}, Share(2, 4, 32 << 30)),
        ({"cpus": 8, "memory": 64 << 30, "queries": 3}, Share(1, 8, 64 << 30)),
        ({"cpus": 8, "memory": 64 << 30, "queries": 1000, "threads": 3}, Share(2, 3, 32 << 30)),
        ({"cpus": 2, "memory": 1 << 30, "queries": 4, "workers": 3}, Share(3, 1, (1 << 30) // 3)),
        ({"cpus": 16, "memory": 64 << 30, "queries": 1000, "gpus": 2}, Share(2, 8, 32 << 30)),
    ],
)
def test_how_a_machine_is_divided(given: dict, share: Share) -> None:
    assert divide(**given) == share


def test_devices_are_dealt_out() -> None:
    settings = Settings({"device": "cuda:0,cuda:1,cuda:2", "memory": 8})
    devices = [Share(2, 1, 4).settings(settings, k, "cuda:0,cuda:1,cuda:2").engine for k in range(2)]
    assert devices == [{"device": "cuda:0,cuda:2", "memory": 4}, {"device": "cuda:1", "memory": 4}]
    assert Share(2, 1, 4).settings(settings, 1, "cpu").engine["device"] == "cpu"
