"""The check of a `real` certificate once more, in whole numbers: no float is rounded, and no charge pays for any (`check --exact`).

The tree is walked as `checker.py` does, one node at a time, and the rules are those of its docstring; what is proved is proved here alone.
Floats serve for two things that nobody need trust: which slopes and multipliers a row takes (`Boxes.choose`), and which rows are worth a
second try. A number is an integer times 2^-e with an e of its own; sums bring both to the larger e. Bounds of values are rounded outward to
multiples of 2^-GRID, slopes to multiples of 2^-STEP inside [0, 1]. A line above is t z + m with m = max(-t l, (1 - t) h), exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polytriton.checker import Checked, Part, Progress, Prover, Tree, open_files, plain
from polytriton.checker_boxes import Boxes
from polytriton.checker_files import Array, Atom, Box, Network, Unsupported, need
from polytriton.checker_slopes import StillOpen

GRID, STEP = 128, 60
MOST_CELLS = 5000


@dataclass(frozen=True, eq=False)
class Whole:
    """An array of integers, each times 2^-e."""

    n: Array
    e: int

    def shift(self, e: int) -> Array:
        return self.n << (e - self.e) if e > self.e else self.n

    def __add__(self, other: Whole) -> Whole:
        e = max(self.e, other.e)
        return Whole(self.shift(e) + other.shift(e), e)


def whole(values: Array) -> Whole:
    """Floats exactly."""
    some = [v.as_integer_ratio() for v in values.ravel().tolist()]
    e = max((d.bit_length() - 1 for _, d in some), default=0)
    made = np.array([n << (e - d.bit_length() + 1) for n, d in some] + [None], dtype=object)[:-1]
    return Whole(made.reshape(values.shape), e)


def floor(w: Whole) -> Array:
    """To the grid, not above; bounds from above go through it with both signs turned."""
    return w.n >> (w.e - GRID) if w.e > GRID else w.shift(GRID)


class Affine(NamedTuple):
    """w y + b of an affine operator."""

    w: Whole
    b: Whole


def layers(net: Network) -> dict[int, Affine]:
    made = {}
    for k, op in enumerate(net.ops):
        if op.push:
            need(op.ops == 0, "an operator whose weights were computed (a batch norm, Mul, Div): not exactly what the file says")
            eye = np.eye(net.sizes[op.inputs[0]])
            w = op.push(eye, np.asarray)  # an entry is one weight of the file: times 1, and zeros are added
            need((w == op.pull(np.eye(net.sizes[k])).T).all(), "weights that its two readings do not agree on")
            made[k] = Affine(whole(w), whole(np.asarray(op.b, np.float64)))
    return made


class Ends:
    """Of every value over one node's executions, on the grid; lines as (slopes below and above in steps, intercepts on GRID + STEP)."""

    def __init__(self, net: Network, made: dict[int, Affine], lo: Array, hi: Array, signs: dict[int, Array]) -> None:
        self.net, self.layers, self.signs = net, made, signs
        self.lo: dict[int, Array] = {0: lo}
        self.hi: dict[int, Array] = {0: hi}
        self.lines: dict[int, tuple[Array, Array, Array]] = {}
        self.empty = False

    def put(self, k: int, lo: Array, hi: Array) -> None:
        """Both are proved: where they cross there is no execution, and any box will do."""
        self.empty |= bool((lo > hi).any())
        self.lo[k], self.hi[k] = np.minimum(lo, hi), hi

    def interval(self, k: int) -> None:
        op, i = self.net.ops[k], self.net.ops[k].inputs[0]
        if op.kind == "relu":
            self.put(k, np.maximum(self.lo[i], 0), np.maximum(self.hi[i], 0))
        elif op.kind == "add":
            j, plus = op.inputs[1], op.signs[1] > 0
            a, b = (self.lo[j], self.hi[j]) if plus else (-self.hi[j], -self.lo[j])
            self.put(k, self.lo[i] + a, self.hi[i] + b)
        else:
            w, shift = self.layers[k]
            above, below = np.maximum(w.n, 0), np.minimum(w.n, 0)
            least, most = above @ self.lo[i] + below @ self.hi[i], above @ self.hi[i] + below @ self.lo[i]
            self.put(k, floor(Whole(least, w.e + GRID) + shift), -floor(Whole(-most, w.e + GRID) + Whole(-shift.n, shift.e)))

    def narrow(self, k: int, lo: Array | None, hi: Array | None) -> None:
        """The operand of ReLU k, with the sign that is assumed of it."""
        i = self.net.ops[k].inputs[0]
        low, high = self.lo[i], self.hi[i]
        low, high = (low if lo is None else np.maximum(low, lo)), (high if hi is None else np.minimum(high, hi))
        if k in self.signs:
            low, high = np.where(self.signs[k] > 0, np.maximum(low, 0), low), np.where(self.signs[k] < 0, np.minimum(high, 0), high)
        self.put(i, low, high)

    def relax(self, k: int, proposed: Array) -> None:
        """`proposed`: slopes below. Floats decide where areas are equal, so that what they proved is not refused for a tie."""
        i = self.net.ops[k].inputs[0]
        s, t, m = (np.zeros(len(self.lo[i]), dtype=object) for _ in range(3))
        for j, (l, h) in enumerate(zip(self.lo[i].tolist(), self.hi[i].tolist(), strict=True)):
            if l < 0 < h:
                s[j], t[j] = proposed[j], (h << STEP) // (h - l)
                m[j] = max(-t[j] * l, ((1 << STEP) - t[j]) * h)
            elif l >= 0:
                s[j] = t[j] = 1 << STEP
        self.lines[k] = s, t, m

    def lower(self, rows: dict[int, Whole], c: Whole, chosen: dict[int, tuple[Array, Array]]) -> list[Fraction]:
        """Lower bounds of rows, a row of coefficients each: the best of all frontiers."""
        frontier, best = dict(rows), [-math.inf] * len(c.n)
        found: list[Any] = list(best)
        while True:
            k = max(frontier)
            op = self.net.ops[k]
            if op.kind in ("input", "relu"):
                total = c
                for n, a in frontier.items():
                    above, below = np.maximum(a.n, 0), np.minimum(a.n, 0)
                    total = total + Whole(above @ self.lo[n] + below @ self.hi[n], a.e + GRID)
                found = [max(old, Fraction(int(v), 1 << total.e)) for old, v in zip(found, total.n.tolist(), strict=True)]
                if op.kind == "input":
                    return found
            a = frontier.pop(k)
            if op.kind == "relu":
                i = op.inputs[0]
                s, t, m = self.lines[k]
                above, below = np.maximum(a.n, 0), np.minimum(a.n, 0)
                c = c + Whole(below @ m, a.e + GRID + STEP)
                own, b = chosen.get(k, (s, np.zeros_like(a.n)))
                s = np.where((self.lo[i] < 0) & (self.hi[i] > 0), own, s)
                self.give(frontier, i, Whole(above * s + below * t, a.e + STEP) + Whole(-self.signs.get(k, 0) * b, STEP))
            elif op.kind == "add":
                for i, sign in zip(op.inputs, op.signs, strict=True):
                    self.give(frontier, i, Whole(a.n * int(sign), a.e))
            else:
                w, shift = self.layers[k]
                c = c + Whole(a.n @ shift.n, a.e + shift.e)
                self.give(frontier, op.inputs[0], Whole(a.n @ w.n, a.e + w.e))

    def give(self, frontier: dict[int, Whole], k: int, a: Whole) -> None:
        frontier[k] = frontier[k] + a if k in frontier else a


