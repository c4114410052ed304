"""Parts of boxes, a batch of them at a time: bounded, closed where a bound refutes them, and what is left clipped and divided.

A part is refuted by the same bounds as a whole box, and the parts cover the box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytriton.frontend.norm_balls import BoxBalls
from polytriton.ir.plan import extent
from polytriton.passes.pipeline import Compiled
from polytriton.prove import cuts
from polytriton.prove.attempt import Answers
from polytriton.prove.decider import Decider
from polytriton.prove.domains import Domains, Pieces
from polytriton.prove.options import Options
from polytriton.prove.questions import Questions
from polytriton.prove.trail import Trail
from polytriton.runtime.engine import Engine, _silent
from polytriton.runtime.forward import Boxes
from polytriton.runtime.lines import input_lines
from polytriton.runtime.relax import round_outward
from polytriton.runtime.results import Forms

OPERATIONS = 2e10  # of a batch: a fraction of a second, so that clocks and progress are looked at
MOST = 4096  # domains of a batch
FILL = 32  # domains up to which a batch is filled with halves of halves, where it could hold as many again for each of them
FEW = 16  # of so many domains a pass that pays for rounding is worth it for one
LEVEL = 2.0**-10
LEAST = 5e-324  # what "above zero" means as a number
POINTS = 2048  # places where bounds are least, tried as counterexamples at a time

BoxBatch = tuple[Domains, int, bool, int]  # parts, ways of bounding left, whether points worth trying are wanted, the first free name


class BoxesTold(NamedTuple):
    """What came of a batch: the parts left, the depths of those refuted, what was noted, the least bounds of the groups refuted, the most
    cuts of a part, the ways of bounding left, why the search should end, and points worth trying where they are wanted.
    """

    left: Domains | None
    closed: np.ndarray
    trail: Trail
    least: np.ndarray
    depth: int
    ways: int
    ended: str
    points: np.ndarray | None


@dataclass
class Bounded:
    """What one pass found of a batch: per form its domain, its group there and its bounds; the boxes; and the forms as they were asked."""

    at: np.ndarray
    local: np.ndarray
    form: np.ndarray
    best: np.ndarray
    raw: np.ndarray
    forms: Forms
    boxes: Boxes


@dataclass(frozen=True)
class Refuting:
    """What another process needs to refute parts of the questions' boxes."""

    compiled: Compiled
    options: Options
    q: Questions
    best: np.ndarray
    settled: np.ndarray
    noted: bool

    def open(self) -> Callable[[BoxBatch], BoxesTold]:
        answers = Answers(self.best, self.best, self.settled, trail=Trail(wanted=self.noted))
        return Refuter(Decider(self.compiled, self.options), self.q, answers, None).bound_batch


def halves_cost_less(batch: Domains, hopeful: np.ndarray) -> bool:
    """Whether these are so few of a batch that halves of them cost less than a pass of their own. Where halves are no better their number
    grows from batch to batch, until the pass is worth it; what cannot be divided has no halves.
    """
    few = batch.pick(hopeful)
    return len(few) * FEW < len(batch) and bool((cuts.widest_effect(few.lo, few.hi, np.ones(few.lo.shape)) >= 0).all())


