"""Runs programs by generated kernels on a device: a GPU, or CPU tensors in Triton's interpreter.

A program's launches are bound to tensors once, for a capacity (rows at a time) and a batch size, and then only played: the
tensors stay where they are, and what changes is copied into them. How many rows are left is known on the device alone, so
the host never waits inside a program; on a GPU the launches are captured in a graph when they are played a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.ir.plan import Program, extent
from polytriton.kernels.arena import Arena, lay_out
from polytriton.kernels.choose import GPU, INTERPRETER, power
from polytriton.kernels.emit import NUMERICS, Emitter, Numerics
from polytriton.kernels.launches import Lowering
from polytriton.kernels.load import function, makes_room, prepare
from polytriton.kernels.sequence import Entry, Fallback, Launch, Launches, Space
from polytriton.kernels.spec import room
from polytriton.knobs import SUMMARY, note
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Kit, Tables
from polytriton.runtime.torch_backend import Rows, TorchBackend
from polytriton.runtime.walk import Identity, Results, Walk

ALIGN = 64  # capacities are multiples of this, so every buffer of the arena starts aligned
MOST = 1 << 20  # rows at once that a compaction can number
STATES = 4096
ROW_BYTES = 8 * 32  # row arrays of both states, slots and scratch
BELOW_ZERO = -5e-324  # a bound above this is at least zero


@dataclass(frozen=True)
class Ready:
    """A program's launches with the arena's layout for one row."""

    launches: Launches
    arena: Arena


@dataclass
class Bound:
    """Launches with their tensors: one row capacity, one batch size."""

    ready: Ready
    capacity: int
    calls: list[Callable[[], Any] | Fallback]
    tables: list[tuple[str, str, Tensor]]  # what has to be copied in for a new batch
    ops: Tensor  # by row state
    serial: int = -1
    played: int = 0
    graph: Any = None
    starts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def capturable(self) -> bool:
        return not any(isinstance(c, Fallback) for c in self.calls)


class TritonBackend:
    """One network, one arithmetic, one device."""

    def __init__(self, kit: Kit, numerics: str, device: torch.device, interpret: bool, memory: int, config: Config = DEFAULT) -> None:
        prepare(interpret)
        self.kit, self.device, self.memory = kit, device, memory
        self.numerics: Numerics = NUMERICS[numerics]
        self.word = 8 if self.numerics.type == "tl.float64" else 4
        self.space = Space(kit.net, kit.plan)
        self.emitter = Emitter(tiles=config.tiles)
        self.rooms = config.rooms if device.type == "cuda" and makes_room() else {}
        self.sizes = INTERPRETER if interpret else GPU
        self.tensors = TorchBackend(device)  # for the steps that have no kernel
        self._ready: dict[tuple[str, str], Ready] = {}
        self._bound: dict[tuple[object, ...], Bound] = {}
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._arena = torch.empty(0, dtype=torch.uint8, device=device)
        self.operations = torch.zeros((), dtype=torch.float64, device=device)  # what the Plan counts for the rows at every step

    def ready(self, program: Program) -> Ready:
        key = (program.kind, program.target)
        if key not in self._ready:
            launches = Lowering(self.emitter, self.space, self.numerics, program, self.sizes).run()
            self._ready[key] = Ready(launches, lay_out(launches))
        return self._ready[key]

    # ---- memory -----------------------------------------------------------------------------------------

    def row_bytes(self, program: Program) -> int:
        return self.ready(program).arena.size * self.word + ROW_BYTES

    def capacity(self, program: Program, rows: int) -> int:
        """Rows at a time: a power of two that holds all of them, or the most that the budget holds."""
        budget = self.memory
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            budget = min(budget, int(0.9 * (free + self._arena.numel())))
        fit = min(MOST, budget // self.row_bytes(program) // ALIGN * ALIGN)
        if fit < ALIGN:
            need = ALIGN * self.row_bytes(program)
            raise ResourceError(
                f"{ALIGN} rows of %{program.target} take {need / 2**20:.1f} MiB, more than the {budget / 2**20:.1f} MiB there are",
                f"give --memory at least {2 * need // 2**20 + 1}M",
            )
        return min(fit, power(rows, ALIGN, MOST))

    def shrink(self, program: Program, capacity: int, error: BaseException) -> int:
        """After running out of memory: half as many rows at a time, everything held given back first."""
        half = capacity // 2 // ALIGN * ALIGN
        if half < ALIGN:
            need = ALIGN * self.row_bytes(program) / 2**20
            raise ResourceError(
                f"the device is out of memory with {ALIGN} rows of %{program.target} ({need:.1f} MiB)",
                "free memory on it, or use --device cpu",
            ) from error
        note(SUMMARY, f"out of memory with {capacity} rows of %{program.target} at a time: going on with {half}")
        self.memory = half * self.row_bytes(program)
        self._forget()
        self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return half

    def _forget(self) -> None:
        """Tensors are about to move: nothing bound to them stays."""
        self._bound.clear()

    def arena(self, size: int) -> Tensor:
        """So many bytes; what was there before may be overwritten."""
        if self._arena.numel() < size:
            self._forget()
            self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)  # give back before asking for more
            self._arena = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._arena

    def kept(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """A tensor that stays where it is; zero at first, so that rows past the count hold valid places, never believed."""
        key = (name, size)
        if key not in self._kept:
            self._kept[key] = torch.zeros(size, dtype=dtype, device=self.device)
        return self._kept[key]

    # ---- programs ---------------------------------------------------------------------------------------

    def bound(self, tables: Tables, program: Program, capacity: int, results: int) -> Bound:
        """The program's launches bound to tensors, with the tables of this batch in them."""
        ready = self.ready(program)
        self.arena(ready.arena.size * capacity * self.word)
        key = (program.kind, program.target, capacity, tables.boxes.batch, results)
        if key not in self._bound:
            if sum(t.nbytes for t in self._kept.values()) > self.memory // 2:  # batch sizes come and go: begin afresh
                self._forget()
                self._kept.clear()
            self._bound[key] = Binding(self, ready, tables, capacity, results).bind()
        bound = self._bound[key]
        if bound.serial != tables.serial:
            for kind, name, tensor in bound.tables:
                tensor.copy_(self.table(tables, kind, name))
            bound.serial = tables.serial
        return bound

    def play(self, bound: Bound, tables: Tables, results: Results) -> None:
        """One block of rows, whose arrays have been filled in, from the target to the input."""
        bound.played += 1
        if bound.graph is not None:
            bound.graph.replay()
            return
        if self.device.type == "cuda" and bound.capturable and bound.played > 1:  # the first time compiled every kernel
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other devices' workers go on allocating
                for call in bound.calls:
                    call()  # type: ignore[operator]
            bound.graph = graph
            graph.replay()
            return
        for call in bound.calls:
            if isinstance(call, Fallback):
                self._fall_back(call, bound, tables, results)
            else:
                call()

    def weight(self, kind: str, name: str) -> Tensor:
        """A layer's tensor as the kernels read it."""
        node, weights = self.kit.nodes[name], self.kit.weights[name]
        made = weights.rows if kind == "rows" else weights.back
        if kind == "weight" and node.op == "conv":
            made = made.permute(2, 3, 0, 1)  # [KH, KW, CO, CI/G]
        key = (f"{kind}:{name}", made.numel())
        if key not in self._kept:
            self._kept[key] = made.contiguous()
        return self._kept[key]

    def table(self, tables: Tables, kind: str, name: str) -> Tensor:
        if kind in ("lo", "hi"):
            return tables.box(name)[kind == "hi"]
        if kind in ("below", "above", "cut"):
            lines = tables.lines(self.kit.nodes[name])
            return {"below": lines.below, "above": lines.above, "cut": lines.upper_cut}[kind]
        if kind in ("t", "floor"):
            return tables.charge(name)[kind == "floor"]
        return {"underflow": tables.floor, "first": tables.first}[kind](name)

    def run(
        self, tables: Tables, program: Program, rows: Rows, results: Results, start: Tensor | Identity, expire: Callable[[], None]
    ) -> None:
        """All rows, as many at a time as memory holds; `results` are written at rows.index."""
        with on_device(self.device):
            self._blocks(tables, program, rows, results, start, expire)

    def _blocks(
        self, tables: Tables, program: Program, rows: Rows, results: Results, start: Tensor | Identity, expire: Callable[[], None]
    ) -> None:
        total = len(results.best)
        capacity = self.capacity(program, len(rows))
        at = 0
        while at < len(rows):
            expire()
            block = slice(at, min(len(rows), at + capacity))
            try:
                self._block(tables, program, rows, results, start, block, capacity, total)
            except (torch.OutOfMemoryError, MemoryError) as error:
                capacity = self.shrink(program, capacity, error)
                continue  # the same rows again: what they proved stays true
            at = block.stop

    def _block(
        self,
        tables: Tables,
        program: Program,
        rows: Rows,
        results: Results,
        start: Tensor | Identity,
        block: slice,
        capacity: int,
        total: int,
    ) -> None:
        bound = self.bound(tables, program, capacity, power(total, ALIGN, 1 << 40))
        n, to = block.stop - block.start, bound.starts
        for name, values in (("image", rows.image), ("row_h", rows.h), ("row_w", rows.w)):
            to[name][:n] = values[block]
        to["constant"][:n], to["error"][:n], to["index"][:n] = rows.constant[block], rows.error[block], rows.index[block]
        to["count"][0].fill_(n)
        if isinstance(start, Identity):
            to["sign"][:n], to["channel"][:n] = start.sign[block].double(), start.channel[block]
        else:
            part = start[block].reshape(-1)
            to["start"][: part.numel()] = part
        if results.group is None or results.done is None:
            to["group"].zero_()  # an earlier program's groups and their verdicts lie there
            to["done"].zero_()
            to["limit"].fill_(float("inf"))
        else:
            to["group"][:total] = results.group
            to["done"][: len(results.done)] = results.done.view(torch.int8)
            to["limit"].fill_(0.0 if results.strict else BELOW_ZERO)
        to["best"][:total], to["raw_best"][:total] = results.best, results.raw
        self.play(bound, tables, results)
        self.operations += (to["count"][: len(bound.ops)] * bound.ops).sum()
        results.best.copy_(to["best"][:total])
        results.raw.copy_(to["raw_best"][:total])
        if results.group is not None and results.done is not None:
            results.done.view(torch.int8).copy_(to["done"][: len(results.done)])
            results.left.append(to["count"][1 : len(bound.ops)].double())  # a copy, read when the answer is known

    # ---- steps without a kernel -------------------------------------------------------------------------

    def _fall_back(self, step: Fallback, bound: Bound, tables: Tables, results: Results) -> None:
        """The Plan's own interpreter does one step on the rows that are left, which the host has to count for it."""
        state = Binding(self, bound.ready, tables, bound.capacity, 0)
        left = int(state.rows("count", step.state)[0])
        if not left:
            return
        named = {name: state.rows(name, step.state)[:left] for name in ("image", "constant", "error", "index")}
        rows = Rows(h=state.rows("row_h", step.state)[:left], w=state.rows("row_w", step.state)[:left], **named)
        walk = Walk(self.tensors, tables, bound.ready.launches.program, rows, results)
        walk.paid = step.paid
        for name, entry in step.before:
            walk.frontier[name] = self._taken(state, name, entry, left), entry.window
        getattr(walk, "_" + step.step.op)(self.kit.nodes[step.step.node], step.step)
        for name, entry in step.made:
            arriving = walk.arriving.get(name)
            made, _ = arriving.pop(0) if arriving and name not in walk.frontier else walk.frontier.pop(name)
            assert isinstance(made, Tensor) and entry.buffer is not None
            state.buffer(entry.buffer)[: made.numel()] = made.reshape(-1)
        for name in ("constant", "error"):
            state.rows(name, step.state)[:left] = getattr(walk.rows, name)

    def _taken(self, state: Binding, name: str, entry: Entry, left: int) -> Tensor:
        assert entry.buffer is not None
        c = extent(self.kit.nodes[name])[2]
        every = state.buffer(entry.buffer).view(state.capacity, entry.window.h.size, entry.window.w.size, c)
        return every[:left].clone() if entry.slot is None else every[state.tensor(entry.slot)[:left]]


