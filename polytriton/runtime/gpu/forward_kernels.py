"""The interval pass's affine layers by generated kernels: which specialisation a layer takes, and its launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.ir.plan import extent
from polytriton.kernels.affine import AffineKernel, choose
from polytriton.kernels.load import prepare
from polytriton.kernels.stock import Stock
from polytriton.runtime.gpu.recording import launch
from polytriton.runtime.layers import Layer


@dataclass(frozen=True)
class AffineParts:
    """W x + b over boxes, float64 [batch, height, width, channels]; see kernels.forward for what each promises."""

    centre: Tensor
    spread: Tensor
    magnitude: Tensor
    terms: Tensor | None  # [batch, height, width, 1 or channels]: how many operands each output sums, None where nobody asked


class ForwardKernels:
    """One network's layers on one device: a GPU, or CPU tensors in Triton's interpreter."""

    def __init__(self, net: Net, device: torch.device, interpret: bool, stock: Stock | None = None) -> None:
        prepare(interpret)
        self.stock = stock or Stock()
        self.nodes, self.device, self.interpret = net.by_name, device, interpret
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._weights: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[int, Tensor] = {}
        self._given: dict[tuple[str, int], Tensor] = {}

    def kernel(self, layer: Layer, terms: str) -> Kernel:
        """The kernel of a linear or conv layer whose summands are counted as kernels.affine.count_source says."""
        key = (layer.node.name, terms)
        if key not in self._kernels:
            made = self._chosen(layer, terms)
            self._kernels[key] = self.stock.kernel(made.function, made.constants, "float64", made.tiles.warps, made.tiles.stages)
        return self._kernels[key]

    def _chosen(self, layer: Layer, terms: str) -> AffineKernel:
        return choose(layer.node, self.nodes[layer.node.inputs[0]], layer.cancelled, terms)

    def affine(self, layer: Layer, lo: Tensor, hi: Tensor, terms: str) -> AffineParts:
        """The layer over boxes [batch, height, width, channels]."""
        parts, g = self.sums(layer, lo, hi, terms), layer.node.integer("g", 1)
        if parts.terms is None or g == 1:
            return parts
        return replace(parts, terms=parts.terms.repeat_interleave(extent(layer.node)[2] // g, 3))

    def sums(self, layer: Layer, lo: Tensor, hi: Tensor, terms: str) -> AffineParts:
        """As the kernel leaves them: terms [batch, height, width, groups], or one count an image."""
        node, batch = layer.node, len(lo)
        (h, w, c), g, dense = extent(node), node.integer("g", 1), node.op == "linear"
        centre, spread, magnitude = (torch.empty(batch, h, w, c, dtype=torch.float64, device=self.device) for _ in range(3))
        counted = torch.empty(batch, *((1, 1, 1) if dense else (h, w, g)), dtype=torch.float64, device=self.device)
        if batch:
            tensors = {
                "lo_ptr": _aligned(lo), "hi_ptr": _aligned(hi), **self._layer(layer), "centre_ptr": centre, "spread_ptr": spread,
                "magnitude_ptr": magnitude, "terms_ptr": counted, "count_ptr": self._count(batch),
            }  # fmt: skip
            kernel, tiles = self.kernel(layer, terms), self._chosen(layer, terms).tiles
            bm, bn = tiles.constants["BM"], tiles.constants["BN"]
            grid = (-(-batch // bm), -(-node.size // bn)) if dense else (-(-batch * h * w // bm), g * -(-(c // g) // bn))
            launch(self.stock, kernel, grid, tensors, self.device)
        if terms == "given":
            counted = self._summands(layer, counted.shape)
        return AffineParts(centre, spread, magnitude, None if terms == "none" else counted)

    def _layer(self, layer: Layer) -> dict[str, Tensor]:
        """The layer's weights as the kernels read them: outputs first, then the reduction in the kernel's order."""
        name = layer.node.name
        if name not in self._weights:
            w, wabs = (v if layer.node.op == "linear" else v.permute(0, 2, 3, 1).contiguous() for v in (layer.w, layer.wabs))
            self._weights[name] = {"w_ptr": w, "wabs_ptr": wabs, "bias_ptr": layer.b.contiguous()}
        return self._weights[name]

    def _summands(self, layer: Layer, shape: torch.Size) -> Tensor:
        """The count that the layer gives, as the kernel would have left it; kept, for a recording reads it again."""
        key = layer.node.name, shape[0]
        if key not in self._given:
            self._given[key] = torch.full(shape, float(layer.summands or 0), dtype=torch.float64, device=self.device)
        return self._given[key]

    def _count(self, batch: int) -> Tensor:
        if batch not in self._counts:
            self._counts[batch] = torch.tensor([batch], dtype=torch.int64, device=self.device)
        return self._counts[batch]


def _aligned(boxes: Tensor) -> Tensor:
    """Contiguous, and beginning where the kernels' wide loads may: a slice of a batch may begin in between."""
    boxes = boxes.contiguous()
    return boxes if boxes.data_ptr() % 16 == 0 else boxes.clone()