class Refuter:
    """Bounds batches of parts of the questions' boxes, for a search here or in another process."""

    def __init__(self, decider: Decider, q: Questions, answers: Answers, deadline: float | None) -> None:
        self.decider, self.q, self.answers, self.deadline = decider, q, answers, deadline
        self.pieces = Pieces.of_questions(q)
        net, plan = decider.compiled.net, decider.compiled.plan
        self.nodes = [p.target for p in plan if p.kind == "bound"]
        self.cells = [net.node(name).size for name in self.nodes]
        self.trail = answers.trail or Trail(wanted=False)
        self.size = self._size()
        self.least = np.full(len(answers.settled), np.inf)  # of a group's refuted parts the least bound
        # what is clipped off is proved to this level: so little of the first bound that hardly more is kept
        self.level = np.zeros(len(answers.settled))
        first = np.where(np.isfinite(answers.best), np.abs(answers.best), 0.0)
        np.maximum.at(self.level, q.group, LEVEL * first)
        quick = decider.tries(patient=False)
        self.ways = list(dict.fromkeys(replace(t, rescue=False) for t in quick))  # the quickest, then what pays for rounding
        self.all_ways = self.ways
        self.depth, self.ended = 0, ""
        self._closed: list[np.ndarray] = []
        self._looks = False
        self._points: np.ndarray | None = None

    def _size(self) -> int:
        """Domains of a batch: as many as keep it short, whatever the machine, so that a search can be repeated."""
        ops = self.decider.compiled.plan.count_ops(self.decider.compiled.net)
        return int(max(1, min(MOST, OPERATIONS // max(ops, 1))))

    def bound_batch(self, asked: BoxBatch) -> BoxesTold:
        """Bounds a batch in the last `ways` ways, and tells what that shows. The batch and what this search knows stay as they are."""
        batch, ways, self._looks, first = asked
        kept = self.trail, self.ways, self.least, self.depth, self.ended
        self.trail, self.ways = Trail(first=first, wanted=self.trail.wanted), self.all_ways[-ways:]
        self.least, self.depth, self.ended, self._closed, self._points = np.full_like(self.least, np.inf), 0, "", [], None
        try:
            left = self._refute(replace(batch, open=batch.open.copy(), bound=batch.bound.copy()))
            closed = np.concatenate([np.zeros(0, dtype=np.int32), *self._closed])
            return BoxesTold(left, closed, self.trail, self.least, self.depth, len(self.ways), self.ended, self._points)
        finally:
            self.trail, self.ways, self.least, self.depth, self.ended = kept

    def _refute(self, batch: Domains) -> Domains | None:
        """The parts that are left of a batch, already divided."""
        if self.q.balls is not None:
            batch = self._in_balls(batch, self.q.balls)
            if not len(batch):
                return None
        for k, how in enumerate(self.ways):
            engine = self.decider.engine(how)
            found = self._bound(engine, batch)
            self._close(batch, found)
            hopeful = self._nearly(batch, found) if k + 1 < len(self.ways) else np.zeros(0, dtype=bool)
            if not hopeful.any() or halves_cost_less(batch, hopeful):
                break
            # float32 rounding stands in the way of some: those again, and where it is of most, float64 from now on
            self.trail.tight = True
            if hopeful.sum() > 0.5 * len(batch):
                self.ways = self.ways[k + 1 :]
                break
            some = batch.pick(hopeful)
            self._close(some, self._bound(self.decider.engine(self.ways[k + 1]), some))
            batch.open[hopeful] = some.open
            break
        return self._divide(batch, found, engine)

    def _in_balls(self, batch: Domains, balls: BoxBalls) -> Domains:
        """Every part cut to the box around what its ball leaves of it; a part that its ball misses has no input."""
        lo, hi = cuts.meet_balls(batch.lo, batch.hi, balls.pick(batch.root))
        held = np.all(lo <= hi, axis=1)
        self._closed.append(batch.depth[~held])
        return replace(batch, lo=lo, hi=hi).pick(np.flatnonzero(held))

    def _bound(self, engine: Engine, batch: Domains) -> Bounded:
        at, local, form = self.pieces.rows(batch)
        forms = self.decider.forms(self.q, form, at)
        groups = torch.from_numpy(np.unique(at * batch.open.shape[1] + local, return_inverse=True)[1].astype(np.int64))
        lo, hi = torch.from_numpy(batch.lo), torch.from_numpy(batch.hi)
        known = self._earlier_bounds(batch, engine)
        boxes = engine.refine(lo, hi, _silent, self.deadline, known=known, ball=self.decider.balls(self.q, batch.root), every=False)
        got = engine.query(boxes, forms, groups, self.deadline)
        return Bounded(at, local, form, got.best.cpu().numpy(), got.raw.cpu().numpy(), forms, boxes)

    def _earlier_bounds(self, batch: Domains, engine: Engine) -> dict[str, tuple[Tensor, Tensor]] | None:
        """What an earlier, larger box has shown of every node."""
        if not batch.layers.shape[1]:
            return None
        low, high = (torch.from_numpy(v).double().split(self.cells, 1) for v in np.split(batch.layers, 2, axis=1))
        return {
            name: tuple(v.reshape(len(batch), *extent(engine.nodes[name])) for v in pair)  # type: ignore[misc]
            for name, *pair in zip(self.nodes, low, high, strict=True)
        }

    def _learnt(self, boxes: Boxes, which: np.ndarray) -> np.ndarray:
        """The nodes' bounds in some of the boxes, to be handed on to their parts."""
        index = torch.from_numpy(which)
        ends = [round_outward(boxes.lo[n][index].flatten(1), boxes.hi[n][index].flatten(1), torch.float32) for n in self.nodes]
        return torch.cat([*(low for low, _ in ends), *(high for _, high in ends)], 1).numpy()

    def _close(self, batch: Domains, found: Bounded) -> None:
        """Marks the groups of every domain that one of their forms refutes, and keeps the worst bound of what stays open."""
        best = np.full(batch.open.shape, -np.inf)
        np.maximum.at(best, (found.at, found.local), found.best)
        closed = batch.open & (best > 0)
        at, local = np.nonzero(closed)
        np.minimum.at(self.least, self.pieces.groups[batch.root[at], local], best[at, local])
        first = closed[found.at, found.local] & (found.best == best[found.at, found.local])
        self.trail.close(batch.name[found.at[first]], found.form[first])
        batch.open &= ~closed
        batch.bound[:] = np.where(batch.open, best, np.inf).min(1)

    def _nearly(self, batch: Domains, found: Bounded) -> np.ndarray:
        """Domains with an open group that its bound without rounding would refute: where more is missing, a cut brings more."""
        mine = batch.open[found.at, found.local] & (~(found.raw <= 0) | ~np.isfinite(found.best))
        hopeful = np.zeros(len(batch), dtype=bool)
        hopeful[found.at[mine]] = True
        return hopeful

    # ---- what is left ---------------------------------------------------------------------------------------

    def _divide(self, batch: Domains, found: Bounded, engine: Engine) -> Domains | None:
        """Open domains, cut down to where unsafe points may lie, in halves."""
        which = np.flatnonzero(batch.open.any(1))
        if not len(which):
            self._closed.append(batch.depth)
            return None
        rows = np.flatnonzero(batch.open[found.at, found.local])
        lines = input_lines(engine, found.boxes, found.forms.pick(torch.from_numpy(rows)), self.deadline)
        slopes = self.decider.user_columns(lines.slopes).cpu().numpy()
        constant, slack = lines.constant.cpu().numpy(), lines.slack.cpu().numpy()
        place = np.full(len(batch), -1)
        place[which] = np.arange(len(which))
        at, left = place[found.at[rows]], batch.pick(which)
        if left.layers.shape[1]:
            left.layers = self._learnt(found.boxes, which)
        if self._looks:
            self._points = self._promising(left, at, slopes)
        sem = self.decider.engine(self.ways[0]).forward.semantics
        constant = constant - self.level[self.pieces.groups[left.root[at], found.local[rows]]]
        lo, hi = self._clip(left, at, found.local[rows], slopes, constant, slack, 0.0 if sem.real else sem.eta)
        same = ((lo == left.lo) & (hi == left.hi)).all(1)
        left.lo, left.hi = lo, hi
        weight = np.zeros(lo.shape)
        np.add.at(weight, at, np.abs(slopes))
        some = np.flatnonzero(left.open.any(1))
        self._closed.append(np.delete(batch.depth, which[some]))
        return self._halves(left.pick(some), weight[some], same[some]) if len(some) else None

    def _halves(self, left: Domains, weight: np.ndarray, bounded: np.ndarray) -> Domains:
        """Both halves of every domain; halves of halves while they are few, for a batch of a few costs hardly more than one.

        What no number divides waits as it is; where it was `bounded` just so already, the search ends.
        """
        weight = np.nan_to_num(weight)
        few = min(FILL, self.size // FILL)
        while True:
            axis = cuts.widest_effect(left.lo, left.hi, weight)
            whole = axis < 0
            if (whole & bounded).any() and not self.ended:
                self.ended = "rounding"
            parts = left.pick(~whole)
            lo, hi = cuts.halves(parts.lo, parts.hi, axis[~whole])
            twice, names = Domains.join(parts, parts), self.trail.names(2 * len(parts))
            at = np.arange(len(parts))
            self.trail.divide(parts.name, axis[~whole], hi[at, axis[~whole]], names[: len(at)], names[len(at) :])
            left = Domains.join(left.pick(whole), replace(twice, lo=lo, hi=hi, depth=twice.depth + 1, name=names))
            self.depth = max(self.depth, int(left.depth.max()))
            if whole.any() or 2 * len(left) > few:
                return left
            weight, bounded = np.concatenate([weight, weight]), np.zeros(len(left), dtype=bool)

    def _clip(
        self, left: Domains, at: np.ndarray, local: np.ndarray, slopes: np.ndarray, constant: np.ndarray, slack: np.ndarray, flush: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """What every form of a group leaves of the box, and the hull of that over the groups still open."""
        low, high = cuts.clip(left.lo[at], left.hi[at], slopes, constant, slack, flush)
        pair, which = np.unique(at * left.open.shape[1] + local, return_inverse=True)
        n = len(pair)
        lo, hi = np.full((n, low.shape[1]), -np.inf), np.full((n, low.shape[1]), np.inf)
        np.maximum.at(lo, which, low)
        np.minimum.at(hi, which, high)
        domain, group = pair // left.open.shape[1], pair % left.open.shape[1]
        cut = ((lo > left.lo[domain]) | (hi < left.hi[domain])).any(1)
        mine = self.pieces.groups[left.root[domain[cut]], group[cut]]
        np.minimum.at(self.least, mine, np.maximum(self.level[mine], LEAST))
        refuted = (lo > hi).any(1)  # the cuts do not meet: no unsafe point is left
        left.open[domain[refuted], group[refuted]] = False
        low, high = cuts.hull(lo[~refuted], hi[~refuted], domain[~refuted], len(left))
        none = ~left.open.any(1)
        low[none], high[none] = left.lo[none], left.hi[none]
        return low, high

    def _promising(self, left: Domains, at: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """The corners at which bounds are least, and middles, those of the worst domains first."""
        order = np.argsort(left.bound[at], kind="stable")[:POINTS]
        corner = np.where(slopes[order] > 0, left.lo[at[order]], left.hi[at[order]])
        return np.concatenate([corner, cuts.middle(left.lo, left.hi)[np.unique(at[order])]])
