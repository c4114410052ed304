"""Written as VNN-LIB text and read back, a property is the same: boxes, rows, order, exactly. Other readers find the same in the text."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton import Property, checker_files, read_vnnlib, variables
from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.query import Disjunct, Row, Tensor, float_bounds
from tests.frontend import drawn_properties as drawn
from tests.frontend.vnnlib_texts import HEAD2, legacy

X, Y = variables(2, 2)


def stated(prop: Property) -> tuple[object, ...]:
    """Everything a property says but its name."""
    pieces = [(tuple(d.exact_lo), tuple(d.exact_hi), d.rows, d.open_lo, d.open_hi, d.lo.tolist(), d.hi.tolist()) for d in prop.disjuncts]
    return pieces, prop.n_in, prop.n_out, prop.version, prop.network


def check_texts(seed: int, cases: int) -> None:
    rng = Random(seed)
    x, y = variables(drawn.INPUTS, drawn.OUTPUTS)
    for _ in range(cases):
        case = drawn.draw(rng)
        lo, hi = (np.array([str(pair[k][1]) for pair in case.box]) for k in (0, 1))
        prop = Property((lo, hi), [drawn.built(t, x, y) for t in case.unsafe], safe=[drawn.built(t, x, y) for t in case.safe])
        text = prop.vnnlib()
        again = read_vnnlib(text, n_in=4, n_out=3)
        assert stated(again) == stated(prop) and again.vnnlib() == text, case
        for xs, ys in case.points:
            point = {f"X_{k}": Fraction(v) for k, v in enumerate(xs)} | {f"Y_{k}": Fraction(v) for k, v in enumerate(ys)}
            expected = case.violated(xs, ys)
            assert drawn.holds(text, point) == expected == (again.violated(xs, ys) is not None), (case, xs, ys)


def test_texts_are_read_back() -> None:
    """By the package's reader as the same property, and by a reader of this test as the same set."""
    check_texts(3, 150)


@pytest.mark.slow
def test_many_texts_are_read_back() -> None:
    check_texts(4, 400)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-8, 8), st.integers(-3, 3), st.integers(-8, 8)), min_size=1, max_size=4))
def test_the_checker_reads_the_same(rows: list[tuple[int, int, int, int]]) -> None:
    """The certificates' reader, which shares no code with this one, finds the boxes and rows that were written."""
    unsafe = [(a * Y[0] - 3 * Y[1] <= Fraction(b, 8)) & (X[0] + c <= Fraction(d, 4)) for a, b, c, d in rows]
    prop = Property((["-1/3", -0.1], ["2/7", 1]), [*unsafe, (Y[0] >= Y[1]) & (X[0] + 2 * Y[1] >= "0.3")])
    found = checker_files.unsafe(prop.vnnlib(), 2, 2)
    made: dict[Any, Any] = {}
    for d in prop.disjuncts:
        atoms = [({**{~i: c for i, c in r.y}, **dict(r.x)}, r.const) for r in d.rows]
        made.setdefault((tuple(d.exact_lo), tuple(d.exact_hi)), []).append(atoms)
    assert found == made


# Numbers


@settings(max_examples=300, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
    | st.fractions(-1000, 1000)
    | st.builds(lambda m, e: m * Fraction(10) ** e, st.integers(-(10**20), 10**20), st.integers(-280, 280))
)
def test_every_number_is_read_back(value: Fraction) -> None:
    row = Row(((0, value or Fraction(1)), (1, Fraction(1, 3))), (), value)
    d = Disjunct(*(np.array(v) for v in zip(*[float_bounds(value)] * 2, strict=True)), (value, value), (value, value), (row,))
    assert stated(read_vnnlib(Property.from_disjuncts("p", 2, 2, (d,)).vnnlib())) == stated(Property.from_disjuncts("p", 2, 2, (d,)))


def test_numbers_are_written_plainly() -> None:
    prop = Property((["-0.5", "1e-30"], [0.1, 3]), [(Y[0] >= 2) & (2 * Y[1] - "1/3" * Y[0] < "1e25") & (Y[0] <= Y[1])])
    assert prop.vnnlib().splitlines()[4:] == [
        "(assert (>= X_0 -0.5))",
        "(assert (<= X_0 0.1000000000000000055511151231257827021181583404541015625))",
        "(assert (>= X_1 1.0e-30))",
        "(assert (<= X_1 3.0))",
        "(assert (>= Y_0 2.0))",
        "(assert (< (+ (* (/ -1.0 3.0) Y_0) (* 2.0 Y_1)) 1.0e25))",
        "(assert (<= Y_0 Y_1))",
    ]
    assert "(<= (* 3.0 X_0) 1.0)" in Property((0, "1/3"), [Y[0] >= 0]).vnnlib()


