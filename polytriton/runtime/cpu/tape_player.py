"""A walk's way through the steps that a tape has instructions for: in one call, without Python in between (tape.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.plan import Program, Step
from polytriton.runtime.budget import between_groups
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu import tape_loop as loop
from polytriton.runtime.cpu.frontier import Entry, Frontier
from polytriton.runtime.cpu.play_loop import play
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import NEURON, Tape, TapeEntry, tape_key
from polytriton.runtime.cpu.tape_record import ROOM, SLOTS, record
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Identity, Results, Rows
from polytriton.runtime.tables import Tables

PLAYED = ("start", "linear", "conv", "relu", "add", "sub", "merge", "dense", "input")
WORTH = 2 * 10**7  # operations: what a thread does in the time that handing them over takes, several times over
SHARES, SHARE = (4, 2, 1, 1), 2 * 10**8  # a thread's parts, since some end sooner than others and wait for the last; one's operations
NEAR, LEAST = 4 << 20, 16  # bytes of coefficients that stay in the caches between instructions; rows that a layer's weights are read for
NONE, NOBODY = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
NO_NEURONS = NONE, np.empty((0, 0), dtype=np.int64), np.empty((0, 0)), np.empty((0, 0), dtype=np.int64)


def count_played(tape: Tape, rows: int) -> int:
    """Of so many rows, how many are played at a time: as many as lie near the processor."""
    return min(rows, max(LEAST, NEAR // (8 * max(1, tape.row)) * 2))


def count_values(tape: Tape, rows: int) -> int:
    """Of all slots, for so many rows at a time."""
    return tape.row * rows + tape.taps


@dataclass(frozen=True)
class PlayRoom:
    """Memory in which one thread plays so many rows at a time along a tape: their coefficients, slots and what is noted of them."""

    some: int
    memory: np.ndarray
    slots: np.ndarray
    scratch: tuple[np.ndarray, ...]

    @classmethod
    def make(cls, tape: Tape, rows: int, *, last: bool, memory: np.ndarray | None = None) -> PlayRoom:
        """For so many rows; where nobody reads their coefficients afterwards (`last`), some take the place of others. `memory`: theirs."""
        some = count_played(tape, rows) if last else rows
        if memory is None:
            memory = np.empty(count_values(tape, some), dtype=np.float32)
        assert len(memory) >= count_values(tape, some)
        begin, slots = memory.__array_interface__["data"][0], np.zeros((3, len(tape.sizes)), dtype=np.int64)
        slots[0], slots[1] = tape.offsets * (4 * some) + begin, tape.sizes
        slots[0, loop.TAPS] = begin + 4 * some * tape.row
        notes, counts = np.empty((loop.NOTES, some)), np.empty((loop.COUNTS, some), np.int64)
        return cls(some, memory, slots, (notes, counts, np.empty((some, loop.LINES), np.int64), np.empty(tape.near, np.int64)))

    def ask(
        self,
        tape: Tape,
        rows: int,
        whole: np.ndarray,
        scalars: np.ndarray,
        bounds: tuple[object, ...],
        leave: float,
        told: np.ndarray,
        neurons: tuple[np.ndarray, ...] = NO_NEURONS,
    ) -> tuple[object, ...]:
        """What `play` is given for so many rows; `bounds`: from where they are to whether a bound of zero is none that decides."""
        return tape.code, tape.reals, self.slots, rows, whole, scalars, *bounds, leave, *self.scratch, told, *neurons


@dataclass
class PlayedRows:
    """Some rows with memory of their own: a thread plays them alone, since rows tell each other nothing."""

    tape: Tape
    room: PlayRoom
    whole: np.ndarray
    scalars: np.ndarray
    told: np.ndarray
    given: list[Tensor]  # what `asked` has the addresses of
    asked: tuple[object, ...]
    left: int = 0

    @classmethod
    def begin(
        cls,
        tape: Tape,
        places: Sequence[np.ndarray | None],
        scalars: Sequence[np.ndarray | None],
        given: Mapping[int, Tensor],
        results: Results,
        leave: float,
        *,
        last: bool,
        ends: bool,
    ) -> PlayedRows:
        """Rows ready to be played, with the numbers of `loop.PLACES` and `loop.SCALARS`, zero where there are none, and coefficients in
        slots.
        """
        assert places[0] is not None
        room = PlayRoom.make(tape, len(places[0]), last=last)
        for slot, m in given.items():
            room.slots[2, slot] = m.data_ptr()
        whole, numbers = (_spread(v, kind, room.some) for v, kind in ((places, np.int64), (scalars, np.float64)))
        group, done = (NONE, NOBODY) if results.group is None or results.done is None else (results.group.numpy(), results.done.numpy())
        told, other = np.zeros((tape.checks, 2), dtype=np.int64), results.other if ends else None
        found = [results.best, results.raw, *(() if other is None else (other.best, other.raw))]
        assert all(v.is_contiguous() for v in found)
        bounds = np.array([*(v.data_ptr() for v in found), 0, 0][:4]), group, done, results.strict
        asked = room.ask(tape, len(places[0]), whole, numbers, bounds, leave, told)
        return cls(tape, room, whole, numbers, told, [*given.values(), *found], asked)

    def play(self) -> None:
        self.left = play(*self.asked)

    def rows(self) -> tuple[Tensor, ...]:
        """What `Rows` are made of, of the rows that are left."""
        (image, h, w, index, _), (constant, error, excess, _) = self.whole[0], self.scalars[0]
        return tuple(torch.from_numpy(v[: self.left]) for v in (image, h, w, constant, error, index, excess))

    def neurons(self, factor: float) -> tuple[Tensor, Tensor]:
        """Signs, so many times as large, and channels of the rows that are left, where they are single neurons."""
        channel, sign = self.whole[0][4][: self.left], self.scalars[0][3][: self.left]
        return torch.from_numpy(sign * factor), torch.from_numpy(channel)

    def entry(self, slot: int) -> Tensor:
        begin, size = int(self.tape.offsets[slot]) * self.room.some, int(self.tape.sizes[slot])
        return torch.from_numpy(self.room.memory[begin : begin + self.left * size]).view(self.left, size)


def _spread(lines: Sequence[np.ndarray | None], kind: type, some: int) -> np.ndarray:
    """[rows in pieces of `some`, lines, some]: lines of numbers of all rows, zero where there are none."""
    n = next(len(v) for v in lines if v is not None)
    held: np.ndarray = np.zeros((len(lines), -(-n // some) * some), kind)
    for to, v in zip(held, lines, strict=True):
        if v is not None:
            to[:n] = v
    return held[None] if n == some else np.ascontiguousarray(held.reshape(len(lines), -1, some).swapaxes(0, 1))


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def cut_rows(rows: int, ops: int, threads: int) -> list[int]:
    """Where so many rows are cut for threads that take a part after another: the last parts are small, where they are worth it."""
    count = min(rows, threads, ops // WORTH)
    if count <= 1:
        return []
    parts = np.repeat(SHARES if ops // SHARE >= count * sum(SHARES) else 1, count)
    ends = np.cumsum(parts)[:-1] * rows // parts.sum()
    return sorted({int(end) // 2 * 2 for end in ends if 2 <= end < rows})  # loops take neighbours two by two


def find_tape(
    backend: TorchBackend, tables: Tables, program: Program, at: int, image: int | None, entries: dict[str, TapeEntry], early: bool = False
) -> Tape | None:
    """The tape from step `at` on for rows of this image (None: of several) with these entries, where one is worth it; whether it may end
    `early` says `record`.
    """
    image = image if tables.kit.narrows(program) else None  # elsewhere rows of one image and of many do the same
    key = tape_key(program, at, image, entries, early)
    if key not in tables.tapes:
        tables.tapes[key] = record(backend, tables, program, at, image, entries, early)
    return tables.tapes[key]


def find_whole_tape(backend: TorchBackend, tables: Tables, program: Program, image: int | None, slot: int) -> Tape | None:
    """From the program's node to the input, for rows that are single neurons of it (in the slot NEURON) or coefficients over it (0)."""
    tape = find_tape(backend, tables, program, 1, image, {program.target: TapeEntry(slot, program.steps[0].windows[0])})
    return tape if tape is not None and tape.is_whole(program) else None


