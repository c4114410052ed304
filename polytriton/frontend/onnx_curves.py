"""ONNX operators that are smooth functions of one activation, or steps: one IR node each (ir/curves.py), or one between two scales."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from polytriton.frontend.onnx_values import ONE, REMEDY, ZERO, Act, Result, Site, rounding
from polytriton.ir.net import Attr
from polytriton.ir.ops import LARGEST, NORMAL

PLAIN = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Softsign": "softsign", "Softplus": "softplus", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "HardSwish": "hardswish", "Sin": "sin", "Cos": "cos", "Mish": "mish",
    "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round",
}  # fmt: skip
LIMITS = dict.fromkeys(("Log", "Sqrt", "Reciprocal"), "bounded where the operand is above 0")
POWERS = {2.0: "square", 3.0: "cube", 4.0: "fourth", 0.5: "sqrt", 1.5: "three_halves", -1.0: "reciprocal"}


def smooth(s: Site, x: Act, op: str, attrs: dict[str, Attr] | None = None, tag: str = "") -> Act:
    return replace(x, node=s.emit(op, [x.node], attrs, tag))


def function(s: Site) -> Result:
    return smooth(s, s.act(0), PLAIN[s.op])


def gelu(s: Site) -> Result:
    how = s.get("approximate", b"none")
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(how.decode() if isinstance(how, bytes) else str(how))
    if name is None:
        raise s.fail(f"approximate is {how!r}, neither none nor tanh", REMEDY)
    return smooth(s, s.act(0), name)


def swish(s: Site) -> Result:
    """x sigmoid(alpha x) = silu(alpha x) / alpha; alpha is 1 as a rule."""
    alpha = float(s.get("alpha", np.float32(1.0)))
    s.need(alpha == 1.0, "only alpha = 1 is supported")
    return smooth(s, s.act(0), "silu")


def _positive(s: Site, key: str, default: float) -> float:
    found = float(s.get(key, np.float32(default)))
    s.need(NORMAL <= found <= LARGEST, f"{key} is {found}, no positive number of float32's normal range")
    return found


def elu(s: Site) -> Result:
    return smooth(s, s.act(0), "elu", {"alpha": _positive(s, "alpha", 1.0)})


def threshold(s: Site) -> Result:
    """x above alpha, else 0: nothing is rounded, and alpha is compared as the number that it is in x's type."""
    alpha, x = float(s.get("alpha", np.float32(1.0))), s.act(0)
    if alpha == 0.0:
        return smooth(s, x, "relu")
    s.need(NORMAL <= alpha <= LARGEST, f"alpha is {alpha}, neither 0 nor a positive number of float32's normal range")
    s.need(float(x.dtype.type(alpha)) == alpha, f"alpha is {alpha}, no number of {x.dtype}: a runtime may compare with its neighbour")
    return smooth(s, x, "thresholded", {"alpha": alpha})


def selu(s: Site) -> Result:
    """gamma elu(x), one product more."""
    alpha, gamma = _positive(s, "alpha", 1.6732632423543772), _positive(s, "gamma", 1.0507009873554805)
    return s.scale(smooth(s, s.act(0), "elu", {"alpha": alpha}, "elu"), np.asarray(gamma), ZERO, {})


def celu(s: Site) -> Result:
    """alpha elu(x / alpha); the quotient rounds once in float64 (`slack`) and once deployed."""
    alpha, x = _positive(s, "alpha", 1.0), s.act(0)
    if alpha == 1.0:
        return smooth(s, x, "elu", {"alpha": 1.0})
    exact = math.frexp(alpha)[0] == 0.5
    inner = s.scale(x, np.asarray(1.0 / alpha), ZERO, rounding(slack=0 if exact else 1, ops=1), tag="inner")
    return s.scale(smooth(s, inner, "elu", {"alpha": 1.0}, "elu"), np.asarray(alpha), ZERO, {})


def power(s: Site) -> Result:
    x, exponent = s.act(0), s.const(1, "exponent")
    s.need(exponent.exact and exponent.value.size > 0, "its exponent is computed, and rounded")
    n = float(exponent.value.reshape(-1)[0])
    s.need(bool((exponent.value == exponent.value.reshape(-1)[0]).all()), "its exponents differ from cell to cell")
    x = s.expand(x, s.broadcast(x.shape, exponent.shape), "wide")
    if n == 1.0:
        return s.scale(x, ONE, ZERO, {"ops": 1})  # a library may compute it by logarithms
    if n not in POWERS:
        raise s.fail(f"the exponent {n:g} is not supported, only {', '.join(f'{k:g}' for k in (1.0, *POWERS))}", REMEDY)
    return smooth(s, x, POWERS[n])


def times_itself(s: Site, a: Act, b: Act, tag: str = "") -> Act | None:
    """x x, and x sigmoid(x) as exporters write SiLU; None where the product is another."""
    if a.shape != b.shape:
        return None
    if a.node == b.node:
        return smooth(s, a, "square", tag=tag)
    for x, gate in ((a, b), (b, a)):
        made = s.state.builder.node(gate.node)
        if made.op == "sigmoid" and made.inputs == (x.node,):
            return smooth(s, x, "silu", tag=tag)
    return None
