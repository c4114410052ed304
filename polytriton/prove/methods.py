"""Other methods, to compare with: what each proves, and in what time, by the same engine.

    ibp        interval propagation alone: forms over the box of the outputs
    crown-ibp  intervals for all neurons; forms are substituted back to the input (CR-IBP in GPUPoly's paper)
    deeppoly   every neuron's rows go back to the input and none leaves early, then forms

Every frontier of a walk gives a sound bound (soundness.md, section 3), and all roundings before it are charged by then. These take one of
those frontiers each, so they are as sound as the whole; float64 follows where rounding alone was in the way, as it does there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Forms, Identity, Results

INTERVALS = ("ibp", "crown-ibp")  # those that bound no neuron by rows


class _AtOutput(Walk):
    """A walk that ends where it starts."""

    @torch.inference_mode()
    def run(self, start: Tensor | Identity, extra: Tensor | None = None) -> None:
        self.extra = extra
        self.results.left.append(self.left)
        self.step = self.program.steps[0]
        self.frontier[self.step.node] = (start, self.step.windows[0])
        self._check(True)


def output_forms(engine: Engine, boxes: Boxes, forms: Forms, deadline: float | None = None) -> Results:
    """Lower bounds of forms over the box of the outputs, by the interpreter of Plans."""
    engine = engine if engine.kernels is None else engine.plain()
    results = Results.begin(len(forms.image), engine.device)
    for _ in engine.walker.walks(_AtOutput, engine.tables(boxes), forms, results, deadline):
        pass
    return results