def play_forms(
    backend: TorchBackend, tables: Tables, program: Program, rows: Rows, start: Tensor, results: Results, threads: int
) -> bool:
    """Bounds of rows with coefficients over the program's node, as a walk's, which it prepares less for; False where no tape goes on to the
    input.
    """
    only = tables.only_image(rows.image) if tables.kit.narrows(program) else None
    tape = find_whole_tape(backend, tables, program, only, 0)
    if tape is None:
        return False
    n, leave, slot = len(rows), backend.config.leave, tape.before[program.target]
    places, numbers = [v.numpy() for v in (rows.image, rows.h, rows.w, rows.index)], (rows.constant.numpy(), rows.error.numpy())
    parts = [
        PlayedRows.begin(
            tape, [*(v[a:b] for v in places), None], [*(v[a:b] for v in numbers), None, None], {slot: start[a:b].contiguous()}, results,
            leave, last=True, ends=False,
        )
        for a, b in pairwise([0, *cut_groups(n, n * program.row_ops, threads, results, rows.index), n])
    ]  # fmt: skip
    share_out(PlayedRows.play, parts, threads)
    left, told = list[int](), sum((part.told for part in parts[1:]), parts[0].told)
    results.ops += count_ops(program.steps, n, told, left, grouped=results.group is not None)[0]
    results.left.append(left)
    return True


def cut_groups(rows: int, ops: int, threads: int, results: Results, index: Tensor) -> list[int]:
    """`cut_rows` such that rows of a group, which leave together, stay together."""
    cuts = cut_rows(rows, ops, threads)
    return between_groups(cuts, results.group[index]) if cuts and results.group is not None else cuts


