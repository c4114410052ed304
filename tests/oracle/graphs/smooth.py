"""Smooth functions, steps that jump and Softmax: values in float64, in balls, and how far a deployment may be off.

A function is a step of its own, exact but for float64's last places; behind it stands the step `stated`, which rounds it to the type after
moving it toward the goal by as many units as the semantics states (docs/deployed-arithmetic.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracle.graphs.node import NodeView
from tests.oracle.graphs.tape import NotCovered, Tape, Value

UNIT = 2.0**-23
INSIDE = 1 - 2.0**-20  # of what is stated: float64 has roundings of its own
BITS, FAR = 3000, 1 << 15  # of balls; exponents beyond which a number counts as zero
Ball = Any  # of python-flint: it has no types


@dataclass(frozen=True)
class Function:
    """Values in float64 and in balls, of the operand and the operator's number; `units` that a result may be off, of the operand's
    magnitude too where `beside`, of the result's own alone where `relative`.
    """

    near: Callable[[np.ndarray, float], np.ndarray]
    ball: Callable[[Ball, float], Ball]
    units: float = 4.0
    beside: bool = False
    relative: bool = False


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray, float], np.ndarray]:
    return lambda x, _: np.vectorize(function, otypes=[float])(x)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _logistic_ball(x: Ball) -> Ball:
    return 1 / (1 + (-x).exp()) if x > 0 else x.exp() / (1 + x.exp())


def _inner(x: Any) -> Any:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


def _inner_ball(x: Ball) -> Ball:
    pi, share = type(x).pi(), type(x)(44715) / 1000000
    return 2 * (2 / pi).sqrt() * (x + share * x * x * x)


def _softplus_ball(x: Ball) -> Ball:
    return x + (-x).exp().log1p() if x > 0 else x.exp().log1p()


def _mish_ball(x: Ball) -> Ball:
    """tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2), divided by e^2x where that is large."""
    if x > 0:
        e = (-x).exp()
        return x * (1 + 2 * e) / (1 + 2 * e + 2 * e * e)
    n = x.exp() * (x.exp() + 2)
    return x * n / (n + 2)


def _hardswish(x: np.ndarray, _: float) -> np.ndarray:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def _hardswish_ball(x: Ball, _: float) -> Ball:
    return x * 0 if x < -3 else x if x > 3 else x * (x / 6 + type(x)(0.5))


FUNCTIONS: dict[str, Function] = {
    "sigmoid": Function(lambda x, _: _logistic(x), lambda x, _: _logistic_ball(x)),
    "tanh": Function(lambda x, _: np.tanh(x), lambda x, _: x.tanh()),
    "erf": Function(_each(math.erf), lambda x, _: x.erf()),
    "softsign": Function(lambda x, _: x / (1 + np.abs(x)), lambda x, _: x / (1 + abs(x))),
    "softplus": Function(lambda x, _: np.logaddexp(0.0, x), lambda x, _: _softplus_ball(x)),
    "exp": Function(lambda x, _: np.exp(x), lambda x, _: x.exp()),
    "log": Function(lambda x, _: np.log(x), lambda x, _: x.log()),
    "sin": Function(lambda x, _: np.sin(x), lambda x, _: x.sin()),
    "cos": Function(lambda x, _: np.cos(x), lambda x, _: x.cos()),
    "elu": Function(
        lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))), lambda x, a: x if x > 0 else type(x)(a) * x.expm1()
    ),
    "gelu": Function(_each(lambda x: 0.5 * x * math.erfc(-x * math.sqrt(0.5))), lambda x, _: x * (-x / type(x)(2).sqrt()).erfc() / 2, 6,
                     beside=True),
    "gelu_tanh": Function(lambda x, _: x * _logistic(_inner(x)), lambda x, _: x * _logistic_ball(_inner_ball(x)), 6, beside=True),
    "mish": Function(lambda x, _: x * np.tanh(np.logaddexp(0.0, x)), lambda x, _: _mish_ball(x), 6, beside=True),
    "silu": Function(lambda x, _: x * _logistic(x), lambda x, _: x * _logistic_ball(x), 6, beside=True),
    "hardswish": Function(_hardswish, _hardswish_ball, 6),
    "square": Function(lambda x, _: x * x, lambda x, _: x * x, relative=True),
    "cube": Function(lambda x, _: x * x * x, lambda x, _: x * x * x, relative=True),
    "fourth": Function(lambda x, _: x**4, lambda x, _: x * x * x * x, relative=True),
    "three_halves": Function(lambda x, _: np.abs(x) ** 1.5, lambda x, _: x * x.sqrt(), relative=True),
}  # fmt: skip
STEPPED: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {  # exact, deployed too
    **{op: lambda x, _, f=f: f(x) for op, f in (("sign", np.sign), ("floor", np.floor), ("ceil", np.ceil), ("round", np.rint))},
    "thresholded": lambda x, a: np.where(x > a, x, 0.0),
}


def near(op: str, x: np.ndarray, number: float) -> np.ndarray:
    return np.asarray(STEPPED[op](x, number) if op in STEPPED else FUNCTIONS[op].near(x, number))


def slope(op: str, x: np.ndarray, number: float) -> np.ndarray:
    """About the derivative, for goals alone; of a step that of its stairs."""
    if op == "thresholded":
        return np.where(x > number, 1.0, 0.0)
    if op in STEPPED:
        return np.ones_like(x)
    h = 1e-6 * (1 + np.abs(x))
    found = (near(op, x + h, number) - near(op, x - h, number)) / (2 * h)
    return np.where(np.isfinite(found), found, 1.0)


def exactly(op: str, q: Any, number: float) -> Any:
    """The value at a rational, to 400 bits or more."""
    if op == "thresholded":
        return q if q > type(q)(*number.as_integer_ratio()) else type(q)(0)
    if op in STEPPED:
        return type(q)(_stepped(op, q))
    from flint import arb, ctx

    with ctx.workprec(BITS):
        ball = FUNCTIONS[op].ball(arb(q), number)
        if ball.mid() == 0:
            assert ball.rad() == 0
            return type(q)(0)
        man, exponent = ball.mid().man_exp()
        if int(exponent) + int(man).bit_length() < -FAR:
            return type(q)(0)
        if int(exponent) > FAR:
            raise OverflowError(f"{op} of {float(arb(q))}")
        assert ball.rel_accuracy_bits() > 400 or ball.rad() < arb(2) ** -1000, (op, q)
        return type(q)(int(man)) * type(q)(2) ** int(exponent)


def _stepped(op: str, q: Any) -> int:
    below = int(q.p) // int(q.q) if hasattr(q, "p") else q.numerator // q.denominator
    rest = q - below
    if op == "sign":
        return 1 if q > 0 else -1 if q < 0 else 0
    if op == "floor":
        return below
    if op == "ceil":
        return below + (rest > 0)
    return below + (2 * rest > 1 or (2 * rest == 1 and below % 2 == 1))


def stated(f: np.ndarray, beside: np.ndarray, units: float, relative: bool, goal: np.ndarray, state: np.ndarray) -> np.ndarray:
    """f moved as the goal says, by almost all of what is stated, and rounded to float32 back toward f."""
    drawn = np.random.default_rng(int(state[0])).integers(-1, 2, f.shape)
    ways = np.select([goal == 2, goal == 3, goal == 4], [-np.sign(f), np.sign(f), drawn], goal)
    size = np.abs(f) if relative else np.maximum(np.maximum(1.0, np.abs(f)), np.abs(beside))
    moved = f + ways * (INSIDE * units * UNIT) * size
    r = moved.astype(np.float32)
    beyond = (r.astype(np.float64) - moved) * ways > 0
    return np.where(beyond, np.nextafter(r, f.astype(np.float32)), r).astype(np.float64)


# ---- tracing -----------------------------------------------------------------------------------------------------------


def apply(tape: Tape, name: str, x: Value, number: float = 0.0) -> Value:
    """A function and what is stated of it. An Elu's unit knows its alpha."""
    if x.dtype != np.float32 or x.constant:
        raise NotCovered(f"{name} of {x.dtype}, or of constants")
    f = FUNCTIONS[name]
    made = tape.single(name, x, np.dtype(np.float64), number)
    other = x if f.beside else tape.constant(np.full(x.shape, max(1.0, number if name == "elu" else 1.0)))
    return tape.stated(made, other, f.units, f.relative)


