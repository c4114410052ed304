"""Smooth functions of one number: value and slope in float64, how far both may be off, and where the curvature changes its sign.

What soundness needs of a function is stated in its row: f is convex, concave or straight on each piece between two bends, and

    |value(x) - f(x)|  <=  VALUE |value(x)| + off (1 + |x|) + slack + TINY,
    |slope(x) - f'(x)|  <=  SLOPE |slope(x)| + off (1 + |x|) + TINY.

The libraries' exp, tanh and erf are off by a few units of 2^-53; 2^-44 is 512 of these. A bend that is no float64 number is enclosed, and
`most` bounds |f''| between the ends of an enclosure. A function of a `period` repeats its bends, which are those beside 0; where a box is
wider than two periods, or far out, all that is known of it is its `span`. `slack` is added to what the value may be off.

A function that `jumps` does not fall, and is computed exactly (ulps 0), but its operand may be flushed to zero. It is constant between
jumps and f(x) - x lies in `band`; `thresholded` alone jumps once, from 0 to x. tests/ir/test_curves.py holds the others' rows against
interval arithmetic of 200 bits.

Deployed, such a function has no IEEE definition. A semantics states how far its float32 result may lie from the exact one: `ulps` units of
2^-23 max(1, |f|), by default more than onnxruntime's and torch's kernels were measured at (tools/function_errors.py). Of what IEEE 754 does
define, or two of its products make, the units are `relative`: 2^-23 |f|, and 2^-125 for what is flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

VALUE, SLOPE, TINY = 2.0**-44, 2.0**-40, 1e-300
Function = Callable[[np.ndarray, float], np.ndarray]  # of float64 numbers, and of the operator's parameter


@dataclass(frozen=True)
class Curve:
    """`bends` in order; `signs` of f'' left of the first, between them, and right of the last: 1 convex, -1 concave, 0 straight.

    `domain`: where f is defined, open. `invert` gives, for slopes k, points x >= 0 with f'(x) = k for an f' that is even; nobody trusts it.
    `parameter` names the operator's attribute and its default. `made_of`: a deployment may compute x times this function of x instead.
    """

    value: Function
    slope: Function
    signs: tuple[int, ...]
    bends: tuple[tuple[float, float], ...] = ()
    off: float = 0.0
    slack: float = 0.0
    most: float = 0.0
    period: float = 0.0
    span: tuple[float, float] = (-np.inf, np.inf)
    domain: tuple[float, float] = (-np.inf, np.inf)
    invert: Callable[[np.ndarray], np.ndarray] | None = None
    parameter: tuple[str, float] = ("", 0.0)
    band: tuple[float, float] = (-np.inf, np.inf)
    jumps: bool = False
    ulps: float = 4.0
    relative: bool = False
    made_of: tuple[str, ...] = ()
    doc: str = ""


def _sigmoid(x: np.ndarray, _: float) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1 + e)


def _sigmoid_slope(x: np.ndarray, _: float) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


def _sigmoid_invert(k: np.ndarray) -> np.ndarray:
    s = 0.5 + 0.5 * np.sqrt(np.clip(1 - 4 * k, 0, 1))
    return np.log(s / np.maximum(k / s, TINY))  # 1 - s = k / s


def _tanh_slope(x: np.ndarray, _: float) -> np.ndarray:
    e = np.exp(-2 * np.abs(x))
    return 4 * e / (1 + e) ** 2


def _tanh_invert(k: np.ndarray) -> np.ndarray:
    return np.arctanh(np.minimum(np.sqrt(np.clip(1 - k, 0, 1)), 1 - 2.0**-53))


def _erf(x: np.ndarray, _: float = 0.0) -> np.ndarray:
    import torch  # numpy has none

    return np.asarray(torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy())


def _erf_slope(x: np.ndarray, _: float) -> np.ndarray:
    return 2 / sqrt(pi) * np.exp(-(np.minimum(np.abs(x), 40) ** 2))


def _erf_invert(k: np.ndarray) -> np.ndarray:
    return np.sqrt(-np.log(np.clip(k * sqrt(pi) / 2, TINY, 1)))


def _softplus(x: np.ndarray, _: float) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softsign_slope(x: np.ndarray, _: float) -> np.ndarray:
    return 1 / (1 + np.abs(x)) ** 2


def _share(x: np.ndarray, _: float) -> np.ndarray:
    return 1 / np.maximum(x, 1)


def _share_slope(x: np.ndarray, _: float) -> np.ndarray:
    """At 1 that of the curved side."""
    return np.where(x < 1, 0.0, -1 / np.maximum(x, 1) ** 2)


def _capped_exp(x: np.ndarray, _: float) -> np.ndarray:
    return np.exp(np.minimum(x, CAP))


def _capped_slope(x: np.ndarray, _: float) -> np.ndarray:
    """At the cap that of the curved side."""
    return np.where(x > CAP, 0.0, np.exp(np.minimum(x, CAP)))


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _elu_slope(x: np.ndarray, alpha: float) -> np.ndarray:
    """At 0 that of the curved side: the straight one asks for none."""
    return np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))


def _gelu(x: np.ndarray, _: float) -> np.ndarray:
    return 0.5 * x * (1 + _erf(x * sqrt(0.5)))


def _gelu_slope(x: np.ndarray, _: float) -> np.ndarray:
    y = np.minimum(np.abs(x), 40)
    return 0.5 * (1 + _erf(x * sqrt(0.5))) + x * np.exp(-0.5 * y * y) / sqrt(2 * pi)


def _gelu_tanh_inner(x: np.ndarray) -> np.ndarray:
    return sqrt(2 / pi) * (x + 0.044715 * x * x * x)


def _gelu_tanh(x: np.ndarray, _: float) -> np.ndarray:
    """0.5 x (1 + tanh(u)) = x sigmoid(2 u)."""
    return x * _sigmoid(2 * _gelu_tanh_inner(x), 0.0)


def _gelu_tanh_slope(x: np.ndarray, _: float) -> np.ndarray:
    y = np.clip(x, -40, 40)  # beyond, the gate is 0 or 1
    u = 2 * _gelu_tanh_inner(y)
    return _sigmoid(u, 0.0) + y * _sigmoid_slope(u, 0.0) * 2 * sqrt(2 / pi) * (1 + 0.134145 * y * y)


def _mish_gate(x: np.ndarray) -> np.ndarray:
    """tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), divided by e^2x where x > 0."""
    e = np.exp(-np.abs(x))
    n = np.where(x > 0, 1 + 2 * e, e * (e + 2))
    return n / (n + np.where(x > 0, 2 * e * e, 2.0))


def _mish(x: np.ndarray, _: float) -> np.ndarray:
    return x * _mish_gate(x)


def _mish_slope(x: np.ndarray, _: float) -> np.ndarray:
    """gate + x (1 - gate^2) sigmoid(x); with n as above 1 - gate^2 = 4 (n + 1) / (n + 2)^2 and n + 1 = (1 + e^x)^2."""
    e = np.exp(-np.abs(x))
    up = x > 0
    n = np.where(up, 1 + 2 * e, e * (e + 2)) + np.where(up, 2 * e * e, 2.0)  # n + 2, of e^-2x as much where x > 0
    rest = 4 * (1 + e) ** 2 * np.where(up, e * e, 1.0) / (n * n)
    return _mish_gate(x) + x * rest * _sigmoid(x, 0.0)


def _silu(x: np.ndarray, _: float) -> np.ndarray:
    return x * _sigmoid(x, 0.0)


def _silu_slope(x: np.ndarray, _: float) -> np.ndarray:
    return _sigmoid(x, 0.0) + x * _sigmoid_slope(x, 0.0)


def _hardswish(x: np.ndarray, _: float) -> np.ndarray:
    return x * np.clip((x + 3) / 6, 0, 1)


def _hardswish_slope(x: np.ndarray, _: float) -> np.ndarray:
    """At -3 and 3 that of the curved piece."""
    return np.where(x < -3, 0.0, np.where(x > 3, 1.0, (2 * x + 3) / 6))


def _softsign_invert(k: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(np.clip(k, TINY, 1)) - 1


def _cube_invert(k: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(k, 0) / 3)


ZERO = ((0.0, 0.0),)


ALL = (-np.inf, np.inf)


def _jumping(
    value: Callable[[np.ndarray], np.ndarray], doc: str, span: tuple[float, float] = ALL, band: tuple[float, float] = ALL
) -> Curve:
    return Curve(lambda x, _: value(x), lambda x, _: np.zeros_like(x), (0,), span=span, band=band, jumps=True, ulps=0.0, doc=doc)


def _threshold(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > alpha, x, 0.0)


def _threshold_slope(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > alpha, 1.0, 0.0)


def _enclose(*bends: float, width: float) -> tuple[tuple[float, float], ...]:
    return tuple((x - width, x + width) for x in bends)


CAP = 30.0  # e^30 beside 1: a share of 2^-43
ABOVE = (0.0, np.inf)
SINE = _enclose(*(k * pi for k in range(-2, 3)), width=1e-15)
COSINE = _enclose(*((k + 0.5) * pi for k in range(-3, 3)), width=1e-15)
UNIT = (-1.0, 1.0)
GELU_TANH = _enclose(-1.41850400879082836, 1.41850400879082836, width=1e-15)
MISH = _enclose(-2.25637639636079312, 1.490571179485428459, width=1e-15)
GELU = _enclose(-sqrt(2), sqrt(2), width=1e-15)
HARDSWISH = _enclose(-3.0, 3.0, width=0.0)
SILU = _enclose(-2.399357280515, 2.399357280515, width=1e-11)  # x tanh(x / 2) = 2
# fmt: off
CURVES: Mapping[str, Curve] = {
    "sigmoid": Curve(_sigmoid, _sigmoid_slope, (1, -1), ZERO, invert=_sigmoid_invert, doc="1 / (1 + exp(-x))"),
    "tanh": Curve(lambda x, _: np.tanh(x), _tanh_slope, (1, -1), ZERO, invert=_tanh_invert, doc="hyperbolic tangent"),
    "erf": Curve(_erf, _erf_slope, (1, -1), ZERO, invert=_erf_invert, doc="error function"),
    "softsign": Curve(lambda x, _: x / (1 + np.abs(x)), _softsign_slope, (1, -1), ZERO, invert=_softsign_invert, doc="x / (1 + |x|)"),
    "softplus": Curve(_softplus, _sigmoid, (1,), doc="log(1 + exp(x))"),
    "exp": Curve(lambda x, _: np.exp(x), lambda x, _: np.exp(x), (1,), doc="exponential"),
    "log": Curve(lambda x, _: np.log(x), lambda x, _: 1 / x, (-1,), domain=ABOVE, doc="natural logarithm; no bound unless x > 0"),
    "sqrt": Curve(lambda x, _: np.sqrt(x), lambda x, _: 0.5 / np.sqrt(x), (-1,), domain=ABOVE, relative=True,
        doc="square root; no bound unless x > 0"),
    "reciprocal": Curve(lambda x, _: 1 / x, lambda x, _: -1 / (x * x), (1,), domain=ABOVE, relative=True,
        doc="1 / x; no bound unless x > 0"),
    "sin": Curve(lambda x, _: np.sin(x), lambda x, _: np.cos(x), (1, -1) * 3, SINE, 2.0**-48, most=1.0, period=2 * pi, span=UNIT,
        doc="sine"),
    "cos": Curve(lambda x, _: np.cos(x), lambda x, _: -np.sin(x), (1, -1) * 3 + (1,), COSINE, 2.0**-48, most=1.0, period=2 * pi, span=UNIT,
        doc="cosine"),
    "capped": Curve(_capped_exp, _capped_slope, (1, 0), ((CAP, CAP),), ulps=0.0, doc="exp(min(x, 30)): a term of a Softmax"),
    "share": Curve(_share, _share_slope, (0, 1), ((1.0, 1.0),), slack=2.0**-43,
        doc="1 / max(x, 1): the end of a Softmax, whose sums are 1 or more, of capped terms"),
    "elu": Curve(_elu, _elu_slope, (1, 0), ZERO, parameter=("alpha", 1.0), doc="x where x > 0, else alpha (exp(x) - 1)"),
    "gelu": Curve(_gelu, _gelu_slope, (-1, 1, -1), GELU, 2.0**-48, most=1.0, made_of=("erf",), doc="x Phi(x), by erf"),
    "gelu_tanh": Curve(_gelu_tanh, _gelu_tanh_slope, (-1, 1, -1), GELU_TANH, 2.0**-46, most=1.2, made_of=("tanh",),
        doc="x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2"),
    "mish": Curve(_mish, _mish_slope, (-1, 1, -1), MISH, 2.0**-46, most=1.0, made_of=("tanh",), doc="x tanh(log(1 + exp(x)))"),
    "silu": Curve(_silu, _silu_slope, (-1, 1, -1), SILU, 2.0**-48, most=1.0, made_of=("sigmoid",), doc="x sigmoid(x)"),
    "hardswish": Curve(_hardswish, _hardswish_slope, (0, 1, 0), HARDSWISH, 2.0**-48, ulps=6.0, doc="x clip(x / 6 + 1/2, 0, 1)"),
    "sign": _jumping(np.sign, "-1, 0 or 1", span=UNIT),
    "floor": _jumping(np.floor, "the integer below", band=(-1.0, 0.0)),
    "ceil": _jumping(np.ceil, "the integer above", band=(0.0, 1.0)),
    "round": _jumping(np.rint, "the nearest integer, of two the even one", band=(-0.5, 0.5)),
    "thresholded": Curve(_threshold, _threshold_slope, (0,), parameter=("alpha", 1.0), jumps=True, ulps=0.0,
        doc="x where x > alpha, else 0"),
    "square": Curve(lambda x, _: x * x, lambda x, _: 2 * x, (1,), relative=True, doc="x^2"),
    "fourth": Curve(lambda x, _: (x * x) * (x * x), lambda x, _: 4 * x * x * x, (1,), relative=True, doc="x^4"),
    "three_halves": Curve(lambda x, _: x * np.sqrt(x), lambda x, _: 1.5 * np.sqrt(x), (1,), domain=ABOVE, relative=True,
        doc="x^1.5; no bound unless x > 0"),
    "cube": Curve(lambda x, _: x * x * x, lambda x, _: 3 * x * x, (-1, 1), ZERO, invert=_cube_invert, relative=True, doc="x^3"),
}
# fmt: on
STATED = {**{name: c.ulps for name, c in CURVES.items() if c.ulps}, "softmax": 8.0}  # ulps of every function told of
