"""Divides further what the ends of a certificate's tree leave open. Nothing here is trusted: the checker makes both halves itself, and
bounds them anew.

A search's bounds are not the checker's: an end that one proves by a little the other may miss by as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from polytriton.certificate.draft import Draft
from polytriton.checker import TIGHT, Part, Progress, Prover, Tree, Work, follow
from polytriton.checker_boxes import BLOCK, Boxes
from polytriton.checker_files import Array, Atom, Box, Refused, need
from polytriton.checker_slopes import Choice, Hint, StillOpen, column_of
from polytriton.prove.cuts import FEW, middle, widest_effect

DENSE = 1 << 13  # values of a network up to which the operands of ReLUs are bounded with slopes of their own
INNER, QUERY = 20, 60  # steps of ascent over a whole box
AGAIN, ASKED = 8, 20  # the same over a part of its executions
LAST = 100  # of ascent for rows, where no neuron of a part is undecided
WIDENS = 2.0  # times what a row pays for rounding, since lines are wider by it too
LITTLE = 0.8  # a box of which rows leave less is bounded again before it is divided
MORE, LEAST = 10, 10_000  # divisions, for every node of a tree, and for any tree
Clock = Callable[[], float]  # seconds


def whole_steps(cells: int) -> tuple[int, int]:
    """How a box is bounded whose executions are divided by signs: steps of ascent for inner values and rows, -1 for intervals."""
    return (INNER if cells <= DENSE else 0), QUERY


def part_steps(cells: int) -> tuple[int, int]:
    """How parts of its executions are."""
    return (AGAIN if cells <= DENSE else -1), ASKED


def silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


class Guide:
    """`most`: divisions in all, or cuts; `deadline`: of the `clock`; `cuts`: what is left of boxes may be cut by rows before, as no
    tree says: then there is no completed one. Of the last tree, `below` is what it was divided into."""

    def __init__(
        self, most: int, deadline: float | None = None, progress: Progress = silent, *, cuts: bool = False, clock: Clock = time.monotonic
    ) -> None:
        self.most, self.deadline, self.clock, self.progress, self.count, self.cuts = most, deadline, clock, progress, 0, cuts
        self.below: dict[int, tuple[Hint, int]] = {}  # by node what was said, and the first half's number; the second's is one less
        self.last = 0
        self.closed: list[tuple[int, int, int]] = []  # node, piece, row

    def note(self, node: int, piece: int, row: int) -> None:
        """What was refuted where."""
        self.closed.append((node, piece, row))

    def divide(self, prover: Prover, pieces: list[list[Atom]], boxes: Boxes, left: list[Work], at: Array) -> list[Hint]:
        """For each of these nodes, bounded in columns `at` of `boxes`: where to divide it, or how to bound it once more."""
        need(self.deadline is None or self.clock() < self.deadline, "the time for its search is up", StillOpen)
        cells, hints = sum(prover.net.sizes), dict[int, Hint]()
        cut, signed, again = list[int](), list[int](), _shrunk(boxes, left, at)
        rounded = _find_rounded(prover, pieces, boxes, left, at)
        for k, w in enumerate(left):
            few = int((np.nextafter(w.part.lo, np.inf) < w.part.hi).sum()) <= FEW and not w.part.signs.any()  # signs go on with signs
            wanted = (0, 0) if few else part_steps(cells) if w.part.signs.any() else whole_steps(cells)
            if (w.inner, w.query) < wanted:
                hints[k] = (-1, 0.0, *wanted)
            elif rounded[k]:
                hints[k] = (-1, 0.0, w.inner + TIGHT, w.query)
                self.count += 1
            elif few and again[k]:
                hints[k] = (-1, 0.0, w.inner, w.query)
                self.count += 1
            elif not few and not _find_undecided(w.part).any():  # what is left is the choice of multipliers
                need(w.query < LAST, "a part without undecided neurons is still open", StillOpen)
                hints[k] = (-1, 0.0, w.inner, LAST)
            else:
                (cut if few else signed).append(k)
        self.count += len(cut) + len(signed)
        need(self.count <= self.most, f"still open after {self.most} divisions that the certificate does not have", StillOpen)
        self.progress("divided further", self.count, self.most)
        ways: list[tuple[list[int], Callable[..., list[tuple[int, float]]], tuple[int, int]]]
        ways = [(cut, _inputs, (0, 0)), (signed, _neurons, part_steps(cells))]
        for some, choose, how in ways:
            if some:
                mine = [left[k].part for k in some]
                where = choose(mine, *_costs(prover, pieces, boxes, mine, at[some]))
                hints |= {k: (*w, *how) for k, w in zip(some, where, strict=True)}
        for k, w in enumerate(left):
            self.below[w.node] = hints[k], self.last - 1
            self.last -= 1 if hints[k][0] < 0 else 2
        return [hints[k] for k in range(len(left))]

    def complete(self, tree: Tree) -> Draft:
        """The tree with what it was divided into below its ends."""
        nodes, split, cut = [(0, int(tree.inner[0]), int(tree.query[0]))], list[int](), list[float]()
        number: dict[int, int] = {}
        for k, (n, _, _) in enumerate(nodes):
            number[n] = k
            while n in self.below and self.below[n][0][0] < 0:  # bounded once more
                hint, n = self.below[n]
                nodes[k], number[n] = (n, *hint[2:]), k
            where, children = (-1, 0.0), list[tuple[int, int, int]]()
            if not tree.ends(n):
                where, first = (int(tree.split[n]), float(tree.cut[n])), int(tree.child[n])
                children = [(c, int(tree.inner[c]), int(tree.query[c])) for c in (first, first + 1)]
            elif n in self.below:
                (s, c, *how), first = self.below[n]
                where, children = (s, c), [(first, how[0], how[1]), (first - 1, how[0], how[1])]
            split.append(where[0])
            cut.append(where[1])
            nodes += children
        closed = np.array([(number[n], p, r) for n, p, r in self.closed], np.int32).reshape(-1, 3)
        _, inner, query = zip(*nodes, strict=True)
        return Draft(tree.box, tree.own, np.array(split), np.array(cut), np.array(inner), np.array(query), closed)


def enough(nodes: int) -> int:
    """How often what a tree of so many nodes leaves open may be divided further."""
    return LEAST + MORE * nodes


def complete(prover: Prover, box: Box, pieces: list[list[Atom]], tree: Tree, guide: Guide | None = None) -> Tree:
    """A tree that needs no guide, or Refused."""
    guide = guide or Guide(enough(len(tree.split)))
    guide.below, guide.closed, guide.last = {}, [], 0  # what it says is of this tree
    follow(prover, box, pieces, tree, np.ones(len(tree.split), dtype=bool), lambda n: None, guide)
    return Tree(guide.complete(tree).arrays())


class Completion:
    """The same for who proves more than floats do: a tree as it is, where they do not follow it. Trees share what may be divided."""

    def __init__(self) -> None:
        self.left = LEAST

    def __call__(self, prover: Prover, box: Box, pieces: list[list[Atom]], tree: Tree) -> Tree:
        guide = Guide(self.left + MORE * len(tree.split))
        try:
            return complete(prover, box, pieces, tree, guide)
        except Refused:
            return tree
        finally:
            self.left = max(0, guide.most - guide.count)


def _inputs(parts: list[Part], slope: Array, _: Array) -> list[tuple[int, float]]:
    """The input of each box with the greatest effect on its rows, and its middle."""
    lo, hi = (np.stack([getattr(p, name) for p in parts]) for name in ("lo", "hi"))
    axis = widest_effect(lo, hi, slope)
    need((axis >= 0).all(), "a box that no number divides is still open", StillOpen)
    return list(zip(axis.tolist(), middle(lo, hi)[np.arange(len(axis)), axis].tolist(), strict=True))


def _shrunk(boxes: Boxes, left: list[Work], at: Array) -> Array:
    """Whether rows left little enough of each box to bound it again."""
    before = (boxes.hi[0] - boxes.lo[0])[:, at]
    after = np.stack([w.part.hi - w.part.lo for w in left], 1)
    return np.where(before > 0, after / np.where(before > 0, before, 1.0), 1.0).prod(0) < LITTLE


def _find_undecided(part: Part) -> Array:
    return (part.low < 0) & (part.high > 0) & (part.signs == 0)


def _neurons(parts: list[Part], _: Array, loss: Array) -> list[tuple[int, float]]:
    """The neuron of each part that costs its rows most."""
    low, high, undecided = (np.stack(some) for some in zip(*((p.low, p.high, _find_undecided(p)) for p in parts), strict=True))
    score = np.where(undecided, loss + 1e-9 * np.minimum(high, -low), -1.0)
    return [(len(p.lo) + k, 0.0) for p, k in zip(parts, score.argmax(1).tolist(), strict=True)]


def _costs(prover: Prover, pieces: list[list[Atom]], boxes: Boxes, parts: list[Part], at: Array) -> tuple[Array, Array]:
    """How steep all open rows of each part are over the inputs, and what every neuron's relaxation costs them, in all."""
    slope, loss = np.zeros((len(parts), prover.net.sizes[0])), np.zeros((len(parts), int(prover.first[-1])))
    for which, _, box, choice in _usual(prover, pieces, boxes, parts, at):
        np.add.at(slope, which, np.nan_to_num(np.abs(choice.slope.T.astype(np.float64))))
        for r, k in enumerate(prover.relus):
            if k in choice.met:
                cost = -np.minimum(choice.met[k], 0) * boxes.lines[k][2][:, box]
                np.add.at(loss[:, prover.first[r] : prover.first[r + 1]], which, np.nan_to_num(cost.T))
    return slope, loss


