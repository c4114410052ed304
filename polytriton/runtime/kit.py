"""What every batch of a network shares: weights in the coefficient type and the frames of all tables."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from polytriton.arithmetic import Arithmetic
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan, Program, Step, extent
from polytriton.rounding import dot_error, one_rounding
from polytriton.runtime.cpu.blocks import Packed, pack
from polytriton.runtime.cpu.torch_backend import Frame
from polytriton.runtime.forward import Forward
from polytriton.runtime.layers import Layer, flush

COMPACT = 1 << 14  # weights below which leaving some out gains nothing


@dataclass(frozen=True)
class Weights:
    """A layer in the coefficient type, as back-substitution multiplies by it."""

    back: Tensor  # linear: [outputs, inputs]; conv: [Co, Ci/g, kh, kw]; scale: [h, w, c]
    rows: Tensor  # what an identity row becomes: linear [outputs, inputs], conv [Co, kh', kw', Ci]


class Kit:
    """What does not depend on the batch: weights in the coefficient type and the frames of all tables."""

    def __init__(self, net: Net, plan: Plan, forward: Forward, coefficients: Arithmetic, blocks: Set[str] = frozenset()) -> None:
        """`blocks`: the operators whose float32 products sum in blocks."""
        self.net, self.plan, self.forward, self.coefficients = net, plan, forward, coefficients
        self.blocks, self._packed = blocks, dict[str, Packed]()
        self.nodes = net.by_name
        self.frames = {n.name: Frame(*extent(n), plan.halos.get(n.name, (0, 0, 0, 0))) for n in net}
        self.users = net.users()
        self.pending = dict.fromkeys(plan.pending, one_rounding(coefficients.u))  # relative to |M_j x_j|
        self.weights = {name: self._weights(layer) for name, layer in forward.layers.items()}
        self._bias: dict[tuple[str, int], Tensor] = {}
        self._endings: dict[tuple[str, str], list[int]] = {}
        self._narrows: dict[tuple[str, str], bool] = {}
        self._steps: dict[tuple[Step, int], int] = {}
        self._numbers = count(1)  # no two threads get the same

    def _weights(self, layer: Layer) -> Weights:
        node, dtype = layer.node, self.coefficients.dtype
        given = layer.short if layer.short is not None and dtype == torch.float32 else layer.stored
        w = given.to(dtype)  # the same memory where the type is the same, and nothing is flushed
        if self.coefficients.flushes and bool(((w.abs() < self.coefficients.eta) & (w != 0)).any()):
            w = flush(w, self.coefficients.eta)
        if node.op != "conv":
            return Weights(w, w)
        g, (kh, kw), (dh, dw) = node.integer("g", 1), node.ints("k"), node.ints("d", (1, 1))
        co, ci = w.shape[:2]
        spread = w.new_zeros(co, (kh - 1) * dh + 1, (kw - 1) * dw + 1, ci * g)
        for k in range(g):
            part = w[k * co // g : (k + 1) * co // g].permute(0, 2, 3, 1)
            spread[k * co // g : (k + 1) * co // g, ::dh, ::dw, k * ci : (k + 1) * ci] = part
        return Weights(w.contiguous(memory_format=torch.channels_last), spread)

    def sums_in_blocks(self, layer: Layer) -> bool:
        """Whether the order in which the layer's products are summed is known (blocks.py)."""
        node = layer.node
        return node.op in self.blocks and node.integer("g", 1) == 1

    def multiplier(self, name: str) -> Tensor | Packed:
        """A layer as rows are multiplied by it."""
        if not self.sums_in_blocks(self.forward.layers[name]):
            return self.weights[name].back
        if name not in self._packed:
            self._packed[name] = pack(self.weights[name].back)
        return self._packed[name]

    def list_tables(self) -> list[Tensor]:
        """Everything that rows read and that does not depend on a batch."""
        weights = [w for layer in self.weights.values() for w in (layer.back, layer.rows)]
        biases = [layer.b for layer in self.forward.layers.values()]
        return [*weights, *biases, *self._bias.values(), *(packed.panels for packed in self._packed.values())]

    def candidate_error(self, name: str, terms: int) -> float:
        """What a candidate bound is charged for a node's part, a sum of so many terms, relative to its weight: what the sum rounds, and
        coefficients that a ReLU multiplied, whose rounding is charged where their node is substituted.
        """
        return dot_error(terms) + self.pending.get(name, 0.0)

    def endings(self, program: Program) -> list[int]:
        """For each step a number of this and all steps behind it: the same in every program that ends so."""
        key = program.kind, program.target
        if key not in self._endings:
            found = [0]
            for step in reversed(program.steps):
                found.append(self._steps.setdefault((step, found[-1]), next(self._numbers)))
            self._endings[key] = found[:0:-1]
        return self._endings[key]

    def narrows(self, program: Program) -> bool:
        """Whether rows of one image may leave out cells that rows of several could not (`Tables.active`)."""
        key = program.kind, program.target
        if key not in self._narrows:
            self._narrows[key] = any(step.op == "linear" and self.is_large(step.node) for step in program.steps)
        return self._narrows[key]

    def is_large(self, name: str) -> bool:
        """Whether a dense layer has so many weights that leaving some out gains time."""
        return self.weights[name].back.numel() >= COMPACT

    def bias_line(self, name: str, width: int) -> Tensor:
        """The bias over a window `width` cells wide: one line for a convolution, the whole image otherwise; float64."""
        key = (name, width)
        if key not in self._bias:
            layer = self.forward.layers.get(name)
            channels = self.frames[name].channels
            if layer is None:
                line = torch.zeros(1, width * channels, dtype=torch.float64, device=self.forward.device)
            elif layer.node.op == "conv":
                line = layer.b.repeat(width)[None]
            else:
                line = layer.b.reshape(layer.b.shape[0], -1)
            self._bias[key] = line.contiguous()
        return self._bias[key]

    def varies(self, name: str) -> bool:
        """Whether the bias differs from cell to cell, so that a window needs a table of it."""
        return self.nodes[name].op == "scale" and len(self.nodes[name].shape) == 3
