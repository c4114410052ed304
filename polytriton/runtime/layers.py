"""Weights as the runtime needs them: rows and columns in [height, width, channels] order, per type and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

import numpy as np
import torch
from torch import Tensor

from polytriton.errors import UnsupportedModel
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import physical
from polytriton.passes.lower import channel_gather
from polytriton.runtime.cpu import vectors
from polytriton.runtime.cpu.blocks import pack
from polytriton.runtime.soundness import gamma

ALONE = 1 << 17  # weights from which on their memory counts for more than making them float64 where a product wants them so
SOME = 1 << 20  # weights looked at together
WIDEST = 500_000  # soundness.GROW covers sums this long


def order(shape: tuple[int, ...]) -> np.ndarray:
    """For each physical cell the row-major index of the same cell in the IR's order."""
    size = prod(shape)
    cells = np.arange(size)
    return cells.reshape(shape).transpose(1, 2, 0).reshape(-1) if len(shape) == 3 else cells


def to_physical(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[batch, *shape] -> [batch, height, width, channels]."""
    if len(shape) == 3:
        return values.reshape(-1, *shape).permute(0, 2, 3, 1).contiguous()
    return values.reshape(-1, *physical(shape))


def from_physical(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[batch, height, width, channels] -> [batch, *shape]."""
    return values.permute(0, 3, 1, 2).contiguous() if len(shape) == 3 else values.reshape(-1, *shape)


def flush(w: Tensor, least: float) -> Tensor:
    """Numbers below `least` become zero."""
    return torch.where(w.abs() < least, torch.zeros_like(w), w)


@dataclass(frozen=True)
class Layer:
    """One affine node: its numbers (`w`, `wabs`, `b`, `babs`), each of them a float64, and the constants of its rounding argument."""

    node: Node
    stored: Tensor  # the weights; of a large layer (ALONE) as float32, where they are float32 numbers
    short: Tensor | None  # of a dense layer that a loop reads as float32, so; the same memory where they are stored so
    sizes: Tensor | None  # wabs, where it is not made of the weights whenever it is wanted
    b: Tensor  # [height, width, channels], or [channels] for a convolution
    babs: Tensor
    terms: int  # summands of one output
    fan: int  # summands of one entry of M W: the K of numerics
    rho: float  # relative error of the stored weights
    cancelled: bool  # wabs exceeds |w|
    exact32: bool  # the stored weights are float32 values
    w_max: float
    w_rowsum: float

    @property
    def w(self) -> Tensor:
        """The weights in float64, made anew where they are stored as float32."""
        return self.stored.double()

    @property
    def wabs(self) -> Tensor:
        """Their magnitudes in float64, or those of what was merged into them."""
        return self.stored.abs().double() if self.sizes is None else self.sizes

    @property
    def is_small(self) -> bool:
        """Whether a dense layer has so few weights that a call of the library costs more than its product."""
        return self.node.op == "linear" and self.stored.numel() < vectors.LEAST

    @cached_property
    def across(self) -> Tensor:
        """The weights of a dense layer, [inputs, outputs]."""
        return self.w.T.contiguous()

    @cached_property
    def sizes_across(self) -> Tensor:
        """Their magnitudes, so."""
        return self.wabs.T.contiguous()

    @cached_property
    def panels(self) -> Tensor:
        """The weights of a convolution as float32, [panels of outputs, taps and channels of each, PANEL]: `blocks.pack`."""
        return pack(self.stored.float().permute(2, 3, 1, 0).flatten(0, 2)).panels

    @property
    def floor_share(self) -> float:
        """How many flushes of its product's terms a coefficient pays, in flushes of a coefficient, times what the operands sum to."""
        return (self.fan + 1) * (1 + self.w_max)

    @property
    def ops(self) -> int:
        return self.node.integer("ops")

    @property
    def summands(self) -> int | None:
        """How many summands the deployed sum has, where the operand's own cells do not tell; see ir/ops.py."""
        return self.node.integer("summands") if "summands" in self.node.attrs else None

    @property
    def most(self) -> int:
        """The most terms of an output, here or deployed: each may flush an operand."""
        return max(self.terms, self.summands or 0)


def _fan(node: Node) -> int:
    """How many terms make one coefficient of the operand: taps that meet an input cell, times output channels."""
    k, s, d = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
    taps = prod(ceil(k[i] / s[i]) if d[i] == 1 else k[i] for i in (0, 1))
    return taps * (node.shape[0] // node.integer("g", 1))


def load_layer(net: Net, node: Node, device: torch.device) -> Layer:
    """Reads a linear, conv or scale node."""
    by = net.by_name
    key = "a" if node.op == "scale" else "w"
    w, b = net.weight(node, key), net.weight(node, "c" if node.op == "scale" else "b")
    assert w is not None and b is not None
    wabs, babs = net.weight(node, "wabs"), net.weight(node, "babs")
    exact32 = w.dtype == np.float32 or bool((w.astype(np.float32).astype(np.float64) == w).all())
    read = node.op == "linear" and exact32 and w.size >= vectors.LEAST
    alone = exact32 and node.op != "scale" and w.size >= ALONE
    arrays: list[np.ndarray] = [np.asarray(w, dtype=np.float32 if alone else np.float64), np.asarray(b, dtype=np.float64)]
    arrays.append(np.abs(arrays[1]) if babs is None else np.asarray(babs, dtype=np.float64))
    if wabs is not None or not alone:
        arrays.append(np.abs(arrays[0]) if wabs is None else np.asarray(wabs, dtype=np.float64))
    if node.op == "linear":
        # only cells of images change places: matrices between vectors, often the largest, stay where they are
        rows, columns = (order(s) if len(s) == 3 else slice(None) for s in (node.shape, by[node.inputs[0]].shape))
        shape = physical(node.shape)
        arrays = [v[rows][:, columns] if v.ndim == 2 else v[rows].reshape(shape) for v in arrays]
        terms, fan = arrays[0].shape[1], arrays[0].shape[0]
    elif node.op == "conv":
        terms, fan = prod(w.shape[1:]), _fan(node)
    else:
        full = [np.broadcast_to(v, node.shape) for v in arrays]
        arrays = [v.transpose(1, 2, 0) if v.ndim == 3 else v.reshape(physical(node.shape)) for v in full]
        terms, fan = 1, 1
    if max(terms, fan) > WIDEST:
        raise UnsupportedModel(
            f"%{node.name} = {node.op}: sums of {max(terms, fan)} terms", f"the rounding argument covers sums of at most {WIDEST} terms"
        )
    tensors = [torch.from_numpy(np.require(v, requirements=["C", "W"])).to(device) for v in arrays]
    w_max, w_rowsum = _largest(arrays[3] if len(arrays) > 3 else arrays[0], node.op == "scale")
    slack = node.integer("slack")
    stored, b64, babs64, *sizes = tensors
    return Layer(
        node=node,
        stored=stored,
        short=stored.float() if read else None,
        sizes=sizes[0] if sizes else None,
        b=b64,
        babs=babs64,
        terms=terms,
        fan=fan,
        rho=gamma(slack, 2.0**-53) if slack else 0.0,
        cancelled=wabs is not None,
        exact32=exact32,
        w_max=w_max,
        w_rowsum=w_rowsum,
    )


def _largest(w: np.ndarray, single: bool) -> tuple[float, float]:
    """The largest magnitude of a layer's weights, and the largest sum of an output's (`single`: each has one); some rows at a time."""
    rows = w.reshape(-1, 1) if single else w.reshape(w.shape[0], -1)
    most = total = 0.0
    some = max(1, SOME // max(1, rows.shape[1]))
    for k in range(0, len(rows), some):
        size = np.abs(rows[k : k + some]).astype(np.float64)
        if size.size:
            most, total = max(most, float(size.max())), max(total, float(size.sum(1).max()))
    return most, total * (1 + 2.0**-34)


@dataclass(frozen=True)
class Moves:
    """A gather as indices: whole channels, or physical cells (-1: zero); `repeats` is the most uses of one cell."""

    channels: Tensor | None
    cells: Tensor
    repeats: int


def load_moves(net: Net, node: Node, device: torch.device) -> Moves:
    source = net.node(node.inputs[0])
    index = net.weight(node, "index")
    assert index is not None
    where = np.empty(source.size, dtype=np.int64)
    where[order(source.shape)] = np.arange(source.size)  # logical cell -> physical cell
    picked = index[order(node.shape)]
    cells = np.where(picked >= 0, where[np.maximum(picked, 0)], -1)
    channels = channel_gather(net, node)
    used = picked[picked >= 0]
    repeats = int(np.bincount(used).max()) if used.size else 1
    return Moves(None if channels is None else torch.from_numpy(channels).to(device), torch.from_numpy(cells).to(device), repeats)
