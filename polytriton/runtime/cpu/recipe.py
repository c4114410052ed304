"""Boxes and tables of a batch by one compiled call a layer, for networks that are a chain of small dense layers and ReLUs.

A batch of few boxes spends far more on calls of Python than on numbers. What is computed is the same for every batch of such a network, so
it is written down once (recipe_record.py), with all programs as tapes: lines for recipe_loop.py and for tape_loop.py. A batch has all its
tables in one memory of its own, where each lies at a place that depends on how many boxes there are alone, and the lines' addresses follow
from where that memory begins.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.runtime.cpu.recipe_loop import follow
from polytriton.runtime.cpu.tape import Tape, TapeKey
from polytriton.runtime.forward import Boxes
from polytriton.runtime.kit import Kit
from polytriton.runtime.tables import Tables

WORTH, KEPT = 1 << 20, 2  # numbers from which on memory is kept for another batch, and pieces of it
Key = tuple[str, str]  # a table: what it is, and of which node


@dataclass(frozen=True)
class Stage:
    """Up to where lines are followed before a node's box is there (none behind the output), and which tables are then."""

    node: str
    last: int
    made: frozenset[Key]


@dataclass(frozen=True)
class TablePlace:
    """A table in a batch's memory: `begin` values an image before it, of its type; a value's shape in an image."""

    single: bool
    begin: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """Lines of the recipe and of the tapes, as `fixed` + `each` times the boxes + the memory's begin where an address is `based` on it.

    size: bytes of an image. places: of the tables that somebody asks for. tapes: of each program, with where its lines begin and end.
    most: outputs of a layer.
    """

    fixed: np.ndarray
    each: np.ndarray
    based: np.ndarray
    reals: np.ndarray
    size: int
    places: dict[Key, TablePlace]
    stages: Sequence[Stage]
    tapes: dict[TapeKey, tuple[Tape, int, int]]
    most: int
    held: Sequence[object]  # what fixed addresses point to
    memories: Memories


class Memories:
    """Memory for batches, handed out again when nothing refers to it any more: new pages would cost a large batch a tenth of its time."""

    def __init__(self) -> None:
        self._free = deque[np.ndarray](maxlen=KEPT)

    def take(self, count: int) -> Tensor:
        """So many float64 numbers, in which anything may stand. They are whoever's holds a view of them."""
        whole = None
        with suppress(IndexError):
            whole = self._free.pop() if count >= WORTH else None
        if whole is None or not count <= len(whole) <= 2 * count:
            whole = np.empty(count)
        lent = whole[:count]  # tensors over it keep this array, and nobody else does
        if count >= WORTH:
            weakref.finalize(lent, self._free.append, whole).atexit = False
        return torch.from_numpy(lent)


class MadeTables:
    """A batch's tables in one memory, and which of them are made: `tables.Maker`. It knows nobody who asks it: a cycle would outlive its
    batch.
    """

    def __init__(self, recipe: Recipe, batch: int) -> None:
        self.recipe, self.batch, self.made = recipe, batch, set[Key]()
        self.memory = recipe.memories.take(-(-recipe.size * batch // 8))
        self._singles = self.memory.view(torch.float32)

    def has(self, name: str, what: str) -> bool:
        return (what, name) in self.made

    def table(self, name: str, what: str) -> Tensor:
        place, batch = self.recipe.places[what, name], self.batch
        memory = self._singles if place.single else self.memory
        if not place.shape:
            return memory.as_strided((batch,), (1,), place.begin * batch)
        h, w, c = place.shape
        return memory.as_strided((batch, h, w, c), (h * w * c, w * c, c, 1), place.begin * batch)


class Filling:
    """The boxes of one batch while they are made, node by node, and its tables."""

    def __init__(self, recipe: Recipe, kit: Kit, start: Boxes) -> None:
        self.recipe, self.kit, self.maker = recipe, kit, MadeTables(recipe, start.batch)
        self._code = recipe.fixed + recipe.each * start.batch + recipe.based * self.maker.memory.data_ptr()
        name = kit.net.input.name
        lo, hi = self.maker.table(name, "lo").copy_(start.lo[name]), self.maker.table(name, "hi").copy_(start.hi[name])
        self.boxes = Boxes({name: lo}, {name: hi})
        self.boxes.tables = tables = Tables(kit, replace(self.boxes), self.maker)  # the same bounds
        for program, (tape, first, last) in recipe.tapes.items():
            tables.tapes[program] = replace(tape, code=self._code[first:last], places=(), used=(self.maker.memory, recipe))

    def nodes(self) -> Iterator[Node]:
        """The nodes behind the input when their boxes are there. What the caller narrows of one, in place, counts for the next."""
        most, first, reals = self.recipe.most, 0, self.recipe.reals
        room = np.empty(most), np.empty(most * self.maker.batch, dtype=np.bool_), np.empty((2, most), dtype=np.int64)
        for stage in self.recipe.stages:
            follow(self._code[first : stage.last], reals[first : stage.last], *room)
            self.maker.made |= stage.made
            first = stage.last
            if stage.node:
                self._show(stage.node)
                yield self.kit.nodes[stage.node]

    def _show(self, name: str) -> None:
        boxes, table = self.boxes, self.maker.table
        boxes.lo[name], boxes.hi[name] = table(name, "lo"), table(name, "hi")
        if name in self.kit.forward.layers:
            boxes.magnitude[name], boxes.error[name] = table(name, "magnitude"), table(name, "error")
