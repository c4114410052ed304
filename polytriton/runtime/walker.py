"""Walks rows of a program in blocks: bounds of both sides of neurons, and of linear forms, on the CPU or by tensor operations.

Rows are cut into blocks that fit the memory and the cache; threads walk blocks of their own, or share a block's rows where a tape plays
them (cpu/tape_player.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.passes.memory import chunk_rows
from polytriton.runtime.budget import between_groups, count_sharers, row_blocks
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.config import Config
from polytriton.runtime.cpu.recipe import Filling, Recipe
from polytriton.runtime.cpu.recipe_record import is_chain, record_recipe
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.sides import SidesAsked, bound_sides
from polytriton.runtime.cpu.tape_player import LEAST, play_forms
from polytriton.runtime.cpu.tape_record import FIRST
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.forward import Boxes
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Identity, Results, Rows, expire, form_rows
from polytriton.runtime.settings import allowed_threads
from polytriton.runtime.tables import Tables
from polytriton.runtime.undecided import Undecided

W = TypeVar("W", bound=Walk)

# what a row says of both its ends behind it, since all that it rounds is charged by magnitudes; a ReLU of slope 0 pays for the other end
TWO_ENDED = ("start", "linear", "conv", "scale", "add", "sub", "concat", "gather", "dense", "merge", "input")


@dataclass
class Tally:
    """What a run did: rows by program, and the operations that the Plan counts for them."""

    rows: dict[str, int] = field(default_factory=dict)
    ops: int = 0

    def add(self, name: str, rows: int, ops: int = 0) -> None:
        self.ops += ops
        if rows:
            self.rows[name] = self.rows.get(name, 0) + rows


class Walker:
    """Walks rows of one Plan, `memory` bytes at most at a time; what it does is noted in a tally."""

    def __init__(self, kit: Kit, config: Config, memory: int, threads: int) -> None:
        self.kit, self.plan, self.config, self.memory = kit, kit.plan, config, memory
        self.device = kit.forward.device
        self.backend, self.alone = TorchBackend(self.device, threads, config), TorchBackend(self.device, 1, config)
        self.walk: Callable[..., Walk] = Walk
        self.tally = Tally()
        self._recipe: tuple[Recipe | None] | None = None  # not yet asked for
        self._two_ended = dict[tuple[str, str], bool]()  # which programs' rows may be read from both ends
        self._played: dict[tuple[str, str], bool] = {}  # which programs may be

    def begin_recipe(self, start: Boxes) -> Filling | None:
        """A batch whose boxes and tables are made by the network's recipe, where it has one."""
        if self.walk is not Walk:
            return None
        if self._recipe is None:
            plays = all(Walk.may_play(self.backend, self.kit, program) for program in self.plan)
            self._recipe = (record_recipe(self.backend, self.kit, start) if plays and is_chain(self.kit) else None,)
        (recipe,) = self._recipe
        return None if recipe is None else Filling(recipe, self.kit, start)

    # ---- neurons ----------------------------------------------------------------------------------------

    def play_neurons(self, program: Program, tables: Tables, asked: SidesAsked, deadline: float | None) -> bool:
        """`bound_neurons` of those neurons of a node that get rows, which are found and whose bounds are written, where a tape plays all of
        them; False where none does.
        """
        if not self._may_play(program, tables):
            return False
        threads = self._thread_count
        if chunk_rows(program, self.kit.coefficients.dtype.itemsize, self.memory // 2) < threads * LEAST:
            return False  # blocks of fewer rows fit, or none does, which is told there
        told = bound_sides(self.backend, tables, program, asked, threads, lambda: expire(deadline))
        if told is None:
            return False
        self.tally.add(program.target, told.rows, told.ops)
        return True

    def bound_neurons(
        self, program: Program, tables: Tables, found: Undecided, leaves: bool, deadline: float | None, hides: bool = False
    ) -> list[Results]:
        """Bounds of +x and -x of these neurons, in place of those that were known; those that one side settles are left out of the other
        where rows leave, and where the rows' other end tells enough of it; those that it switches off, where that hides the other.
        """
        best, made = found.bounds, list[Results]()
        first = torch.where(best[0] >= best[1], 1, -1) if leaves or hides else torch.ones_like(found.at)
        open_, sign = torch.arange(len(found), device=self.device), first
        ends = hides and self.has_ends(program, tables)
        for turn in (1, -1):
            made.append(self.bound_side(program, tables, found.where, open_, sign, leaves, deadline, ends=ends and turn > 0))
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

    def has_ends(self, program: Program, tables: Tables) -> bool:
        """Whether rows of a program may be read from both ends over these boxes."""
        return tables.boxes.ball is None and self.goes_both_ways(program)

    def goes_both_ways(self, program: Program) -> bool:
        """Whether there is nothing on a program's way but affine nodes and ReLUs of slope 0."""
        key = program.kind, program.target
        if key not in self._two_ended:
            steps = ((step.op, self.kit.nodes[step.node]) for step in program.steps)
            self._two_ended[key] = all(node.number("slope") == 0.0 if op == "relu" else op in TWO_ENDED for op, node in steps)
        return self._two_ended[key]

    def bound_side(
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
        results = Results.begin(rows, self.device)
        if ends:
            results.other = Results.begin(rows, self.device)
        if leaves:
            results.group = torch.arange(rows, device=self.device)
            results.done = torch.zeros(rows, dtype=torch.bool, device=self.device)
        sharers = self._thread_count
        # one thread's Python goes on beside another's loops where there is a block for each; the rows of few blocks are divided
        ranges = self.blocks(rows, program, 1, images, walks=False) if chosen is None and self._may_play(program, tables) else []
        plays = 0 < len(ranges) <= sharers
        threads, backend = (1, self.backend) if plays else (self._sharers(rows, program), self.alone)
        if not ranges or threads > 1:
            ranges = self.blocks(rows, program, threads, images)
        parts = [replace(results, left=[]) for _ in ranges]  # bounds are shared, each row has its own; what is counted is not

        def walk(k: int) -> None:
            expire(deadline)
            block = ranges[k]
            at = (image, h, w, sign, channel) if len(ranges) == 1 else tuple(v[block] for v in (image, h, w, sign, channel))
            start = Identity(at[3].to(self.kit.coefficients.dtype), at[4])
            some = Rows.begin(at[0], block, at[1], at[2])
            if ends:
                some.excess = torch.zeros_like(some.error)
            one = self.walk(backend, tables, program, some, parts[k], chosen)
            one.threads = sharers if plays else 1
            one.run(start)

        share_out(walk, range(len(ranges)), min(threads, sharers))
        results.ops, results.left = sum(part.ops for part in parts), [left for part in parts for left in part.left]
        self.tally.add(program.target, rows, results.ops)
        return results

    @property
    def _thread_count(self) -> int:
        """How many threads may share rows now."""
        return min(self.backend.threads, allowed_threads())

    def _has_tapes(self, tables: Tables) -> bool:
        """Whether rows over these boxes are played at all, as far as there are tapes."""
        return self.walk is Walk and tables.boxes.ball is None and Walk.has_tapes(self.backend, self.kit)

    def _may_play(self, program: Program, tables: Tables) -> bool:
        """Whether a block's rows are divided among threads: elsewhere they wait for each other's Python, and take whole blocks."""
        if not self._has_tapes(tables):
            return False
        key = program.kind, program.target
        if key not in self._played:
            self._played[key] = Walk.may_play(self.backend, self.kit, program)
        return self._played[key]

    def _sharers(self, rows: int, program: Program) -> int:
        """For how many threads blocks are made, whoever may walk them now: rows are summed in the same blocks every time."""
        return count_sharers(rows, program, self.kit, self.memory // 2, self.backend.threads) if self.backend.fast else 1

    def blocks(self, rows: int, program: Program, threads: int = 1, images: Tensor | None = None, walks: bool = True) -> list[Tensor]:
        return row_blocks(rows, program, self.kit, self.memory // 2, self.config, self.device, threads, images, walks)

    # ---- forms ------------------------------------------------------------------------------------------

    def bound_forms(
        self, tables: Tables, forms: Forms, groups: Tensor | None, deadline: float | None, chosen: Chosen | None = None
    ) -> Results:
        """By the interpreter of Plans."""
        results = Results.begin(len(forms.image), self.device)
        if groups is not None:
            results.group, results.strict = groups.to(self.device), True
            results.done = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=torch.bool, device=self.device)
        rows, sharers = len(forms.image), self._thread_count
        tapes = chosen is None and forms.over_input is None and self._has_tapes(tables)
        early = tapes and groups is not None and tables.missing_ops(self.plan.query.steps) >= FIRST
        plays = tapes and not early and self._may_play(self.plan.query, tables)
        shares = plays or early  # threads share the rows of a block, and what its tables take
        threads = 1 if shares else self._sharers(rows, self.plan.query)
        blocks, threads = self._form_blocks(rows, groups, threads, walks=not plays)
        if plays and len(blocks) == 1:
            expire(deadline)
            if play_forms(self.backend, tables, self.plan.query, *self._form_rows(tables, forms, blocks[0]), results, sharers):
                return results
        backend = self.backend if shares or len(blocks) == 1 else self.alone
        parts = [replace(results, left=[]) for _ in blocks]  # bounds are shared, each row has its own; what is counted is not

        def walk(k: int) -> None:
            expire(deadline)
            self._walk_block(self.walk, backend, tables, forms, blocks[k], parts[k], chosen, sharers if shares else 1, early)

        share_out(walk, range(len(blocks)), min(threads, sharers))
        results.ops, results.left = sum(part.ops for part in parts), [left for part in parts for left in part.left]
        return results

    def _form_blocks(self, rows: int, groups: Tensor | None, threads: int, *, walks: bool) -> tuple[list[Tensor], int]:
        """Blocks of a query's rows, and how many threads take one each. Rows of a group leave together, so they stay together; groups that
        mix are walked in turn, in blocks as large as the memory holds.
        """
        blocks = self.blocks(rows, self.plan.query, threads, walks=walks)
        if groups is None or threads <= 1:
            return blocks, threads
        cuts = between_groups([int(block[0]) for block in blocks[1:]], groups)
        if not cuts:
            return self.blocks(rows, self.plan.query), 1
        return [torch.arange(a, b, device=self.device) for a, b in pairwise([0, *cuts, rows])], threads

    def walks(self, kind: Callable[..., W], tables: Tables, forms: Forms, results: Results, deadline: float | None) -> Iterator[W]:
        """Walks from the forms to the input, a block of them each, when they have arrived."""
        for block in self.blocks(len(forms.image), self.plan.query):
            expire(deadline)
            yield self._walk_block(kind, self.backend, tables, forms, block, results)

    def _form_rows(self, tables: Tables, forms: Forms, block: Tensor) -> tuple[Rows, Tensor]:
        sem = self.kit.forward.semantics
        flush = 0.0 if sem.real else 2 * sem.eta  # the deployed output itself may be flushed to zero
        largest = tables.absmax(self.plan.query.target), None if forms.over_input is None else tables.absmax(self.kit.net.input.name)
        return form_rows(forms, block, largest, flush, self.kit.coefficients.dtype)

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
        early: bool = False,
    ) -> W:
        some, start = self._form_rows(tables, forms, block)
        walk = kind(backend, tables, self.plan.query, some, results, chosen)
        walk.threads, walk.early = sharers, early
        walk.run(start, forms.over_input)
        return walk
