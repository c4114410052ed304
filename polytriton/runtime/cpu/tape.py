"""The rest of a program as a tape: what walk.py does step by step, written down once for all rows that come the same way.

A tape does what `Walk` would do with entries that are written out: it reads the same tables and pays in the same order. It ends before a
step that it has no instructions for, where the walk goes on by itself. A slot holds one entry's coefficients of all rows; the memory of
slots whose entries are gone is used again. tape_record.py writes tapes, tape_loop.py is the loop that plays one, tape_player.py calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from polytriton.ir.plan import Program, Window
from polytriton.runtime.narrow import Narrow

NEURON = -1
# a program's kind and target, the step, the image of all rows if it is one, whether it ends early (`record`), and the entries: name,
# window, NEURON or 0, narrow, owing
TapeKey = tuple[str, str, int, "int | None", bool, tuple[tuple[str, Window, int, bool, bool], ...]]
# the steps to come (`Kit.endings`), the image, and of the only entry its window, whether it is narrow, and where lies what it owes
EndingKey = tuple[int, "int | None", Window, bool, int]


@dataclass(frozen=True)
class TapeEntry:
    """An entry of the frontier: its slot and window, the cells it has alone, and the table of the point that it owes the value at.

    In the slot NEURON nothing is written out: a row is one neuron, with a sign that is `factor` times the row's.
    """

    slot: int
    window: Window
    narrow: Narrow | None = None
    owes: Tensor | None = None
    factor: float = 1.0


def tape_key(program: Program, at: int, image: int | None, entries: Mapping[str, TapeEntry], early: bool) -> TapeKey:
    """Of the tape from step `at` on for rows with these entries."""
    ways = tuple((name, held.window, held.slot, held.narrow is not None, held.owes is not None) for name, held in entries.items())
    return program.kind, program.target, at, image, early, ways


@dataclass(frozen=True)
class Tape:
    """Instructions for `steps` steps, and the frontier before and after them.

    sizes: values a row has in each slot, whose memory begins `offsets` values a row behind the first; `row`: values a row has in all.
    taps: values of a convolution's products, which have a slot of their own, whatever the rows; near: lines of a kernel, at most.
    checks: how many steps on rows may leave. places: the line and the field of each table's address. `used` keeps what addresses point to.
    """

    code: np.ndarray
    reals: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    row: int
    taps: int
    near: int
    checks: int
    steps: int
    before: dict[str, int]
    after: dict[str, TapeEntry]
    arriving: dict[str, list[TapeEntry]]
    places: Sequence[tuple[int, int, Tensor]] = field(repr=False)
    used: Sequence[object] = field(repr=False)

    def is_whole(self, program: Program) -> bool:
        """Whether a tape from behind the program's start goes on to the input."""
        return 1 + self.steps == len(program.steps)


@dataclass(frozen=True)
class Ending:
    """A place in a tape at which a single entry, in `slot`, is all that has been written out: rows of other programs that come with the
    same entry to the same steps go on as the tape does. So many lines, slots, checks and steps lie before it.
    """

    tape: Tape
    slot: int
    lines: int
    slots: int
    checks: int
    steps: int
