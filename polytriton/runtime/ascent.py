"""Slopes below undecided ReLUs and multipliers of known signs, for every row its own, by gradient ascent on the row's bound.

Nothing here is trusted: any slope between the operator's own and 1 is a sound line below it, any multiplier that is not negative a sound
one, and only a walk that charges its roundings makes a bound of them. So everything is float32, and the rows of a batch are those of as
many images.

A row C over a node becomes, ReLU by ReLU, N = D L with L its coefficients over the ReLU's output; D is the slope a where L >= 0 and the
chord where L < 0. Over the input it is least at a corner x of the box. With y = D z + cut walked forward from x,

    bound = C y - sum s b z        d bound / d a = max(L, 0) z        d bound / d b = -s z

where b >= 0 multiplies what is known of a sign, s z >= 0: then N = D L - s b,

by the envelope theorem: neither the corner nor the sides change with a small step. The way back is the gradient of the affine
operators (`executor.RUN`) with a ReLU whose gradient is that of its line; the way forward is the same operators once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import unsettled_nodes
from polytriton.runtime.executor import RUN, load_weights

DECAY = 0.98  # of the rate, each step
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's own
BESIDE = 0.25  # of the rate, for multipliers


@dataclass
class AscentRows:
    """What is to be improved: rows over a node [rows, *shape], each over its own box of the user's input [rows, inputs].

    `relus`: the bounds of every ReLU's operand, [rows, *shape]. `over_input`: coefficients that a row brings along. `signs`: 1 where the
    operand is known to be at least zero, -1 where at most: multipliers are sought there. `below` and `multipliers` begin the ascent.
    """

    target: str
    start: Tensor
    lo: Tensor
    hi: Tensor
    relus: Mapping[str, tuple[Tensor, Tensor]]
    over_input: Tensor | None = None
    constant: Tensor | None = None
    signs: Mapping[str, Tensor] = field(default_factory=dict)
    below: Mapping[str, Tensor] = field(default_factory=dict)
    multipliers: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Found:
    """What the ascent proposes for one ReLU, [rows, *shape]: slopes below, signed multipliers where signs were given, and how much a
    bound loses by this neuron's relaxation.
    """

    below: Tensor
    multipliers: Tensor | None
    loss: Tensor


class _ReluLines:
    """One ReLU's lines and multipliers, the row's coefficients over its output, and Adam's moments."""

    def __init__(self, lo: Tensor, hi: Tensor, slope: float, sign: Tensor | None, below: Tensor | None, multiplier: Tensor | None) -> None:
        self.low, self.sign = slope, sign
        self.open = (lo < 0) & (hi > 0)
        decided = torch.where(lo >= 0, 1.0, slope)
        self.chord = torch.where(self.open, (hi - slope * lo) / (hi - lo).clamp(min=1e-30), decided)
        self.below = torch.where(self.open, torch.where(hi > -lo, 1.0, slope) if below is None else below, decided)
        self.cut = torch.where(self.open, (slope - self.chord) * lo, torch.zeros_like(lo))
        self.multiplier = None if sign is None else torch.zeros_like(lo) if multiplier is None else multiplier.clamp(min=0)
        self.coefficient = torch.zeros_like(lo)
        self.kept: Found | None = None
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

    def back(self, g: Tensor) -> Tensor:
        """Coefficients over the operand from those over the output."""
        self.coefficient = g
        n = torch.where(g >= 0, g * self.below, g * self.chord)
        return n if self.multiplier is None or self.sign is None else n - self.sign * self.multiplier

    def forward(self, z: Tensor) -> Tensor:
        return torch.where(self.coefficient >= 0, self.below * z, self.chord * z + self.cut)

    def penalty(self, z: Tensor) -> Tensor | float:
        """What the multipliers take off a row's value."""
        return 0.0 if self.multiplier is None or self.sign is None else (self.sign * self.multiplier * z).flatten(1).sum(1)

    def keep(self, better: Tensor) -> None:
        where = better.view(-1, *[1] * (self.below.dim() - 1))
        loss = -self.coefficient.clamp(max=0) * self.cut
        signed = None if self.multiplier is None or self.sign is None else self.sign * self.multiplier
        if self.kept is None:
            self.kept = Found(self.below.clone(), signed, loss)
            return
        k = self.kept
        k.below, k.loss = torch.where(where, self.below, k.below), torch.where(where, loss, k.loss)
        if signed is not None and k.multipliers is not None:
            k.multipliers = torch.where(where, signed, k.multipliers)

    def step(self, z: Tensor, rate: float, k: int) -> None:
        """One step of Adam uphill; slopes back into [slope, 1], multipliers to zero and above."""
        slope = torch.where(self.open, self.coefficient.clamp(min=0) * z, torch.zeros_like(z))
        self.below = torch.where(self.open, (self.below + rate * self._move("below", slope, k)).clamp(self.low, 1.0), self.below)
        if self.multiplier is not None and self.sign is not None:
            self.multiplier = (self.multiplier + BESIDE * rate * self._move("multiplier", -self.sign * z, k)).clamp(min=0)

    def _move(self, name: str, slope: Tensor, k: int) -> Tensor:
        first, second = self.moments.setdefault(name, (torch.zeros_like(slope), torch.zeros_like(slope)))
        first.lerp_(slope, 1 - FIRST)
        second.lerp_(slope * slope, 1 - SECOND)
        return (first / (1 - FIRST**k)) / ((second / (1 - SECOND**k)).sqrt() + TINY)


