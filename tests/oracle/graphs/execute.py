"""Runs a tape: in float64 with derivatives, in rounded arithmetic with every freedom of a deployment, and exactly in rationals."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from tests.oracle.graphs import rounding, smooth
from tests.oracle.graphs.rounding import ADD, CAST, DIV, FLOAT32, KEEP, MUL, NEAREST, RSQRT, SQRT, SUB
from tests.oracle.graphs.tape import Step, Tape, Value

SINGLE = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV, "sqrt": SQRT, "rsqrt": RSQRT, "cast": CAST}
OPERANDS = {"tf32": (11, -126, (2 - 2.0**-10) * 2.0**127), "bf16": (8, -126, (2 - 2.0**-7) * 2.0**127), "float16": (11, -14, 65504.0)}
BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
KNOWN = {*smooth.FUNCTIONS, *smooth.STEPPED}
LEAK = 2.0**-30  # of a goal's sign past a ReLU that is off: its operand may be a rounding below zero


@dataclass(frozen=True)
class Choice:
    """What an execution is free in. `direction` None: every operation rounds toward the goal."""

    direction: int | None = None
    order: int = 0
    fma: int = 0
    bias_first: bool = False
    flush: int = KEEP
    daz: bool = False
    operands: str = ""  # the format that products convert their operands to, if any


NEUTRAL = Choice(direction=NEAREST)


def some_choice(rng: np.random.Generator, operands: str = "") -> Choice:
    """Mostly goal-driven; sometimes one IEEE mode for everything, or one drawn anew for every operation."""
    direction = None if rng.random() < 0.75 else int(rng.integers(-1, 5))
    order = int(rng.choice([0, 2, 2, 2, 6, rng.integers(len(rounding.ORDERS))]))
    flush = int(rng.choice([0, 0, 1, 2, 3]))
    return Choice(direction, order, int(rng.integers(3)), bool(rng.random() < 0.5), flush, flush > 0 and rng.random() < 0.5, operands)


class Program:
    """A tape with its constants laid out, ready to run on [points, inputs]."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.base = np.zeros(tape.cells)
        for start, numbers in tape.constants:
            self.base[start : start + len(numbers)] = numbers
        self.input = np.concatenate([tape.values[i].ids.reshape(-1) for i in tape.inputs]) if tape.inputs else np.zeros(0, np.int32)
        self.output = np.concatenate([tape.values[o].ids.reshape(-1) for o in tape.outputs]) if tape.outputs else np.zeros(0, np.int32)

    def begin(self, x: np.ndarray) -> np.ndarray:
        v = np.repeat(self.base[None], len(x), 0)
        v[:, self.input] = x
        return v

    def cells_of(self, name: str) -> np.ndarray | None:
        """The cells of a named value of the graph, flat."""
        value = self.tape.values.get(name)
        return None if value is None or value.cells is None else value.cells.reshape(-1)

    # ---- float64 ----------------------------------------------------------------------------------------------------

    def near(self, x: np.ndarray) -> np.ndarray:
        """All cells at the points, in float64 rounded to nearest: near the truth, no more."""
        v = self.begin(x)
        with np.errstate(all="ignore"):
            for s in self.tape.steps:
                if s.op == "dots":
                    rounding.near_dots(v, s.a, s.b, s.c, s.start)
                else:
                    v[:, s.start : s.start + s.count] = _plain(s, v)
        return v

    def goals(self, rows: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """[goals, cells]: each is a sum of coefficients times cells."""
        d = np.zeros((len(rows), self.tape.cells))
        for k, (cells, form) in enumerate(rows):
            np.add.at(d[k], cells, form)
        return d

    def derivatives(self, v: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Of goal @ cells by every cell; both are [points, cells]."""
        d = goal.copy()
        with np.errstate(all="ignore"):
            for s in reversed(self.tape.steps):
                if s.op == "dots":
                    rounding.back_dots(v, d, s.a, s.b, s.c, s.start)
                    continue
                g = d[:, s.start : s.start + s.count]
                if not g.any():
                    continue
                for cells, by in _slopes(s, v):
                    np.add.at(d.T, cells, (g * by).T)
        return d

    # ---- rounded ----------------------------------------------------------------------------------------------------

    def run(self, x: np.ndarray, wanted: np.ndarray, choice: Choice, state: np.ndarray) -> np.ndarray:
        """All cells of one execution a point; `wanted` are the goals' derivatives, [points, cells]."""
        v = self.begin(x)
        if choice.direction is None:
            goal = np.sign(np.nan_to_num(wanted)).astype(np.int8)
        else:
            goal = np.full(v.shape, choice.direction, np.int8)
        flush, daz = choice.flush, choice.daz
        with np.errstate(all="ignore"):
            for s in self.tape.steps:
                if s.op == "dots":
                    rounding.dots(v, goal, s.a, s.b, s.c, s.start, s.form, choice.order, choice.fma, choice.bias_first, flush, daz, state)
                elif s.op in SINGLE:
                    right = s.b if len(s.b) else s.a
                    rounding.pairs(v, goal, SINGLE[s.op], s.a, right, s.start, s.form, flush, daz, state)
                elif s.op == "leaky":
                    rounding.leaks(v, goal, s.a, s.number, s.start, s.form, flush, daz, state)
                elif s.op == "convert":
                    rounding.convert(v, goal, s.a, s.start, *OPERANDS[choice.operands], flush, state)
                elif s.op in ("stated", "relative"):
                    some = slice(s.start, s.start + s.count)
                    v[:, some] = smooth.stated(v[:, s.a], v[:, s.b], s.number, s.op == "relative", goal[:, some], state)
                else:
                    y = _plain(s, v)
                    if daz and s.form == FLOAT32 and s.op in smooth.STEPPED:
                        y = smooth.near(s.op, np.where(np.abs(v[:, s.a]) < 2.0**-126, 0.0, v[:, s.a]), s.number)
                    elif daz and s.form == FLOAT32:
                        y = np.where(np.abs(y) < 2.0**-126, 0.0, y)
                    v[:, s.start : s.start + s.count] = y
        return v

    # ---- exact ------------------------------------------------------------------------------------------------------

    def exact(self, x: np.ndarray) -> list[list[Any]]:
        """All cells as rationals, a list a point; roots to 400 bits."""
        return [_exact(self, row) for row in x]


def _plain(s: Step, v: np.ndarray) -> np.ndarray:
    """A step other than dots, in numpy."""
    a = v[:, s.a]
    if s.op in ("max", "min"):
        return a.max(-1) if s.op == "max" else a.min(-1)
    if s.op == "relu":
        return np.where(a > 0, a, np.where(np.isnan(a), a, 0.0))
    if s.op == "leaky":
        return np.where(a < 0, s.number * a, a)
    if s.op == "negatives":
        return np.where(a < 0, v[:, s.b], a)
    if s.op in ("cast", "convert", "stated", "relative"):
        return a
    if s.op in KNOWN:
        return smooth.near(s.op, a, s.number)
    if s.op == "neg":
        return -a
    if s.op == "abs":
        return np.abs(a)
    if s.op == "sqrt":
        return np.sqrt(a)
    if s.op == "rsqrt":
        return 1 / np.sqrt(a)
    return np.asarray(BINARY[s.op](a, v[:, s.b]))


def _slopes(s: Step, v: np.ndarray) -> list[tuple[np.ndarray, Any]]:
    """(operand cells, derivative by them), for steps other than dots."""
    a = v[:, s.a]
    if s.op in ("max", "min"):
        at = a.argmax(-1) if s.op == "max" else a.argmin(-1)
        return [(s.a[:, k], at == k) for k in range(s.a.shape[1])]
    if s.op == "relu":
        return [(s.a, np.where(a >= 0, 1.0, LEAK))]
    if s.op == "leaky":
        return [(s.a, np.where(a >= 0, 1.0, s.number if s.number else LEAK))]
    if s.op == "negatives":
        return [(s.a, np.where(a >= 0, 1.0, 0.0)), (s.b, np.where(a >= 0, 0.0, 1.0))]
    if s.op in ("cast", "convert", "stated", "relative"):
        return [(s.a, 1.0)]
    if s.op in KNOWN:
        return [(s.a, smooth.slope(s.op, a, s.number))]
    if s.op == "neg":
        return [(s.a, -1.0)]
    if s.op == "abs":
        return [(s.a, np.where(a >= 0, 1.0, -1.0))]
    if s.op == "sqrt":
        return [(s.a, 0.5 / np.sqrt(a))]
    if s.op == "rsqrt":
        return [(s.a, -0.5 / (a * np.sqrt(a)))]
    b = v[:, s.b]
    if s.op == "mul":
        return [(s.a, b), (s.b, a)]
    if s.op == "div":
        return [(s.a, 1 / b), (s.b, -a / (b * b))]
    return [(s.a, 1.0), (s.b, 1.0 if s.op == "add" else -1.0)]


def rational(value: float) -> Any:
    """A float as an exact rational of python-flint, or a Fraction without it."""
    num, den = float(value).as_integer_ratio()
    try:
        from flint import fmpq
    except ImportError:
        from fractions import Fraction

        return Fraction(num, den)
    return fmpq(num, den)


def _root(q: Any) -> Any:
    """The root of a rational, to 400 bits or more below it."""
    num, den = int(getattr(q, "p", None) or getattr(q, "numerator", 0)), int(getattr(q, "q", None) or getattr(q, "denominator", 1))
    scale = 400 + max(0, den.bit_length() - num.bit_length())
    return type(q)(isqrt((num << 2 * scale) // den), 1 << scale)


def _exact(program: Program, row: np.ndarray) -> list[Any]:
    zero = rational(0.0)
    v: list[Any] = [zero] * program.tape.cells
    for start, numbers in program.tape.constants:
        v[start : start + len(numbers)] = [rational(n) for n in numbers]
    for cell, number in zip(program.input, row, strict=True):
        v[cell] = rational(number)
    for s in program.tape.steps:
        a, b = s.a.tolist(), s.b.tolist()
        if s.op == "dots":
            bias = s.c.tolist()
            made = [sum((v[i] * v[j] for i, j in zip(x, w, strict=True) if i and j), v[c]) for x, w, c in zip(a, b, bias, strict=True)]
        elif s.op in ("max", "min"):
            made = [(max if s.op == "max" else min)(v[i] for i in row) for row in a]
        elif s.op == "relu":
            made = [v[i] if v[i] > 0 else zero for i in a]
        elif s.op == "leaky":
            slope = rational(s.number)
            made = [v[i] if v[i] > 0 else slope * v[i] for i in a]
        elif s.op == "negatives":
            made = [v[j] if v[i] < 0 else v[i] for i, j in zip(a, b, strict=True)]
        elif s.op in ("cast", "convert", "stated", "relative"):
            made = [v[i] for i in a]
        elif s.op in KNOWN:
            made = [smooth.exactly(s.op, v[i], s.number) for i in a]
        elif s.op == "neg":
            made = [-v[i] for i in a]
        elif s.op == "abs":
            made = [abs(v[i]) for i in a]
        elif s.op == "sqrt":
            made = [_root(v[i]) for i in a]
        elif s.op == "rsqrt":
            made = [1 / _root(v[i]) for i in a]
        else:
            made = [BINARY[s.op](v[i], v[j]) for i, j in zip(a, b, strict=True)]
        v[s.start : s.start + s.count] = made
    return v


def peek(tape: Tape, value: Value) -> np.ndarray:
    """The numbers of a constant, each operation rounded to nearest."""
    if value.known is not None:
        return value.known
    assert value.constant
    program = Program(tape)
    x = np.zeros((1, len(program.input)))
    v = program.run(x, np.zeros((1, tape.cells)), Choice(NEAREST, operands="tf32"), np.ones(1, np.uint64))
    return v[0, value.ids].astype(value.dtype)
