"""The engine of several workers, here or elsewhere: a task whose worker is lost goes to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from polytriton.errors import PolytritonError, ResourceError
from polytriton.explain import explain
from polytriton.prove.trail import Trail
from polytriton.runs.asker import Answer, failed_answer
from polytriton.runs.task import Backlog, Began, Done, Event, Outcome, Reply, Task, Trouble, Turn
from polytriton.workers.pool import Ended, Missing, Pool, Taken, Worker
from polytriton.workers.process import WorkerLost

TRIES = 2  # workers a task may lose
STARTS = 2  # how often in a row a worker may fail to start
LOST = "give a smaller --memory or fewer --workers; --resume asks again what ended as an error"


class SpreadEngine:
    def __init__(self, workers: Sequence[Worker[Task, Reply]], tries: int = TRIES) -> None:
        self._pool: Pool[Task, Reply] = Pool(workers, Backlog(), starts=STARTS)
        self._tries, self._losses = tries, Counter[Turn]()

    def submit(self, task: Task) -> None:
        self._pool.submit(task)

    def close(self) -> None:
        self._pool.close()

    def events(self) -> Iterator[Event]:
        for event in self._pool.events():
            if isinstance(event, Taken):
                yield Began(event.job)
            elif isinstance(event, Missing):
                yield _trouble(event)
            else:
                yield self._settle(event)

    def _settle(self, ended: Ended[Task, Reply]) -> Event:
        task, job, error = ended.job, ended.job.job, ended.error
        if ended.answer is not None:
            return Done(task, _outcome(task, ended.answer, ended.seconds))
        assert error is not None
        if isinstance(error, WorkerLost):
            self._losses[task.turn] += 1
            if self._losses[task.turn] < self._tries:
                self._pool.submit(task)
                what = job.network if job.query is None else job.query.name
                return Trouble(f"a worker was lost: it {error}; {what} is tried again")
            error = _resource(f"its worker was lost {self._tries} times: it {error}")
        return Done(task, error if job.query is None or job.blank is None else failed_answer(job.query, job.blank, error))


def _trouble(missing: Missing) -> Trouble:
    told = explain(_resource(f"the worker {missing.why}") if isinstance(missing.why, WorkerLost) else missing.why)
    if not missing.left:
        raise ResourceError(f"no worker is left: {told.message}", told.remedy) from missing.why
    return Trouble(f"a worker cannot be started, {missing.left} go on: {told.message}")


def _resource(message: str) -> PolytritonError:
    error = ResourceError(message, LOST)
    error.limit = "worker"
    return error


def _outcome(task: Task, reply: Reply, seconds: float) -> Outcome:
    error = None if reply.failure is None else reply.failure.error()
    if reply.opened is not None:
        return msgspec.structs.replace(reply.opened, seconds=round(seconds, 6))  # with the way there
    if reply.record is not None:
        trail = Trail.unpack(reply.trail) if reply.trail else None
        return Answer(reply.record, error=error, prepare=reply.prepare, query=task.job.query, trail=trail)
    assert error is not None  # a network that could not be opened
    return error
