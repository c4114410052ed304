"""The numbers of a report, against numbers counted by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytriton.pages.facts import (
    RadiusFacts,
    facts,
    network_names,
    number,
    quantiles,
    radius_facts,
    radius_name,
    radius_text,
)
from polytriton.runs.records import Image, Record
from polytriton.show.words import decimal_above, decimal_below
from tests.pages.made import mixed, record, stats


@given(st.fractions(0, 1, max_denominator=10**30))
def test_a_rounded_radius_claims_no_more_than_was_proved(value: Fraction) -> None:
    low, high = Fraction(decimal_below(value)), Fraction(decimal_above(value))
    assert low <= value <= high
    if value > Fraction(1, 10**6):
        assert high - low <= value / 500


def test_a_radius_in_a_summary_is_rounded_down_too() -> None:
    assert (radius_text(0.1157, 3), radius_text(0.0694), radius_text(1.0), radius_text(0.0)) == ("0.115", "0.0694", "1", "0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", Fraction(8, 255)),
        ("0.05", Fraction(1, 20)),
        ("1/0", None),
        ("1e999999999", None),
        ("x", None),
        (None, None),
        ("9" * 99, None),
    ],
)
def test_numbers_of_records_are_read_with_care(text: str | None, value: Fraction | None) -> None:
    assert number(text) == value


def test_quantiles() -> None:
    q = quantiles([3, 1, 2, float("inf"), 4, 5, 6, 7, 8, 9, 10])
    assert q is not None
    assert (q.count, q.least, q.median, q.p90, q.most, q.total) == (10, 1, 5, 9, 10, 55)
    assert quantiles([]) is None


def test_verdicts_come_in_their_usual_order() -> None:
    found = facts([record(0, "timeout"), record(1, "sat"), record(2, "unsat"), record(4, "sat")])
    assert list(found.verdicts.items()) == [("unsat", 1), ("sat", 2), ("timeout", 1)]


def test_what_ended_undecided_queries_is_counted() -> None:
    by = [*["method"] * 2, "query-time", ""]
    found = facts([record(k, "unsat" if not end else "unknown", ended_by=end) for k, end in enumerate(by)])
    assert list(found.ended_by.items()) == [("method", 2), ("query-time", 1)]


def test_layers_are_means_over_the_queries_that_ran_them() -> None:
    direct = record(7, statistics=stats()[:1])
    found = facts([record(0, statistics=stats(1)), record(1, statistics=stats(2)), direct, record(8, statistics=())])
    (network,) = found.networks
    assert (network.queries, network.direct) == (4, 1)
    assert [(layer.stage, layer.name) for layer in network.layers] == [
        ("interval", "y"), ("bound", "conv0"), ("bound", "conv2"), ("bound", "pool"), ("query", "y")
    ]  # fmt: skip
    first, _, conv, pool, last = network.layers
    assert (first.queries, conv.queries) == (3, 2)
    assert conv.unstable == (120, 30)
    assert conv.width == (2.0, 1.0)
    assert (conv.rows, conv.left) == (100, (60, 10))
    assert conv.seconds == pytest.approx(0.06)
    assert pool.unstable is None and pool.width == (None, 3.0)
    assert last.left == (6, 1)


def test_rows_that_all_left_early_count_as_none() -> None:
    short, long = stats()[2], stats()[2]
    short = type(short)(**{**vars(short), "left": (40,)})
    found = facts([record(0, statistics=(short,)), record(1, statistics=(long,))])
    assert found.networks[0].layers[0].left == (50, 5)


def test_a_network_is_named_by_its_file_unless_two_share_the_name() -> None:
    names = network_names([record(k, network=n) for k, n in enumerate(["x/a.onnx", "y/a.onnx", "y/b.onnx"])])
    assert names == {"x/a.onnx": "x/a.onnx", "y/a.onnx": "y/a.onnx", "y/b.onnx": "b.onnx"}


def test_the_whole() -> None:
    found = facts(mixed())
    assert found.queries == 10 and sum(found.verdicts.values()) == 10
    assert found.radius is not None and found.radius.count == 2
    assert found.margin is not None and found.margin.count == 9
    assert found.settings["semantics"] == ["float32"]
    assert [n.name for n in found.networks] == ["a.onnx", "b.onnx"]


def test_records_without_the_new_fields() -> None:
    found = facts([Record(network="a", property="p", verdict="unsat")])
    assert (found.radius, found.margin, found.networks[0].layers) == (None, None, [])


def at(k: int, epsilon: str, verdict: str, **more: object) -> Record:
    """A query about image k."""
    return record(k, verdict, epsilon=epsilon, image=Image("i.npz", k, [1, 2, 2]), **more)


def test_images_are_counted_by_radius() -> None:
    wrong = {"note": "misclassified as 3", "seconds": 9.0}
    records = [
        at(0, "1/10", "unsat", seconds=1.0), at(0, "1/50", "unsat", seconds=0.0, decided_at="1/10"),
        at(1, "1/10", "sat", seconds=2.0), at(1, "1/50", "unknown", seconds=4.0),
        at(2, "1/10", "sat", **wrong), at(2, "1/50", "sat", decided_at="1/10", **wrong | {"seconds": 0.0}),
        at(1, "1/50", "timeout", seconds=5.0),
    ]  # fmt: skip
    small, large = radius_facts(records)
    assert small == RadiusFacts("nets/a.onnx", "1/50", 3, 1, 1, 0, 1, 1, 5.0), "the last word on an image counts"
    assert large == RadiusFacts("nets/a.onnx", "1/10", 3, 1, 1, 1, 0, 3, 12.0)
    found = facts(records)
    assert found.seconds is not None and found.seconds.count == 4, "neither what is misclassified nor what was not asked"
    assert found.seconds.most == 5.0 and found.total == 21.0 and found.radii == [small, large]


def test_radii_are_written_as_people_do() -> None:
    names = {"8/255": "8/255", "1/20": "0.05", "1/7": "1/7", "1/3": "85/255", "1/51": "5/255", "1/5": "0.2", "1": "1"}
    assert {epsilon: radius_name(epsilon) for epsilon in names} == names
