"""The ascent of many rows over one box, for a chain of dense layers and ReLUs: no tape, and neurons that are off left out.

The mathematics is `runtime/ascent.py`'s; nothing here is trusted either. All cells in the runtime's order. Between the products are
compiled loops (`cpu/ascent_loops.py`): networks this small spend their time on calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from polytriton.arithmetic import ETA32
from polytriton.ir.net import Net, Node
from polytriton.runtime.ascent import DECAY
from polytriton.runtime.ascent_lines import step_numbers
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu.ascent_loops import climb, fold_back, follow_lines, keep_better
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.input_balls import least_points
from polytriton.runtime.layers import flush


@dataclass
class _Stage:
    """A dense layer and its ReLU, the neurons that count: undecided ones first, then those of an assumed sign, then those that are on.

    `back` is [neurons, neurons of the stage before, or inputs]; arrays are what the loops take.
    """

    relu: str
    cells: Tensor
    undecided: int
    signed: int
    back: Tensor
    bias: Tensor
    chord: np.ndarray  # [1, undecided], as is the cut
    cut: np.ndarray
    on: np.ndarray  # 1 or 0 for those that are decided
    sign: np.ndarray  # [1, signed]
    below: np.ndarray  # [rows, undecided]
    multiplier: np.ndarray  # [rows, signed]


class ChainAscent:
    """The ascent for one network."""

    def __init__(self, net: Net, forward: Forward, expire: Callable[[], None]) -> None:
        self.net, self.forward, self.expire, nodes = net, forward, expire, list(net)
        self.layers = [n for n in nodes if n.op == "linear"]
        self.depth = {n.name: k for k, n in enumerate(self.layers)}
        self.relus = {n.inputs[0]: n for n in nodes if n.op == "relu"}
        loaded = (forward.layers[n.name] for n in self.layers)
        self.weights = [(flush(layer.stored.flatten(1).float(), ETA32), layer.b.flatten().float()) for layer in loaded]

    @staticmethod
    def serves(net: Net) -> bool:
        """Whether each node reads the one before, dense layers and plain ReLUs by turns; a last ReLU may follow the last layer."""
        nodes = list(net)
        ops = [n.op for n in nodes[1:]]
        turns = ops == ["linear" if k % 2 == 0 else "relu" for k in range(len(ops))]
        chained = all(n.inputs == (p.name,) for p, n in pairwise(nodes))
        return len(ops) > 2 and turns and chained and all(n.number("slope") == 0.0 for n in nodes if n.op == "relu")

    def improve(
        self, target: Node, boxes: Boxes, image: int, start: Tensor, signs: Mapping[str, Tensor], steps: int, rate: float
    ) -> Chosen:
        """For rows `start` over a dense layer's outputs [rows, cells], what gave each its best bound, over one of the boxes."""
        depth = self.depth[target.name]
        with torch.inference_mode():
            stages = self._stages(depth, boxes, image, signs, len(start))
            return self._climb(stages, depth, boxes, image, start.float(), steps, rate)

    def _stages(self, depth: int, boxes: Boxes, image: int, signs: Mapping[str, Tensor], rows: int) -> list[_Stage]:
        made: list[_Stage] = []
        for layer, (w, b) in zip(self.layers[:depth], self.weights, strict=False):
            relu = self.relus[layer.name].name
            lo, hi = boxes.lo[layer.name][image].flatten().float(), boxes.hi[layer.name][image].flatten().float()
            sign = signs[relu][image].flatten().float() if relu in signs else torch.zeros_like(lo)
            undecided = (lo < 0) & (hi > 0)
            sign = torch.where(undecided, 0.0, sign)
            kinds = [torch.nonzero(k).flatten() for k in (undecided, sign != 0, (sign == 0) & (lo >= 0))]
            cells = torch.cat(kinds)
            back = w[cells] if not made else w[cells][:, made[-1].cells]
            u, s = len(kinds[0]), len(kinds[1])
            low, high = lo[kinds[0]], hi[kinds[0]]
            chord = high / (high - low)
            below = torch.where(high > -low, 1.0, 0.0).expand(rows, -1).clone()
            on = (lo[cells[u:]] >= 0).float()
            lines = (v.numpy() for v in (chord[None], (-chord * low)[None], on, sign[kinds[1]][None], below, torch.zeros(rows, s)))
            made.append(_Stage(relu, cells, u, s, back, b[cells], *lines))
        return made

    def _climb(self, stages: list[_Stage], depth: int, boxes: Boxes, image: int, start: Tensor, steps: int, rate: float) -> Chosen:
        name = self.net.input.name
        lo, hi = boxes.lo[name][image].flatten().float(), boxes.hi[name][image].flatten().float()
        middle, radius = 0.5 * lo + 0.5 * hi, 0.5 * hi - 0.5 * lo
        arranged = None if boxes.ball is None else self.forward.arranged_ball(boxes.ball.pick(torch.tensor([image])))
        ball = None if arranged is None else arranged.move_cells(lambda v: v.flatten(1)).float()
        w, b = self.weights[depth]
        over, constant = start @ w[:, stages[-1].cells], start @ b
        moments = [[np.zeros_like(v) for v in (s.below, s.below, s.multiplier, s.multiplier)] for s in stages]
        best = torch.full((len(start),), -torch.inf)
        kept = [(s.below.copy(), s.multiplier.copy()) for s in stages]
        for k in range(1, steps + 2):
            self.expire()
            met = self._backward(stages, over)
            x = met[0].sign().mul_(-radius).add_(middle) if ball is None else least_points(met[0], lo[None], hi[None], ball)
            value, seen = self._forward(stages, x, met)
            bound = value + constant
            for s, (below, multiplier) in zip(stages, kept, strict=True):
                keep_better(bound.numpy(), best.numpy(), s.below, below, s.multiplier, multiplier)
            best = torch.where(bound > best, bound, best)
            if k > steps or bool((best > 0).all()):
                break
            numbers = step_numbers(0.0, rate * DECAY**k, k)
            for s, (first, second, third, fourth), coefficient, z in zip(stages, moments, met[1:], seen, strict=True):
                slopes, signs = (s.cut, s.below, first, second), (s.sign, s.multiplier, third, fourth)
                climb(z.numpy(), coefficient.numpy(), *slopes, *signs, s.undecided, *numbers)
        return self._collect(stages, kept, boxes)

    def _backward(self, stages: list[_Stage], over: Tensor) -> list[Tensor]:
        """The rows over the input, then the coefficients that they met over each ReLU's output, in the network's order."""
        met = [over]
        for s in reversed(stages):
            down = torch.empty(met[-1].shape)
            fold_back(met[-1].numpy(), s.below, s.chord, s.on, s.sign, s.multiplier, s.undecided, down.numpy())
            met.append(down @ s.back)
        return met[::-1]

    def _forward(self, stages: list[_Stage], x: Tensor, met: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows' least values, but for their constant, and the operands at which they are taken."""
        seen, taken, y = [], torch.zeros(len(x)), x
        for s, coefficient in zip(stages, met[1:], strict=True):
            z = torch.addmm(s.bias, y, s.back.T)
            seen.append(z)
            y, lines, signs = torch.empty(z.shape), (s.below, s.chord, s.cut, s.on), (s.sign, s.multiplier, s.undecided)
            follow_lines(z.numpy(), coefficient.numpy(), *lines, *signs, y.numpy(), taken.numpy())
        return (met[-1] * y).sum(1) - taken, seen

    def _collect(self, stages: list[_Stage], kept: list[tuple[np.ndarray, np.ndarray]], boxes: Boxes) -> Chosen:
        found = Chosen({}, {})
        for s, (below, multiplier) in zip(stages, kept, strict=True):
            shape = boxes.lo[self.net.node(s.relu).inputs[0]].shape[1:]
            slopes = torch.zeros(len(below), *shape)
            slopes.view(len(below), -1)[:, s.cells[: s.undecided]] = torch.from_numpy(below)
            found.slopes[s.relu] = slopes
            if s.signed:
                signed = torch.zeros(len(below), *shape)
                signed.view(len(below), -1)[:, s.cells[s.undecided : s.undecided + s.signed]] = torch.from_numpy(multiplier * s.sign)
                found.multipliers[s.relu] = signed
        return found
