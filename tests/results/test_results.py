"""Answers as people meet them in Python: one line each, lists that stay lists, radii in tables."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import Bounds, Counterexample, Interval, Picture, Radius, Result, ResultList
from polytriton.errors import UsageError
from polytriton.results import SearchStats
from polytriton.results.frames import float_below

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUND = Radius(Fraction(433, 10000), Fraction(438, 10000), "unknown", True, 9, 1.53)


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_conv_normal.onnx")


@pytest.fixture(scope="module")
def results(net: polytriton.Verifier) -> ResultList:
    with np.load(EXAMPLES / "digits.npz") as held:
        found: ResultList = net.verify(held["images"][20:24], "0.05", held["labels"][20:24], clip=(0, 1))
    return found


# ---- one line ----


def big(count: int) -> list[object]:
    """One of each kind, that holds many numbers."""
    wide = np.linspace(-1, 2, count * 1000).reshape(count, 10, 100)
    found = Counterexample(np.zeros((1, 3, 64, 64)), np.arange(10.0))
    picture = Picture(np.zeros((3, 64, 64)), Fraction(8, 255))
    search = SearchStats("neurons", 10**6, 12, 40, 0.93, -1.0, 12.5, "time", ((0.1, 1, 1, 1, None, 0.1),) * 300)  # type: ignore[arg-type]
    result = Result("sat", np.linspace(-3, 1, 999), 0.5, found, 3, tuple(range(999)), picture=picture, search=search, radius=FOUND)
    layers = {f"layer{k}": Interval(wide, wide) for k in range(100)}
    bounds = Bounds(wide[:, 0, :], wide[:, 0, :], layers)
    return [result, ResultList([result] * count), bounds, layers["layer0"], found, picture, search, FOUND]


def test_a_repr_is_one_short_line_whatever_is_held() -> None:
    for value in big(500):
        said = repr(value)
        assert said.startswith(f"<{type(value).__name__}") and said.endswith(">")
        assert "\n" not in said and len(said) < 250 and "array" not in said, said


def test_a_repr_says_what_matters(net: polytriton.Verifier, results: ResultList) -> None:
    unsat = next(r for r in results if r.verdict == "unsat")
    said = repr(unsat)
    assert said.startswith(f"<Result: proved (unsat), label {unsat.label}, epsilon 1/20, margin ")
    told = Fraction(said.partition("margin ")[2].partition(",")[0])
    assert 0 < unsat.margin - told < 1e-3, "rounded down: no more is claimed than was proved"
    counts = f"{sum(r.verdict == 'unsat' for r in results)} proved (unsat), {sum(r.verdict == 'sat' for r in results)} violated (sat)"
    assert repr(results).startswith(f"<ResultList of 4: {counts}")
    assert repr(ResultList()) == "<ResultList: empty>"
    b = net.bounds(np.zeros((2, 64)), np.full((2, 64), 0.1))
    assert repr(b) == f"<Bounds: 2 boxes, 10 outputs in [{b.lo.min():.4g}, {b.hi.max():.4g}]; layers conv0, conv2, gemm5>"
    assert repr(b.layers["conv2"]).startswith("<Interval: 2 boxes of 16x4x4 neurons in [")
    assert repr(FOUND) == "<Radius: proved 0.0433, not proved at 0.0438 (unknown); 9 queries, 1.53 s>"
    assert repr(Radius(None, Fraction(0), "sat", True, 1, 0.01)) == "<Radius: nothing proved, not proved at 0 (sat); 1 query, 0.01 s>"
    assert "out of time" in repr(Radius(Fraction(1, 3), None, "timeout", False, 3)) and "0.3333;" not in repr(FOUND)
    assert repr(Radius(Fraction(2, 3))).startswith("<Radius: proved 0.6666;")


def test_odd_numbers_have_a_repr_too() -> None:
    for margin in (np.inf, -np.inf, 5e-324, 1e308, -0.0):
        assert "margin" in repr(Result("unknown", np.array([margin]), 0.0))
    assert repr(Bounds(np.full((1, 2), -np.inf), np.full((1, 2), np.inf))) == "<Bounds: 1 box, 2 outputs in [-inf, inf]>"


# ---- lists ----


def test_several_results_are_a_list(results: ResultList) -> None:
    assert isinstance(results, list) and isinstance(results, ResultList)
    assert results == list(results) and [*results] == results[:] and len(results) == 4
    assert isinstance(results[1:3], ResultList) and isinstance(results[0], Result) and isinstance(results + [results[0]], ResultList)
    assert isinstance(copy.copy(results), ResultList) and results.index(results[2]) == 2
    assert polytriton.ResultList(r for r in results if r.verdict == "sat") == [r for r in results if r.verdict == "sat"]


def test_one_image_is_one_result(net: polytriton.Verifier) -> None:
    assert isinstance(net.verify(np.zeros((8, 8)), "0.01"), Result)
    assert isinstance(net.verify(np.zeros((1, 8, 8)), "0.01"), Result | ResultList)


def test_a_label_that_is_not_proved_is_compared_with_the_networks_answer(net: polytriton.Verifier) -> None:
    with np.load(EXAMPLES / "digits.npz") as held:
        x, right = held["images"][:2], held["labels"][:2]
    own = net.verify(x, "0.01", clip=(0, 1))
    wrong = net.verify(x, "0.01", (right + 1) % 10, clip=(0, 1))
    assert [r.origin.answer for r in wrong] == right.tolist() and [r.origin.answer for r in own] == [None, None]


# ---- tables ----


def test_radii_as_a_table() -> None:
    pytest.importorskip("pandas")
    none = Radius(None, Fraction(0), "sat", True, 1, 0.01)
    frame = polytriton.to_pandas([FOUND, none])
    assert list(frame.columns) == ["radius", "proved", "not_proved", "verdict", "finished", "queries", "seconds"]
    assert frame["proved"][0] == "433/10000" and frame["radius"][0] <= 0.0433
    assert frame["proved"].isna().tolist() == frame["radius"].isna().tolist() == [False, True]
    assert FOUND.to_pandas().equals(frame[:1].astype(FOUND.to_pandas().dtypes))


def test_radii_beside_results_in_a_table(results: ResultList) -> None:
    pytest.importorskip("pandas")
    frame = results.with_radii([FOUND] * 4).to_pandas()
    assert frame["radius"].tolist() == [float_below(FOUND.proved)] * 4
    assert results.to_pandas()["radius"].isna().all() and frame.drop(columns="radius").equals(results.to_pandas().drop(columns="radius"))
    with pytest.raises(UsageError, match="no common table"):
        polytriton.to_pandas([results[0], FOUND])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2, 3), Fraction(1, 10), Fraction(0), Fraction(1), Fraction(8, 255), None])
def test_a_radius_as_a_float_claims_no_more_than_was_proved(value: Fraction | None) -> None:
    found = float_below(value)
    assert found is None if value is None else found is not None and 0 <= value - Fraction(found) < Fraction(1, 10**15)


# ---- notebooks ----


def test_a_notebook_shows_a_list_of_results(results: ResultList) -> None:
    said = results.with_radii([FOUND] * 4)._repr_html_()
    assert said.count("<tr>") == 5 and "proved (unsat)" in said and "violated (sat)" in said and "proved 0.0433" in said
    assert "and 480 more" in ResultList([results[0]] * 500)._repr_html_()
    assert "no results" in ResultList()._repr_html_()


def test_a_notebook_takes_its_colours_from_the_pages_table(results: ResultList) -> None:
    from polytriton.show.verdicts import LOOKS

    for r in results:
        assert f"background:{LOOKS[r.verdict].light}" in r._repr_html_() and LOOKS[r.verdict].word in r._repr_html_()
