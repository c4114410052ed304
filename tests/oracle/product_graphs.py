"""Random graphs of products, quotients, Softmax and smooth functions, and whether an execution of one lies outside its bounds.

The graphs, their executor and the search for points near a bound are this file's own. The executor runs in float64 to search, and in balls
of 120 bits to judge; onnxruntime runs the same points in float32, with and without its optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from flint import arb, ctx
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.errors import PolytritonError
from tests.soak.outcome import Outcome

Step = Callable[[dict[str, np.ndarray]], np.ndarray]
FIFTH = float(np.float32(0.2))  # an ONNX attribute is a float32
LARGEST = 48  # cells of a tensor


def exp(v: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda t: t.exp(), otypes=[object])(v) if v.dtype == object else np.exp(v)


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + exp(-v))


# an ONNX operator, and what it computes of float64 numbers and of balls; only exp, sin and cos are taken of either
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sigmoid": sigmoid, "Tanh": lambda v: 1 - 2 * sigmoid(-2 * v), "Softsign": lambda v: v / (1 + abs(v)), "Exp": lambda v: exp(v),
    "Sin": lambda v: periodic(v, "sin"), "Cos": lambda v: periodic(v, "cos"), "Relu": lambda v: relu(v), "Abs": abs,
    "HardSigmoid": lambda v: relu(v * FIFTH + 0.5) - relu(v * FIFTH - 0.5),
}  # fmt: skip


def periodic(v: np.ndarray, name: str) -> np.ndarray:
    return np.vectorize(lambda t: getattr(t, name)(), otypes=[object])(v) if v.dtype == object else getattr(np, name)(v)


def relu(v: np.ndarray) -> np.ndarray:
    return (v + abs(v)) / 2


def softmax(v: np.ndarray, axis: int) -> np.ndarray:
    powers = exp(v - v.astype(np.float64).max(axis, keepdims=True))  # any number near the largest does
    return powers / powers.sum(axis=axis, keepdims=True)


def aligned(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of one rank behind the axis of points."""
    rank = max(a.ndim, b.ndim)
    x, y = (v.reshape(v.shape[:1] + (1,) * (rank - v.ndim) + v.shape[1:]) for v in (a, b))
    return x, y


