"""How a search ends, and what it keeps from round to round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from polytriton.prove import refute
from polytriton.prove import search as module
from polytriton.prove.questions import questions
from polytriton.prove.search import InputSearch
from polytriton.runtime import settings
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Stopped
from tests.prove.audited import audit, cube, hard, lowered, over, sampled
from tests.prove.piecewise import Form, Small, drawn, exact, uneven, worst
from tests.prove.watched import Ended, asked, compiled, inside, searched


def test_no_time_at_all() -> None:
    net, groups, x = hard()
    ended = searched(compiled(net), asked([cube(2)], groups, 1), -1.0, keep=[(x, 0)], first=False)
    assert not ended.answers.settled.any() and ended.stats.ended == "time" and not ended.search.refuted
    assert np.isneginf(ended.answers.best).all()


@pytest.mark.parametrize("where", ["refine", "query", "lines"])
def test_time_that_ends_anywhere(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch at hand goes back whole: its parts are held, and a later search can go on from there."""
    net, groups, x = hard()
    verifier, prop = compiled(net), asked([cube(2)], groups, 1)
    target, name = (refute, "input_lines") if where == "lines" else (Engine, where)
    plain, safe = getattr(target, name), groups[1][1]
    for stop in range(1, 8):
        calls = iter(range(1, 100))

        def late(*args: Any, calls: Any = calls, stop: int = stop, **more: Any) -> Any:
            if next(calls) == stop:
                raise Stopped
            return plain(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(target, name, late)
            ended = searched(verifier, prop, 5.0, keep=[(x, 0)], rounds=9, first=False)
        assert not ended.answers.settled[0]
        if ended.stats.ended == "time":
            ended.search.check("after the stop")
            held(ended, 1, safe, net)


def test_bounding_a_batch_changes_neither_it_nor_the_search() -> None:
    """What comes of it may be lost, or be made twice."""
    net, groups, _ = hard()
    search = searched(compiled(net), asked([cube(2)], groups, 1), 5.0, keep=[], rounds=5, first=False).search
    batch = search.waiting.take(np.arange(len(search.waiting)))
    before, known = deepcopy(batch), [search.trail, search.ways, search.least.copy(), search.depth, search.ended]
    with settings.pin_settings(search.decider.device):
        first, second = (search.bound_batch((batch, len(search.all_ways), False, 1000)) for _ in range(2))
    assert len(first.closed) and first.left is not None and second.left is not None
    for f in fields(batch):
        assert np.array_equal(getattr(batch, f.name), getattr(before, f.name)), f.name
        assert np.array_equal(getattr(first.left, f.name), getattr(second.left, f.name)), f.name
    assert search.trail is known[0] and search.ways == known[1] and [search.depth, search.ended] == known[3:]
    assert np.array_equal(search.least, known[2])


def held(ended: Ended, group: int, forms: Sequence[Form], net: Small) -> None:
    """Whatever was not refuted or clipped away still waits."""
    rng = np.random.default_rng(0)
    for x in sampled(rng, cube(2), []):
        waits = ended.search.holds(x, group)
        refuted = any(r.group == group and r.holds(x) for r in ended.search.refuted)
        clipped = any(inside(x, c.lo, c.hi) and not inside(x, c.low, c.high) for c in ended.search.clips)
        assert waits or refuted or clipped
        assert worst(forms, (x, net.value(x))) > 0


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_probe_that_finds_something_ends_the_search_and_proves_nothing(calls: int) -> None:
    net, groups, x = hard()
    seen: list[tuple[np.ndarray, list[int]]] = []

    def probe(points: np.ndarray, still: list[int]) -> bool:
        seen.append((points, still))
        return len(seen) == calls

    ended = searched(compiled(net), asked([cube(2)], [groups[0]], 1), 5.0, keep=[(x, 0)], probe=probe, first=False)
    assert ended.stats.ended == "sat" and len(seen) == calls and not ended.unsat and ended.stats.open > 0
    for points, still in seen:
        assert still == [0] and (points >= -2).all() and (points <= 2).all()


def test_a_search_that_cannot_divide_says_so_and_proves_nothing() -> None:
    net = Small(((np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))), 1)
    box = [0.0], [float(2.0**-1073)]
    ended = searched(compiled(net), asked([box], [(0, (over(net, 1.0),))], 1), keep=[((Fraction(0),), 0)])
    assert ended.stats.ended == "rounding" and not ended.unsat and ended.stats.open > 0


def test_little_memory_takes_the_deepest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    net, groups, x = hard()
    verifier = compiled(net)
    monkeypatch.setattr(refute, "MOST", 3)
    for share in (8, 10**12):
        monkeypatch.setattr(module, "MEMORY", share)
        ended = searched(verifier, asked([cube(2)], groups, 1), 5.0, keep=[(x, 0)], rounds=25, first=False)
        assert not ended.answers.settled[0]
        audit(ended, net, [cube(2)], groups)
        ended = searched(verifier, asked([cube(2)], groups[1:], 1), 20.0, first=False)
        assert ended.unsat
        audit(ended, net, [cube(2)], groups[1:])


