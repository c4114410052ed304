"""The error t that a row's coefficients over an affine layer's outputs are charged by; see soundness.py for what its terms are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.arithmetic import Arithmetic
from polytriton.rounding import U64, dot_error, gammas, one_rounding
from polytriton.runtime.cpu import affine_cells
from polytriton.runtime.layers import Layer
from polytriton.runtime.relax import round_up
from polytriton.runtime.soundness import gamma, up


@dataclass(frozen=True)
class ChargeFactors:
    """What the terms of a layer's charge are multiplied by: `LayerCharge`."""

    sized: float
    offset: float
    imaged: float
    nu: float
    u: float
    eta: float
    pending: float


def charge_factors(c: Arithmetic, layer: Layer, outputs: int, operands: int, *, centred: bool, pending: float) -> ChargeFactors:
    """Of a layer with so many outputs and operands, whose coefficients are in the arithmetic c; `pending`: what their product with a ReLU's
    slope was rounded by, relative to the value.
    """
    nu = 0.0 if layer.exact32 or c.dtype == torch.float64 else one_rounding(c.u)
    eta = c.eta if c.dtype == torch.float32 else 0.0  # a weight below the smallest normal is off by at most that
    if not centred:
        return ChargeFactors(layer.rho + nu, layer.rho + dot_error(outputs), 0.0, nu, c.u, eta, pending)
    # of the image: the point's magnitudes are the box's, to within a rounding; the sum M'.p has magnitudes below 2 |M| Wabs |p|
    sized, imaged = layer.rho + gamma(layer.terms + 4, U64), 2 * dot_error(operands)
    return ChargeFactors(sized, dot_error(outputs), imaged, nu, c.u, eta, pending)


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
    factors: ChargeFactors

    def total(self, dtype: torch.dtype) -> Tensor:
        """t of every output in this type, rounded up."""
        if affine_cells.serves(self.size):
            return affine_cells.charge_outputs(self, dtype)
        f = self.factors
        if self.image is None:
            t = self.e + f.sized * self.size + f.offset * self.babs
        else:
            t = self.e + f.sized * (self.size + self.babs) + f.offset * self.image.abs()
            t = t + f.imaged * self.size
            t = t + f.nu * self.entries
        if self.depths is not None:
            t = t + gammas(self.depths, f.u) * (1 + f.nu) * self.entries
        elif self.loss is not None:
            t = t + self.loss
        if f.eta:
            t = t + f.eta * self.below.view(-1, 1, 1, 1)
        if f.pending:
            t = t + f.pending * self.xabs
        return round_up(up(t), dtype)
