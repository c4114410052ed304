"""Boxes: the interval pass, in float64 with outward rounding, and the magnitudes that the error vectors are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from polytriton.errors import UnsupportedModel
from polytriton.ir.addends import find_addends, is_settled
from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.kernels.affine import count_source
from polytriton.limit import go_on
from polytriton.runtime.cpu import affine_cells, cells
from polytriton.runtime.curves import curve_range
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.layer_products import LayerProducts
from polytriton.runtime.layers import Layer, load_layer, load_moves, to_physical
from polytriton.runtime.planes import product_range
from polytriton.runtime.relax import Winners, maxpool_winners
from polytriton.runtime.soundness import (
    Semantics,
    converts_nothing,
    deployed_error,
    deployed_numbers,
    elementwise_error,
    flush_loss,
    flushes,
    gamma,
    up,
)

INF = float("inf")
# what no deployed semantics states of an operator, and what else to do about it
UNSTATED = {
    "LayerNormalization": (
        "in what order a kernel of it computes",
        ", or export it in the operators that it is made of (torch does for opset 16 and lower): those are covered",
    )
}


@dataclass
class Boxes:
    """Bounds of every node for a batch of input boxes; float64 [batch, height, width, channels]."""

    lo: dict[str, Tensor]
    hi: dict[str, Tensor]
    magnitude: dict[str, Tensor] = field(default_factory=dict)  # S = wabs |operand| of affine nodes
    error: dict[str, Tensor] = field(default_factory=dict)  # e of every node that has one
    winners: dict[str, Winners] = field(default_factory=dict)
    ball: InputBalls | None = None  # in which the inputs lie too, [batch, values] in the user's order
    signed: dict[str, Tensor] = field(default_factory=dict)  # not zero where rows may bring multipliers of a ReLU's operand's sign
    tables: object = None  # what the engine derived from these boxes

    @property
    def batch(self) -> int:
        return next(iter(self.lo.values())).shape[0]

    def absmax(self, name: str) -> Tensor:
        return torch.maximum(self.lo[name].abs(), self.hi[name].abs())

    def pick(self, images: Tensor) -> Boxes:
        """The same bounds for some of the images."""

        def some(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {k: v[images] for k, v in values.items()}

        winners = {k: Winners(w.tap[images], w.sure[images], w.most[images]) for k, w in self.winners.items()}
        bounds = some(self.lo), some(self.hi), some(self.magnitude), some(self.error)
        return Boxes(*bounds, winners, None if self.ball is None else self.ball.pick(images), some(self.signed))


@dataclass(frozen=True)
class AffineParts:
    """W x + b over boxes, float64 [batch, height, width, channels]; see kernels.device.forward for what each promises."""

    centre: Tensor
    spread: Tensor
    magnitude: Tensor
    terms: Tensor | None  # [batch, height, width, 1 or channels]: how many operands each output sums, None where nobody asked


def _sane(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """NaN means no bound."""
    return torch.nan_to_num(lo, nan=-INF, posinf=-INF, neginf=-INF), torch.nan_to_num(hi, nan=INF, posinf=INF, neginf=INF)


def _bound_where_finite(lo: Tensor, hi: Tensor, f_lo: Tensor, f_hi: Tensor) -> tuple[Tensor, Tensor]:
    """f's box where the operand has one; without a bound the deployed operand may be NaN, and so may f of it."""
    wild = ~(torch.isfinite(lo) & torch.isfinite(hi))
    return _sane(torch.where(wild, -INF, f_lo), torch.where(wild, INF, f_hi))