def count_ops(steps: Sequence[Step], rows: int, told: np.ndarray, left: list[int], *, grouped: bool) -> tuple[int, int]:
    """Operations that these steps took of so many rows, and how many rows go on behind them; what each check leaves open joins `left`."""
    found, ops = iter(told.tolist()), 0
    for step in steps:
        if step.check and grouped:
            if step.op == "input":
                return ops, 0
            open_, rows = next(found)
            left.append(open_)
            if not rows:
                return ops, 0
        ops += step.ops * rows
    return ops, rows


class TapePlayer(Frontier):
    """A block of rows that may be played along a program. Rows with slopes or relations of their own are walked step by step."""

    program: Program
    results: Results
    chosen: Chosen | None
    image: int | None
    extra: Tensor | None
    left: list[int]
    plays = True  # a kind of walk that looks at its steps sets this to False
    threads = 1  # among which rows are divided
    early = False  # whether tapes end where rows may have left (`record`)

    @classmethod
    def may_play(cls, backend: TorchBackend, kit: Kit, program: Program) -> bool:
        """Whether tapes know every step of a program, as far as that can be told without rows."""
        if not cls.has_tapes(backend, kit) or len(program.steps) > SLOTS - ROOM:
            return False
        layers = (kit.forward.layers[step.node] for step in program.steps if step.op in ("linear", "conv"))
        return all(step.op in PLAYED for step in program.steps) and all(map(kit.sums_in_blocks, layers))

    @classmethod
    def has_tapes(cls, backend: TorchBackend, kit: Kit) -> bool:
        """Whether programs have tapes here."""
        return cls.plays and backend.plays and backend.fast and bool(kit.blocks)

    def _find_tape(self, k: int) -> Tape | None:
        """A tape from this step on, where one is worth it."""
        if not self.has_tapes(self.backend, self.kit) or self.chosen is not None or self.extra is not None:
            return None
        if self.tables.boxes.ball is not None or any(self.arriving.values()) or not self.frontier:
            return None
        entries = {
            name: TapeEntry(NEURON if isinstance(m, Identity) else 0, window, self.narrow.get(name), self.owed.get(name))
            for name, (m, window) in self.frontier.items()
        }
        if sum(held.slot == NEURON for held in entries.values()) > 1:
            return None
        return find_tape(self.backend, self.tables, self.program, k, self.image, entries, self.early)

    def _play(self, tape: Tape, k: int) -> bool:
        """Plays a tape that begins with this step. False when no row is left, or none has a step to come."""
        n = len(self.rows)
        ops = n * sum(step.ops for step in self.program.steps[k : k + tape.steps])
        cuts = cut_groups(n, ops, self.threads, self.results, self.rows.index)
        last = k + tape.steps == len(self.program.steps)
        parts = [self._part(tape, a, b, last) for a, b in pairwise([0, *cuts, n])]
        share_out(PlayedRows.play, parts, self.threads)
        told = sum((part.told for part in parts[1:]), parts[0].told)
        done, left = count_ops(self.program.steps[k : k + tape.steps], n, told, self.left, grouped=self.results.group is not None)
        self.results.ops += done
        if last or not left:
            return False
        image, h, w, constant, error, index, excess = (_join(v) for v in zip(*(part.rows() for part in parts), strict=True))
        self.rows = Rows(image, h, w, constant, error, index, None if self.rows.excess is None else excess)
        self.image = self.tables.only_image(self.rows.image) if self.image is None else self.image

        def entry(name: str, held: TapeEntry) -> Entry:
            if held.slot == NEURON:
                (start,) = (m for m, _ in before.values() if isinstance(m, Identity))
                sign, channel = (_join(v) for v in zip(*(part.neurons(held.factor) for part in parts), strict=True))
                return Identity(sign.to(start.sign.dtype), channel), held.window
            m = _join([part.entry(held.slot) for part in parts])
            shape = held.window.h.size, held.window.w.size, self._extent(name)[2]
            return m.view(len(m), *(shape if held.narrow is None else (1, 1, len(held.narrow.cells)))), held.window

        before = self.frontier
        self.frontier = {name: entry(name, held) for name, held in tape.after.items()}
        self.arriving = {name: [entry(name, held) for held in entries] for name, entries in tape.arriving.items()}
        self.narrow = {name: held.narrow for name, held in tape.after.items() if held.narrow is not None}
        self.owed = {name: held.owes for name, held in tape.after.items() if held.owes is not None}
        return True

    def _part(self, tape: Tape, a: int, b: int, last: bool) -> PlayedRows:
        """The rows from a to b, ready to be played."""
        rows, given, neurons = self.rows, dict[int, Tensor](), list[np.ndarray]()
        for name, (m, _) in self.frontier.items():
            if isinstance(m, Identity):
                neurons = [m.channel[a:b].numpy(), m.sign[a:b].numpy()]
            else:
                given[tape.before[name]] = m[a:b].contiguous()
        channel, sign = neurons or (None, None)
        places = [v[a:b].numpy() for v in (rows.image, rows.h, rows.w, rows.index)]
        scalars = [None if v is None else v[a:b].numpy() for v in (rows.constant, rows.error, rows.excess)]
        leave, ends = self.backend.config.leave, rows.excess is not None
        return PlayedRows.begin(tape, [*places, channel], [*scalars, sign], given, self.results, leave, last=last, ends=ends)
