"""Blocks of rows walked by several threads, each of them alone from the target to the input.

Shared row by row, every pass over coefficients ends with threads that wait for each other, and what lies between the passes is done by one
thread. Rows tell each other nothing, so a thread takes a block and walks it whole, its passes and products its own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from polytriton.runtime.settings import threads as at_most

T = TypeVar("T")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that begin while the arithmetic is pinned, and keep it; torch gives each of them the one thread that is allowed then."""
    return ThreadPoolExecutor(threads, thread_name_prefix="polytriton-rows")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def share_out(work: Callable[[T], None], jobs: Sequence[T], threads: int) -> None:
    """Does every job, several threads taking one after another. Returns, or raises what one of them raised, when no thread works."""
    left = deque(jobs)

    def take() -> None:
        while left:
            try:
                job = left.popleft()
            except IndexError:  # another thread took the last
                return
            try:
                work(job)
            except BaseException:
                left.clear()
                raise

    with at_most(1):
        others = [_pool(threads - 1).submit(take) for _ in range(min(threads, len(jobs)) - 1)]
        try:
            take()
        finally:
            wait(others)
    for other in others:
        other.result()
