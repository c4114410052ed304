"""What the checker (`checker.py`) proposes to itself: slopes and multipliers for rows. Nothing here is trusted: any slope in [0, 1] and any
multiplier from 0 on is right, and the checker makes what it gets one.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Protocol

import numpy as np

from polytriton.checker_files import NONE, Array, Network, Refused

Progress = Callable[[str, int, int], None]
Choice = namedtuple("Choice", "lines met slope")  # slopes and multipliers by ReLU; the last coefficients met at ReLUs and at the input


Hint = tuple[int, float, int, int]  # split or -1, cut, and how what comes of it is bounded: `inner` and `query`


class StillOpen(Refused):
    """Bounds leave some piece open, and nobody divides further: nothing is shown to be wrong."""


class Divider(Protocol):
    """Proposes how nodes that are left open are divided, given a prover, pieces, and boxes that bound the nodes in some columns; and
    whether rows cut what is left of them before."""

    @property
    def cuts(self) -> bool: ...
    @property
    def divide(self) -> Callable[..., list[Hint]]: ...
    def note(self, node: int, piece: int, row: int) -> None: ...


class BoxLines(Protocol):
    """What is known of some boxes, as `checker_boxes.Boxes` has it: bounds of values; of ReLUs operands' boxes, lines, assumed signs."""

    net: Network
    lo: list[Array]
    hi: list[Array]
    z: dict[int, tuple[Array, Array, Array]]
    lines: dict[int, tuple[Array, Array, Array]]
    signs: dict[int, Array]


def column_of(v: Array, at: Array) -> Array:
    """A box's column for each row; one that is the same for all is not copied."""
    return v if v.shape[1] == 1 else v[:, at]


def ascend(boxes: BoxLines, draft: Network, start: dict[int, Array], at: Array, steps: int, goal: Array) -> Choice:
    """Slopes and multipliers for rows, by Adam's ascent on their bounds. `draft` computes in float32.
    With L over a ReLU's output and N = (s or t) L - sigma b over its operand, down to a corner of the box, and z and the lines' values
    forward from there, d bound / d s = max(L, 0) z and d bound / d b = -sigma z.
    """
    f32 = np.float32
    ends = [column_of(v[0], at).astype(f32) for v in (boxes.lo, boxes.hi)]
    held: dict[int, list[Array]] = {}  # s, t, m, where both signs are possible, sigma, b, moments of s and b
    for k in sorted(boxes.lines):
        if k <= max(start):
            (low, high, _), sigma, shape = boxes.z[k], boxes.signs.get(k, np.zeros((1, 1))), (boxes.net.sizes[k], len(at))
            some, zeros = [column_of(v, at).astype(f32) for v in boxes.lines[k]], [np.zeros(shape, f32) for _ in range(5)]
            sigma = sigma * (((sigma > 0) & (low >= 0)) | ((sigma < 0) & (high <= 0)))
            mixed = column_of(((low < 0) & (high > 0)).astype(f32), at)
            held[k] = [np.array(np.broadcast_to(some[0], shape)), *some[1:], mixed, column_of(sigma.astype(f32), at), *zeros]
    enough, best, kept = goal, np.full(len(at), -np.inf), dict[int, tuple[Array, Array]]()
    first = {k: a.astype(f32) for k, a in start.items()}
    for step in range(1, steps + 2):
        frontier, met = dict(first), dict[int, Array]()
        while (k := max(frontier)) > 0:
            op, a = draft.ops[k], frontier.pop(k)
            met[k] = a if op.kind == "relu" else NONE
            if op.kind == "relu":
                s, t, _, _, sigma, b, *_ = held[k]
                a = np.where(a >= 0, s, t) * a - sigma * b
            elif op.pull:
                a = op.pull(a)
            for i, sign in zip(op.inputs, op.signs or (1.0,), strict=True):
                frontier[i] = frontier[i] + f32(sign) * a if i in frontier else f32(sign) * a
        slope = frontier[0]
        values, penalty = {0: np.where(slope >= 0, *ends)}, np.zeros(len(at), f32)
        for k in sorted(met):
            op = draft.ops[k]
            y = [values[i] for i in op.inputs]
            if op.kind == "relu":
                s, t, m, _, sigma, b, *_ = held[k]
                values[k] = np.where(met[k] >= 0, s * y[0], t * y[0] + m)
                penalty += (sigma * b * y[0]).sum(0)
            else:
                values[k] = op.push(y[0], np.asarray) + op.b[:, None] if op.push else y[0] + f32(op.signs[1]) * y[1]
        bound = sum(((a * values[k]).sum(0) for k, a in first.items()), -penalty)
        better = (bound > best) & ~(best > enough)  # a row goes its own way, whatever is asked beside it
        best = np.where(better, bound, best)
        for k, (s, _, _, _, _, b, *_) in held.items():
            kept[k] = (np.where(better, s, kept[k][0]), np.where(better, b, kept[k][1])) if k in kept else (s.copy(), b.copy())
        enough = goal + np.abs(best - goal) / 64 if step == 1 else enough
        if step > steps or (best > enough).all():
            break
        for k, a in met.items():
            if k in held:
                (s, _, _, mixed, sigma, b, *moments), z = held[k], values[draft.ops[k].inputs[0]]
                rate = f32(0.2 * 0.98**step)
                np.clip(s + rate * _adam(np.maximum(a, 0) * z * mixed, moments[0], moments[1], step), 0, 1, out=s)
                if sigma.any():
                    np.maximum(b + rate / 4 * _adam(-sigma * z, moments[2], moments[3], step), 0, out=b)
    return Choice(kept, met, slope)


def _adam(slope: Array, first: Array, second: Array, step: int) -> Array:
    first += 0.1 * (slope - first)
    second += 0.001 * (slope * slope - second)
    return (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
