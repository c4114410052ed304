"""Runs a program's launches on a device: a GPU, or CPU tensors in Triton's interpreter.

All tensors of a program come from one arena laid out ahead (kernels/arena.py). How many rows are left is known on the device
alone: a program's launches follow one another without the host waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.ir.plan import Program, extent
from polytriton.kernels.arena import Arena, lay_out
from polytriton.kernels.choose import GPU, INTERPRETER
from polytriton.kernels.emit import NUMERICS, Emitter, Numerics
from polytriton.kernels.launches import Lowering
from polytriton.kernels.load import function, prepare
from polytriton.kernels.sequence import Entry, Fallback, Launch, Launches, Space
from polytriton.runtime.tables import Kit, Tables
from polytriton.runtime.torch_backend import Rows, TorchBackend
from polytriton.runtime.walk import Identity, Results, Walk

ALIGN = 64  # capacities are multiples of this, so every buffer of the arena starts aligned
BLOCKS = 1024  # blocks of rows a compaction can number: a million rows at once
BELOW_ZERO = -5e-324  # a bound above this is at least zero


@dataclass
class Ready:
    """A program's launches with the arena's layout for one row."""

    launches: Launches
    arena: Arena


class TritonBackend:
    """One network, one arithmetic, one device."""

    def __init__(self, kit: Kit, numerics: str, device: torch.device, interpret: bool) -> None:
        prepare(interpret)
        self.kit, self.device = kit, device
        self.numerics: Numerics = NUMERICS[numerics]
        self.space = Space(kit.net, kit.plan)
        self.emitter = Emitter()
        self.sizes = INTERPRETER if interpret else GPU
        self.tensors = TorchBackend(device)  # for the steps that have no kernel
        self._ready: dict[tuple[str, str], Ready] = {}
        self._arena = torch.empty(0, dtype=torch.uint8, device=device)
        self._weights: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        self._capacity = 0

    def ready(self, program: Program) -> Ready:
        key = (program.kind, program.target)
        if key not in self._ready:
            launches = Lowering(self.emitter, self.space, self.numerics, program, self.sizes).run()
            self._ready[key] = Ready(launches, lay_out(launches))
        return self._ready[key]

    def run(self, tables: Tables, program: Program, rows: Rows, results: Results, start: Tensor | Identity) -> None:
        """Every row of the block from the target to the input; bounds go to `results`."""
        ready = self.ready(program)
        run = Run(self, ready, tables, rows, results, start)
        for launch in ready.launches.steps:
            if isinstance(launch, Launch):
                run.launch(launch)
            else:
                run.fall_back(launch)

    def weight(self, symbol: str) -> Tensor:
        """A layer's tensor as the kernels read it."""
        if symbol not in self._weights:
            kind, name = symbol.split(":")
            node, weights = self.kit.nodes[name], self.kit.weights[name]
            if kind == "rows":
                made = weights.rows
            elif node.op == "conv":
                made = weights.back.permute(2, 3, 0, 1)  # [KH, KW, CO, CI/G]
            else:
                made = weights.back
            self._weights[symbol] = made.contiguous()
        return self._weights[symbol]

    def arena(self, size: int) -> Tensor:
        """So many bytes; what was there before may be overwritten."""
        if self._arena.numel() < size:
            self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)  # give back before asking for more
            self._arena = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._arena

    def row_array(self, name: str, capacity: int, dtype: torch.dtype) -> Tensor:
        """A row array that holds valid row data from its first use on: rows past the count may be read, never believed."""
        if name not in self._rows or len(self._rows[name]) < capacity:
            self._rows[name] = torch.zeros(capacity, dtype=dtype, device=self.device)
        return self._rows[name]


