"""VNN-LIB reading: the disjuncts mean what the formula means, boxes enclose the decimals, bad files are refused in words."""

from __future__ import annotations

import csv
import gzip
import math
import os
import time
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import PolytritonError, UnsupportedProperty, UsageError
from polytriton.frontend.instances import read_instances
from polytriton.frontend.query import Property, Row, classification, matrix, outward
from polytriton.frontend.vnnlib import read_vnnlib, write_counterexample

DATA = Path(os.environ.get("POLYTRITON_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
HEAD = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1"))
BOX = "(assert (and (<= -2 X_0 2) (<= X_1 2) (>= X_1 -2)))\n"
HEAD2 = "(vnnlib-version <2.0>)\n(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [2]))\n"


def need_data() -> Path:
    if not (DATA / "instances.csv").is_file():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no verification data in {DATA}; set POLYTRITON_DATA")
    return DATA


def legacy(*asserts: str) -> str:
    return HEAD + BOX + "".join(f"(assert {a})\n" for a in asserts)


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


@settings(max_examples=300, deadline=None)
@given(st.lists(formulas, min_size=1, max_size=3), points)
def test_disjuncts_mean_the_formula(trees, samples) -> None:
    text = legacy(*map(render, trees))
    try:
        prop = read_vnnlib(text)
    except UnsupportedProperty as why:
        assert "inverted box" in why.message or "is not linear" in why.message  # noqa: PT017
        return
    agrees(prop, trees, samples)


@settings(max_examples=100, deadline=None)
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


# Rounding


@settings(max_examples=400, deadline=None)
@given(
    st.fractions()
    | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
    | st.builds(lambda m, e: m * Fraction(10) ** e, st.integers(), st.integers(-400, 400))
)
def test_outward_encloses_tightly(q: Fraction) -> None:
    lo, hi = outward(q)
    assert lo == -np.inf or Fraction(lo) <= q
    assert hi == np.inf or Fraction(hi) >= q
    assert hi == lo or hi == math.nextafter(lo, math.inf)
    assert (lo == hi) == (np.isfinite(lo) and np.isfinite(hi) and Fraction(lo) == q)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.fractions(-10, 10), st.fractions(-10, 10), st.fractions()), min_size=1, max_size=4))
def test_matrix_accounts_for_every_rounding(numbers) -> None:
    rows = [Row(((1, a),) if a else (), ((0, b),) if b else (), c) for a, b, c in numbers]
    m = matrix(rows, n_out=2, n_in=3)
    assert m.C.shape == m.C_err.shape == (len(rows), 2)
    assert m.D.shape == m.D_err.shape == (len(rows), 3)
    for k, (a, b, c) in enumerate(numbers):
        assert abs(a - Fraction(m.C[k, 1])) <= Fraction(m.C_err[k, 1])
        assert abs(b - Fraction(m.D[k, 0])) <= Fraction(m.D_err[k, 0])
        assert Fraction(m.const_up[k]) >= c
        assert (m.C_err[k, 1] == 0) == (Fraction(m.C[k, 1]) == a)
    assert not m.C[:, 0].any()
    assert not m.D[:, 1:].any()


def test_decimals_are_kept_exactly() -> None:
    disjunct = read_vnnlib(legacy("(<= X_0 0.1)", "(>= X_0 (/ 1 30))", "(<= Y_0 0)")).disjuncts[0]
    assert disjunct.exact_hi[0] == Fraction(1, 10)
    assert disjunct.exact_lo[0] == Fraction(1, 30)
    assert Fraction(disjunct.hi[0]) > Fraction(1, 10), "0.1 is no float64, its upper neighbour is the bound"
    assert not disjunct.contains([0.1, 0.0]), "the float 0.1 is larger than the decimal"
    assert disjunct.contains([float(np.nextafter(0.1, 0)), 0.0])


def test_inner_box_is_the_largest_inside() -> None:
    disjunct = read_vnnlib(legacy("(<= X_0 0.1)", "(> X_0 0)", "(< X_1 0.3)", "(<= Y_0 0)")).disjuncts[0]
    lo, hi = disjunct.inner()
    assert disjunct.contains(lo)
    assert disjunct.contains(hi)
    for i in (0, 1):
        for corner, way in ((lo, -np.inf), (hi, np.inf)):
            out = corner.copy()
            out[i] = np.nextafter(out[i], way)
            assert not disjunct.contains(out)
    fixed = read_vnnlib(legacy("(= X_0 0.1)")).disjuncts[0]
    assert fixed.inner()[0][0] > fixed.inner()[1][0]
    assert not fixed.contains([0.1, 0.0])
    assert fixed.contains([0.1, 0.0], rounded=True)
    assert not fixed.contains([0.10000000000000002, 0.0], rounded=True)


