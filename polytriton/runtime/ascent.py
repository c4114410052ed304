"""Slopes of lines beside nonlinear operators and multipliers of known signs, for every row its own, by gradient ascent on the row's bound.

Nothing here is trusted: any slope between a ReLU's own and 1 is a sound line below it, any slope at all one beside a smooth function or a
product, any multiplier that is not negative a sound one, and only a walk that charges its roundings makes a bound of them. So everything
is float32, and the rows of a batch are those of as many images.

A row C over a node becomes, ReLU by ReLU, N = D L with L its coefficients over the ReLU's output; D is the slope a where L >= 0 and the
chord where L < 0. Over the input it is least at a corner x of the box, or a point x of the ball. With y = D z + cut walked forward from x,

    bound = C y - sum s b z        d bound / d a = max(L, 0) z        d bound / d b = -s z

where b >= 0 multiplies what is known of a sign, s z >= 0 (or s (z - m) >= 0): then N = D L - s b,

by the envelope theorem: neither the corner nor the sides change with a small step. Other operators have slopes of their own likewise
(`runtime/ascent_lines.py`). The way back is the gradient of the affine operators (`executor.RUN`) with lines in place of the others; the
way forward is the same operators once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polytriton.ir.curves import CURVES
from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node
from polytriton.runtime.ascent_lines import CurveLines, Found, Moved, ProductPlanes, ReluLines
from polytriton.runtime.executor import RUN, load_weights
from polytriton.runtime.input_balls import InputBalls, least_points

DECAY = 0.98  # of the rate, each step
RELAXED = ("relu", "mul", *CURVES)  # what has lines to choose


@dataclass
class AscentRows:
    """What is to be improved: rows over a node [rows, *shape], each over its own box of the user's input [rows, inputs].

    `operands`: the bounds of every node that a nonlinear operator reads, [rows, *shape]. `over_input`: coefficients that a row brings
    along. `signs`, by the operator: 1 where a ReLU's operand is known to be at least zero, -1 where at most, or where a smooth function's
    has a lower or an upper end that was assumed: multipliers are sought there. `slopes` and `multipliers` begin the ascent. `ball`: each
    row's inputs lie in it too.
    """

    target: str
    start: Tensor
    lo: Tensor
    hi: Tensor
    operands: Mapping[str, tuple[Tensor, Tensor]]
    over_input: Tensor | None = None
    constant: Tensor | None = None
    signs: Mapping[str, Tensor] = field(default_factory=dict)
    slopes: Mapping[str, Tensor] = field(default_factory=dict)
    multipliers: Mapping[str, Tensor] = field(default_factory=dict)
    ball: InputBalls | None = None


class _Relax(torch.autograd.Function):
    """An operator on the way back: multiplies by the slopes of its lines, and notes the coefficients that it met."""

    @staticmethod
    def forward(ctx: Any, line: Moved, *operands: Tensor) -> Tensor:
        ctx.line = line
        return operands[0].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.line.back(grads[0])


class Ascent:
    """The ascent for one network. Max pools have no slopes of their own: networks with them are not for it."""

    by_kernels = False  # generated ones make its turns

    def __init__(self, net: Net, device: torch.device, expire: Callable[[], None] = lambda: None) -> None:
        self.net, self.nodes, self.shape, self.expire = net, list(net), user_shape(net), expire
        self.weights = load_weights(net, torch.float32, device)
        self.corners: Tensor | None = None  # of the last ascent, [rows, inputs]: where each row's best bound is least

    @staticmethod
    def serves(net: Net) -> bool:
        return any(n.op in RELAXED for n in net) and not any(n.op == "maxpool" for n in net)

    def improve(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        """For each nonlinear operator that the rows pass what gave every row its best bound, float32."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._improve(rows, steps, rate)

    def _improve(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        lines = {name: self._line(rows, name) for name in self.relaxed_before(rows.target)}
        start, lo, hi = rows.start.float(), rows.lo.float(), rows.hi.float()
        ball = None if rows.ball is None else rows.ball.float()
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
                corner = torch.where(m >= 0, lo, hi) if ball is None else least_points(m, lo, hi, ball)
                seen: dict[str, tuple[Tensor, ...]] = {}
                y = self._run(corner, rows.target, lines, back=False, seen=seen)
                bound = (start * y).flatten(1).sum(1) - sum(line.penalty(*seen[name]) for name, line in lines.items())
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

    def _line(self, rows: AscentRows, name: str) -> Moved:
        node = self.net.node(name)
        lo, hi = zip(*(tuple(v.float() for v in rows.operands[i]) for i in node.inputs), strict=True)
        sign, slopes, multipliers = (v.get(name) for v in (rows.signs, rows.slopes, rows.multipliers))
        begin, sign, multipliers = (None if v is None else v.float() for v in (slopes, sign, multipliers))
        if node.op == "mul":
            return ProductPlanes(lo, hi)
        if node.op != "relu":
            return CurveLines(node, lo[0], hi[0], sign, begin, multipliers)
        return ReluLines(lo[0], hi[0], node.number("slope"), sign, begin, multipliers)

    def divided_before(self, target: str) -> list[str]:
        """The operators that the target depends on, itself among them, whose operands a search may divide: ReLUs and smooth functions."""
        return [n.name for n in self._find_sources(target) if n.op in RELAXED and n.op != "mul"]

    def relaxed_before(self, target: str) -> list[str]:
        """The operators with lines to choose that the target depends on, itself among them."""
        return [n.name for n in self._find_sources(target) if n.op in RELAXED]

    def _find_sources(self, target: str) -> list[Node]:
        """The nodes that the target depends on, in their order, itself among them."""
        wanted, found = {target}, []
        for n in reversed(self.nodes):
            if n.name in wanted:
                found.append(n)
                wanted.update(n.inputs)
        return found[::-1]

    def _run(
        self, x: Tensor, target: str, lines: Mapping[str, Moved], back: bool, seen: dict[str, tuple[Tensor, ...]] | None = None
    ) -> Tensor:
        """The network with lines for its nonlinear operators; with `back` its gradient is the way of a row, and its value means nothing."""
        values: dict[str, Tensor] = {}
        for n in self._find_sources(target):
            operands = [values[i] for i in n.inputs] or [x.reshape(-1, *self.shape)]
            if n.name not in lines:
                values[n.name] = RUN[n.op](n, operands, self.weights[n.name])
            elif back:
                values[n.name] = _Relax.apply(lines[n.name], *operands)
            else:
                if seen is not None:
                    seen[n.name] = tuple(operands)
                values[n.name] = lines[n.name].forward(*operands)
        return values[target]
