"""Boxes and tables of a batch in one compiled call: the loops of cells.py, affine_cells.py, blocks.py and vectors.py, one line each.

A line of whole numbers says what to do, how many numbers there are, and at which addresses; `recipe.py` says where they come from.
"""

from __future__ import annotations

import numpy as np

from polytriton.rounding import GROW
from polytriton.runtime.cpu import fused, loops
from polytriton.runtime.cpu.affine_cells import _bound_outputs, _charge_outputs, _err_outputs, _split_boxes
from polytriton.runtime.cpu.blocks import _dense_depths
from polytriton.runtime.cpu.cells import _centre_cells, _outward_cells, _positive_cells, _relu_cells, _running_cells, _sum_sizes, up_to
from polytriton.runtime.cpu.outside import doubles, floats
from polytriton.runtime.cpu.vectors import multiply_small

SPLIT, PRODUCT, ERR, BOUND, POSITIVE, LINES, OUTWARD, SIZES, FLOOR, CENTRE, DEPTHS, CHARGE = range(12)
REALS = 14  # real numbers that a line has beside it


def _follow(code, reals, charged, live, rooms):  # type: ignore[no-untyped-def]
    """Does what the lines say. `charged`, `live` and `rooms` are memory for a layer's outputs, of one box, of all, and of one box twice."""
    for line in range(len(code)):
        f, g = code[line], reals[line]
        op, n = f[0], f[1]
        if op == SPLIT:
            _split_boxes(doubles(f[2], n), doubles(f[3], n), doubles(f[4], n), doubles(f[5], n), doubles(f[6], n))
        elif op == PRODUCT:  # then a bias is added, or the sums are rounded up
            terms, outputs = f[2], f[3]
            out, bias = doubles(f[6], n * outputs), doubles(f[7], outputs)
            multiply_small(doubles(f[4], n * terms), doubles(f[5], terms * outputs), n, terms, outputs, out)
            if f[7] != 0:
                for r in range(n):
                    oo = out[r * outputs : (r + 1) * outputs]
                    for j in range(outputs):
                        oo[j] = oo[j] + bias[j]
            if f[8] != 0:
                for j in range(n * outputs):
                    out[j] = out[j] * GROW
        elif op == ERR:
            if f[5] == 0:  # exact arithmetic
                doubles(f[6], f[3])[:] = 0.0
            else:
                _err_outputs(doubles(f[2], n), doubles(f[5], f[3]), doubles(f[4], f[7]), g[0], g[1:], doubles(f[6], f[3]))
        elif op == BOUND:
            e, babs, lo, hi = doubles(f[4], n), doubles(f[6], f[7]), doubles(f[8], n), doubles(f[9], n)
            _bound_outputs(doubles(f[2], n), doubles(f[3], n), e, doubles(f[5], n), babs, g[0], lo, hi)
        elif op == POSITIVE:
            _positive_cells(doubles(f[2], n), doubles(f[3], n), doubles(f[4], n), doubles(f[5], n))
        elif op == LINES:
            _relu_cells(doubles(f[2], n), doubles(f[3], n), floats(f[4], n), floats(f[5], n), floats(f[6], n), floats(f[7], n))
        elif op == OUTWARD:
            _outward_cells(doubles(f[2], n), doubles(f[3], n), floats(f[4], n), floats(f[5], n))
        elif op == SIZES:
            _sum_sizes(doubles(f[2], n), doubles(f[3], n), doubles(f[4], n), doubles(f[5], f[6]))
        elif op == FLOOR:
            own, below, out = doubles(f[2], n), doubles(f[3], n), doubles(f[4], n)
            for b in range(n):
                out[b] = g[0] * (own[b] + g[1] * below[b] if f[3] != 0 else own[b]) * GROW
        elif op == CENTRE:
            _centre_cells(doubles(f[2], n), doubles(f[3], n), g[0], floats(f[4], n), doubles(f[5], n), doubles(f[6], n))
        elif op == DEPTHS:
            if f[2] != 0:
                _running_cells(doubles(f[2], n), doubles(f[3], n), live)
            else:
                for j in range(n):
                    live[j] = True
            _dense_depths(live[:n], rooms[0, : f[5]], rooms[1, : f[5]], doubles(f[4], n))
        else:
            size, entries, babs, below = doubles(f[3], n), doubles(f[4], n), doubles(f[5], f[6]), doubles(f[7], f[8])
            image, depths, xabs = doubles(f[9], n), doubles(f[10], n), doubles(f[11], n)
            e, t, none, single = doubles(f[2], n), doubles(f[12], n), doubles(0, 0), floats(f[13], n)
            sized, offset, imaged, nu, u, eta, pending = g[0], g[1], g[2], g[3], g[4], g[5], g[6]
            _charge_outputs(
                e, size, entries, babs, below, image, depths, none, xabs, sized, offset, imaged, nu, u, eta, pending, charged[: f[6]], t
            )
            for j in range(len(single)):
                single[j] = t[j]
                single[j] = up_to(np.float64(single[j]), t[j])


PARTS = ("affine_cells", "blocks", "cells", "outside", "vectors")
follow = loops.loop("I2 D2 D B I2", fused.PLAIN, parts=PARTS)(_follow)
