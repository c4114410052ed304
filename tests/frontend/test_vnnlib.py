"""VNN-LIB reading: the disjuncts mean what the formula means, boxes enclose the decimals, published files read as recorded."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.query import Property, Row
from polytriton.frontend.vnnlib import read_vnnlib, write_counterexample
from polytriton.runtime.attack import inner_box
from tests.frontend.vnnlib_texts import BOX, HEAD2, legacy

# Meaning

NUMBERS = ("0", "1", "-1", "0.5", "-1.5", "2.0", "1e0", "-25e-2", "(/ 1 2)", "(- 0.5)", "(/ -3 2)", "0.1", "1E+0", "+.5", "1.")
VARIABLES = ("X_0", "X_1", "Y_0", "Y_1")
CHECKS = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}

terms = st.recursive(
    st.sampled_from(VARIABLES) | st.sampled_from(NUMBERS),
    lambda sub: (
        st.tuples(st.sampled_from(["+", "-"]), sub, sub)
        | st.tuples(st.just("-"), sub)
        | st.tuples(st.just("*"), st.sampled_from(NUMBERS), sub)
        | st.tuples(st.just("*"), sub, st.sampled_from(NUMBERS))
        | st.tuples(st.just("/"), sub, st.sampled_from(["2", "-4.0"]))
    ),
    max_leaves=4,
)
simple = st.tuples(st.sampled_from(sorted(CHECKS)), st.sampled_from(VARIABLES), st.sampled_from(NUMBERS + VARIABLES))
formulas = st.recursive(
    simple | st.tuples(st.sampled_from(sorted(CHECKS)), terms, terms) | st.sampled_from(["true", "false"]),
    lambda sub: (
        st.tuples(st.just("not"), sub)
        | st.lists(sub, min_size=1, max_size=3).flatmap(lambda k: st.tuples(st.sampled_from(["and", "or"]), *map(st.just, k)))
    ),
    max_leaves=7,
)
grid = st.integers(-8, 8).map(lambda k: k / 4) | st.sampled_from([0.1, 0.30000000000000004, -0.1])
points = st.lists(st.tuples(grid, grid, grid, grid), min_size=20, max_size=40)


def render(tree) -> str:
    return tree if isinstance(tree, str) else "(" + " ".join(render(t) for t in tree) + ")"


def value(tree, env: dict[str, Fraction]) -> Fraction:
    if isinstance(tree, str):
        if tree in env:
            return env[tree]
        if tree.startswith("("):
            parts = tree[1:-1].split()
            return -Fraction(parts[1]) if parts[0] == "-" else Fraction(parts[1]) / Fraction(parts[2])
        return Fraction(tree)
    op, *rest = tree
    args = [value(t, env) for t in rest]
    if len(args) == 1:
        return -args[0] if op == "-" else args[0]
    a, b = args
    return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if op == "/" else None}[op]


def truth(tree, env: dict[str, Fraction]) -> bool:
    if isinstance(tree, str):
        return tree == "true"
    op, *rest = tree
    if op in CHECKS:
        return CHECKS[op](value(rest[0], env), value(rest[1], env))
    parts = [truth(t, env) for t in rest]
    return not parts[0] if op == "not" else all(parts) if op == "and" else any(parts)


def agrees(prop: Property, trees, samples) -> None:
    for x0, x1, y0, y1 in samples:
        env = dict(zip(VARIABLES, map(Fraction, (x0, x1, y0, y1)), strict=True))
        expected = abs(env["X_0"]) <= 2 and abs(env["X_1"]) <= 2 and all(truth(t, env) for t in trees)
        hit = prop.violated([x0, x1], [y0, y1])
        assert (hit is not None) == expected, (render(trees[0]), env)
        if hit is not None:
            assert prop.disjuncts[hit].contains(np.array([x0, x1])), "violated and contains must agree"


def means(trees, samples) -> None:
    text = legacy(*map(render, trees))
    try:
        prop = read_vnnlib(text)
    except UnsupportedProperty as why:
        assert "inverted box" in why.message or "is not linear" in why.message  # noqa: PT017
        return
    agrees(prop, trees, samples)


lists = given(st.lists(formulas, min_size=1, max_size=3), points)
test_disjuncts_mean_the_formula = settings(max_examples=30, deadline=None)(lists(means))
test_disjuncts_mean_many_formulas = pytest.mark.slow(settings(max_examples=600, deadline=None)(lists(means)))


@settings(max_examples=40, deadline=None)
@given(st.lists(formulas, min_size=1, max_size=2), points)
def test_version_2_means_the_same(trees, samples) -> None:
    body = BOX + "".join(f"(assert {render(t)})" for t in trees)
    for i in (0, 1):
        body = body.replace(f"X_{i}", f"X[0,{i}]" if i else "X [0, 0]").replace(f"Y_{i}", f"Y[{i}]")
    try:
        prop = read_vnnlib(HEAD2 + body, n_in=2, n_out=2)
    except UnsupportedProperty as why:
        assert "inverted box" in why.message or "is not linear" in why.message  # noqa: PT017
        return
    assert prop.version == "2.0"
    agrees(prop, trees, samples)


def test_bounds_inside_disjunctions_multiply_with_outputs() -> None:
    boxes = "(or (and (<= X_0 0) (>= X_1 1)) (and (>= X_0 1) (<= X_1 0.5)))"
    prop = read_vnnlib(legacy(boxes, "(or (<= Y_0 Y_1) (>= (+ Y_0 (* -2 X_0)) 3))"))
    assert len(prop.disjuncts) == 4
    assert [d.hi.tolist() for d in prop.disjuncts] == [[0, 2], [0, 2], [2, 0.5], [2, 0.5]]
    assert prop.disjuncts[0].lo is prop.disjuncts[1].lo, "equal boxes are one object"
    assert prop.disjuncts[0].exact_hi is prop.disjuncts[1].exact_hi
    assert prop.mixed
    assert prop.disjuncts[1].rows == (Row(((0, Fraction(-1)),), ((0, Fraction(2)),), Fraction(-3)),)


def test_impossible_disjuncts_leave_and_none_may_remain() -> None:
    prop = read_vnnlib(legacy("(or (and (<= X_0 0) (>= X_0 1)) (>= Y_0 1) (and (< X_0 1) (> X_0 1)))"))
    assert len(prop.disjuncts) == 1
    assert read_vnnlib(legacy("(or (>= X_0 3) (<= X_1 -3))")).disjuncts == ()
    assert read_vnnlib(legacy("(>= Y_0 (+ Y_0 1))")).disjuncts == ()
    assert read_vnnlib(legacy("(<= Y_0 (+ Y_0 1))")).disjuncts[0].rows == ()


def test_strict_bounds_are_open() -> None:
    disjunct = read_vnnlib(legacy("(< X_0 1)", "(>= Y_0 0)")).disjuncts[0]
    assert disjunct.hi[0] == 1
    assert not disjunct.contains([1.0, 0.0])
    assert disjunct.contains([float(np.nextafter(1, 0)), 0.0])
    assert not disjunct.contains([float("nan"), 0.0])
    assert not disjunct.contains([0.0])
    for pair in (("(<= X_0 1)", "(< X_0 1)"), ("(< X_0 1)", "(<= X_0 1)")):
        assert not read_vnnlib(legacy(*pair)).disjuncts[0].contains([1.0, 0.0]), "the strict one of two equal bounds counts"
    closed = read_vnnlib(legacy("(< X_0 1)", "(or (<= X_0 0.5) (>= Y_0 0))")).disjuncts
    assert closed[0].contains([0.5, 0.0]), "a tighter closed bound replaces an open one"
    assert not closed[1].contains([1.0, 0.0])


def test_input_constraints_that_are_no_bounds_stay_rows() -> None:
    disjunct = read_vnnlib(legacy("(<= (+ X_0 X_1) 1)")).disjuncts[0]
    assert disjunct.rows == (Row((), ((0, Fraction(1)), (1, Fraction(1))), Fraction(1)),)


# Decimals


def test_decimals_are_kept_exactly() -> None:
    disjunct = read_vnnlib(legacy("(<= X_0 0.1)", "(>= X_0 (/ 1 30))", "(<= Y_0 0)")).disjuncts[0]
    assert disjunct.exact_hi[0] == Fraction(1, 10)
    assert disjunct.exact_lo[0] == Fraction(1, 30)
    assert Fraction(disjunct.hi[0]) > Fraction(1, 10), "0.1 is no float64, its upper neighbour is the bound"
    assert not disjunct.contains([0.1, 0.0]), "the float 0.1 is larger than the decimal"
    assert disjunct.contains([float(np.nextafter(0.1, 0)), 0.0])


def test_inner_box_is_the_largest_inside() -> None:
    disjunct = read_vnnlib(legacy("(<= X_0 0.1)", "(> X_0 0)", "(< X_1 0.3)", "(<= Y_0 0)")).disjuncts[0]
    box = inner_box(disjunct, np.dtype(np.float64))
    assert box is not None
    lo, hi = box
    assert disjunct.contains(lo)
    assert disjunct.contains(hi)
    for i in (0, 1):
        for corner, way in ((lo, -np.inf), (hi, np.inf)):
            out = corner.copy()
            out[i] = np.nextafter(out[i], way)
            assert not disjunct.contains(out)
    fixed = read_vnnlib(legacy("(= X_0 0.1)")).disjuncts[0]
    assert inner_box(fixed, np.dtype(np.float64)) is None
    assert not fixed.contains([0.1, 0.0])
    assert fixed.contains([0.1, 0.0], rounded=True)
    assert not fixed.contains([0.10000000000000002, 0.0], rounded=True)


# Names and counterexamples


def test_counterexamples_are_written_in_both_forms() -> None:
    one = read_vnnlib(legacy("(<= Y_0 0)"))
    assert write_counterexample(one, [0.1, -2.0], np.array([0.0, 1e-7])) == "((X_0 0.1)\n(X_1 -2.0)\n(Y_0 0.0)\n(Y_1 1e-07))\n"
    two = read_vnnlib(HEAD2 + "(assert (<= 0 X[0,0] 1))(assert (<= 0 X[0,1] 1))")
    assert write_counterexample(two, [0.1, 1.0], [0.0, 2.5]) == "X float32 [1,2]\n0.1\n1.0\nY float32 [2]\n0.0\n2.5\n"
    with pytest.raises(UsageError):
        write_counterexample(one, [0.1], [0.0, 0.0])
    with pytest.raises(UsageError):
        write_counterexample(one, [0.1, float("nan")], [0.0, 0.0])


def test_scalar_outputs_and_names() -> None:
    text = "(declare-network f (declare-input in_1 Real [2,1,3]) (declare-output out Real []))"
    text += "".join(f"(assert (<= 0.0 in_1[{a},0,{b}] 1.0))" for a in range(2) for b in range(3)) + "(assert (>= out in_1[1,0,2]))"
    prop = read_vnnlib(text)
    assert (prop.n_in, prop.n_out) == (6, 1)
    assert prop.disjuncts[0].rows[0].x == ((5, Fraction(1)),)
    assert prop.input.element(5, prop.version) == "in_1[1,0,2]"
    assert prop.output.element(0, prop.version) == "out"


# Published properties


def table(data: Path) -> list[dict[str, str]]:
    with open(data / "instances.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.slow)])
def test_published_properties_read_as_recorded(every: int, data: Path) -> None:
    seen: dict[str, Property] = {}
    for line in table(data)[::every]:
        if line["spec"] not in seen:
            seen[line["spec"]] = read_vnnlib(data / line["spec"], n_in=int(line["n_in"]), n_out=int(line["n_out"]))
        prop = seen[line["spec"]]
        assert len(prop.disjuncts) == int(line["n_disjuncts"]), line["id"]
        assert sum(bool(r.x and r.y) for d in prop.disjuncts for r in d.rows) == int(line["mixed_xy"]), line["id"]
        assert max(int((d.lo == d.hi).sum()) for d in prop.disjuncts) <= int(line["fixed_inputs"]), (
            "rounding may widen a point, not close a box"
        )
        if line["verdict"] == "sat":
            x = np.load(data / line["counterexample"], allow_pickle=False)
            assert any(d.contains(x, rounded=True) for d in prop.disjuncts), line["id"]


def test_published_properties_survive_translation(data: Path) -> None:
    """The same file in VNN-LIB 2.0 syntax gives the same boxes and rows."""
    small = {line["spec"] for line in table(data) if int(line["n_in"]) <= 20}
    assert small
    for spec in sorted(small):
        text = (data / spec).read_text()
        old = read_vnnlib(text)
        body = "\n".join(k for k in text.splitlines() if "declare-const" not in k)
        for letter in "XY":
            body = body.replace(f"{letter}_", f"{letter}@")
            for i in reversed(range(20)):
                body = body.replace(f"{letter}@{i}", f"{letter}[0,{i}]")
        new = read_vnnlib(f"(declare-network f (declare-input X Real [1,{old.n_in}]) (declare-output Y Real [1,{old.n_out}]))" + body)
        assert [(d.exact_lo, d.exact_hi, d.rows) for d in new.disjuncts] == [(d.exact_lo, d.exact_hi, d.rows) for d in old.disjuncts]