class _Relax(torch.autograd.Function):
    """A ReLU on the way back: multiplies by the slopes of its line, and notes the coefficients that it met."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, line: _ReluLines) -> Tensor:
        ctx.line = line
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.line.back(grads[0]), None


class Ascent:
    """The ascent for one network. Max pools and smooth functions have no slopes of their own: networks with them are not for it."""

    def __init__(self, net: Net, device: torch.device, expire: Callable[[], None] = lambda: None) -> None:
        self.net, self.nodes, self.shape, self.expire = net, list(net), user_shape(net), expire
        self.weights = load_weights(net, torch.float32, device)
        self.corners: Tensor | None = None  # of the last ascent, [rows, inputs]: where each row's best bound is least

    @staticmethod
    def serves(net: Net) -> bool:
        return any(n.op == "relu" for n in net) and not unsettled_nodes(net)

    def improve(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        """For each ReLU that the rows pass what gave every row its best bound, float32."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._improve(rows, steps, rate)

    def _improve(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        lines = {name: self._line(rows, name) for name in self.relus_before(rows.target)}
        start, lo, hi = rows.start.float(), rows.lo.float(), rows.hi.float()
        x = torch.zeros_like(lo, requires_grad=True)
        # a number to differentiate: for given gradients torch imports sympy, which costs more than a small query
        out = (self._run(x, rows.target, lines, back=True) * start).sum()
        best = torch.full((len(lo),), -torch.inf, device=lo.device)
        self.corners = lo.clone()
        for k in range(1, steps + 2):
            self.expire()  # ends the ascent as the clock ends a search: by raising
            (m,) = torch.autograd.grad(out, x, retain_graph=True)
            with torch.no_grad():
                if rows.over_input is not None:
                    m = m + rows.over_input.float()
                corner = torch.where(m >= 0, lo, hi)
                seen: dict[str, Tensor] = {}
                y = self._run(corner, rows.target, lines, back=False, seen=seen)
                bound = (start * y).flatten(1).sum(1) - sum(line.penalty(seen[name]) for name, line in lines.items())
                if rows.over_input is not None:
                    bound = bound + (rows.over_input.float() * corner).sum(1)
                better = bound > best
                best = torch.where(better, bound, best)
                self.corners[better] = corner[better]
                for line in lines.values():
                    line.keep(better)
                goal = 0.0 if rows.constant is None else rows.constant.float()
                if k > steps or bool((best > goal).all()):
                    break
                for name, line in lines.items():
                    line.step(seen[name], rate * DECAY**k, k)
        return {name: line.kept for name, line in lines.items() if line.kept is not None}

    def _line(self, rows: AscentRows, name: str) -> _ReluLines:
        lo, hi = (v.float() for v in rows.relus[name])
        given = (None if v is None else v.float() for v in (rows.signs.get(name), rows.below.get(name), rows.multipliers.get(name)))
        return _ReluLines(lo, hi, self.net.node(name).number("slope"), *given)

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

    def _run(self, x: Tensor, target: str, lines: Mapping[str, _ReluLines], back: bool, seen: dict[str, Tensor] | None = None) -> Tensor:
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
