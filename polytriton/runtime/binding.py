"""A program's launches with what their symbols stand for, at one capacity and batch size: tensors, and on a GPU streams.

The second lane of a region (kernels/lanes.py) runs on a stream beside the caller's. Every tensor that a launch touches was
allocated on the caller's stream before and is held until after the program, the arena too, and both streams wait for each other
at a region's ends. So memory is never handed out anew while the side stream uses it, and needs no record_stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polytriton.kernels.arena import Arena
from polytriton.kernels.lanes import OWN
from polytriton.kernels.load import function
from polytriton.kernels.sequence import Launch, Launches
from polytriton.kernels.spec import room
from polytriton.runtime.kernel_tables import LAYER
from polytriton.runtime.tables import Tables

if TYPE_CHECKING:
    from polytriton.runtime.triton_backend import TritonBackend

STATES = 4096


class Streams:
    """The stream of lane 1 beside the caller's: a fork and a join are an event each, which graph capture follows too."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = torch.cuda.Stream(device)
        self.forked = False

    def fork(self) -> None:
        self.forked = True
        self.side.wait_stream(torch.cuda.current_stream(self.device))

    def join(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.side)
        self.forked = False

    def settle(self) -> None:
        """After a program was broken off: joins what a region had forked."""
        if self.forked:
            self.join()

    def beside(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The call, made on the stream beside."""

        def on_side() -> Any:
            with torch.cuda.stream(self.side):
                return call()

        return on_side


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
    calls: list[Callable[[], Any]]
    tables: list[tuple[str, str, Tensor]]  # what has to be copied in for a new batch
    ops: Tensor  # by row state
    serial: int = -1
    played: int = 0
    graph: Any = None
    starts: dict[str, Tensor] = field(default_factory=dict)


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
        launches = self.ready.launches
        starts |= {name: self.tensor(name) for name in OWN.values() if any(name in s.bind for s in launches.steps)}
        if launches.buffers:
            starts["start"] = self.buffer(0)
        ops = torch.tensor([launches.ops.get(k, 0) for k in range(launches.states)], dtype=torch.float64, device=self.backend.device)
        return Bound(self.ready, self.capacity, calls, list(self.copied.values()), ops, starts=starts)

    def _calls(self) -> Iterator[Callable[[], Any]]:
        """In the list's order, which is right on one stream; with two, a region is forked off before it and joined behind it."""
        streams, region = self.backend.streams, 0
        for step in self.ready.launches.steps:
            if streams is not None and step.region != region:
                if region:
                    yield streams.join
                if step.region:
                    yield streams.fork
            region = step.region
            yield streams.beside(self._call(step)) if streams is not None and step.lane else self._call(step)

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
        if kind in ("value", "raw", "slack", *OWN.values()):
            return keep(kind, self.capacity, torch.float64)
        if kind == "blocks":
            return keep(kind, 1024, torch.int64)
        if kind in LAYER:
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
