"""Runs programs by generated kernels on a device: a GPU, or CPU tensors in Triton's interpreter.

A program's launches are bound to tensors once, for a capacity (rows at a time) and a batch size, and then only played: the
tensors stay where they are, and what changes is copied into them. How many rows are left is known on the device alone, so
the host never waits inside a program; on a GPU the launches are captured in a graph when they are played a second time
(unless the configuration says otherwise).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.ir.plan import Program
from polytriton.kernels.arena import lay_out
from polytriton.kernels.choose import GPU, INTERPRETER, power
from polytriton.kernels.emit import NUMERICS, Emitter, Numerics
from polytriton.kernels.lanes import OWN, branched
from polytriton.kernels.launches import Lowering
from polytriton.kernels.load import makes_room, prepare
from polytriton.kernels.sequence import Space
from polytriton.knobs import SUMMARY, note
from polytriton.runtime.binding import Binding, Bound, Ready, Streams
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.kernel_tables import batch_table, layer_tensor
from polytriton.runtime.results import Identity, Results
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Kit, Tables
from polytriton.runtime.torch_backend import Rows

ALIGN = 64  # capacities are multiples of this, so every buffer of the arena starts aligned
MOST = 1 << 20  # rows at once that a compaction can number
ROW_BYTES = 8 * 32  # row arrays of both states, slots and scratch
BELOW_ZERO = -5e-324  # a bound above this is at least zero


class TritonBackend:
    """One network, one arithmetic, one device."""

    def __init__(self, kit: Kit, numerics: str, device: torch.device, interpret: bool, memory: int, config: Config = DEFAULT) -> None:
        prepare(interpret)
        self.kit, self.device, self.memory = kit, device, memory
        self.numerics: Numerics = NUMERICS[numerics]
        self.word = 8 if self.numerics.type == "tl.float64" else 4
        self.space = Space(kit.net, kit.plan)
        self.emitter = Emitter(tiles=config.tiles)
        self.graphs = config.graphs and device.type == "cuda"
        self.rooms = config.rooms if device.type == "cuda" and makes_room() else {}
        self.sizes = INTERPRETER if interpret else GPU
        self.lanes, self.streams = config.lanes, Streams(device) if device.type == "cuda" else None
        self._ready: dict[tuple[str, str], Ready] = {}
        self._bound: dict[tuple[object, ...], Bound] = {}
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._arena = torch.empty(0, dtype=torch.uint8, device=device)
        self.operations = torch.zeros((), dtype=torch.float64, device=device)  # what the Plan counts for the rows at every step

    def ready(self, program: Program) -> Ready:
        key = (program.kind, program.target)
        if key not in self._ready:
            launches = Lowering(self.emitter, self.space, self.numerics, program, self.sizes).run()
            if self.lanes:
                launches = branched(launches, self.emitter, self.numerics)
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

    def play(self, bound: Bound, tables: Tables) -> None:
        """One block of rows, whose arrays and tables have been filled in, from the target to the input."""
        bound.played += 1
        if bound.graph is not None:
            bound.graph.replay()
            return
        if self.graphs and bound.played > 1:  # the first time compiled every kernel
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other devices' workers go on allocating
                self._play(bound)
            bound.graph = graph
            graph.replay()
            return
        self._play(bound)

    def _play(self, bound: Bound) -> None:
        try:
            for call in bound.calls:
                call()
        except BaseException:
            if self.streams is not None:
                self.streams.settle()  # what still runs beside must not meet what comes next in the same memory
            raise

    def weight(self, kind: str, name: str) -> Tensor:
        """A layer's tensor as the kernels read it."""
        key = (f"{kind}:{name}", 0)
        if key not in self._kept:
            self._kept[key] = layer_tensor(self.kit, kind, name)
        return self._kept[key]

    def table(self, tables: Tables, kind: str, name: str) -> Tensor:
        return batch_table(tables, kind, name)

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
        for name in OWN.values():
            if name in to:
                to[name].zero_()  # every merge leaves zeros, but a program may have been broken off before it
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
        self.play(bound, tables)
        self.operations += (to["count"][: len(bound.ops)] * bound.ops).sum()
        results.best.copy_(to["best"][:total])
        results.raw.copy_(to["raw_best"][:total])
        if results.group is not None and results.done is not None:
            results.done.view(torch.int8).copy_(to["done"][: len(results.done)])
            results.left.append(to["count"][1 : len(bound.ops)].double())  # a copy, read when the answer is known
