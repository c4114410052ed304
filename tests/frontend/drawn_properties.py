"""Random properties in Python as plain trees, what they mean in Fractions, and what a VNN-LIB text means: no code of the package."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction as F
from operator import add, mul, sub, truediv
from random import Random
from typing import Any

import numpy as np

INPUTS, OUTPUTS = (2, 2), 3
TENTH, TENTH32 = F(3602879701896397, 1 << 55), F(13421773, 1 << 27)  # what float64 and float32 hold for 0.1
NUMBERS: tuple[tuple[Any, F], ...] = (
    (0, F(0)), (1, F(1)), (-2, F(-2)), (0.5, F(1, 2)), (-1.25, F(-5, 4)), (0.1, TENTH), ("0.1", F(1, 10)), (Decimal("0.1"), F(1, 10)),
    (np.float32(0.1), TENTH32), (np.float64(-0.75), F(-3, 4)), (np.int8(3), F(3)), (F(1, 3), F(1, 3)), ("-1/3", F(-1, 3)),
    ("25e-2", F(1, 4)), (Decimal("-1.5"), F(-3, 2)), (np.array(0.25), F(1, 4)), (" 2 ", F(2)),
)  # fmt: skip
DIVISORS = tuple((v, f) for v, f in NUMBERS if f)
SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul, "/": truediv}
CHECKS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}

GRID = [k / 4 for k in range(-8, 9)] + [0.1, 0.10000000149011612, -0.1, 0.30000000000000004, 1 / 3]
Tree = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A box by pairs of numbers, what is unsafe and what is safe in it, and points to ask about."""

    box: list[tuple[tuple[Any, F], tuple[Any, F]]]
    unsafe: list[Tree]
    safe: list[Tree]
    points: list[tuple[list[float], list[float]]]

    def violated(self, xs: Sequence[float], ys: Sequence[float]) -> bool:
        x, y = [F(v) for v in xs], [F(v) for v in ys]
        inside = all(lo[1] <= v <= hi[1] for (lo, hi), v in zip(self.box, x, strict=True))
        return inside and (any(meaning(t, x, y) for t in self.unsafe) or not all(meaning(t, x, y) for t in self.safe))


def draw(rng: Random) -> Case:
    box = []
    for _ in range(4):
        ends = [rng.choice(NUMBERS) for _ in range(2)] if rng.random() < 0.4 else [(-2, F(-2)), (" 2 ", F(2))]
        box.append(tuple(sorted(ends, key=lambda end: end[1])))
    many = rng.choice([(1, 0), (0, 1), (2, 0), (0, 2), (1, 1), (3, 1)])
    unsafe, safe = ([_condition(rng, rng.choice([0, 0, 1, 2])) for _ in range(n)] for n in many)
    inner = [[v for v in GRID if lo[1] <= F(v) <= hi[1]] or GRID for lo, hi in box]  # most points lie in the box
    points = [([rng.choice(g if rng.random() < 0.97 else GRID) for g in inner], [rng.choice(GRID) for _ in range(3)]) for _ in range(40)]
    return Case(box, unsafe, safe, points)  # type: ignore[arg-type]


def _condition(rng: Random, depth: int) -> Tree:
    if depth:
        op = rng.choice("&|~")
        return (op, *(_condition(rng, depth - 1) for _ in range(1 if op == "~" else 2)))
    sides = [_term(rng, rng.choice([0, 1, 1, 2])), rng.choice([_literal(rng), _term(rng, 0), _term(rng, 1)])]
    rng.shuffle(sides)
    return (rng.choice(sorted(CHECKS)), *sides)


def _term(rng: Random, depth: int) -> Tree:
    if not depth:
        return ("x", rng.randrange(4)) if rng.random() < 0.4 else ("y", rng.randrange(3))
    op, inner = rng.choice(["+", "-", "+", "-", "*", "/", "neg"]), _term(rng, depth - 1)
    if op == "neg":
        return op, inner
    if op == "/":
        return op, inner, ("number", rng.choice(DIVISORS))
    sides = [inner, _literal(rng) if op == "*" or rng.random() < 0.5 else _term(rng, depth - 1)]
    rng.shuffle(sides)
    return (op, *sides)


def _literal(rng: Random) -> Tree:
    return "number", rng.choice(NUMBERS)


def built(tree: Any, x: Any, y: Any) -> Any:
    """The tree by Python's operators on the package's objects."""
    op, *rest = tree
    if op == "x":
        return x[divmod(rest[0], 2)]
    if op == "y":
        return y[rest[0]]
    if op == "number":
        return rest[0][0]
    args = [built(t, x, y) for t in rest]
    if op in CHECKS:
        return CHECKS[op](*args)
    if len(args) == 1:
        return -args[0] if op == "neg" else ~args[0]
    return SUMS[op](*args) if op in SUMS else args[0] & args[1] if op == "&" else args[0] | args[1]


def meaning(tree: Any, x: Sequence[F], y: Sequence[F]) -> Any:
    """The tree's value at a point."""
    op, *rest = tree
    if op in ("x", "y"):
        return (x if op == "x" else y)[rest[0]]
    if op == "number":
        return rest[0][1]
    args = [meaning(t, x, y) for t in rest]
    if op in CHECKS:
        return CHECKS[op](*args)
    if len(args) == 1:
        return -args[0] if op == "neg" else not args[0]
    return SUMS[op](*args) if op in SUMS else all(args) if op == "&" else any(args)


def holds(text: str, point: dict[str, F]) -> bool:
    """Whether all asserts of a VNN-LIB text hold at a point, by the standard's own words."""
    tokens = iter(re.findall(r"[()]|[^\s()]+", re.sub(r";.*", "", text)))

    def tree() -> list[Any]:
        made: list[Any] = []
        for token in tokens:
            if token == ")":
                break
            made.append(tree() if token == "(" else token)
        return made

    def value(e: Any) -> Any:
        if isinstance(e, str):
            return e == "true" if e in ("true", "false") else point[e] if e in point else F(e)
        args = [value(a) for a in e[1:]]
        if e[0] in ("and", "or"):
            return all(args) if e[0] == "and" else any(args)
        if e[0] in CHECKS:
            return CHECKS[e[0]](*args)
        if e[0] == "+":
            return sum(args, F(0))
        return SUMS[e[0]](*args)

    return all(value(e[1]) for e in tree() if e[0] == "assert")
