"""Processes beside this one that take a share of a search's batches. A lost one costs time, and nothing else.

There are no shares that run dry: what is to be done lies in one list, from which whoever is free takes the next. A search sends as much as
keeps all of them busy while it takes in what came of what it sent before, always in the order in which it was sent. So who does what, how
fast, and who is lost changes no tree.

Each process has one thread, since a batch gains more by being divided among processes than by threads that wait for one another. Those of
this machine start when a search has gone on for a while, one for each processor that is idle; until then, and where none is, this process
does it all. What travels is pickled: it comes from this program alone, by pipes, or a cluster's connections, that nobody else holds. No
file is ever unpickled.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from polytriton.guard import guard
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
STARTS = 3  # of a helper: one that dies is started again, but not for ever
LISTS = 2  # on their way where others help: while they do the last items of one they find those of the next
SLOW = 4.0  # times what an item took here at most, and so many seconds: then it is done here, whoever else is at it

A = TypeVar("A")
B = TypeVar("B")
A_in = TypeVar("A_in", contravariant=True)
B_out = TypeVar("B_out", covariant=True)

_LOG = logging.getLogger(__name__)


class Work(Protocol[A_in, B_out]):
    """What to do, as it travels: `open` makes the function that does it for one item after another."""

    def open(self) -> Callable[[A_in], B_out]: ...


class Distant(Protocol):
    """A process elsewhere that answers by `handler`: `start` may be called again once it is lost, and the others raise WorkerLost then."""

    def start(self) -> None: ...

    def alive(self) -> bool: ...

    def exchange(self, data: bytes) -> bytes: ...

    def end(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Others:
    """So many processes that a user asked for, and what makes the near ends of them."""

    count: int
    make: Callable[[], Sequence[Distant]]


def processes(count: int) -> list[Process]:
    """Of this machine."""
    return [Process(__name__, env=environment(1)) for _ in range(count)]


@dataclass(eq=False)
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


class _Helper:
    """A process with one thread. An error there ends its part in the search: the near end does what it was at, and meets the error."""

    def __init__(self, distant: Distant) -> None:
        self._distant, self._opened, self._starts = distant, b"", STARTS
        self.alive, self.stop = distant.alive, distant.stop

    def start(self) -> None:
        if not self._starts:
            raise WorkerLost("was lost too often")
        self._starts, self._opened = self._starts - 1, b""
        self._distant.start()

    def ask(self, part: _Part) -> Any:
        if self._opened is not part.batch.work:
            self._tell("open", part.batch.work)
            self._opened = part.batch.work
        return self._tell("do", part.batch.items[part.k])

    def _tell(self, what: str, given: object) -> Any:
        try:
            return pickle.loads(self._distant.exchange(pickle.dumps((what, given), pickle.HIGHEST_PROTOCOL)))
        except (JobFailed, pickle.PickleError) as failed:
            self._starts = 0
            self._distant.end()
            raise WorkerLost(f"failed: {failed}") from None


class Crew:
    """This process and at most `helpers` others; `others` where they are asked for, else processes of this machine. `close` ends them."""

    def __init__(self, helpers: int, after: float = AFTER, others: Others | None = None) -> None:
        self.helpers = helpers if others is None else others.count
        self._look, self._others = time.monotonic() + (after if others is None else 0.0), others
        self._helpers: list[_Helper] = []
        self._pool: Pool[_Part, Any] = Pool([])

    @classmethod
    def for_search(cls, decider: Decider, threads: int, others: Others | None = None) -> Crew:
        """For a search with so many threads, or as many as the configuration asks for; without others where kernels do the work."""
        o, host = decider.options, decider.device.type == "cpu" and not decider.kernels
        if not host:
            return cls(0)
        return cls(cls.helpers_for(min(threads, o.config.threads or threads), o.memory), others=others)

    def options(self, whole: Options) -> Options:
        """Those of one process: its part of the budget."""
        return replace(whole, memory=max(LEAST, whole.memory // (1 + self.helpers)))

    def threads(self) -> AbstractContextManager[None]:
        """One thread for this process too, where there may be others."""
        return settings.threads(1) if self.helpers else nullcontext()

    @property
    def lists(self) -> int:
        """How many lists of items a search has on their way."""
        return LISTS if self.helpers else 1

    @staticmethod
    def helpers_for(threads: int, memory: int) -> int:
        """How many others a process with so many threads, and a budget of so many bytes for all, may start."""
        return max(0, min(threads, memory // MEMORY) - 1)

    def close(self) -> None:
        """Ends the others at once; what they were at is lost."""
        self._pool.close()

    def _staff(self) -> None:
        """Others are started: as many as processors are idle, once it is time to look, or all that were asked for."""
        if self._helpers or not self.helpers or time.monotonic() < self._look:
            return
        self._look = time.monotonic() + AGAIN
        if self._others is not None:
            distant: Sequence[Distant] = self._others.make()
        else:
            distant = processes(min(self.helpers, settings.idle_processors() - 1))
        if distant:
            self._helpers, before = [_Helper(d) for d in distant], self._pool
            self._pool = Pool(self._helpers)
            while (part := before.withdraw()) is not None:
                self._pool.submit(part)
            self._pool.begin()


class Flow(Generic[A, B]):
    """Lists of items that a search has sent, and not yet what came of them.

    `mine` does an item here; `work` makes the same elsewhere. A crew serves one flow at a time.
    """

    def __init__(self, crew: Crew, work: Work[A, B], mine: Callable[[A], B], deadline: float | None) -> None:
        self._crew, self._work, self._mine, self._deadline = crew, work, mine, deadline
        self._told, self._longest = b"", 0.0
        self._lists: deque[_Batch] = deque()

    def __len__(self) -> int:
        return len(self._lists)

    def items(self) -> list[A]:
        """All that was sent and not received."""
        return [item for batch in self._lists for item in batch.items]

    def send(self, items: Sequence[A]) -> None:
        if self._crew.helpers and not self._told:
            self._told = pickle.dumps(self._work, pickle.HIGHEST_PROTOCOL)
        batch = _Batch(self._told, items)
        self._lists.append(batch)
        for k in range(len(items)):
            self._crew._pool.submit(_Part(batch, k))

    def receive(self) -> list[B]:
        """What came of the list sent first. Until it is whole this process does the next item that nobody has begun."""
        batch, crew = self._lists[0], self._crew
        while len(batch.made) < len(batch.items):
            crew._staff()
            if self._listen(0.0):
                continue
            part = crew._pool.withdraw() or self._overdue(batch)
            if part is not None:
                began = time.monotonic()
                part.batch.made.setdefault(part.k, self._mine(part.batch.items[part.k]))
                self._longest = max(self._longest, time.monotonic() - began)
        self._lists.popleft()
        return [batch.made[k] for k in range(len(batch.items))]

    def drop(self) -> list[A]:
        """What was sent and not received, and is not wanted any more."""
        left = self.items()
        self._lists.clear()
        while self._crew._pool.withdraw() is not None:
            pass
        return left

    def _overdue(self, batch: _Batch) -> _Part | None:
        """Waits for the others; what takes them too long is done here as well."""
        left = math.inf if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            raise Stopped
        if self._listen(min(left, SLOW + SLOW * self._longest)):
            return None
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise Stopped
        return _Part(batch, min(set(range(len(batch.items))) - batch.made.keys()))

    def _listen(self, seconds: float) -> bool:
        """To what the helpers have to tell, for so long at most until one speaks: whether one did."""
        pool, heard = self._crew._pool, False
        event = pool.hear(seconds)
        while event is not None:
            heard = True
            if isinstance(event, Ended) and event.error is None:
                event.job.batch.made.setdefault(event.job.k, event.answer)
            elif isinstance(event, Ended) and event.job.batch in self._lists:
                _LOG.info("a helper is lost, what it was at is done again: it %s", event.error)
                pool.submit(event.job)
            elif isinstance(event, Missing):
                _LOG.info("the search goes on with %d helpers: one %s", event.left, event.why)
            event = pool.hear(0.0)
        return heard


def handler() -> Callable[[bytes], bytes]:
    """The far end."""
    cpu, opened = torch.device("cpu"), list[Callable[[object], object]]()

    @guard
    def answer(data: bytes) -> bytes:
        what, given = pickle.loads(data)
        with settings.pin_settings(cpu):
            if what == "open":
                opened[:] = [pickle.loads(given).open()]
                return pickle.dumps(None)
            return pickle.dumps(opened[0](given), pickle.HIGHEST_PROTOCOL)

    return answer
