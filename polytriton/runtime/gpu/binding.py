"""A program's launches with what their symbols stand for, at one capacity and batch size: tensors, and on a GPU streams.

The second lane of a region (kernels/lanes.py) runs on a stream beside the caller's. Every tensor that a launch touches was
allocated on the caller's stream before and is held until after the program, the arena too, and both streams wait for each other
at a region's ends. So memory is never handed out anew while the side stream uses it, and needs no record_stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polytriton.ir.launches import ROW_ARRAYS, Launches
from polytriton.ir.script_check import program_reads
from polytriton.kernels.arena import Arena
from polytriton.kernels.choose import power
from polytriton.kernels.lanes import OWN
from polytriton.runtime.gpu.places import Places

if TYPE_CHECKING:
    from polytriton.runtime.gpu.triton_backend import TritonBackend

ALIGN = 64  # capacities are multiples of this, so every buffer of the arena starts aligned
STATES = 4096  # of rows: more than any program has checks
BELOW_ZERO = -5e-324  # a bound above this is at least zero
Call = Callable[[], Any]


def round_size(size: int) -> int:
    """A size that buffers come in, so that few differ."""
    return power(size, ALIGN, 1 << 40)


class Streams:
    """The stream of lane 1 beside the caller's: a fork and a join are an event each, which graph capture follows too.

    Graphs are captured on a third.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side, self.capture = torch.cuda.Stream(device), torch.cuda.Stream(device)
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

    def on_side(self, call: Call) -> Call:
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

    @cached_property
    def reads(self) -> frozenset[str]:
        """A batch's tables among its symbols."""
        return frozenset(program_reads(self.launches))


@dataclass
class Part:
    """Some of a program's launches, which are captured as one graph; `states`: how many states rows have been through behind it."""

    calls: list[Call]
    states: int
    played: int = 0
    graph: Any = None


@dataclass
class Bound:
    """Launches with their tensors: one row capacity, one batch size."""

    ready: Ready
    key: tuple[object, ...]  # what it was bound for
    capacity: int
    parts: list[Part]
    ops: Tensor  # by row state
    limit: float | None = None  # what lies in that tensor
    starts: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, symbol: str) -> Tensor | None:
        """What a script's symbol stands for, if it is of the rows that begin here."""
        return self.starts.get("start" if symbol == "buf:0" else symbol.removesuffix(":0"))

    def count_parts(self, rows: list[int]) -> int:
        """After how many parts none of the rows, so many in every state, is left."""
        return next(k for k, part in enumerate(self.parts, 1) if part.states > rows.index(0))

    def clears(self) -> list[Call]:
        """Every merge of two lanes leaves zeros, but a program may have been broken off before it."""
        return [self.starts[name].zero_ for name in OWN.values() if name in self.starts]


class Binding:
    """What each symbol of a program stands for, at one capacity and batch size."""

    def __init__(self, backend: TritonBackend, ready: Ready, places: Places, capacity: int, results: int) -> None:
        self.backend, self.ready, self.places, self.capacity, self.results = backend, ready, places, capacity, results
        self.limit = torch.zeros(1, dtype=torch.float64, device=backend.device)

    def bind(self, key: tuple[object, ...] = ()) -> Bound:
        assert self.ready.launches.states < STATES, "more row states than counts"
        parts = [Part(list(self._calls(begin, end)), states) for begin, end, states in self.ready.launches.parts()]
        names = ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel", "count")
        starts = {name: self.rows(name, 0) for name in names}
        starts |= {"count": self.backend.counts()[1:], "found": self.backend.counts()[:1]}
        starts |= {name: self.tensor(name) for name in ("group", "done", "limit", "best", "raw_best")}
        starts["begin"] = self.backend.keep("begin", 1, torch.int64)
        starts["room"] = torch.full((1,), self.capacity, dtype=torch.int64, device=self.backend.device)
        launches = self.ready.launches
        starts |= {name: self.tensor(name) for name in OWN.values() if any(name in s.bind for s in launches.steps)}
        if launches.buffers:
            starts["start"] = self.buffer(0)
        ops = torch.tensor([launches.ops.get(k, 0) for k in range(launches.states)], dtype=torch.float64, device=self.backend.device)
        return Bound(self.ready, key, self.capacity, parts, ops, starts=starts)

    def _calls(self, begin: int, end: int) -> Iterator[Call]:
        """In the list's order, which is right on one stream; with two, a region is forked off before it and joined behind it.

        No part ends in a region: parts end behind compactions.
        """
        streams, region = self.backend.streams, 0
        for step in self.ready.launches.steps[begin:end]:
            if streams is not None and step.region != region:
                if region:
                    yield streams.join
                if step.region:
                    yield streams.fork
            region = step.region
            if step.is_idle(self.capacity):
                continue
            call = self.backend.call(step, self.capacity, self.tensor)
            yield streams.on_side(call) if streams is not None and step.lane else call

    def rows(self, name: str, state: int) -> Tensor:
        """A row array of one state: two sets, taken in turns, since only neighbours meet. Counts take a cell each."""
        if name == "count":
            return self.backend.counts()[1 + state : 2 + state]
        dtype = torch.float64 if name in ("constant", "error", "sign") else torch.int64
        return self.backend.keep(f"{name}:{state % 2}", self.capacity, dtype)

    def buffer(self, number: int) -> Tensor:
        word, arena = self.backend.word, self.ready.arena
        begin = arena.offsets[number] * self.capacity * word
        size = self.ready.launches.buffers[number] * self.capacity * word
        return self.backend.arena(arena.size * self.capacity * word)[begin : begin + size].view(self.backend.kit.coefficients.dtype)

    def tensor(self, symbol: str) -> Tensor:
        kind, _, name = symbol.partition(":")
        keep = self.backend.keep
        if kind == "buf":
            return self.buffer(int(name))
        if kind in ("from", "slot"):
            return keep(symbol, self.capacity, torch.int64)
        if kind in ("value", "raw", "slack", *OWN.values()):
            return keep(kind, self.capacity, torch.float64)
        if kind == "blocks":
            return keep(kind, 1024, torch.int64)
        if kind in ("best", "raw_best", "group", "done"):
            return keep(kind, self.results, {"group": torch.int64, "done": torch.int8}.get(kind, torch.float64))
        if kind == "limit":
            return self.limit
        if kind in ROW_ARRAYS:
            return self.rows(kind, int(name))
        return self.places.tensor(symbol)