def steps(values: Array, most: float) -> Array:
    """Slopes, or multipliers (which where a sign is assumed may be any, from 0 on), on the grid: what is none is made one."""
    some = np.clip(np.nan_to_num(values.T.astype(np.float64), nan=0.0, posinf=most, neginf=0.0), 0.0, most)
    return np.array([[int(v) for v in row] for row in np.floor(some * 2.0**STEP).tolist()], dtype=object).reshape(some.shape)


class Reached(NamedTuple):
    """What is known of a node: its box, bounds of ReLU operands proved above, pieces not refuted yet; as floats, for choices alone."""

    lo: Array
    hi: Array
    known: dict[int, tuple[Array, Array]]
    open: frozenset[int]
    since: int
    part: Part


class Descent:
    """One box's tree."""

    def __init__(self, prover: Prover, made: dict[int, Affine], pieces: list[list[Atom]], tree: Tree) -> None:
        self.prover, self.made, self.pieces, self.tree, self.net = prover, made, pieces, tree, prover.net
        self.least: dict[int, Any] = dict.fromkeys(tree.own, math.inf)

    def run(self, box: Box, told: Callable[[int], None]) -> dict[int, Any]:
        """The least margin proved for each piece; Refused where anything does not follow."""
        lo, hi = (np.array([sign * math.floor(sign * v * 2**GRID) for v in side], object) for sign, side in ((1, box[0]), (-1, box[1])))
        tree, done = self.tree, 0
        stack = [(0, Reached(lo, hi, {}, frozenset(tree.own), -1, self.prover.root(box, tree.own)))]
        while stack:
            k, node = stack.pop()
            node = self.bound(k, node)
            if tree.child[k] >= 0:
                both = self.divide(node, int(tree.split[k]), float(tree.cut[k]))
                stack += [(int(tree.child[k]) + side, half) for side, half in enumerate(both)]
            else:
                need(not node.open, f"node {k}: pieces {sorted(node.open)[:3]} are left open", StillOpen)
            told(done := done + 1)
        return self.least

    def divide(self, node: Reached, split: int, cut: float) -> tuple[Reached, Reached]:
        on, off = self.prover.divide(node.part, split, cut)  # refuses what is no division
        if split >= len(node.lo):
            since = on.since
            return node._replace(part=on, since=since), node._replace(part=off, since=since)
        at, q = np.arange(len(node.lo)) == split, Fraction(cut) * 2**GRID
        first, second = np.where(at, math.ceil(q), node.hi), np.where(at, math.floor(q), node.lo)
        return node._replace(hi=first, part=on, since=-1), node._replace(lo=second, part=off, since=-1)

    def bound(self, k: int, node: Reached) -> Reached:
        tree, p = self.tree, self.prover
        inner, query, asked = int(tree.inner[k]), max(0, int(tree.query[k])), tree.rows_at(k, node.open, self.pieces)
        if inner < 0 and not asked and tree.child[k] >= 0:
            return node
        floats, (part,) = p.bound([node.part], inner)
        pairs = {relu: slice(*p.first[r : r + 2]) for r, relu in enumerate(p.relus)}
        signs = {relu: node.part.signs[at].astype(object) for relu, at in pairs.items() if node.part.signs[at].any()}
        bounds, known = Ends(self.net, self.made, node.lo, node.hi, signs), dict(node.known)
        bounds.put(0, node.lo, node.hi)
        for n in range(1, len(self.net.ops)):
            op = self.net.ops[n]
            if op.kind == "relu":
                i, operand = op.inputs[0], self.net.ops[op.inputs[0]]
                bounds.narrow(n, *known.get(n, (None, None)))
                direct = bool(operand.push) and operand.inputs[0] == 0
                if inner >= 0 and operand.inputs and not direct and node.since < p.relus.index(n):
                    for tried in sorted({0, inner}):
                        self.operands(bounds, floats, n, tried)
                bounds.relax(n, steps(floats.lines[n][0], 1.0)[0])
                known[n] = bounds.lo[i], bounds.hi[i]
            bounds.interval(n)
        left = frozenset() if bounds.empty else node.open - self.refute(asked, bounds, floats, query)
        since = len(p.relus) if inner >= 0 else node.since
        return node._replace(known=known, open=left, since=since, part=part._replace(open=left, since=since))

    def operands(self, bounds: Ends, floats: Boxes, k: int, tried: int) -> None:
        """What an undecided ReLU reads, by substitution from both sides."""
        i = self.net.ops[k].inputs[0]
        at = np.flatnonzero((bounds.lo[i] < 0) & (bounds.hi[i] > 0))
        if not len(at) or bounds.empty:
            return
        rows = np.zeros((2 * len(at), self.net.sizes[i]), dtype=np.int64)
        rows[np.arange(len(at)), at], rows[len(at) + np.arange(len(at)), at] = 1, -1
        chosen = self.choose(floats, {i: rows.T.astype(np.float64)}, tried)
        found = bounds.lower({i: Whole(rows.astype(object), 0)}, Whole(np.zeros(len(rows), object), 0), chosen)
        ends = [math.floor(f * 2**GRID) for f in found]
        lo, hi = bounds.lo[i].copy(), bounds.hi[i].copy()
        lo[at], hi[at] = ends[: len(at)], [-v for v in ends[len(at) :]]
        bounds.narrow(k, lo, hi)

    def choose(self, floats: Boxes, start: dict[int, Array], tried: int) -> dict[int, tuple[Array, Array]]:
        if not tried:
            return {}
        count = next(iter(start.values())).shape[1]
        found = floats.choose(self.prover.draft, start, np.zeros(count, np.int64), tried, np.full(count, np.inf)).lines
        return {k: (steps(s, 1.0), steps(b, 2.0**40)) for k, (s, b) in found.items()}

    def refute(self, asked: list[tuple[int, int]], bounds: Ends, floats: Boxes, query: int) -> set[int]:
        best, output = dict[int, Any](), self.net.output
        for p, r in asked:
            row, limit = self.pieces[p][r]
            by = math.lcm(*(q.denominator for q in row.values()))
            frontier = {n: np.zeros((1, self.net.sizes[n]), dtype=object) for n in (0, output)}
            for v, q in row.items():
                frontier[0 if v >= 0 else output][0, max(v, ~v)] = int(q * by)
            chosen = self.choose(floats, floats.start([(row, limit)], np.zeros(1, np.int64))[0], query)
            (found,) = bounds.lower({n: Whole(a, 0) for n, a in frontier.items()}, Whole(np.zeros(1, object), 0), chosen)
            best[p] = max(best.get(p, -math.inf), found / by - limit)
        closed = {p for p, margin in best.items() if margin > 0}
        self.least |= {p: min(self.least[p], best[p]) for p in closed}
        return closed


