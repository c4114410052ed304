"""Search: divides boxes of inputs until every part is proved, or a counterexample, the clock or the memory ends it.

A part is refuted by the same bounds as a whole box, and the parts cover the box: what decides which part comes next, where it is cut and
when to stop need not be sound.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.passes.pipeline import Compiled
from polytriton.prove import cuts
from polytriton.prove.attempt import Answers
from polytriton.prove.course import Course
from polytriton.prove.crew import Crew, Flow, Others
from polytriton.prove.decider import Decider
from polytriton.prove.domains import Domains, Pieces, Waiting
from polytriton.prove.options import Options
from polytriton.prove.questions import BoxBalls, Questions
from polytriton.prove.trail import Trail
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.engine import Engine, Progress, _silent
from polytriton.runtime.forward import Boxes
from polytriton.runtime.lines import input_lines
from polytriton.runtime.relax import round_outward
from polytriton.runtime.results import Forms, Stopped

OPERATIONS = 2e10  # of a batch: a fraction of a second, so that clocks and progress are looked at
MOST = 4096  # domains of a batch
KEPT = 64  # domains that must fit in what waits with the bounds of all nodes, or none keeps them
FILL = 32  # domains up to which a batch is filled with halves of halves, where it could hold as many again for each of them
LEVEL = 2.0**-10
LEAST = 5e-324  # what "above zero" means as a number
POINTS = 2048  # places where bounds are least, tried as counterexamples at a time
MEMORY = 8  # of the budget an eighth for what waits; beyond it the deepest come first

_LOG = logging.getLogger(__name__)
BoxBatch = tuple[Domains, int, bool, int]  # parts, ways of bounding left, whether points worth trying are wanted, the first free name
Probe = Callable[[np.ndarray, list[int]], bool]  # points worth trying, and pieces still open: whether a counterexample was found


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
    inherits: bool
    noted: bool

    def open(self) -> Callable[[BoxBatch], BoxesTold]:
        answers = Answers(self.best, self.best, self.settled, trail=Trail(wanted=self.noted))
        search = InputSearch(Decider(self.compiled, self.options), self.q, answers, deadline=None, inherits=self.inherits)
        return search.bound_batch


def free_inputs(q: Questions) -> int:
    """The most inputs that some box leaves free; one fixed at a decimal lies between two neighbours."""
    return int((np.nextafter(q.lo, np.inf) < q.hi).sum(1).max(initial=0))


class InputSearch:
    """Divides the boxes of what `answers` leaves open. `run` marks in `answers` what it proves."""

    def __init__(
        self,
        decider: Decider,
        q: Questions,
        answers: Answers,
        *,
        deadline: float | None,
        progress: Progress = _silent,
        probe: Probe | None = None,
        threads: int = 1,
        inherits: bool | None = None,
        others: Others | None = None,
    ) -> None:
        """`threads`: so many processors are for as many processes, or for `others`. `inherits`: whether parts keep bounds of nodes."""
        self.decider, self.q, self.answers, self.deadline, self.probe = decider, q, answers, deadline, probe
        self.pieces = Pieces.of_questions(q)
        net, plan = decider.compiled.net, decider.compiled.plan
        self.nodes = [p.target for p in plan if p.kind == "bound"]
        self.cells = [net.node(name).size for name in self.nodes]
        total = sum(self.cells)
        if inherits is None:  # kernels replay whole refinements
            inherits = not decider.kernels and 8 * total * KEPT <= decider.options.memory // MEMORY
        self.trail = answers.trail or Trail(wanted=False)
        self.waiting = Waiting(self.pieces.roots(q, answers.settled, total if inherits else 0, self.trail))
        self.whole = float(self.waiting.open.sum())
        self.size = self._size()
        self.least = np.full(len(answers.settled), np.inf)  # of a group's refuted parts the least bound
        # what is clipped off is proved to this level: so little of the first bound that hardly more is kept
        self.level = np.zeros(len(answers.settled))
        first = np.where(np.isfinite(answers.best), np.abs(answers.best), 0.0)
        np.maximum.at(self.level, q.group, LEVEL * first)
        quick = decider.tries(patient=False)
        self.ways = list(dict.fromkeys(replace(t, rescue=False) for t in quick))  # the quickest, then what pays for rounding
        self.all_ways = self.ways
        self.domains = self.depth = self.rounds = self.lists = 0
        self.began, self.ended, self.course = time.monotonic(), "", Course("boxes", progress)
        self._closed: list[np.ndarray] = []
        self._looks = False
        self._points: np.ndarray | None = None
        self.crew = Crew.for_search(decider, threads, others)
        options = self.crew.options(decider.options)
        work = Refuting(decider.compiled, options, q, answers.best.copy(), answers.settled.copy(), inherits, self.trail.wanted)
        self.flow: Flow[BoxBatch, BoxesTold] = Flow(self.crew, work, self.bound_batch, deadline)

    def _begin(self) -> None:
        """Boxes that an earlier try has bounded already are divided at once, by the slopes it left."""
        slopes, w = self.answers.slopes or {}, self.waiting
        at, _, form = self.pieces.rows(w)
        known = np.array([f in slopes for f in form.tolist()], dtype=bool)
        unknown = np.zeros(len(w), dtype=bool)
        unknown[at[~known]] = True
        rows = np.flatnonzero(~unknown[at])
        if len(rows):
            np.maximum.at(w.bound, at, self.answers.best[form])
            self.domains += int((~unknown).sum())
            weight = np.zeros(w.lo.shape)
            np.add.at(weight, at[rows], np.abs([slopes[f] for f in form[rows].tolist()]))
            begun = w.take(np.flatnonzero(~unknown))
            w.add(self._halves(begun, weight[~unknown], np.ones(len(begun), dtype=bool)))

    def run(self) -> SearchStats:
        """Until everything is refuted, `probe` finds a counterexample, or nothing can be divided any more."""
        d = self.decider
        with d.turn, settings.pin_settings(d.device), d._threads(), self.crew.threads():
            try:
                self._begin()
                while (len(self.waiting) or len(self.flow)) and not self.ended:
                    self._round()
            except Stopped:
                self.ended = "time"
            finally:
                self._put_back()
                self.crew.close()
        self.course.finish(self.waiting.depth)
        self._settle()
        return self.stats()

    def _settle(self) -> None:
        """A group is proved when no part that waits holds it open; its margin is the least bound of its parts."""
        w, a = self.waiting, self.answers
        still = np.zeros(len(a.settled), dtype=bool)
        still[self.pieces.groups[w.root][w.open]] = True
        mine = (~still & ~a.settled)[self.q.group]
        a.best[mine] = np.maximum(a.best, self.least[self.q.group])[mine]
        a.settled |= ~still

    def stats(self) -> SearchStats:
        """What was done so far."""
        worst = float(self.waiting.bound.min(initial=np.inf))
        return SearchStats(
            "input", self.domains, len(self.waiting), self.depth, self.share(), worst if np.isfinite(worst) else None,
            time.monotonic() - self.began, self.ended, *self.course.both(),
        )  # fmt: skip

    def share(self) -> float:
        """How much of the tree is refuted, every cut halving what it divides."""
        held = sum(float((np.exp2(-w.depth.astype(np.float64)) * w.open.sum(1)).sum()) for w in self._rest())
        return 1.0 - held / max(self.whole, 1.0)

    def _rest(self) -> list[Domains | Waiting]:
        """What is not refuted: what waits, and what is being bounded."""
        return [self.waiting, *(part for part, *_ in self.flow.items())]

    # ---- a batch ------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """Sends the worst parts, and takes in what came of those sent first. What is not whole when time is up waits as before."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Stopped
        while len(self.waiting) and len(self.flow) < self.crew.lists:
            self._send()
        try:
            told = self.flow.receive()
        except Stopped:
            self._put_back()
            raise
        self.rounds += 1
        for t in told:
            self.least, self.depth, self.ended = np.minimum(self.least, t.least), max(self.depth, t.depth), self.ended or t.ended
            self.ways = self.ways[-min(t.ways, len(self.ways)) :]
            self.course.close(t.closed)
            self.trail.add(t.trail)
            if t.left is not None:
                self.waiting.add(t.left)
            if t.points is not None:
                self._try_points(t.points)
        self.course.tell(self.domains, sum(map(len, self._rest())), self.depth, float(self.waiting.bound.min(initial=np.inf)), self.share())

    def _send(self) -> None:
        """A list of batches, one for each process; parts that wait are dealt out among the lists to be sent."""
        workers, lists = 1 + self.crew.helpers, self.crew.lists
        most = max(workers, workers * self.size // lists)
        batch = self._take(min(most, max(FILL, -(-len(self.waiting) // (lists - len(self.flow))))))
        self.domains += len(batch)
        each = -(-len(batch) // workers)
        parts = [batch.pick(np.arange(a, min(a + each, len(batch)))) for a in range(0, len(batch), each)]
        look, self.lists = self.probe is not None and self.lists & (self.lists + 1) == 0, self.lists + 1  # lists 0, 1, 3, 7, ...
        names = [int(self.trail.names(self._names(len(part)))[0]) for part in parts]
        self.flow.send([(part, len(self.ways), look and k == 0, names[k]) for k, part in enumerate(parts)])

    def _put_back(self) -> None:
        for part, *_ in self.flow.drop():
            self.domains -= len(part)
            self.waiting.add(part)

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

    def _names(self, count: int) -> int:
        """How many numbers the halves of so many parts, and halves of halves, need at most."""
        return 2 * count + 4 * FILL

    def _size(self) -> int:
        """Domains of a batch: as many as keep it short, whatever the machine, so that a search can be repeated."""
        plan = self.decider.compiled.plan
        nodes = self.decider.compiled.net.by_name
        ops = sum(sum(s.ops for s in p.steps) * (2 * nodes[p.target].size if p.kind == "bound" else 1) for p in plan)
        return int(max(1, min(MOST, OPERATIONS // max(ops, 1))))

    def _take(self, count: int) -> Domains:
        """The worst bounds first; the deepest where memory runs out."""
        w = self.waiting
        if len(w) * w.each > self.decider.options.memory // MEMORY:
            order = np.argsort(-w.depth, kind="stable")
        else:
            order = np.argsort(w.bound, kind="stable")
        return w.take(order[:count])

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
            hopeful = self._nearly(batch, found) if k + 1 < len(self.ways) else np.zeros(0)
            if not hopeful.any():
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
        boxes = engine.refine(lo, hi, _silent, self.deadline, known=known, ball=self.decider.balls(self.q, batch.root))
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
        lines = input_lines(engine, found.boxes, _some(found.forms, rows), self.deadline)
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

    def _try_points(self, points: np.ndarray) -> None:
        """As counterexamples to what is open anywhere."""
        assert self.probe is not None
        if self.probe(points, np.unique(np.concatenate([self.pieces.groups[w.root][w.open] for w in self._rest()])).tolist()):
            self.ended = "sat"


def _some(forms: Forms, rows: np.ndarray) -> Forms:
    index = torch.from_numpy(rows).to(forms.image.device)

    def pick(v: Tensor | None) -> Tensor | None:
        return None if v is None else v[index]

    return Forms(
        forms.image[index], forms.over_output[index], pick(forms.over_input), pick(forms.coefficient_error), pick(forms.input_error),
        pick(forms.constant),
    )  # fmt: skip
