"""Properties over several networks: the substituted set is the written one, point by point, judged by formulas that share no code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from polytriton.errors import PolytritonError, UnsupportedProperty
from polytriton.frontend.joint import JointProperty, read_joint
from polytriton.frontend.onnx import Source
from polytriton.frontend.vnnlib import read_vnnlib

HEAD = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,1]))
(declare-network g {like}(declare-input U float32 [1,2]) (declare-output V float32 [1,1]))
"""
BOX = "(assert (and (>= X[0,0] 0) (<= X[0,0] 2) (>= X[0,1] -1) (<= X[0,1] 1)))"
OTHER = "(assert (and (>= U[0,0] 0) (<= U[0,0] 2) (>= U[0,1] -1) (<= U[0,1] 1)))"
GRID = [Fraction(k, 2) for k in (-2, 0, 1, 4, 5)]
Judge = Callable[[Sequence[Fraction], Sequence[Fraction]], bool]


def source(inputs: int = 2, outputs: int = 1, dtype: str = "float32") -> Source:
    return Source("", "x", (1, inputs), dtype, "y", (1, outputs), 13, True)


def joint(text: str, like: str = "(equal-to f) ") -> JointProperty:
    given = {"f": source()} if "equal-to" in like else {"f": source(), "g": source()}
    return read_joint(HEAD.format(like=like) + text, given)


def boxed(*values: Fraction) -> bool:
    return all(lo <= v <= lo + 2 for lo, v in zip((0, -1, 0, -1), values, strict=False))