# Refusals


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "X_0 is not declared"),
        (HEAD, "X_0 has no lower bound"),
        (HEAD + "(assert (<= -1 X_0 1))", "X_1 has no lower bound"),
        (HEAD + "(assert (<= -1 X_0 1))(assert (<= 0 X_1))", "X_1 has no upper bound"),
        (legacy("(>= X_0 0.5)", "(<= X_0 0.2)"), "inverted box for X_0: 0.5 > 0.2"),
        (legacy("(not (or (< X_0 1) (>= X_0 1)))"), "inverted box for X_0"),
        (legacy("(<= (* X_0 Y_0) 1)"), "not linear"),
        (legacy("(<= (* Y_1 Y_1) 1)"), "not linear"),
        (legacy("(<= (/ 1 Y_1) 1)"), "not linear"),
        (legacy("(<= (/ Y_1 0) 1)"), "division by zero"),
        (legacy("(<= X_0 1e999999999)"), "out of range"),
        (legacy("(<= X_0 1e99999999999999999999)"), "out of range"),
        (legacy("(<= X_0 -1e400)"), "inverted box"),
        (HEAD + "(assert (<= 0 X_0 1e400))(assert (<= 0 X_1 1))", "beyond float64"),
        (legacy("(<= Y_0 1e400)"), "beyond float64"),
        (legacy("(<= X_0 nan)"), "`nan` is no bound"),
        (legacy("(<= X_0 -inf)"), "is no bound"),
        (legacy("(<= X_7 1)"), "X_7"),
        (legacy("(<= X_0 1)") + ")", "closing bracket too many"),
        (legacy("(<= X_0 1)") + "(assert", "ends inside a bracket"),
        (legacy("(=> (<= X_0 1) (<= Y_0 1))"), "unknown operator `=>`"),
        (legacy("X_0"), "a comparison was expected"),
        (legacy("(<= (and (<= X_0 1)) 1)"), "a number or a variable was expected"),
        (legacy("(<= X_0 " + "9" * 2000 + ")"), "2000 digits"),
        (legacy("(<= (*" + " 1e400" * 100 + " X_0) 1)"), "grows beyond any use"),
        (legacy("(and " * 5000 + "(<= X_0 1)" + ")" * 5000), "nest deeper"),
        (legacy(*["(or (<= Y_0 0) (>= Y_1 1))"] * 14), "16,384 disjuncts"),
        (legacy(*["(or (<= Y_0 0) (>= Y_1 1))"] * 5000), "over 10^12 disjuncts"),
        ("(declare-const X_0 Int)", "declare-const is not understood"),
        ("(declare-const Z_0 Real)", "neither an input"),
        ("(declare-const X_0 Real)(declare-const X_0 Real)", "declared twice"),
        ("(declare-const X_0 Real)(declare-const X_2 Real)(declare-const Y_0 Real)", "X_1 is not declared"),
        ("(vnnlib-version <3.0>)", "version"),
        (HEAD2 + "(declare-network g (declare-input A float32 [2]) (declare-output B float32 [2]))", "several networks"),
        (HEAD2 + "(assert (<= X[0,2] 1))", "outside the shape [1, 2]"),
        (HEAD2 + "(assert (<= X[0] 1))", "X has 2 axes"),
        (HEAD2 + "(assert (<= X 1))", "X has 2 axes"),
        (HEAD2 + "(declare-const X_0 Real)", "is not understood"),
        (HEAD2.replace("float32", "int8"), "element type `int8`"),
        (HEAD2.replace("[2]", "[99999999,99999999]"), "elements are supported"),
        (HEAD2.replace("(declare-output", "(declare-input Z Real []) (declare-output"), "network of 2 inputs"),
        (HEAD2.replace("(declare-output", '(declare-hidden Z Real [] "n") (declare-output') + "(assert (<= Z 1))", "hidden node Z"),
    ],
)
def test_refusals_name_the_trouble(text: str, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UnsupportedProperty) as caught:
        read_vnnlib(text)
    assert message in str(caught.value)
    assert caught.value.remedy
    assert time.perf_counter() - start < 5


