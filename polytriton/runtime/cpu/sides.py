"""Both sides of a node's neurons where a tape plays their rows: found, bounded and written back by a few compiled calls.

What `Walker.bound_neurons` does by tensors, with the same rows in the same order, so the numbers are the same; a batch of few boxes spends
more on making those tensors than on the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from polytriton.ir.plan import Program
from polytriton.runtime.budget import between_images
from polytriton.runtime.cpu.cells import note_undecided, write_cells
from polytriton.runtime.cpu.play_loop import ALL, OPEN, RUNNING, play
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import NEURON, Tape
from polytriton.runtime.cpu.tape_loop import PLACES, SCALARS
from polytriton.runtime.cpu.tape_player import NOBODY, NONE, PlayRoom, count_ops, count_played, count_values, cut_rows, find_whole_tape
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.tables import Tables

LONG = 10**10  # operations of a part: between parts is looked whether time is up
FOUND = np.arange(4)  # numbers of a row: its best bound and that without rounding, and the same of its other end


@dataclass(frozen=True)
class SidesAsked:
    """Which neurons get rows: `every` one, or those that are on too (`settled`), or the undecided. Whether a row `leaves` once it has
    settled its neuron, and whether nobody reads how far from zero a settled one goes (`hides`); then rows may be read from both `ends`.
    `best`: a bound counts where it is better than what is known.
    """

    every: bool
    settled: bool
    leaves: bool
    hides: bool
    ends: bool
    best: bool


@dataclass
class Told:
    """How many rows there were, and operations."""

    rows: int = 0
    ops: int = 0


@dataclass
class SidesPart:
    """Neurons of a node from number `first` to `last`, of which a thread plays both sides alone: rows tell each other nothing. Once they
    are played, `rows` are how many both sides had, and `told` what the checks have seen.
    """

    tape: Tape
    first: int
    last: int
    rows: int = field(init=False)
    told: np.ndarray = field(init=False)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def values(self) -> int:
        """Coefficients of its rows that lie in memory at a time."""
        return count_values(self.tape, count_played(self.tape, len(self)))


@dataclass(frozen=True)
class Sides:
    """Both sides of a node's neurons that get rows. places, known: of all these neurons, as `note_undecided` finds them; bounds join those
    that are known.
    """

    backend: TorchBackend
    tables: Tables
    program: Program
    asked: SidesAsked
    places: np.ndarray
    known: np.ndarray

    def cut(self, threads: int) -> list[SidesPart]:
        """The neurons in parts, those of an image by themselves where its rows may leave cells out; none where some have no tape. Tapes are
        written by one thread: that is Python, for which others would wait.
        """
        count, parts = self.places.shape[1], list[SidesPart]()
        images = between_images(torch.from_numpy(self.places[1])) if self.tables.kit.narrows(self.program) else []
        for a, b in pairwise([0, *images, count]):
            rows, ops, image = b - a, (b - a) * self.program.row_ops, int(self.places[1, a])
            only = image if image == self.places[1, b - 1] else None
            tape = find_whole_tape(self.backend, self.tables, self.program, only, NEURON)
            if tape is None:
                return []
            # nobody takes less than an image where there are enough: each part begins in Python, which one thread at a time may run
            cuts, pieces = [] if len(images) + 1 >= 2 * threads else cut_rows(rows, ops, threads), min(rows, ops // LONG)
            if pieces > len(cuts):
                cuts = [rows * k // pieces for k in range(1, pieces)]
            parts += [SidesPart(tape, a + c, a + d) for c, d in pairwise([0, *cuts, rows])]
        return parts

    def play(self, part: SidesPart, memory: np.ndarray) -> None:
        asked, tape, n = self.asked, part.tape, len(part)
        room = PlayRoom.make(tape, n, last=True, memory=memory)
        pieces = -(-n // room.some)
        whole, scalars = np.empty((pieces, PLACES, room.some), dtype=np.int64), np.empty((pieces, SCALARS, room.some))
        found, at = np.empty((len(FOUND), n)), np.empty((2, n), dtype=np.int64)
        bounds = FOUND * (8 * n) + found.__array_interface__["data"][0]
        group, done = (np.arange(n), np.empty(n, dtype=np.bool_)) if asked.leaves else (NONE, NOBODY)
        rest = OPEN if asked.leaves or asked.ends else RUNNING if asked.hides else ALL
        neurons = np.array([part.first, asked.leaves or asked.hides, asked.best, asked.ends, rest]), self.places, self.known, at
        part.told = np.zeros((tape.checks, 2), dtype=np.int64)
        given = whole, scalars, (bounds, group, done, False), self.backend.config.leave, part.told, neurons
        part.rows = n + play(*room.ask(tape, n, *given))


def bound_sides(
    backend: TorchBackend, tables: Tables, program: Program, asked: SidesAsked, threads: int, expire: Callable[[], None]
) -> Told | None:
    """Bounds of the program's node in its boxes, which are contiguous; None where no tape goes from its neurons to the input."""
    name = program.target
    lo, hi = tables.boxes.lo[name], tables.boxes.hi[name]
    places, known = note_undecided(lo, hi, asked.every, asked.settled)
    if not places.shape[1]:
        return Told()
    sides = Sides(backend, tables, program, asked, places, known)
    parts = sides.cut(threads)
    if not parts:
        return None
    # each thread has some, which is made here: memory of a thread's own would be given back part by part
    most = max(part.values for part in parts)
    memories = [np.empty(most, dtype=np.float32) for _ in range(min(len(parts), threads))]

    def work(part: SidesPart) -> None:
        expire()
        memory = memories.pop()
        try:
            sides.play(part, memory)
        finally:
            memories.append(memory)

    if len(parts) == 1:
        work(parts[0])  # nothing there asks how many threads torch has
    else:
        share_out(work, parts, threads)
    write_cells(places[0], known, lo, hi)
    rows, told = sum(part.rows for part in parts), sum((part.told for part in parts[1:]), parts[0].told)
    return Told(rows, count_ops(program.steps, rows, told, [], grouped=asked.leaves)[0])
