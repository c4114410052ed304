"""Where linear lower bounds are least: the coefficients over the input that a walk ends with, for the falsifier to start from."""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.passes.windows import whole
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Forms
from polytriton.runtime.walk import Results, Walk


class _Slopes(Walk):
    """A walk that takes no bounds on the way and keeps what it has over the input."""

    found: Tensor

    def _check(self, last: bool) -> bool:
        if last:
            name = self.kit.net.input.name
            m, window = self._dense_entry(name, self.frontier[name])
            frame = self.kit.frames[name]
            self.found = self.backend.embed(m, self.rows, window, whole(frame.h, frame.w)).flatten(1)
        return not last


def input_slopes(engine: Engine, boxes: Boxes, forms: Forms, deadline: float | None = None) -> Tensor:
    """Coefficients over the input node's cells of a linear lower bound of every form, [rows, cells]; by the interpreter of Plans."""
    engine = engine if engine.kernels is None else engine._plain()
    program = engine.plan.query
    tables = engine._tables(boxes)
    shape, dtype = extent(engine.nodes[program.target]), engine.coefficients.dtype
    empty = torch.zeros(0, dtype=torch.float64, device=engine.device)
    made = []
    for block in engine._blocks(len(forms.image), program):
        engine._expire(deadline)
        image = forms.image[block]
        zero = torch.zeros_like(image)
        walk = _Slopes(engine.backend, tables, program, engine._rows(image, block, zero, zero), Results(empty, empty))
        walk.run(forms.over_output[block].view(len(block), *shape).to(dtype).contiguous(), forms.over_input)
        made.append(walk.found)
    return torch.cat(made)
