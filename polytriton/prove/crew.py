"""Processes beside this one that take a share of a search's batches. A lost one costs time, and nothing else.

Each of them has one thread, since a batch gains more by being divided among processes than by threads that wait for one another. They
start when a search has gone on for a while, one for each processor that is idle; until then, and where none is, this process does it all.
What travels is pickled: it comes from this program alone, by pipes that nobody else holds. No file is ever unpickled.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch

from polytriton.guard import guarded
from polytriton.prove.decider import Decider
from polytriton.prove.options import Options
from polytriton.runtime import settings
from polytriton.runtime.results import Stopped
from polytriton.workers.pool import Ended, Missing, Pool
from polytriton.workers.process import JobFailed, Process, WorkerLost, environment

AFTER = 0.5  # seconds of a search before others are started: starting one costs two seconds of a processor
AGAIN = 2.0  # seconds after which to look again whether a processor is idle, where none was
LEAST = 1 << 20  # bytes of memory that options take
MEMORY = 512 << 20  # of the budget for each process, beyond which no more are started

A = TypeVar("A")
B = TypeVar("B")
A_in = TypeVar("A_in", contravariant=True)
B_out = TypeVar("B_out", covariant=True)

_LOG = logging.getLogger(__name__)


class Work(Protocol[A_in, B_out]):
    """What to do, as it travels: `open` makes the function that does it for one item after another."""

    def open(self) -> Callable[[A_in], B_out]: ...


@dataclass
class _Batch:
    """Items, and by number what came of them; `work` is how they are done elsewhere, packed."""

    work: bytes
    items: Sequence[Any]
    made: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """An item of a batch."""

    batch: _Batch
    k: int


class _Helper(Process):
    """A process with one thread. An error there ends its part in the search: the near end does what it was at, and meets the error."""

    def __init__(self) -> None:
        super().__init__(__name__, env=environment(1))
        self._opened = b""

    def ask(self, part: _Part) -> Any:
        if self._opened is not part.batch.work:
            self._tell("open", part.batch.work)
            self._opened = part.batch.work
        return self._tell("do", part.batch.items[part.k])

    def _tell(self, what: str, given: object) -> Any:
        try:
            return pickle.loads(self.exchange(pickle.dumps((what, given), pickle.HIGHEST_PROTOCOL)))
        except (JobFailed, pickle.PickleError) as failed:
            self.end()
            raise WorkerLost(f"failed: {failed}") from None


class Crew:
    """This process and at most `helpers` others. `close` ends them."""

    def __init__(self, helpers: int, after: float = AFTER) -> None:
        self.helpers, self._look = helpers, time.monotonic() + after
        self._helpers: list[_Helper] = []
        self._pool: Pool[_Part, Any] = Pool([])

    @classmethod
    def for_search(cls, decider: Decider, threads: int) -> Crew:
        """For a search with so many threads, or as many as the configuration asks for; without others where kernels do the work."""
        o, host = decider.options, decider.device.type == "cpu" and not decider.kernels
        return cls(cls.helpers_for(min(threads, o.config.threads or threads), o.memory) if host else 0)

    def options(self, whole: Options) -> Options:
        """Those of one process: its part of the budget."""
        return replace(whole, memory=max(LEAST, whole.memory // (1 + self.helpers)))

    def threads(self) -> AbstractContextManager[None]:
        """One thread for this process too, where there may be others."""
        return settings.threads(1) if self.helpers else nullcontext()

    @staticmethod
    def helpers_for(threads: int, memory: int) -> int:
        """How many others a process with so many threads, and a budget of so many bytes for all, may start."""
        return max(0, min(threads, memory // MEMORY) - 1)

    def share(self, work: Work[A, B], mine: Callable[[A], B], deadline: float | None) -> Callable[[Sequence[A]], list[B]]:
        """`mine` for every item of a list, by whoever is free; `work` makes the same elsewhere. The first is always done here."""
        told: list[bytes] = []

        def every(items: Sequence[A]) -> list[B]:
            if len(items) < 2 or not self._staffed():
                return [mine(item) for item in items]
            if not told:
                told.append(pickle.dumps(work, pickle.HIGHEST_PROTOCOL))
            return self._divide(_Batch(told[0], items), mine, deadline)

        return every

    def close(self) -> None:
        """Ends the others at once; what they were at is lost."""
        self._pool.close()

    def _staffed(self) -> bool:
        """Whether there are others: as many as processors are idle, once it is time to look."""
        if not self._helpers and self.helpers and time.monotonic() >= self._look:
            self._look = time.monotonic() + AGAIN
            self._helpers = [_Helper() for _ in range(min(self.helpers, settings.idle_processors() - 1))]
            self._pool = Pool(self._helpers, again=False)
            self._pool.begin()
        return bool(self._helpers)

    def _divide(self, batch: _Batch, mine: Callable[[A], B], deadline: float | None) -> list[B]:
        for k in range(1, len(batch.items)):
            self._pool.submit(_Part(batch, k))
        try:
            mine_next: int | None = 0
            while mine_next is not None:
                batch.made[mine_next] = mine(batch.items[mine_next])
                mine_next = self._next(batch, deadline)
        finally:
            while self._pool.withdraw() is not None:  # where this batch has failed
                pass
        return [batch.made[k] for k in range(len(batch.items))]

    def _next(self, batch: _Batch, deadline: float | None) -> int | None:
        """What this process does next; None once all is done. What a lost helper was at comes back."""
        self._listen(batch, 0.0)
        while (part := self._pool.withdraw()) is None and len(batch.made) < len(batch.items):
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise Stopped
            self._listen(batch, left)
        return None if part is None else part.k

    def _listen(self, batch: _Batch, seconds: float) -> None:
        """To what the helpers have to tell, for so long at most until one speaks."""
        event = self._pool.hear(seconds)
        while event is not None:
            if isinstance(event, Ended) and event.error is None:
                event.job.batch.made[event.job.k] = event.answer
            elif isinstance(event, Ended) and event.job.batch is batch:
                self._pool.submit(event.job)
            elif isinstance(event, Missing):
                _LOG.info("a helper is lost, the search goes on without it: it %s", event.why)
            event = self._pool.hear(0.0)


def handler() -> Callable[[bytes], bytes]:
    """The far end."""
    cpu, opened = torch.device("cpu"), list[Callable[[object], object]]()

    @guarded
    def answer(data: bytes) -> bytes:
        what, given = pickle.loads(data)
        with settings.pin_settings(cpu):
            if what == "open":
                opened[:] = [pickle.loads(given).open()]
                return pickle.dumps(None)
            return pickle.dumps(opened[0](given), pickle.HIGHEST_PROTOCOL)

    return answer
