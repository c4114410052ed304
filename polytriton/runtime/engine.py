"""Runs a compiled Plan on batches of boxes: bounds of every node, and lower bounds of linear forms of the output.

The order is the paper's: an interval pass; the query on interval bounds; where that does not decide, every ReLU input
is refined in topological order, finished rows leaving on the way; then the query again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.heap import keeps_memory
from polytriton.ir.ops import OPS
from polytriton.ir.plan import Program, extent
from polytriton.passes.memory import chunk_rows
from polytriton.passes.pipeline import Compiled, replanned
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.interval_backend import IntervalBackend
from polytriton.runtime.soundness import FLOAT32, FLOAT64, KERNELS, SEMANTICS, Coefficients
from polytriton.runtime.tables import Kit, Tables
from polytriton.runtime.torch_backend import Rows, TorchBackend
from polytriton.runtime.trace import Trace
from polytriton.runtime.triton_backend import TritonBackend
from polytriton.runtime.walk import Identity, Results, Walk

Progress = Callable[[str, int, int], None]  # stage, done, total


class Stopped(Exception):
    """The deadline passed; what was proved until then stands."""


def _silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


@dataclass
class Tally:
    """What a run did: rows and operations by program, seconds in refinement and queries."""

    rows: dict[str, int] = field(default_factory=dict)
    ops: int = 0


@dataclass
class Forms:
    """Linear forms to bound from below: sum C y + sum D x, one a row, over the box `image`."""

    image: Tensor  # [rows]
    over_output: Tensor  # [rows, outputs], float64
    over_input: Tensor | None = None  # [rows, physical inputs], float64
    coefficient_error: Tensor | None = None  # [rows, outputs] float64: the exact coefficients lie this far at most
    input_error: Tensor | None = None
    constant: Tensor | None = None  # [rows], float64: subtracted


class Engine:
    """One network, one semantics, one coefficient type, one device."""

    def __init__(
        self,
        compiled: Compiled,
        *,
        semantics: str = "float32",
        dtype: str = "float32",
        device: torch.device | None = None,
        memory: int = 2 << 30,
        threads: int = 1,
        early: bool = True,
        tight: bool = False,
        forward: Forward | None = None,
        kernels: str = "",
        config: Config = DEFAULT,
        numerics: str = "folded",
    ) -> None:
        self.net, self.plan = compiled.net, replanned(compiled, config.whole, config.skips)
        self.coefficients: Coefficients = KERNELS[dtype] if kernels else FLOAT64 if dtype == "float64" else FLOAT32
        self.device = device or torch.device("cpu")
        self.memory, self.early = memory, early and not tight
        self.tight = tight  # bound what the interval pass settled too: error vectors shrink with the boxes
        self.config = config
        self.backend = TorchBackend(self.device, threads, config)
        self.walk: Callable[..., Walk] = Walk
        self.forward = forward or Forward(self.net, SEMANTICS[semantics], self.device)
        self.kit = Kit(self.net, self.plan, self.forward, self.coefficients)
        self.kernels: TritonBackend | None = None
        if kernels and numerics == "interval":
            self.kernels = IntervalBackend(self.kit, dtype, self.device, kernels == "interpret", memory // 2, config)
        elif kernels:
            self.kernels = TritonBackend(self.kit, dtype, self.device, kernels == "interpret", memory // 2, config)
        self.nodes = self.net.by_name
        self.programs = {p.target: p for p in self.plan if p.kind == "bound"}
        self.pooled = {i for n in self.net if n.op == "maxpool" for i in n.inputs}
        self.tally = Tally()
        self._other: Engine | None = None

    # ---- boxes ------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        """Floating-point operations the Plan counts for the rows that each step still had, so far."""
        return self.tally.ops + (int(self.kernels.operations) if self.kernels is not None else 0)

    def image_bytes(self) -> int:
        """What one image's boxes, tables and transient values take while a batch runs."""
        total = 0
        for n in self.net:
            frame = self.kit.frames[n.name]
            padded = frame.padded[0] * frame.padded[1] * frame.channels
            total += n.size * 8 * 4 + padded * (8 if self.coefficients.dtype == torch.float64 else 4) * 6
        widest = max(self._patch_values(n.name) for n in self.net)
        return total + 8 * 3 * widest

    def _patch_values(self, name: str) -> int:
        layer = self.forward.layers.get(name)
        node = self.nodes[name]
        return node.size + (layer.terms * node.size // node.shape[0] if layer is not None and node.op == "conv" else 0)

    def interval(self, lo: Tensor, hi: Tensor) -> Boxes:
        """The interval pass over boxes of the user's input, float64 [batch, values]."""
        boxes = self.forward.start(lo.to(self.device), hi.to(self.device))
        for node in self.net.nodes[1:]:
            self.forward.transfer(node, boxes)
        return boxes

    def refine(
        self, lo: Tensor, hi: Tensor, progress: Progress = _silent, deadline: float | None = None, trace: Trace | None = None
    ) -> Boxes:
        """Boxes in which every node a nonlinear operator reads is bounded by back-substitution."""
        boxes = self.forward.start(lo.to(self.device), hi.to(self.device))
        done, shown = 0, set(self.bounded()) if trace is not None else set()
        for node in self.net.nodes[1:]:
            self.forward.transfer(node, boxes)
            program = self.programs.get(node.name)
            if program is not None:
                progress(f"bounds of {node.name}", done, len(self.programs))
                self._bound(program, boxes, deadline, trace)
                done += 1
            elif trace is not None and node.name in shown:  # the interval pass is exact there
                none = boxes.lo[node.name].new_empty(0)
                bounds = boxes.lo[node.name], boxes.hi[node.name]
                trace.bounded(node.name, trace.mark(), bounds, (none, none), (none, none), [], node.name in self.pooled)
        progress("bounds", done, len(self.programs))
        return boxes

    def _bound(self, program: Program, boxes: Boxes, deadline: float | None, trace: Trace | None = None) -> None:
        """Two rows a neuron that the interval pass leaves undecided; its box becomes the best of all candidates.

        The likelier sign goes first: where its row settles the neuron, the other is never made. A neuron that a max pool
        reads is never settled.
        """
        name, begin = program.target, None if trace is None else trace.mark()
        lo, hi = boxes.lo[name], boxes.hi[name]
        pooled = name in self.pooled
        live = torch.ones_like(lo, dtype=torch.bool) if pooled else (hi > 0) if self.tight else (lo < 0) & (hi > 0)
        where = torch.nonzero(live, as_tuple=True)
        if not len(where[0]):
            if trace is not None and begin is not None:
                none = lo[where], lo[where]
                trace.bounded(name, begin, (lo, hi), none, none, [], pooled)
            return
        tables = self._tables(boxes)
        old = (lo[where], -hi[where])  # as bounds of +x and of -x
        leaves = self.plan.candidates == "all" and self.early and not pooled
        first = torch.where(old[0] >= old[1], 1, -1) if leaves else torch.ones_like(old[0], dtype=torch.int64)
        if self.kernels is not None:
            best, made = self._both_sides(program, tables, where, old, first, leaves, deadline)
        else:
            best, made = [b.clone() for b in old], []
            open_ = torch.arange(len(first), device=self.device)
            for sign in (first, -first):
                made.append(self._side(program, tables, where, open_, sign[open_], leaves, deadline))
                found = made[-1].best
                for k, s in enumerate((1, -1)):
                    mine = sign[open_] == s
                    at = open_[mine]
                    best[k][at] = self._better(found[mine], best[k][at])
                if leaves:
                    open_ = torch.nonzero((best[0] < 0) & (best[1] < 0)).flatten()
        lo[where], hi[where] = best[0], -best[1]
        if trace is not None and begin is not None:
            trace.bounded(name, begin, (lo, hi), old, best, made, pooled)

    def _both_sides(
        self,
        program: Program,
        tables: Tables,
        where: tuple[Tensor, ...],
        old: tuple[Tensor, Tensor],
        first: Tensor,
        leaves: bool,
        deadline: float | None,
    ) -> tuple[list[Tensor], list[Results]]:
        """The same by kernels: rows of the second sign whose neuron the first has settled leave on the device at once.

        The host does not ask how many they are: finding the live neurons was the layer's one wait.
        """
        assert self.kernels is not None
        image, h, w, channel = where
        n = len(first)
        results = self._results(2 * n)
        if leaves:
            results.group = torch.arange(n, device=self.device).repeat(2)
            results.done = torch.zeros(n, dtype=torch.bool, device=self.device)
        for k, sign in enumerate((first, -first)):
            rows = self._rows(image, torch.arange(k * n, (k + 1) * n, device=self.device), h, w)
            start = Identity(sign.to(self.coefficients.dtype), channel)
            self.kernels.run(tables, program, rows, results, start, lambda: self._expire(deadline))
        self.tally.rows[program.target] = self.tally.rows.get(program.target, 0) + 2 * n
        found = results.best.view(2, n)
        up = torch.where(first > 0, found[0], found[1]), torch.where(first > 0, found[1], found[0])
        return [self._better(f, o) for f, o in zip(up, old, strict=True)], [results]

    def _better(self, found: Tensor, old: Tensor) -> Tensor:
        """The best of all candidates, or, where bounds are taken at the end only, what was found there."""
        if self.plan.candidates == "all":
            return torch.maximum(found, old)
        return torch.where(torch.isfinite(found), found, old)

    def _side(
        self,
        program: Program,
        tables: Tables,
        where: tuple[Tensor, ...],
        neurons: Tensor,
        sign: Tensor,
        leaves: bool,
        deadline: float | None,
    ) -> Results:
        """Bounds of +x or -x for some of the neurons `where`, one row each."""
        image, h, w, channel = (v[neurons] for v in where)
        rows = len(neurons)
        results = self._results(rows)
        if leaves:
            results.group = torch.arange(rows, device=self.device)
            results.done = torch.zeros(rows, dtype=torch.bool, device=self.device)
        for block in self._blocks(rows, program):
            self._expire(deadline)
            some = self._rows(image[block], block, h[block], w[block])
            self.walk(self.backend, tables, program, some, results).run(Identity(sign[block].to(self.coefficients.dtype), channel[block]))
        self.tally.rows[program.target] = self.tally.rows.get(program.target, 0) + rows
        self.tally.ops += results.ops
        return results

    def _plain(self) -> Engine:
        """The interpreter of Plans alone, in float64: it knows forms over the input, and its products sum in one chain."""
        if self._other is None:
            compiled = Compiled(self.net, self.plan)
            self._other = Engine(
                compiled, dtype="float64", device=self.device, memory=self.memory, early=self.early, tight=self.tight, forward=self.forward
            )
        return self._other

    def _tables(self, boxes: Boxes) -> Tables:
        """Tables are asked for nodes whose boxes are final: those before the node being bounded."""
        if not isinstance(boxes.tables, Tables) or boxes.tables.kit is not self.kit:
            boxes.tables = Tables(self.kit, replace(boxes, tables=None))  # the same bounds; a cycle would outlive its batch
        return boxes.tables

    def _results(self, rows: int) -> Results:
        empty = torch.full((rows,), float("-inf"), dtype=torch.float64, device=self.device)
        return Results(empty, empty.clone())

    def _rows(self, image: Tensor, index: Tensor, h: Tensor, w: Tensor) -> Rows:
        zero = torch.zeros(len(image), dtype=torch.float64, device=self.device)
        return Rows(image, h, w, zero, zero.clone(), index)

    def _blocks(self, rows: int, program: Program) -> list[Tensor]:
        """Row ranges that fit the budget, and the cache where there is one to fit."""
        word = 8 if self.coefficients.dtype == torch.float64 else 4
        fit = chunk_rows(program, word, self.memory // 2)
        if fit < 1:
            need = program.row_bytes * word // 8
            raise ResourceError(
                f"one row of %{program.target} takes {need / 2**20:.1f} MiB, more than half the budget of {self.memory / 2**20:.1f} MiB",
                f"give --memory at least {2 * need // 2**20 + 1}M",
            )
        if self.device.type == "cpu":
            # blocks above the default were chosen in a process that keeps its memory: elsewhere new pages would cost more
            block = self.config.block if keeps_memory() else min(self.config.block, DEFAULT.block)
            fit = min(fit, max(self.config.least, chunk_rows(program, word, block)))
        return [torch.arange(a, min(rows, a + fit), device=self.device) for a in range(0, rows, fit)]

    def _expire(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise Stopped

    # ---- queries ----------------------------------------------------------------------------------------

    def query(
        self, boxes: Boxes, forms: Forms, groups: Tensor | None = None, deadline: float | None = None, trace: Trace | None = None
    ) -> Results:
        """Lower bounds of forms; with `groups`, rows leave once one row of their group is proved positive."""
        if self.kernels is not None and forms.over_input is not None and not isinstance(self.kernels, IntervalBackend):
            return self._plain().query(boxes, forms, groups, deadline, trace)
        program, begin = self.plan.query, None if trace is None else trace.mark()
        target = self.nodes[program.target]
        rows = len(forms.image)
        results = self._results(rows)
        if groups is not None:
            results.group, results.strict = groups, True
            results.done = torch.zeros(int(groups.max()) + 1 if rows else 0, dtype=torch.bool, device=self.device)
        tables = self._tables(boxes)
        for block in self._blocks(rows, program):
            self._expire(deadline)
            image = forms.image[block]
            zero = torch.zeros_like(image)
            some = self._rows(image, block, zero, zero)
            if forms.constant is not None:
                some.constant = some.constant - forms.constant[block]
            exact = forms.over_output[block].view(len(block), *extent(target))
            start = exact.to(self.coefficients.dtype).contiguous()
            absmax = boxes.absmax(target.name)[image]
            off = (exact - start.double()).abs()
            if forms.coefficient_error is not None:
                off = off + forms.coefficient_error[block].view_as(off)
            sem = self.forward.semantics
            flush = 0.0 if sem.real else 2 * sem.eta  # the deployed output itself may be flushed to zero
            lost = torch.where(off > 0, off * absmax, torch.zeros_like(off)) + exact.abs() * flush
            some.error = some.error + lost.sum((1, 2, 3)) * (1 + 2.0**-30)
            extra = None
            if forms.over_input is not None:
                extra = forms.over_input
                x = boxes.absmax(self.net.input.name)[image].reshape(len(block), -1)
                gap = (extra[block] - extra[block].to(self.coefficients.dtype).double()).abs()
                if forms.input_error is not None:
                    gap = gap + forms.input_error[block]
                some.error = some.error + (gap * x).sum(1) * (1 + 2.0**-30)
            if self.kernels is None:
                self.walk(self.backend, tables, program, some, results).run(start, extra)
            elif isinstance(self.kernels, IntervalBackend):
                self.kernels.run(tables, program, some, results, start, lambda: self._expire(deadline), extra)
            else:
                self.kernels.run(tables, program, some, results, start, lambda: self._expire(deadline))
        self.tally.rows["query"] = self.tally.rows.get("query", 0) + rows
        self.tally.ops += results.ops
        if trace is not None and begin is not None:
            trace.asked(program, begin, results)
        return results

    def bounded(self) -> list[str]:
        """Nodes whose boxes a user may ask for: the inputs of nonlinear operators."""
        wanted = {i for n in self.net if OPS[n.op].kind == "nonlinear" for i in n.inputs}
        # an input whose cells were moved about is no longer the user's
        return [n.name for n in self.net if n.name in wanted and "take" not in n.attrs]
