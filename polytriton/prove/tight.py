"""Tight bounds: slopes chosen for every row, of inner neurons layer by layer, then of the query.

The slopes come from `runtime/ascent.py`, on a device from its kernels, and `runtime/chain.py`, which nobody need trust: what counts is
one charged walk with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Program, extent
from polytriton.prove.course import Course
from polytriton.prove.questions import Questions
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent, AscentRows
from polytriton.runtime.ascent_lines import POINTS, Found
from polytriton.runtime.chain import ChainAscent
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu import ascent_loops
from polytriton.runtime.engine import Progress
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.ascent_kernels import AscentKernels
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.layers import from_physical, to_physical
from polytriton.runtime.results import Forms, Results, Stopped, expire
from polytriton.runtime.undecided import Undecided, find_undecided, indices

if TYPE_CHECKING:
    from polytriton.prove.attempt import Answers
    from polytriton.prove.decider import Decider, Try

INNER, AGAIN, QUERY = 20, 8, 60  # steps uphill: for inner neurons of a whole box, of a part, for the query
RATE = 0.2
DENSE = 1 << 13  # cells of a network up to which every inner neuron gets rows of its own
ROWS, DEVICE_ROWS = 1024, 4096  # at a time, by torch and by kernels


@dataclass
class Known:
    """What holds for the executions of a batch of parts: bounds of nodes, and sides of operands (1, -1 or 0), by the operator.

    `behind`: for each part the number of the last operator whose operand has its bounds already.
    """

    bounds: Mapping[str, tuple[Tensor, Tensor]]
    behind: Tensor
    signs: dict[str, Tensor] = field(default_factory=dict)


class Tight:
    """Bounds with chosen slopes by one engine, the interpreter of Plans."""

    def __init__(self, decider: Decider, how: Try, deadline: float | None = None) -> None:
        self.decider, self.how, engine = decider, how, decider.engine(how)
        self.engine = engine if engine.kernels is None else engine.plain()
        e = self.engine
        watch = partial(expire, deadline)
        self.ascent = Ascent(e.net, e.device, watch) if engine.kernels is None else AscentKernels(engine.kernels, watch)
        chained = ChainAscent.serves(e.net) and ascent_loops.serves(e.device)
        self.chain = ChainAscent(e.net, e.forward, watch) if chained else None
        self.inner = sum(n.size for n in e.net) <= DENSE
        self.place = {e.nodes[r].inputs[0]: k for k, r in enumerate(self.ascent.divided_before(e.net.output))}
        # whether parts get inner bounds of their own behind what divides them: chains, and small networks of smooth functions
        self.remakes = self.chain is not None or (bool(e.unsettled) and self.inner)

    def refine(self, lo: Tensor, hi: Tensor, deadline: float | None, progress: Progress, ball: InputBalls | None = None) -> Boxes:
        """As `Engine.refine`; what stays undecided behind the first ReLU is bounded again, with slopes of its own."""
        if self.inner:
            return self.bound(lo, hi, deadline, progress, ball=ball)[0]
        return self.engine.refine(lo, hi, progress, deadline, ball=ball)

    def bound(
        self,
        lo: Tensor,
        hi: Tensor,
        deadline: float | None,
        progress: Progress,
        known: Known | None = None,
        ball: InputBalls | None = None,
    ) -> tuple[Boxes, Tensor]:
        """Boxes of these inputs, or of parts of their executions; and which parts have no execution, since two bounds do not meet."""
        e = self.engine
        boxes, empty, done = e.forward.start(lo, hi, ball), torch.zeros(len(lo), dtype=torch.bool, device=e.device), 0
        if known is not None:
            boxes.signed = known.signs
        for node in e.interval_nodes(boxes):
            name, program = node.name, e.programs.get(node.name)
            if known is not None and name in known.bounds:
                empty |= _meet(boxes, name, *known.bounds[name])
            if program is None:
                continue
            if known is None:
                progress(f"slopes for bounds of {name}", done, len(e.programs))
                done += 1
            late = ~empty if known is None else ~empty & (known.behind < (self.place.get(name, -1) if self.remakes else -1))
            if bool(late.any()):
                self._both(node, program, boxes, late, deadline)
                if self.place.get(name, 1) > 0 and self.ascent.relaxed_before(name):
                    steps, signs = (INNER, {}) if known is None else (AGAIN, known.signs)
                    self._again(node, program, boxes, (lo, hi), late, signs, steps, deadline)
                if known is not None:
                    empty |= _meet(boxes, name, boxes.lo[name], boxes.hi[name])
        return boxes, empty

    def _find_undecided(self, name: str, boxes: Boxes, images: Tensor) -> Undecided:
        return find_undecided(boxes.lo[name], boxes.hi[name], every=name in self.engine.unsettled, images=images)

    def _both(self, node: Node, program: Program, boxes: Boxes, images: Tensor, deadline: float | None) -> None:
        """Both sides of every neuron of undecided sign, by the engine's own slopes."""
        e, name = self.engine, node.name
        boxes.lo[name], boxes.hi[name] = boxes.lo[name].contiguous(), boxes.hi[name].contiguous()
        found = self._find_undecided(name, boxes, images)
        if len(found):
            e.walker.bound_neurons(program, e.tables(boxes), found, e.leaves(name), deadline)
            found.write(boxes.lo[name], boxes.hi[name])

    def _again(
        self,
        node: Node,
        program: Program,
        boxes: Boxes,
        box: tuple[Tensor, Tensor],
        images: Tensor,
        signs: dict[str, Tensor],
        steps: int,
        deadline: float | None,
    ) -> None:
        """Both sides of what is undecided still, with slopes of their own."""
        e, low, high = self.engine, boxes.lo[node.name], boxes.hi[node.name]
        found = self._find_undecided(node.name, boxes, images)
        for some in self._batches(found.at, low[0].numel()):
            expire(deadline)
            image, h, w, channel = (v.repeat(2) for v in indices(some, low.shape))
            rows, sign = torch.arange(2 * len(some), device=e.device), torch.ones(2 * len(some), dtype=torch.int64, device=e.device)
            sign[len(some) :] = -1
            start = torch.zeros(len(rows), *low.shape[1:], device=e.device)
            start[rows, h, w, channel] = sign.float()
            chosen = self._choose(node, boxes, box, image, start, signs, steps)
            where = image, h, w, channel
            made = e.walker.bound_side(program, e.tables(boxes), where, rows, sign, False, deadline, chosen)
            up, down = made.best.split(len(some))
            low.view(-1)[some] = torch.maximum(low.view(-1)[some], up)
            high.view(-1)[some] = torch.minimum(high.view(-1)[some], -down)

    def _batches(self, cells: Tensor, each: int) -> list[Tensor]:
        """Cells of a batch of images, as many at a time as memory holds; of one image at a time where that image's neurons are left out."""
        groups = cells.split(torch.bincount(cells // each).tolist()) if self.chain is not None and len(cells) else [cells]
        return [some for group in groups for some in group.split(self.rows_at_once()) if len(some)]

    def _choose(
        self, node: Node, boxes: Boxes, box: tuple[Tensor, Tensor], image: Tensor, start: Tensor, signs: dict[str, Tensor], steps: int
    ) -> Chosen:
        """Slopes, and multipliers where signs are known, for rows over a node."""
        if self.chain is not None:
            return self.chain.improve(node, boxes, int(image[0]), start.flatten(1), signs, steps, RATE)
        rows = AscentRows(
            node.name, start, box[0][image], box[1][image], {}, signs={r: v[image] for r, v in signs.items()},
            ball=None if boxes.ball is None else boxes.ball.pick(image),
        )  # fmt: skip
        return self.as_chosen(self.ascend(rows, boxes, image, steps))

    def ascend(self, rows: AscentRows, boxes: Boxes, image: Tensor, steps: int) -> dict[str, Found]:
        """What raises bounds of rows over boxes; all that `rows` brings along, and the result, in the IR's order of cells."""
        nodes = self.engine.nodes
        read = {i for r in self.ascent.relaxed_before(rows.target) for i in nodes[r].inputs}
        operands = {i: tuple(from_physical(v[i][image], nodes[i].shape) for v in (boxes.lo, boxes.hi)) for i in read}

        def outward(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {r: from_physical(v, nodes[r].shape) for r, v in values.items()}

        start = from_physical(rows.start, nodes[rows.target].shape)
        begin = {name: outward(getattr(rows, name)) for name in ("signs", "slopes", "multipliers")}
        return self.ascent.improve(replace(rows, start=start, operands=operands, **begin), steps, RATE)  # type: ignore[arg-type]

    def as_chosen(self, found: Mapping[str, Found]) -> Chosen:
        """The same as rows bring it along, in the runtime's order of cells."""

        def inward(name: str, values: Tensor) -> Tensor:
            node = self.engine.nodes[name]
            return to_physical(values, node.shape).view(len(values), *extent(node))

        multipliers = {r: inward(r, f.multipliers) for r, f in found.items() if f.multipliers is not None}
        second = {r: inward(r, f.second) for r, f in found.items() if f.second is not None}
        return Chosen({r: inward(r, f.slopes) for r, f in found.items()}, multipliers, second)

    def rows_at_once(self) -> int:
        """Rows whose copies of all boxes and slopes an eighth of the memory holds; by kernels half of it, an image's bytes each."""
        copies = POINTS if self.engine.unsettled else 3  # a smooth function is looked at in so many points
        times, most = (2, DEVICE_ROWS) if self.ascent.by_kernels else (8 * copies, ROWS)
        return int(max(1, min(most, self.engine.memory // (times * self.engine.image_bytes))))

    def query(self, boxes: Boxes, forms: Forms, box: tuple[Tensor, Tensor], deadline: float | None, goal: float | None = None) -> Results:
        """Lower bounds of the forms, every one with slopes of its own; by default no step is made once all are above zero."""
        e, parts = self.engine, []
        for some in torch.split(torch.arange(len(forms.image)), self.rows_at_once()):
            expire(deadline)
            part = forms.pick(some)
            rows = self.form_rows(part, boxes, box)
            if goal is not None:
                rows.constant = torch.full((len(some),), goal, device=e.device)
            found = self.ascend(rows, boxes, part.image, QUERY)
            parts.append(e.walker.bound_forms(e.tables(boxes), part, None, deadline, self.as_chosen(found)))
        return Results(torch.cat([p.best for p in parts]), torch.cat([p.raw for p in parts]))

    def ask(
        self, q: Questions, answers: Answers, image: int, deadline: float | None, progress: Progress
    ) -> tuple[Boxes, tuple[Tensor, Tensor], np.ndarray]:
        """Bounds what `answers` leaves open over one of the boxes, and marks what that proves; returns the box's bounds, the box, and the
        rows that were open.
        """
        lo, hi = (torch.from_numpy(v[image : image + 1]).to(self.decider.device) for v in (q.lo, q.hi))
        rows = np.flatnonzero((q.image == image) & ~answers.settled[q.group])
        boxes = self.refine(lo, hi, deadline, progress, self.decider.balls(q, np.array([image])))
        progress("slopes for the query", 0, 1)
        got = self.query(boxes, self.decider.forms(q, rows, np.zeros(len(rows), dtype=np.int64)), (lo, hi), deadline)
        best, raw = got.best.cpu().numpy(), got.raw.cpu().numpy()
        answers.best[rows], answers.raw[rows] = np.maximum(answers.best[rows], best), np.maximum(answers.raw[rows], raw)
        answers.settle(q, rows[best > 0], chosen=True)
        return boxes, (lo, hi), rows

    def form_rows(self, forms: Forms, boxes: Boxes, box: tuple[Tensor, Tensor]) -> AscentRows:
        """The forms as rows of an ascent, over the user's boxes."""
        e, image = self.engine, forms.image
        start = forms.over_output.view(len(image), *boxes.lo[e.net.output].shape[1:]).float()
        beside = None if forms.over_input is None else self.decider.user_columns(forms.over_input)
        ball = None if boxes.ball is None else boxes.ball.pick(image)
        return AscentRows(e.net.output, start, box[0][image], box[1][image], {}, beside, forms.constant, ball=ball)


def _meet(boxes: Boxes, name: str, lo: Tensor, hi: Tensor) -> Tensor:
    """Narrows a node's boxes to what both bounds say; returns the images where they do not meet."""
    low, high = torch.maximum(boxes.lo[name], lo), torch.minimum(boxes.hi[name], hi)
    empty = (low > high).flatten(1).any(1)
    boxes.lo[name], boxes.hi[name] = torch.minimum(low, high).contiguous(), high.contiguous()
    return empty


def tighten(decider: Decider, q: Questions, answers: Answers, deadline: float | None, progress: Progress) -> SearchStats:
    """Bounds what `answers` leaves open once more; float64 where rounding alone stood in the way."""
    begin, ended, boxes, course = time.monotonic(), "steps", 0, Course("boxes", progress)
    with decider.turn, settings.pin_settings(decider.device), decider._threads():
        try:
            for how in dict.fromkeys(replace(t, rescue=False) for t in decider.tries(patient=False)):
                tight = Tight(decider, how, deadline)
                for image in np.unique(q.image[~answers.settled[q.group]]):
                    tight.ask(q, answers, int(image), deadline, progress)
                    boxes += 1
                    still = ~answers.settled[q.group]
                    course.tell(boxes, len(np.unique(q.image[still])), 0, answers.best[still].max(initial=-np.inf), answers.settled.mean())
                hopeful = np.zeros(len(answers.settled), dtype=bool)
                hopeful[q.group[answers.raw > 0]] = True
                if not (hopeful & ~answers.settled).any():
                    break
        except Stopped:
            ended = "time"
    left = np.unique(q.image[~answers.settled[q.group]])
    worst = answers.best[~answers.settled[q.group]]
    share, least = float(answers.settled.mean()), float(worst.max(initial=-np.inf))
    return SearchStats(
        "slopes", boxes, len(left), 0, share, least if len(worst) and np.isfinite(least) else None, time.monotonic() - begin,
        ended if len(left) else "", course.history(),
    )  # fmt: skip
