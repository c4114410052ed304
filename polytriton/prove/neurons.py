"""Search by neurons: executions are divided by whether a ReLU's operand is at least zero or at most zero, a smooth function's at least or
at most the middle of its box.

A part is refuted by a lower bound that holds for its executions: boxes narrowed by its signs, those of a chain of dense layers bounded
again behind them, slopes and multipliers of its own (`prove/tight.py` proposes both), one charged walk. Which neuron divides a part
(`prove/branching.py`), and which part comes next, need not be sound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.passes.pipeline import Compiled
from polytriton.prove.branching import TRIED, Gains
from polytriton.prove.course import Course
from polytriton.prove.crew import Crew, Flow
from polytriton.prove.decider import Decider, Try
from polytriton.prove.options import Options
from polytriton.prove.parts import Parts
from polytriton.prove.tight import AGAIN, QUERY, Known, Tight
from polytriton.prove.trail import Branch
from polytriton.runtime.forward import Boxes
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.layers import order, to_physical
from polytriton.runtime.relax import round_outward
from polytriton.runtime.results import Forms, Stopped, expire

STEPS = 12  # uphill, for a part's form; it begins where its parent's ended
OPERATIONS = 8e9  # of a batch, so that clocks and progress are looked at
MOST = 512  # parts of a batch
DEVICE_OPERATIONS, DEVICE_MOST = 64 * OPERATIONS, 4096  # by kernels
POINTS = 256  # places where bounds of open parts are least, tried as counterexamples at a time
MEMORY = 8  # of the budget an eighth for what waits; beyond it the deepest come first

FormProbe = Callable[[Tensor, list[int]], bool]  # points worth trying, and forms still open: whether a counterexample was found
Least = tuple[Tensor, Tensor]  # bounds of open forms, and where they are least
PartBatch = tuple[Parts, int, bool]  # parts, steps uphill, and whether `Least` is wanted
PartsTold = tuple[Parts, Tensor, Least | None]  # the parts with bounds, the least bound so far of every form's refuted ones


@dataclass(frozen=True)
class Bounding:
    """What another process needs to bound parts of one box: bounds of the operands of ReLUs, the forms, the box, and its ball."""

    compiled: Compiled
    options: Options
    how: Try
    lo: Mapping[str, Tensor]
    hi: Mapping[str, Tensor]
    forms: Forms
    box: tuple[Tensor, Tensor]
    ball: InputBalls | None = None

    def open(self) -> Callable[[PartBatch], PartsTold]:
        decider = Decider(self.compiled, self.options)
        tight = Tight(decider, self.how)
        search = NeuronSearch(tight, Boxes(dict(self.lo), dict(self.hi), ball=self.ball), self.forms, self.box, None)
        return search.bound_batch


class Sent(NamedTuple):
    """Parts that are being divided, and the tries: pairs of a part and a neuron, and where its box is cut."""

    batch: Parts
    part: Tensor
    neuron: Tensor
    cut: Tensor


class NeuronSearch:
    """Refutes forms over one box: by one tree, where parts cost more than forms do, else each by a tree of its own.

    `refuted`: the least bound of a form's refuted parts.
    """

    def __init__(
        self,
        tight: Tight,
        boxes: Boxes,
        forms: Forms,
        box: tuple[Tensor, Tensor],
        deadline: float | None,
        course: Course | None = None,
        probe: FormProbe | None = None,
        crew: Crew | None = None,
        branch: Branch | None = None,
    ) -> None:
        self.tight, self.forms, self.box, self.deadline, self.probe = tight, forms, box, deadline, probe
        self.ball = boxes.ball
        self.course = course or Course("parts")
        self.engine = e = tight.engine
        self.operators = tight.ascent.divided_before(e.net.output)
        self.operand = {r: e.nodes[r].inputs[0] for r in self.operators}
        self.sizes = [e.nodes[r].size for r in self.operators]
        # parts are kept and divided on the host, and bounded on the engine's device
        self.lo, self.hi = (torch.cat([v[self.operand[r]].flatten(1) for r in self.operators], 1).cpu() for v in (boxes.lo, boxes.hi))
        kinds = torch.tensor([e.nodes[r].op != "relu" for r in self.operators])
        smooth = kinds.repeat_interleave(torch.tensor(self.sizes))
        divided = torch.isfinite(self.lo) & torch.isfinite(self.hi) & (self.lo < self.hi)
        self.neurons = torch.nonzero(torch.where(smooth, divided, (self.lo < 0) & (self.hi > 0))[0]).flatten()
        self.smooth = smooth[self.neurons]
        places = torch.cat([torch.from_numpy(order(e.nodes[r].shape)) + sum(self.sizes[:k]) for k, r in enumerate(self.operators)])
        self.cells = places[self.neurons]  # in the trail's order
        self.layer = torch.repeat_interleave(torch.arange(len(self.operators)), torch.tensor(self.sizes))[self.neurons]
        every = torch.arange(len(forms.image))
        trees = every[None] if tight.chain is not None else every[:, None]
        self.branch = branch or Branch.of_none(len(every))
        self.trail = self.branch.trail
        self.trail.relus = tuple(zip(self.operators, self.sizes, strict=True))
        names = [self.branch.plant(some) for some in trees.tolist()]
        self.waiting = Parts.roots(trees, len(self.neurons), torch.tensor(names))
        begin = torch.where(self.hi > -self.lo, 1.0, 0.0)[:, self.neurons]
        self.waiting.below[:] = torch.where(self.smooth, torch.nan, begin).half()  # beside a smooth function the ascent chooses it
        self.gains, self.trees = Gains(len(self.waiting), self.layer, self.smooth), len(self.waiting)
        self.refuted = torch.full((len(forms.image),), torch.inf, dtype=torch.float64)
        self.done = self.deepest = self.rounds = 0
        self.stuck = self.found = False  # a part has no undecided neuron left; a counterexample was found
        self.least: list[Least] = []  # of a round, where it is wanted
        self.size, self.crew = self._size(), crew or Crew(0)
        self.flow, self.sent = self._open_flow(boxes), deque[Sent]()

    def run(self) -> None:
        """Until every part is refuted, one cannot be divided, or `probe` finds a counterexample."""
        self.begin()
        try:
            while (len(self.waiting) or self.sent) and not self.stuck and not self.found:
                expire(self.deadline)
                self._round()
        finally:
            self._put_back()

    def begin(self) -> None:
        """Bounds every form over the whole box."""
        self._send(self.waiting, QUERY)
        roots = self._receive()
        self._note(roots.name, ~roots.open, roots.forms)
        self.waiting = roots.pick(torch.nonzero(roots.open.any(1)).flatten())
        self.course.close(roots.depth[~roots.open.any(1)].numpy())
        self._tell()

    def share(self) -> float:
        """How much of the trees is refuted, each neuron halving what it divides."""
        left = [self.waiting, *(sent.batch for sent in self.sent)]
        return 1.0 - sum(float(torch.exp2(-parts.depth.double()).sum()) for parts in left) / max(1, self.trees)

    def _round(self) -> None:
        """Sends the worst parts divided, and takes in what came of those sent first; the deepest parts where memory runs out."""
        while len(self.waiting) and len(self.sent) < self.crew.lists:
            whole = self.waiting
            full = len(whole) * whole.each > self.engine.memory // MEMORY
            order = torch.argsort(-whole.depth if full else whole.worst, stable=True)
            count = self._count(len(whole))
            batch, rest = whole.pick(order[:count]), whole.pick(order[count:])
            part, neuron = self.gains.candidates(batch)
            if len(torch.unique(part)) < len(batch):
                self.stuck = True
                return
            cut = self.gains.cuts(batch, part, neuron)
            self._send(batch.divide(part, neuron, self.layer[neuron], cut), STEPS)
            self.waiting = rest
            self.sent.append(Sent(batch, part, neuron, cut))
        tried, (batch, part, neuron, cut) = self._receive(), self.sent.popleft()
        best = self.gains.best(batch, part, neuron, tried)
        both = torch.cat([best, best + len(part)])
        self._divide(batch.pick(part[best]), neuron[best], cut[best], tried, both)
        left = tried.pick(both[tried.open[both].any(1)])
        self.waiting = Parts.join(self.waiting, left)
        self.deepest = max(self.deepest, int(left.depth.max()) if len(left) else 0)
        self.course.close(tried.depth[both[~tried.open[both].any(1)]].numpy())
        self._tell()

    def _count(self, waiting: int) -> int:
        """How many of the parts that wait the next list takes, dealt out among the lists to be sent."""
        crew = self.crew
        most = max(1, (1 + crew.helpers) * self.size // (2 * TRIED * crew.lists))
        return min(most, -(-waiting // (crew.lists - len(self.sent))))

    def _put_back(self) -> None:
        """What was sent and not received waits as before."""
        self.flow.drop()
        self.waiting = Parts.join(self.waiting, *(sent.batch for sent in self.sent))
        self.sent.clear()

    def _divide(self, parents: Parts, neuron: Tensor, cut: Tensor, tried: Parts, both: Tensor) -> None:
        """The children that are kept, those with the neuron on and those with it off, get numbers, and the trail hears of them."""
        names = torch.from_numpy(self.trail.names(len(both)))
        tried.name[both] = names
        self.trail.divide(parents.name.numpy(), ~self.cells[neuron].numpy(), cut.double().numpy(), *names.view(2, -1).numpy())
        self._note(names, parents.open.repeat(2, 1) & ~tried.open[both], tried.forms[both])

    def _note(self, names: Tensor, closed: Tensor, forms: Tensor) -> None:
        at, column = torch.nonzero(closed).T
        self.branch.close(names[at].numpy(), forms[at, column].numpy())

    def _tell(self) -> None:
        """What a round has come to, and now and then a look for counterexamples where bounds are least."""
        left = [self.waiting, *(sent.batch for sent in self.sent)]
        waits, worst = sum(map(len, left)), min(float(parts.worst.min()) if len(parts) else torch.inf for parts in left)
        self.course.tell(self.done, waits, self.deepest, worst, self.share())
        if self.least and waits:
            assert self.probe is not None
            bound, corner = (torch.cat(v) for v in zip(*self.least, strict=True))
            still = torch.cat([parts.forms[parts.open] for parts in left]).unique()
            self.found = self.probe(corner[bound.argsort(stable=True)[:POINTS]], still.tolist())
        self.least, self.rounds = [], self.rounds + 1

    def _open_flow(self, boxes: Boxes) -> Flow[PartBatch, PartsTold]:
        """Batches on their way to whoever is free."""
        d, inner = self.tight.decider, [self.operand[r] for r in self.operators]
        lo, hi = ({i: values[i] for i in inner} for values in (boxes.lo, boxes.hi))
        work = Bounding(d.compiled, self.crew.options(d.options), self.tight.how, lo, hi, self.forms, self.box, self.ball)
        return Flow(self.crew, work, self.bound_batch, self.deadline)

    def _send(self, parts: Parts, steps: int) -> None:
        """Parts to be bounded, a batch at a time, at least one for each process."""
        each = max(1, min(self.size, -(-len(parts) // (1 + self.crew.helpers))))
        number = self.rounds + len(self.flow)
        wanted = self.probe is not None and number & (number + 1) == 0  # lists 0, 1, 3, 7, ...
        self.flow.send([(parts.pick(some), steps, wanted) for some in torch.arange(len(parts)).split(each)])

    def _receive(self) -> Parts:
        """The parts sent first, with bounds."""
        try:
            made = self.flow.receive()
        except Stopped:
            self._put_back()
            raise
        for _, refuted, least in made:
            self.refuted = torch.minimum(self.refuted, refuted)
            self.least += [] if least is None else [least]
        parts = Parts.join(*(some for some, _, _ in made))
        self.done += len(parts)
        return parts

    def bound_batch(self, asked: PartBatch) -> PartsTold:
        """What this or another process makes of a batch: which of them does it makes no difference."""
        parts, steps, wanted = asked
        least = self._bound(parts, steps, wanted)
        return parts, self.refuted, least

    def _size(self) -> int:
        """Parts of a batch: all that come of one part's tries, and as many as keep it short, whatever the machine, so that a search can be
        repeated.
        """
        programs = self.engine.programs
        ops = 4 * STEPS * sum(s.ops for s in self.engine.plan.query.steps)
        if self.tight.remakes:
            count = {r: int((self.layer == k).sum()) for k, r in enumerate(self.operators)}
            again = ((r, programs.get(self.operand[r])) for r in self.operators)
            ops += sum(AGAIN * count[r] * sum(s.ops for s in p.steps) for r, p in again if p is not None)
        most, operations = (DEVICE_MOST, DEVICE_OPERATIONS) if self.tight.ascent.by_kernels else (MOST, OPERATIONS)
        return int(max(1, min(most, max(operations // max(ops, 1), 2 * TRIED), self.tight.rows_at_once())))

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """Cells of all operators as each one's own, in the runtime's order of axes."""
        each = zip(self.operators, values.split(self.sizes, 1), strict=True)
        return {r: v.view(len(values), *extent(self.engine.nodes[r])) for r, v in each}

    def _spread(self, whole: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Values of the neurons that were undecided among those of all."""
        every = whole.expand(len(values), -1).clone()
        every[:, self.neurons] = values.to(every.dtype)
        return self._split(every)

    def _gather(self, values: dict[str, Tensor]) -> Tensor:
        return torch.cat([values[r].flatten(1) for r in self.operators], 1).cpu()[:, self.neurons]

    def _there(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {r: v.to(self.engine.device) for r, v in values.items()}

    def _bound(self, parts: Parts, steps: int, wanted: bool) -> Least | None:
        """Bounds the open forms of every part, whose fields it fills; where `wanted` where those still open are least, the worst first."""
        e, n = self.engine, len(parts)
        low = self._there(self._spread(self.lo, torch.maximum(parts.lo.double(), self.lo[:, self.neurons])))
        high = self._there(self._spread(self.hi, torch.minimum(parts.hi.double(), self.hi[:, self.neurons])))
        zeros = torch.zeros(1, self.lo.shape[1])
        signs = self._there(self._spread(zeros, parts.signs))
        bounds = dict[str, tuple[Tensor, Tensor]]()
        for r, i in self.operand.items():  # several may read one
            before = bounds.get(i, (low[r], high[r]))
            bounds[i] = torch.maximum(before[0], low[r]), torch.minimum(before[1], high[r])
        known = Known(bounds, parts.behind.to(e.device), signs)
        box = self.box[0].expand(n, -1), self.box[1].expand(n, -1)
        ball = None if self.ball is None else self.ball.pick(torch.zeros(n, dtype=torch.int64, device=e.device))
        boxes, empty = self.tight.bound(*box, self.deadline, lambda *_: None, known, ball)
        at, column = torch.nonzero(parts.open).T
        form = parts.forms[at, column]
        forms = replace(self.forms.pick(form), image=at.to(e.device))
        rows = replace(
            self.tight.form_rows(forms, boxes, box), signs={r: v[at] for r, v in signs.items()},
            slopes=self._there(self._spread(zeros, parts.below[at, column])),
            multipliers=self._there(self._spread(zeros, parts.multipliers[at, column])),
        )  # fmt: skip
        found = self.tight.ascend(rows, boxes, forms.image, steps)
        chosen = self.tight.as_chosen(found)
        best, empty = e.walker.bound_forms(e.tables(boxes), forms, None, self.deadline, chosen).best.cpu(), empty.cpu()
        closed = (best > 0) | empty[at]
        mine = closed & ~empty[at]
        self.refuted.scatter_reduce_(0, form[mine], best[mine], "amin")
        down, up = (self._gather({r: ends[i] for r, i in self.operand.items()}) for ends in (boxes.lo, boxes.hi))
        parts.lo, parts.hi = round_outward(down, up, torch.float32)
        loss = {r: to_physical(found[r].loss, e.nodes[r].shape) for r in self.operators}
        parts.below[at, column] = self._gather(chosen.slopes).to(torch.float16)
        parts.multipliers[at, column] = self._gather(chosen.multipliers).abs().clamp(max=6e4).to(torch.float16)
        parts.loss[at, column] = self._gather(loss).clamp(max=6e4).to(torch.float16)
        parts.bound[at, column] = torch.where(empty[at], torch.inf, torch.maximum(best, parts.bound[at, column]))
        parts.open[at[closed], column[closed]] = False
        corners = self.tight.ascent.corners
        if not wanted or corners is None:
            return None
        worst = best.masked_fill(closed, torch.inf).argsort(stable=True)[: min(POINTS, int((~closed).sum()))]
        return best[worst], corners.cpu()[worst]
