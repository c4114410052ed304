"""One layer's undecided neurons narrowed by generated kernels: found, made into rows and brought back on the device.

The host waits once a layer. In the first batch it waits for the number of neurons. From then on it goes ahead with room for some more
than an image had, plays the likelier sign's first launches and waits behind them for two numbers at once: how many neurons there
are, and how many of their rows are left. Where none is left, every neuron is settled: what would follow, the rest of the program and
the other sign, is never launched. In a robust network that is most of it (python -m bench.roofline zoo). How far to go before the
wait is what settled the neurons the last time. None of this shows in a bound: launches that find no rows write nothing.

Where there are more neurons than room, the layer begins again, for then their number is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.kernels import cell_kernels
from polytriton.kernels.cell_kernels import cell_kernel
from polytriton.runtime.gpu.binding import Bound, round_size
from polytriton.runtime.gpu.recording import launch
from polytriton.runtime.results import Results
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Tables

if TYPE_CHECKING:
    from polytriton.runtime.gpu.triton_backend import TritonBackend

BELOW_ZERO = -5e-324  # a bound above this is at least zero
MORE = 1.25  # room for so many times the neurons of the last batch's images


@dataclass(frozen=True)
class NeuronLayer:
    """The neurons of one program's target.

    `unsettled`: each of them is narrowed, else those whose sign is open, or (`tight`) that can be on. `leaves`: a neuron that the
    likelier sign's row settles has no other; `every`: the best of all candidates counts.
    """

    tables: Tables
    program: Program
    tight: bool
    unsettled: bool
    leaves: bool
    every: bool
    expire: Callable[[], None]


@dataclass
class Habit:
    """What the last batch was like: undecided neurons an image, and the parts of the program after which none was left."""

    neurons: float
    parts: int = 1


@dataclass(frozen=True)
class Ahead:
    """What was launched before the number of neurons was known."""

    layer: NeuronLayer
    bound: Bound
    at: Tensor
    room: int
    parts: int

    @property
    def states(self) -> int:
        """In how many states the rows are counted by now."""
        return self.bound.parts[self.parts - 1].states


class Neurons:
    """Of one backend."""

    def __init__(self, backend: TritonBackend) -> None:
        self.backend = backend
        self.habits: dict[str, Habit] = {}

    def narrow(self, layer: NeuronLayer) -> tuple[int, list[Results]]:
        """The boxes of the layer become narrower in place; how many neurons had rows, and what these found."""
        backend, name = self.backend, layer.program.target
        boxes, n, results = layer.tables.boxes, None, None
        with on_device(backend.device):
            if layer.unsettled or not boxes.batch:
                at = torch.arange(boxes.lo[name].numel(), device=backend.device)
                n = len(at)
            elif room := self.room(layer):
                try:
                    ahead = self.go(layer, room)
                    at, (n, *rows) = ahead.at, backend.ask(ahead.states)
                    if 0 < n <= room:
                        results = self.finish(ahead, n, rows, layer.expire)
                        self.close(ahead.layer, ahead.bound, at, n)
                except (RuntimeError, MemoryError) as error:
                    backend.shrink(layer.program, room, error)
                    n = results = None
            if n is None:
                backend.bring(layer.tables, layer.program)
                at = self._find(layer)
                (n,) = backend.ask(0)
            if n and results is None:
                results = backend.fitting(layer.program, n, lambda capacity: self._blocks(layer, at, n, capacity))
        self.learn(layer, n)
        return n, [results] if results is not None else []

    def learn(self, layer: NeuronLayer, n: int) -> None:
        if layer.leaves and layer.tables.boxes.batch:
            self.habits.setdefault(layer.program.target, Habit(0.0)).neurons = n / layer.tables.boxes.batch

    # ---- on the device ----------------------------------------------------------------------------------

    def _find(self, layer: NeuronLayer) -> Tensor:
        """Cells of undecided neurons, in order; their number is known to the device."""
        backend, name = self.backend, layer.program.target
        node, emulate = backend.kit.nodes[name], backend.sizes.emulate
        lo, hi = layer.tables.boxes.lo[name], layer.tables.boxes.hi[name]
        programs = layer.tables.boxes.batch * cell_kernels.parts(node, emulate)
        blocks = backend.kept("open", round_size(programs), torch.int64)
        at = backend.kept("at", round_size(lo.numel()), torch.int64)
        given = {"box_lo_ptr": lo, "box_hi_ptr": hi, "blocks_ptr": blocks, "at_ptr": at, "found_ptr": backend.counts()[:1]}
        for function, cells in (("count_open", cell_kernels.open_cells), ("find_open", cell_kernels.find_cells)):
            kernel = cell_kernel(backend.stock, function, cells(node, layer.tight, emulate))
            launch(backend.stock, kernel, (programs,), given, backend.device)
        return at

    def _open(self, layer: NeuronLayer, bound: Bound, at: Tensor, rows: int, *, second: bool = False, ahead: bool = False) -> None:
        """Rows of one sign for `rows` neurons, or (`ahead`) for so many at most."""
        backend, node = self.backend, self.backend.kit.nodes[layer.program.target]
        constants = cell_kernels.open_rows(node, second, ahead, layer.leaves, backend.sizes.emulate)
        kernel = cell_kernel(backend.stock, "open_neurons", constants)
        backend.limit(bound, BELOW_ZERO if layer.leaves else float("inf"))
        backend.clear_own(bound.starts)
        self._launch(layer, bound, at, kernel, rows)

    def close(self, layer: NeuronLayer, bound: Bound, at: Tensor, n: int) -> None:
        """The bounds of as many neurons as the device's count says, `n` at most."""
        constants = cell_kernels.close_rows(layer.every, layer.leaves, self.backend.sizes.emulate)
        kernel = cell_kernel(self.backend.stock, "close_neurons", constants)
        self._launch(layer, bound, at, kernel, n)

    def _launch(self, layer: NeuronLayer, bound: Bound, at: Tensor, kernel: cell_kernels.Kernel, rows: int) -> None:
        boxes, name, to = layer.tables.boxes, layer.program.target, bound.starts
        given = {f"{k}_ptr": v for k, v in to.items()}
        given |= {"at_ptr": at, "box_lo_ptr": boxes.lo[name], "box_hi_ptr": boxes.hi[name]}
        launch(self.backend.stock, kernel, (-(-rows // cell_kernels.neurons(self.backend.sizes.emulate)),), given, self.backend.device)

    # ---- a number that the host knows -------------------------------------------------------------------

    def _blocks(self, layer: NeuronLayer, at: Tensor, n: int, capacity: int) -> Results:
        backend = self.backend
        bound = backend.bound(layer.tables, layer.program, capacity, round_size(2 * n))
        to = bound.starts
        results = Results(to["best"][: 2 * n], to["raw_best"][: 2 * n])
        for second in (False, True):
            for begin in range(0, n, capacity):
                layer.expire()
                count = min(capacity, n - begin)
                to["begin"].fill_(begin)
                to["count"][0].fill_(count)
                self._open(layer, bound, at, count, second=second)
                backend.play(bound)
                self._count(layer, bound, results)
        to["count"][0].fill_(n)
        self.close(layer, bound, at, n)
        return results

    def _count(self, layer: NeuronLayer, bound: Bound, results: Results, states: int | None = None) -> None:
        left = self.backend.count_rows(bound, states)
        if layer.leaves:
            results.left.append(left)

    # ---- before it is known -----------------------------------------------------------------------------

    def room(self, layer: NeuronLayer, least: int = 0) -> int:
        """Rows to go ahead with; none where that does not pay: no row can leave, none or nothing is expected, or they take several
        blocks. `least`: neurons to expect in any case.
        """
        habit = self.habits.get(layer.program.target)
        if not layer.leaves or habit is None or not (habit.neurons or least):
            return 0
        lo = layer.tables.boxes.lo[layer.program.target]
        wanted = min(lo.numel(), max(least, ceil(MORE * habit.neurons * len(lo))))
        capacity = self.backend.capacity(layer.program, wanted)
        return capacity if capacity >= wanted else 0

    def go(self, layer: NeuronLayer, room: int) -> Ahead:
        """Rows for as many neurons as there is room for, and the first parts of the program."""
        backend = self.backend
        layer.expire()
        bound = backend.bound(layer.tables, layer.program, room, round_size(2 * room))
        at = self._find(layer)
        self._open(layer, bound, at, room, ahead=True)
        parts = min(self.habits[layer.program.target].parts, len(bound.parts))
        backend.play(bound, 0, parts)
        return Ahead(layer, bound, at, room, parts)

    def finish(self, ahead: Ahead, n: int, rows: list[int], expire: Callable[[], None]) -> Results:
        """What follows behind the wait; `rows` are those in every state until there."""
        backend, layer, bound, parts = self.backend, ahead.layer, ahead.bound, ahead.parts
        habit, to = self.habits[layer.program.target], bound.starts
        results = Results(to["best"][: 2 * n], to["raw_best"][: 2 * n])
        if 0 in rows:  # all have left, so all are settled
            self._count(layer, bound, results, ahead.states)
            habit.parts = next(k for k, part in enumerate(bound.parts, 1) if part.states > rows.index(0))
            return results
        expire()
        backend.play(bound, parts)
        self._count(layer, bound, results)
        self._open(layer, bound, ahead.at, n, second=True)
        backend.play(bound)
        self._count(layer, bound, results)
        habit.parts = parts % len(bound.parts) + 1
        return results
