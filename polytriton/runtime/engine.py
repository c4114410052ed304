"""Runs a compiled Plan on batches of boxes: bounds of every node, and lower bounds of linear forms of the output.

The order is the paper's: an interval pass; the query on interval bounds; where that does not decide, every ReLU input
is refined in topological order, finished rows leaving on the way; then the query again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.ir.ops import OPS
from polytriton.ir.plan import Program, extent
from polytriton.passes.memory import chunk_rows
from polytriton.passes.pipeline import Compiled
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.soundness import FLOAT32, FLOAT64, SEMANTICS, Coefficients
from polytriton.runtime.tables import Kit, Tables
from polytriton.runtime.torch_backend import Rows, TorchBackend
from polytriton.runtime.walk import Identity, Results, Walk

CACHE_BLOCK = 3 << 20  # bytes a row block's widest step may take, so that its passes stay in the cache (CPU only)
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
        forward: Forward | None = None,
    ) -> None:
        self.net, self.plan = compiled.net, compiled.plan
        self.coefficients: Coefficients = FLOAT64 if dtype == "float64" else FLOAT32
        self.device = device or torch.device("cpu")
        self.memory, self.early = memory, early
        self.backend = TorchBackend(self.device, threads)
        self.forward = forward or Forward(self.net, SEMANTICS[semantics], self.device)
        self.kit = Kit(self.net, self.plan, self.forward, self.coefficients)
        self.nodes = self.net.by_name
        self.programs = {p.target: p for p in self.plan if p.kind == "bound"}
        self.pooled = {i for n in self.net if n.op == "maxpool" for i in n.inputs}
        self.tally = Tally()

    # ---- boxes ------------------------------------------------------------------------------------------

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

    def refine(self, lo: Tensor, hi: Tensor, progress: Progress = _silent, deadline: float | None = None) -> Boxes:
        """Boxes in which every node a nonlinear operator reads is bounded by back-substitution."""
        boxes = self.forward.start(lo.to(self.device), hi.to(self.device))
        done = 0
        for node in self.net.nodes[1:]:
            self.forward.transfer(node, boxes)
            program = self.programs.get(node.name)
            if program is not None:
                progress(f"bounds of {node.name}", done, len(self.programs))
                self._bound(program, boxes, deadline)
                done += 1
        progress("bounds", done, len(self.programs))
        return boxes

    def _bound(self, program: Program, boxes: Boxes, deadline: float | None) -> None:
        """Two rows a neuron that the interval pass leaves undecided; its box becomes the best of all candidates."""
        name = program.target
        lo, hi = boxes.lo[name], boxes.hi[name]
        pooled = name in self.pooled
        live = torch.ones_like(lo, dtype=torch.bool) if pooled else (lo < 0) & (hi > 0)
        image, h, w, channel = torch.nonzero(live, as_tuple=True)
        if not len(image):
            return
        every = self.plan.candidates == "all"
        rows = 2 * len(image)
        results = self._results(rows)
        if every and self.early and not pooled:
            results.group = torch.arange(rows, device=self.device) // 2
            results.done = torch.zeros(len(image), dtype=torch.bool, device=self.device)
        pair = torch.arange(rows, device=self.device) // 2
        sign = 1 - 2 * (torch.arange(rows, device=self.device) % 2).to(self.coefficients.dtype)
        tables = Tables(self.kit, boxes)
        for block in self._blocks(rows, program, even=True):
            self._expire(deadline)
            p = pair[block]
            some = self._rows(image[p], block, h[p], w[p])
            Walk(self.backend, tables, program, some, results).run(Identity(sign[block], channel[p]))
        self.tally.rows[name] = self.tally.rows.get(name, 0) + rows
        self.tally.ops += rows * program.row_ops
        low, high = results.best[0::2], -results.best[1::2]
        old_low, old_high = lo[live], hi[live]
        if every:
            low, high = torch.maximum(low, old_low), torch.minimum(high, old_high)
        else:
            low = torch.where(torch.isfinite(low), low, old_low)
            high = torch.where(torch.isfinite(high), high, old_high)
        lo[live], hi[live] = low, high

    def _results(self, rows: int) -> Results:
        empty = torch.full((rows,), float("-inf"), dtype=torch.float64, device=self.device)
        return Results(empty, empty.clone())

    def _rows(self, image: Tensor, index: Tensor, h: Tensor, w: Tensor) -> Rows:
        zero = torch.zeros(len(image), dtype=torch.float64, device=self.device)
        return Rows(image, h, w, zero, zero.clone(), index)

    def _blocks(self, rows: int, program: Program, even: bool = False) -> list[Tensor]:
        """Row ranges that fit the budget, and the cache where there is one to fit."""
        word = 8 if self.coefficients.dtype == torch.float64 else 4
        fit = chunk_rows(program, word, self.memory // 2)
        if fit < (2 if even else 1):
            need = 2 * program.row_bytes * word // 8 * (2 if even else 1)
            raise ResourceError(
                f"one row of %{program.target} takes {need / 2**20:.0f} MiB, more than half the memory budget of {self.memory / 2**20:.0f} MiB",
                f"give --memory at least {2 * need / 2**20:.0f}M",
            )
        if self.device.type == "cpu":
            fit = min(fit, max(16, chunk_rows(program, word, CACHE_BLOCK)))
        fit = max(2, fit - fit % 2) if even else fit
        return [torch.arange(a, min(rows, a + fit), device=self.device) for a in range(0, rows, fit)]

    def _expire(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise Stopped

    # ---- queries ----------------------------------------------------------------------------------------

    def query(self, boxes: Boxes, forms: Forms, groups: Tensor | None = None, deadline: float | None = None) -> Results:
        """Lower bounds of forms; with `groups`, rows leave once one row of their group is proved positive."""
        program = self.plan.query
        target = self.nodes[program.target]
        rows = len(forms.image)
        results = self._results(rows)
        if groups is not None:
            results.group, results.strict = groups, True
            results.done = torch.zeros(int(groups.max()) + 1 if rows else 0, dtype=torch.bool, device=self.device)
        tables = Tables(self.kit, boxes)
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
            Walk(self.backend, tables, program, some, results).run(start, extra)
        self.tally.rows["query"] = self.tally.rows.get("query", 0) + rows
        self.tally.ops += rows * program.row_ops
        return results

    def bounded(self) -> list[str]:
        """Nodes whose boxes a user may ask for: the inputs of nonlinear operators."""
        wanted = {i for n in self.net if OPS[n.op].kind == "nonlinear" for i in n.inputs}
        return [n.name for n in self.net if n.name in wanted]
