"""Every row of the table of smooth functions against ball arithmetic: values, slopes, and where f'' changes its sign."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flint import arb, arb_series, ctx

from polytriton.ir.curves import CAP, CURVES, SLOPE, TINY, VALUE, Curve

ctx.prec = 200
Ball = Callable[[arb_series], arb_series]
ONE = arb(1)


def _half(x: arb_series) -> arb_series:
    return x * (arb(1) / 2)


def _cubic(x: arb_series) -> arb_series:
    """The argument of GELU's tanh."""
    return (x + x * x * x * (arb(44715) / 1000000)) * (2 / arb.pi()).sqrt()


# written from the definitions, in the variable of a power series: its coefficients are f, f' and f'' / 2
EXACT: dict[str, Ball] = {
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: 2 / (1 + (-x - x).exp()) - 1,
    "erf": lambda x: x.erf(),
    "softplus": lambda x: (1 + x.exp()).log(),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "sqrt": lambda x: x.sqrt(),
    "reciprocal": lambda x: 1 / x,
    "gelu": lambda x: _half(x) * (1 + (x * (1 / arb(2).sqrt())).erf()),
    "silu": lambda x: x / (1 + (-x).exp()),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "gelu_tanh": lambda x: x * (1 - 1 / (1 + (_cubic(x) + _cubic(x)).exp())),
    "mish": lambda x: x - 2 * x / (2 + x.exp() * (2 + x.exp())),
    "square": lambda x: x * x,
    "cube": lambda x: x * x * x,
    "fourth": lambda x: x * x * x * x,
    "three_halves": lambda x: x * x.sqrt(),
}
# by pieces: the bends, and what stands between them
PIECES: dict[str, tuple[list[float], list[Ball]]] = {
    "softsign": ([0.0], [lambda x: x / (1 - x), lambda x: x / (1 + x)]),
    "elu": ([0.0], [lambda x: x.exp() - 1, lambda x: x]),
    "capped": ([30.0], [lambda x: x.exp(), lambda x: x * arb(0) + arb(30).exp()]),
    "share": ([1.0], [lambda x: x * arb(0) + 1, lambda x: 1 / x]),
    "hardswish": ([-3.0, 3.0], [lambda x: x * arb(0), lambda x: x * (x + 3) * (arb(1) / 6), lambda x: x]),
}


SMOOTH = [name for name, curve in CURVES.items() if not curve.jumps]  # the others: tests/runtime/test_stepped.py


def exact(name: str, x: float | arb, piece: int = 0) -> list[arb]:
    """f, f' and f'' of a number, or of all numbers of a ball; of a function by pieces those of one piece."""
    ball = PIECES[name][1][piece] if name in PIECES else EXACT[name]
    found = ball(arb_series([arb(x), 1], prec=3))
    f, slope, half = (found[k] if k < found.length() else arb(0) for k in range(3))
    return [f, slope, 2 * half]


def piece_of(name: str, x: float) -> int:
    return sum(x > b for b in PIECES[name][0]) if name in PIECES else 0


def points(curve: Curve) -> list[float]:
    """Around bends and zero, far out, and everywhere between."""
    rng = np.random.default_rng(5)
    ends = [e for pair in curve.bends for e in pair]
    near = [float(np.nextafter(e, d)) for e in ends for d in (-np.inf, np.inf)]
    spread = rng.standard_normal(25) * 2.0 ** rng.integers(-30, 5, 25)
    far = [s * v for v in (1e-300, 1e-40, 1e-8, 0.5, 1.0, 5.0, 9.0, 20.0, 37.5, 88.0, 300.0, 700.0, 1e4, 1e15) for s in (-1, 1)]
    return [x for x in (0.0, *ends, *near, *far, *spread.tolist()) if curve.domain[0] < x < curve.domain[1]]


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_slopes_are_off_by_no_more_than_said(name: str) -> None:
    curve, most = CURVES[name], arb("1e200")
    with np.errstate(all="ignore"), ctx.workprec(1600):  # 1e-300 beside 1
        for x in points(curve):
            f, slope, _ = exact(name, x, piece_of(name, x))
            if not abs(f) < most:
                continue  # beyond float64
            value, tangent = (float(g(np.array([x]), curve.parameter[1])[0]) for g in (curve.value, curve.slope))
            room = VALUE * arb(value).abs_upper() + arb(curve.off) * (1 + abs(arb(x))) + TINY  # `slack` is for what the function stands for
            assert abs(f - arb(value)) <= room, (name, x, value, f)
            if x not in [b for b, _ in curve.bends] or name not in ("elu", "hardswish", "share", "capped"):
                room = SLOPE * abs(arb(tangent)) + arb(curve.off) * (1 + abs(arb(x))) + TINY
                assert abs(slope - arb(tangent)) <= room, (name, x, tangent, slope)


