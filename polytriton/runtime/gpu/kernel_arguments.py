"""What kernels read besides rows and boxes, in the form they read it."""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.runtime.tables import Kit, Tables

WEIGHTS = ("weight", "rows")
SCALES = ("factor", "shift")
READERS = ("cell_starts", "cell_readers", "channel_starts", "channel_readers")
LAYER = (*WEIGHTS, *SCALES, *READERS)  # known from the network alone


def layer_tensor(kit: Kit, kind: str, name: str) -> Tensor:
    """A layer's weights; a scale's numbers, one image in its frame, for all images and rows; which cells of a gather read which."""
    node = kit.nodes[name]
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
    made = weights.rows if kind == "rows" else weights.back
    if kind == "weight" and node.op == "conv":
        made = made.permute(2, 3, 0, 1)  # [KH, KW, CO, CI/G]
    return made.contiguous()


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