def _find_rounded(prover: Prover, pieces: list[list[Atom]], boxes: Boxes, left: list[Work], at: Array) -> Array:
    """Nodes where some row's bound would suffice but for what executions round. What ReLUs read is large there where intervals
    alone decided it, and errors are charged by magnitudes: such nodes are bounded again, that too.
    """
    found = np.zeros(len(left), dtype=bool)
    some = [k for k, w in enumerate(left) if prover.semantics != "real" and 0 <= w.inner < TIGHT and not w.part.signs.any()]
    for which, rows, box, choice in _usual(prover, pieces, boxes, [left[k].part for k in some], at[some]):
        margin, charge = np.array(boxes.margins(prover.draft, rows, box, 0)[0], dtype=np.float64), np.zeros(len(rows))
        for k, a in choice.met.items():
            if prover.net.ops[k].kind == "relu":
                s, t, e = (column_of(v, box) for v in (*boxes.lines[k][:2], boxes.z[k][2]))
                charge += np.nan_to_num(np.abs(np.where(a >= 0, s, t) * a) * e).sum(0)
        found[np.array(some)[which[margin + WIDENS * charge > 0]]] = True
    return found


def _usual(
    prover: Prover, pieces: list[list[Atom]], boxes: Boxes, parts: list[Part], at: Array
) -> Iterator[tuple[Array, list[Atom], Array, Choice]]:
    """All open rows of the parts with the usual slopes, some at a time: of which part each is, and over which box."""
    asked = [(k, row) for k, part in enumerate(parts) for p in sorted(part.open) for row in pieces[p]]
    size = max(1, BLOCK // sum(prover.net.sizes))
    for a in range(0, len(asked), size):
        which = np.array([k for k, _ in asked[a : a + size]])
        rows, box = [row for _, row in asked[a : a + size]], at[which]
        yield which, rows, box, boxes.choose(prover.draft, boxes.start(rows, box)[0], box, 0, np.zeros(len(rows)))