def _sure(name: str, low: arb, high: arb, piece: int, sign: int, depth: int = 0) -> bool:
    """Whether f'' has the sign, or is zero, all over [low, high], by halving."""
    try:
        second = exact(name, low.union(high), piece)[2] * sign
    except ValueError:  # a quotient of balls too wide to tell from zero
        second = arb("nan")
    if second >= 0:
        return True
    if depth > 120 or second < 0:
        return False
    middle = (low + high) / 2
    return _sure(name, low, middle.mid(), piece, sign, depth + 1) and _sure(name, middle.mid(), high, piece, sign, depth + 1)


TOUCHES = {"fourth": arb(0)}  # where f'' is zero and keeps its sign: no ball around it tells that


@pytest.mark.parametrize("name", SMOOTH)
def test_every_piece_is_curved_as_said(name: str) -> None:
    """Out to 7 by ball arithmetic; what lies beyond keeps the sign that its formula has there (test_far_out). Of a period, three turns."""
    curve = CURVES[name]
    bends = [e for pair in curve.bends for e in pair]
    reach = 1.5 * curve.period or max(7.0, *bends, 0.0) + 1.0
    edges = [2.0**-10 if curve.domain[0] == 0 else -reach, *bends, reach]
    for k, sign in enumerate(curve.signs):
        low, high = edges[2 * k], edges[2 * k + 1]
        if sign == 0:
            assert all(exact(name, x, k)[2] == 0 for x in np.linspace(low, high, 9).tolist())
            continue
        # the second derivative may be zero at a bend itself: step off it by less than anything that counts
        inner = [arb(low) + (arb("1e-25") if k else 0), arb(high) - (arb("1e-25") if k + 1 < len(curve.signs) else 0)]
        if name in TOUCHES:
            at, step = TOUCHES[name], arb("1e-25")
            assert _sure(name, inner[0], at - step, k, sign) and _sure(name, at + step, inner[1], k, sign), (name, low, high)
        else:
            assert _sure(name, *inner, k, sign), (name, low, high)
        assert not _sure(name, *inner, k, -sign), (name, low, high)


def _mish_factor(x: arb) -> arb:
    """Beyond 7 the bracket is below -1.9 on the right, above 0.9 on the left."""
    e = x.exp()
    return 2 + x * (1 + e / (1 + e) - 4 * e * (e + 1) / (e * e + 2 * e + 2))


def _gelu_tanh_factor(x: arb) -> arb:
    """f'' / (g (1 - g)) with g = sigmoid(2 u): 4 u' + 2 x u'' - 4 x u'^2 (2 g - 1).

    Beyond 7 u' is above 6, x u'' at most 2 u' and |2 g - 1| above 1/2: below 8 u' - 84 u'.
    """
    c, a = (2 / arb.pi()).sqrt(), arb(44715) / 1000000
    first, second, u = c * (1 + 3 * a * x * x), 6 * a * c * x, c * (x + a * x * x * x)
    return 4 * first + 2 * x * second - 4 * x * first * first * u.tanh()


FACTORS = [
    ("gelu", lambda x: 2 - x * x),
    ("silu", lambda x: 2 - x * (x / 2).tanh()),
    ("mish", _mish_factor),
    ("gelu_tanh", _gelu_tanh_factor),
]


@pytest.mark.parametrize(("name", "factor"), FACTORS)
def test_far_out(name: str, factor: Callable[[arb], arb]) -> None:
    """f'' is a positive function times a factor that stays below zero far out: of the first two, one that falls in |x|."""
    for low, high in CURVES[name].bends:
        assert factor(arb(low if low > 0 else high)) > 0 > factor(arb(high if low > 0 else low))
    for x in (0.5, 2.0, 3.0, 11.0, 40.0, -7.0, -1.0):
        second, gate = exact(name, x)[2], factor(arb(x))
        assert (second > 0) == (gate > 0) and (second < 0) == (gate < 0)
    for curve in CURVES.values():
        for a, b in curve.bends:
            assert a == b or curve.most > 0


@pytest.mark.parametrize("name", [n for n, c in CURVES.items() if c.most])
def test_curvature_on_an_enclosure(name: str) -> None:
    for a, b in CURVES[name].bends:
        assert abs(exact(name, arb(a).union(arb(b)))[2]) < CURVES[name].most


def test_pieces_meet() -> None:
    """Functions by pieces are continuous, so that what holds of closed pieces holds of the whole."""
    for name, (bends, _) in PIECES.items():
        assert [b for b, _ in CURVES[name].bends] == bends
        for k, bend in enumerate(bends):
            assert exact(name, bend, k)[0].overlaps(exact(name, bend, k + 1)[0])


def test_a_capped_softmax_is_one() -> None:
    """1 / (1 + sum of exp(min(g, cap))) lies at most `slack` above the Softmax and never below it."""
    rng = np.random.default_rng(3)
    for gaps in [[30.0], [30.1], [1e6, -3.0], *(rng.standard_normal(4) * rng.choice([1, 20, 100]) for _ in range(200))]:
        true, written = (1 / (1 + sum((arb(min(float(g), cap)).exp() for g in gaps), arb(0))) for cap in (np.inf, CAP))
        assert 0 <= (written - true).upper() and written - true <= CURVES["share"].slack


def test_every_function_is_tested() -> None:
    assert set(SMOOTH) == EXACT.keys() | PIECES.keys()
