"""The ascent of many rows over one box, for a chain of dense layers and ReLUs: no tape, and neurons that are off left out.

The mathematics is `runtime/ascent.py`'s; nothing here is trusted either. All cells in the runtime's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from polytriton.arithmetic import ETA32
from polytriton.ir.net import Net, Node
from polytriton.runtime.ascent import DECAY
from polytriton.runtime.ascent_lines import BESIDE, FIRST, SECOND, TINY
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.input_balls import least_points
from polytriton.runtime.layers import flush


@dataclass
class _Stage:
    """A dense layer and its ReLU, the neurons that count: undecided ones first, then those of an assumed sign, then those that are on.

    `back` is [neurons, neurons of the stage before, or inputs].
    """

    relu: str
    cells: Tensor
    undecided: int
    signed: int
    back: Tensor
    bias: Tensor
    chord: Tensor
    cut: Tensor
    on: Tensor  # 1 or 0 for those that are decided
    sign: Tensor
    below: Tensor  # [rows, undecided]
    multiplier: Tensor  # [rows, signed]


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
            made.append(
                _Stage(relu, cells, u, s, back, b[cells], chord, -chord * low, on, sign[kinds[1]], below, torch.zeros(rows, s))
            )  # fmt: skip
        return made

    def _climb(self, stages: list[_Stage], depth: int, boxes: Boxes, image: int, start: Tensor, steps: int, rate: float) -> Chosen:
        name = self.net.input.name
        lo, hi = boxes.lo[name][image].flatten().float(), boxes.hi[name][image].flatten().float()
        middle, radius = 0.5 * lo + 0.5 * hi, 0.5 * hi - 0.5 * lo
        arranged = None if boxes.ball is None else self.forward.arranged_ball(boxes.ball.pick(torch.tensor([image])))
        ball = None if arranged is None else arranged.move_cells(lambda v: v.flatten(1)).float()
        w, b = self.weights[depth]
        over, constant = start @ w[:, stages[-1].cells], start @ b
        moments = [[torch.zeros_like(v) for v in (s.below, s.below, s.multiplier, s.multiplier)] for s in stages]
        best = torch.full((len(start),), -torch.inf)
        kept = [(s.below.clone(), s.multiplier.clone()) for s in stages]
        for k in range(1, steps + 2):
            self.expire()
            met = self._backward(stages, over)
            x = met[0].sign().mul_(-radius).add_(middle) if ball is None else least_points(met[0], lo[None], hi[None], ball)
            value, seen = self._forward(stages, x, met)
            bound = value + constant
            better = bound > best
            best = torch.where(better, bound, best)
            at = torch.nonzero(better).flatten()
            for s, (below, multiplier) in zip(stages, kept, strict=True):
                below[at], multiplier[at] = s.below[at], s.multiplier[at]
            if k > steps or bool((best > 0).all()):
                break
            scale = rate * DECAY**k
            for s, m, coefficient, z in zip(stages, moments, met[1:], seen, strict=True):
                u, g = s.undecided, s.signed
                if u:
                    s.below.add_(_move(coefficient[:, :u].clamp(min=0) * z[:, :u], m[0], m[1], k), alpha=scale).clamp_(0.0, 1.0)
                if g:
                    s.multiplier.add_(_move(-s.sign * z[:, u : u + g], m[2], m[3], k), alpha=BESIDE * scale).clamp_(min=0)
        return self._collect(stages, kept, boxes)

    def _backward(self, stages: list[_Stage], over: Tensor) -> list[Tensor]:
        """The rows over the input, then the coefficients that they met over each ReLU's output, in the network's order."""
        met = [over]
        for s in reversed(stages):
            over, u, g = met[-1], s.undecided, s.signed
            down = over[:, :u]
            decided = over[:, u:] * s.on
            if g:
                decided[:, :g] -= s.sign * s.multiplier
            met.append(torch.cat([torch.where(down >= 0, s.below, s.chord) * down, decided], 1) @ s.back)
        return met[::-1]

    def _forward(self, stages: list[_Stage], x: Tensor, met: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows' least values, but for their constant, and the operands at which they are taken."""
        seen, penalty, y = [], torch.zeros(len(x)), x
        for s, coefficient in zip(stages, met[1:], strict=True):
            z = torch.addmm(s.bias, y, s.back.T)
            seen.append(z)
            u, g = s.undecided, s.signed
            low = torch.where(coefficient[:, :u] >= 0, s.below * z[:, :u], torch.addcmul(s.cut, s.chord, z[:, :u]))
            y = torch.cat([low, z[:, u:] * s.on], 1)
            if g:
                penalty += (s.multiplier * s.sign * z[:, u : u + g]).sum(1)
        return (met[-1] * y).sum(1) - penalty, seen

    def _collect(self, stages: list[_Stage], kept: list[tuple[Tensor, Tensor]], boxes: Boxes) -> Chosen:
        found = Chosen({}, {})
        for s, (below, multiplier) in zip(stages, kept, strict=True):
            shape = boxes.lo[self.net.node(s.relu).inputs[0]].shape[1:]
            slopes = torch.zeros(len(below), *shape)
            slopes.view(len(below), -1)[:, s.cells[: s.undecided]] = below
            found.slopes[s.relu] = slopes
            if s.signed:
                signed = torch.zeros(len(below), *shape)
                signed.view(len(below), -1)[:, s.cells[s.undecided : s.undecided + s.signed]] = multiplier * s.sign
                found.multipliers[s.relu] = signed
        return found


def _move(slope: Tensor, first: Tensor, second: Tensor, k: int) -> Tensor:
    """Adam's step."""
    first.lerp_(slope, 1 - FIRST)
    second.mul_(SECOND).addcmul_(slope, slope, value=1 - SECOND)
    return (first / (1 - FIRST**k)).div_((second / (1 - SECOND**k)).sqrt_().add_(TINY))
