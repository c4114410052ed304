"""Runs programs by generated kernels on a device: a GPU, or CPU tensors in Triton's interpreter.

A program's launches are bound to tensors once, for a capacity (rows at a time) and a batch size, and then only played: the
tensors stay where they are, and what changes is copied into them. How many rows are left is known on the device alone, so
the host never waits inside a program; on a GPU the launches are captured in a graph when they are played a second time
(unless the configuration says otherwise).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TypeVar
from weakref import proxy

import torch
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS, Arithmetic
from polytriton.errors import ResourceError
from polytriton.ir.launches import Kernel, Launch, Launches
from polytriton.ir.ops import unsettled_nodes
from polytriton.ir.plan import Program
from polytriton.ir.script import RunScript
from polytriton.kernels.arena import lay_out
from polytriton.kernels.choose import GPU, INTERPRETER, power
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.lanes import add_lanes
from polytriton.kernels.launches import Lowering
from polytriton.kernels.load import makes_room, prepare
from polytriton.kernels.script import DEPLOYMENTS, ScriptLowering, deployment
from polytriton.kernels.sequence import Frames
from polytriton.kernels.spec import FUSION, room
from polytriton.kernels.stock import Stock, program_key, script_key
from polytriton.knobs import SUMMARY, note
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.gpu.binding import ALIGN, STATES, Binding, Bound, Call, Part, Ready, Streams, round_size
from polytriton.runtime.gpu.kernel_arguments import batch_table, layer_tensor
from polytriton.runtime.gpu.places import Places
from polytriton.runtime.gpu.player import Player
from polytriton.runtime.gpu.queries import Queries
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Identity, Results, Rows
from polytriton.runtime.settings import on_device
from polytriton.runtime.soundness import flushes
from polytriton.runtime.tables import Tables

T = TypeVar("T")

MOST = 1 << 20  # rows at once that a compaction can number
COUNTED = 256  # programs whose rows are added up at once
ROW_BYTES = 8 * 32  # row arrays of both states, slots and scratch


CAPTURE = threading.Lock()  # one capture at a time in a process: torch's rule


def out_of_memory(error: BaseException) -> bool:
    """torch, the CUDA runtime (graphs) and Triton (modules) each say it in their own way, the latter two as plain RuntimeErrors."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "out of memory" in str(error).lower()


