"""Finds the tree of a certificate with the checker's own arithmetic, so that what is written follows by it.

The engine decides that there is something to certify; its bounds are not used: they cover folded networks, in other arithmetic. None of
this need be sound: the checker makes every bound again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch

from polytriton.certificate.tree import Node
from polytriton.checker import Boxes, Choice, Part, Progress, Prover
from polytriton.checker_files import NONE, Array, Atom, Box, Refused
from polytriton.prove.branching import Gains
from polytriton.prove.cuts import middle, widest_effect
from polytriton.prove.parts import Parts
from polytriton.prove.search import FEW
from polytriton.prove.tight import DENSE

SLACK, NOISE = 1e-8, 1e-5  # of a bound's magnitude, without and with an ascent: another processor's last digits differ, and must do
INNER, QUERY = 20, 60  # steps of ascent over a whole box
AGAIN, ASKED = 8, 20  # the same over a part of its executions


@dataclass
class Open:
    """A node still to be refuted, its part, and of each open piece the row to refute and its bound; for signs what every neuron costs.

    `given`: the part before the node was bounded.
    """

    node: Node
    part: Part
    rows: dict[int, int]
    bound: float = -np.inf
    loss: Array = field(default_factory=lambda: NONE)
    slope: Array = field(default_factory=lambda: NONE)
    given: Part | None = None

    def handed_down(self) -> Part:
        """What the checker knows below: it bounds no node that refutes nothing and asks for nothing. Knowing more may make bounds worse."""
        return self.part if self.node.inner >= 0 or self.node.closed or self.given is None else self.given


@dataclass
class Grower:
    """The tree of one box."""

    prover: Prover
    box: Box
    pieces: list[list[Atom]]
    deadline: float
    progress: Progress
    done: int = 0
    root: Node = field(default_factory=Node)
    scale: Fraction = Fraction(0)

    def grow(self) -> Node:
        """The whole tree, or Refused where the time is up or nothing is left to divide."""
        p = self.prover
        whole = p.root(self.box, len(self.pieces))
        dense = sum(p.net.sizes) <= DENSE
        free = int((whole.lo < whole.hi).sum())
        tries = [(-1, 0), (0, 0)] + [(INNER if dense else 0, QUERY)] * (free > FEW)
        for inner, query in tries:
            left = self.work([Open(self.root, whole, {})], inner, query, every=True)
            if not left:
                return self.root
        if free <= FEW:
            self._cuts(left)
        else:
            self._signs(left, AGAIN if dense else -1)
        return self.root

    def work(self, some: list[Open], inner: int, query: int, every: bool = False) -> list[Open]:
        """Bounds nodes, as many at a time as the checker will; returns those still open. `every`: all rows are asked, else those named."""
        left = []
        for a in range(0, len(some), self.prover.batch):
            left += self._work(some[a : a + self.prover.batch], inner, query, every)
        return left

    def _work(self, some: list[Open], inner: int, query: int, every: bool) -> list[Open]:
        if time.monotonic() > self.deadline:
            raise Refused("the time for its search is up")
        boxes, parts = self.prover.bound([o.part for o in some], inner)
        asked = [(j, p, r) for j, o in enumerate(some) for p in sorted(o.part.open)
                 for r in (range(len(self.pieces[p])) if every else [o.rows[p]])]  # fmt: skip
        at = np.array([j for j, _, _ in asked], dtype=np.int64)
        rows = [self.pieces[p][r] for _, p, r in asked]
        found, choices = boxes.margins(self.prover.draft, rows, at, query)
        if every:
            self.scale = max(abs(m) for m in found)
        best: list[dict[int, tuple[Fraction, int, int]]] = [{} for _ in some]
        for q, ((j, p, r), margin) in enumerate(zip(asked, found, strict=True)):
            best[j][p] = max(best[j].get(p, (margin, r, q)), (margin, r, q))
        left = []
        for j, (o, part) in enumerate(zip(some, parts, strict=True)):
            self.done += 1
            o.node.inner, o.node.query = inner, query
            closed = [] if boxes.empty[j] else [(p, r) for p, (m, r, _) in best[j].items() if m > (NOISE if query else SLACK) * self.scale]
            still = [] if boxes.empty[j] else sorted(part.open - {p for p, _ in closed})
            o.node.closed = sorted(closed)
            if not still:
                continue
            o.rows, o.bound = {p: best[j][p][1] for p in still}, float(min(best[j][p][0] for p in still))
            o.given, o.part = o.part, part._replace(open=frozenset(still))
            self._costs(o, boxes, choices, [best[j][p][2] for p in still], rows, at, j)
            left.append(o)
        return left

    def _costs(self, o: Open, boxes: Boxes, choices: list[Choice], asked: list[int], rows: list[Atom], at: Array, j: int) -> None:
        """What every neuron's relaxation costs the rows still open, and how steep they are over the inputs."""
        if not choices:  # of rows that were bounded by the usual lines
            some = [rows[q] for q in asked]
            here = np.full(len(some), j)
            start, _ = boxes.start(some, here)
            choice, columns = boxes.choose(self.prover.draft, start, here, 0, np.zeros(len(some))), range(len(some))
            picked = [(choice, c) for c in columns]
        else:
            size = choices[0].slope.shape[1]
            picked = [(choices[q // size], q % size) for q in asked]
        o.slope = np.sum([np.abs(choice.slope[:, c].astype(np.float64)) for choice, c in picked], axis=0)
        o.loss = np.zeros((len(picked), self.prover.first[-1]), np.float32)
        for n, (choice, c) in enumerate(picked):
            for r, k in enumerate(self.prover.relus):
                if k in choice.met:
                    m = boxes.lines[k][2][:, j]
                    o.loss[n, self.prover.first[r] : self.prover.first[r + 1]] = -np.minimum(choice.met[k][:, c], 0) * m

    # ---- boxes of inputs -----------------------------------------------------------------------------------------

    def _cuts(self, left: list[Open]) -> None:
        """Halves boxes, the deepest first."""
        waiting = list(left)
        while waiting:
            count = self.prover.batch // 2 or 1
            batch, waiting = waiting[-count:], waiting[:-count]
            lo, hi = (np.stack([getattr(o.part, name) for o in batch]) for name in ("lo", "hi"))
            axis = widest_effect(lo, hi, np.stack([np.nan_to_num(o.slope) for o in batch]))
            if (axis < 0).any():
                raise Refused("a box that no number divides is still open")
            cut = middle(lo, hi)[np.arange(len(axis)), axis]
            made = []
            for o, i, c in zip(batch, axis.tolist(), cut.tolist(), strict=True):
                if not o.node.closed:
                    o.node.inner, o.node.query = -1, 0
                halves = self.prover.divide(o.handed_down(), i, c)
                made += [Open(n, p, o.rows) for n, p in zip(o.node.divide(i, c), halves, strict=True)]
            waiting += self.work(made, 0, 0, every=True)
            self.progress(f"certificate: {self.done:,} boxes, open", len(waiting), self.done)

    # ---- signs of neurons ----------------------------------------------------------------------------------------

    def _signs(self, left: list[Open], inner: int) -> None:
        """Divides by the neuron that raises bounds most among a few, the worst part first."""
        p, n = self.prover, len(self.prover.first) - 1
        gains = Gains(1, torch.repeat_interleave(torch.arange(n), torch.tensor(p.sizes)))
        waiting = list(left)
        while waiting:
            waiting.sort(key=lambda o: -o.bound)
            count = max(1, p.batch // 8)
            batch, waiting = waiting[-count:], waiting[:-count]
            parts = self._parts(batch)
            part, neuron = gains.candidates(parts)
            if len(torch.unique(part)) < len(batch):
                raise Refused("a part without undecided neurons is still open")
            tried = []
            for q, j in zip(part.tolist(), neuron.tolist(), strict=True):
                o, split = batch[q], len(batch[q].part.lo) + j
                tried.append([Open(Node(), half, o.rows) for half in p.divide(o.handed_down(), split, 0.0)])
            every = [pair[0] for pair in tried] + [pair[1] for pair in tried]
            still = {id(o) for o in self.work(every, inner, ASKED)}
            for o in every:
                o.bound = o.bound if id(o) in still else np.inf
            best = gains.best(parts, part, neuron, self._parts(every, parts, part.repeat(2)))
            for b in best.tolist():
                o = batch[int(part[b])]
                o.node.divide(len(o.part.lo) + int(neuron[b]), 0.0, *(child.node for child in tried[b]))
                waiting += [child for child in tried[b] if id(child) in still]
            self.progress(f"certificate: {self.done:,} parts, open", len(waiting), self.done)

    def _parts(self, some: list[Open], parents: Parts | None = None, which: torch.Tensor | None = None) -> Parts:
        """As the engine's branching sees them: one form, the sum of what is open."""
        n, width = len(some), int(self.prover.first[-1])
        made = Parts.roots(torch.zeros(n, 1, dtype=torch.int64), width)
        made.tree = torch.zeros(n, dtype=torch.int64)
        made.signs = torch.from_numpy(np.stack([o.part.signs for o in some]))
        made.lo, made.hi = (torch.from_numpy(np.stack([getattr(o.part, v) for o in some])) for v in ("low", "high"))
        made.bound = torch.tensor([[o.bound] for o in some], dtype=torch.float64)
        if parents is None:
            made.loss = torch.from_numpy(np.stack([o.loss.sum(0) for o in some])[:, None])
        return made
