"""Executions as `docs/certificates.md` describes them under tf32, bf16 and float16, in numpy, operator by operator.

Weights and operands of layers are converted by their bits, up, down or to the nearest, small ones flushed or not; products and sums are
float32, in shuffled orders and in blocks, each rounded to the nearest or cut off. Knows neither the engine nor the checker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
LOST = {"tf32": 13, "bf16": 16, "float16": 13}  # bits of a float32 number that a conversion drops
SMALLEST, HALF, STEP, MOST = 2.0**-126, 2.0**-14, 2.0**-24, 65504.0
MODES = ("down", "up", "nearest", "any")


def _grid(v: Array, size: Array, up: Array) -> Array:
    """Multiples of `size`, away from zero where `up`."""
    n = np.abs(v) / size
    return np.copysign(np.where(up, np.ceil(n), np.floor(n)) * size, v)


@dataclass
class Machine:
    """One deployment: how it converts, and what it flushes."""

    semantics: str
    rng: np.random.Generator
    mode: str = "any"
    flush: bool = True

    def _up(self, v: Array, near: Array) -> Array:
        choice = self.rng.random(v.shape) < 0.5 if self.mode == "any" else np.full(v.shape, self.mode == "up")
        return near if self.mode == "nearest" else choice

    def convert(self, v: Array) -> Array:
        """Operands of layers."""
        v = np.ascontiguousarray(v, np.float32)
        bits = v.view(np.uint32)
        unit = np.uint32(1 << LOST[self.semantics])
        kept = bits & ~(unit - np.uint32(1))
        near = (bits - kept) * 2 >= unit
        up = self._up(v, near) & (bits != kept)
        found: Array = np.where(up, kept + unit, kept).view(np.float32)
        if self.semantics == "float16":
            small = np.abs(v) < HALF
            found = np.where(small, _grid(v.astype(np.float64), np.array(STEP), self._up(v, np.abs(v) % STEP >= STEP / 2)), found)
            assert np.all(np.abs(v) <= MOST)
            found = np.where((np.abs(v) < HALF) & self._flushed(v), 0, found)
        return np.where((np.abs(v) < SMALLEST) & self._flushed(v), 0, found).astype(np.float32)

    def _flushed(self, v: Array) -> Array:
        return (self.rng.random(v.shape) < 0.5) & self.flush

    def number(self, exact: Array) -> Array:
        """A float32 result: of float64 numbers that are nearly exact."""
        found = exact.astype(np.float32)
        cut = np.where(np.abs(found.astype(np.float64)) > np.abs(exact), np.nextafter(found, np.float32(0)), found)
        found = np.where((self.rng.random(exact.shape) < 0.5) & (self.mode != "nearest"), cut, found)
        return np.where((np.abs(found) < SMALLEST) & self._flushed(found), 0, found).astype(np.float32)

    def total(self, terms: Array) -> Array:
        """Of the last axis: in a random order, in blocks of a random size, which are summed in their turn."""
        terms = terms[..., self.rng.permutation(terms.shape[-1])]
        size = int(self.rng.integers(1, terms.shape[-1] + 1))
        parts = []
        for k in range(0, terms.shape[-1], size):
            part = terms[..., k]
            for j in range(k + 1, min(k + size, terms.shape[-1])):
                part = self.number(part.astype(np.float64) + terms[..., j])
            parts.append(part)
        whole = parts[0]
        for part in parts[1:]:
            whole = self.number(whole.astype(np.float64) + part)
        return whole

    def layer(self, w: Array, x: Array, start: Array | None) -> Array:
        """w x + start; products are summed with what they start with."""
        w, x = self.convert(w), self.convert(x)
        terms = self.number(w.astype(np.float64) * x.astype(np.float64)[None])
        if start is None:
            return self.total(terms)
        return self.total(np.concatenate([terms, start.astype(np.float32)[:, None]], 1))

    def run(self, model: onnx.ModelProto, x: Array) -> tuple[list[Array], Array]:
        """What ReLUs are handed, and the output."""
        known: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        constants, handed = set(known), list[Array]()
        known[model.graph.input[0].name] = x.astype(np.float32)
        for n in model.graph.node:
            a = [known[i] for i in n.input]
            attrs = {v.name: helper.get_attribute_value(v) for v in n.attribute}
            if n.op_type == "Relu":
                z = np.where((np.abs(a[0]) < SMALLEST) & self._flushed(a[0]), np.float32(0), a[0])
                handed.append(z.ravel())
                y = np.maximum(z, np.float32(0))
            elif n.op_type in ("Gemm", "MatMul"):
                w = a[1] if attrs.get("transB") else a[1].T
                y = self.layer(w, a[0].ravel(), a[2] if len(a) > 2 else None)[None]
            elif n.op_type == "Conv":
                y = self._conv(a, attrs.get("pads", [0] * 4))
            elif n.op_type in ("Add", "Sub", "Mul"):
                op = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[n.op_type]
                y = self.number(op(a[0].astype(np.float64), a[1].astype(np.float64)))
            else:
                assert n.op_type in ("Flatten", "Reshape") and n.input[0] not in constants
                y = a[0].reshape(1, -1) if n.op_type == "Flatten" else a[0].reshape(a[1])
            known[n.output[0]] = y
        return handed, known[model.graph.output[0].name].ravel()

    def _conv(self, a: list[Array], pads: list[int]) -> Array:
        """Of one group, stride 1: padding is zeros, and of a product with zero comes zero."""
        w, (top, left, bottom, right) = a[1], pads
        x = np.pad(a[0][0], ((0, 0), (top, bottom), (left, right)))
        h, v = x.shape[1] - w.shape[2] + 1, x.shape[2] - w.shape[3] + 1
        y = np.zeros((1, len(w), h, v), np.float32)
        for i, j in np.ndindex(h, v):
            patch = x[:, i : i + w.shape[2], j : j + w.shape[3]].ravel()
            y[0, :, i, j] = self.layer(w.reshape(len(w), -1), patch, a[2] if len(a) > 2 else None)
        return y
