"""A batch's tables written by generated kernels (kernels/device/tables.py) straight to where the launches read them.

What each table holds is runtime.tables' to say; the one difference is K, the terms of an entry of M W: a kernel charges the most that
the layer can have, not the live outputs that read the cell. That costs a float32 table the difference between at most 34 roundings
and fewer, and a float64 table nothing that shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Kernel
from polytriton.kernels import cell_kernels
from polytriton.kernels.sequence import Frames
from polytriton.rounding import dot_error, gamma, one_rounding
from polytriton.runtime.gpu.forward_kernels import _aligned
from polytriton.runtime.gpu.recording import launch
from polytriton.runtime.tables import Kit, Tables

if TYPE_CHECKING:
    from polytriton.runtime.gpu.box_kernels import BoxKernels

PAIRS = {"lo": ("lo", "hi"), "hi": ("lo", "hi"), **dict.fromkeys(("below", "above", "lower", "cut"), ("below", "above", "cut"))}


@dataclass
class TableKernels:
    """One network, one arithmetic, one device."""

    kit: Kit
    frames: Frames
    numerics: Arithmetic
    emulate: bool
    boxes: BoxKernels
    _numbers: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    _kernels: dict[tuple[str, str], tuple[str, Kernel]] = field(default_factory=dict)

    def makes(self, kind: str) -> bool:
        return kind in cell_kernels.TABLES

    def together(self, kind: str, name: str) -> tuple[str, ...]:
        """The kinds that one launch fills, this one among them."""
        made = PAIRS.get(kind, (kind,))
        return (*made, "lower") if "below" in made and self.kit.nodes[name].number("slope") not in (0.0, 1.0) else made

    def like(self, kind: str, name: str, batch: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of a table."""
        frame = self.kit.frames[name]
        if kind in ("floor", "underflow"):
            return (batch,), torch.float64
        if kind == "first":
            return (batch, frame.h, frame.w, frame.channels), torch.float64
        return (batch, *frame.padded, frame.channels), self.kit.coefficients.dtype

    def fill(self, tables: Tables, kind: str, name: str, to: dict[str, Tensor]) -> None:
        """Writes the tables `to`, by kind: all that one launch fills."""
        node, boxes = self.kit.nodes[name], tables.boxes
        function, kernel = self._kernel(kind, name)
        of = node.inputs[0] if function == "relu_tables" else name
        given = {f"{k}_ptr": v for k, v in to.items()} | {"numbers_ptr": self._factors(name, kind != "first")}
        given |= {"box_lo_ptr": _aligned(boxes.lo[of]), "box_hi_ptr": _aligned(boxes.hi[of])}
        if kind in ("first", "underflow"):
            given |= {"t_ptr": to[kind]} if kind == "first" else {"floor_ptr": to[kind]}
        for p in kernel.parameters:
            if p == "own_error_ptr":
                given[p] = boxes.error[name]
            elif p == "magnitude_ptr":
                given[p] = boxes.magnitude[name]
            elif p == "babs_ptr":
                given[p] = self.kit.forward.layers[name].babs
            elif p == "total_ptr":
                given[p] = self.boxes.sizes(boxes, name)[1]
            elif p == "operand_ptr":
                given[p] = self.boxes.sizes(boxes, node.inputs[0])[1]
        programs = boxes.batch if function == "floors" else boxes.batch * cell_kernels.parts(node, self.emulate)
        launch(self.boxes.stock, kernel, (programs,), given, self.kit.forward.device)

    def _kernel(self, kind: str, name: str) -> tuple[str, Kernel]:
        """The library function of a table, and its specialisation: chosen once, asked for in every batch."""
        key = (kind, name)
        if key not in self._kernels:
            real = self.kit.forward.semantics.real
            function, constants = cell_kernels.table(self.frames, self.kit.nodes[name], kind, self.numerics, self.emulate, real=real)
            numerics = cell_kernels.table_numerics(kind, self.numerics).name
            self._kernels[key] = function, cell_kernels.cell_kernel(self.boxes.stock, function, constants, numerics)
        return self._kernels[key]

    def _factors(self, name: str, product: bool) -> Tensor:
        if (name, product) not in self._numbers:
            made = torch.tensor(numbers(self.kit, name, product), dtype=torch.float64, device=self.kit.forward.device)
            self._numbers[name, product] = made
        return self._numbers[name, product]


def numbers(kit: Kit, name: str, product: bool) -> list[float]:
    """What charge_table and floors read: t's factors of the magnitude, of |b|, of |x|, of the operand's sum; 2 eta, the operand's share."""
    c, node, layer = kit.coefficients, kit.nodes[name], kit.forward.layers.get(name)
    by_magnitude = by_bias = by_value = share = 0.0
    if layer is not None:
        nu = 0.0 if layer.exact32 or c.dtype == torch.float64 else one_rounding(c.u)
        most = float(c.product_error(torch.tensor(float(layer.fan), dtype=torch.float64)))
        by_magnitude = layer.rho + nu + (most * (1 + nu) if product else 0.0)
        by_bias, share = layer.rho + dot_error(node.size), (layer.fan + 1) * (1 + layer.w_max)
    if product and node.op == "gather":
        repeats = kit.forward.moves[name].repeats
        by_value += gamma(repeats - 1, c.u) if repeats > 1 else 0.0
    if product:
        by_value += kit.pending.get(name, 0.0)  # M_j lambda_j was rounded once
    return [by_magnitude, by_bias, by_value, c.eta, 2 * c.eta, share]
