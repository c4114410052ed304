"""Where the numbers of a batch lie: a tensor for every symbol of a script (ir/script.py), of one batch size.

They stay where they are, so that what was bound to them can be played again, or captured as a graph. Callers get copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.ir.script import BOXES
from polytriton.kernels import cell_kernels
from polytriton.kernels.affine import AFFINE
from polytriton.runtime.forward import AffineParts, Boxes
from polytriton.runtime.gpu.kernel_arguments import LAYER

if TYPE_CHECKING:
    from polytriton.runtime.gpu.triton_backend import TritonBackend

NOBODY = -1  # a serial that no tables have


def copy_boxes(boxes: Boxes) -> Boxes:
    """In memory of their own: one piece, in which every tensor begins where wide loads may."""
    groups = (boxes.lo, boxes.hi, boxes.magnitude, boxes.error)
    values = [v for group in groups for v in group.values()]
    split = [n for v in values for n in (v.numel(), -v.numel() % 16)]
    flat = torch.empty(sum(split), dtype=torch.float64, device=values[0].device).split(split)[::2]
    copies = [to.view(v.shape) for to, v in zip(flat, values, strict=True)]
    torch._foreach_copy_(copies, values)
    rest = iter(copies)
    lo, hi, magnitude, error = ({name: next(rest) for name in group} for group in groups)
    return Boxes(lo, hi, magnitude, error, dict(boxes.winners))


def by_kind(boxes: Boxes) -> dict[str, dict[str, Tensor]]:
    """The parts of boxes by the kinds of symbols that stand for them."""
    return {"low": boxes.lo, "high": boxes.hi, "magnitude": boxes.magnitude, "own": boxes.error}


class Places:
    """`serial`: whose numbers (`Tables.serial`) lie in the boxes and in the tables `held`."""

    def __init__(self, backend: TritonBackend, batch: int) -> None:
        self.backend, self.batch = backend, batch
        self.serial, self.held = NOBODY, frozenset[str]()
        self.tensors: dict[str, Tensor] = {}
        self._shown: dict[tuple[str, int, int], list[tuple[str, str, Tensor]]] = {}

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def tensor(self, symbol: str) -> Tensor:
        """Zero at first, as margins of tables stay."""
        if symbol not in self.tensors:
            kind, _, name = symbol.partition(":")
            if kind in LAYER:
                return self.backend.weight(kind, name)
            if symbol == "found":
                return self.backend.counts()[:1]
            self.tensors[symbol] = self._make(kind, name)
        return self.tensors[symbol]

    def put(self, symbol: str, value: Tensor) -> None:
        """A table that the host has made."""
        if symbol not in self.tensors:
            self.tensors[symbol] = torch.empty_like(value, memory_format=torch.contiguous_format)
        self.tensors[symbol].copy_(value)

    def view(self, symbol: str, boxes: Boxes) -> None:
        """What a symbol stands for becomes part of the boxes, if it is of a box."""
        kind, _, name = symbol.partition(":")
        to = by_kind(boxes).get(kind)
        if to is not None:
            to[name] = self.tensor(symbol)

    def show(self, section: str, begin: int, end: int, boxes: Boxes) -> None:
        """What these entries of a section have made of boxes becomes part of them."""
        if (section, begin, end) not in self._shown:
            made = (s for entry in self.backend.script.sections[section][begin:end] for s in entry.writes)
            split = ((s, *s.partition(":")[::2]) for s in made)
            self._shown[section, begin, end] = [(kind, name, self.tensor(s)) for s, kind, name in split if kind in BOXES]
        to = by_kind(boxes)
        for kind, name, tensor in self._shown[section, begin, end]:
            to[kind][name] = tensor

    def sums(self, name: str) -> AffineParts:
        """What a layer's kernel has left of its sums."""
        node, semantics = self.backend.kit.nodes[name], self.backend.kit.forward.semantics
        h, w, c = extent(node)
        centre, spread = (self.tensor(s).view(-1)[: self.batch * h * w * c].view(self.batch, h, w, c) for s in ("centre", "spread"))
        terms = None
        if not semantics.real and "summands" in node.attrs:
            terms = self.tensor(f"given:{name}")[:1].view(1, 1, 1, 1)
        elif not semantics.real:
            g = node.integer("g", 1)
            shape = (self.batch, 1, 1, 1) if node.op == "linear" else (self.batch, h, w, g)
            terms = self.tensor("terms")[: torch.Size(shape).numel()].view(shape).repeat_interleave(c // g if g > 1 else 1, 3)
        return AffineParts(centre, spread, self.tensor(f"magnitude:{name}"), terms)

    def _make(self, kind: str, name: str) -> Tensor:
        backend, batch = self.backend, self.batch
        if kind == "images":
            return torch.full((1,), batch, dtype=torch.int64, device=backend.device)
        if kind == "given":
            layer, (h, w, _) = backend.kit.forward.layers[name], extent(backend.kit.nodes[name])
            count = batch * (1 if layer.node.op == "linear" else h * w * layer.node.integer("g", 1))
            return torch.full((count,), float(layer.summands or 0), dtype=torch.float64, device=backend.device)
        shape, dtype = self._scratch(kind) if not name else self._like(kind, name)
        return torch.zeros(shape, dtype=dtype, device=backend.device)

    def _scratch(self, kind: str) -> tuple[tuple[int, ...], torch.dtype]:
        """As large as the largest node needs."""
        nodes, emulate = self.backend.kit.net.nodes, self.backend.sizes.emulate
        if kind == "open":
            return (self.batch * max(cell_kernels.parts(n, emulate) for n in nodes),), torch.int64
        if kind == "at":
            return (self.batch * max(n.size for n in nodes),), torch.int64
        assert kind in ("centre", "spread", "terms"), kind
        layers = [(n, extent(n), n.integer("g", 1)) for n in nodes if n.op in AFFINE]
        counts = [(1 if n.op == "linear" else h * w * g) if kind == "terms" else n.size for n, (h, w, _), g in layers]
        return (self.batch * max(counts),), torch.float64

    def _like(self, kind: str, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of what is said of a node."""
        backend, batch = self.backend, self.batch
        node, frame = backend.kit.nodes[name], backend.kit.frames[name]
        lines = batch * cell_kernels.parts(node, backend.sizes.emulate)
        if kind in ("low", "high", "magnitude", "own", "first"):
            return (batch, *extent(node)), torch.float64
        if kind in ("biggest", "total"):
            return (lines,), torch.float64
        if kind in ("told", "told_after"):
            return (lines, 2), torch.float64
        if kind in ("floor", "underflow"):
            return (batch,), torch.float64
        assert kind in cell_kernels.TABLES, kind
        return (batch, *frame.padded, frame.channels), backend.kit.coefficients.dtype
