"""How a search went: its samples and its tree by depth add up to what it says of itself, and travel in records."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

import polytriton
from polytriton.prove.course import MOST, Course
from polytriton.prove.forest import Forest
from polytriton.prove.questions import questions
from polytriton.results import Level, Result, Sample, SearchStats
from polytriton.runs.records import JsonSink, Record, read_records
from tests.oracle.crown import draw
from tests.prove.test_neurons import ends_after, fresh

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = np.load(EXAMPLES / "digits.npz")["images"].astype(np.float64)


def told(domains: int) -> Course:
    course = Course("parts")
    for k in range(1, domains + 1):
        course.tell(k, 2 * k, k // 100, -1.0 / k, k / (domains + 1))
    return course


@pytest.mark.parametrize("count", [1, 2, MOST, MOST + 1, 7777, 20_000])
def test_samples_stay_few_and_keep_both_ends(count: int) -> None:
    samples = told(count).history()
    assert len(samples) <= MOST + 1 and (len(samples) == count or len(samples) > MOST // 3)
    assert samples[0].domains == 1 and samples[-1].domains == count
    for a, b in pairwise(samples):
        assert a.seconds <= b.seconds and a.domains < b.domains and a.open < b.open and a.share <= b.share
    gaps = np.diff([s.domains for s in samples])[:-1]
    assert not len(gaps) or gaps.max() == gaps.min()


def test_a_search_of_which_nothing_was_told_has_no_samples() -> None:
    assert Course("parts").both() == ((), ())


def test_trees_of_several_boxes_come_on_top_of_each_other() -> None:
    course = Course("parts", boxes=4)
    course.tell(5, 2, 3, -0.5, 0.5)
    course.finish(np.array([1, 3]))
    course.pass_by()
    assert course.last[1:] == (5, 2, 3, -0.5, 0.375)
    course.tell(4, 1, 2, -0.25, 0.0)
    assert course.last[1:] == (9, 3, 3, -0.5, 0.375)
    course.close(np.array([1, 2, 2]))
    course.tell(8, 0, 5, float("inf"), 1.0)
    course.finish(np.array([], dtype=np.int64))
    assert course.last[1:] == (13, 2, 5, -0.5, 0.625)
    assert course.levels() == (Level(1, 0), Level(1, 1), Level(2, 0), Level(0, 1))


def test_a_share_is_never_rounded_up_to_all() -> None:
    lines: list[str] = []
    course = Course("boxes", lambda stage, done, total: lines.append(stage))
    course.tell(12345, 1, 60, -0.012345678, 1 - 2.0**-50)
    course.tell(12346, 0, 60, float("inf"), 1.0)
    assert course.history()[0].share < 1 == course.history()[1].share
    assert lines[0] == "search: 12,345 boxes, 1 open, depth 60, worst -0.01235, 99.9 % proved"
    assert lines[1] == "search: 12,346 boxes, 0 open, depth 60, 100.0 % proved"


def asked(search: str, epsilon: str, timeout: float) -> Result:
    net = polytriton.compile(EXAMPLES / "digits_conv_normal.onnx", check=False)
    found: Result = net.verify(DIGITS[0], epsilon, clip=(0, 1), search=search, timeout=timeout, falsifier=False)
    return found


def weight(levels: tuple[Level, ...]) -> tuple[float, float]:
    """Of all trees what is refuted and what is left, every cut halving what it divides."""
    return tuple(sum(v / 2**d for d, v in enumerate(side)) for side in zip(*levels, strict=True))  # type: ignore[return-value]


def adds_up(s: SearchStats) -> None:
    refuted, left = weight(s.levels)
    assert refuted + left == pytest.approx(round(refuted + left))
    assert sum(level.open for level in s.levels) == s.open
    last = s.samples[-1]
    assert (last.domains, last.open, last.depth) == (s.domains, s.open, s.depth)
    assert last.share == pytest.approx(s.share, abs=2e-6) and (last.worst is None) == (s.worst is None)
    assert last.seconds <= s.seconds + 1e-3


def test_a_search_by_signs_tells_of_itself() -> None:
    s = asked("neurons", "0.12", 20.0).search
    assert s is not None and s.open == 0 and len(s.samples) > 3
    adds_up(s)
    assert s.samples[0].share < s.samples[-1].share == 1.0
    assert s.samples[0].worst is not None and s.samples[0].worst < 0


def test_signs_that_time_ends_tell_what_they_left() -> None:
    net = draw(np.random.default_rng(2), "dense", 3, 12)
    n = net.inputs
    q = questions(polytriton.Property.from_box(np.full(n, -2.0), np.full(n, 2.0), 0, 3))
    assert q is not None
    s = Forest(polytriton.Verifier.from_net(net.net)._decider, q, fresh(q), None, ends_after(4)).run()
    assert s.ended == "time" and s.open > 1
    adds_up(s)


def boxes_of(seed: int, timeout: float, radius: float = 0.6) -> SearchStats | None:
    net = draw(np.random.default_rng(seed), "dense", 3, 10)
    verifier = polytriton.Verifier.from_net(net.net, semantics="real")
    label = int(verifier.predict(np.zeros((1, net.inputs)))[0].argmax())
    prop = polytriton.Property.from_box(np.full(net.inputs, -radius), np.full(net.inputs, radius), label, 3)
    found: SearchStats | None = verifier.verify_property(prop, search="input", timeout=timeout, falsifier=False).search
    return found


@pytest.mark.parametrize("seed", [0, 1, 11])
def test_a_search_by_boxes_tells_of_itself(seed: int) -> None:
    s = boxes_of(seed, 20.0)
    assert s is not None and s.open == 0 and s.domains > 3
    adds_up(s)


def test_a_search_that_time_ends_tells_what_it_left() -> None:
    s = boxes_of(2, 0.6, radius=2.0)
    assert s is not None and s.ended == "time" and s.open > 0 and 0 < s.share < 1
    refuted, left = weight(s.levels)
    assert sum(level.open for level in s.levels) == s.open and left > 0
    assert refuted + left == pytest.approx(round(refuted + left))


def test_records_keep_the_course(tmp_path: Path) -> None:
    s = SearchStats("input", 3, 1, 2, 0.75, -0.5, 0.1, "time", (Sample(0.1, 3, 1, 2, None, 0.75),), (Level(0, 0), Level(1, 1)))
    sink = JsonSink(tmp_path / "r.jsonl", resume=False, overwrite=False)
    sink.write(Record(network="n", property="p", verdict="unknown", key="k", search=s))
    sink.close()
    assert read_records(tmp_path / "r.jsonl")[0].search == s
    held = msgspec.json.decode((tmp_path / "r.jsonl").read_bytes())["search"]
    assert held["samples"] == [[0.1, 3, 1, 2, None, 0.75]] and held["levels"] == [[0, 0], [1, 1]]
    del held["samples"], held["levels"]
    assert msgspec.convert(held, SearchStats).samples == ()
