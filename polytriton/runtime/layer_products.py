"""Products of layers' weights with boxes' cells in float64, by plain sums, and counts of what meets in them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polytriton.ir.net import Net, Node
from polytriton.ir.plan import extent
from polytriton.runtime.cpu import box_convs, cells, vectors
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.layers import Layer
from polytriton.runtime.settings import allowed_threads

LONG = 2 * 10**7  # operations: some milliseconds


class LayerProducts:
    """Of one network's layers, over values [batch, height, width, channels]."""

    def __init__(self, net: Net, device: torch.device) -> None:
        self.nodes, self.device = net.by_name, device

    def readers(self, layer: Layer, live: Tensor) -> Tensor:
        """At most how many live outputs read each cell of the operand, [batch, h, w, 1 or c]: small integers, exact."""
        node = layer.node
        if node.op == "scale":
            return torch.ones_like(live, dtype=torch.float64)
        if node.op == "linear":
            return live.sum((1, 2, 3), keepdim=True).double()
        g, (kh, kw) = node.integer("g", 1), node.ints("k")
        p, (channels, h, w) = node.ints("p", (0, 0, 0, 0)), self.nodes[node.inputs[0]].shape
        y = F.conv_transpose2d(
            self._by_group(live, g), self._ones(g, kh, kw), None, node.ints("s", (1, 1)), 0, 0, g, node.ints("d", (1, 1))
        )
        y = _cut(y, (p[0], p[1]), (h, w))
        return y.permute(0, 2, 3, 1).double().repeat_interleave(channels // g if g > 1 else 1, 3)

    def nonzero_terms(self, layer: Layer, present: Tensor) -> Tensor:
        """At most how many present operands each output sums, [batch, h, w, 1 or c]."""
        node = layer.node
        if node.op == "scale":
            return present.double()
        if node.op == "linear":
            return present.sum((1, 2, 3), keepdim=True).double()
        g, (kh, kw) = node.integer("g", 1), node.ints("k")
        p = node.ints("p", (0, 0, 0, 0))
        flags = self._by_group(present, g)
        padded = _cut(flags, (-p[0], -p[1]), (flags.shape[2] + p[0] + p[2], flags.shape[3] + p[1] + p[3]))
        y = F.conv2d(padded, self._ones(g, kh, kw), None, node.ints("s", (1, 1)), 0, node.ints("d", (1, 1)), g)
        return y.permute(0, 2, 3, 1).repeat_interleave(node.shape[0] // g if g > 1 else 1, 3)

    def _by_group(self, flags: Tensor, g: int) -> Tensor:
        """How many channels of each group are set, [batch, g, h, w]."""
        b, h, w, c = flags.shape
        return flags.reshape(b, h, w, g, c // g).sum(-1).permute(0, 3, 1, 2).double()

    def _ones(self, g: int, kh: int, kw: int) -> Tensor:
        return torch.ones(g, 1, kh, kw, dtype=torch.float64, device=self.device)

    def box_sums(self, layer: Layer, mid: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """W mid, |W| rad and `wabs` size, and of how many operands that are not zero each is a sum, where that is known by the way; `both`:
        rad and, behind it, size. |W| is not `wabs` where something cancelled in a merge: the radius does not count it.
        """
        rad, size = both.chunk(2)
        found, terms = self._sum_together(layer, mid, rad, size)
        if found:
            centre, spread, magnitude = found
            return centre, spread, magnitude, terms
        if layer.cancelled:
            spread, magnitude = self.product(layer, layer.w.abs(), rad), self.sizes_product(layer, size)
        else:
            spread, magnitude = self.sizes_product(layer, both).chunk(2)
        return self.layer_product(layer, mid), spread, magnitude, None

    def centre_sums(self, layer: Layer, point: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """W point and `wabs` reach."""
        found, _ = self._sum_together(layer, point, reach)
        return (found[0], found[1]) if found else (self.layer_product(layer, point), self.sizes_product(layer, reach))

    def _sum_together(self, layer: Layer, *operands: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """The products of the first operand with W, of the others with |W|, by a loop that reads a weight once; none where none does."""
        if box_convs.serves(layer, operands[0]):
            ops = 2 * len(operands) * len(operands[0]) * layer.node.size * layer.terms
            shape = extent(self.nodes[layer.node.inputs[0]])
            return box_convs.sum_products(layer, shape, operands, allowed_threads() if ops >= LONG else 1)
        if layer.short is None or layer.cancelled:
            return [], None
        found = vectors.sum_products(layer.short, [x.flatten(1) for x in operands])
        return [self._reshape(v, layer.node) for v in found or []], None

    def layer_product(self, layer: Layer, x: Tensor) -> Tensor:
        """W x in float64, plain summation."""
        return self._multiply(layer, x, False)

    def sizes_product(self, layer: Layer, x: Tensor) -> Tensor:
        """The same of `wabs`."""
        return self._multiply(layer, x, True)

    def _multiply(self, layer: Layer, x: Tensor, sizes: bool) -> Tensor:
        short = None if sizes and layer.cancelled else layer.short
        if short is not None and vectors.serves(short, x):
            return self._reshape(vectors.multiply_vectors(short, x.flatten(1), sizes), layer.node)
        if layer.is_small and cells.serves(x):
            return self._reshape(vectors.multiply(x.flatten(1), layer.sizes_across if sizes else layer.across), layer.node)
        return self.product(layer, layer.wabs if sizes else layer.w, x)

    def product(self, layer: Layer, w: Tensor, x: Tensor) -> Tensor:
        """w x in float64, plain summation, for a matrix of the layer's shape; threads take boxes or outputs of a long one each."""
        node, threads = layer.node, allowed_threads() if x.device.type == "cpu" else 1
        by_boxes = len(x) >= threads
        shares = threads > 1 and node.op != "scale" and (by_boxes or node.integer("g", 1) == 1)
        if not shares or 2 * len(x) * node.size * layer.terms < LONG:
            return self._reshape(self._plain(node, w, x), node)
        parts = [(w, some) for some in x.chunk(threads)] if by_boxes else [(some, x) for some in w.chunk(threads)]
        made: list[Tensor] = [x] * len(parts)

        def work(k: int) -> None:
            made[k] = self._plain(node, *parts[k])

        share_out(work, range(len(parts)), threads)
        return self._reshape(torch.cat(made, 0 if by_boxes else -1), node)

    def _plain(self, node: Node, w: Tensor, x: Tensor) -> Tensor:
        """The product of some boxes with a layer, or with some of its outputs; of a dense layer [batch, outputs]."""
        if node.op == "linear":
            return x.flatten(1) @ w.T
        if node.op == "scale":
            return x * w
        p = node.ints("p", (0, 0, 0, 0))
        padded = _cut(x.permute(0, 3, 1, 2), (-p[0], -p[1]), (x.shape[1] + p[0] + p[2], x.shape[2] + p[1] + p[3]))
        y = F.conv2d(padded, w, None, node.ints("s", (1, 1)), 0, node.ints("d", (1, 1)), node.integer("g", 1))
        return y.permute(0, 2, 3, 1).contiguous()

    def _reshape(self, flat: Tensor, node: Node) -> Tensor:
        return flat.reshape(len(flat), *extent(node))


def _cut(x: Tensor, start: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """x[..., H, W] from `start` on, `size` cells, zeros where x ends (or has not begun)."""
    for axis, first, length in ((2, start[0], size[0]), (3, start[1], size[1])):
        a, b = max(0, first), min(x.shape[axis], first + length)
        part = x.narrow(axis, min(a, x.shape[axis]), max(0, b - a))
        before, after = max(0, a - first) if b > a else length, max(0, first + length - max(a, b)) if b > a else 0
        x = F.pad(part, (0, 0, before, after) if axis == 2 else (before, after)) if before or after else part
    return x
