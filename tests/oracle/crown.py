"""Plain CROWN from its definition, in numpy's float64: dense matrices, one box, nothing of the verifier's.

Every neuron that a ReLU reads is bounded by rows substituted back to the input, layer by layer. Above an undecided ReLU lies its chord,
below it a line through zero: the ReLU itself where more than half of the box is above zero, else 0. A bound is taken at the input only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytriton.ir.net import Builder, Net

Box = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Step:
    """A value y = W x + b of an earlier one's, a sum of two, or a ReLU of one; `of` are their numbers, 0 the input's."""

    kind: str
    of: tuple[int, ...]
    w: np.ndarray
    b: np.ndarray


class Crown:
    """`interval`: whether a neuron's box is cut down to what interval arithmetic says, which CROWN itself does not do."""

    def __init__(self, steps: Sequence[Step], interval: bool = False) -> None:
        self.steps, self.interval = steps, interval

    def bounds(self, lo: np.ndarray, hi: np.ndarray) -> dict[int, Box]:
        """The boxes of what ReLUs read and of the last value."""
        found: dict[int, Box] = {}
        every: dict[int, Box] = {0: (lo, hi)}
        read = {s.of[0] for s in self.steps if s.kind == "relu"} | {len(self.steps)}
        for k, s in enumerate(self.steps, 1):
            every[k] = self._interval(s, [every[i] for i in s.of])
            if k in read:
                eye = np.eye(len(every[k][0]))
                box = self.least(eye, k, found, (lo, hi)), -self.least(-eye, k, found, (lo, hi))
                if self.interval:
                    box = np.maximum(box[0], every[k][0]), np.minimum(box[1], every[k][1])
                    every[k] = box
                found[k] = box
        return found

    def least(self, rows: np.ndarray, at: int, boxes: dict[int, Box], given: Box) -> np.ndarray:
        """Lower bounds of rows over the value `at`."""
        waiting, constant = {at: rows}, np.zeros(len(rows))
        for k in range(at, 0, -1):
            if k not in waiting:
                continue
            m, s = waiting.pop(k), self.steps[k - 1]
            if s.kind == "relu":
                lo, hi = boxes[s.of[0]]
                open_ = (lo < 0) & (hi > 0)
                chord = np.where(open_, hi / np.where(open_, hi - lo, 1.0), lo >= 0)
                below = np.where(open_, hi > -lo, lo >= 0)
                plus, minus = np.maximum(m, 0), np.minimum(m, 0)
                constant = constant + minus @ np.where(open_, -chord * lo, 0.0)
                m = plus * below + minus * chord
            elif s.kind == "affine":
                constant = constant + m @ s.b
                m = m @ s.w
            for i in s.of:
                waiting[i] = waiting.get(i, 0.0) + m
        m = waiting[0]
        return constant + np.maximum(m, 0) @ given[0] + np.minimum(m, 0) @ given[1]

    @staticmethod
    def _interval(s: Step, boxes: list[Box]) -> Box:
        if s.kind == "add":
            return boxes[0][0] + boxes[1][0], boxes[0][1] + boxes[1][1]
        (lo, hi) = boxes[0]
        if s.kind == "relu":
            return np.maximum(lo, 0), np.maximum(hi, 0)
        plus, minus = np.maximum(s.w, 0), np.minimum(s.w, 0)
        return plus @ lo + minus @ hi + s.b, plus @ hi + minus @ lo + s.b


@dataclass
class Drawn:
    """A random network twice: as steps of the definition, and as the verifier takes it."""

    steps: list[Step]
    net: Net
    inputs: int


def draw(rng: np.random.Generator, kind: str, depth: int = 4, width: int = 12, scale: float = 1.0) -> Drawn:
    """`dense`, `conv` (a convolution is its matrix too) or `residual`; the last step is dense with 3 outputs."""
    b, steps = Builder(kind), list[Step]()
    none = np.zeros(0)
    shape = (2, 4, 4) if kind == "conv" else (width // 2,)
    at, name, size = 0, b.input(shape), int(np.prod(shape))
    inputs = size

    def add(step: Step) -> int:
        steps.append(step)
        return len(steps)

    def drawn(*dims: int) -> np.ndarray:
        fan = int(np.prod(dims[1:]))
        return (scale * rng.standard_normal(dims) * np.sqrt(2 / fan)).astype(np.float32)

    def linear(name: str, at: int, outputs: int, size: int) -> tuple[str, int]:
        w, c = drawn(outputs, size), (0.3 * rng.standard_normal(outputs)).astype(np.float32)
        return b.add("linear", (name,), w=b.constant(w), b=b.constant(c)), add(Step("affine", (at,), w.astype(float), c.astype(float)))

    def relu(name: str, at: int) -> tuple[str, int]:
        return b.add("relu", (name,)), add(Step("relu", (at,), none, none))

    for k in range(depth):
        if kind == "conv" and k < 2:
            w, c = drawn(3, b.shape(name)[0], 3, 3), (0.3 * rng.standard_normal(3)).astype(np.float32)
            matrix = _matrix(w, b.shape(name))
            name = b.add("conv", (name,), w=b.constant(w), b=b.constant(c), k=(3, 3), s=(1, 1), p=(1, 1, 1, 1))
            at = add(Step("affine", (at,), matrix, np.repeat(c.astype(float), 16)))
            size = 48
        elif kind == "residual" and k and size == width:
            inner, place = linear(name, at, width, size)
            inner, place = linear(*relu(inner, place), width, width)
            name, at = b.add("add", (inner, name)), add(Step("add", (place, at), none, none))
        else:
            name, at = linear(name, at, width, size)
            size = width
        name, at = relu(name, at)
    name, at = linear(name, at, 3, size)
    return Drawn(steps, b.build(name), inputs)


def _matrix(w: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A 3x3 convolution with a margin of one zero, as it acts on an image [channels, height, width]."""
    channels, h, width = shape
    made = np.zeros((w.shape[0], h, width, channels, h, width))
    for y in range(h):
        for x in range(width):
            for dy in range(3):
                for dx in range(3):
                    if 0 <= y + dy - 1 < h and 0 <= x + dx - 1 < width:
                        made[:, y, x, :, y + dy - 1, x + dx - 1] = w[:, :, dy, dx]
    return made.reshape(w.shape[0] * h * width, -1)