CASES: list[tuple[str, int, int, Judge]] = [  # text; variables, those that are sums; what it says of (X, U) and (Y, V)
    (BOX + OTHER + "(assert (>= Y[0,0] V[0,0]))", 4, 0, lambda x, y: boxed(*x) and y[0] >= y[1]),
    (BOX + "(assert (== X[0,0] U[0,0]))(assert (= U[0,1] X[0,1]))(assert (>= Y[0,0] V[0,0]))", 2, 0,
     lambda x, y: boxed(*x[:2]) and x[:2] == x[2:] and y[0] >= y[1]),
    (BOX + OTHER + "(assert (and (<= X[0,0] U[0,0]) (== X[0,1] U[0,1]) (> Y[0,0] V[0,0])))", 3, 1,
     lambda x, y: boxed(*x) and x[0] <= x[2] and x[1] == x[3] and y[0] > y[1]),
    (BOX + OTHER + "(assert (and (< U[0,0] X[0,0]) (<= U[0,1] 0.5)))(assert (or (<= Y[0,0] 0) (<= X[0,1] U[0,1])))", 4, 1,
     lambda x, y: boxed(*x) and x[2] < x[0] and x[3] <= Fraction(1, 2) and (y[0] <= 0 or x[1] <= x[3])),
    (BOX + "(assert (and (<= (- U[0,0] X[0,0]) 0.5) (>= (- U[0,0] X[0,0]) -0.5) (<= (* 2 U[0,1]) (+ (* 2 X[0,1]) 1)) (>= U[0,1] X[0,1])))"
     "(assert (and (>= U[0,0] 0.5) (>= Y[0,0] (+ X[0,0] U[0,0]))))", 4, 2,
     lambda x, y: boxed(*x[:2]) and abs(x[2] - x[0]) <= Fraction(1, 2) and 0 <= x[3] - x[1] <= Fraction(1, 2) and x[2] >= Fraction(1, 2)
     and y[0] >= x[0] + x[2]),
    (BOX + OTHER + "(assert (and (<= X[0,0] U[0,0]) (<= X[0,0] U[0,1])))(assert (not (> Y[0,0] (* 2 V[0,0]))))", 4, 2,
     lambda x, y: boxed(*x) and x[0] <= x[2] and x[0] <= x[3] and y[0] <= 2 * y[1]),
    (BOX + OTHER + "(assert (and (<= X[0,0] U[0,0]) (<= X[0,1] U[0,0]) (<= Y[0,0] V[0,0])))", 4, 1,
     lambda x, y: boxed(*x) and x[0] <= x[2] and x[1] <= x[2] and y[0] <= y[1]),
    (BOX + OTHER + "(assert (and (== U[0,0] (+ X[0,0] 0.5)) (<= (* 2 X[0,1]) U[0,1]) (<= Y[0,0] V[0,0])))", 4, 1,
     lambda x, y: boxed(*x) and x[2] == x[0] + Fraction(1, 2) and 2 * x[1] <= x[3] and y[0] <= y[1]),
    (BOX + OTHER + "(assert (and (== X[0,0] U[0,0]) (<= X[0,1] U[0,0]) (<= Y[0,0] V[0,0])))", 3, 1,
     lambda x, y: boxed(*x) and x[0] == x[2] and x[1] <= x[2] and y[0] <= y[1]),
    (BOX + OTHER + "(assert (or (== X[0,0] U[0,0]) (<= Y[0,0] 0)))", 4, 0, lambda x, y: boxed(*x) and (x[0] == x[2] or y[0] <= 0)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_set_is_the_written_one(case: int) -> None:
    """Every grid point, also those beside the box and beside the ties; z is made here, from the shape of the ties alone."""
    text, variables, sums, judge = CASES[case]
    made = joint(text)
    assert (made.n_in, int((made.ties.parent >= 0).sum())) == (variables, sums)
    seen = set()
    for x in product(GRID, repeat=4):
        chosen = {int(v): value for v, value in zip(made.ties.variable, x, strict=True)}
        met = all(chosen[int(v)] == value for v, value in zip(made.ties.variable, x, strict=True))
        z = [chosen[k] - (chosen[int(p)] if p >= 0 else 0) for k, p in enumerate(made.ties.parent)]
        for y in ((Fraction(-1), Fraction(0)), (Fraction(1), Fraction(1, 2))):
            wanted = judge(x, y)
            if not met:
                assert not wanted, "inputs that differ are one variable"
                continue
            point, outputs = [float(v) for v in z], [float(v) for v in y]
            assert (made.violated(point, outputs) is not None) == wanted, (x, y)
            inside = any(
                all(lo <= v <= hi for lo, v, hi in zip(d.exact_lo, z, d.exact_hi, strict=True))
                and all(_closed(r.y, r.x, r.const, z, y) for r in d.rows)
                for d in made.disjuncts
            )
            assert inside or not wanted, "what is proved covers what is asked"
            seen.add(wanted)
    assert seen == {False, True}


def _closed(y: object, x: object, const: Fraction, z: Sequence[Fraction], outputs: Sequence[Fraction]) -> bool:
    total = sum((c * outputs[i] for i, c in y), start=Fraction(0)) + sum((c * z[i] for i, c in x), start=Fraction(0))  # type: ignore[attr-defined]
    return bool(total <= const)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(and (<= X[0,0] U[0,0]) (< U[0,0] X[0,0]))", "U[0,0] - X[0,0] is at least 0.0 and at most 0.0, without its ends"),
        ("(and (> X[0,0] U[0,0]) (<= X[0,0] U[0,0]))", "U[0,0] - X[0,0] is at least 0.0 and at most 0.0, without its ends"),
        ("(and (== X[0,1] U[0,1]) (== U[0,1] (+ X[0,1] 0.5)))", "U[0,1] - X[0,1] is at least 0.5 and at most 0.0"),
        ("(and (<= U[0,0] (- X[0,0] 0.5)) (>= U[0,0] X[0,0]))", "U[0,0] - X[0,0] is at least 0.0 and at most -0.5"),
        ("(>= X[0,0] (+ U[0,0] 2.5))", "U[0,0] - X[0,0] is at least -2.0 and at most -2.5"),
        ("(and (== X[0,0] U[0,0]) (>= X[0,1] (+ U[0,0] 1.5)))", "X[0,1] - X[0,0] is at least 1.5 and at most 1.0"),
        ("(and (== X[0,0] U[0,0]) (>= U[0,0] 3))", "inverted box for X[0,0]: 3.0 > 2.0"),
    ],
)
def test_ties_that_no_input_meets_are_refused(text: str, told: str) -> None:
    """Vacuous truth is nobody's question; one step further there are inputs, which the property has."""
    with pytest.raises(UnsupportedProperty) as caught:
        joint(BOX + OTHER + f"(assert {text})(assert (>= Y[0,0] 0))")
    assert told in str(caught.value) and "bounds" in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["(< U[0,0] X[0,0])", "(<= U[0,0] X[0,0])", "(and (<= U[0,0] X[0,0]) (> (+ U[0,0] 1) X[0,0]))", "(>= X[0,0] (+ U[0,0] 2))"]
)
def test_ties_that_some_input_meets_are_not(text: str) -> None:
    made = joint(BOX + OTHER + f"(assert {text})(assert (>= Y[0,0] 0))")
    held = [x for x in product(GRID, repeat=4) if boxed(*x) and _meets(text, x[0], x[2])]
    assert held
    for x in held[:20]:
        z = [x[k] - (x[int(p)] if p >= 0 else 0) for k, p in enumerate(made.ties.parent)]
        assert made.violated([float(v) for v in z], [1.0, 0.0]) is not None


