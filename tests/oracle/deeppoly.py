"""DeepPoly straight from its definition: dense float64 matrices, one box, no attempt at speed or at soundness.

Boxes are computed in topological order. A node read by a ReLU or max pool (and the output, where affine) is *bounded*: its
box is the best of interval arithmetic and of the candidates met while its rows +x and -x are substituted back to the input,
or, where only the input's candidate counts, that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node, Ref
from polytriton.ir.ops import OPS, patches

Box = tuple[np.ndarray, np.ndarray]
NEAR = 1e-9  # decisions closer than this share of the numbers they came from may fall either way


def jacobians(net: Net, node: Node) -> tuple[list[np.ndarray], np.ndarray]:
    """The matrix of an affine node for each operand, from identity columns, and its constant."""
    shapes = [net.node(i).shape for i in node.inputs]
    spec = OPS[node.op]
    still = dict(net.weights)
    for key in ("b", "c"):
        ref = node.attrs.get(key)
        if isinstance(ref, Ref):
            assert all(v != ref for k, v in node.attrs.items() if k != key)
            still[ref.name] = np.zeros_like(still[ref.name])
    constant = spec.run(node, [np.zeros((1, *s)) for s in shapes], net.weights).reshape(-1)
    found = []
    for k, shape in enumerate(shapes):
        size = int(np.prod(shape))
        operands = [np.eye(size).reshape(size, *shape) if i == k else np.zeros((size, *s)) for i, s in enumerate(shapes)]
        found.append(spec.run(node, operands, still).reshape(size, -1).T)
    return found, constant


@dataclass(frozen=True)
class Pool:
    """A max pool over one box: winner cell, largest upper bound, whether the winner is certain, largest magnitude."""

    winner: np.ndarray
    most: np.ndarray
    sure: np.ndarray
    size: np.ndarray


@dataclass
class Result:
    """Boxes of all nodes, and `reach`: how large the numbers were that made them (what rounding is relative to).

    For bounded nodes also the bounds found, the size of the numbers behind them and the neurons on a knife's edge.
    """

    boxes: dict[str, Box] = field(default_factory=dict)
    reach: dict[str, np.ndarray] = field(default_factory=dict)
    found: dict[str, Box] = field(default_factory=dict)
    mass: dict[str, np.ndarray] = field(default_factory=dict)
    edge: dict[str, np.ndarray] = field(default_factory=dict)


class DeepPoly:
    """The verifier of one net. `candidates`: "all" or "input"; `early`: a neuron leaves at the checkpoint that settles it."""

    def __init__(self, net: Net, candidates: str = "all", early: bool = True) -> None:
        self.net, self.candidates, self.early = net, candidates, early and candidates == "all"
        self.position = {n.name: i for i, n in enumerate(net)}
        self.kind = {n.name: OPS[n.op].kind for n in net}
        self.affine = {n.name: jacobians(net, n) for n in net if self.kind[n.name] in ("affine", "layout")}
        readers = {n.name: {m.op for m in net if n.name in m.inputs} for n in net}
        self.pooled = {name for name, ops in readers.items() if "maxpool" in ops}
        hidden = {name for name, ops in readers.items() if ops & {"relu", "maxpool"}} | {net.output}
        self.bounded = [n.name for n in net if n.name in hidden and n.name in self.affine]

    # ---- boxes ----

    def bounds(self, lo: np.ndarray, hi: np.ndarray, given: Mapping[str, Box] | None = None) -> Result:
        """All boxes over one input box. Where `given` holds a node, later nodes see that box instead."""
        result = Result()
        n = self.net.input
        for node in self.net:
            source = result.reach.get(node.inputs[0]) if node.inputs else None
            if node is n:
                box = self._input_box(lo, hi)
                reach = np.maximum(*np.abs(box))
            elif source is not None and node.op == "relu":
                box = self._relu_box(node, result.boxes[node.inputs[0]])
                reach = source * max(1.0, abs(node.number("slope")))
            elif source is not None and node.op == "maxpool":
                three = (*result.boxes[node.inputs[0]], source)
                shape = (1, *self.net.node(node.inputs[0]).shape)
                low, high, reach = (patches(b.reshape(shape), node, -np.inf)[0].max(axis=(-1, -2)).reshape(-1) for b in three)
                box = low, high
            else:
                box = self._interval(node.name, result.boxes, node.inputs)
                matrices, constant = self.affine[node.name]
                reach = np.abs(constant) + sum(np.abs(j) @ result.reach[i] for j, i in zip(matrices, node.inputs, strict=True))
            if node.name in self.bounded:
                box = self._bound(node, box, reach, result)
                reach = result.mass[node.name]
            if given is not None and node.name in given:
                low, high = given[node.name]
                box = np.asarray(low, np.float64).reshape(-1), np.asarray(high, np.float64).reshape(-1)
                reach = np.maximum(*np.abs(box))
            result.boxes[node.name], result.reach[node.name] = box, reach
        return result

    def _input_box(self, lo: np.ndarray, hi: np.ndarray) -> Box:
        n = self.net.input
        flat = (b.reshape(1, int(np.prod(user_shape(self.net)))).astype(np.float64) for b in (lo, hi))
        low, high = (OPS["input"].run(n, [b], self.net.weights).reshape(-1) for b in flat)
        return low, high

    def _relu_box(self, node: Node, box: Box) -> Box:
        a, (lo, hi) = node.number("slope"), box
        ends = [np.where(v >= 0, v, a * v) for v in box]
        low = np.minimum(*ends)
        return np.where((lo < 0) & (hi > 0) & (a < 0), 0.0, low), np.maximum(*ends)

    def _interval(self, name: str, boxes: Mapping[str, Box], inputs: tuple[str, ...]) -> Box:
        matrices, constant = self.affine[name]
        lo, hi = constant.copy(), constant.copy()
        for j, i in zip(matrices, inputs, strict=True):
            low, high = boxes[i]
            lo += np.maximum(j, 0) @ low + np.minimum(j, 0) @ high
            hi += np.maximum(j, 0) @ high + np.minimum(j, 0) @ low
        return lo, hi

    def _bound(self, node: Node, interval: Box, reach: np.ndarray, result: Result) -> Box:
        lo, hi, mass = interval[0].copy(), interval[1].copy(), reach.copy()
        free = node.name in self.pooled or node.name == self.net.output
        edge = np.zeros(node.size, bool) if free else _near_zero(lo, hi, mass)
        left = np.arange(node.size) if free else np.flatnonzero(~((lo >= 0) | (hi <= 0)))
        best = [lo, -hi]  # of +x and of -x
        if self.candidates == "input":
            for side in best:
                side[left] = -np.inf
        if not self.early or free:
            for sign in (1, -1):
                self._side(node, result, left, np.full(len(left), sign), best, mass, edge, leave=False)
        else:  # the likelier sign first; where its row settles the neuron the other row is never made
            edge |= np.abs(lo + hi) <= NEAR * mass
            first = np.where(lo >= -hi, 1, -1)
            for signs in (first, -first):
                self._side(node, result, left, signs[left], best, mass, edge, leave=True)
                left = left[(best[0][left] < 0) & (best[1][left] < 0)]
        best_lo, best_hi = best[0], -best[1]
        result.found[node.name], result.mass[node.name], result.edge[node.name] = (best_lo, best_hi), mass, edge
        return best_lo, best_hi

    def _side(
        self,
        node: Node,
        result: Result,
        left: np.ndarray,
        sign: np.ndarray,
        best: list[np.ndarray],
        mass: np.ndarray,
        edge: np.ndarray,
        leave: bool,
    ) -> None:
        """Substitutes sign * x for the neurons `left`; best[0] and best[1] take the bounds of +x and -x."""
        walk = _Walk(self, result, {node.name: np.eye(node.size)[left] * sign[:, None]})
        while left.size:
            last = walk.advance()
            mass[left] = np.maximum(mass[left], walk.mass)
            if last or self.candidates == "all":
                value = walk.candidate()
                for side, s in enumerate((1, -1)):
                    mine = left[sign == s]
                    best[side][mine] = np.maximum(best[side][mine], value[sign == s])
            if leave:
                now = np.where(sign > 0, best[0][left], best[1][left])
                edge[left] |= np.abs(now) <= NEAR * mass[left]
                stay = now < 0
                left, sign = left[stay], sign[stay]
                walk.keep(stay)
            if last:
                return
            walk.nonlinear()

    # ---- queries ----

    def margins(self, result: Result, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower bounds of the rows of C over the output, and the size of the numbers they came from."""
        walk = _Walk(self, result, {self.net.output: np.asarray(C, np.float64)})
        best = np.full(len(C), -np.inf)
        while True:
            last = walk.advance()
            if last or self.candidates == "all":
                best = np.maximum(best, walk.candidate())
            if last:
                return best, walk.mass
            walk.nonlinear()


