"""Boxes and tables of a batch by one compiled call a layer, for networks that are a chain of small dense layers and ReLUs.

A batch of few boxes spends far more on calls of Python than on numbers. What is computed is the same for every batch of such a network, so
it is written down once (recipe_record.py), with all programs as tapes: lines for recipe_loop.py and for tape_loop.py. A batch has all its
tables in one memory of its own, where each lies at a place that depends on how many boxes there are alone, and the lines' addresses follow
from where that memory begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Filling:
    """The boxes of one batch while they are made, and its tables, node by node; `tables.Maker` of those."""

    def __init__(self, recipe: Recipe, kit: Kit, start: Boxes) -> None:
        self.recipe, self.kit, self._batch = recipe, kit, start.batch
        self._memory = torch.empty(-(-recipe.size * start.batch // 8), dtype=torch.float64)
        self._singles = self._memory.view(torch.float32)
        self._code = recipe.fixed + recipe.each * start.batch + recipe.based * self._memory.data_ptr()
        self._made = set[Key]()
        name = kit.net.input.name
        lo, hi = self.table(name, "lo").copy_(start.lo[name]), self.table(name, "hi").copy_(start.hi[name])
        self.boxes = Boxes({name: lo}, {name: hi})
        self.tables = Tables(kit, replace(self.boxes), self)  # the same bounds
        for program, (tape, first, last) in recipe.tapes.items():
            self.tables.tapes[program] = replace(tape, code=self._code[first:last], places=(), used=(self._memory, recipe))
        self.boxes.tables = self.tables

    def has(self, name: str, what: str) -> bool:
        return (what, name) in self._made

    def table(self, name: str, what: str) -> Tensor:
        place, batch = self.recipe.places[what, name], self._batch
        memory = self._singles if place.single else self._memory
        if not place.shape:
            return memory.as_strided((batch,), (1,), place.begin * batch)
        h, w, c = place.shape
        return memory.as_strided((batch, h, w, c), (h * w * c, w * c, c, 1), place.begin * batch)

    def nodes(self) -> Iterator[Node]:
        """The nodes behind the input when their boxes are there. What the caller narrows of one, in place, counts for the next."""
        most, first, reals = self.recipe.most, 0, self.recipe.reals
        room = np.empty(most), np.empty(most * self._batch, dtype=np.bool_), np.empty((2, most), dtype=np.int64)
        for stage in self.recipe.stages:
            follow(self._code[first : stage.last], reals[first : stage.last], *room)
            self._made |= stage.made
            first = stage.last
            if stage.node:
                self._show(stage.node)
                yield self.kit.nodes[stage.node]

    def _show(self, name: str) -> None:
        boxes = self.boxes
        boxes.lo[name], boxes.hi[name] = self.table(name, "lo"), self.table(name, "hi")
        if name in self.kit.forward.layers:
            boxes.magnitude[name], boxes.error[name] = self.table(name, "magnitude"), self.table(name, "error")
