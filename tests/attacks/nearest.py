"""The switch: DeepPoly as it is often written, round-to-nearest and no error terms. For chains of linear layers and ReLUs.

What a verifier without a rounding argument would say to the attacks. Nothing but the tests uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polytriton.ir.net import Net

Lines = tuple[np.ndarray, np.ndarray, np.ndarray]


def _times(m: np.ndarray, w: np.ndarray) -> np.ndarray:
    """m @ w in the type of m, terms added in sequence."""
    total = np.zeros((m.shape[0], w.shape[1]), m.dtype)
    for k in range(m.shape[1]):
        total = total + m[:, k : k + 1] * w[k]
    return total


class Nearest:
    """Bounds of a chain net over one box, in `dtype` throughout."""

    def __init__(self, net: Net, dtype: Any) -> None:
        self.layers: list[tuple[np.ndarray, np.ndarray]] = []
        self.dtype, self.last_relu = dtype, net.nodes[-1].op == "relu"
        for node in net.nodes[1:]:
            assert node.op == ("relu" if len(self.layers) and node.inputs[0].startswith("layer") else "linear")
            if node.op == "linear":
                w, b = net.weight(node, "w"), net.weight(node, "b")
                assert w is not None and b is not None
                self.layers.append((w.astype(dtype), b.astype(dtype)))

    def margins(self, lo: np.ndarray, hi: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Claimed lower bounds of forms over the output."""
        with np.errstate(all="ignore"):
            box = lo.astype(self.dtype), hi.astype(self.dtype)
            lines: list[Lines] = []
            for k, (w, b) in enumerate(self.layers):
                low = self._back(w, b, k, lines, box)
                high = -self._back(-w, -b, k, lines, box)
                if k + 1 < len(self.layers) or self.last_relu:
                    lines.append(self._relax(low, high))
            rows = forms.astype(self.dtype)
            return self._back(rows, np.zeros(len(rows), self.dtype), len(self.layers), lines, box)

    def _relax(self, low: np.ndarray, high: np.ndarray) -> Lines:
        """The lower slope, and the chord with its intercept."""
        on, off = low >= 0, high <= 0
        chord = np.where(on, 1, np.where(off, 0, high / (high - low))).astype(self.dtype)
        cut = np.where(on | off, 0, -chord * low).astype(self.dtype)
        below = np.where(on | (~off & (high > -low)), 1, 0).astype(self.dtype)
        return below, chord, cut

    def _back(self, m: np.ndarray, c: np.ndarray, k: int, lines: list[Lines], box: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Rows m over what layer k reads, down to the input's box."""
        for i in range(k - 1, -1, -1):
            if i < len(lines):
                below, chord, cut = lines[i]
                c = c + _times(np.minimum(m, 0), cut[:, None])[:, 0]
                m = np.where(m < 0, m * chord, m * below)
            w, b = self.layers[i]
            c, m = c + _times(m, b[:, None])[:, 0], _times(m, w)
        at = np.where(m < 0, box[1], box[0])
        return _times(m * at, np.ones((m.shape[1], 1), m.dtype))[:, 0] + c