def test_numbers_that_no_text_holds() -> None:
    for number in (Fraction(1, 10**450), Fraction(2**2000 + 1, 2**2000), Fraction(2**4000 + 1, 2**4000), Fraction(1, 7**6000)):
        with pytest.raises(UnsupportedProperty, match="more than 1000 digits") as caught:
            Property((0, 1), [Y[0] >= number]).vnnlib()
        assert caught.value.remedy


# Shapes of properties


def test_what_all_pieces_share_is_written_once() -> None:
    text = Property((0, 1), [(Y[0] >= 1) & (X[1] <= 0.5), Y[1] > 2]).vnnlib()
    assert text.count("X_0 0.0") == text.count("X_0 1.0") == text.count("X_1 0.0") == 1
    assert text.endswith("(assert (or\n  (and (<= X_1 0.5) (>= Y_0 1.0))\n  (and (<= X_1 1.0) (> Y_1 2.0))))\n")


@pytest.mark.parametrize(
    "prop",
    [
        Property((0, 1), [Y[0] - Y[0] > 0]),
        Property((0, 1), [Y[0] - Y[0] >= 0]),
        Property((0, 1), [Y[0] - Y[0] >= 0, Y[1] >= 1]),
        Property((0, 1), [(X[0] > 0) & (X[1] < 1), Y[1] >= 1]),
        Property((0, 1), [X[0] > 0, X[0] >= 0]),
        Property((0, 1), [X[0] + X[1] >= 1, Y[0] + X[0] < Y[1]]),
        Property((["1/3", 0], ["1/3", 0]), safe=[(Y[0] >= 1) | (X[0] == "1/3")]),
        Property.from_box(np.zeros(2), np.array([0.1, 1]), 1, 3),
        read_vnnlib(legacy("(or (<= Y_0 Y_1) (and (< X_0 0) (>= Y_0 (* 0.1 X_1))))")),
        read_vnnlib(HEAD2 + "(assert (and (<= -2 X[0,0] 2) (<= X[0,1] 2) (> X[0,1] -2)))(assert (or (<= Y[0] Y[1]) (> Y[1] 3)))"),
    ],
    ids=str,
)
def test_shapes_of_properties_are_read_back(prop: Property) -> None:
    again = read_vnnlib(prop.vnnlib())
    assert stated(again)[1:] == (prop.n_in, prop.n_out, prop.version, prop.network)
    assert not prop.disjuncts or stated(again) == stated(prop)
    if prop.version == "2.0":
        assert (again.input, again.output) == (prop.input, prop.output)


@pytest.mark.parametrize(("const", "strict", "holds"), [(0, False, True), (0, True, False), (-1, False, False), (1, True, True)])
def test_a_row_without_variables_is_a_truth(const: int, strict: bool, holds: bool) -> None:
    (d,) = Property((0, 1), [Y[0] >= 0]).disjuncts
    prop = Property.from_disjuncts("p", 2, 2, (Disjunct(d.lo, d.hi, d.exact_lo, d.exact_hi, (Row((), (), Fraction(const), strict),)),))
    assert (read_vnnlib(prop.vnnlib()).violated([0, 0], [0, 0]) == 0) == (prop.violated([0, 0], [0, 0]) == 0) == holds


def test_a_scalar_of_version_2() -> None:
    prop = Property.from_disjuncts("p", 1, 1, (), "2.0", Tensor("a", "real"), Tensor("b", "float32", (1, 1)))
    again = read_vnnlib(prop.vnnlib())
    assert (again.input, again.output, again.disjuncts) == (prop.input, prop.output, ())


# Files


def test_saved_and_read(tmp_path: Path) -> None:
    prop = Property((0, 1), [Y[0] >= Y[1]], name="a\n(assert false)")
    path = prop.save(tmp_path / "p.vnnlib")
    assert path.read_text() == prop.vnnlib() and stated(read_vnnlib(path)) == stated(prop)
    with pytest.raises(UsageError, match="is there already") as caught:
        prop.save(path)
    assert "overwrite" in caught.value.remedy
    other = Property((0, 1), [Y[0] >= 2])
    assert other.save(str(path), overwrite=True).read_text() == other.vnnlib()
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["p.txt", "p", "p.vnnlib.gz"])
def test_only_vnnlib_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="does not sound like"):
        Property((0, 1), [Y[0] >= 0]).save(tmp_path / name)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the property"):
        Property((0, 1), [Y[0] >= 0]).save(tmp_path / "none" / "p.vnnlib")