class TritonBackend:
    """One network, one arithmetic, one device."""

    takes_relations = False  # whether rows of a query may bring coefficients over the input along

    def __init__(
        self, kit: Kit, numerics: str, device: torch.device, interpret: bool, memory: int, config: Config = DEFAULT,
        stock: Stock | None = None, *, early: bool = True, tight: bool = False,
    ) -> None:  # fmt: skip
        """`early`, `tight`: as `ScriptLowering` has them."""
        prepare(interpret)
        self.early, self.tight = early, tight
        self.stock = stock or Stock()
        self.default = not config.tiles and config.lanes  # launches are filed as a default configuration makes them
        self.kit, self.device, self.memory = kit, device, memory
        self.numerics: Arithmetic = ARITHMETICS[numerics]
        self.word = 8 if self.numerics.type == "tl.float64" else 4
        self.frames = Frames(kit.net, kit.plan)
        self.emitter = Emitter(tiles=config.tiles, stock=self.stock)
        self.graphs = self.leaps = config.graphs and device.type == "cuda"  # a leap is worth its launches as a graph
        self.rooms = config.rooms if device.type == "cuda" and makes_room() else {}
        self.sizes = INTERPRETER if interpret else GPU
        self.lanes, self.streams = config.lanes, Streams(device) if device.type == "cuda" else None
        self._ready: dict[tuple[str, str], Ready] = {}
        self._bound: dict[tuple[object, ...], Bound] = {}
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self.unsettled = unsettled_nodes(kit.net)
        self.player, self.queries = Player(proxy(self)), Queries(proxy(self))  # no cycle: a device's memory goes with its last user
        self._numbers: dict[float, Tensor] = {}
        self._arena = torch.empty(0, dtype=torch.uint8, device=device)
        self._operations, self._known_operations = torch.zeros((), dtype=torch.float64, device=device), 0
        self._counted: list[tuple[Tensor, Tensor]] = []  # rows by state, and the operations of one, still to be added up

    def ready(self, program: Program) -> Ready:
        key = (program.kind, program.target)
        if key not in self._ready:
            filed = self.stock.launches(program_key(self.numerics.name, self.sizes.emulate, program), program) if self.default else None
            launches = self.lower(program) if filed is None else filed
            self._ready[key] = Ready(launches, lay_out(launches))
        return self._ready[key]

    def lower(self, program: Program) -> Launches:
        launches = Lowering(self.emitter, self.frames, self.numerics, program, self.sizes).run()
        return add_lanes(launches, self.emitter, self.numerics) if self.lanes else launches

    @cached_property
    def script(self) -> RunScript:
        """What a run launches, as it was filed or is lowered."""
        semantics = self.kit.forward.semantics
        how = deployment(semantics.real, semantics.passes, flushes(semantics))
        if self.default and self.early and not self.tight:
            filed = self.stock.script(script_key(self.numerics.name, self.sizes.emulate, how))
            if filed is not None:
                return filed
        lowering = ScriptLowering(
            self.emitter, self.frames, self.numerics, DEPLOYMENTS[how], self.sizes.emulate, early=self.early, tight=self.tight
        )
        return lowering.run([self.ready(program).launches for program in self.kit.plan])

    def kernels(self) -> list[Kernel]:
        """All that runs launch, but for an ascent's."""
        found = [s.kernel for program in self.kit.plan for s in self.ready(program).launches.steps]
        found += [e.launch.kernel for entries in self.script.sections.values() for e in entries if e.launch is not None]
        return list(dict.fromkeys(found))

    # ---- memory -----------------------------------------------------------------------------------------

    def row_bytes(self, program: Program) -> int:
        return self.ready(program).arena.size * self.word + ROW_BYTES

    def arena_bytes(self, program: Program, capacity: int) -> int:
        return self.ready(program).arena.size * capacity * self.word

    def capacity(self, program: Program, rows: int) -> int:
        """Rows at a time: a power of two that holds all of them, or the most that the budget holds."""
        wanted, each, budget = power(rows, ALIGN, MOST), self.row_bytes(program), self.memory
        if self.device.type == "cuda" and self.arena_bytes(program, wanted) > self._arena.numel():
            free, _ = torch.cuda.mem_get_info(self.device)  # the driver takes its time: asked only where more is needed than is held
            budget = min(budget, int(0.9 * (free + self._arena.numel())))
        fit = min(MOST, budget // each // ALIGN * ALIGN)
        if fit < ALIGN:
            need = ALIGN * each
            raise ResourceError(
                f"{ALIGN} rows of %{program.target} take {need / 2**20:.1f} MiB, more than the {budget / 2**20:.1f} MiB there are",
                f"give --memory at least {2 * need // 2**20 + 1}M",
            )
        if self.device.type == "cuda" and fit < wanted:
            fit = 1 << (fit.bit_length() - 1)  # free memory varies: launches, buffers and graphs should not
        return min(fit, wanted)

    def shrink(self, program: Program, capacity: int, error: BaseException) -> int:
        """After running out of memory: half as many rows at a time, everything held given back first. Another error is raised again."""
        self.give_back(error)
        half = capacity // 2 // ALIGN * ALIGN
        if half < ALIGN:
            need = ALIGN * self.row_bytes(program) / 2**20
            raise ResourceError(
                f"the device is out of memory with {ALIGN} rows of %{program.target} ({need:.1f} MiB)",
                "free memory on it, or use --device cpu",
            ) from error
        note(SUMMARY, f"out of memory with {capacity} rows of %{program.target} at a time: going on with {half}")
        self.memory = half * self.row_bytes(program)
        return half

    def give_back(self, error: BaseException) -> None:
        """What is held for rows, after running out of memory; another error is raised again."""
        if not out_of_memory(error):
            raise error
        error.__traceback__ = None  # the frames of what failed hold its tensors
        self._drop()
        self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forget(self) -> None:
        """Tensors are about to move: nothing bound to them stays."""
        self._bound.clear()
        self.player.parts.clear()

    def _drop(self) -> None:
        """Neither do they, but for weights: batch sizes come and go."""
        self._forget()
        self._kept.clear()
        self.player.places.clear()

    def make_room(self, held: int) -> None:
        """For another batch size, beside so many bytes of others: they are begun afresh where what is kept fills half of the budget."""
        if held + sum(t.nbytes for t in self._kept.values()) > self.memory // 2:
            self._drop()

    def arena(self, size: int) -> Tensor:
        """So many bytes; what was there before may be overwritten."""
        if self._arena.numel() < size:
            self._forget()
            self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)  # give back before asking for more
            self._arena = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._arena

    def counts(self) -> Tensor:
        """How many neurons were found undecided, then the rows in every state: 16 bytes apart, as launches take tensors."""
        return self._count_cells()[::2]

    def _count_cells(self) -> Tensor:
        return self.keep("count", 2 * STATES, torch.int64)

    def keep(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """A tensor that stays where it is; zero at first, so that rows past the count hold valid places, never believed."""
        key = (name, size)
        if key not in self._kept:
            self._kept[key] = torch.zeros(size, dtype=dtype, device=self.device)
        return self._kept[key]

    # ---- programs ---------------------------------------------------------------------------------------

    def bound(self, places: Places, program: Program, capacity: int, results: int) -> Bound:
        """The program's launches bound to tensors, the batch's tables among them."""
        ready = self.ready(program)
        self.arena(self.arena_bytes(program, capacity))
        key = (program.kind, program.target, capacity, places.batch, results)
        if key not in self._bound:
            self._bound[key] = Binding(self, ready, places, capacity, results).bind(key)
        return self._bound[key]

    def call(self, launch: Launch, count: int, tensor: Callable[[str], Tensor]) -> Call:
        """A launch over so many rows or images, on the tensors that its symbols stand for."""
        kernel, tensors = self.stock.function(launch.kernel)[launch.grid(count)], [tensor(s) for s in launch.bind]
        options = {**launch.kernel.options, **FUSION, **room(self.rooms.get(launch.kernel.name, 0))}
        return lambda: kernel(*tensors, **options)

    def play(self, bound: Bound, begin: int = 0, end: int | None = None) -> None:
        """Parts of a program over one block of rows, whose arrays and tables have been filled in; all of them go from the target to the
        input.
        """
        for part in bound.parts[begin:end]:
            self.part(part)

    def part(self, part: Part) -> None:
        if part.graph is None and self.graphs and part.played:  # the first time loaded every kernel
            self._capture(part)
        if part.graph is None:
            self._play(part)
        else:
            part.graph.replay()
        part.played += 1

    def _capture(self, part: Part) -> None:
        """The launches as a graph, or a note why not: then they are played one by one from now on.

        Nothing runs and nothing is allocated meanwhile, so what failed can simply be played. The stream is this device's own, for
        torch's default one belongs to the first device that captured anything.
        """
        assert self.streams is not None
        graph, stream = torch.cuda.CUDAGraph(), self.streams.capture
        with CAPTURE:
            torch.cuda.synchronize(self.device)
            try:
                with torch.cuda.stream(stream):
                    graph.capture_begin(capture_error_mode="thread_local")  # other devices' workers go on allocating
                    try:
                        self._play(part)
                    except BaseException:
                        with suppress(RuntimeError):  # torch says again that it failed; the stream must leave its capture
                            graph.capture_end()
                        raise
                    graph.capture_end()
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                note(SUMMARY, f"launches cannot be captured in a graph here, and are made one by one: {str(error).splitlines()[0]}")
                self.graphs = False
                return
        part.graph = graph

    def _play(self, part: Part) -> None:
        try:
            for call in part.calls:
                call()
        except BaseException:
            if self.streams is not None:
                self.streams.settle()  # what still runs beside must not meet what comes next in the same memory
            raise

    def weight(self, kind: str, name: str) -> Tensor:
        """A layer's tensor as the kernels read it."""
        key = f"{kind}:{name}"
        if key not in self._weights:
            self._weights[key] = layer_tensor(self.kit, kind, name)
        return self._weights[key]

    def table(self, tables: Tables, kind: str, name: str) -> Tensor:
        return batch_table(tables, kind, name)

    def fitting(self, program: Program, rows: int, work: Callable[[int], T]) -> T:
        """Work on as many rows at a time as memory holds. Where it runs out, all of it again with half as many: results lie in buffers
        that may move.
        """
        capacity = self.capacity(program, rows)
        while True:
            try:
                return work(capacity)
            except (RuntimeError, MemoryError) as error:
                capacity = self.shrink(program, capacity, error)

    def run(self, tables: Tables, program: Program, rows: Rows, start: Identity, results: Results) -> None:
        """Rows of single neurons, none of which leaves; `results` are written at rows.index."""

        def blocks(capacity: int) -> None:
            for begin in range(0, len(rows), capacity):
                self._block(tables, program, rows, start, results, slice(begin, min(len(rows), begin + capacity)), capacity)

        with on_device(self.device):
            self.fitting(program, len(rows), blocks)

    def _block(
        self, tables: Tables, program: Program, rows: Rows, start: Identity, results: Results, block: slice, capacity: int
    ) -> None:
        total = len(results.best)
        bound = self.bound(self.player.bring(tables, program), program, capacity, round_size(total))
        n, to = block.stop - block.start, bound.starts
        given = {"image": rows.image, "row_h": rows.h, "row_w": rows.w, "constant": rows.constant, "error": rows.error, "index": rows.index}
        for name, values in {**given, "sign": start.sign, "channel": start.channel}.items():
            to[name][:n] = values[block]
        to["count"][0].fill_(n)
        for clear in bound.clears():
            clear()
        to["group"].zero_()  # an earlier program's groups and their verdicts lie there
        to["done"].zero_()
        self.limit(bound, float("inf"))
        to["best"][:total], to["raw_best"][:total] = results.best, results.raw
        self.play(bound)
        self.count_rows(bound)
        results.best.copy_(to["best"][:total])
        results.raw.copy_(to["raw_best"][:total])

    def program_for(self, program: Program, forms: Forms) -> Program:
        """The program that these forms go through."""
        return program

    def begin_rows(self, bound: Bound, tables: Tables, forms: Forms, begin: int, count: int) -> None:
        """A query's rows have been made of these forms; an arithmetic may want more of them."""

    def number(self, value: float) -> Tensor:
        """One number on the device."""
        if value not in self._numbers:
            self._numbers[value] = torch.full((1,), value, dtype=torch.float64, device=self.device)
        return self._numbers[value]

    def limit(self, bound: Bound, value: float) -> None:
        """A bound above this settles its row's group. The tensor is these launches' own: it seldom changes."""
        if bound.limit != value:
            bound.starts["limit"].fill_(value)
            bound.limit = value

    def count_rows(self, bound: Bound) -> Tensor:
        """Rows left in every state but the first, a copy to be read when the answer is known; their operations are counted."""
        counts = bound.starts["count"][: len(bound.ops)].clone()
        self._counted.append((counts, bound.ops))
        if len(self._counted) >= COUNTED:
            self._add_up()
        return counts[1:]

    def add_rows(self, bound: Bound, rows: Sequence[int]) -> None:
        """Counts the operations of rows that the host knows already, by state."""
        ops = bound.ready.launches.ops
        self._known_operations += sum(count * ops.get(state, 0) for state, count in enumerate(rows))

    def _add_up(self) -> None:
        """Many counts at once: what a few operations a program would take shows on small networks."""
        if self._counted:
            counts, ops = (torch.cat(v) for v in zip(*self._counted, strict=True))
            self._operations += torch.dot(counts.double(), ops)
            self._counted.clear()

    @property
    def operations(self) -> int:
        """What the Plan counts for the rows at every step so far."""
        self._add_up()
        return int(self._operations) + self._known_operations

    def ask(self, states: int) -> list[int]:
        """Waits for the device: how many neurons were found undecided, and the rows in so many states."""
        return self._count_cells()[: 2 * (1 + states)].tolist()[::2]  # in one piece: a copy, no kernel
