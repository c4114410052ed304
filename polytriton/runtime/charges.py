"""The error t that a row's coefficients over an affine layer's outputs are charged by; see soundness.py for what its terms are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.rounding import gammas
from polytriton.runtime.cpu import affine_cells
from polytriton.runtime.relax import round_up
from polytriton.runtime.soundness import up


@dataclass(frozen=True)
class LayerCharge:
    """t = e + sized S + offset babs + what the product's entries round + eta sum |y| + pending |x|.

    Where products are centred: e + sized (S + babs) + offset |image| + imaged S + nu E + what the entries round + ..., with E what the
    magnitudes of the weights make of the operand's distance from the centre; elsewhere E = S. An entry rounds gamma(depth) (1 + nu) E where
    the order of its sum is known, else `loss`; nothing where the coefficients are no rounded product.

    e, S, E, image, xabs: [batch, h, w, c]; babs, depths: of every cell, or of each channel; below: sum |y|, [batch].
    """

    e: Tensor
    size: Tensor
    entries: Tensor
    babs: Tensor
    below: Tensor
    xabs: Tensor
    image: Tensor | None
    depths: Tensor | None
    loss: Tensor | None
    sized: float
    offset: float
    imaged: float
    nu: float
    u: float
    eta: float
    pending: float

    def total(self, dtype: torch.dtype) -> Tensor:
        """t of every output in this type, rounded up."""
        if affine_cells.serves(self.size):
            return affine_cells.charge_outputs(self, dtype)
        if self.image is None:
            t = self.e + self.sized * self.size + self.offset * self.babs
        else:
            t = self.e + self.sized * (self.size + self.babs) + self.offset * self.image.abs()
            t = t + self.imaged * self.size
            t = t + self.nu * self.entries
        if self.depths is not None:
            t = t + gammas(self.depths, self.u) * (1 + self.nu) * self.entries
        elif self.loss is not None:
            t = t + self.loss
        if self.eta:
            t = t + self.eta * self.below.view(-1, 1, 1, 1)
        if self.pending:
            t = t + self.pending * self.xabs
        return round_up(up(t), dtype)
