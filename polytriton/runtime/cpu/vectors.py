"""A dense layer times vectors in float64.

A large layer whose weights are float32 numbers is read as such, a quarter of the bytes of W and |W|: few vectors by a loop, what is summed
over a box by one for all its sums, many vectors by a library's products with a block of weights at a time, whose float64 numbers stay in
the cache. A small layer and any number of vectors: term by term, which rounds the same wherever the loop is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polytriton.runtime.cpu import fused

FEW = 16  # vectors up to which the loop takes no longer than a library's products
BLOCK = 1 << 18  # weights in float64 at a time
LEAST = 1 << 14  # weights of a large layer, at least


@fused.compile_loop("F2 D2 b D2")
def _multiply_vectors(w, x, sizes, out):  # type: ignore[no-untyped-def]
    """out[b, j] = sum of w[j, k] x[b, k], or of the magnitudes of w. Four vectors read the weights together."""
    together = x.shape[0] // 4 * 4
    for j in range(w.shape[0]):
        row = w[j]
        for b in range(0, together, 4):
            x0, x1, x2, x3 = x[b], x[b + 1], x[b + 2], x[b + 3]
            t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
            if sizes:
                for k in range(len(row)):
                    v = np.float64(abs(row[k]))
                    t0 += v * x0[k]
                    t1 += v * x1[k]
                    t2 += v * x2[k]
                    t3 += v * x3[k]
            else:
                for k in range(len(row)):
                    v = np.float64(row[k])
                    t0 += v * x0[k]
                    t1 += v * x1[k]
                    t2 += v * x2[k]
                    t3 += v * x3[k]
            out[b, j], out[b + 1, j], out[b + 2, j], out[b + 3, j] = t0, t1, t2, t3
        for b in range(together, x.shape[0]):
            xx = x[b]
            total = 0.0
            if sizes:
                for k in range(len(row)):
                    total += np.float64(abs(row[k])) * xx[k]
            else:
                for k in range(len(row)):
                    total += np.float64(row[k]) * xx[k]
            out[b, j] = total


@fused.compile_loop("F2 D2 D2 D2 D2 D2 D2")
def _sum_products(w, signed, sizes, more, signed_sums, sizes_sums, more_sums):  # type: ignore[no-untyped-def]
    """Products of w with `signed`, of its magnitudes with `sizes` and, where there are any, with `more`: a weight is read once for all."""
    three = len(more) > 0
    for j in range(w.shape[0]):
        row = w[j]
        for b in range(len(signed)):
            x, y = signed[b], sizes[b]
            t0, t1, t2 = 0.0, 0.0, 0.0
            if three:
                z = more[b]
                for k in range(len(row)):
                    v = np.float64(row[k])
                    t0 += v * x[k]
                    t1 += abs(v) * y[k]
                    t2 += abs(v) * z[k]
                more_sums[b, j] = t2
            else:
                for k in range(len(row)):
                    v = np.float64(row[k])
                    t0 += v * x[k]
                    t1 += abs(v) * y[k]
            signed_sums[b, j], sizes_sums[b, j] = t0, t1


def sum_products(w: Tensor, operands: Sequence[Tensor]) -> list[Tensor] | None:
    """Of two or three lists of vectors the products of the first with w, of the others with |w|; None where no loop takes so many."""
    if not (fused.AVAILABLE and serves(w, operands[0]) and len(operands[0]) <= FEW):
        return None
    given, sums = [x.contiguous().numpy() for x in operands], [x.new_empty(len(x), len(w)) for x in operands]
    assert all(x.shape == (len(given[0]), w.shape[1]) for x in given)  # the loop looks at no length
    nothing = [np.empty((0, 0))] * (3 - len(given))
    _sum_products(w.numpy(), *given, *nothing, *(v.numpy() for v in sums), *nothing)
    return sums


def serves(w: Tensor, x: Tensor) -> bool:
    """Whether weights [outputs, inputs] are worth to be read as float32 numbers, for vectors [any, inputs]."""
    return x.device.type == "cpu" and w.numel() >= LEAST


def multiply_vectors(w: Tensor, x: Tensor, sizes: bool) -> Tensor:
    """x @ w.T, or x @ |w|.T: float32 weights, float64 vectors and sums."""
    out = x.new_empty(len(x), len(w))
    if fused.AVAILABLE and len(x) <= FEW:
        _multiply_vectors(w.numpy(), x.contiguous().numpy(), sizes, out.numpy())
        return out
    rows = max(1, BLOCK // w.shape[1])
    block = x.new_empty(min(rows, len(w)), w.shape[1])
    for begin in range(0, len(w), rows):
        part = block[: len(w) - begin]
        part.copy_(w[begin : begin + rows])
        torch.mm(x, (part.abs_() if sizes else part).T, out=out[:, begin : begin + rows])
    return out


def multiply(x: Tensor, across: Tensor) -> Tensor:
    """x @ across, float64: vectors [any, inputs] and the weights of a small layer [inputs, outputs]."""
    (rows, terms), outputs = x.shape, across.shape[1]
    assert across.shape[0] == terms  # the loop looks at no length
    out = x.new_empty(rows, outputs)
    multiply_small(x.contiguous().numpy().ravel(), across.numpy().ravel(), rows, terms, outputs, out.numpy().ravel())
    return out


@fused.compile_loop("D D i i i D", {"contract"})
def multiply_small(x, across, rows, terms, outputs, out):  # type: ignore[no-untyped-def]
    """out[r, j] = sum of x[r, k] across[k, j], in the order of k. Two rows read the weights together; the last of an odd number is taken
    twice.
    """
    whole = terms // 4 * 4
    for r in range(0, rows, 2):
        s = min(r + 1, rows - 1)
        xx, yy = x[r * terms : (r + 1) * terms], x[s * terms : (s + 1) * terms]
        oo, pp = out[r * outputs : (r + 1) * outputs], out[s * outputs : (s + 1) * outputs]
        for j in range(outputs):
            oo[j] = 0.0
            pp[j] = 0.0
        for k in range(0, whole, 4):
            x0, x1, x2, x3 = xx[k], xx[k + 1], xx[k + 2], xx[k + 3]
            y0, y1, y2, y3 = yy[k], yy[k + 1], yy[k + 2], yy[k + 3]
            ww = across[k * outputs : (k + 4) * outputs]
            for j in range(outputs):
                w0, w1, w2, w3 = ww[j], ww[outputs + j], ww[2 * outputs + j], ww[3 * outputs + j]
                a, b = oo[j], pp[j]
                oo[j] = (((a + x0 * w0) + x1 * w1) + x2 * w2) + x3 * w3
                pp[j] = (((b + y0 * w0) + y1 * w1) + y2 * w2) + y3 * w3
        for k in range(whole, terms):
            x0, y0, ww = xx[k], yy[k], across[k * outputs : (k + 1) * outputs]
            for j in range(outputs):
                a, b = oo[j], pp[j]
                oo[j] = a + x0 * ww[j]
                pp[j] = b + y0 * ww[j]
