"""A time limit for work that has no use for one otherwise: compiling asks between its steps whether there is time left.

Nothing is interrupted in the middle: whoever holds a file gives it back, and what was to be kept whole is not kept at all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CHUNK = 1 << 24  # bytes that are hashed or written between two looks at the clock
_DEADLINE: ContextVar[float | None] = ContextVar("polytriton_deadline", default=None)


class OutOfTime(BaseException):
    """There is no time left. Like an interruption by the user it is no error: handlers of errors must not take it for theirs.

    Who sets a limit by `time_limit` expects it and answers `timeout`.
    """


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """What this thread does inside ends soon after `deadline`, by time.monotonic(); None is no limit."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def go_on() -> None:
    """Raises OutOfTime after the deadline. To be called where half-done work is lost without harm."""
    deadline = _DEADLINE.get()
    if deadline is not None and time.monotonic() > deadline:
        raise OutOfTime


def sha256(data: bytes) -> str:
    """The hash of data of any size, broken off like everything else."""
    made, view = hashlib.sha256(), memoryview(data)
    for at in range(0, len(view), CHUNK):
        go_on()
        made.update(view[at : at + CHUNK])
    return made.hexdigest()
