"""Tight bounds: slopes chosen for every row, of inner neurons layer by layer, then of the query.

The slopes come from `runtime/ascent.py`, which nobody need trust: what counts is one charged walk with them. A row whose slopes are its
own is a row of an image of its own: the same boxes, other lines.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Program
from polytriton.prove.questions import Questions
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent, Rows
from polytriton.runtime.engine import Engine, Progress, indices
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import from_physical, to_physical
from polytriton.runtime.results import Forms, Results, Stopped

if TYPE_CHECKING:
    from polytriton.prove.attempt import Answers
    from polytriton.prove.decider import Decider

INNER, QUERY = 20, 60  # steps uphill
RATE = 0.2
DENSE = 1 << 13  # cells of a network up to which every inner neuron gets rows of its own
ROWS = 1024  # at a time


class Tight:
    """Bounds with chosen slopes by one engine, the interpreter of Plans."""

    def __init__(self, decider: Decider, engine: Engine) -> None:
        self.decider, self.engine = decider, engine if engine.kernels is None else engine._plain()
        self.ascent = Ascent(engine.net, engine.device)
        self.inner = sum(n.size for n in engine.net) <= DENSE

    def refine(self, lo: Tensor, hi: Tensor, deadline: float | None, progress: Progress) -> Boxes:
        """As `Engine.refine`; what stays undecided behind the first ReLU is bounded again, with slopes of its own."""
        e = self.engine
        if not self.inner:
            return e.refine(lo, hi, progress, deadline)
        boxes, done = e.forward.start(lo, hi), 0
        for node in e.passed(boxes):
            program = e.programs.get(node.name)
            if program is None:
                continue
            progress(f"slopes for bounds of {node.name}", done, len(e.programs))
            e._bound(program, boxes, deadline)
            if self.ascent.relus_before(node.name):
                self._again(node, program, boxes, (lo, hi), deadline)
            done += 1
        return boxes

    def _again(self, node: Node, program: Program, boxes: Boxes, box: tuple[Tensor, Tensor], deadline: float | None) -> None:
        """Both sides of every neuron of undecided sign."""
        e, low, high = self.engine, boxes.lo[node.name].contiguous(), boxes.hi[node.name].contiguous()
        boxes.lo[node.name], boxes.hi[node.name] = low, high
        open_ = torch.nonzero(((low < 0) & (high > 0)).flatten()).flatten()
        for some in torch.split(open_, self.rows_at_once()) if len(open_) else ():
            e._expire(deadline)
            image, h, w, channel = (v.repeat(2) for v in indices(some, low.shape))
            rows, sign = torch.arange(2 * len(some)), torch.ones(2 * len(some), dtype=torch.int64)
            sign[len(some) :] = -1
            start = torch.zeros(len(rows), *low.shape[1:])
            start[rows, h, w, channel] = sign.float()
            mine = self._own_lines(Rows(node.name, start, box[0][image], box[1][image], {}), boxes, image, INNER)
            up, down = e._side(program, e._tables(mine), (rows, h, w, channel), rows, sign, False, deadline).best.split(len(some))
            low.view(-1)[some] = torch.maximum(low.view(-1)[some], up)
            high.view(-1)[some] = torch.minimum(high.view(-1)[some], -down)

    def rows_at_once(self) -> int:
        """Rows whose copies of all boxes and slopes an eighth of the memory holds."""
        return int(max(1, min(ROWS, self.engine.memory // 8 // (3 * self.engine.image_bytes()))))

    def _own_lines(self, rows: Rows, boxes: Boxes, image: Tensor, steps: int) -> Boxes:
        """The boxes once more for every row, with slopes that raise its bound."""
        mine, nodes = boxes.pick(image), self.engine.nodes
        operands = {r: nodes[r].inputs[0] for r in self.ascent.relus_before(rows.target)}
        relus = {r: (from_physical(mine.lo[i], nodes[i].shape), from_physical(mine.hi[i], nodes[i].shape)) for r, i in operands.items()}
        start = from_physical(rows.start, nodes[rows.target].shape)
        found = self.ascent.improve(replace(rows, start=start, relus=relus), steps, RATE)
        mine.slopes = {r: to_physical(v.below, nodes[r].shape).view_as(mine.lo[operands[r]]) for r, v in found.items()}
        return mine

    def query(self, boxes: Boxes, forms: Forms, box: tuple[Tensor, Tensor], deadline: float | None) -> Results:
        """Lower bounds of the forms, every one with slopes of its own."""
        e, parts = self.engine, []
        for some in torch.split(torch.arange(len(forms.image)), self.rows_at_once()):
            e._expire(deadline)
            part = pick_forms(forms, some)
            start = part.over_output.view(len(some), *boxes.lo[e.net.output].shape[1:]).float()
            beside = None if part.over_input is None else self.decider.user_columns(part.over_input)
            rows = Rows(e.net.output, start, box[0][part.image], box[1][part.image], {}, beside, part.constant)
            mine = self._own_lines(rows, boxes, part.image, QUERY)
            parts.append(e._walk_forms(e._tables(mine), replace(part, image=torch.arange(len(some))), None, deadline))
        return Results(torch.cat([p.best for p in parts]), torch.cat([p.raw for p in parts]))


def pick_forms(forms: Forms, rows: Tensor) -> Forms:
    values = (getattr(forms, f.name) for f in fields(forms))
    return Forms(*(None if v is None else v[rows] for v in values))  # type: ignore[arg-type]


def tighten(decider: Decider, q: Questions, answers: Answers, deadline: float | None, progress: Progress) -> SearchStats:
    """Bounds what `answers` leaves open once more; float64 where rounding alone stood in the way."""
    begin, ended, boxes = time.monotonic(), "steps", 0
    with decider.turn, settings.pinned(decider.device), decider._threads():
        try:
            for how in dict.fromkeys(replace(t, rescue=False) for t in decider.tries(patient=False)):
                tight = Tight(decider, decider.engine(how))
                for image in np.unique(q.image[~answers.settled[q.group]]):
                    rows = np.flatnonzero((q.image == image) & ~answers.settled[q.group])
                    lo, hi = (torch.from_numpy(v[image : image + 1]).to(decider.device) for v in (q.lo, q.hi))
                    refined = tight.refine(lo, hi, deadline, progress)
                    forms = decider.forms(q, rows, np.zeros(len(rows), dtype=np.int64))
                    progress("slopes for the query", 0, 1)
                    got = tight.query(refined, forms, (lo, hi), deadline)
                    best, raw = got.best.cpu().numpy(), got.raw.cpu().numpy()
                    answers.best[rows], answers.raw[rows] = np.maximum(answers.best[rows], best), np.maximum(answers.raw[rows], raw)
                    answers.settled[q.group[rows[best > 0]]] = True
                    boxes += 1
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
        ended if len(left) else "",
    )  # fmt: skip
