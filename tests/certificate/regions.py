"""The linear regions of a small ReLU network over a box, exactly: convex cells with rational vertices.

Knows neither the engine nor the checker. A cell is cut by every neuron that has both signs on it; a new vertex lies on each edge that the
cut crosses. On a cell everything is affine, so the least value of a form lies at a vertex.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from tests.prove.piecewise import Form, Numbers, Small, worst


class Corner(NamedTuple):
    """An input, the values that a layer has there, and the names of the planes through it."""

    x: Numbers
    h: Numbers
    planes: frozenset[object]


Cell = list[Corner]


def box_cell(lo: Numbers, hi: Numbers) -> tuple[Cell, int]:
    """A box as a cell, and how many of its inputs are free."""
    ends = [((0, a),) if a == b else ((0, a), (1, b)) for a, b in zip(lo, hi, strict=True)]
    made = []
    for some in product(*ends):
        x = tuple(v for _, v in some)
        made.append(Corner(x, x, frozenset(("input", i, side) for i, (side, _) in enumerate(some))))
    return made, sum(len(e) == 2 for e in ends)


def cut(cell: Cell, free: int, name: object, g: Callable[[Corner], Fraction]) -> list[Cell]:
    """The cell, or its two halves where g, affine on it, has both signs.

    Two corners end an edge where they share free - 1 planes and no third corner lies on all that they share.
    """
    values = [g(c) for c in cell]
    if min(values) >= 0 or max(values) <= 0:
        return [cell]
    between: dict[Numbers, Corner] = {}
    halves: tuple[Cell, Cell] = [], []
    for c, v in zip(cell, values, strict=True):
        for side in (0, 1):
            if v == 0 or (v > 0) == bool(side):
                halves[side].append(c if v else c._replace(planes=c.planes | {name}))
    for p, v in zip(cell, values, strict=True):
        for q, u in zip(cell, values, strict=True):
            shared = p.planes & q.planes
            if v < 0 < u and len(shared) >= free - 1 and not any(shared <= r.planes for r in cell if r is not p and r is not q):
                at = v / (v - u)
                x, h = (tuple(a if a == b else a + at * (b - a) for a, b in zip(*pair, strict=True)) for pair in ((p.x, q.x), (p.h, q.h)))
                between[x] = Corner(x, h, shared | {name})
    return [half + list(between.values()) for half in halves]


def cells(net: Small, lo: Numbers, hi: Numbers) -> tuple[list[Cell], int]:
    """Cells on each of which the network is affine, their corners with its outputs; and how many inputs are free."""
    first, free = box_cell(lo, hi)
    some = [first]
    for k, (w, b) in enumerate(net.layers):
        rows = [[(i, Fraction(v)) for i, v in enumerate(row.tolist()) if v] for row in w]
        shift = [Fraction(v) for v in b.tolist()]
        seen: dict[tuple[Numbers, Numbers], Numbers] = {}

        def image(c: Corner, rows: list[list[tuple[int, Fraction]]] = rows, shift: list[Fraction] = shift, seen=seen) -> Corner:  # type: ignore[no-untyped-def]
            if (c.x, c.h) not in seen:
                seen[c.x, c.h] = tuple(sum((v * c.h[i] for i, v in row), s) for row, s in zip(rows, shift, strict=True))
            return c._replace(h=seen[c.x, c.h])

        some = [[image(c) for c in cell] for cell in some]
        if k + 1 < len(net.layers):
            for j in range(len(w)):
                some = [half for cell in some for half in cut(cell, free, ("neuron", k, j), lambda c, j=j: c.h[j])]  # type: ignore[misc]
            some = [[c._replace(h=tuple(max(v, Fraction(0)) for v in c.h)) for c in cell] for cell in some]
    return some, free


def least(some: list[Cell], free: int, forms: Sequence[Form]) -> tuple[Fraction, Numbers]:
    """The least value over the cells of the greatest form, and where."""
    for i in range(len(forms)):
        for j in range(i):
            name = ("forms", i, j)
            some = [
                half
                for cell in some
                for half in cut(cell, free, name, lambda c, i=i, j=j: forms[i].at(c.x, c.h) - forms[j].at(c.x, c.h))  # type: ignore[misc]
            ]
    return min((worst(forms, (c.x, c.h)), c.x) for cell in some for c in cell)
