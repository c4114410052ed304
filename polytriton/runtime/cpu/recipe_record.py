"""Writes a network's recipe down (recipe.py): its programs as tapes, and lines for the tables that these read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.runtime.centres import is_centred
from polytriton.runtime.charges import charge_factors
from polytriton.runtime.cpu import recipe_loop as loop
from polytriton.runtime.cpu import tape_loop
from polytriton.runtime.cpu.recipe import Key, Memories, Recipe, Stage, TablePlace
from polytriton.runtime.cpu.tape import NEURON, Tape, TapeKey
from polytriton.runtime.cpu.tape_player import find_whole_tape
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.forward import Boxes, interval_rounds
from polytriton.runtime.kit import Kit
from polytriton.runtime.layers import Layer
from polytriton.runtime.soundness import converts_nothing, flushes
from polytriton.runtime.tables import Tables

SINGLE = ("low", "high", "below", "above", "cut", "gap", "t", "point")  # tables in the coefficient type
# what no other layer reads: one memory for all
PASSING = ("mid", "radius", "wide", "centre", "spread", "depths", "exact", "entries", "exact_t")


@dataclass(frozen=True)
class Each:
    """A count: so many an image."""

    count: int


Value = int | Each | Key


def is_chain(kit: Kit) -> bool:
    """Whether a network is small dense layers and exact ReLUs, each of which reads the node before it."""
    layers, net = kit.forward.layers, kit.net
    for before, node in pairwise(net.nodes):
        if list(node.inputs) != [before.name]:
            return False
        if node.op == "relu" and node.number("slope") == 0.0:
            continue
        if node.op != "linear" or not _is_plain(layers[node.name], kit):
            return False
    return net.nodes[-1].op == "linear" and not any(any(frame.halo) for frame in kit.frames.values())


def _is_plain(layer: Layer, kit: Kit) -> bool:
    """Whether there are lines for all that a layer does."""
    name, lost = layer.node.name, flushes(kit.forward.semantics) and not converts_nothing(layer.node)
    return layer.is_small and not kit.is_large(name) and not layer.cancelled and not kit.forward.shared.get(name) and not lost


def record_recipe(backend: TorchBackend, kit: Kit, start: Boxes) -> Recipe | None:
    """The recipe of a chain, from any batch of boxes; None where a program's tape ends early, or reads a table that no line makes, or that
    is made when its node has been bounded.
    """
    boxes = Boxes(dict(start.lo), dict(start.hi))
    for node in kit.net.nodes[1:]:
        kit.forward.transfer(node, boxes)
    tables = Tables(kit, boxes)
    if any(find_whole_tape(backend, tables, p, None, NEURON if p.kind == "bound" else 0) is None for p in kit.plan):
        return None
    tapes = {key: tape for key, tape in tables.tapes.items() if tape is not None}
    known = {table.data_ptr(): key for key, table in tables.list_tables().items()}
    fixed = {table.data_ptr() for table in kit.list_tables()}
    places, wanted = {node.name: k for k, node in enumerate(kit.net.nodes)}, set[Key]()
    for (kind, target, *_), tape in tapes.items():
        read = {table.data_ptr() for *_, table in tape.places} - fixed
        if not read <= known.keys():
            return None
        keys = {known[place] for place in read}
        if kind == "bound" and any(places[name] >= places[target] for _, name in keys - {("first", target)}):
            return None
        wanted |= keys
    return _RecipeWriter(kit, known, wanted).recipe(tapes)


def _word(key: Key) -> int:
    return 4 if key[0] in SINGLE else 8


class _RecipeWriter:
    """Lines for the tables that are `wanted`; `known`: where a sample of each lies that tapes have the addresses of."""

    def __init__(self, kit: Kit, known: Mapping[int, Key], wanted: Set[Key]) -> None:
        self.kit, self.known, self.wanted = kit, known, wanted
        self.sizes = dict[Key, int]()  # values an image has in each table
        self.shapes = dict[Key, tuple[int, ...]]()
        self.lines, self.reals = list[list[Value]](), list[list[float]]()
        self.held = list[object]()

    def recipe(self, tapes: dict[TapeKey, Tape]) -> Recipe:
        stages, nodes = list[Stage](), self.kit.net.nodes
        for what in ("lo", "hi"):
            self.table(what, nodes[0].name)
        for before, node in pairwise(nodes):
            made = self.finish(before) | self.transfer(node)
            stages.append(Stage(node.name, len(self.lines), made))
        made = self.finish(nodes[-1])
        stages.append(Stage("", len(self.lines), made))
        own, places = len(self.lines), dict[TapeKey, tuple[Tape, int, int]]()
        reals = np.zeros((own, loop.REALS))
        for line, values in enumerate(self.reals):
            reals[line, : len(values)] = values
        for key, tape in tapes.items():
            first = len(self.lines)
            self.lines += tape.code.tolist()
            for line, field, table in tape.places:
                if table.data_ptr() in self.known:
                    self.lines[first + line][field] = self.known[table.data_ptr()]
            places[key] = tape, first, len(self.lines)
            self.held.append(tape.used)
        begins, size = self._arrange()
        fixed, each, based = self._resolve(begins)
        held = {key: TablePlace(key[0] in SINGLE, begins[key] // _word(key), shape) for key, shape in self.shapes.items()}
        most = max(prod(extent(n)) for n in nodes)
        return Recipe(fixed, each, based, reals, size, held, stages, places, most, self.held, Memories())

    def _arrange(self) -> tuple[dict[Key, int], int]:
        """Bytes an image before each table, and those of all: float64 first, so that every number is aligned."""
        begins, size = dict[Key, int](), 0
        for key in sorted(self.sizes, key=_word, reverse=True):
            begins[key], size = size, size + _word(key) * self.sizes[key]
        return begins, size

    def _resolve(self, begins: Mapping[Key, int]) -> np.ndarray:
        """[3, lines, fields]: of every number its fixed part, what it has of each box, and whether the memory's begin is added."""
        found = np.zeros((3, len(self.lines), tape_loop.FIELDS), dtype=np.int64)
        for line, values in enumerate(self.lines):
            for field, value in enumerate(values):
                if isinstance(value, Each):
                    found[1, line, field] = value.count
                elif isinstance(value, tuple):
                    found[1:, line, field] = begins[value], 1
                else:
                    found[0, line, field] = value
        return found

    # ---- tables ---------------------------------------------------------------------------------------------

    def table(self, what: str, name: str, size: int | None = None) -> Key:
        """A node's table, of all its cells where no size is said; of a centre's point and reach, its operand's."""
        if what in PASSING:
            key, mine = (what, ""), self._size(name)
            self.sizes[key] = max(self.sizes.get(key, 0), mine)
            return key
        key = what, name
        if key not in self.sizes:
            node = self.kit.nodes[name]
            cells = extent(self.kit.nodes[node.inputs[0]] if what in ("point", "reach") else node)
            self.sizes[key], self.shapes[key] = (prod(cells), cells) if size is None else (size, ())
        return key

    def _size(self, name: str) -> int:
        return prod(extent(self.kit.nodes[name]))

    def fix(self, values: Tensor) -> int:
        held = values.contiguous()
        self.held.append(held)
        return held.data_ptr()

    def put(self, line: list[Value], reals: Sequence[float] = ()) -> None:
        self.lines.append(line)
        self.reals.append(list(reals))

    def wants(self, name: str, *what: str) -> bool:
        return any((one, name) in self.wanted for one in what)

    # ---- lines ----------------------------------------------------------------------------------------------

    def transfer(self, node: Node) -> frozenset[Key]:
        """The node's box from its operand's (`Forward.transfer`), and its first t; which tables that makes."""
        name, source = node.name, node.inputs[0]
        lo, hi, low, high = (self.table(what, n) for n in (source, name) for what in ("lo", "hi"))
        n, k = self._size(name), self._size(source)
        if node.op == "relu":
            self.put([loop.POSITIVE, Each(n), lo, hi, low, high])
            return frozenset()
        forward = self.kit.forward
        layer, real = forward.layers[name], forward.semantics.real
        mid, rad, wide = (self.table(what, source) for what in ("mid", "radius", "wide"))
        centre, spread, magnitude, e = (self.table(what, name) for what in ("centre", "spread", "magnitude", "error"))
        babs = self.fix(layer.babs)
        self.put([loop.SPLIT, Each(k), lo, hi, mid, rad, wide])
        self.put(self._product(layer, mid, centre, image=True))
        for x, out in ((rad, spread), (wide, magnitude)):
            self.put([*self._product(layer, x, out), 0, 1])
        summands, numbers = forward.error_numbers(layer)
        self.put([loop.ERR, Each(k), wide, Each(n), babs, 0 if real else magnitude, e, n], [] if real else [summands, *numbers])
        self.put([loop.BOUND, Each(n), centre, spread, e, magnitude, babs, n, low, high], [interval_rounds(layer)])
        if not self.wants(name, "first"):
            return frozenset()
        self._charge(layer, "first", magnitude, ("sum", source), 0, 0, centred=False)
        return frozenset({("first", name)})

    def finish(self, node: Node) -> frozenset[Key]:
        """Tables that depend on the node's box, which is final, and on those before it; which ones."""
        name, n = node.name, self._size(node.name)
        lo, hi, size, total = self.table("lo", name), self.table("hi", name), self.table("size", name), self.table("sum", name, 1)
        made = ["size", "sum"]
        self.put([loop.SIZES, Each(n), lo, hi, size, total, Each(1)])
        if self.wants(name, "floor"):
            self.put([loop.FLOOR, Each(1), total, 0, self.table("floor", name, 1)], [2 * self.kit.coefficients.eta, 0.0])
            made.append("floor")
        if self.wants(name, "low", "high"):
            self.put([loop.OUTWARD, Each(n), lo, hi, self.table("low", name), self.table("high", name)])
            made += ["low", "high"]
        lines = "below", "above", "cut", "gap"
        if self.wants(name, *lines):
            source = node.inputs[0]
            out = [self.table(what, name) for what in lines]
            self.put([loop.LINES, Each(n), self.table("lo", source), self.table("hi", source), *out])
            made += lines
        if self.wants(name, "t", "charged", "image", "point"):
            made += self._finish_layer(self.kit.forward.layers[name])
        return frozenset((what, name) for what in made)

    def _finish_layer(self, layer: Layer) -> list[str]:
        """t of an affine layer's products, and its centre: `Tables.charge`."""
        kit, name, source = self.kit, layer.node.name, layer.node.inputs[0]
        n, k = self._size(name), self._size(source)
        depths, entries, below = self.table("depths", name), self.table("magnitude", name), ("sum", source)
        read = [(what, name) if name != kit.net.output else 0 for what in ("lo", "hi")]  # all rows may stand on the output
        self.put([loop.DEPTHS, Each(n), *read, depths, n])
        image: Value = 0
        centred = kit.coefficients.centred and is_centred(layer)
        if centred:
            image, point, exact, reach = (self.table(*v) for v in (("image", name), ("point", name), ("exact", source), ("reach", name)))
            entries, below = self.table("entries", name), self.table("reaches", name, 1)
            lo, hi = ("lo", source), ("hi", source)
            self.put([loop.CENTRE, Each(k), lo, hi, point, exact, reach], [float(torch.finfo(kit.coefficients.dtype).tiny)])
            self.put(self._product(layer, exact, image, image=True))
            self.put([*self._product(layer, reach, entries), 0, 0])
            self.put([loop.SIZES, Each(k), reach, reach, self.table("mid", source), below, Each(1)])
        self._charge(layer, "t", entries, below, image, depths, centred=centred)
        floor = self.table("charged", name, 1)
        self.put([loop.FLOOR, Each(1), ("sum", name), ("sum", source), floor], [2 * kit.coefficients.eta, layer.floor_share])
        return ["t", "charged", *(["image", "point", "reach"] if centred else [])]

    def _charge(self, layer: Layer, what: str, entries: Key, below: Key, image: Value, depths: Value, *, centred: bool) -> None:
        name, first = layer.node.name, what == "first"
        n, k = self._size(name), self._size(layer.node.inputs[0])
        pending = 0.0 if first else self.kit.pending.get(name, 0.0)
        f = charge_factors(self.kit.coefficients, layer, n, k, centred=centred, pending=pending)
        read: list[Value] = [("error", name), ("magnitude", name), entries, self.fix(layer.babs), n, below, Each(1), image, depths]
        t = self.table(what, name)
        out: list[Value] = [0, t, 0] if first else [("size", name), self.table("exact_t", name), t]
        self.put([loop.CHARGE, Each(n), *read, *out], [f.sized, f.offset, f.imaged, f.nu, f.u, f.eta, f.pending])

    def _product(self, layer: Layer, x: Key, out: Key, *, image: bool = False) -> list[Value]:
        """W x + b, or of its magnitudes without b."""
        k, n = (self._size(name) for name in (layer.node.inputs[0], layer.node.name))
        across = self.fix(layer.across if image else layer.sizes_across)
        return [loop.PRODUCT, Each(1), k, n, x, across, out, *([self.fix(layer.b), 0] if image else [])]
