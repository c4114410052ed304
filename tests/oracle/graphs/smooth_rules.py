"""Generators of smooth functions, products and quotients of activations, and of steps that jump, behind layers of hostile last places."""

from __future__ import annotations

import numpy as np

from tests.oracle.graphs.build import ULP, Builder, Tensor
from tests.oracle.graphs.piece_rules import end, layer, spread
from tests.oracle.graphs.rules import Stage


def _clipped(b: Builder, x: Tensor, low: float, high: float) -> Tensor:
    return b.emit("Clip", [x, b.constant(np.array(low)), b.constant(np.array(high))], x.shape)


def _function(b: Builder, x: Tensor) -> Tensor:
    """One of those that this opset has; of exp, bounded operands, of log and its like, positive ones."""
    since = {"Mish": 18, "Gelu": 20, "GeluTanh": 20, "HardSwish": 14}
    names = ["Sigmoid", "Tanh", "Sigmoid", "Tanh", "Erf", "Softsign", "Softplus", "Exp", "Sin", "Cos", "Elu", "Selu", "Celu", "Log", "Sqrt",
             "Reciprocal", "Pow", "Relu", *(name for name, opset in since.items() if b.opset >= opset)]  # fmt: skip
    op = b.pick(*names)
    if op == "Exp":
        x = _clipped(b, x, b.pick(-80.0, -2.0, 0.0), b.pick(1.0, 3.0, 60.0))
    elif op in ("Log", "Sqrt", "Reciprocal"):
        x = _positive(b, x)
    elif op in ("Sin", "Cos") and b.chance(0.6):
        x = _clipped(b, x, -20.0, 20.0)
    elif op == "Pow":
        return b.emit("Pow", [x, b.constant(np.array(b.pick(2.0, 3.0)))], x.shape)
    elif op in ("Elu", "Celu"):
        return b.emit(op, [x], x.shape, alpha=b.pick(1.0, 0.3, 1 / 3, 2.0, 50.0))
    elif op == "GeluTanh":
        return b.emit("Gelu", [x], x.shape, approximate="tanh")
    return b.emit(op, [x], x.shape)


def _positive(b: Builder, x: Tensor) -> Tensor:
    """A square, an exponential, a magnitude or a sigmoid, and a little more."""
    how = b.between(0, 3)
    if how == 0:
        x = b.pair("Mul", x, x)
    elif how == 1:
        x = b.emit("Exp", [_clipped(b, x, -5.0, 5.0)], x.shape)
    else:
        x = b.emit("Abs" if how == 2 else "Sigmoid", [x], x.shape)
    return b.pair("Add", x, b.constant(np.array(b.pick(0.5, 1e-3, 1.0, 1 + ULP))))


def curves(b: Builder, x: Tensor) -> Tensor:
    for _ in range(b.between(1, 3)):
        x = _function(b, layer(b, x))
        if x.size > 40:
            x = b.linear(x, b.between(2, 8))
    return end(b, x)


def gates(b: Builder, x: Tensor) -> Tensor:
    """A function times its operand or another's, as exporters write what has a name elsewhere."""
    x = layer(b, x)
    how = b.between(0, 4)
    if how == 0:  # SiLU
        y = b.pair("Mul", *b.pick(lambda p, q: (p, q), lambda p, q: (q, p))(x, b.emit("Sigmoid", [x], x.shape)))
    elif how == 1:  # GELU
        root = b.pair("Div", x, b.constant(np.array(np.sqrt(2))))
        share = b.pair("Add", b.emit("Erf", [root], x.shape), b.constant(np.array(1.0)))
        y = b.pair("Mul", b.pair("Mul", x, share), b.constant(np.array(0.5)))
    elif how == 2:  # Mish
        y = b.pair("Mul", x, b.emit("Tanh", [b.emit("Softplus", [x], x.shape)], x.shape))
    else:
        y = b.pair("Mul", _function(b, x), _function(b, b.scale(x)))
    if b.chance(0.3):
        y = b.pair(b.pick("Add", "Sub"), y, x)
    return end(b, y)


def products(b: Builder, x: Tensor) -> Tensor:
    """Cell by cell, each with itself, or quotients."""
    for _ in range(b.between(1, 2)):
        x = layer(b, x)
        other = b.pick(b.scale, b.relu, lambda v: v, lambda v: _function(b, v))(x)
        how = b.between(0, 3)
        if how == 0:
            x = b.pair("Div", b.pick(other, x, spread(b, x)), _positive(b, x))
        elif how == 1:
            c = b.pair("Mul", x, other)
            x = b.pair(b.pick("Add", "Sub"), c, b.pick(c, x, b.scale(c)))
        else:
            x = b.pair("Mul", *((x, other) if b.chance(0.5) else (other, x)))
        if x.size > 40:
            x = b.linear(x, b.between(2, 6))
    return end(b, x)


