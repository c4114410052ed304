"""A dense layer times a few vectors in float64: weights that are float32 numbers are read as such, a quarter of the bytes of W and |W|."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from polytriton.runtime.cpu import fused

FEW = 4  # vectors up to which reading the weights is what a product costs
LEAST = 1 << 12  # weights below which the library's call costs no more


@fused.compile_loop("F2 D2 b D2")
def _multiply_vectors(w, x, sizes, out):  # type: ignore[no-untyped-def]
    """out[b, j] = sum of w[j, k] x[b, k], or of the magnitudes of w."""
    for j in range(w.shape[0]):
        row = w[j]
        for b in range(x.shape[0]):
            xx = x[b]
            total = 0.0
            if sizes:
                for k in range(len(row)):
                    total += np.float64(abs(row[k])) * xx[k]
            else:
                for k in range(len(row)):
                    total += np.float64(row[k]) * xx[k]
            out[b, j] = total


def serves(w: Tensor, x: Tensor) -> bool:
    """Whether the loop is there and pays, for weights [outputs, inputs] and vectors [few, inputs]."""
    return fused.AVAILABLE and x.device.type == "cpu" and len(x) <= FEW and w.numel() >= LEAST


def multiply_vectors(w: Tensor, x: Tensor, sizes: bool) -> Tensor:
    """x @ w.T, or x @ |w|.T: float32 weights, float64 vectors and sums."""
    out = x.new_empty(len(x), len(w))
    _multiply_vectors(w.numpy(), x.contiguous().numpy(), sizes, out.numpy())
    return out
