"""An affine layer's cells: what the interval pass makes of its operand's box, and the error of its rows, in one compiled loop each.

The loops round as the tensor forms in runtime/forward.py and runtime/charges.py do, operation by operation, so both give the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.rounding import BIG, GROW
from polytriton.runtime.cpu import fused, loops
from polytriton.runtime.cpu.cells import flat, serves, up_to

if TYPE_CHECKING:
    from polytriton.runtime.charges import LayerCharge

__all__ = ["bound_outputs", "charge_outputs", "err_outputs", "serves", "split_boxes"]
NONE = np.empty(0)


@fused.compile_loop("D D D D D", fused.PLAIN)
def _split_boxes(lo, hi, mid, rad, size):  # type: ignore[no-untyped-def]
    for i in range(len(lo)):
        middle = 0.5 * lo[i] + 0.5 * hi[i]
        over, under = hi[i] - middle, middle - lo[i]
        wide = over if over >= under or over != over else under  # NaN stays
        mid[i] = middle
        rad[i] = wide * GROW
        size[i] = abs(middle) + rad[i]


@fused.compile_loop("D D D D D d D D", fused.PLAIN)
def _bound_outputs(centre, spread, e, magnitude, babs, rounds, lo, hi):  # type: ignore[no-untyped-def]
    for first in range(0, len(centre), len(babs)):
        last = first + len(babs)
        cc, ss, ee, mm = centre[first:last], spread[first:last], e[first:last], magnitude[first:last]
        ll, hh = lo[first:last], hi[first:last]
        for j in range(len(babs)):
            width = (ss[j] + ee[j] + rounds * (mm[j] + babs[j])) * GROW + 1e-300
            low, high = cc[j] - width, cc[j] + width
            ll[j] = low if abs(low) < np.inf else -np.inf
            hh[j] = high if abs(high) < np.inf else np.inf


WIDEN, PASSES, OPS, U, ENTER, CONVERTED, LOST, LOSES, TERMS, CONVERTING, MEETS, LIMIT, MERGED = range(13)  # `soundness.deployed_numbers`


@fused.compile_loop("D D D d D D", fused.PLAIN)
def _err_outputs(operand, magnitude, babs, summands, c, e):  # type: ignore[no-untyped-def]
    n, images = len(babs), len(magnitude) // max(1, len(babs))
    each = len(operand) // max(1, images)
    for b in range(images):
        largest, present = 0.0, 0.0
        for i in range(b * each, (b + 1) * each):
            if operand[i] > 0:
                present += 1.0
            if operand[i] > largest or operand[i] != operand[i]:  # NaN stays
                largest = operand[i]
        x = (c[PASSES] * ((present if summands < 0 else summands) + c[OPS]) + 1) * c[U]
        g = x / (1 - x) * GROW if x < 0.5 else np.inf
        factor = c[ENTER] * (1 + g) - 1 + c[CONVERTED]
        behind = factor if c[MERGED] > 0 else g
        lost = c[LOST] * (c[LOSES] + c[TERMS] * largest)
        converted = c[CONVERTING] * (c[MEETS] + c[TERMS] * largest)
        tame = largest <= BIG and largest <= c[LIMIT]  # NaN is not
        mm, ee = magnitude[b * n : (b + 1) * n], e[b * n : (b + 1) * n]
        for j in range(n):
            error = mm[j] * factor + behind * babs[j] + 2 * lost + converted
            ee[j] = error * GROW if tame and mm[j] + babs[j] <= BIG else np.inf


def _charge_outputs(  # type: ignore[no-untyped-def]
    e, size, entries, babs, below, image, depths, loss, xabs, sized, offset, imaged, nu, u, eta, pending, charged, t
):  # fmt: skip
    """A box's outputs term by term, `charged` so far: which terms there are is asked once a box, so that each is a loop of vectors."""
    each, n, own = len(size) // max(1, len(below)), len(babs), len(depths) == len(size)
    for first in range(0, len(size), n):
        last, tail = first + n, eta * below[first // each]
        ee, ss, nn, tt = e[first:last], size[first:last], entries[first:last], t[first:last]
        if len(image) > 0:
            ii = image[first:last]
            for j in range(n):
                c = ee[j] + sized * (ss[j] + babs[j]) + offset * abs(ii[j])
                c = c + imaged * ss[j]
                charged[j] = c + nu * nn[j]
        else:
            for j in range(n):
                charged[j] = ee[j] + sized * ss[j] + offset * babs[j]
        if len(depths) > 0:
            dd = depths[first if own else 0 : last if own else n]
            for j in range(n):
                x = dd[j] * u
                gamma = x / (1 - x) * GROW if x < 0.5 else np.inf
                charged[j] = charged[j] + gamma * (1 + nu) * nn[j]
        elif len(loss) > 0:
            ll = loss[first:last]
            for j in range(n):
                charged[j] = charged[j] + ll[j]
        if eta > 0:
            for j in range(n):
                charged[j] = charged[j] + tail
        if pending > 0:
            xx = xabs[first:last]
            for j in range(n):
                charged[j] = charged[j] + pending * xx[j]
        for j in range(n):
            whole = charged[j] * GROW
            tt[j] = whole
            tt[j] = up_to(np.float64(tt[j]), whole)


_charge = loops.loop("D D D D D D D D D d d d d d d d D T", fused.PLAIN, parts=("cells",))(_charge_outputs)


def split_boxes(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes' centres, and behind one another their half widths and their greatest magnitudes, [2 batch, ...]."""
    mid, both = lo.new_empty(lo.shape), lo.new_empty(2 * len(lo), *lo.shape[1:])
    rad, size = both.numpy().reshape(2, -1)
    _split_boxes(flat(lo), flat(hi), flat(mid), rad, size)
    return mid, both


def err_outputs(operand: Tensor, magnitude: Tensor, babs: Tensor, summands: float, numbers: list[float]) -> Tensor:
    """`soundness.deployed_error` of a dense layer by its `deployed_numbers`: `operand` has the greatest magnitudes of what it reads, and
    each of them that is not zero is a summand, unless their number is given (not below zero).
    """
    assert magnitude.shape[1:].numel() == babs.numel()  # the loop looks at no length
    e = magnitude.new_empty(magnitude.shape)
    _err_outputs(flat(operand), flat(magnitude), flat(babs), summands, np.array(numbers), flat(e))
    return e


def bound_outputs(centre: Tensor, spread: Tensor, e: Tensor, magnitude: Tensor, babs: Tensor, rounds: float) -> tuple[Tensor, Tensor]:
    """The box of a layer's outputs around its centre, `rounds` times their magnitudes wider; no bound where a number is not finite."""
    assert centre.shape == spread.shape == e.shape == magnitude.shape  # the loop looks at no length
    lo, hi = centre.new_empty(centre.shape), centre.new_empty(centre.shape)
    _bound_outputs(flat(centre), flat(spread), flat(e), flat(magnitude), flat(babs), rounds, flat(lo), flat(hi))
    return lo, hi


def charge_outputs(c: LayerCharge, dtype: torch.dtype) -> Tensor:
    """`LayerCharge.total`."""
    whole = [c.e, c.size, c.entries, c.xabs, *(v for v in (c.image, c.loss) if v is not None)]
    assert len({v.shape for v in whole}) == 1 and len(c.below) == len(c.size)  # the loop looks at no length
    assert c.depths is None or c.depths.numel() in (c.size.numel(), c.babs.numel())
    t = torch.empty(c.size.shape, dtype=dtype)
    given = (NONE if v is None else flat(v) for v in (c.e, c.size, c.entries, c.babs, c.below, c.image, c.depths, c.loss))
    f = c.factors
    _charge(*given, flat(c.xabs), f.sized, f.offset, f.imaged, f.nu, f.u, f.eta, f.pending, np.empty(c.babs.numel()), flat(t))
    return t
