"""Runs a compiled Plan on batches of boxes: bounds of every node, and lower bounds of linear forms of the output.

The order is the paper's: an interval pass; the query on interval bounds; where that does not decide, every ReLU input
is refined in topological order, finished rows leaving on the way; then the query again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS, LIBRARY
from polytriton.frontend.norm_balls import kernel_refusal
from polytriton.ir.net import Node
from polytriton.ir.ops import relaxed_nodes, unsettled_nodes
from polytriton.ir.plan import Program
from polytriton.kernels.stock import Stock
from polytriton.passes.pipeline import Compiled, replan
from polytriton.runtime.budget import image_bytes
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.cpu import blocks
from polytriton.runtime.cpu.sides import SidesAsked
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.gpu.interval_backend import IntervalBackend
from polytriton.runtime.gpu.player import Progress
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Results, expire
from polytriton.runtime.soundness import find_semantics
from polytriton.runtime.tables import Tables
from polytriton.runtime.trace import Trace, sums
from polytriton.runtime.undecided import find_undecided
from polytriton.runtime.walker import Walker


def _silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


def _narrow(boxes: Boxes, name: str, lo: Tensor, hi: Tensor) -> None:
    """Both bounds of the node hold, so the better of each does. In place: what a recipe makes of the node is made of what lies there."""
    torch.maximum(boxes.lo[name], lo, out=boxes.lo[name])
    torch.minimum(boxes.hi[name], hi, out=boxes.hi[name])


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
        self.net, self.plan = compiled.net, replan(compiled, config.whole, config.skips)
        self.coefficients = (ARITHMETICS if kernels else LIBRARY)[dtype]
        self.device = device or torch.device("cpu")
        self.memory, self.early = memory, early and not tight
        self.tight = tight  # bound what the interval pass settled too: error vectors shrink with the boxes
        self.config = config
        target = "cuda:{}{}".format(*torch.cuda.get_device_capability(self.device)) if kernels and self.device.type == "cuda" else ""
        stock = Stock(compiled.filed, self.plan, target)
        self.forward = forward or Forward(self.net, find_semantics(semantics), self.device)
        self.kit = Kit(self.net, self.plan, self.forward, self.coefficients, self._sums_in_blocks())
        self.walker = Walker(self.kit, config, memory, threads)
        self.tally = self.walker.tally
        self.kernels: TritonBackend | None = None
        if kernels:
            backend = IntervalBackend if numerics == "interval" else TritonBackend
            given = self.kit, dtype, self.device, kernels == "interpret", memory // 2, config, stock
            self.kernels = backend(*given, early=self.early, tight=tight)
        self.nodes = self.net.by_name
        self.programs = {p.target: p for p in self.plan if p.kind == "bound"}
        wanted = relaxed_nodes(self.net)  # an input whose cells were moved about is no longer the user's
        self.shown = dict.fromkeys(n.name for n in self.net if n.name in wanted and "take" not in n.attrs)
        self.unsettled = unsettled_nodes(self.net)
        self._asked: dict[tuple[str, bool], SidesAsked] = {}  # by the node, and whether every side's tight bound is wanted
        self._other: Engine | None = None

    def _sums_in_blocks(self) -> frozenset[str]:
        """Operators whose float32 products are this machine's tiles; convolutions keep forms that a configuration chose."""
        if not self.coefficients.centred or self.device.type != "cpu" or not blocks.is_available():
            return frozenset()
        return frozenset(("linear",) if self.config.convs else ("linear", "conv"))

    # ---- boxes ------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        """Floating-point operations the Plan counts for the rows that each step still had, so far."""
        return self.tally.ops + (self.kernels.operations if self.kernels is not None else 0)

    @cached_property
    def image_bytes(self) -> int:
        """What one image's boxes, tables and transient values take while a batch runs."""
        return image_bytes(self.kit, self.kernels is not None)

    def interval(self, lo: Tensor, hi: Tensor, ball: InputBalls | None = None) -> Boxes:
        """The interval pass over boxes of the user's input, float64 [batch, values]; rows that reach the input heed the ball."""
        self._plays(ball)
        if self.kernels is not None and len(lo):
            return self.kernels.player.interval(lo, hi)
        boxes = self.forward.start(lo.to(self.device), hi.to(self.device), ball)
        for _ in self.interval_nodes(boxes):
            pass
        return boxes

    def _plays(self, ball: InputBalls | None) -> None:
        if self.kernels is not None and ball is not None:
            raise kernel_refusal(ball.norm)

    def interval_nodes(self, boxes: Boxes) -> Iterator[Node]:
        """The interval pass, node by node: what the caller narrows of one counts for the next."""
        for node in self.net.nodes[1:]:
            self.forward.transfer(node, boxes)
            yield node

    def refine(
        self,
        lo: Tensor,
        hi: Tensor,
        progress: Progress = _silent,
        deadline: float | None = None,
        trace: Trace | None = None,
        known: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        ball: InputBalls | None = None,
        every: bool = True,
    ) -> Boxes:
        """Boxes in which every node a nonlinear operator reads is bounded by back-substitution.

        `known` are bounds of nodes that hold for these inputs, as those of a larger box do: what they decide needs no row. `ball`: the
        inputs lie in it too. `every`: tight bounds of both sides of settled neurons are wanted too, though no line depends on them.
        """
        self._plays(ball)
        if self.kernels is not None:
            if not len(lo):
                return self.interval(lo, hi)
            found, rows = self.kernels.player.refine(lo, hi, progress, lambda: expire(deadline), trace, known or {})
            for name, neurons in rows.items():
                self.tally.add(name, 2 * neurons)
            return found
        boxes, done = self.forward.start(lo.to(self.device), hi.to(self.device), ball), 0
        filling = self.walker.begin_recipe(boxes) if trace is None and ball is None and len(lo) else None
        if filling is not None:
            boxes = filling.boxes
        for node in self.interval_nodes(boxes) if filling is None else filling.nodes():
            program = self.programs.get(node.name)
            if known is not None and node.name in known:
                _narrow(boxes, node.name, *known[node.name])
            if program is not None:
                progress(f"bounds of {node.name}", done, len(self.programs))
                self._bound(program, boxes, deadline, trace, every)
                done += 1
            elif trace is not None and node.name in self.shown:  # the interval pass is exact there
                told, now = sums(boxes.lo[node.name], boxes.hi[node.name]), trace.mark()
                trace.add_layer(node.name, (now, now), boxes.lo[node.name].numel(), (told, told), [], node.name in self.unsettled)
        progress("bounds", done, len(self.programs))
        return boxes

    def _bound(self, program: Program, boxes: Boxes, deadline: float | None, trace: Trace | None, every: bool) -> None:
        """Two rows a neuron that the interval pass leaves undecided; its box becomes the best of all candidates.

        The likelier sign goes first: where its row settles the neuron, the other is never made. A neuron that a max pool
        or a smooth function reads is never settled.
        """
        name = program.target
        lo, hi = boxes.lo[name].contiguous(), boxes.hi[name].contiguous()
        boxes.lo[name], boxes.hi[name] = lo, hi
        before = None if trace is None else (trace.mark(), sums(lo, hi))
        asked = self._ask_sides(program, every)
        if trace is None and self.walker.play_neurons(program, self.tables(boxes), asked, deadline):
            return
        found, made = find_undecided(lo, hi, every=asked.every, settled=self.tight), list[Results]()
        if len(found):
            made = self.walker.bound_neurons(program, self.tables(boxes), found, asked.leaves, deadline, asked.hides)
            found.write(lo, hi)
        if trace is not None and before is not None:
            begin, told = before
            trace.add_layer(name, (begin, trace.mark()), lo.numel(), (told, sums(lo, hi)), made, asked.every)

    def _ask_sides(self, program: Program, every: bool) -> SidesAsked:
        """Which rows of a program's neurons are wanted; those of boxes that lie in balls have one end."""
        if (program.target, every) not in self._asked:
            name, walker = program.target, self.walker
            unsettled, hides = name in self.unsettled, not every and self.hides(name)
            self._asked[name, every] = SidesAsked(
                every=unsettled, settled=self.tight, leaves=self.leaves(name), hides=hides, ends=hides and walker.goes_both_ways(program),
                best=self.plan.candidates == "all",
            )  # fmt: skip
        return self._asked[program.target, every]

    def leaves(self, name: str) -> bool:
        """Whether a row of this node's neurons leaves when it has settled one."""
        return self.plan.candidates == "all" and self.early and name not in self.unsettled

    def hides(self, name: str) -> bool:
        """Whether no line depends on how far from zero this node's neurons go that are settled: only ReLUs of slope 0 read it."""
        readers = [self.nodes[user] for user in self.kit.users[name]]
        return self.early and name != self.net.output and all(r.op == "relu" and r.number("slope") == 0.0 for r in readers)

    def plain(self) -> Engine:
        """The interpreter of Plans alone, in float64: it knows forms over the input, and its products sum in one chain."""
        if self._other is None:
            compiled = Compiled(self.net, self.plan)
            self._other = Engine(
                compiled, dtype="float64", device=self.device, memory=self.memory, early=self.early, tight=self.tight, forward=self.forward
            )
        return self._other

    def tables(self, boxes: Boxes) -> Tables:
        """Tables are asked for nodes whose boxes are final: those before the node being bounded."""
        if not isinstance(boxes.tables, Tables) or boxes.tables.kit is not self.kit:
            boxes.tables = Tables(self.kit, replace(boxes, tables=None))  # the same bounds; a cycle would outlive its batch
        return boxes.tables

    # ---- queries ----------------------------------------------------------------------------------------

    def query(
        self, boxes: Boxes, forms: Forms, groups: Tensor | None = None, deadline: float | None = None, trace: Trace | None = None
    ) -> Results:
        """Lower bounds of forms; with `groups` (on the CPU), rows leave once one row of their group is proved positive."""
        if self.kernels is not None and forms.over_input is not None and not self.kernels.takes_relations:
            return self.plain().query(boxes, forms, groups, deadline, trace)
        program, begin, tables = self.plan.query, None if trace is None else trace.mark(), self.tables(boxes)
        if self.kernels is not None:
            results = self.kernels.queries.ask(tables, program, forms, groups, lambda: expire(deadline))
        else:
            results = self.walker.bound_forms(tables, forms, groups, deadline)
        self.tally.add("query", len(forms.image), results.ops)
        if trace is not None and begin is not None:
            trace.add_query(program, begin, results)
        return results

    def bounded_nodes(self) -> list[str]:
        """Nodes whose boxes a user may ask for: the inputs of nonlinear operators."""
        return list(self.shown)