def positive_part(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The box of an exact ReLU."""
    return cells.positive_cells(lo, hi) if cells.serves(lo) else _bound_where_finite(lo, hi, lo.clamp(min=0), hi.clamp(min=0))


def split_boxes(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes' centres, and behind one another, [2 batch, ...], their half widths and their greatest magnitudes."""
    if affine_cells.serves(lo):
        return affine_cells.split_boxes(lo, hi)
    mid = 0.5 * lo + 0.5 * hi
    rad = up(torch.maximum(hi - mid, mid - lo))
    return mid, torch.cat([rad, mid.abs() + rad])


def bound_outputs(centre: Tensor, spread: Tensor, e: Tensor, magnitude: Tensor, babs: Tensor, rounds: float) -> tuple[Tensor, Tensor]:
    """A layer's outputs around their centre: what the operand's box makes of them, the deployed layer's error, and our own roundings, so
    many of their magnitudes.
    """
    if affine_cells.serves(centre):
        return affine_cells.bound_outputs(centre, spread, e, magnitude, babs, rounds)
    width = up(spread + e + rounds * (magnitude + babs)) + 1e-300
    return _sane(centre - width, centre + width)


def interval_rounds(layer: Layer) -> float:
    """How many of its magnitudes a layer's box is wider for our own roundings."""
    return gamma(layer.terms + 4, 2.0**-53) + layer.rho


class Forward(LayerProducts):
    """Transfers boxes through one node at a time, by tensor operations."""

    def __init__(self, net: Net, semantics: Semantics, device: torch.device) -> None:
        if net.input.integer("half") and not semantics.real:
            raise UnsupportedModel(
                f"the network {net.name} stores numbers in float16: no deployed semantics covers what that rounds",
                "use --semantics real (in Python semantics='real'), or convert the model to float32",
            )
        if (name := net.input.attrs.get("unstated")) and not semantics.real:
            what, remedy = UNSTATED.get(str(name), ("its error", ""))
            raise UnsupportedModel(
                f"the network {net.name} has a {name}, and no deployed semantics states {what}",
                "use --semantics real (in Python semantics='real')" + remedy,
            )
        super().__init__(net, device)
        self.net, self.semantics = net, semantics
        self.addends = find_addends(net)
        self.shared = {} if semantics.real else self.addends.shared
        self.layers: dict[str, Layer] = {}
        for n in net:
            if n.op in ("linear", "conv", "scale"):
                go_on()
                self.layers[n.name] = load_layer(net, n, device)
        self.moves = {n.name: load_moves(net, n, device) for n in net if n.op == "gather"}
        self._summed: dict[str, dict[str, Tensor]] = {}

    def start(self, lo: Tensor, hi: Tensor, ball: InputBalls | None = None) -> Boxes:
        """Boxes of the input node from boxes of the user's input, [batch, values] in the user's order, and the ball that it lies in."""
        name, (low, high) = self.net.input.name, (self.arrange(v) for v in (lo, hi))
        if not self.semantics.real:  # a ReLU or max pool may read the input directly, and flush what is subnormal there
            ends = (low, low.clamp(max=0)), (high, high.clamp(min=0))
            low, high = (torch.where(v.abs() < self.semantics.eta, end, v) for v, end in ends)
        return Boxes({name: low}, {name: high}, ball=ball)

    def arrange(self, values: Tensor) -> Tensor:
        """Numbers of the user's inputs, [batch, values], as the input node's cells; 0 where a cell is none of them."""
        node = self.net.input
        take = self.net.weight(node, "take")
        if take is not None:
            index = torch.tensor(take).to(self.device)
            values = torch.where(index >= 0, values[:, index.clamp(min=0)], torch.zeros((), dtype=values.dtype, device=self.device))
        return to_physical(values, node.shape)

    def arranged_ball(self, ball: InputBalls) -> InputBalls | None:
        """Over the input node's cells. None where two of them are one input: twice moved it would count twice in the norm."""
        take = self.net.weight(self.net.input, "take")
        used = [] if take is None else [int(k) for k in take.ravel() if k >= 0]
        return ball.move_cells(self.arrange) if len(set(used)) == len(used) else None

    def kernel_weights(self, name: str) -> dict[str, Tensor]:
        """A layer's weights as the interval pass's kernels read them: outputs first, then the reduction in the kernel's order."""
        if name not in self._summed:
            layer = self.layers[name]
            w, wabs = (v.permute(0, 2, 3, 1).contiguous() if layer.node.op == "conv" else v for v in (layer.w, layer.wabs))
            self._summed[name] = {"w": w, "wabs": wabs, "b": layer.b.contiguous(), "babs": layer.babs}
        return self._summed[name]

    def transfer(self, node: Node, boxes: Boxes, parts: AffineParts | None = None) -> None:
        """Adds the node's box, magnitude and error from its operands' boxes; `parts`: a layer's sums, where a kernel has made them."""
        if node.op in ("linear", "conv", "scale"):
            self._affine(node, boxes, parts)
        elif node.op in ("add", "sub"):
            self._sum(node, boxes)
        elif node.op == "relu":
            self._relu(node, boxes)
        elif node.op == "mul":
            self._product(node, boxes)
        elif node.op in CURVES:
            self._curve(node, boxes)
        elif node.op == "maxpool":
            self._maxpool(node, boxes)
        elif node.op == "concat":
            axis = {0: 3, 1: 1, 2: 2}[node.integer("axis")] if len(node.shape) == 3 else None
            boxes.lo[node.name], boxes.hi[node.name] = (self._concat(node, d, axis) for d in (boxes.lo, boxes.hi))
        elif node.op == "gather":
            cells = self.moves[node.name].cells
            for d in (boxes.lo, boxes.hi):
                flat = d[node.inputs[0]].flatten(1)
                picked = torch.where(cells >= 0, flat[:, cells.clamp(min=0)], torch.zeros((), dtype=flat.dtype, device=self.device))
                d[node.name] = self._reshape(picked, node)
        else:
            raise AssertionError(node.op)

    def _concat(self, node: Node, d: dict[str, Tensor], axis: int | None) -> Tensor:
        parts = [d[i] for i in node.inputs]
        if axis is not None:
            return torch.cat(parts, axis)
        shapes = [self.nodes[i].shape for i in node.inputs]
        logical = [p.reshape(len(p), *s) for p, s in zip(parts, shapes, strict=True)]
        return self._reshape(torch.cat(logical, node.integer("axis") + 1), node)

    def _affine(self, node: Node, boxes: Boxes, parts: AffineParts | None) -> None:
        """W x + b over [lo, hi] as centre and radius: four rounded results, each with its gamma64 charged."""
        layer, real = self.layers[node.name], self.semantics.real
        mid, both = split_boxes(boxes.lo[node.inputs[0]], boxes.hi[node.inputs[0]])
        # what is exactly zero (a settled ReLU's output) takes part in no rounding, unless the layer gives its count of summands
        counted = "none" if self._errs_in_loop(layer, mid) else count_source(node, real)
        parts = parts or self._parts(layer, mid, both, counted)
        magnitude = parts.magnitude
        e = torch.zeros_like(magnitude) if real else self._layer_error(layer, boxes, both.chunk(2)[1], parts)
        given = parts.centre, parts.spread, e, magnitude, layer.babs, interval_rounds(layer)
        boxes.lo[node.name], boxes.hi[node.name] = bound_outputs(*given)
        boxes.magnitude[node.name], boxes.error[node.name] = magnitude, e

    def _errs_in_loop(self, layer: Layer, like: Tensor) -> bool:
        """Whether one loop says what a deployed layer errs: a dense one none of whose operands is flushed to zero by its conversion."""
        return layer.node.op == "linear" and affine_cells.serves(like) and (converts_nothing(layer.node) or not flushes(self.semantics))

    def error_numbers(self, layer: Layer) -> tuple[float, list[float]]:
        """Of a deployed layer: how many summands it is given, below zero where those that are present count, and its `deployed_numbers`."""
        node, sem = layer.node, self.semantics
        summands = float(layer.summands or 0) if count_source(node, sem.real) == "given" else -1.0
        beside, products = self.addends.beside[node.name], node.integer("products", 1)
        sem = sem.plain if converts_nothing(node) else sem
        return summands, deployed_numbers(sem, layer.most, layer.ops, beside, products, layer.w_rowsum, layer.w_max, interval_rounds(layer))

    def _layer_error(self, layer: Layer, boxes: Boxes, xabs: Tensor, parts: AffineParts) -> Tensor:
        """e of a deployed layer, whose operand is at most `xabs`."""
        e = self._own_layer_error(layer, xabs, parts)
        for i in self.shared.get(layer.node.name, ()):
            e = up(e + 2 * self.sizes_product(layer, self._own_error(i, boxes).expand_as(xabs)))
        return e

    def _own_layer_error(self, layer: Layer, xabs: Tensor, parts: AffineParts) -> Tensor:
        node, sem = layer.node, self.semantics
        if self._errs_in_loop(layer, xabs):
            return affine_cells.err_outputs(xabs, parts.magnitude, layer.babs, *self.error_numbers(layer))
        nonzero = parts.magnitude if parts.terms is None else parts.terms
        flushed = None
        if flushes(sem):
            # what a conversion changes beyond its relative error: a flushed operand, or one rounded away from zero
            w_lost, x_lost = (v.clamp(max=sem.eta_in) + sem.sub_in for v in (layer.wabs, xabs))
            flushed = up(self.product(layer, w_lost, xabs + x_lost) + self.sizes_product(layer, x_lost))
        products = layer.node.integer("products", 1)
        widest = xabs.amax((1, 2, 3), keepdim=True)
        if converts_nothing(node):
            sem, flushed = sem.plain, None
        met = nonzero + self.addends.beside[node.name]
        return deployed_error(
            sem, layer.most, met, layer.ops, products, parts.magnitude, layer.babs, widest, layer.w_rowsum, flushed, layer.w_max,
            self.semantics.passes * self.addends.late.get(node.name, 0),
        )  # fmt: skip

    def _parts(self, layer: Layer, mid: Tensor, both: Tensor, terms: str) -> AffineParts:
        """What kernels.device.forward computes, on the host; `both`: half widths and, behind them, magnitudes."""
        centre, spread, magnitude, present = self.box_sums(layer, mid, both)
        count = None
        if terms == "present":
            count = self.nonzero_terms(layer, both.chunk(2)[1] > 0) if present is None else present
        elif terms == "given":
            count = torch.full((1, 1, 1, 1), float(layer.summands or 0), dtype=torch.float64, device=self.device)
        return AffineParts(centre + layer.b, up(spread), up(magnitude), count)

    def _sum(self, node: Node, boxes: Boxes) -> None:
        a, b = node.inputs
        lo_b, hi_b = (boxes.lo[b], boxes.hi[b]) if node.op == "add" else (-boxes.hi[b], -boxes.lo[b])
        magnitude = up(boxes.absmax(a) + boxes.absmax(b))
        e = elementwise_error(self.semantics, self.semantics.passes * self.addends.sums[node.name], magnitude)
        for i in self.shared.get(node.name, ()):
            e = up(e + 2 * self._own_error(i, boxes))
        width = up(e + 2.0**-52 * magnitude)
        boxes.lo[node.name], boxes.hi[node.name] = _sane(boxes.lo[a] + lo_b - width, boxes.hi[a] + hi_b + width)
        boxes.error[node.name] = e

    def _own_error(self, name: str, boxes: Boxes) -> Tensor:
        """How far the node's executed value may lie from the exact one of its operands; the largest, where cells only moved."""
        if name in boxes.error:
            return boxes.error[name]
        node = self.nodes[name]
        found = [self._own_error(i, boxes).amax((1, 2, 3), keepdim=True) for i in node.inputs if not is_settled(node)]
        return torch.stack([torch.zeros(boxes.batch, 1, 1, 1, dtype=torch.float64, device=self.device), *found]).amax(0)

    def _relu(self, node: Node, boxes: Boxes) -> None:
        slope, source = node.number("slope"), node.inputs[0]
        lo, hi = boxes.lo[source], boxes.hi[source]
        if slope in (0.0, 1.0):
            boxes.lo[node.name], boxes.hi[node.name] = positive_part(lo, hi) if slope == 0.0 else _bound_where_finite(lo, hi, lo, hi)
            return
        ends = [torch.where(v >= 0, v, slope * v) for v in (lo, hi)]
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        crosses = (lo < 0) & (hi > 0)
        low = torch.where(crosses, low.clamp(max=0.0), low)
        high = torch.where(crosses, high.clamp(min=0.0), high)
        magnitude = up(torch.maximum(low.abs(), high.abs()))
        e = elementwise_error(self.semantics, 1, magnitude, slope)
        width = up(e + 2.0**-52 * magnitude) + 1e-300  # a product may underflow, a sum cannot
        boxes.lo[node.name], boxes.hi[node.name] = _bound_where_finite(lo, hi, low - width, high + width)
        boxes.error[node.name] = e

    def _product(self, node: Node, boxes: Boxes) -> None:
        a, b = node.inputs
        lo, hi = (boxes.lo[a], boxes.lo[b]), (boxes.hi[a], boxes.hi[b])
        low, high = product_range(lo, hi)
        magnitude = up(torch.maximum(low.abs(), high.abs()))
        flushed = self._flush_cost(boxes.absmax(a), boxes.absmax(b))
        e = elementwise_error(self.semantics, 1, magnitude) + flushed
        if node.integer("converts") and not self.semantics.real:
            # onnxruntime puts the operands' factors behind the sums: there they enlarge what a product loses below the normal range
            e = e + up(self._factor(a) * self._factor(b) * (flushed + flush_loss(self.semantics.eta)))
        if node.integer("converts") and self.semantics.u_in:
            e = torch.full_like(e, INF)
        width, wild = up(e), ~(torch.isfinite(lo[1]) & torch.isfinite(hi[1]))
        found = _bound_where_finite(lo[0], hi[0], low - width, high + width)
        boxes.lo[node.name], boxes.hi[node.name] = torch.where(wild, -INF, found[0]), torch.where(wild, INF, found[1])
        boxes.error[node.name] = e

    def _factor(self, name: str) -> float:
        """At most by how much scales enlarge what they make the node of, back to the last operator that is none and moves no cells."""
        node = self.nodes[name]
        if node.op in ("linear", "conv", "scale"):
            return (max(1.0, self.layers[name].w_max) if node.op == "scale" else 1.0) * 2.0 ** node.integer("gain")
        return 1.0 if is_settled(node) or node.op in ("add", "sub") else max(self._factor(i) for i in node.inputs)

    def _flush_cost(self, a: Tensor, b: Tensor) -> Tensor:
        """What flushing either factor to zero may cost a product."""
        return torch.zeros_like(a) if self.semantics.real else up(2 * self.semantics.eta * (a + b))

    def _curve(self, node: Node, boxes: Boxes) -> None:
        lo, hi = boxes.lo[node.inputs[0]], boxes.hi[node.inputs[0]]
        low, high = curve_range(node, lo, hi)
        e = self.semantics.function_error(node, torch.maximum(low.abs(), high.abs()), torch.maximum(lo.abs(), hi.abs()))
        boxes.lo[node.name], boxes.hi[node.name] = _bound_where_finite(lo, hi, low - up(e), high + up(e))
        boxes.error[node.name] = e

    def _maxpool(self, node: Node, boxes: Boxes) -> None:
        lo, hi = (self.taps(node, d[node.inputs[0]]) for d in (boxes.lo, boxes.hi))
        on_image = hi > -INF
        wild = (((lo == -INF) & on_image) | (hi == INF)).any(-1)
        low, high = lo.amax(-1), hi.amax(-1)
        boxes.lo[node.name], boxes.hi[node.name] = torch.where(wild, -INF, low), torch.where(wild, INF, high)
        boxes.winners[node.name] = maxpool_winners(lo, hi)

    def taps(self, node: Node, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, Ho, Wo, C, taps]; cells off the image are -inf."""
        (kh, kw), (sh, sw) = node.ints("k"), node.ints("s", (1, 1))
        (dh, dw), p = node.ints("d", (1, 1)), node.ints("p", (0, 0, 0, 0))
        x = F.pad(x, (0, 0, p[1], p[3], p[0], p[2]), value=-INF)
        ho, wo = node.shape[1:]
        parts = [
            x[:, i * dh : i * dh + (ho - 1) * sh + 1 : sh, j * dw : j * dw + (wo - 1) * sw + 1 : sw] for i in range(kh) for j in range(kw)
        ]
        assert len(parts) == prod((kh, kw))
        return torch.stack(parts, -1)