@pytest.mark.parametrize("first", [True, False])
def test_the_same_search_twice_is_the_same_tree(first: bool) -> None:
    net, groups, _ = hard()
    verifier, prop = compiled(net), asked([cube(2)], groups, 1)
    one, two = (searched(verifier, prop, 20.0, rounds=8, first=first) for _ in range(2))
    assert one.search.taken == two.search.taken
    assert (one.stats.domains, one.stats.depth, one.stats.open) == (two.stats.domains, two.stats.depth, two.stats.open)
    assert (one.answers.settled == two.answers.settled).all() and (one.answers.best == two.answers.best).all()


def test_what_was_settled_before_stays_and_is_not_searched() -> None:
    net, groups, _ = hard()
    q = questions(asked([cube(2)], groups, 1))
    assert q is not None
    verifier = compiled(net)
    answers = verifier._decider.prove(q, slopes=True)
    answers.settled[:] = [False, True]
    answers.best[1] = 0.25
    search = InputSearch(verifier._decider, q, answers, deadline=time.monotonic() + 0.3)
    assert search.waiting.open.tolist() == [[False, True]] or search.waiting.open.tolist() == [[True, False]]
    search.run()
    assert answers.settled.tolist() == [False, True] and answers.best[1] == 0.25


def test_bounds_handed_down_enclose_those_they_came_from() -> None:
    """Numbers of the network's nodes go to the parts in float32, rounded outward; each part's are its own box's."""
    net = uneven(np.random.default_rng(12), 2, [6, 5])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(-1, 10))
    plain, checked = InputSearch._learnt, []

    class Learns(InputSearch):
        def _learnt(self, boxes: Any, which: np.ndarray) -> np.ndarray:
            made = plain(self, boxes, which)
            low, high = np.split(made.astype(np.float64), 2, axis=1)
            for k, row in enumerate(which):
                own = [np.concatenate([d[n][int(row)].flatten().numpy() for n in self.nodes]) for d in (boxes.lo, boxes.hi)]
                assert (low[k] <= own[0]).all() and (own[1] <= high[k]).all()
                assert (own[0] - low[k] <= 1e-6 * (1 + np.abs(own[0]))).all() and (high[k] - own[1] <= 1e-6 * (1 + np.abs(own[1]))).all()
                checked.append(int((low[k] < own[0]).sum()))
            return made

    verifier = compiled(net)
    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    search = Learns(verifier._decider, q, verifier._decider.prove(q), deadline=time.monotonic() + 0.4)
    search.run()
    assert len(checked) > 5 and sum(checked) > 0


def test_nodes_of_every_part_are_bounded_rightly() -> None:
    """At the corners and in the middle of every part that is bounded, every neuron lies within the bounds the search goes by."""
    net = uneven(np.random.default_rng(13), 2, [5, 4])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(0))
    count = 0

    class Looks(InputSearch):
        def _bound(self, engine: Any, batch: Any) -> Any:
            nonlocal count
            found = super()._bound(engine, batch)
            for k in range(len(batch)):
                for s in (0.0, 0.5, 1.0):
                    h = exact(batch.lo[k] + s * (batch.hi[k] - batch.lo[k]))
                    for name, (w, b) in zip(("h0", "h1"), net.layers[:-1], strict=True):
                        h = tuple(
                            sum((Fraction(float(a)) * v for a, v in zip(row, h, strict=True)), Fraction(float(c)))
                            for row, c in zip(w, b, strict=True)
                        )
                        low, high = (d[name][k].flatten().tolist() for d in (found.boxes.lo, found.boxes.hi))
                        assert all(Fraction(p) <= v <= Fraction(q) for p, v, q in zip(low, h, high, strict=True))
                        h = tuple(max(v, Fraction(0)) for v in h)
                        count += len(h)
            return found

    q = questions(asked([cube(2)], [(0, group)], 1))
    assert q is not None
    decider = compiled(net)._decider
    Looks(decider, q, decider.prove(q), deadline=time.monotonic() + 1.0).run()
    assert count > 500


def test_a_margin_is_a_lower_bound() -> None:
    """Forms at least 1/16 above zero, and no more: a proved margin cannot be larger."""
    for seed in (148, 157, 223, 258, 309, 381):
        rng = np.random.default_rng(seed)
        inputs = 1 + seed % 2
        net, box = drawn(rng, inputs, [[2], [5, 4]][seed // 2 % 2]), ([-1.0] * inputs, [1.0] * inputs)
        group, _ = lowered(net, [over(net, 1.0)], box, Fraction(1, 16))
        ended = searched(compiled(net), asked([box], [(0, group)], 1), 5.0, first=False)
        assert ended.unsat
        assert Fraction(float(ended.answers.best[0])) <= Fraction(1, 16), f"seed {seed}"
