"""A walk's way through the steps that a tape has instructions for: in one call, without Python in between (tape.py)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu.frontier import Entry, Frontier
from polytriton.runtime.cpu.tape import NEURON, Held, Tape
from polytriton.runtime.cpu.tape_loop import COUNTS, NOTES, play
from polytriton.runtime.cpu.tape_record import record
from polytriton.runtime.results import Identity, Results, Rows

NONE, NOBODY, NO_NUMBERS = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_), np.empty(0)


class TapePlayer(Frontier):
    """A block of rows that may be played along a program. Rows with slopes or relations of their own are walked step by step."""

    program: Program
    results: Results
    chosen: Chosen | None
    image: int | None
    extra: Tensor | None
    left: list[int]
    plays = True  # a kind of walk that looks at its steps sets this to False

    def _find_tape(self, k: int) -> Tape | None:
        """A tape from this step on, where one is worth it."""
        playable = self.plays and self.backend.plays and self.backend.fast and self.kit.blocks
        if not playable or self.chosen is not None or self.extra is not None:
            return None
        if self.tables.boxes.ball is not None or any(self.arriving.values()) or not self.frontier:
            return None
        entries = {
            name: Held(NEURON if isinstance(m, Identity) else 0, window, self.narrow.get(name), self.owed.get(name))
            for name, (m, window) in self.frontier.items()
        }
        if sum(held.slot == NEURON for held in entries.values()) > 1:
            return None
        ways = tuple((name, held.window, held.slot, held.narrow is not None, held.owes is not None) for name, held in entries.items())
        key = self.program.kind, self.program.target, k, self.image, ways
        tapes = self.tables.tapes
        if key not in tapes:
            tapes[key] = record(self.backend, self.tables, self.program, k, self.image, entries)
        return tapes[key]

    def _play(self, tape: Tape, k: int) -> bool:
        """Plays a tape that begins with this step. False when no row is left, or none has a step to come."""
        rows, n = self.rows, len(self.rows)
        memory = np.empty(tape.row * n + tape.taps, dtype=np.float32)
        sign, channel = NO_NUMBERS, NONE
        for name, (m, _) in self.frontier.items():
            if isinstance(m, Identity):
                sign, channel = m.sign.double().numpy(), m.channel.numpy()
            else:
                begin = int(tape.offsets[tape.before[name]]) * n
                memory[begin : begin + m.numel()] = m.reshape(-1).numpy()
        slots = tape.offsets * (4 * n) + memory.ctypes.data
        slots[0] = memory.ctypes.data + 4 * n * tape.row
        whole = np.stack([v.numpy() for v in (rows.image, rows.h, rows.w, rows.index)])
        constant, error, results = rows.constant.numpy(), rows.error.numpy(), self.results
        told = np.zeros((len(tape.checks), 2), dtype=np.int64)
        group, done = (NONE, NOBODY) if results.group is None or results.done is None else (results.group.numpy(), results.done.numpy())
        best, raw = results.best.numpy(), results.raw.numpy()
        counts, lines, near = np.empty((COUNTS, n), dtype=np.int64), np.empty((n, 2), dtype=np.int64), np.empty(tape.near, dtype=np.int64)
        left = play(
            tape.code, tape.reals, slots, tape.sizes, sign, channel, *whole, constant, error, best, raw, group, done, results.strict,
            self.backend.config.leave, np.empty((NOTES, n)), counts, lines, near, told,
        )  # fmt: skip
        if not self._count(tape, k, told):
            return False
        self.rows = Rows(*(torch.from_numpy(v[:left]) for v in (*whole[:3], constant, error, whole[3])))
        self.image = self.tables.only_image(self.rows.image) if self.image is None else self.image

        def entry(name: str, held: Held) -> Entry:
            if held.slot == NEURON:  # rows leave at checks only, and none is taken while such an entry is there
                signs = torch.from_numpy(sign * held.factor).to(self.kit.coefficients.dtype)
                return Identity(signs, torch.from_numpy(channel)), held.window
            begin, shape = int(tape.offsets[held.slot]) * n, (held.window.h.size, held.window.w.size, self._extent(name)[2])
            m = torch.from_numpy(memory[begin : begin + left * int(tape.sizes[held.slot])])
            return m.view(left, *(shape if held.narrow is None else (1, 1, len(held.narrow.cells)))), held.window

        self.frontier = {name: entry(name, held) for name, held in tape.after.items()}
        self.arriving = {name: [entry(name, held) for held in entries] for name, entries in tape.arriving.items()}
        self.narrow = {name: held.narrow for name, held in tape.after.items() if held.narrow is not None}
        self.owed = {name: held.owes for name, held in tape.after.items() if held.owes is not None}
        return True

    def _count(self, tape: Tape, k: int, told: np.ndarray) -> bool:
        """Notes how many rows each step had. False when none is left for another."""
        rows, found, grouped = len(self.rows), iter(told), self.results.group is not None
        for step in self.program.steps[k : k + tape.steps]:
            if step.check and grouped:
                if step.op == "input":
                    return False
                open_, rows = map(int, next(found))
                self.left.append(open_)
                if not rows:
                    return False
            self.results.ops += step.ops * rows
        return k + tape.steps < len(self.program.steps)