class Binding:
    """What each symbol of a program stands for, at one capacity and batch size."""

    def __init__(self, backend: TritonBackend, ready: Ready, tables: Tables, capacity: int, results: int) -> None:
        self.backend, self.ready, self.tables, self.capacity, self.results = backend, ready, tables, capacity, results
        self.copied: dict[str, tuple[str, str, Tensor]] = {}

    def bind(self) -> Bound:
        calls = list(self._calls())
        names = ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel", "count")
        starts = {name: self.rows(name, 0) for name in names}
        starts["count"] = self.backend.kept("count", 2 * STATES, torch.int64)[::2]
        starts |= {name: self.tensor(name) for name in ("group", "done", "limit", "best", "raw_best")}
        if self.ready.launches.buffers:
            starts["start"] = self.buffer(0)
        launches = self.ready.launches
        ops = torch.tensor([launches.ops.get(k, 0) for k in range(launches.states)], dtype=torch.float64, device=self.backend.device)
        return Bound(self.ready, self.capacity, calls, list(self.copied.values()), ops, starts=starts)

    def _calls(self) -> Iterator[Callable[[], Any] | Fallback]:
        for step in self.ready.launches.steps:
            yield step if isinstance(step, Fallback) else self._call(step)

    def _call(self, launch: Launch) -> Callable[[], Any]:
        kernel, tensors = function(launch.kernel)[launch.grid(self.capacity)], [self.tensor(s) for s in launch.bind]
        options = {**launch.kernel.options, **room(self.backend.rooms.get(launch.kernel.name, 0))}
        return lambda: kernel(*tensors, **options)

    def rows(self, name: str, state: int) -> Tensor:
        """A row array of one state: two sets, taken in turns, since only neighbours meet. Counts take a cell each."""
        if name == "count":
            return self.backend.kept("count", 2 * STATES, torch.int64)[2 * state : 2 * state + 1]  # 16 bytes apart
        dtype = torch.float64 if name in ("constant", "error", "sign") else torch.int64
        return self.backend.kept(f"{name}:{state % 2}", self.capacity, dtype)

    def buffer(self, number: int) -> Tensor:
        word, arena = self.backend.word, self.ready.arena
        begin = arena.offsets[number] * self.capacity * word
        size = self.ready.launches.buffers[number] * self.capacity * word
        return self.backend.arena(arena.size * self.capacity * word)[begin : begin + size].view(self.backend.kit.coefficients.dtype)

    def tensor(self, symbol: str) -> Tensor:
        kind, _, name = symbol.partition(":")
        keep = self.backend.kept
        if kind == "buf":
            return self.buffer(int(name))
        if kind in ("from", "slot"):
            return keep(symbol, self.capacity, torch.int64)
        if kind in ("value", "raw", "slack"):
            return keep(kind, self.capacity, torch.float64)
        if kind == "blocks":
            return keep(kind, 1024, torch.int64)
        if kind in ("weight", "rows"):
            return self.backend.weight(kind, name)
        if kind == "bias":
            return self.backend.kit.bias_line(name, 1)
        if kind in ("best", "raw_best", "group", "done"):
            return keep(kind, self.results, {"group": torch.int64, "done": torch.int8}.get(kind, torch.float64))
        if kind == "limit":
            return keep(kind, 1, torch.float64)
        if name.isdigit():
            return self.rows(kind, int(name))
        return self._table(symbol, kind, name)

    def _table(self, symbol: str, kind: str, name: str) -> Tensor:
        if symbol not in self.copied:
            value = self.backend.table(self.tables, kind, name)
            self.copied[symbol] = kind, name, self.backend.kept(symbol, value.numel(), value.dtype).view(value.shape)
        return self.copied[symbol][2]
