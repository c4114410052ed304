"""Slopes below undecided ReLUs, for every row its own, by gradient ascent on the row's bound.

Nothing here is trusted: any slope between the operator's own and 1 is a sound line below it, and only a walk that charges its roundings
makes a bound of it. So everything is float32, and the rows of a batch are those of as many images.

A row C over a node becomes, ReLU by ReLU, N = D L with L its coefficients over the ReLU's output; D is the slope a where L >= 0 and the
chord where L < 0. Over the input it is least at a corner x of the box. With y = D z + cut walked forward from x,

    bound = C y        d bound / d a = max(L, 0) z

by the envelope theorem: neither the corner nor the sides change with a small step of a. The way back is the gradient of the affine
operators (`executor.RUN`) with a ReLU whose gradient is that of its line; the way forward is the same operators once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node
from polytriton.runtime.executor import RUN, load_weights

DECAY = 0.98  # of the rate, each step
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's own


@dataclass
class Rows:
    """What is to be improved: rows over a node [rows, *shape], each over its own box of the user's input [rows, inputs].

    `relus`: the bounds of every ReLU's operand, [rows, *shape]. `over_input`: coefficients that a row brings along.
    """

    target: str
    start: Tensor
    lo: Tensor
    hi: Tensor
    relus: Mapping[str, tuple[Tensor, Tensor]]
    over_input: Tensor | None = None
    constant: Tensor | None = None


@dataclass
class _Line:
    """One ReLU's lines, the row's coefficients on both of its sides, and Adam's moments."""

    low: float
    below: Tensor
    chord: Tensor
    cut: Tensor
    open: Tensor
    coefficient: Tensor | None = None
    kept: Tensor | None = None
    moments: list[Tensor] = field(default_factory=list)

    @staticmethod
    def over(lo: Tensor, hi: Tensor, slope: float) -> _Line:
        undecided = (lo < 0) & (hi > 0)
        decided = torch.where(lo >= 0, 1.0, slope)
        chord = torch.where(undecided, (hi - slope * lo) / (hi - lo).clamp(min=1e-30), decided)
        below = torch.where(undecided, torch.where(hi > -lo, 1.0, slope), decided)
        cut = torch.where(undecided, (slope - chord) * lo, torch.zeros_like(lo))
        return _Line(slope, below, chord, cut, undecided)

    def forward(self, z: Tensor) -> Tensor:
        assert self.coefficient is not None
        return torch.where(self.coefficient >= 0, self.below * z, self.chord * z + self.cut)

    def step(self, z: Tensor, rate: float, k: int) -> None:
        """One step of Adam uphill, back into [slope, 1]."""
        assert self.coefficient is not None
        slope = torch.where(self.open, self.coefficient.clamp(min=0) * z, torch.zeros_like(z))
        if not self.moments:
            self.moments = [torch.zeros_like(slope), torch.zeros_like(slope)]
        first, second = self.moments
        first.lerp_(slope, 1 - FIRST)
        second.lerp_(slope * slope, 1 - SECOND)
        move = (first / (1 - FIRST**k)) / ((second / (1 - SECOND**k)).sqrt() + TINY)
        self.below = torch.where(self.open, (self.below + rate * move).clamp(self.low, 1.0), self.below)


class _Relax(torch.autograd.Function):
    """A ReLU on the way back: multiplies by the slopes of its line, and notes the coefficients that it met."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, line: _Line) -> Tensor:
        ctx.line = line
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        line, (g,) = ctx.line, grads
        line.coefficient = g
        return torch.where(g >= 0, g * line.below, g * line.chord), None


class Ascent:
    """The ascent for one network. Max pools have no slopes: networks with them are not for it."""

    def __init__(self, net: Net, device: torch.device) -> None:
        self.net, self.nodes, self.shape = net, list(net), user_shape(net)
        self.weights = load_weights(net, torch.float32, device)

    @staticmethod
    def serves(net: Net) -> bool:
        ops = {n.op for n in net}
        return "relu" in ops and "maxpool" not in ops

    def improve(self, rows: Rows, steps: int, rate: float) -> dict[str, Tensor]:
        """Slopes below each ReLU that the rows pass, [rows, *shape] float32: those of every row's best bound."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._improve(rows, steps, rate)

    def _improve(self, rows: Rows, steps: int, rate: float) -> dict[str, Tensor]:
        lines = {
            n.name: _Line.over(rows.relus[n.name][0].float(), rows.relus[n.name][1].float(), n.number("slope"))
            for n in self._until(rows.target)
            if n.op == "relu"
        }
        start, lo, hi = rows.start.float(), rows.lo.float(), rows.hi.float()
        x = torch.zeros_like(lo, requires_grad=True)
        out = self._run(x, rows.target, lines, back=True)
        best = torch.full((len(lo),), -torch.inf, device=lo.device)
        for k in range(1, steps + 2):
            (m,) = torch.autograd.grad(out, x, start, retain_graph=True)
            with torch.no_grad():
                if rows.over_input is not None:
                    m = m + rows.over_input.float()
                corner = torch.where(m >= 0, lo, hi)
                seen: dict[str, Tensor] = {}
                y = self._run(corner, rows.target, lines, back=False, seen=seen)
                bound = (start * y).flatten(1).sum(1)
                if rows.over_input is not None:
                    bound = bound + (rows.over_input.float() * corner).sum(1)
                better = bound > best
                best = torch.where(better, bound, best)
                for line in lines.values():
                    keep = better.view(-1, *[1] * (line.below.dim() - 1))
                    line.kept = line.below.clone() if line.kept is None else torch.where(keep, line.below, line.kept)
                goal = 0.0 if rows.constant is None else rows.constant.float()
                if k > steps or bool((best > goal).all()):
                    break
                for name, line in lines.items():
                    line.step(seen[name], rate * DECAY**k, k)
        return {name: line.kept for name, line in lines.items() if line.kept is not None}

    def relus_before(self, target: str) -> list[str]:
        """The ReLUs that the target depends on, itself among them."""
        return [n.name for n in self._until(target) if n.op == "relu"]

    def _until(self, target: str) -> list[Node]:
        """The nodes that the target depends on, in their order, itself among them."""
        wanted, found = {target}, []
        for n in reversed(self.nodes):
            if n.name in wanted:
                found.append(n)
                wanted.update(n.inputs)
        return found[::-1]

    def _run(self, x: Tensor, target: str, lines: Mapping[str, _Line], back: bool, seen: dict[str, Tensor] | None = None) -> Tensor:
        """The network with lines for ReLUs; with `back` its gradient is the way of a row, and its value means nothing."""
        values: dict[str, Tensor] = {}
        for n in self._until(target):
            operands = [values[i] for i in n.inputs] or [x.reshape(-1, *self.shape)]
            if n.op != "relu":
                values[n.name] = RUN[n.op](n, operands, self.weights[n.name])
            elif back:
                values[n.name] = _Relax.apply(operands[0], lines[n.name])
            else:
                if seen is not None:
                    seen[n.name] = operands[0]
                values[n.name] = lines[n.name].forward(operands[0])
        return values[target]
