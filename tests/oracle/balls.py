"""Whole layers in rigorous ball arithmetic: the interval pass must enclose every layer's exact range over its operand's box.

W x + b over a box is least where positive weights meet lower ends and negative ones upper ends. python-flint's Arb computes that
end as a ball that contains it; where a ball is too wide to decide a comparison, it is computed again with more bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from flint import arb, arb_mat, ctx

from tests.oracle.adversary import Opponent

Box = tuple[np.ndarray, np.ndarray]
PRECISIONS = (160, 5000)  # bits; sums of products of float64 numbers are exact in the second


def _least(matrix: np.ndarray, bias: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> list[arb]:
    """The least value of matrix @ x + bias over the box, as one ball a row."""
    ends = np.concatenate([lo, hi])
    both = np.concatenate([np.maximum(matrix, 0), np.minimum(matrix, 0)], axis=1)
    y = arb_mat(*both.shape, both.ravel().tolist()) * arb_mat(len(ends), 1, ends.tolist())
    return [y[i, 0] + arb(float(b)) for i, b in enumerate(bias)]


def _above(claimed: np.ndarray, matrix: np.ndarray, bias: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> Iterator[int]:
    """Rows whose claimed lower bound exceeds the least value."""
    infinite = (np.isneginf(lo) & (matrix > 0)) | (np.isposinf(hi) & (matrix < 0))
    rows = np.flatnonzero(~np.isneginf(claimed))
    yield from rows[infinite[rows].any(axis=1)]
    rows = rows[~infinite[rows].any(axis=1)]
    low, high = (np.nan_to_num(v, posinf=0.0, neginf=0.0) for v in (lo, hi))  # only beside weights of zero
    for bits in PRECISIONS:
        ctx.prec = bits
        balls = _least(matrix[rows], bias[rows], low, high) if len(rows) else []
        open_ = []
        for row, ball in zip(rows, balls, strict=True):
            end = arb(float(claimed[row]))
            if end <= ball:
                continue
            if end > ball:
                yield int(row)
            else:
                open_.append(row)
        rows = np.array(open_, dtype=int)
    assert not len(rows), "a comparison stays open at the exact precision"


def outside(opponent: Opponent, boxes: Mapping[str, Box]) -> list[str]:
    """Cells of `boxes` (node -> ends, flat, of one image) that do not enclose the node's range over its operands' boxes."""
    found = []
    for n in opponent.net:
        if n.op == "input" or n.name not in boxes or any(i not in boxes for i in n.inputs):
            continue
        lo, hi = boxes[n.name]
        below, above = (np.concatenate([boxes[i][side] for i in n.inputs]) for side in (0, 1))
        if n.op == "relu":
            a = n.number("slope")
            at = np.flatnonzero(np.isfinite(below) & np.isfinite(above))  # elsewhere the claim must be infinite, checked last
            ctx.prec = PRECISIONS[-1]
            bad = [i for i in at if not _relu_inside(a, float(below[i]), float(above[i]), float(lo[i]), float(hi[i]))]
            bad += [i for i in range(n.size) if i not in set(at) and (np.isfinite(lo[i]) or np.isfinite(hi[i]))]
        elif n.op == "maxpool":
            cells = opponent.pools[n.name]
            low, high = (np.where(cells >= 0, v[np.maximum(cells, 0)], -np.inf).max(axis=1) for v in (below, above))
            bad = list(np.flatnonzero(~((lo <= low) & (high <= hi))))
        else:
            m, b = opponent.matrices[n.name], opponent.tables[n.name].bias
            bad = [*_above(lo, m, b, below, above), *_above(-hi, -m, -b, below, above)]
        found += [f"%{n.name} interval: cell {i} [{lo[i]!r}, {hi[i]!r}] loses part of the layer's range" for i in bad]
    return found


def _relu_inside(slope: float, below: float, above: float, lo: float, hi: float) -> bool:
    ends = [arb(v) if v >= 0 else arb(slope) * arb(v) for v in (below, above)] + ([arb(0)] if below < 0 < above else [])
    return all(arb(lo) <= e and e <= arb(hi) for e in ends)
