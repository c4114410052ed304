"""Points of operands' boxes that products are centred on: their rounding then meets a box's half width, not its magnitude.

Substituting x = W y + b turns M into M' = fl(M W). For any point p

    M (W y + b) = M' y + M (W p + b) - M' p + (M W - M') (y - p),

so a row whose constant takes M (W p + b) - M' p owes what the product rounds times |y - p| only. Nothing is asked of p but that it is one
and the same in all three places; near the middle of the box |y - p| is least. docs/soundness.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.runtime.cpu import cells
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.layers import Layer
from polytriton.runtime.soundness import up

FEW = 64  # terms of an entry below which a product rounds too little to be centred


@dataclass(frozen=True)
class Centre:
    """A point p of a layer's operand in the coefficient type, fl(W p + b) in float64, at least |y - p| for every y of the box, and wabs
    times that where it is known, all [batch, h, w, channels]. Where the box is [0, 0] the point is 0, and |p| <= |y| (1 + 2^-23) at the
    box's larger end.
    """

    point: Tensor
    image: Tensor
    radius: Tensor
    entries: Tensor | None = None


def is_centred(layer: Layer) -> bool:
    """Whether a centre is worth its pass over the product."""
    return layer.node.op != "scale" and layer.fan >= FEW


def find_centre(forward: Forward, layer: Layer, boxes: Boxes, dtype: torch.dtype) -> Centre:
    lo, hi = (d[layer.node.inputs[0]] for d in (boxes.lo, boxes.hi))
    if cells.serves(lo):
        point, exact, radius = cells.centre_cells(lo, hi, dtype)
    else:
        point = (0.5 * lo + 0.5 * hi).to(dtype)
        sound = torch.isfinite(point) & (point.abs() >= torch.finfo(dtype).tiny)  # what is rounded by more than its share is left at 0
        point = torch.where(sound, point, torch.zeros_like(point))
        exact = point.double()
        radius = up(torch.maximum(hi - exact, exact - lo))
    image, entries = forward.centre_sums(layer, exact, radius)
    return Centre(point, image + layer.b, radius, entries)
