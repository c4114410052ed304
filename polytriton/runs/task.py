"""What engines are given and what they give back.

A task opens a network or answers a query of an open one. Every task that goes in comes out as `Done` exactly once, whatever
becomes of those who work it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from polytriton.errors import PolytritonError
from polytriton.explain import explain
from polytriton.runs.asker import Answer, Opened
from polytriton.runs.queries import Ball, Query
from polytriton.runs.records import Record


class Job(msgspec.Struct, frozen=True):
    """A task as it travels. Without a query: open the network. `blank` is the record to be filled in."""

    network: str
    query: Query | None = None
    blank: Record | None = None

    @property
    def batched(self) -> bool:
        """Whether it may be proved together with others: a ball around an image, which has all the time it takes."""
        return self.query is not None and isinstance(self.query.subject, Ball) and self.blank is not None and self.blank.timeout is None


class Failure(msgspec.Struct, frozen=True):
    """An error as it travels."""

    message: str
    remedy: str
    exit_code: int
    limit: str = ""

    @staticmethod
    def from_error(error: BaseException) -> Failure:
        told = explain(error)
        return Failure(told.message, told.remedy, told.exit_code, told.limit)

    def error(self) -> PolytritonError:
        made = PolytritonError(self.message, self.remedy)
        made.exit_code, made.limit = self.exit_code, self.limit
        return made


class Reply(msgspec.Struct, frozen=True):
    """What comes back for a job: `opened` or `failure` for a network, `record` (with its `failure`) for a query."""

    opened: Opened | None = None
    record: Record | None = None
    failure: Failure | None = None
    prepare: float = 0.0
    trail: bytes = b""


@dataclass(frozen=True, order=True)
class Turn:
    """Order among tasks: by query, and a network before the query that needs it first."""

    query: int
    step: int


@dataclass(frozen=True)
class Task:
    turn: Turn
    job: Job


Outcome = Opened | Answer | BaseException


@dataclass(frozen=True)
class Began:
    """`more`: how many others are worked together with it."""

    task: Task
    more: int = 0


@dataclass(frozen=True)
class Done:
    """An answer to a query; what was opened; or, for a network only, why it could not be."""

    task: Task
    outcome: Outcome


@dataclass(frozen=True)
class Trouble:
    """A worker was lost, or cannot be had; the run goes on. For people to read."""

    message: str


Event = Began | Done | Trouble


class TaskEngine(Protocol):
    """Works tasks. More may be submitted while events are read; reading ends when all tasks are done."""

    def submit(self, task: Task) -> None: ...

    def events(self) -> Iterator[Event]: ...

    def close(self) -> None: ...


class Backlog:
    """Tasks that wait, by their turns; a worker is given those of the network it has open first."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[Turn, int, Task]]] = defaultdict(list)
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, task: Task) -> None:
        self._count += 1
        heappush(self._waiting[task.job.network], (task.turn, self._count, task))

    def take(self, last: Task | None = None) -> Task:
        network = last.job.network if last is not None else ""
        if network not in self._waiting:
            network = min(self._waiting, key=lambda n: self._waiting[n][0][0])
        queue = self._waiting[network]
        task = heappop(queue)[2]
        if not queue:
            del self._waiting[network]
        return task

    def take_batch(self, most: int) -> list[Task]:
        """The next task, and those behind it of the same network that may be proved together with it."""
        batch = [self.take()]
        network = batch[0].job.network
        while batch[-1].job.batched and len(batch) < most and network in self._waiting and self._waiting[network][0][2].job.batched:
            batch.append(self.take(batch[-1]))
        return batch
