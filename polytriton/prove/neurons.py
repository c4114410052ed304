"""Search by the signs of neurons: executions are divided by whether a ReLU's operand is at least zero or at most zero.

A part is refuted by a lower bound that holds for its executions: boxes narrowed by its signs, those of a chain of dense layers bounded
again behind them, slopes and multipliers of its own (`prove/tight.py` proposes both), one charged walk. Which neuron divides a part
(`prove/branching.py`), and which part comes next, need not be sound.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.prove.branching import TRIED, Gains
from polytriton.prove.parts import Parts
from polytriton.prove.tight import AGAIN, QUERY, Known, Tight, pick_forms
from polytriton.runtime.engine import Progress
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import to_physical
from polytriton.runtime.relax import round_down, round_up
from polytriton.runtime.results import Forms

STEPS = 12  # uphill, for a part's form; it begins where its parent's ended
OPERATIONS = 8e9  # of a batch, so that clocks and progress are looked at
MOST = 512  # parts of a batch
MEMORY = 8  # of the budget an eighth for what waits; beyond it the deepest come first


class NeuronSearch:
    """Refutes forms over one box: by one tree, where parts cost more than forms do, else each by a tree of its own.

    `refuted`: the least bound of a form's refuted parts.
    """

    def __init__(
        self, tight: Tight, boxes: Boxes, forms: Forms, box: tuple[Tensor, Tensor], deadline: float | None, progress: Progress
    ) -> None:
        self.tight, self.forms, self.box, self.deadline, self.progress = tight, forms, box, deadline, progress
        self.engine = e = tight.engine
        self.relus = tight.ascent.relus_before(e.net.output)
        self.operand = {r: e.nodes[r].inputs[0] for r in self.relus}
        self.sizes = [e.nodes[r].size for r in self.relus]
        self.lo, self.hi = (torch.cat([v[self.operand[r]].flatten(1) for r in self.relus], 1) for v in (boxes.lo, boxes.hi))
        self.neurons = torch.nonzero(((self.lo < 0) & (self.hi > 0))[0]).flatten()
        self.layer = torch.repeat_interleave(torch.arange(len(self.relus)), torch.tensor(self.sizes))[self.neurons]
        every = torch.arange(len(forms.image))
        self.waiting = Parts.roots(every[None] if tight.chain is not None else every[:, None], len(self.neurons))
        self.waiting.below[:] = torch.where(self.hi > -self.lo, 1.0, 0.0)[:, self.neurons].half()
        self.gains, self.trees = Gains(len(self.waiting), self.layer), len(self.waiting)
        self.refuted = torch.full((len(forms.image),), torch.inf, dtype=torch.float64)
        self.done = self.deepest = 0
        self.stuck = False  # a part has no undecided neuron left

    def run(self) -> None:
        """Until every part is refuted, or one cannot be divided."""
        self.begin()
        while len(self.waiting) and not self.stuck:
            self.engine._expire(self.deadline)
            self._round()

    def begin(self) -> None:
        """Bounds every form over the whole box."""
        roots = self.waiting
        self._bound(roots, QUERY)
        self.waiting = roots.pick(torch.nonzero(roots.open.any(1)).flatten())

    def share(self) -> float:
        """How much of the trees is refuted, each neuron halving what it divides."""
        return 1.0 - float(torch.exp2(-self.waiting.depth.double()).sum()) / max(1, self.trees)

    def _round(self) -> None:
        """Divides the worst parts; the deepest where memory runs out."""
        whole = self.waiting
        full = len(whole) * whole.each > self.engine.memory // MEMORY
        order = torch.argsort(-whole.depth if full else whole.worst, stable=True)
        count = max(1, self._size() // (2 * TRIED))
        batch, rest = whole.pick(order[:count]), whole.pick(order[count:])
        part, neuron = self.gains.candidates(batch)
        if len(torch.unique(part)) < len(batch):
            self.stuck = True
            return
        tried = batch.divided(part, neuron, self.layer[neuron])
        for some in (made := [tried.pick(k) for k in torch.arange(len(tried)).split(self._size())]):
            self._bound(some, STEPS)
        tried = Parts.join(*made)
        best = self.gains.best(batch, part, neuron, tried)
        both = torch.cat([best, best + len(part)])
        left = tried.pick(both[tried.open[both].any(1)])
        self.waiting = Parts.join(rest, left)
        self.deepest = max(self.deepest, int(left.depth.max()) if len(left) else 0)
        shown = f"{self.done:,} parts, {len(self.waiting):,} open, depth {self.deepest}"
        self.progress(f"search: {shown}, per cent proved", int(100 * self.share()), 100)

    def _size(self) -> int:
        """Parts of a batch: as many as keep it short, whatever the machine, so that a search can be repeated."""
        programs = self.engine.programs
        ops = 4 * STEPS * sum(s.ops for s in self.engine.plan.query.steps)
        if self.tight.chain is not None:
            count = {r: int((self.layer == k).sum()) for k, r in enumerate(self.relus)}
            again = ((r, programs.get(self.operand[r])) for r in self.relus)
            ops += sum(AGAIN * count[r] * sum(s.ops for s in p.steps) for r, p in again if p is not None)
        return int(max(1, min(MOST, OPERATIONS // max(ops, 1), self.tight.rows_at_once())))

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """Cells of all ReLUs as each one's own, in the runtime's order of axes."""
        return {r: v.view(len(values), *extent(self.engine.nodes[r])) for r, v in zip(self.relus, values.split(self.sizes, 1), strict=True)}

    def _spread(self, whole: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Values of the neurons that were undecided among those of all."""
        every = whole.expand(len(values), -1).clone()
        every[:, self.neurons] = values.to(every.dtype)
        return self._split(every)

    def _gathered(self, values: dict[str, Tensor]) -> Tensor:
        return torch.cat([values[r].flatten(1) for r in self.relus], 1)[:, self.neurons]

    def _bound(self, parts: Parts, steps: int) -> None:
        """Bounds the open forms of every part, whose fields it fills."""
        e, n = self.engine, len(parts)
        low, high = (
            self._spread(self.lo, torch.maximum(parts.lo.double(), self.lo[:, self.neurons])),
            self._spread(self.hi, torch.minimum(parts.hi.double(), self.hi[:, self.neurons])),
        )
        zeros = torch.zeros(1, self.lo.shape[1])
        signs = self._spread(zeros, parts.signs)
        known = Known({self.operand[r]: (low[r], high[r]) for r in self.relus}, parts.behind, signs)
        box = self.box[0].expand(n, -1), self.box[1].expand(n, -1)
        boxes, empty = self.tight.bound(*box, self.deadline, lambda *_: None, known)
        at, column = torch.nonzero(parts.open).T
        form = parts.forms[at, column]
        forms = replace(pick_forms(self.forms, form), image=at)
        rows = replace(
            self.tight.form_rows(forms, boxes, box), signs={r: v[at] for r, v in signs.items()},
            below=self._spread(zeros, parts.below[at, column]), multipliers=self._spread(zeros, parts.multipliers[at, column]),
        )  # fmt: skip
        found = self.tight.ascend(rows, boxes, forms.image, steps)
        chosen = self.tight.chosen(found)
        best = e._walk_forms(e._tables(boxes), forms, None, self.deadline, chosen).best
        self.done += n
        closed = (best > 0) | empty[at]
        mine = closed & ~empty[at]
        self.refuted.scatter_reduce_(0, form[mine], best[mine], "amin")
        nodes = {r: self.operand[r] for r in self.relus}
        parts.lo = round_down(self._gathered({r: boxes.lo[i] for r, i in nodes.items()}), torch.float32)
        parts.hi = round_up(self._gathered({r: boxes.hi[i] for r, i in nodes.items()}), torch.float32)
        loss = {r: to_physical(f.loss, e.nodes[r].shape) for r, f in found.items()}
        parts.below[at, column] = self._gathered(chosen.below).to(torch.float16)
        parts.multipliers[at, column] = self._gathered(chosen.multipliers).abs().clamp(max=6e4).to(torch.float16)
        parts.loss[at, column] = self._gathered(loss).clamp(max=6e4).to(torch.float16)
        parts.bound[at, column] = torch.where(empty[at], torch.inf, torch.maximum(best, parts.bound[at, column]))
        parts.open[at[closed], column[closed]] = False