def _meets(text: str, x: Fraction, u: Fraction) -> bool:
    if "2)" in text:
        return x >= u + 2
    return (u < x or (u == x and "<=" in text)) and ("1)" not in text or u + 1 > x)


@pytest.mark.parametrize("more", ["", "(assert (<= X[0] W[0]))"])
def test_a_sum_is_of_an_input_that_is_none(more: str) -> None:
    """X <= U <= W of three networks: W is X + e where that is stated, and never U + e."""
    text = "(vnnlib-version <2.0>)" + "".join(
        f"(declare-network n{x} (declare-input {x} real [1]) (declare-output {y} real [1]))" for x, y in ("XA", "UB", "WC")
    )
    text += "".join(f"(assert (and (>= {x}[0] 0) (<= {x}[0] 2)))" for x in "XUW")
    text += "(assert (and (<= X[0] U[0]) (<= U[0] W[0]) (<= A[0] C[0])))" + more
    made = read_joint(text, {f"n{x}": source(1) for x in "XUW"})
    assert made.ties.parent.tolist() == [-1, 0, 0 if more else -1]
    for x, u, w in product(GRID, repeat=3):
        z = [x, u - x, w - x if more else w]
        wanted = 0 <= x <= u <= w <= 2
        assert (made.violated([float(v) for v in z], [0.0, 0.0, 0.0]) is not None) == wanted
        assert made.violated([float(v) for v in z], [1.0, 0.0, 0.0]) is None


def test_equal_inputs_are_one_variable_with_both_boxes() -> None:
    made = joint(
        BOX + "(assert (and (>= U[0,0] 1) (<= U[0,1] 0)))(assert (== X[0,0] U[0,0]))(assert (== X[0,1] U[0,1]))(assert (<= Y[0,0] 0))"
    )
    (d,) = made.disjuncts
    assert (list(d.exact_lo), list(d.exact_hi)) == ([1, -1], [2, 0])
    assert made.ties.variable.tolist() == [0, 1, 0, 1]


def test_a_difference_has_the_tighter_of_all_bounds() -> None:
    """x1 <= x2 <= x1 + 3 in boxes of [0, 2]: d is in [0, 2]; in x2's box of [0, 1] it is in [0, 1], and x1 + d <= 1 stays."""
    made = joint(BOX + OTHER + "(assert (<= X[0,0] U[0,0]))(assert (<= U[0,0] (+ X[0,0] 3)))(assert (<= U[0,0] 1))(assert (<= Y[0,0] 0))")
    (d,) = made.disjuncts
    at = int(made.ties.variable[2])
    assert (d.exact_lo[at], d.exact_hi[at]) == (0, 1)
    assert [dict(r.x) for r in d.rows if not r.y] == [{0: 1, at: 1}]
    assert made.input.element(at, "2.0") == "(U[0,0] - X[0,0])"


def test_what_boxes_say_already_is_no_tie() -> None:
    made = joint(BOX + OTHER + "(assert (<= X[0,0] (+ U[0,0] 1.5)))(assert (<= Y[0,0] 0))")
    assert made.n_in == 4 and not (made.ties.parent >= 0).any()
    assert sum(not r.y for r in made.disjuncts[0].rows) == 1


def test_inputs_of_one_network_are_not_tied() -> None:
    made = joint(BOX + OTHER + "(assert (== X[0,0] X[0,1]))(assert (<= U[0,0] U[0,1]))(assert (<= Y[0,0] 0))")
    assert made.n_in == 4 and not (made.ties.parent >= 0).any()


def test_the_point_judged_is_what_the_networks_get() -> None:
    """d is no float32 that x1 could be moved by: x2 = fl(x1 + d) stays at 1, and the tie x1 < x2 does not hold there."""
    made = joint(BOX + OTHER + "(assert (< X[0,0] U[0,0]))(assert (== X[0,1] U[0,1]))(assert (<= Y[0,0] 0))")
    z = np.array([1.0, 0.0, 2.0**-30])
    assert made.violated(z, [-1.0, 0.0]) is None
    z[2] = 2.0**-20
    assert made.violated(z, [-1.0, 0.0]) == 0
    told = made.assignment(z, [-1.0, 0.5])
    assert list(told) == ["X", "Y", "U", "V"] and told["U"].tolist() == [[1 + 2.0**-20, 0.0]] and told["V"].tolist() == [[0.5]]


