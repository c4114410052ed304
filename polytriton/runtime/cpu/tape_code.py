"""A tape while it is written: its instructions, what their addresses point to, and the slots' memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from polytriton.runtime.cpu import tape_loop as loop
from polytriton.runtime.cpu.tape import Tape, TapeEntry


class TapeCode:
    """`row`: values of a row that are held at a time, at most; `taps` and `near`: what `Tape` says of them."""

    def __init__(self) -> None:
        self.lines: list[list[int]] = []
        self.reals: list[list[float]] = []
        self.used: list[object] = []
        self.sizes: list[int] = []
        self.offsets: list[int] = []
        self.uses: list[int] = []  # entries that a slot serves
        self.free: list[tuple[int, int]] = []  # memory of slots that serve none: where it begins, and how much
        self.row, self.taps, self.near = 0, 0, 1
        self.slot(0)  # loop.TAPS

    def tape(
        self, steps: int, checks: int, before: dict[str, int], after: dict[str, TapeEntry], arriving: dict[str, list[TapeEntry]]
    ) -> Tape:
        return Tape(
            np.array(self.lines, dtype=np.int64).reshape(-1, loop.FIELDS), np.array(self.reals).reshape(-1, loop.REALS),
            np.array(self.sizes, dtype=np.int64), np.array(self.offsets, dtype=np.int64), self.row, self.taps, self.near, checks,
            steps, before, after, arriving, self.used,
        )  # fmt: skip

    def emit(
        self, op: int, m: int = 0, out: int = 0, place: Sequence[int] = (), rest: Sequence[int] = (), reals: Sequence[float] = ()
    ) -> None:
        at = [*place, *[0] * (loop.REST - loop.PLACE - len(place))]
        line = [op, m, out, *at, *rest]
        self.lines.append(line + [0] * (loop.FIELDS - len(line)))
        self.reals.append([*reals, *[0.0] * (loop.REALS - len(reals))])

    def address(self, table: Tensor | None) -> int:
        """Of the table's first number, as it lies in memory."""
        if table is None:
            return 0
        held = table.contiguous()
        self.used.append(held)
        return held.data_ptr()

    def slot(self, size: int) -> int:
        """Memory for so many values a row: the first piece that is free and large enough."""
        for k, (begin, length) in enumerate(self.free):
            if length >= size:
                self.free[k : k + 1] = [(begin + size, length - size)] if length > size else []
                break
        else:
            begin, self.row = self.row, self.row + size
        self.sizes.append(size)
        self.offsets.append(begin)
        self.uses.append(1)
        return len(self.sizes) - 1

    def drop(self, slot: int) -> None:
        self.uses[slot] -= 1
        if self.uses[slot]:
            return
        pieces = sorted([*self.free, (self.offsets[slot], self.sizes[slot])])
        self.free = []
        for begin, length in pieces:
            if self.free and sum(self.free[-1]) == begin:
                self.free[-1] = (self.free[-1][0], self.free[-1][1] + length)
            elif length:
                self.free.append((begin, length))