def _further(progress: Progress, before: int, total: int, done: int) -> None:
    progress("nodes", before + done, total)


Complete = Callable[[Prover, Box, list[list[Atom]], Tree], Tree]


@plain
def check(
    onnx: Path, vnnlib: Path, certificate: Path, progress: Progress = lambda *_: None, complete: Complete = lambda *tree: tree[-1]
) -> Checked:
    """What a `real` certificate proves, with margins as fractions, or Refused. `complete` may divide a tree further, as floats find."""
    semantics, prover, pieces, trees = open_files(onnx, vnnlib, certificate)
    instead = "check it without --exact, or verify with --semantics real"
    need(semantics == "real", f"whole numbers check certificates of real, this is of {semantics} executions: {instead}", Unsupported)
    need(sum(prover.net.sizes) <= MOST_CELLS, f"more than {MOST_CELLS} values: whole numbers would take too long", Unsupported)
    made, groups, walked = layers(prover.net), list(pieces.items()), 0
    trees = [complete(prover, *groups[t.box], t) for t in trees]
    total = sum(len(t.split) for t in trees)
    margins: dict[tuple[int, int], Any] = {(b, p): math.inf for b, (_, group) in enumerate(groups) for p in range(len(group))}
    for tree in trees:
        found = Descent(prover, made, groups[tree.box][1], tree).run(groups[tree.box][0], partial(_further, progress, walked, total))
        margins |= {(tree.box, p): min(margins[tree.box, p], m) for p, m in found.items()}
        walked += len(tree.split)
    return Checked(semantics, list(margins.values()), total, (total + len(trees)) // 2)
