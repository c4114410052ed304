"""The interval pass cell by cell by generated kernels (kernels/device/boxes.py): one launch where tensor operations take dozens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.launches import Kernel
from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.kernels import cell_kernels
from polytriton.kernels.stock import Stock
from polytriton.rounding import gamma
from polytriton.runtime.gpu.forward_kernels import AffineParts, _aligned
from polytriton.runtime.gpu.recording import launch
from polytriton.runtime.layers import Layer
from polytriton.runtime.soundness import converts_nothing, deployed_numbers

if TYPE_CHECKING:
    from polytriton.runtime.forward import Boxes, Forward

Sizes = tuple[Tensor, Tensor]  # the largest magnitude and the sum of magnitudes of every part of an image, [batch, parts]


class BoxKernels:
    """Of one interval pass: its network, semantics and device."""

    def __init__(self, forward: Forward, interpret: bool) -> None:
        self.nodes, self.semantics, self.device, self.interpret = forward.nodes, forward.semantics, forward.device, interpret
        self.addends = forward.addends
        self.stock = Stock() if forward.kernels is None else forward.kernels.stock
        self._numbers: dict[str, Tensor] = {}

    def affine(self, layer: Layer, parts: AffineParts, boxes: Boxes) -> None:
        """The node's box, magnitude and error from the layer's sums."""
        node, real = layer.node, self.semantics.real
        source = node.inputs[0]
        constants = cell_kernels.affine_box(node, self.nodes[source], real, self.interpret)
        biggest, _ = self.sizes(boxes, source)
        given = {
            "centre_ptr": parts.centre, "spread_ptr": parts.spread, "magnitude_ptr": parts.magnitude, "babs_ptr": layer.babs,
            "terms_ptr": parts.magnitude if parts.terms is None else parts.terms, "operand_ptr": biggest,
            "numbers_ptr": self._factors(layer),
        }  # fmt: skip
        self._make(node, boxes, cell_kernels.cell_kernel(self.stock, "affine_boxes", constants), given, error=not real)
        boxes.magnitude[node.name] = parts.magnitude

    def elementwise(self, node: Node, boxes: Boxes) -> None:
        """A ReLU, a sum or a difference."""
        operations = self.semantics.passes * self.addends.sums[node.name] if node.name in self.addends.sums else 1
        name, constants = cell_kernels.elementwise_box(node, 0 if self.semantics.real else operations, self.interpret)
        kernel = cell_kernels.cell_kernel(self.stock, name, constants)
        sides = zip("ab"[: len(node.inputs)], node.inputs, strict=True)
        given = {f"{side}_{end}_ptr": _aligned(getattr(boxes, end)[i]) for side, i in sides for end in ("lo", "hi")}
        self._make(node, boxes, kernel, given, error="error_ptr" in kernel.parameters)

    def sizes(self, boxes: Boxes, name: str) -> Sizes:
        """Measured where the box was not made here, or has changed since."""
        if name not in boxes.sizes:
            node = self.nodes[name]
            made = self._empty_sizes(node, boxes.batch)
            tensors = {"box_lo_ptr": _aligned(boxes.lo[name]), "box_hi_ptr": _aligned(boxes.hi[name])}
            kernel = cell_kernels.cell_kernel(self.stock, "measure_boxes", cell_kernels.cells(node, self.interpret))
            launch(self.stock, kernel, (made[0].numel(),), {**tensors, "biggest_ptr": made[0], "total_ptr": made[1]}, self.device)
            boxes.sizes[name] = made
        return boxes.sizes[name]

    def tell(self, boxes: Boxes, name: str) -> Tensor:
        """For every part of an image the sum of hi - lo, and the neurons whose sign is undecided (runtime.trace)."""
        node = self.nodes[name]
        told = torch.empty(boxes.batch * cell_kernels.parts(node, self.interpret), 2, dtype=torch.float64, device=self.device)
        tensors = {"box_lo_ptr": _aligned(boxes.lo[name]), "box_hi_ptr": _aligned(boxes.hi[name]), "told_ptr": told}
        kernel = cell_kernels.cell_kernel(self.stock, "tell_boxes", cell_kernels.cells(node, self.interpret))
        launch(self.stock, kernel, (len(told),), tensors, self.device)
        return told

    def _make(self, node: Node, boxes: Boxes, kernel: Kernel, given: dict[str, Tensor], error: bool) -> None:
        h, w, c = extent(node)
        lo, hi = (torch.empty(boxes.batch, h, w, c, dtype=torch.float64, device=self.device) for _ in range(2))
        made = self._empty_sizes(node, boxes.batch)
        tensors = {**given, "box_lo_ptr": lo, "box_hi_ptr": hi, "biggest_ptr": made[0], "total_ptr": made[1]}
        if error:
            tensors["error_ptr"] = boxes.error[node.name] = torch.empty_like(lo)
        launch(self.stock, kernel, (made[0].numel(),), tensors, self.device)
        boxes.lo[node.name], boxes.hi[node.name], boxes.sizes[node.name] = lo, hi, made

    def _empty_sizes(self, node: Node, batch: int) -> Sizes:
        shape = batch, cell_kernels.parts(node, self.interpret)
        return torch.empty(shape, dtype=torch.float64, device=self.device), torch.empty(shape, dtype=torch.float64, device=self.device)

    def _factors(self, layer: Layer) -> Tensor:
        name = layer.node.name
        if name not in self._numbers:
            widen = gamma(layer.terms + 4, 2.0**-53) + layer.rho
            products = layer.node.integer("products", 1)
            beside = self.addends.beside[name]
            sem = self.semantics.plain if converts_nothing(layer.node) else self.semantics
            made = deployed_numbers(sem, layer.most, layer.ops, beside, products, layer.w_rowsum, layer.w_max, widen)
            self._numbers[name] = torch.tensor(made, dtype=torch.float64, device=self.device)
        return self._numbers[name]
