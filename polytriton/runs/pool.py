"""Several workers, one thread of this process for each: hands out tasks, replaces workers that die, tries their tasks again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import Empty, Queue
from threading import Condition, Thread
from typing import Protocol

import msgspec

from polytriton.errors import ResourceError
from polytriton.explain import explain
from polytriton.prove.trail import Trail
from polytriton.runs.asker import Answer, failed_answer
from polytriton.runs.task import Backlog, Began, Done, Event, Job, Outcome, Reply, Task, Trouble, Turn

TRIES = 2  # workers a task may lose
STARTS = 2  # how often in a row a worker may fail to start
LOST = "give a smaller --memory or fewer --workers; --resume asks again what ended as an error"


class WorkerLost(ResourceError):
    """The worker is gone; the message says how."""

    limit = "worker"

    def __init__(self, message: str) -> None:
        super().__init__(message, LOST)


class Worker(Protocol):
    """One that works elsewhere. Only `stop` may be called from another thread, and makes the others raise WorkerLost."""

    def start(self) -> None:
        """Returns when the worker is ready; may be called again after it was lost."""

    def alive(self) -> bool: ...

    def ask(self, job: Job) -> Reply: ...

    def stop(self) -> None: ...


class _Gone:
    """A worker that cannot be started any more."""

    def __init__(self, why: BaseException) -> None:
        self.why = why


class Pool:
    def __init__(self, workers: Sequence[Worker], tries: int = TRIES) -> None:
        self._workers, self._tries = workers, tries
        self._backlog, self._changed, self._closed = Backlog(), Condition(), False
        self._events: Queue[Event | _Gone | BaseException] = Queue()
        self._losses: Counter[Turn] = Counter()
        self._open = 0  # tasks submitted and not yet done
        self._threads: list[Thread] = []

    def submit(self, task: Task) -> None:
        self._open += 1
        with self._changed:
            self._backlog.put(task)
            self._changed.notify()

    def events(self) -> Iterator[Event]:
        for k, worker in enumerate(self._workers):
            self._threads.append(Thread(target=self._serve, args=(worker,), daemon=True, name=f"polytriton-worker-{k}"))
        for thread in self._threads:
            thread.start()
        left = len(self._threads)
        while self._open:
            try:
                event = self._events.get(timeout=1.0)  # with a limit, or Ctrl-C would not be heard on Windows
            except Empty:
                continue
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, _Gone):
                left -= 1
                told = explain(event.why)
                if not left:
                    raise ResourceError(f"no worker is left: {told.message}", told.remedy) from event.why
                yield Trouble(f"a worker cannot be started, {left} go on: {told.message}")
                continue
            if isinstance(event, Done):
                self._open -= 1
            yield event

    def close(self) -> None:
        """Ends every worker at once; what they were at is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(timeout=10.0)

    # ---- a worker's thread ------------------------------------------------------------------------------

    def _serve(self, worker: Worker) -> None:
        try:
            self._work(worker)
        except BaseException as error:  # a mistake in here: the run must not wait for this thread
            self._events.put(error)

    def _work(self, worker: Worker) -> None:
        network: str | None = None
        ready = self._start(worker)
        while ready:
            task = self._take(network)
            if task is None:
                return
            network = task.job.network
            if not worker.alive() and not self._start(worker):  # it died idle: no task's doing
                self._put_back(task)
                return
            self._events.put(Began(task))
            start = time.monotonic()
            try:
                reply = worker.ask(task.job)
                outcome = self._outcome(task, reply, time.monotonic() - start)
            except WorkerLost as lost:
                if self._closed:
                    return
                self._lose(task, lost)
                ready = self._start(worker)
            except Exception as error:
                self._events.put(Done(task, _failure(task, error)))
            else:
                self._events.put(Done(task, outcome))

    def _start(self, worker: Worker) -> bool:
        for attempt in range(STARTS):
            if self._closed:
                return False
            try:
                worker.start()
                return True
            except Exception as error:
                if attempt == STARTS - 1:
                    self._events.put(_Gone(error))
        return False

    def _take(self, network: str | None) -> Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._backlog))
            return None if self._closed else self._backlog.take(network)

    def _put_back(self, task: Task) -> None:
        with self._changed:
            self._backlog.put(task)
            self._changed.notify()

    def _lose(self, task: Task, lost: WorkerLost) -> None:
        self._losses[task.turn] += 1
        if self._losses[task.turn] < self._tries:
            what = task.job.network if task.job.query is None else task.job.query.name
            self._events.put(Trouble(f"a worker was lost, {lost.message}; {what} is tried again"))
            self._put_back(task)
            return
        error = ResourceError(f"its worker was lost {self._tries} times: {lost.message}", LOST)
        error.limit = lost.limit
        self._events.put(Done(task, _failure(task, error)))

    @staticmethod
    def _outcome(task: Task, reply: Reply, seconds: float) -> Outcome:
        error = None if reply.failure is None else reply.failure.error()
        if reply.opened is not None:
            return msgspec.structs.replace(reply.opened, seconds=round(seconds, 6))  # with the way there
        if reply.record is not None:
            trail = Trail.unpacked(reply.trail) if reply.trail else None
            return Answer(reply.record, error=error, prepare=reply.prepare, query=task.job.query, trail=trail)
        assert error is not None  # a network that could not be opened
        return error


def _failure(task: Task, error: BaseException) -> Outcome:
    job = task.job
    return error if job.query is None or job.blank is None else failed_answer(job.query, job.blank, error)