PLAIN = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Softsign": "softsign", "Softplus": "softplus", "Exp": "exp", "Log": "log",
    "HardSwish": "hardswish", "Sin": "sin", "Cos": "cos", "Mish": "mish", "Swish": "silu",
}  # fmt: skip


def function(tape: Tape, n: NodeView) -> Value:
    return apply(tape, PLAIN[n.op], n.inputs[0])


def gelu(tape: Tape, n: NodeView) -> Value:
    return apply(tape, {"none": "gelu", "tanh": "gelu_tanh"}[n.text("approximate", "none")], n.inputs[0])


def _number(tape: Tape, value: float) -> Value:
    return tape.constant(np.array(value, np.float64), np.dtype(np.float32))


def elu(tape: Tape, n: NodeView) -> Value:
    """Also Selu, gamma elu(x), and Celu, alpha elu(x / alpha): operation by operation."""
    x, alpha = n.inputs[0], n.number("alpha", 1.6732632423543772 if n.op == "Selu" else 1.0)
    if n.op == "Celu":
        inner = tape.pair("div", x, _number(tape, alpha)) if alpha != 1 else x
        y = apply(tape, "elu", inner, 1.0)
        return tape.pair("mul", y, _number(tape, alpha)) if alpha != 1 else y
    y = apply(tape, "elu", x, alpha)
    return tape.pair("mul", y, _number(tape, n.number("gamma", 1.0507009873554805))) if n.op == "Selu" else y


