"""Where a program's buffers lie in one block of memory: buffers that are never alive together share it.

Inside a region (lanes.py) the order of launches says nothing about different lanes. So two buffers that different lanes of one
region touch never share memory, even where the life of one ends in the region and that of the other begins in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from polytriton.ir.launches import Launches

Touches = dict[int, set[int]]


@dataclass(frozen=True)
class Arena:
    """Offsets and total size in values a row: multiply by the capacity and the coefficient's bytes."""

    offsets: tuple[int, ...]
    size: int


def lay_out(launches: Launches) -> Arena:
    """Largest first, each at the lowest place free over its whole life."""
    offsets = [0] * len(launches.buffers)
    touches = touched_by(launches)
    placed: list[int] = []
    for b in sorted(range(len(offsets)), key=lambda b: (-launches.buffers[b], b)):
        first, last = launches.lives[b]
        taken = sorted(
            (offsets[o], offsets[o] + launches.buffers[o])
            for o in placed
            if (launches.lives[o][0] <= last and first <= launches.lives[o][1]) or concurrent(touches[o], touches[b])
        )
        at = 0
        for begin, end in taken:
            if at + launches.buffers[b] <= begin:
                break
            at = max(at, end)
        offsets[b] = at
        placed.append(b)
    return Arena(tuple(offsets), max((o + s for o, s in zip(offsets, launches.buffers, strict=True)), default=0))


def touched_by(launches: Launches) -> list[Touches]:
    """For each buffer, by region, the lanes that touch it."""
    touches: list[Touches] = [{} for _ in launches.buffers]
    for step in launches.steps:
        if step.region:
            for symbol in step.bind:
                if symbol.startswith("buf:"):
                    touches[int(symbol[4:])].setdefault(step.region, set()).add(step.lane)
    return touches


def concurrent(a: Touches, b: Touches) -> bool:
    """Whether launches of different lanes touch the two buffers in one region."""
    return any(len(a[region] | b[region]) > 1 for region in a.keys() & b.keys())
