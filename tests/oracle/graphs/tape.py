"""A graph as a list of arithmetic steps over numbered cells. What only moves cells (Transpose, Pad, Concat, ...) is no step: it re-numbers.

Cell 0 is zero, cell 1 is one. A tensor of numbers is an array of cell numbers of the tensor's shape; constants have cells too, so that
arithmetic on constants is executed, and rounded, as the file gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.oracle.graphs.rounding import FLOAT16, FLOAT32, FLOAT64

FORMATS = {np.dtype(np.float32): FLOAT32, np.dtype(np.float64): FLOAT64, np.dtype(np.float16): FLOAT16}


class NotCovered(Exception):
    """The oracle does not know this operator, or this use of it."""


@dataclass(frozen=True)
class Forms:
    """How operators that can be written in several ways are computed."""

    division: int = 0  # x / c, or x * fl(1 / c)
    mean: int = 0  # fl(sum x) / n, fl(sum x) * fl(1 / n), or the sum of x * fl(1 / n)
    norm: int = 0  # a x + c; ((x - m) r) s + b; (x - m) (s r) + b; ((x - m) / sqrt) s + b
    root: int = 0  # r = 1 / sqrt, or the reciprocal root in one operation
    gemm: int = 0  # alpha after the sum of products, or into A before it
    share: int = 0  # a Softmax step by step, or exact and off by what is stated of it


@dataclass
class Value:
    """A tensor: cells of its numbers, or, for integers and booleans, the numbers themselves."""

    cells: np.ndarray | None
    dtype: np.dtype[Any]
    known: np.ndarray | None = None
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        found = self.cells if self.cells is not None else self.known
        assert found is not None
        return found.shape

    @property
    def ids(self) -> np.ndarray:
        if self.cells is None:
            raise NotCovered("arithmetic of integers that are not constant")
        return self.cells

    def reshaped(self, shape: tuple[int, ...]) -> Value:
        return Value(self.ids.reshape(shape), self.dtype, None, self.constant)


@dataclass(frozen=True)
class Step:
    """One operation on many cells, writing cells start to start + count - 1. `a`, `b`, `c` are tables of cells."""

    # dots, add, sub, mul, div, sqrt, rsqrt, cast, neg, abs, relu, leaky, max, min, negatives, convert, stated, relative, or a function
    op: str
    start: int
    count: int
    form: int
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    number: float = 0.0


_NONE = np.zeros(0, np.int32)


@dataclass
class Tape:
    """Steps in order, constants, and where the graph's inputs and named values lie."""

    forms: Forms
    convert: bool = False  # whether products convert their operands
    cells: int = 2
    steps: list[Step] = field(default_factory=list)
    constants: list[tuple[int, np.ndarray]] = field(default_factory=lambda: [(0, np.array([0.0, 1.0]))])
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def fresh(self, count: int) -> int:
        start = self.cells
        self.cells += count
        return start

    def constant(self, array: np.ndarray, dtype: np.dtype[Any] | None = None) -> Value:
        """Cells that hold the array's numbers, exactly."""
        array = np.asarray(array)
        dtype = array.dtype if dtype is None else dtype
        if dtype not in FORMATS:
            return Value(None, dtype, array, True)
        start = self.fresh(array.size)
        self.constants.append((start, array.astype(np.float64).reshape(-1)))
        return Value(np.arange(start, start + array.size, dtype=np.int32).reshape(array.shape), dtype, None, True)

    def _put(self, op: str, shape: tuple[int, ...], dtype: np.dtype[Any], fixed: bool, *tables: np.ndarray, number: float = 0.0) -> Value:
        count = int(np.prod(shape, dtype=np.int64))
        # one layout, whatever the caller turned: the machine code is made anew for every other
        flat = [np.array(t, np.int32, order="C") for t in tables] + [_NONE] * (3 - len(tables))
        start = self.fresh(count)
        self.steps.append(Step(op, start, count, FORMATS[dtype], *flat, number=number))
        return Value(np.arange(start, start + count, dtype=np.int32).reshape(shape), dtype, None, fixed)

    def pair(self, op: str, x: Value, y: Value) -> Value:
        """An elementwise operation on two tensors that broadcast."""
        a, b = np.broadcast_arrays(x.ids, y.ids)
        return self._put(op, a.shape, x.dtype, x.constant and y.constant, a.reshape(-1), b.reshape(-1))

    def single(self, op: str, x: Value, dtype: np.dtype[Any] | None = None, number: float = 0.0) -> Value:
        return self._put(op, x.shape, dtype or x.dtype, x.constant, x.ids.reshape(-1), number=number)

    def single_over(self, op: str, y: Value) -> Value:
        """1 op y."""
        return self._put(op, y.shape, y.dtype, y.constant, np.ones(y.ids.size, np.int32), y.ids.reshape(-1))

    def dots(self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, shape: tuple[int, ...], dtype: Any, fixed: bool,
             product: bool = True) -> Value:  # fmt: skip
        """Sums of products: x, w are cells [outputs, terms]. `product`: an operator whose operands a tensor core converts."""
        if product and self.convert and FORMATS[dtype] == FLOAT32:
            x, w = self._converted(x), self._converted(w)
        bias = np.zeros(len(x), np.int32) if bias is None else np.broadcast_to(bias, len(x))
        return self._put("dots", shape, dtype, fixed, x, w, bias)

    def _converted(self, cells: np.ndarray) -> np.ndarray:
        """Each operand once, however often it is read; the zero of padding and the one of plain sums stay."""
        used, back = np.unique(cells, return_inverse=True)
        inner = used > 1
        if not inner.any():
            return cells
        made = self._put("convert", (int(inner.sum()),), np.dtype(np.float32), False, used[inner])
        out = used.copy()
        out[inner] = made.ids
        return out[back].reshape(cells.shape)

    def negatives(self, x: Value, below: Value) -> Value:
        """`below` where x is negative, else x."""
        a, b = np.broadcast_arrays(x.ids, below.ids)
        return self._put("negatives", a.shape, x.dtype, x.constant and below.constant, a.reshape(-1), b.reshape(-1))

    def stated(self, f: Value, beside: Value, units: float, relative: bool) -> Value:
        """f as a deployment may return it in float32, off by so many units of the larger of 1, |f| and |beside|, or of |f|."""
        op = "relative" if relative else "stated"
        return self._put(op, f.shape, np.dtype(np.float32), False, f.ids.reshape(-1), beside.ids.reshape(-1), number=units)

    def most(self, op: str, table: np.ndarray, shape: tuple[int, ...], like: Value) -> Value:
        """The largest (or smallest) of each row of cells."""
        return self._put(op, shape, like.dtype, like.constant, table)
