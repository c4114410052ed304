"""Runs a compiled Plan on batches of boxes: bounds of every node, and lower bounds of linear forms of the output.

The order is the paper's: an interval pass; the query on interval bounds; where that does not decide, every ReLU input
is refined in topological order, finished rows leaving on the way; then the query again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS, LIBRARY
from polytriton.frontend.norm_balls import kernel_refusal
from polytriton.ir.net import Node
from polytriton.ir.ops import relaxed_nodes, unsettled_nodes
from polytriton.ir.plan import Program
from polytriton.kernels.stock import Stock
from polytriton.passes.pipeline import Compiled, replan
from polytriton.runtime.budget import between_groups, count_sharers, image_bytes, row_blocks
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.cpu import blocks
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.gpu.interval_backend import IntervalBackend
from polytriton.runtime.gpu.player import Progress
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Identity, Results, Rows, Stopped, form_rows
from polytriton.runtime.soundness import find_semantics
from polytriton.runtime.tables import Tables
from polytriton.runtime.trace import Trace, sums
from polytriton.runtime.undecided import Undecided, find_undecided

W = TypeVar("W", bound=Walk)


# what a row says of both its ends behind it, since all that it rounds is charged by magnitudes; a ReLU of slope 0 pays for the other end
TWO_ENDED = ("start", "linear", "conv", "scale", "add", "sub", "concat", "gather", "dense", "merge", "input")


def _silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


def _narrow(boxes: Boxes, name: str, lo: Tensor, hi: Tensor) -> None:
    """Both bounds of the node hold, so the better of each does."""
    boxes.lo[name], boxes.hi[name] = torch.maximum(boxes.lo[name], lo), torch.minimum(boxes.hi[name], hi)


@dataclass
class Tally:
    """What a run did: rows and operations by program, seconds in refinement and queries."""

    rows: dict[str, int] = field(default_factory=dict)
    ops: int = 0


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
        self.backend, self.alone = TorchBackend(self.device, threads, config), TorchBackend(self.device, 1, config)
        self.walk: Callable[..., Walk] = Walk
        target = "cuda:{}{}".format(*torch.cuda.get_device_capability(self.device)) if kernels and self.device.type == "cuda" else ""
        stock = Stock(compiled.filed, self.plan, target)
        self.forward = forward or Forward(self.net, find_semantics(semantics), self.device)
        self.kit = Kit(self.net, self.plan, self.forward, self.coefficients, self._sums_in_blocks())
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
        self.tally = Tally()
        self._other: Engine | None = None
        self._played: dict[tuple[str, str], bool] = {}  # which programs may be

    def _sums_in_blocks(self) -> frozenset[str]:
        """Operators whose float32 products are this machine's tiles; convolutions keep forms that a configuration chose."""
        if not self.coefficients.centred or not self.backend.fast or not blocks.is_available():
            return frozenset()
        return frozenset(("linear",) if self.config.convs else ("linear", "conv"))

    # ---- boxes ------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        """Floating-point operations the Plan counts for the rows that each step still had, so far."""
        return self.tally.ops + (self.kernels.operations if self.kernels is not None else 0)

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
            found, rows = self.kernels.player.refine(lo, hi, progress, lambda: self._expire(deadline), trace, known or {})
            for name, neurons in rows.items():
                self._count_rows(name, 2 * neurons)
            return found
        boxes = self.forward.start(lo.to(self.device), hi.to(self.device), ball)
        done = 0
        for node in self.interval_nodes(boxes):
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
        unsettled, leaves = name in self.unsettled, self.leaves(name)
        found, made = find_undecided(lo, hi, every=unsettled, settled=self.tight), list[Results]()
        if len(found):
            made = self._both_sides(program, self._tables(boxes), found, leaves, deadline, not every and self.hides(name))
            found.write(lo, hi)
        if trace is not None and before is not None:
            begin, told = before
            trace.add_layer(name, (begin, trace.mark()), lo.numel(), (told, sums(lo, hi)), made, unsettled)

    def leaves(self, name: str) -> bool:
        """Whether a row of this node's neurons leaves when it has settled one."""
        return self.plan.candidates == "all" and self.early and name not in self.unsettled

    def hides(self, name: str) -> bool:
        """Whether no line depends on how far from zero this node's neurons go that are settled: only ReLUs of slope 0 read it."""
        readers = [self.nodes[user] for user in self.kit.users[name]]
        return self.early and name != self.net.output and all(r.op == "relu" and r.number("slope") == 0.0 for r in readers)

    def _has_ends(self, program: Program, tables: Tables) -> bool:
        """Whether rows of a program may be read from both ends: nothing on their way but affine nodes and ReLUs of slope 0."""
        if tables.boxes.ball is not None:
            return False
        steps = ((step.op, self.nodes[step.node]) for step in program.steps)
        return all(node.number("slope") == 0.0 if op == "relu" else op in TWO_ENDED for op, node in steps)

    def _count_rows(self, name: str, rows: int) -> None:
        if rows:
            self.tally.rows[name] = self.tally.rows.get(name, 0) + rows

    def _both_sides(
        self, program: Program, tables: Tables, found: Undecided, leaves: bool, deadline: float | None, hides: bool = False
    ) -> list[Results]:
        """Bounds of +x and -x of these neurons, in place of those that were known; those that one side settles are left out of the other
        where rows leave, and where the rows' other end tells enough of it; those that it switches off, where that hides the other.
        """
        best, made = found.bounds, list[Results]()
        first = torch.where(best[0] >= best[1], 1, -1) if leaves or hides else torch.ones_like(found.at)
        open_, sign = torch.arange(len(found), device=self.device), first
        ends = hides and self._has_ends(program, tables)
        for turn in (1, -1):
            made.append(self._side(program, tables, found.where, open_, sign, leaves, deadline, ends=ends and turn > 0))
            # where bounds are taken at the end only, what was found there counts
            self.backend.keep(made[-1].best, sign, open_, best, self.plan.candidates == "all")
            if turn < 0:
                break
            if (other := made[-1].other) is not None:
                self.backend.keep(other.best, -sign, open_, best, True)
            if leaves or ends:
                open_ = torch.nonzero((best[0] < 0) & (best[1] < 0)).flatten()
            elif hides:
                open_ = torch.nonzero(best[1] < 0).flatten()
            sign = -first[open_]
        return made

    def _side(
        self,
        program: Program,
        tables: Tables,
        where: tuple[Tensor, ...],
        neurons: Tensor,
        sign: Tensor,
        leaves: bool,
        deadline: float | None,
        chosen: Chosen | None = None,
        ends: bool = False,
    ) -> Results:
        """Bounds of +x or -x for some of the neurons `where`, one row each; with `ends` the same rows bound the other one too."""
        rows = len(neurons)
        image, h, w, channel = where if rows == len(where[0]) else (v[neurons] for v in where)  # they are in their order
        images = image if tables.boxes.batch > 1 else None
        results = self._results(rows)
        if ends:
            results.other = self._results(rows)
        if leaves:
            results.group = torch.arange(rows, device=self.device)
            results.done = torch.zeros(rows, dtype=torch.bool, device=self.device)
        sharers = min(self.backend.threads, torch.get_num_threads())
        # one thread's Python goes on beside another's loops where there is a block for each; the rows of few blocks are divided
        ranges = self._blocks(rows, program, 1, images, walks=False) if chosen is None and self._may_play(program, tables) else []
        plays = 0 < len(ranges) <= sharers
        threads, backend = (1, self.backend) if plays else (self._sharers(rows, program), self.alone)
        if not ranges or threads > 1:
            ranges = self._blocks(rows, program, threads, images)
        parts = [replace(results, left=[]) for _ in ranges]  # bounds are shared, each row has its own; what is counted is not

        def walk(k: int) -> None:
            self._expire(deadline)
            block = ranges[k]
            at = (image, h, w, sign, channel) if len(ranges) == 1 else tuple(v[block] for v in (image, h, w, sign, channel))
            start = Identity(at[3].to(self.coefficients.dtype), at[4])
            some = self._rows(at[0], block, at[1], at[2])
            if ends:
                some.excess = torch.zeros_like(some.error)
            one = self.walk(backend, tables, program, some, parts[k], chosen)
            one.threads = sharers if plays else 1
            one.run(start)

        share_out(walk, range(len(ranges)), min(threads, sharers))
        self._count_rows(program.target, rows)
        results.ops, results.left = sum(part.ops for part in parts), [left for part in parts for left in part.left]
        self.tally.ops += results.ops
        return results

    def _may_play(self, program: Program, tables: Tables) -> bool:
        """Whether a block's rows are divided among threads: elsewhere they wait for each other's Python, and take whole blocks."""
        if self.walk is not Walk or tables.boxes.ball is not None:
            return False
        key = program.kind, program.target
        if key not in self._played:
            self._played[key] = Walk.may_play(self.backend, self.kit, program)
        return self._played[key]

    def _sharers(self, rows: int, program: Program) -> int:
        """For how many threads blocks are made, whoever may walk them now: rows are summed in the same blocks every time."""
        return count_sharers(rows, program, self.kit, self.memory // 2, self.backend.threads) if self.backend.fast else 1

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

    def _blocks(self, rows: int, program: Program, threads: int = 1, images: Tensor | None = None, walks: bool = True) -> list[Tensor]:
        return row_blocks(rows, program, self.kit, self.memory // 2, self.config, self.device, threads, images, walks)

    def _expire(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise Stopped

    # ---- queries ----------------------------------------------------------------------------------------

    def query(
        self, boxes: Boxes, forms: Forms, groups: Tensor | None = None, deadline: float | None = None, trace: Trace | None = None
    ) -> Results:
        """Lower bounds of forms; with `groups` (on the CPU), rows leave once one row of their group is proved positive."""
        if self.kernels is not None and forms.over_input is not None and not self.kernels.takes_relations:
            return self._plain().query(boxes, forms, groups, deadline, trace)
        program, begin, tables = self.plan.query, None if trace is None else trace.mark(), self._tables(boxes)
        if self.kernels is not None:
            results = self.kernels.queries.ask(tables, program, forms, groups, lambda: self._expire(deadline))
        else:
            results = self._walk_forms(tables, forms, groups, deadline)
        self.tally.rows["query"] = self.tally.rows.get("query", 0) + len(forms.image)
        self.tally.ops += results.ops
        if trace is not None and begin is not None:
            trace.add_query(program, begin, results)
        return results

    def _walk_forms(
        self, tables: Tables, forms: Forms, groups: Tensor | None, deadline: float | None, chosen: Chosen | None = None
    ) -> Results:
        """By the interpreter of Plans."""
        results = self._results(len(forms.image))
        if groups is not None:
            results.group, results.strict = groups.to(self.device), True
            results.done = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=torch.bool, device=self.device)
        rows, sharers = len(forms.image), min(self.backend.threads, torch.get_num_threads())
        plays = chosen is None and forms.over_input is None and self._may_play(self.plan.query, tables)
        threads = 1 if plays else self._sharers(rows, self.plan.query)
        blocks = self._blocks(rows, self.plan.query, threads, walks=not plays)
        if groups is not None and threads > 1:
            cuts = between_groups([int(block[0]) for block in blocks[1:]], groups)
            threads = threads if cuts else 1  # groups that mix are walked in turn, in blocks as large as the memory holds
            ends = [0, *cuts, rows]
            blocks = [torch.arange(a, b, device=self.device) for a, b in pairwise(ends)] if cuts else self._blocks(rows, self.plan.query)
        backend = self.backend if plays or len(blocks) == 1 else self.alone
        parts = [replace(results, left=[]) for _ in blocks]  # bounds are shared, each row has its own; what is counted is not

        def walk(k: int) -> None:
            self._expire(deadline)
            self._walk_block(self.walk, backend, tables, forms, blocks[k], parts[k], chosen, sharers if plays else 1)

        share_out(walk, range(len(blocks)), min(threads, sharers))
        results.ops, results.left = sum(part.ops for part in parts), [left for part in parts for left in part.left]
        return results

    def walks(self, kind: Callable[..., W], tables: Tables, forms: Forms, results: Results, deadline: float | None) -> Iterator[W]:
        """Walks from the forms to the input, a block of them each, when they have arrived."""
        for block in self._blocks(len(forms.image), self.plan.query):
            self._expire(deadline)
            yield self._walk_block(kind, self.backend, tables, forms, block, results)

    def _walk_block(
        self,
        kind: Callable[..., W],
        backend: TorchBackend,
        tables: Tables,
        forms: Forms,
        block: Tensor,
        results: Results,
        chosen: Chosen | None = None,
        sharers: int = 1,
    ) -> W:
        program, sem = self.plan.query, self.forward.semantics
        flush = 0.0 if sem.real else 2 * sem.eta  # the deployed output itself may be flushed to zero
        largest = tables.absmax(program.target), None if forms.over_input is None else tables.absmax(self.net.input.name)
        some, start = form_rows(forms, block, largest, flush, self.coefficients.dtype)
        walk = kind(backend, tables, program, some, results, chosen)
        walk.threads = sharers
        walk.run(start, forms.over_input)
        return walk

    def bounded_nodes(self) -> list[str]:
        """Nodes whose boxes a user may ask for: the inputs of nonlinear operators."""
        return list(self.shown)
