"""Several workers, one thread of this process for each: hands out jobs, tells what becomes of them, replaces workers that die.

What is done about a job that has lost its worker is the caller's affair, who may submit it again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import Generic, Protocol, TypeVar

from polytriton.workers.process import WorkerLost

J = TypeVar("J")
A = TypeVar("A")
J_in = TypeVar("J_in", contravariant=True)
A_out = TypeVar("A_out", covariant=True)

STEP = 0.5  # seconds of a wait: one without a limit would not hear Ctrl-C on Windows


class Worker(Protocol[J_in, A_out]):
    """One that works elsewhere. Only `stop` may be called from another thread, and makes the others raise WorkerLost."""

    def start(self) -> None:
        """Returns when the worker is ready; may be called again after it was lost."""

    def alive(self) -> bool: ...

    def ask(self, job: J_in) -> A_out: ...

    def stop(self) -> None: ...


class JobQueue(Protocol[J]):
    """Jobs that nobody has begun."""

    def __bool__(self) -> bool: ...

    def put(self, job: J) -> None: ...

    def take(self, last: J | None = None) -> J:
        """The next for whoever did `last`."""


class InOrder(Generic[J]):
    """As they came."""

    def __init__(self) -> None:
        self._jobs: deque[J] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, job: J) -> None:
        self._jobs.append(job)

    def take(self, last: J | None = None) -> J:
        return self._jobs.popleft()


@dataclass(frozen=True)
class Taken(Generic[J]):
    job: J


@dataclass(frozen=True)
class Ended(Generic[J, A]):
    """An answer, or why there is none: WorkerLost, or what `ask` raised else."""

    job: J
    answer: A | None
    error: Exception | None
    seconds: float


@dataclass(frozen=True)
class Missing:
    """A worker that works no more; `left` go on."""

    why: Exception
    left: int


class Pool(Generic[J, A]):
    def __init__(self, workers: Sequence[Worker[J, A]], waiting: JobQueue[J] | None = None, *, starts: int = 1, again: bool = True) -> None:
        """`starts`: how often in a row a worker may fail to start; `again`: one that dies is started again."""
        self._workers, self._starts, self._again = workers, starts, again
        self._waiting: JobQueue[J] = InOrder() if waiting is None else waiting
        self._changed, self._closed = Condition(), False
        self._events: SimpleQueue[Taken[J] | Ended[J, A] | Missing | BaseException] = SimpleQueue()
        self._open, self._left = 0, len(workers)  # jobs that have not ended; workers
        self._threads = [Thread(target=self._employ, args=(w,), daemon=True, name=f"polytriton-worker-{k}") for k, w in enumerate(workers)]

    def submit(self, job: J) -> None:
        self._open += 1
        with self._changed:
            self._waiting.put(job)
            self._changed.notify()

    def withdraw(self) -> J | None:
        """A job that nobody has begun, for the caller to do it; None where there is none."""
        with self._changed:
            if not self._waiting:
                return None
            self._open -= 1
            return self._waiting.take()

    def begin(self) -> None:
        """Starts the workers; `events` does it too."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def hear(self, seconds: float = math.inf) -> Taken[J] | Ended[J, A] | Missing | None:
        """The next event; None where none comes in time."""
        end = time.monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=max(0.0, min(STEP, end - time.monotonic())))
            except Empty:
                if time.monotonic() >= end:
                    return None
                continue
            if isinstance(event, BaseException):
                raise event
            self._open -= isinstance(event, Ended)
            return event

    def events(self) -> Iterator[Taken[J] | Ended[J, A] | Missing]:
        """Until all jobs have ended, those too that are submitted meanwhile."""
        self.begin()
        while self._open:
            event = self.hear()
            assert event is not None
            yield event
            if isinstance(event, Missing) and not event.left and self._open:
                raise event.why

    def close(self) -> None:
        """Ends every worker at once; what they were at is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=10.0)

    # ---- a worker's thread ------------------------------------------------------------------------------

    def _employ(self, worker: Worker[J, A]) -> None:
        try:
            why = self._work(worker)
            if why is not None:
                with self._changed:
                    self._left -= 1
                    left = self._left
                self._events.put(Missing(why, left))
        except BaseException as error:  # a mistake in here: nobody must wait for this thread
            self._events.put(error)

    def _work(self, worker: Worker[J, A]) -> Exception | None:
        """Until the end, or until the worker can work no more: why."""
        last: J | None = None
        why = self._start(worker)
        while why is None and self._wait():
            if not worker.alive():  # it died at its last job, or idle: no other job's doing
                why = self._start(worker) if self._again else WorkerLost("died, and is not started again")
                if why is not None:
                    break
            job = self._take(last)
            if job is None:
                continue
            last = job
            self._events.put(Taken(job))
            began = time.monotonic()
            answer, error = None, None
            try:
                answer = worker.ask(job)
            except Exception as raised:
                error = raised
            if not self._closed:
                self._events.put(Ended(job, answer, error, time.monotonic() - began))
        return None if self._closed else why

    def _start(self, worker: Worker[J, A]) -> Exception | None:
        why: Exception | None = None
        for _ in range(self._starts):
            if self._closed:
                break
            try:
                worker.start()
                return None
            except Exception as error:
                why = error
        return why

    def _wait(self) -> bool:
        """Until there is a job; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._waiting))
            return not self._closed

    def _take(self, last: J | None) -> J | None:
        """None where another was faster."""
        with self._changed:
            return self._waiting.take(last) if self._waiting and not self._closed else None
