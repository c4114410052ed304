"""Blocks of rows walked by several threads, each of them alone from the target to the input.

Shared row by row, every pass over coefficients ends with threads that wait for each other, and what lies between the passes is done by one
thread. Rows tell each other nothing, so a thread takes a block and walks it whole, its passes and products its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import TypeVar

from polytriton.runtime.cpu.fused import kept_threads
from polytriton.runtime.settings import threads as at_most

T = TypeVar("T")


def share_out(work: Callable[[T], None], jobs: Sequence[T], threads: int) -> None:
    """Does every job, several threads taking one after another. Returns, or raises what one of them raised, when no thread works.

    They begin while the arithmetic is pinned, and keep it; torch gives each of them the one thread that is allowed then.
    """
    count = min(threads, len(jobs))
    if count <= 1:
        with at_most(1):
            for job in jobs:
                work(job)
        return
    left = deque(jobs)

    def take() -> None:
        while True:
            try:
                job = left.popleft()
            except IndexError:
                return
            try:
                work(job)
            except BaseException:
                left.clear()
                raise

    with at_most(1):
        others = [kept_threads(threads - 1, "polytriton-rows").submit(take) for _ in range(count - 1)]
        try:
            take()
        finally:
            wait(others)
    for other in others:
        other.result()