@dataclass
class Graph:
    """ONNX nodes and beside each what it computes, of arrays whose first axis are points."""

    rng: np.random.Generator
    opset: int
    shapes: dict[str, tuple[int, ...]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    steps: list[tuple[str, Step]] = field(default_factory=list)
    held: dict[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def draw(seed: int, most: int = 10) -> Graph:
        """At most so many steps of the graph of this number."""
        rng = np.random.default_rng(seed)
        shape = (1, *(int(rng.integers(1, 4)) for _ in range(int(rng.integers(1, 4)))))
        g = Graph(rng, int(rng.choice([9, 11, 13, 17])), {"x": shape})
        kinds = [g.product, g.product, g.quotient, g.matrices, g.matrices, g.shares, g.shares, *[g.function] * 4, *[g.affine] * 2, g.move]
        most = min(most, int(rng.integers(3, 11)))
        for _ in range(60):
            if len(g.steps) >= most:
                break
            kinds[int(rng.integers(len(kinds)))](g.some())
        return g

    @property
    def last(self) -> str:
        return self.steps[-1][0]

    def some(self) -> str:
        names = list(self.shapes)
        return names[int(len(names) * self.rng.random() ** 0.5)]

    def beside(self, a: str, fits: Callable[[tuple[int, ...]], bool]) -> str:
        found = [n for n, s in self.shapes.items() if fits(s)]
        return found[int(self.rng.integers(len(found)))] if found else a

    def emit(self, op: str, read: list[str], step: Step, **attrs: int | list[int]) -> str:
        """The new tensor, or the first operand again where it would be too large."""
        size = step({k: np.zeros((1, *s)) + 0.5 for k, s in self.shapes.items()}).shape[1:]
        if np.prod(size) > LARGEST:
            return read[0]
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, read, [name], name, **attrs))
        self.steps.append((name, step))
        self.shapes[name] = size
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.held)}"
        self.held[name] = value
        return name

    def product(self, a: str) -> None:
        b = self.beside(a, lambda s: all(m == n or 1 in (m, n) for m, n in zip(s[::-1], self.shapes[a][::-1], strict=False)))
        self.emit("Mul", [a, b], lambda v: np.multiply(*aligned(v[a], v[b])))

    def quotient(self, a: str) -> None:
        b = self.emit("Exp", [a], lambda v: exp(v[a])) if self.rng.random() < 0.5 else self.emit("Mul", [a, a], lambda v: v[a] * v[a])
        one = self.constant(np.float32(0.5))
        d = self.emit("Add", [b, one], lambda v: v[b] + 0.5)
        self.emit("Div", [a, d], lambda v: np.divide(*aligned(v[a], v[d])))

    def matrices(self, a: str) -> None:
        """a b^T, perhaps scaled before or after."""
        shape = self.shapes[a]
        if len(shape) < 2:
            return
        b = self.beside(a, lambda s: len(s) == len(shape) and s[-1] == shape[-1] and s[:-2] == shape[:-2])
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        t = self.emit("Transpose", [b], lambda v: np.transpose(v[b], [0, *(k + 1 for k in order)]), perm=order)
        factor = np.float32(self.rng.choice([0.5, 0.7, 2.0, 3.0]))
        where, c = self.rng.integers(3), self.constant(factor)
        q = self.emit("Mul", [a, c], lambda v: v[a] * float(factor)) if where == 1 else a
        y = self.emit("MatMul", [q, t], lambda v: np.matmul(v[q], v[t]))
        if where == 2:
            self.emit("Div", [y, c], lambda v: v[y] / float(factor))

    def shares(self, a: str) -> None:
        shape = self.shapes[a]
        axis = int(self.rng.integers(-len(shape) if self.opset >= 11 else 0, len(shape)))
        at = axis % len(shape)
        if self.opset >= 13:
            self.emit("Softmax", [a], lambda v: softmax(v[a], at + 1), axis=axis)
            return
        rows = int(np.prod(shape[:at], dtype=int))  # all axes from this one on
        self.emit("Softmax", [a], lambda v: softmax(v[a].reshape(len(v[a]), rows, -1), 2).reshape(v[a].shape), axis=axis)

    def function(self, a: str) -> None:
        names = list(FUNCTIONS)
        name = "Relu" if self.rng.random() < 0.2 else names[int(self.rng.integers(len(names)))]
        self.emit(name, [a], lambda v: FUNCTIONS[name](v[a]))

    def affine(self, a: str) -> None:
        shape, wide = self.shapes[a], int(self.rng.integers(1, 4))
        if self.rng.random() < 0.3:
            b = self.beside(a, lambda s: s == shape)
            self.emit("Sub", [a, b], lambda v: v[a] - v[b])
        elif self.rng.random() < 0.5:
            w = (self.rng.standard_normal((shape[-1], wide))).astype(np.float32)
            self.emit("MatMul", [a, self.constant(w)], lambda v: np.matmul(v[a], w.astype(np.float64)))
        else:
            c = self.rng.standard_normal(shape[int(self.rng.integers(len(shape))) :]).astype(np.float32)
            self.emit("Add", [a, self.constant(c)], lambda v: np.add(*aligned(v[a], c.astype(np.float64)[None])))

    def move(self, a: str) -> None:
        shape, axis = self.shapes[a], int(self.rng.integers(len(self.shapes[a])))
        if self.rng.random() < 0.5:
            index = self.rng.integers(0, shape[axis], int(self.rng.integers(1, 4)))
            self.emit("Gather", [a, self.constant(index)], lambda v: np.take(v[a], index, axis + 1), axis=axis)
        else:
            b = self.beside(a, lambda s: len(s) == len(shape) and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :])
            self.emit("Concat", [a, b], lambda v: np.concatenate([v[a], v[b]], axis + 1), axis=axis)

    def model(self) -> bytes:
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in ("x", self.last)]
        held = [numpy_helper.from_array(np.asarray(v), k) for k, v in self.held.items()]
        made = helper.make_model(
            helper.make_graph(self.nodes, "g", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )
        onnx.checker.check_model(made)
        return made.SerializeToString()

    def run(self, points: np.ndarray) -> np.ndarray:
        """[points, outputs], in the numbers given."""
        values = {"x": points.reshape(-1, *self.shapes["x"])}
        with np.errstate(all="ignore"):
            for name, step in self.steps:
                values[name] = step(values)
        return values[self.last].reshape(len(points), -1)

    def near(self, lo: np.ndarray, hi: np.ndarray, steps: int) -> np.ndarray:
        """Points of the box where some outputs are large or small, by moves along one axis or two."""
        some = lo + (hi - lo) * self.rng.random((40, len(lo)))
        some = np.concatenate([lo[None], hi[None], some, np.where(self.rng.random((40, len(lo))) < 0.5, lo, hi)])
        outputs, best = self.run(some), []
        for j in self.rng.permutation(outputs.shape[1])[:3]:
            for sign in (-1.0, 1.0):
                x = some[int(np.argmax(np.nan_to_num(sign * outputs[:, j], nan=-np.inf)))]
                for _ in range(steps):
                    moved = np.repeat(x[None], 13, 0)
                    for row in moved[1:]:
                        k = self.rng.integers(len(x), size=2)
                        corner = np.where(self.rng.random(2) < 0.5, lo[k], hi[k])
                        row[k] = np.where(self.rng.random(2) < 0.6, corner, self.rng.uniform(lo[k], hi[k]))
                    x = moved[int(np.argmax(np.nan_to_num(sign * self.run(moved)[:, j], nan=-np.inf)))]
                best.append(x)
        return np.clip(np.array([*best, *some[:6]]).astype(np.float32), lo.astype(np.float32), hi.astype(np.float32))


def sessions(model: bytes) -> list[onnxruntime.InferenceSession]:
    found = []
    for level in (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads, options.log_severity_level = level, 1, 4
        found.append(onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    return found


def boxes(rng: np.random.Generator, cells: int) -> list[tuple[np.ndarray, np.ndarray]]:
    middle = rng.standard_normal(cells) * rng.choice([1e-20, 1e-3, 1.0, 1.0, 1.0, 30.0])
    found = []
    for radius in (np.zeros(cells), np.abs(middle) * rng.choice([1e-3, 0.1, 1.0]) * rng.integers(0, 2, cells)):
        lo, hi = (v.astype(np.float32).astype(np.float64) for v in (middle - radius, middle + radius))
        found.append((lo, hi))
    return found


def judge_graph(seed: int, most: int = 10) -> Outcome:
    """Every execution of the graph of this number over two boxes: in balls under "real", in onnxruntime too under "float32"."""
    outcome, g = Outcome(), Graph.draw(seed, most)
    model = g.model()
    deployed = sessions(model)
    for semantics in ("real", "float32"):
        try:
            net = polytriton.compile(model, semantics=semantics)
        except PolytritonError as refused:
            if "not finite" not in refused.message:
                raise
            outcome.refused = True
            return outcome
        for lo, hi in boxes(np.random.default_rng(seed), int(np.prod(g.shapes["x"]))):
            found = net.bounds(lo.reshape(g.shapes["x"]), hi.reshape(g.shapes["x"]), effort="quick" if seed % 2 else "tight")
            low, high = (np.asarray(v).reshape(-1) for v in (found.lo, found.hi))
            outcome.finite += int(np.isfinite([low, high]).sum())
            points = g.near(lo, hi, 3)
            for x in points if semantics == "float32" else []:
                for session in deployed:
                    y = session.run(None, {"x": x.reshape(g.shapes["x"])})[0].reshape(-1).astype(np.float64)
                    outcome.hold(f"graph {seed}, onnxruntime", low, high, y, y)
            with ctx.workprec(120):
                balls = g.run(np.vectorize(lambda t: arb(float(t)), otypes=[object])(points[:4].astype(np.float64)))
                for row in balls:
                    outcome.compared += len(row)
                    for y, a, b in zip(row, low.tolist(), high.tolist(), strict=True):
                        if y < arb(a) or y > arb(b):
                            outcome.escapes.append(f"graph {seed}, {semantics}: {y} outside [{a!r}, {b!r}]")
    return outcome