def test_errors_name_the_line() -> None:
    with pytest.raises(UnsupportedProperty, match=r"property:7: "):
        read_vnnlib(HEAD + "; a comment ) (\n\n(assert (<= X_0 oops))")


def test_property_of_another_network() -> None:
    with pytest.raises(UnsupportedProperty, match="it declares 2 inputs, the network has 5"):
        read_vnnlib(legacy("(<= Y_0 0)"), n_in=5)
    with pytest.raises(UnsupportedProperty, match="it declares 2 outputs, the network has 10"):
        read_vnnlib(legacy("(<= Y_0 0)"), n_in=2, n_out=10)


def test_deep_nesting_within_the_limit() -> None:
    deep = "(not " * 900 + "(<= Y_0 1)" + ")" * 900
    assert len(read_vnnlib(legacy(deep)).disjuncts) == 1
    sums = "(+ X_0 " * 900 + "1" + ")" * 900
    assert read_vnnlib(legacy(f"(<= Y_0 {sums})")).disjuncts[0].rows[0].x == ((0, Fraction(-900)),)


WHOLE = legacy("(or (and (<= X_0 0.25) (>= Y_0 1e-3)) (not (= (* 2 Y_1) (- X_1 3))))") + "; end\n"


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_not_crashed(data) -> None:
    text = data.draw(st.sampled_from([WHOLE, HEAD2 + "(assert (<= -1 X[0,0] 1))(assert (<= -1 X[0,1] 1.5))(assert (!= Y[0] Y[1]))"]))
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        action = data.draw(st.sampled_from(["set", "cut", "drop", "insert", "copy"]))
        if action == "set" and raw:
            raw[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del raw[at:]
        elif action == "drop":
            del raw[at : at + data.draw(st.integers(1, 8))]
        elif action == "insert":
            raw[at:at] = data.draw(
                st.sampled_from([b"(", b")", b"[", b"]", b'"', b";", b" ", b"X_0", b"[0]", b"1e9", b"()", b"-", "٣".encode()])
            )
        else:
            raw[at:at] = raw[: data.draw(st.integers(0, 60))]
    try:
        prop = read_vnnlib(";\n" + raw.decode(errors="replace"))
    except PolytritonError:
        return
    assert all(np.isfinite(d.lo).all() and (d.lo <= d.hi).all() for d in prop.disjuncts)


# Files


def test_files_plain_and_packed(tmp_path: Path) -> None:
    text = legacy("(<= Y_0 0)")
    (tmp_path / "p.vnnlib").write_text(text)
    with gzip.open(tmp_path / "q.vnnlib.gz", "wt") as file:
        file.write(text)
    assert read_vnnlib(tmp_path / "p.vnnlib").name == "p"
    assert read_vnnlib(str(tmp_path / "q.vnnlib.gz")).name == "q"
    (tmp_path / "bad.vnnlib.gz").write_bytes(b"no gzip")
    (tmp_path / "cut.vnnlib.gz").write_bytes((tmp_path / "q.vnnlib.gz").read_bytes()[:-12])
    for name in ("bad.vnnlib.gz", "cut.vnnlib.gz", "none.vnnlib", "."):
        with pytest.raises(UsageError):
            read_vnnlib(tmp_path / name)


def test_large_files_read_fast() -> None:
    n = 5000
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(n)) + HEAD.split("\n", 2)[2]
    text += "".join(f"(assert (<= X_{i} 0.{i + 1}))\n(assert (>= X_{i} 0.0{i}))\n" for i in range(n))
    text += "(assert (or " + " ".join(f"(and (<= Y_0 {i}.5) (>= Y_1 X_{i}))" for i in range(20)) + "))"
    start = time.perf_counter()
    prop = read_vnnlib(text)
    assert time.perf_counter() - start < 3, "about 0.2 s on an idle core"
    assert len(prop.disjuncts) == 20
    assert len({id(d.lo) for d in prop.disjuncts}) == len({id(d.exact_lo) for d in prop.disjuncts}) == 1


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


