"""What one input may cost: address space over what the process holds already, and seconds of its own CPU time."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlow(BaseException):
    """No `except Exception` on the way may swallow it."""


def held() -> int:
    """Bytes of address space this process has mapped."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def _late(number: int, frame: FrameType | None) -> None:
    raise TooSlow


@contextmanager
def bounded(seconds: float, memory: int) -> Iterator[None]:
    """CPU seconds, not those of the clock: a busy machine makes no finding. Only for the main thread of a Linux process.

    Memory that the process freed and the C library kept (heap.py) is held already: an input may take it again.
    """
    import resource  # not on Windows, where the tests that come here are skipped

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, _late)
    resource.setrlimit(resource.RLIMIT_AS, (held() + memory, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, handler)
