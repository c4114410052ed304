"""Both sides of a node's neurons where a tape plays their rows: found, bounded and written back by a few compiled calls.

What `Walker.bound_neurons` does by tensors, with the same rows in the same order, so the numbers are the same; a batch of few boxes spends
more on making those tensors than on the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polytriton.ir.plan import Program
from polytriton.runtime.cpu import fused, loops
from polytriton.runtime.cpu.cells import note_undecided, write_cells
from polytriton.runtime.cpu.scalars import is_kept
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import NEURON, TapeEntry
from polytriton.runtime.cpu.tape_loop import PLACES, SCALARS, play
from polytriton.runtime.cpu.tape_player import NO_NUMBERS, NOBODY, NONE, PlayRoom, count_ops, cut_rows, find_tape
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.tables import Tables

BEST, RAW, OTHER, RAW_OTHER = range(4)  # of a row


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
    ends: bool = False
    best: bool = False


@dataclass
class Told:
    """How many rows there were, and operations."""

    rows: int = 0
    ops: int = 0


@fused.compile_loop("I2 I I i I3 D3", fused.PLAIN)
def _begin_side(places, at, signs, first, whole, scalars):  # type: ignore[no-untyped-def]
    """Rows of the neurons `at` (`places`: cell, image, line, column, channel) as a tape reads them, some at a time, from number `first`."""
    some = whole.shape[2]
    for r in range(len(at)):
        k, piece, q = at[r], r // some, r % some
        whole[piece, 0, q], whole[piece, 1, q], whole[piece, 2, q] = places[1, k], places[2, k], places[3, k]
        whole[piece, 3, q], whole[piece, 4, q] = first + r, places[4, k]
        for j in range(3):
            scalars[piece, j, q] = 0.0
        scalars[piece, 3, q] = signs[r]


@loops.loop("D2 I I D2 b b i I I", fused.PLAIN, parts=("scalars",))
def _end_side(found, at, signs, bounds, best, ends, how, then, then_signs):  # type: ignore[no-untyped-def]
    """Bounds of the rows of neurons `at` join those of their neurons; returns how many get a row of the other side, and which: 0: all,
    1: those that are not off, 2: those that are not settled.
    """
    count = 0
    for r in range(len(at)):
        k, own = at[r], 0 if signs[r] > 0 else 1
        if is_kept(found[BEST, r], bounds[own, k], best):
            bounds[own, k] = found[BEST, r]
        if ends and is_kept(found[OTHER, r], bounds[1 - own, k], True):
            bounds[1 - own, k] = found[OTHER, r]
        if how == 0 or (bounds[1, k] < 0 and (how == 1 or bounds[0, k] < 0)):
            then[count], then_signs[count] = k, -signs[r]
            count += 1
    return count


@fused.compile_loop("D2 b I I", fused.PLAIN)
def _first_signs(bounds, asked, at, signs):  # type: ignore[no-untyped-def]
    for k in range(len(at)):
        at[k], signs[k] = k, 1 if bounds[0, k] >= bounds[1, k] or not asked else -1


def bound_sides(
    backend: TorchBackend, tables: Tables, program: Program, asked: SidesAsked, threads: int, expire: Callable[[], None]
) -> Told | None:
    """Bounds of the program's node in its boxes, which are contiguous; None where no tape goes from its neurons to the input."""
    name, told = program.target, Told()
    lo, hi = tables.boxes.lo[name], tables.boxes.hi[name]
    places, bounds = note_undecided(lo, hi, asked.every, asked.settled)
    count = places.shape[1]
    if not count:
        return told
    tape = find_tape(
        backend, tables, program, 1, 0 if tables.boxes.batch == 1 else None, {name: TapeEntry(NEURON, program.steps[0].windows[0])}
    )
    if tape is None or 1 + tape.steps < len(program.steps):
        return None
    at, signs, then, then_signs = np.empty((4, count), dtype=np.int64)
    _first_signs(bounds, asked.leaves or asked.hides, at, signs)
    how, rooms = 2 if asked.leaves or asked.ends else 1 if asked.hides else 0, list[PlayRoom]()
    for ends in (asked.ends, False):
        expire()
        n, found = len(at), np.full((4, len(at)), -np.inf)
        group, done = (np.arange(n), np.zeros(n, dtype=np.bool_)) if asked.leaves else (NONE, NOBODY)
        results = found[BEST], found[RAW], *((found[OTHER], found[RAW_OTHER]) if ends else (NO_NUMBERS, NO_NUMBERS)), group, done, False
        parts, noted = list[tuple[object, ...]](), list[np.ndarray]()
        for a, b in pairwise([0, *cut_rows(n, n * program.row_ops, threads), n]):
            if len(parts) == len(rooms):
                rooms.append(PlayRoom.make(tape, b - a, last=True))
            room = rooms[len(parts)]
            pieces = -(-(b - a) // room.some)
            whole, scalars = np.empty((pieces, PLACES, room.some), dtype=np.int64), np.empty((pieces, SCALARS, room.some))
            _begin_side(places, at[a:b], signs[a:b], a, whole, scalars)
            noted.append(np.zeros((tape.checks, 2), dtype=np.int64))
            parts.append(room.ask(tape, b - a, whole, scalars, results, backend.config.leave, noted[-1]))
        if len(parts) == 1:
            play(*parts[0])  # nothing there asks how many threads torch has
        else:
            share_out(_play, parts, threads)
        told.rows += n
        told.ops += count_ops(program.steps, n, sum(noted[1:], noted[0]), [], grouped=asked.leaves)[0]
        rest = _end_side(found, at, signs, bounds, asked.best, ends, how, then, then_signs)
        if not rest:
            break
        at, signs = then[:rest], then_signs[:rest]
    write_cells(places[0], bounds, lo, hi)
    return told


def _play(part: tuple[object, ...]) -> None:
    play(*part)
