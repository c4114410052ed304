"""Processes beside this one that take a share of a search's batches. A lost one costs time, and nothing else.

Each of them has one thread, since a batch gains more by being divided among processes than by threads that wait for one another. They
start when a search has gone on for a while, one for each processor that is idle; until then, and where none is, this process does it all.
What travels is pickled: it comes from this program alone, by pipes that nobody else holds. No file is ever unpickled.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Condition, Thread
from typing import Any, Generic, Protocol, TypeVar

import torch

from polytriton.child import Child, ChildLost, serve
from polytriton.guard import guarded
from polytriton.prove.decider import Decider
from polytriton.prove.options import Options
from polytriton.runtime import settings
from polytriton.runtime.results import Stopped

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
class _Batch(Generic[A, B]):
    """Items, by number those that nobody has begun, and what came of the others."""

    work: bytes
    items: Sequence[A]
    todo: deque[int] = field(default_factory=deque)
    made: dict[int, B] = field(default_factory=dict)


class Crew:
    """This process and at most `helpers` others. `close` ends them."""

    def __init__(self, helpers: int, after: float = AFTER) -> None:
        self.helpers, self._look = helpers, time.monotonic() + after
        self._changed, self._closed, self._batch = Condition(), False, _Batch[Any, Any](b"", ())
        self._children: list[Child] = []

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
            return self._divide(_Batch(told[0], items, deque(range(1, len(items)))), mine, deadline)

        return every

    def close(self) -> None:
        """Ends the others at once; what they were at is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for child in self._children:
            child.stop()

    def _staffed(self) -> bool:
        """Whether there are others: as many as processors are idle, once it is time to look."""
        if not self._children and self.helpers and time.monotonic() >= self._look:
            self._look = time.monotonic() + AGAIN
            self._children = [Child(__name__, 1) for _ in range(min(self.helpers, settings.idle_processors() - 1))]
            for child in self._children:
                Thread(target=self._employ, args=(child,), daemon=True, name="polytriton-helper").start()
        return bool(self._children)

    def _divide(self, batch: _Batch[A, B], mine: Callable[[A], B], deadline: float | None) -> list[B]:
        with self._changed:
            self._batch = batch
            self._changed.notify_all()
        k: int | None = 0
        while k is not None:
            made = mine(batch.items[k])
            with self._changed:
                batch.made[k] = made
                k = self._next(batch, deadline)
        return [batch.made[k] for k in range(len(batch.items))]

    def _next(self, batch: _Batch[A, B], deadline: float | None) -> int | None:
        """What this process does next; None once all is done. What a lost helper was at comes back."""
        while not batch.todo and len(batch.made) < len(batch.items):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Stopped
            self._changed.wait(left)
        return batch.todo.popleft() if batch.todo else None

    # ---- a helper's thread --------------------------------------------------------------------------------

    def _employ(self, child: Child) -> None:
        opened, begun = b"", None
        try:
            child.start()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or bool(self._batch.todo))
                    if self._closed:
                        return
                    batch = self._batch
                if opened is not batch.work:
                    _reply(child, ("open", batch.work))
                    opened = batch.work
                with self._changed:
                    begun = (batch, batch.todo.pop()) if batch.todo else None
                if begun is not None:
                    made = _reply(child, ("do", batch.items[begun[1]]))
                    with self._changed:
                        batch.made[begun[1]] = made
                        self._changed.notify_all()
        except (ChildLost, OSError, pickle.PickleError) as lost:
            if not self._closed:
                _LOG.info("a helper is lost, the search goes on without it: %s", lost)
        finally:
            with self._changed:
                if begun is not None and begun[1] not in begun[0].made:
                    begun[0].todo.append(begun[1])
                self._changed.notify_all()


def _reply(child: Child, asked: tuple[str, object]) -> Any:
    well, made = pickle.loads(child.exchange(pickle.dumps(asked, pickle.HIGHEST_PROTOCOL)))
    if not well:
        raise ChildLost(made)
    return made


def main() -> None:
    """The far end. An error there ends its part in the search: the near end does what it was at, and meets the error itself."""
    cpu, opened = torch.device("cpu"), list[Callable[[object], object]]()

    @guarded
    def answer(data: bytes) -> bytes:
        what, given = pickle.loads(data)
        try:
            with settings.pin_settings(cpu):
                if what == "open":
                    opened[:] = [pickle.loads(given).open()]
                    return pickle.dumps((True, None))
                return pickle.dumps((True, opened[0](given)), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return pickle.dumps((False, f"{type(error).__name__}: {error}"))

    serve(answer)
