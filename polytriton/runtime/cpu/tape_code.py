"""A tape while it is written: its instructions, what their addresses point to, and the slots' memory; and one that goes on as another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from polytriton.runtime.cpu import tape_loop as loop
from polytriton.runtime.cpu.tape import Ending, Tape, TapeEntry


class Address(int):
    """Where a table's first number lies."""

    table: Tensor


class TapeCode:
    """`row`: values of a row that are held at a time, at most; `taps` and `near`: what `Tape` says of them."""

    def __init__(self) -> None:
        self.lines: list[list[int]] = []
        self.reals: list[list[float]] = []
        self.used: list[object] = []
        self.places: list[tuple[int, int, Tensor]] = []  # the line and the field in which a table's address stands
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
            steps, before, after, arriving, self.places, self.used,
        )  # fmt: skip

    def emit(
        self, op: int, m: int = 0, out: int = 0, place: Sequence[int] = (), rest: Sequence[int] = (), reals: Sequence[float] = ()
    ) -> None:
        at = [*place, *[0] * (loop.REST - loop.PLACE - len(place))]
        line = [op, m, out, *at, *rest]
        self.places += [(len(self.lines), k, v.table) for k, v in enumerate(line) if isinstance(v, Address)]
        self.lines.append(line + [0] * (loop.FIELDS - len(line)))
        self.reals.append([*reals, *[0.0] * (loop.REALS - len(reals))])

    def address(self, table: Tensor | None) -> int:
        """Of the table's first number, as it lies in memory."""
        if table is None:
            return 0
        held = table.contiguous()
        self.used.append(held)
        found = Address(held.data_ptr())
        found.table = held
        return found

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


SLOT_FIELDS = (loop.REST + 4, loop.REST + 5), (loop.REST + 7, loop.REST + 8)  # of a LINEAR: whether it takes a slot more, and which


def join(tape: Tape, rest: Ending, slot: int) -> Tape:
    """The tape, which ends with one entry, in `slot`, and what another does from there on.

    The other's entry lies where this one does: the memory of either tape is moved until it does. Nothing else is held then, so the rest
    may use all memory around it.
    """
    other, own = rest.tape, len(tape.sizes)
    apart = int(tape.offsets[slot] - other.offsets[rest.slot])
    mine, others = max(0, -apart), max(0, apart)
    slots = np.arange(len(other.sizes)) + (own - rest.slots)
    slots[loop.TAPS], slots[rest.slot] = loop.TAPS, slot
    code = other.code[rest.lines :].copy()
    for field in (loop.M, loop.OUT):
        code[:, field] = slots[code[:, field]]
    for whether, field in SLOT_FIELDS:
        some = (code[:, loop.OP] == loop.LINEAR) & (code[:, whether] != 0)
        code[some, field] = slots[code[some, field]]
    for line in np.flatnonzero(code[:, loop.OP] == loop.LEAVE):
        live = int(code[line, loop.REST + 2])
        code[line, loop.REST + 2] = sum(1 << int(to) for s, to in enumerate(slots) if live >> s & 1)
        code[line, loop.REST + 3] += tape.checks - rest.checks

    def move(held: TapeEntry) -> TapeEntry:
        return replace(held, slot=int(slots[held.slot]))

    return Tape(
        np.concatenate([tape.code, code]), np.concatenate([tape.reals, other.reals[rest.lines :]]),
        np.concatenate([tape.sizes, other.sizes[rest.slots :]]),
        np.concatenate([tape.offsets + mine, other.offsets[rest.slots :] + others]), max(tape.row + mine, other.row + others),
        max(tape.taps, other.taps), max(tape.near, other.near), tape.checks + other.checks - rest.checks,
        tape.steps + other.steps - rest.steps, tape.before, {name: move(held) for name, held in other.after.items()},
        {name: [move(held) for held in entries] for name, entries in other.arriving.items()},
        [*tape.places, *((line + len(tape.code) - rest.lines, k, table) for line, k, table in other.places if line >= rest.lines)],
        [*tape.used, other.used],
    )  # fmt: skip
