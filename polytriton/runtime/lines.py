"""Linear lower bounds of forms over the input: the rows that a walk ends with.

They tell the falsifier where a bound is least, and a search which part of a box an unsafe point cannot lie in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.passes.windows import whole
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Forms, Results


@dataclass(frozen=True)
class LinearBounds:
    """form >= slopes . x + constant - slack for every input x of the form's box and every execution; all float64, the slopes exact.

    `slopes` are over the input node's cells, [rows, cells].
    """

    slopes: Tensor
    constant: Tensor
    slack: Tensor


class _Lines(Walk):
    """A walk that takes no bounds on the way and keeps what it has over the input."""

    plays = False
    found: LinearBounds

    def _check(self, last: bool) -> bool:
        """The invariant of a walk at the input, with the pending rounding paid that a candidate would be charged there."""
        if last:
            name = self.kit.net.input.name
            self._leave_centre(name)
            m, window = self._dense_entry(name, self.frontier[name])
            place, frame = self._place(name, window), self.kit.frames[name]
            weight = self.backend.weigh(m, place, self.tables.xabs(name))
            charged = self.kit.candidate_error(name, place.height * place.line)
            slack = (self.rows.error + weight * charged + self.tables.floor(name)[self.rows.image]) * (1 + 2.0**-48)
            slopes = self.backend.embed(m, self.rows, window, whole(frame.h, frame.w)).flatten(1)
            self.found = LinearBounds(slopes.double(), self.rows.constant, slack)
        return not last


def input_lines(engine: Engine, boxes: Boxes, forms: Forms, deadline: float | None = None) -> LinearBounds:
    """A linear lower bound of every form over the input node's cells, by the interpreter of Plans."""
    engine = engine if engine.kernels is None else engine.plain()
    empty = torch.zeros(0, dtype=torch.float64, device=engine.device)
    walks = engine.walker.walks(_Lines, engine.tables(boxes), forms, Results(empty, empty), deadline)
    found = [(w.found.slopes, w.found.constant, w.found.slack) for w in walks]
    return LinearBounds(*(torch.cat(parts) for parts in zip(*found, strict=True)))