def matrices(b: Builder, x: Tensor) -> Tensor:
    """Two matrices of activations, as attention has them, perhaps with a Softmax over the first product."""
    x = b.flat(layer(b, x))
    rows, inner = b.between(1, 4), b.between(1, 4)
    query, key = (b.reshape(b.linear(x, rows * inner), 1, rows, inner) for _ in range(2))
    y = b.emit("Transpose", [key], (1, inner, rows), perm=[0, 2, 1])
    if b.chance(0.3):
        query = b.pair("Mul", query, b.constant(np.array(b.pick(0.5, 1 / 3, 3.0))))
    y = b.emit("MatMul", [query, y], (1, rows, rows))
    if b.chance(0.4):
        y = b.pair("Div", y, b.constant(np.array(b.pick(2.0, 1 / 3, 1.7))))
    if b.chance(0.6):
        y = b.emit("Softmax", [y], y.shape, axis=b.pick(-1, 2, 1))
        if b.chance(0.6):
            y = b.emit("MatMul", [y, key], (1, rows, inner))
    y = b.reshape(y, 1, y.size)
    return y if b.chance(0.4) else b.linear(y)


def shares(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(layer(b, x))
    if x.size > 12:
        x = b.linear(x, b.between(2, 8))
    if b.chance(0.3):
        x = b.reshape(x, 1, *((2, x.size // 2) if x.size % 2 == 0 else (x.size, 1)))
    y = b.emit("Softmax", [x], x.shape, axis=b.between(1, len(x.shape) - 1))
    if b.chance(0.3):
        y = b.pair(b.pick("Mul", "Sub"), y, x)
    return end(b, b.reshape(y, 1, y.size) if len(y.shape) == 3 else y)


def normalised(b: Builder, x: Tensor) -> Tensor:
    """A normalisation spelled out: less the mean, over the root of the mean square."""
    x = b.flat(layer(b, x))
    if x.size > 12:
        x = b.linear(x, b.between(2, 8))

    def mean(v: Tensor) -> Tensor:
        if b.opset >= 18:
            return b.emit("ReduceMean", [v, b.integers(-1)], (*v.shape[:-1], 1))
        return b.emit("ReduceMean", [v], (*v.shape[:-1], 1), axes=[-1])

    gap = b.pair("Sub", x, mean(x))
    square = b.pair("Mul", gap, gap) if b.chance(0.5) else b.emit("Pow", [gap, b.constant(np.array(2.0))], gap.shape)
    wide = b.pair("Add", mean(square), b.constant(np.array(b.pick(1e-3, 0.1, 1.0))))
    y = b.pair("Div", gap, b.emit("Sqrt", [wide], wide.shape))
    return end(b, b.scale(y, b.pick("Mul", "Add")) if b.chance(0.5) else y)


def steps(b: Builder, x: Tensor) -> Tensor:
    """Functions that jump, sometimes right at the numbers that the layer before makes."""
    x = layer(b, x)
    if b.chance(0.5):
        x = b.pair(b.pick("Add", "Sub"), x, b.constant(b.rng.integers(-3, 4, x.shape[1:]) / 2))
    if b.chance(0.3):
        y = b.emit("ThresholdedRelu", [x], x.shape, alpha=b.pick(0.5, 1.0, 0.1, 2.0, 0.0))
    else:
        y = b.emit(b.pick("Sign", "Floor", "Ceil", "Round"), [x], x.shape)
    if b.chance(0.4):
        y = b.pair(b.pick("Add", "Sub", "Mul"), y, x)
    return end(b, y)


def smooth_chain(b: Builder, x: Tensor) -> Tensor:
    """Two or three of them, one behind the other."""
    for _ in range(b.between(2, 3)):
        x = SMOOTH_STAGES[str(b.rng.choice([name for name in SMOOTH_STAGES if name != "smooth_chain"]))](b, x)
        if x.size > 20:
            x = b.linear(x, b.between(3, 8))
        if len(x.shape) not in (2, 4):
            x = b.reshape(x, 1, x.size)
    return x


SMOOTH_STAGES: dict[str, Stage] = {
    f.__name__: f for f in (curves, gates, products, matrices, shares, normalised, steps, smooth_chain)
}