def _near_zero(lo: np.ndarray, hi: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Neurons whose being settled hangs on a rounding."""
    return np.minimum(np.abs(lo), np.abs(hi)) <= NEAR * mass


class _Walk:
    """Rows on their way to the input: target >= sum over the frontier of M @ x + c."""

    def __init__(self, poly: DeepPoly, so_far: Result, start: dict[str, np.ndarray]) -> None:
        self.poly, self.boxes, self.reach, self.frontier = poly, so_far.boxes, so_far.reach, start
        rows = len(next(iter(start.values())))
        self.c, self.mass = np.zeros(rows), np.zeros(rows)

    def advance(self) -> bool:
        """Substitutes affine nodes, latest first, until a nonlinear one is latest; True where only the input is left."""
        while True:
            self._weigh()
            name = self.latest
            if self.poly.kind[name] not in ("affine", "layout"):
                return self.poly.kind[name] == "input"
            m = self.frontier.pop(name)
            matrices, constant = self.poly.affine[name]
            inputs = self.poly.net.node(name).inputs
            self.c = self.c + m @ constant
            for j, i in zip(matrices, inputs, strict=True):
                self.mass = self.mass + np.abs(m) @ (np.abs(j) @ self.reach[i])
                self._join(i, m @ j)
            self.mass = self.mass + np.abs(m) @ np.abs(constant)

    def nonlinear(self) -> None:
        """Substitutes the latest node, a ReLU or max pool, by its lower line where the coefficient is positive, else its upper."""
        node = self.poly.net.node(self.latest)
        m = self.frontier.pop(node.name)
        plus, minus = np.maximum(m, 0), np.minimum(m, 0)
        lo, hi = self.boxes[node.inputs[0]]
        if node.op == "relu":
            (low, low_cut), (up, up_cut) = relu_lines(lo, hi, node.number("slope"))
            self.c = self.c + plus @ low_cut + minus @ up_cut
            self._join(node.inputs[0], plus * low + minus * up)
            return
        pool = self._pool(node, lo, hi)
        self.mass = self.mass + np.abs(m) @ pool.size  # rounding may be charged for any cell of a window, not only the winner
        back = np.zeros((len(m), lo.size))
        np.add.at(back.T, pool.winner, (plus + np.where(pool.sure, minus, 0)).T)
        self.c = self.c + np.where(pool.sure, 0, minus) @ pool.most
        self._join(node.inputs[0], back)

    def _pool(self, node: Node, lo: np.ndarray, hi: np.ndarray) -> Pool:
        shape = self.poly.net.node(node.inputs[0]).shape
        cells = patches(np.arange(lo.size, dtype=np.float64).reshape(1, *shape), node, -1)[0].reshape(node.size, -1).astype(int)
        low, high = (np.where(cells >= 0, v[np.maximum(cells, 0)], -np.inf) for v in (lo, hi))
        j = low.argmax(axis=1)
        at = np.arange(node.size)
        others = high.copy()
        others[at, j] = -np.inf
        size = np.where(cells >= 0, self.reach[node.inputs[0]][np.maximum(cells, 0)], 0).max(axis=1)
        return Pool(cells[at, j], high.max(axis=1), low[at, j] >= others.max(axis=1), size)

    def candidate(self) -> np.ndarray:
        """The rows' lower bounds by the boxes of the frontier."""
        return self.c + sum(np.maximum(m, 0) @ self.boxes[n][0] + np.minimum(m, 0) @ self.boxes[n][1] for n, m in self.frontier.items())

    def keep(self, rows: np.ndarray) -> None:
        self.frontier = {n: m[rows] for n, m in self.frontier.items()}
        self.c, self.mass = self.c[rows], self.mass[rows]

    @property
    def latest(self) -> str:
        return max(self.frontier, key=self.poly.position.__getitem__)

    def _join(self, name: str, m: np.ndarray) -> None:
        self.frontier[name] = self.frontier[name] + m if name in self.frontier else m

    def _weigh(self) -> None:
        here = np.abs(self.c)
        for name, m in self.frontier.items():
            if name in self.reach:
                here = here + np.abs(m) @ self.reach[name]
        self.mass = np.maximum(self.mass, here)


def relu_lines(lo: np.ndarray, hi: np.ndarray, a: float) -> tuple[Box, Box]:
    """(slope, cut) of the lower and of the upper line of x -> x where x >= 0, a*x below, over each box."""
    on, off = lo >= 0, hi <= 0
    crossing = ~on & ~off
    span = np.where(crossing, hi - lo, 1)
    chord = np.where(crossing, (hi - a * lo) / span, 0)
    cut = np.where(crossing, hi * (1 - chord), 0)
    through = np.where(hi > -lo, 1.0, a)
    settled = np.where(on, 1.0, a)
    line = np.where(crossing, chord, settled), cut
    zero = np.where(crossing, through, settled), np.zeros_like(lo)
    return (zero, line) if a <= 1 else (line, zero)