def power(tape: Tape, n: NodeView) -> Value:
    x, exponent = n.inputs[0], n.given(1)
    assert exponent is not None and exponent.size == 1
    k = float(exponent.reshape(-1)[0])
    names = {2.0: "square", 3.0: "cube", 4.0: "fourth", 1.5: "three_halves"}
    if k in names:
        return apply(tape, names[k], x)
    if k == 0.5:
        return tape.single("sqrt", x)
    if k == -1.0:
        return tape.single_over("div", x)
    raise NotCovered(f"the exponent {k}")


def step(tape: Tape, n: NodeView) -> Value:
    return tape.single(n.op.lower(), n.inputs[0])


def threshold(tape: Tape, n: NodeView) -> Value:
    return tape.single("thresholded", n.inputs[0], number=n.number("alpha", 1.0))


def softmax(tape: Tape, n: NodeView) -> Value:
    """exp(x - max) over their sum: each step rounded, the exponential off by a unit; or exact, and off by what is stated of the whole."""
    x = n.inputs[0]
    axis = n.integer("axis", 1 if n.opset < 13 else -1) % len(x.shape)
    moved = x.ids.reshape(int(np.prod(x.shape[:axis])), -1) if n.opset < 13 else np.moveaxis(x.ids, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    whole = tape.forms.share == 1
    dtype = np.dtype(np.float64) if whole else x.dtype
    given = Value(rows, dtype)
    top = tape.most("max", rows, (len(rows), 1), given)
    gap = tape.pair("sub", given, top)
    raised = tape.single("exp", gap, np.dtype(np.float64))
    if not whole:
        raised = tape.stated(raised, raised, 1.0, True)
    total = tape.dots(raised.ids, np.ones_like(rows), None, (len(rows), 1), dtype, False, product=False)
    y = tape.pair("div", Value(raised.ids, dtype), total)
    if whole:
        y = tape.stated(y, tape.constant(np.ones(y.shape)), 8.0, False)
    placed = y.ids.reshape(moved.shape)
    return Value(placed.reshape(x.shape) if n.opset < 13 else np.moveaxis(placed, -1, axis), x.dtype)


def layer_norm(tape: Tape, n: NodeView) -> Value:
    """Less the mean, over the root of the mean square and epsilon: steps as the specification's function has them."""
    x, axis = n.inputs[0], n.integer("axis", -1) % len(n.inputs[0].shape)
    rows = x.ids.reshape(int(np.prod(x.shape[:axis])), -1)

    def mean(cells: np.ndarray) -> Value:
        total = tape.dots(cells, np.ones_like(cells), None, (len(cells), 1), x.dtype, False, product=False)
        return tape.pair("div", total, tape.constant(np.array(float(cells.shape[1])), x.dtype))

    gap = tape.pair("sub", Value(rows, x.dtype), mean(rows))
    spread = tape.pair("add", mean(tape.pair("mul", gap, gap).ids), tape.constant(np.array(n.number("epsilon", np.float32(1e-5))), x.dtype))
    y = tape.pair("div", gap, tape.single("sqrt", spread)).reshaped(x.shape)
    y = tape.pair("mul", y, n.inputs[1])
    return tape.pair("add", y, n.inputs[2]) if len(n.inputs) > 2 else y


SMOOTH: dict[str, Any] = {
    "LayerNormalization": layer_norm,
    **dict.fromkeys(PLAIN, function), "Gelu": gelu, **dict.fromkeys(("Elu", "Selu", "Celu"), elu), "Pow": power, "Softmax": softmax,
    **dict.fromkeys(("Sign", "Floor", "Ceil", "Round"), step), "ThresholdedRelu": threshold,
}  # fmt: skip