class Run:
    """One block of rows: what each symbol stands for."""

    def __init__(
        self, backend: TritonBackend, ready: Ready, tables: Tables, rows: Rows, results: Results, start: Tensor | Identity
    ) -> None:
        self.backend, self.tables, self.ready, self.results = backend, tables, ready, results
        self.program = ready.launches.program
        self.word = 8 if backend.numerics.type == "tl.float64" else 4
        self.dtype = backend.kit.coefficients.dtype
        n = len(rows)
        self.capacity = -(-n // ALIGN) * ALIGN
        self.bytes = backend.arena(ready.arena.size * self.capacity * self.word)
        for name in ("image", "row_h", "row_w", "constant", "error", "index"):
            values = {"row_h": rows.h, "row_w": rows.w}.get(name)
            self.rows(name, 0)[:n] = getattr(rows, name) if values is None else values
        self.rows("count", 0)[0] = n
        if isinstance(start, Identity):
            self.rows("sign", 0)[:n] = start.sign.double()
            self.rows("channel", 0)[:n] = start.channel
        else:
            self.buffer(0)[: start.numel()] = start.reshape(-1)
        device = backend.device
        if results.group is None or results.done is None:
            size = len(results.best)
            self.group = torch.zeros(size, dtype=torch.int64, device=device)
            self.done = torch.zeros(1, dtype=torch.int8, device=device)
            limit = float("inf")
        else:
            self.group, self.done = results.group, results.done.view(torch.int8)
            limit = 0.0 if results.strict else BELOW_ZERO
        self.limit = torch.full((1,), limit, dtype=torch.float64, device=device)

    # ---- symbols ----------------------------------------------------------------------------------------

    def rows(self, name: str, state: int) -> Tensor:
        """A row array of one state: two sets, taken in turns, since only neighbours meet. Single numbers take a cell each."""
        dtype = torch.float64 if name in ("constant", "error", "sign") else torch.int64
        if name == "count":
            return self.backend.row_array("count", 4096, torch.int64)[state : state + 1]
        return self.backend.row_array(f"{name}:{state % 2}", self.capacity, dtype)

    def buffer(self, number: int) -> Tensor:
        begin = self.ready.arena.offsets[number] * self.capacity * self.word
        size = self.ready.launches.buffers[number] * self.capacity * self.word
        return self.bytes[begin : begin + size].view(self.dtype)

    def tensor(self, symbol: str) -> Tensor:
        kind, _, name = symbol.partition(":")
        if kind == "buf":
            return self.buffer(int(name))
        if kind in ("from", "slot"):
            return self.backend.row_array(symbol, self.capacity, torch.int64)
        if kind in ("value", "raw", "slack"):
            return self.backend.row_array(kind, self.capacity, torch.float64)
        if kind == "blocks":
            return self.backend.row_array(kind, BLOCKS, torch.int64)
        if kind in ("weight", "rows"):
            return self.backend.weight(symbol)
        if name.isdigit():
            return self.rows(kind, int(name))
        if kind in ("group", "done", "limit"):
            found: Tensor = getattr(self, kind)
            return found
        if kind in ("best", "raw_best"):
            return self.results.best if kind == "best" else self.results.raw
        return self.table(kind, name)

    def table(self, kind: str, name: str) -> Tensor:
        tables, kit = self.tables, self.backend.kit
        if kind in ("lo", "hi"):
            return tables.box(name)[kind == "hi"]
        if kind in ("below", "above", "cut"):
            lines = tables.lines(kit.nodes[name])
            return {"below": lines.below, "above": lines.above, "cut": lines.upper_cut}[kind]
        if kind in ("t", "floor"):
            return tables.charge(name)[kind == "floor"]
        if kind == "underflow":
            return tables.floor(name)
        if kind == "first":
            return tables.first(name).contiguous()
        if kind == "bias":
            return kit.bias_line(name, 1)
        raise AssertionError(kind)

    # ---- work -------------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        function(kernel)[launch.grid(self.capacity)](
            *(self.tensor(s) for s in launch.bind), num_warps=kernel.warps, num_stages=kernel.stages
        )

    def fall_back(self, step: Fallback) -> None:
        """The Plan's own interpreter does one step on the rows that are left, which the host has to count for it."""
        state = step.state
        left = int(self.rows("count", state)[0])
        if not left:
            return
        named = {name: self.rows(name, state)[:left] for name in ("image", "constant", "error", "index")}
        rows = Rows(h=self.rows("row_h", state)[:left], w=self.rows("row_w", state)[:left], **named)
        walk = Walk(self.backend.tensors, self.tables, self.program, rows, self.results)
        walk.paid = step.paid
        for name, entry in step.before:
            walk.frontier[name] = self._taken(name, entry, left), entry.window
        getattr(walk, "_" + step.step.op)(self.backend.kit.nodes[step.step.node], step.step)
        for name, entry in step.made:
            arriving = walk.arriving.get(name)
            made, _ = arriving.pop(0) if arriving and name not in walk.frontier else walk.frontier.pop(name)
            assert isinstance(made, Tensor)
            assert entry.buffer is not None
            self.buffer(entry.buffer)[: made.numel()] = made.reshape(-1)
        for name in ("constant", "error"):
            self.rows(name, state)[:left] = getattr(walk.rows, name)

    def _taken(self, name: str, entry: Entry, left: int) -> Tensor:
        assert entry.buffer is not None
        c = extent(self.backend.kit.nodes[name])[2]
        all_rows = self.buffer(entry.buffer).view(self.capacity, entry.window.h.size, entry.window.w.size, c)
        return all_rows[:left].clone() if entry.slot is None else all_rows[self.tensor(entry.slot)[:left]]
