"""Search by the signs of neurons: executions are divided by whether a ReLU's operand is at least zero or at most zero.

A part is refuted by a lower bound that holds for its executions: boxes narrowed by its signs, slopes and multipliers of its own
(`runtime/ascent.py` proposes both), one charged walk. Which neuron divides a part, and which part comes next, need not be sound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.prove.questions import Questions
from polytriton.prove.tight import QUERY, RATE, Tight, pick_forms
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.ascent import Found, Rows
from polytriton.runtime.engine import Progress
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import from_physical, to_physical
from polytriton.runtime.results import Forms, Stopped

if TYPE_CHECKING:
    from polytriton.prove.attempt import Answers
    from polytriton.prove.decider import Decider

STEPS = 12  # uphill, for a part; it begins where its parent's ended
OPERATIONS = 4e9  # of a batch, so that clocks and progress are looked at
MOST = 512  # parts of a batch


@dataclass
class Parts:
    """Executions that are still to be refuted, one form each: `form` is its place among the forms asked, `signs` 1 or -1 where an operand's
    sign is assumed, [n, cells of all ReLUs]; `lo` and `hi` are bounds of the operands that hold for them, float32 rounded outward.
    `below` and `multipliers` are where the ascent begins.
    """

    form: Tensor
    signs: Tensor
    lo: Tensor
    hi: Tensor
    below: Tensor
    multipliers: Tensor
    bound: Tensor
    depth: Tensor

    def __len__(self) -> int:
        return len(self.form)

    def pick(self, which: Tensor) -> Parts:
        return Parts(*(getattr(self, f.name)[which] for f in fields(self)))

    @staticmethod
    def join(*parts: Parts) -> Parts:
        return Parts(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Parts)))


class NeuronSearch:
    """Refutes forms over one box, each by a tree of its own. `refuted`: the least bound of a form's refuted parts."""

    def __init__(
        self, tight: Tight, boxes: Boxes, forms: Forms, box: tuple[Tensor, Tensor], deadline: float | None, progress: Progress
    ) -> None:
        self.tight, self.forms, self.box, self.deadline, self.progress = tight, forms, box, deadline, progress
        self.engine = e = tight.engine
        self.relus = tight.ascent.relus_before(e.net.output)
        self.operand = {r: e.nodes[r].inputs[0] for r in self.relus}
        self.sizes = [e.nodes[r].size for r in self.relus]
        self.root_lo, self.root_hi = (torch.cat([v[self.operand[r]].flatten(1) for r in self.relus], 1) for v in (boxes.lo, boxes.hi))
        n, cells = len(forms.image), self.root_lo.shape[1]
        zeros = torch.zeros(n, cells)
        below = torch.where(self.root_hi > -self.root_lo, 1.0, 0.0).expand(n, -1)
        self.waiting = Parts(
            torch.arange(n), zeros.to(torch.int8), zeros - torch.inf, zeros + torch.inf, below.to(torch.float16), zeros.to(torch.float16),
            torch.full((n,), -torch.inf, dtype=torch.float64), torch.zeros(n, dtype=torch.int32),
        )  # fmt: skip
        self.refuted = torch.full((n,), torch.inf, dtype=torch.float64)
        self.done = self.deepest = 0
        self.stuck = False  # a part has no undecided neuron left

    def run(self) -> None:
        """Until every part is refuted, or one cannot be divided."""
        while len(self.waiting) and not self.stuck:
            self.engine._expire(self.deadline)
            self._round()

    def share(self) -> float:
        """How much of the trees is refuted, each neuron halving what it divides."""
        return 1.0 - float(torch.exp2(-self.waiting.depth.double()).sum()) / max(1, len(self.refuted))

    def _round(self) -> None:
        """The worst parts first."""
        whole = self.waiting
        order = torch.argsort(whole.bound, stable=True)
        batch, self.waiting = whole.pick(order[: self._size()]), whole.pick(order[self._size() :])
        try:
            left = self._refute(batch)
        except Stopped:
            self.waiting = whole
            raise
        self.done += len(batch)
        if left is not None:
            self.waiting = Parts.join(self.waiting, left)
            self.deepest = max(self.deepest, int(left.depth.max()))
        shown = f"{self.done:,} parts, {len(self.waiting):,} open, depth {self.deepest}"
        self.progress(f"search: {shown}, per cent proved", int(100 * self.share()), 100)

    def _size(self) -> int:
        """Parts of a batch: as many as keep it short, whatever the machine, so that a search can be repeated."""
        ops = 4 * STEPS * sum(s.ops for s in self.engine.plan.query.steps)
        return int(max(1, min(MOST, OPERATIONS // max(ops, 1), self.tight.rows_at_once())))

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """Cells of all ReLUs as each one's own, in the runtime's order of axes."""
        return {r: v.view(len(values), *extent(self.engine.nodes[r])) for r, v in zip(self.relus, values.split(self.sizes, 1), strict=True)}

    def _boxes(self, batch: Parts) -> tuple[Boxes, Tensor]:
        """The interval pass with what is known of the operands; and the parts that have no execution."""
        e, n = self.engine, len(batch)
        lo, hi = torch.maximum(batch.lo.double(), self.root_lo), torch.minimum(batch.hi.double(), self.root_hi)
        low, high = self._split(lo), self._split(hi)
        known = {self.operand[r]: (low[r], high[r]) for r in self.relus}
        boxes, empty = e.forward.start(self.box[0].expand(n, -1), self.box[1].expand(n, -1)), torch.zeros(n, dtype=torch.bool)
        for node in e.passed(boxes):
            if node.name in known:
                a, b = torch.maximum(boxes.lo[node.name], known[node.name][0]), torch.minimum(boxes.hi[node.name], known[node.name][1])
                empty |= (a > b).flatten(1).any(1)
                boxes.lo[node.name], boxes.hi[node.name] = torch.minimum(a, b), b
        return boxes, empty

    def _refute(self, batch: Parts) -> Parts | None:
        e, n = self.engine, len(batch)
        boxes, empty = self._boxes(batch)
        forms = replace(pick_forms(self.forms, batch.form), image=torch.arange(n))
        found = self._ascend(batch, boxes, forms)
        boxes.slopes = {r: self._inward(r, f.below) for r, f in found.items()}
        boxes.multipliers = {r: self._inward(r, f.multipliers) for r, f in found.items() if f.multipliers is not None}
        best = e._walk_forms(e._tables(boxes), forms, None, self.deadline).best
        closed = (best > 0) | empty
        self.refuted[batch.form] = torch.minimum(self.refuted[batch.form], torch.where(closed & ~empty, best, torch.inf))
        which = torch.nonzero(~closed).flatten()
        if not len(which):
            return None
        left = batch.pick(which)
        left.bound = best[which]
        left.below = torch.cat([boxes.slopes[r].flatten(1) for r in self.relus], 1)[which].to(torch.float16)
        signed = torch.cat([boxes.multipliers[r].flatten(1) for r in self.relus], 1)[which]
        left.multipliers = signed.abs().to(torch.float16)
        loss = torch.cat([self._inward(r, found[r].loss).flatten(1) for r in self.relus], 1)[which]
        return self._divided(left, loss)

    def _inward(self, relu: str, values: Tensor) -> Tensor:
        return to_physical(values, self.engine.nodes[relu].shape).view(len(values), *extent(self.engine.nodes[relu]))

    def _ascend(self, batch: Parts, boxes: Boxes, forms: Forms) -> dict[str, Found]:
        e, nodes, n = self.engine, self.engine.nodes, len(batch)

        def outward(values: Tensor) -> dict[str, Tensor]:
            return {r: from_physical(v, nodes[r].shape) for r, v in self._split(values).items()}

        relus = {
            r: (from_physical(boxes.lo[i], nodes[i].shape), from_physical(boxes.hi[i], nodes[i].shape)) for r, i in self.operand.items()
        }
        start = from_physical(forms.over_output.view(n, *boxes.lo[e.net.output].shape[1:]).float(), nodes[e.net.output].shape)
        lo, hi = (v.expand(n, -1) for v in self.box)
        beside = None if forms.over_input is None else self.tight.decider.user_columns(forms.over_input)
        begin = (outward(v) for v in (batch.signs, batch.below, batch.multipliers))
        rows = Rows(e.net.output, start, lo, hi, relus, beside, forms.constant, *begin)
        return self.tight.ascent.improve(rows, STEPS if self.done else QUERY, RATE)

    def _divided(self, left: Parts, loss: Tensor) -> Parts:
        """Both signs of the neuron whose relaxation costs each part's bound most. An executed value of 0 has both."""
        lo, hi = torch.maximum(left.lo.double(), self.root_lo), torch.minimum(left.hi.double(), self.root_hi)
        undecided = (lo < 0) & (hi > 0) & (left.signs == 0)
        score = torch.where(undecided, loss.double() + 1e-9 * torch.minimum(hi, -lo), -1.0)
        best, cell = score.max(1)
        if bool((best < 0).any()):
            self.stuck = True
            return left
        at = torch.arange(len(left))
        on, off = left.pick(at), left.pick(at)
        on.signs[at, cell], off.signs[at, cell] = 1, -1
        on.lo[at, cell], off.hi[at, cell] = torch.maximum(on.lo[at, cell], torch.zeros(1)), torch.minimum(off.hi[at, cell], torch.zeros(1))
        both = Parts.join(on, off)
        both.depth = both.depth + 1
        return both


def search_neurons(decider: Decider, q: Questions, answers: Answers, deadline: float | None, progress: Progress) -> SearchStats:
    """Tight bounds, then a tree for every group still open, over the one of its forms that came nearest."""
    begin, ended, parts, deepest, shares = time.monotonic(), "", 0, 0, list[float]()
    worst = float("inf")
    with decider.turn, settings.pinned(decider.device), decider._threads():
        tight = Tight(decider, decider.engine(decider.tries(patient=False)[0]))
        try:
            for image in np.unique(q.image[~answers.settled[q.group]]):
                box = tuple(torch.from_numpy(v[image : image + 1]) for v in (q.lo, q.hi))
                boxes = tight.refine(box[0], box[1], deadline, progress)
                rows = np.flatnonzero((q.image == image) & ~answers.settled[q.group])
                got = tight.query(boxes, decider.forms(q, rows, np.zeros(len(rows), dtype=np.int64)), (box[0], box[1]), deadline)
                answers.best[rows] = np.maximum(answers.best[rows], got.best.cpu().numpy())
                answers.settled[q.group[rows[answers.best[rows] > 0]]] = True
                order = rows[np.argsort(-answers.best[rows], kind="stable")]
                nearest = order[np.unique(q.group[order], return_index=True)[1]]
                nearest = nearest[~answers.settled[q.group[nearest]]]
                if not len(nearest):
                    shares.append(1.0)
                    continue
                if not tight.ascent.relus_before(decider.compiled.net.output):
                    ended = "steps"
                    continue
                forms = decider.forms(q, nearest, np.zeros(len(nearest), dtype=np.int64))
                search = NeuronSearch(tight, boxes, forms, (box[0], box[1]), deadline, progress)
                try:
                    search.run()
                finally:
                    still = np.unique(search.waiting.form.numpy())
                    proved = np.setdiff1d(np.arange(len(nearest)), still)
                    answers.best[nearest[proved]] = np.maximum(answers.best[nearest[proved]], search.refuted.numpy()[proved])
                    answers.settled[q.group[nearest[proved]]] = True
                    parts, deepest = parts + search.done, max(deepest, search.deepest)
                    shares.append(search.share())
                    worst = min(worst, float(search.waiting.bound.min()) if len(still) else worst)
                if search.stuck:
                    ended = "steps"
        except Stopped:
            ended = "time"
    left = int((~answers.settled).sum())
    share = float(np.mean(shares)) if shares and left else float(answers.settled.mean())
    return SearchStats(
        "neurons", parts, left, deepest, share, worst if np.isfinite(worst) else None, time.monotonic() - begin, ended if left else ""
    )
