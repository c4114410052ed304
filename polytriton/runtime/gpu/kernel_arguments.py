"""What kernels read besides rows and boxes, in the form they read it."""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.rounding import gamma
from polytriton.runtime.charges import charge_factors
from polytriton.runtime.kit import Kit
from polytriton.runtime.tables import Tables

WEIGHTS = ("weight", "rows")
SCALES = ("factor", "shift")
READERS = ("cell_starts", "cell_readers", "channel_starts", "channel_readers")
FORWARD = ("w", "wabs", "b", "babs")  # in float64, for boxes
FACTORS = ("numbers", "factors", "own_factors")  # what is charged
LAYER = (*WEIGHTS, *SCALES, *READERS, *FORWARD, *FACTORS, "bias")  # known from the network alone


def layer_tensor(kit: Kit, kind: str, name: str) -> Tensor:
    """A layer's weights; a scale's numbers, one image in its frame, for all images and rows; which cells of a gather read which."""
    node = kit.nodes[name]
    if kind == "bias":
        return kit.bias_line(name, 1)
    if kind in FORWARD:
        return kit.forward.kernel_weights(name)[kind]
    if kind in FACTORS:
        forward = kit.forward
        made = forward.error_numbers(forward.layers[name])[1] if kind == "numbers" else table_factors(kit, name, kind == "factors")
        return torch.tensor(made, dtype=torch.float64, device=kit.forward.device)
    if kind in READERS:
        moves, source = kit.forward.moves[name], kit.nodes[node.inputs[0]]
        index, size = (moves.cells, source.size) if kind.startswith("cell") else (moves.channels, extent(source)[2])
        assert index is not None
        return read_by(index, size)[kind.endswith("readers")]
    if kind == "shift":
        return kit.frames[name].table(kit.forward.layers[name].b[None])
    weights = kit.weights[name]
    if kind == "factor":
        return kit.frames[name].table(weights.back[None])
    held = weights.rows if kind == "rows" else weights.back
    if kind == "weight" and node.op == "conv":
        held = held.permute(2, 3, 0, 1)  # [KH, KW, CO, CI/G]
    return held.contiguous()


def table_factors(kit: Kit, name: str, product: bool) -> list[float]:
    """What charge_table and floors read: t's factors of the magnitude, of |b|, of |x|, of the operand's sum; 2 eta, the operand's share.

    Where `Tables` counts the live outputs that read a cell, a kernel charges K = the most that the layer can have: that costs a float32
    table the difference between at most 34 roundings and fewer, and a float64 table nothing that shows.
    """
    c, node, layer = kit.coefficients, kit.nodes[name], kit.forward.layers.get(name)
    by_magnitude = by_bias = by_value = share = 0.0
    if layer is not None:
        f = charge_factors(c, layer, node.size, kit.nodes[node.inputs[0]].size, centred=False, pending=0.0)
        most = float(c.product_error(torch.tensor(float(layer.fan), dtype=torch.float64)))
        by_magnitude = f.sized + (most * (1 + f.nu) if product else 0.0)
        by_bias, share = f.offset, layer.floor_share
    if product and node.op == "gather":
        repeats = kit.forward.moves[name].repeats
        by_value += gamma(repeats - 1, c.u) if repeats > 1 else 0.0
    if product:
        by_value += kit.pending.get(name, 0.0)  # M_j lambda_j was rounded once
    return [by_magnitude, by_bias, by_value, c.eta, 2 * c.eta, share]


def read_by(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """For each of `size` values those that read it: readers[starts[s]] to readers[starts[s + 1] - 1], in order; -1 reads none."""
    readers = torch.argsort(index, stable=True)
    starts = torch.searchsorted(index[readers], torch.arange(size + 1, device=index.device))
    return starts, readers


def batch_table(tables: Tables, kind: str, name: str) -> Tensor:
    """A table over the boxes of a batch."""
    node = tables.kit.nodes[name]
    if kind in ("lo", "hi"):
        return tables.box(name)[kind == "hi"]
    if kind in ("below", "above", "lower", "cut"):
        lines = tables.lines(node)
        made = {"below": lines.below, "above": lines.above, "lower": lines.lower_cut, "cut": lines.upper_cut}[kind]
        assert made is not None
        return made
    if kind in ("t", "floor"):
        return tables.charge(name)[kind == "floor"]
    if kind in ("most", "largest"):
        return tables.pool(node)[2 if kind == "most" else 3]
    return winner(tables, node) if kind == "winner" else {"underflow": tables.floor, "first": tables.first}[kind](name)


def winner(tables: Tables, node: Node) -> Tensor:
    """2 (tap + 1) + sure for every window of a max pool; 0 off the image."""
    tap, sure, _, _ = tables.pool(node)
    return 2 * (tap + 1) + sure
