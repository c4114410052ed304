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
    """Up to where lines are followed before a node's box is there (none behind the output), and which tables of what nodes are then."""

    node: str
    last: int
    made: dict[str, list[str]]


@dataclass(frozen=True)
class Recipe:
    """Lines of the recipe and of the tapes, as `fixed` + `each` times the boxes + the memory's begin where an address is `based` on it.

    doubles, singles: the tables in their order, with the values an image has of each. shapes: of those that somebody asks for, an image's.
    tapes: of each program, with where its lines begin and end. most: outputs of a layer.
    """

    fixed: np.ndarray
    each: np.ndarray
    based: np.ndarray
    reals: np.ndarray
    doubles: dict[Key, int]
    singles: dict[Key, int]
    shapes: dict[Key, tuple[int, ...]]
    stages: Sequence[Stage]
    tapes: dict[TapeKey, tuple[Tape, int, int]]
    most: int
    held: Sequence[object]  # what fixed addresses point to


class Filling:
    """The boxes of one batch while they are made, and its tables, node by node."""

    def __init__(self, recipe: Recipe, kit: Kit, start: Boxes) -> None:
        self.recipe, self.kit, batch = recipe, kit, start.batch
        count = [sum(sizes.values()) * batch for sizes in (recipe.doubles, recipe.singles)]
        self._memory = np.empty(count[0] + (count[1] + 1) // 2)
        begin = self._memory.__array_interface__["data"][0]
        self._code = recipe.fixed + recipe.each * batch + recipe.based * begin
        whole = torch.from_numpy(self._memory)
        self._views = dict[Key, Tensor]()
        for sizes, part in ((recipe.doubles, whole[: count[0]]), (recipe.singles, whole[count[0] :].view(torch.float32)[: count[1]])):
            for (key, size), values in zip(sizes.items(), part.split([size * batch for size in sizes.values()]), strict=True):
                if key in recipe.shapes:
                    self._views[key] = values.view(batch, *recipe.shapes[key])
                assert len(values) == size * batch
        name = kit.net.input.name
        for what, given in (("lo", start.lo[name]), ("hi", start.hi[name])):
            self._views[what, name].copy_(given)
        self.boxes = Boxes({name: self._views["lo", name]}, {name: self._views["hi", name]})
        self.tables = Tables(kit, replace(self.boxes))
        for program, (tape, first, last) in recipe.tapes.items():
            self.tables.tapes[program] = replace(tape, code=self._code[first:last], places=(), used=(self._memory, recipe))
        self.boxes.tables = self.tables

    def nodes(self) -> Iterator[Node]:
        """The nodes behind the input when their boxes are there. What the caller narrows of one, in place, counts for the next."""
        memory = self._room()
        nodes, first = self.kit.nodes, 0
        for stage in self.recipe.stages:
            follow(self._code[first : stage.last], self.recipe.reals[first : stage.last], *memory)
            for name, what in stage.made.items():
                self.tables.put(name, {one: self._views[one, name] for one in what})
            first = stage.last
            if stage.node:
                self._show(stage.node)
                yield nodes[stage.node]

    def _room(self) -> tuple[np.ndarray, ...]:
        most, batch = self.recipe.most, self.boxes.batch
        return np.empty(most), np.empty(most * batch, dtype=np.bool_), np.empty((2, most), dtype=np.int64)

    def _show(self, name: str) -> None:
        boxes, views = self.boxes, self._views
        boxes.lo[name], boxes.hi[name] = views["lo", name], views["hi", name]
        if ("magnitude", name) in views:
            boxes.magnitude[name], boxes.error[name] = views["magnitude", name], views["error", name]