def test_bounds_are_judged_of_rounded_inputs() -> None:
    """fl(z) lies outside although z is inside: 0.1 in float32 is greater than 0.1."""
    made = joint(
        "(assert (and (>= X[0,0] 0) (<= X[0,0] 0.1) (>= X[0,1] 0) (<= X[0,1] 1)))"
        + OTHER
        + "(assert (<= X[0,0] U[0,0]))(assert (<= Y[0,0] 0))"
    )
    z = [np.nextafter(0.1, 0), 0.0, 0.0, 0.0]
    assert float(np.float32(z[0])) > 0.1 > z[0]
    assert made.violated([0.0625, 0.0, 0.5, 0.0], [-1.0, 0.0]) == 0
    assert made.violated(z, [-1.0, 0.0]) is None


@pytest.mark.parametrize(
    "text, like, message",
    [
        (BOX + "(assert (<= Y[0,0] 0))", "", "U[0,0] has no lower bound"),
        (BOX + OTHER + "(assert (<= (* X[0,0] U[0,0]) 0))", "", "not linear"),
        ("", "(equal-to h) ", "name a network that is declared before"),
        ("(declare-network h (equal-to g) (declare-input A real [1]) (declare-output B real [1]))", "(equal-to f) ", "is like no other"),
        ("(declare-network h (equal-to f) (declare-input A float32 [2]) (declare-output B float32 [1,1]))", "", "A is declared otherwise"),
        ("(declare-network h (equal-to f) (declare-input A Real [1,2]) (declare-output B float32 [1,1]))", "", "A is declared otherwise"),
        ("(declare-network f (declare-input A float32 [1,2]) (declare-output B float32 [1,1]))", "", "two networks are called f"),
        ("(declare-network h (declare-input X float32 [1,2]) (declare-output B float32 [1,1]))", "", "two tensors of one name"),
        (BOX + OTHER + "(assert (<= W[0] 0))", "", "neither a number nor a declared variable"),
    ],
)  # fmt: skip
def test_refusals_name_the_trouble(text: str, like: str, message: str) -> None:
    with pytest.raises(UnsupportedProperty) as caught:
        joint(text, like)
    assert message in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize(
    "given, code, message",
    [
        ({"f": source()}, 2, "needs the networks f, g, given are f"),
        ({"f": source(), "h": source()}, 2, "needs the networks f, g, given are f, h"),
        ({"f": source(), "g": source(3)}, 3, "declares U of shape [1, 2], that of network g is [1, 3]"),
        ({"f": source(outputs=2), "g": source()}, 3, "declares Y of shape [1, 1], that of network f is [1, 2]"),
        ({"f": source(), "g": source(dtype="float64")}, 3, "U is declared float32, the network computes in float64"),
    ],
)
def test_networks_that_do_not_fit(given: dict[str, Source], code: int, message: str) -> None:
    with pytest.raises(PolytritonError) as caught:
        read_joint(HEAD.format(like="") + BOX + OTHER + "(assert (<= Y[0,0] 0))", given)
    assert (caught.value.exit_code, message in str(caught.value)) == (code, True), str(caught.value)


def test_an_equal_network_is_not_given() -> None:
    with pytest.raises(PolytritonError, match="needs the networks f, given are f, g"):
        read_joint(HEAD.format(like="(equal-to f) ") + BOX + OTHER + "(assert (<= Y[0,0] 0))", {"f": source(), "g": source()})


def test_types_differ() -> None:
    text = HEAD.format(like="").replace("float32", "real") + BOX + OTHER + "(assert (<= Y[0,0] 0))"
    with pytest.raises(UnsupportedProperty, match="take float32 and float64"):
        read_joint(text, {"f": source(), "g": source(dtype="float64")})


def test_one_network_is_not_enough() -> None:
    with pytest.raises(UnsupportedProperty, match="is about 2 networks") as caught:
        read_vnnlib(HEAD.format(like="(equal-to f) ") + BOX + OTHER)
    assert "--network f=NET.onnx PROP" in caught.value.remedy and "g=" not in caught.value.remedy


def test_a_strict_bound_of_a_sum_stays() -> None:
    """U < 2, and X + d is at most 2 by the bounds of X and d: at U = 2 nothing is asked."""
    text = "(assert (and (>= X[0,0] 0) (<= X[0,0] 1) (>= X[0,1] 0) (<= X[0,1] 1) (>= U[0,0] 0) (< U[0,0] 2) (>= U[0,1] -1) (<= U[0,1] 1)))"
    made = joint(text + "(assert (and (<= X[0,0] U[0,0]) (<= U[0,0] (+ X[0,0] 1)) (<= Y[0,0] 0)))")
    assert made.ties.parent.tolist() == [-1, -1, 0, -1]
    for d, wanted in ((1.0, None), (0.5, 0)):
        assert made.violated([1.0, 0.0, d, 0.0], [-1.0, 0.0]) == wanted