def test_classification() -> None:
    rows = classification(1, 3)
    assert rows == (
        Row(((0, Fraction(-1)), (1, Fraction(1))), (), Fraction(0)),
        Row(((1, Fraction(1)), (2, Fraction(-1))), (), Fraction(0)),
    )
    prop = Property.from_box(np.zeros(2), np.ones(2), 1, 3, targets=[2])
    assert prop.violated([0.5, 0.5], [9, 1, 1]) == 0
    assert prop.violated([0.5, 0.5], [9, 1, 0.5]) is None
    assert prop.violated([0.5, 1.5], [9, 1, 1]) is None
    assert prop.violated([0.5, 0.5], [9, 1, np.nan]) is None
    for bad in (lambda: classification(3, 3), lambda: classification(1, 3, [1]), lambda: Property.from_box(np.ones(1), np.zeros(1), 0, 2)):
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(UsageError):
        prop.violated([0.5], [9, 1, 1])


# Published properties


@cache
def table() -> list[dict[str, str]]:
    with open(need_data() / "instances.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_published_properties_read_as_recorded() -> None:
    seen: dict[str, Property] = {}
    for line in table():
        if line["spec"] not in seen:
            seen[line["spec"]] = read_vnnlib(DATA / line["spec"], n_in=int(line["n_in"]), n_out=int(line["n_out"]))
        prop = seen[line["spec"]]
        assert len(prop.disjuncts) == int(line["n_disjuncts"]), line["id"]
        assert sum(bool(r.x and r.y) for d in prop.disjuncts for r in d.rows) == int(line["mixed_xy"]), line["id"]
        assert max(int((d.lo == d.hi).sum()) for d in prop.disjuncts) <= int(line["fixed_inputs"]), (
            "rounding may widen a point, not close a box"
        )
        if line["verdict"] == "sat":
            x = np.load(DATA / line["counterexample"], allow_pickle=False)
            assert any(d.contains(x, rounded=True) for d in prop.disjuncts), line["id"]


def test_published_properties_survive_translation() -> None:
    """The same file in VNN-LIB 2.0 syntax gives the same boxes and rows."""
    small = {line["spec"] for line in table() if int(line["n_in"]) <= 20}
    assert small
    for spec in sorted(small):
        text = (DATA / spec).read_text()
        old = read_vnnlib(text)
        body = "\n".join(k for k in text.splitlines() if "declare-const" not in k)
        for letter in "XY":
            body = body.replace(f"{letter}_", f"{letter}@")
            for i in reversed(range(20)):
                body = body.replace(f"{letter}@{i}", f"{letter}[0,{i}]")
        new = read_vnnlib(f"(declare-network f (declare-input X Real [1,{old.n_in}]) (declare-output Y Real [1,{old.n_out}]))" + body)
        assert [(d.exact_lo, d.exact_hi, d.rows) for d in new.disjuncts] == [(d.exact_lo, d.exact_hi, d.rows) for d in old.disjuncts]


# Instance lists


def test_instance_lists(tmp_path: Path) -> None:
    for name in ("a.onnx", "p.vnnlib", "q.vnnlib.gz"):
        (tmp_path / name).write_text("")
    listing = tmp_path / "instances.csv"
    listing.write_text("a.onnx,p.vnnlib,116\n./a.onnx, q.vnnlib ,\n\n")
    first, second = read_instances(listing)
    assert (first.onnx.name, first.vnnlib.name, first.timeout, first.row) == ("a.onnx", "p.vnnlib", 116.0, 1)
    assert (second.vnnlib.name, second.timeout, second.row) == ("q.vnnlib.gz", None, 2)
    listing.write_text("id,spec,net\n1,p.vnnlib,a.onnx\n")
    assert read_instances(listing)[0].timeout is None
    for text, message in [
        ("", "lists no instances"),
        ("a.onnx,none.vnnlib,1\n", "none.vnnlib (line 1)"),
        ("a.onnx\n", "1 columns"),
        ("a.onnx,p.vnnlib,soon\n", "no timeout"),
        ("a.onnx,p.vnnlib,-1\n", "no timeout"),
        ("net,spec\n", "lists no instances"),
    ]:
        listing.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_instances(listing)
        assert message in caught.value.message
    with pytest.raises(UsageError):
        read_instances(tmp_path / "no.csv")


def test_published_instance_list() -> None:
    found = read_instances(need_data() / "instances.csv")
    assert len(found) == len(table())
