"""Where a program's buffers lie in one block of memory: buffers that are never alive together share it."""

from __future__ import annotations

from dataclasses import dataclass

from polytriton.kernels.sequence import Launches


@dataclass(frozen=True)
class Arena:
    """Offsets and total size in values a row: multiply by the capacity and the coefficient's bytes."""

    offsets: tuple[int, ...]
    size: int


def lay_out(launches: Launches) -> Arena:
    """Largest first, each at the lowest place free over its whole life."""
    offsets = [0] * len(launches.buffers)
    placed: list[int] = []
    for b in sorted(range(len(offsets)), key=lambda b: (-launches.buffers[b], b)):
        first, last = launches.lives[b]
        taken = sorted(
            (offsets[o], offsets[o] + launches.buffers[o]) for o in placed if launches.lives[o][0] <= last and first <= launches.lives[o][1]
        )
        at = 0
        for begin, end in taken:
            if at + launches.buffers[b] <= begin:
                break
            at = max(at, end)
        offsets[b] = at
        placed.append(b)
    return Arena(tuple(offsets), max((o + s for o, s in zip(offsets, launches.buffers, strict=True)), default=0))
