"""One worker: what it prints, raises and starts, and who ends it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polytriton.workers.pool import Ended, Missing, Pool
from polytriton.workers.process import JobFailed, Process, WorkerLost, environment

ECHO = """
import os, sys, time

def handler():
    print("noise of an import")
    def answer(data):
        os.system("echo noise of a child")
        if data == b"raise":
            raise KeyError("first\\nsecond")
        if data == b"sleep":
            time.sleep(60)
        if data == b"die":
            os._exit(3)
        return data * 2 + " ".join(sys.argv[1:]).encode()
    return answer
"""


class Echo(Process):
    def ask(self, job: bytes) -> bytes:
        return self.exchange(job, 30.0)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    """In an interpreter whose site-packages print before anything else."""
    (tmp_path / "echoes.py").write_text(ECHO)
    (tmp_path / "sitecustomize.py").write_text("print('noise of site-packages', end='', flush=True)")
    env = environment()
    made = Echo("echoes", ["a", "b"], env={**env, "PYTHONPATH": os.pathsep.join((str(tmp_path), env["PYTHONPATH"]))})
    yield made
    made.end()


def test_what_a_worker_prints_is_no_answer_and_what_it_raises_is_one(echo: Echo) -> None:
    echo.start()
    assert echo.exchange(b"x") == b"xxa b"
    with pytest.raises(JobFailed, match="KeyError: ") as failed:
        echo.exchange(b"raise")
    assert failed.value.kind == "KeyError" and "first" in failed.value.said
    assert echo.exchange(bytes(1 << 20)) == bytes(1 << 21) + b"a b"


def test_a_worker_that_is_stopped_answers_no_more(echo: Echo) -> None:
    echo.start()
    threading.Timer(0.2, echo.stop).start()
    with pytest.raises(WorkerLost, match="was killed"):
        echo.exchange(b"sleep")
    with pytest.raises(WorkerLost, match="ended by its parent"):
        echo.start()


def test_a_pool_goes_on_with_a_new_process_or_without(echo: Echo) -> None:
    jobs = [b"die", b"x", b"raise", b"y"]
    pool = Pool([echo])
    for job in jobs:
        pool.submit(job)
    ended = [event for event in pool.events() if isinstance(event, Ended)]
    assert [event.job for event in ended] == jobs and ended[1].answer == b"xxa b" and isinstance(ended[2].error, JobFailed)
    assert str(ended[0].error) == "ended with exit code 3"
    echo._stopped = True  # as if it could not be started again
    echo.end()
    pool.submit(b"z")
    with pytest.raises(WorkerLost):
        assert [type(event) for event in pool.events()] == [Missing]
    assert pool.withdraw() == b"z" and pool.withdraw() is None
    pool.close()
