"""Both sides of a node's neurons where a tape plays their rows: found, bounded and written back by a few compiled calls.

What `Walker.bound_neurons` does by tensors, with the same rows in the same order, so the numbers are the same; a batch of few boxes spends
more on making those tensors than on the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from polytriton.ir.plan import Program
from polytriton.runtime.cpu.cells import note_undecided, write_cells
from polytriton.runtime.cpu.play_loop import ALL, OPEN, RUNNING, play
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import NEURON, Tape, TapeEntry
from polytriton.runtime.cpu.tape_loop import PLACES, SCALARS
from polytriton.runtime.cpu.tape_player import NOBODY, NONE, PlayRoom, count_ops, cut_rows, find_tape
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
class SomeNeurons:
    """Neurons of a node from number `first` to `last`, of which a thread plays both sides alone: rows tell each other nothing.

    places, known: of all the node's neurons, as `note_undecided` finds them; bounds join those that are known. When they are played, `rows`
    are how many both sides had, and `told` what the checks have seen.
    """

    tape: Tape
    places: np.ndarray
    known: np.ndarray
    first: int
    last: int
    rows: int = field(init=False)
    told: np.ndarray = field(init=False)

    def __len__(self) -> int:
        return self.last - self.first

    def play(self, room: PlayRoom, asked: SidesAsked, leave: float) -> None:
        tape, n = self.tape, len(self)
        pieces = -(-n // room.some)
        whole, scalars = np.empty((pieces, PLACES, room.some), dtype=np.int64), np.empty((pieces, SCALARS, room.some))
        found, at = np.empty((len(FOUND), n)), np.empty((2, n), dtype=np.int64)
        bounds = FOUND * (8 * n) + found.__array_interface__["data"][0]
        group, done = (np.arange(n), np.empty(n, dtype=np.bool_)) if asked.leaves else (NONE, NOBODY)
        rest = OPEN if asked.leaves or asked.ends else RUNNING if asked.hides else ALL
        neurons = np.array([self.first, asked.leaves or asked.hides, asked.best, asked.ends, rest]), self.places, self.known, at
        self.told = np.zeros((tape.checks, 2), dtype=np.int64)
        self.rows = n + play(*room.ask(tape, n, whole, scalars, (bounds, group, done, False), leave, self.told, neurons))


def bound_sides(
    backend: TorchBackend, tables: Tables, program: Program, asked: SidesAsked, threads: int, expire: Callable[[], None]
) -> Told | None:
    """Bounds of the program's node in its boxes, which are contiguous; None where no tape goes from its neurons to the input."""
    name = program.target
    lo, hi = tables.boxes.lo[name], tables.boxes.hi[name]
    places, bounds = note_undecided(lo, hi, asked.every, asked.settled)
    count = places.shape[1]
    if not count:
        return Told()
    tape = find_tape(
        backend, tables, program, 1, 0 if tables.boxes.batch == 1 else None, {name: TapeEntry(NEURON, program.steps[0].windows[0])}
    )
    if tape is None or 1 + tape.steps < len(program.steps):
        return None
    ops = count * program.row_ops
    cuts, pieces = cut_rows(count, ops, threads), min(count, ops // LONG)
    if pieces > len(cuts):
        cuts = [count * k // pieces for k in range(1, pieces)]
    parts = [SomeNeurons(tape, places, bounds, a, b) for a, b in pairwise([0, *cuts, count])]
    # each thread has one, which is made here: memory of a thread's own would be given back part by part
    rooms = [PlayRoom.make(tape, max(map(len, parts)), last=True) for _ in range(min(len(parts), threads))]

    def work(part: SomeNeurons) -> None:
        expire()
        room = rooms.pop()
        try:
            part.play(room, asked, backend.config.leave)
        finally:
            rooms.append(room)

    if len(parts) == 1:
        work(parts[0])  # nothing there asks how many threads torch has
    else:
        share_out(work, parts, threads)
    write_cells(places[0], bounds, lo, hi)
    rows, told = sum(part.rows for part in parts), sum((part.told for part in parts[1:]), parts[0].told)
    return Told(rows, count_ops(program.steps, rows, told, [], grouped=asked.leaves)[0])
