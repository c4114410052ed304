"""Which forms are asked in which part of which box."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polytriton.prove.domains import Domains, Pieces, Waiting
from polytriton.prove.refute import halves_cost_less
from polytriton.prove.trail import Trail


def questions(image: list[int], group: list[int], boxes: int) -> Any:
    lo = np.arange(boxes * 2.0).reshape(boxes, 2)
    return SimpleNamespace(lo=lo, hi=lo + 1, image=np.array(image), group=np.array(group))


def domains(q: Any, root: np.ndarray, held: np.ndarray) -> Domains:
    n = len(root)
    zeros, none = np.zeros(n, dtype=np.int32), np.zeros((n, 0), dtype=np.float32)
    return Domains(q.lo[root], q.hi[root], root, held, np.zeros(n), zeros, none, np.arange(n))


SHAPES = {
    "one": ([0], [0], 1),
    "two groups of a box": ([0, 0], [0, 1], 1),
    "rows of a group": ([0, 0, 0], [0, 0, 0], 1),
    "boxes of one group": ([0, 1, 2], [0, 1, 2], 3),
    "boxes shared out of order": ([1, 0, 1, 1, 0, 2], [0, 1, 2, 2, 3, 4], 3),
    "groups not in order": ([0, 1, 0, 1, 1], [2, 0, 2, 1, 0], 2),
    "many": ([0, 0, 0, 1, 1, 0, 0, 1, 2, 2, 2], [0, 0, 1, 2, 2, 3, 3, 4, 5, 6, 6], 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_groups_and_forms_are_those_of_the_questions(name: str) -> None:
    image, group, boxes = SHAPES[name]
    p = Pieces.of_questions(questions(image, group, boxes))
    for b in range(boxes):
        assert sorted(g for g in p.groups[b] if g >= 0) == sorted({g for i, g in zip(image, group, strict=True) if i == b})
    for g in set(group):
        assert sorted(p.forms[p.first[g] : p.first[g + 1]]) == [k for k, h in enumerate(group) if h == g]
    assert p.first[-1] == len(group)


@pytest.mark.parametrize("name", SHAPES)
def test_roots_are_the_boxes_with_open_groups(name: str) -> None:
    image, group, boxes = SHAPES[name]
    q = questions(image, group, boxes)
    p, groups = Pieces.of_questions(q), max(group) + 1
    for code in range(2**groups):
        settled = np.array([code >> g & 1 for g in range(groups)], dtype=bool)
        r = p.roots(q, settled, 3, Trail(wanted=False))
        wanted = {b: {g for i, g in zip(image, group, strict=True) if i == b and not settled[g]} for b in range(boxes)}
        assert [int(b) for b in r.root] == [b for b in range(boxes) if wanted[b]]
        for k, b in enumerate(r.root):
            assert set(p.groups[b][r.open[k]]) == wanted[b]
            assert (r.lo[k] == q.lo[b]).all() and (r.hi[k] == q.hi[b]).all()
            assert r.depth[k] == 0 and r.bound[k] == -np.inf
            assert r.layers[k].tolist() == [-np.inf] * 3 + [np.inf] * 3


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_every_open_group_of_every_domain_is_asked_all_its_forms(name: str, seed: int) -> None:
    image, group, boxes = SHAPES[name]
    q = questions(image, group, boxes)
    p, rng = Pieces.of_questions(q), np.random.default_rng(seed)
    root = rng.integers(0, boxes, 9)
    held = (p.groups[root] >= 0) & (rng.random((9, p.groups.shape[1])) < 0.6)
    d = domains(q, root, held)
    at, local, form = p.rows(d)
    wanted = sorted((k, g, f) for k in range(9) for g in p.groups[root[k]][held[k]] for f, h in enumerate(group) if h == g)
    assert sorted(zip(at, p.groups[root[at], local], form, strict=True)) == wanted
    assert all(image[f] == root[k] for k, f in zip(at, form, strict=True))


def test_a_domain_without_open_groups_asks_nothing() -> None:
    q = questions([0, 0], [0, 1], 1)
    p = Pieces.of_questions(q)
    d = domains(q, np.zeros(2, int), np.array([[False, False], [False, True]]))
    at, local, form = p.rows(d)
    assert (at.tolist(), local.tolist(), form.tolist()) == ([1], [1], [1])
    none = p.rows(d.pick(np.array([0])))
    assert [len(v) for v in none] == [0, 0, 0]


def test_parts_are_picked_and_joined_whole() -> None:
    q = questions([0, 1, 2], [0, 1, 2], 3)
    r = Pieces.of_questions(q).roots(q, np.zeros(3, dtype=bool), 1, Trail(wanted=False))
    r.bound, r.depth = np.array([1.0, 2.0, 3.0]), np.array([4, 5, 6], dtype=np.int32)
    r.layers = np.arange(6, dtype=np.float32).reshape(3, 2)
    both = Domains.join(r.pick(np.array([2, 0])), r.pick(np.array([False, True, False])))
    assert both.root.tolist() == [2, 0, 1] and both.bound.tolist() == [3.0, 1.0, 2.0] and both.depth.tolist() == [6, 4, 5]
    assert (both.lo == q.lo[[2, 0, 1]]).all() and (both.hi == q.hi[[2, 0, 1]]).all()
    assert (both.open == r.open[[2, 0, 1]]).all() and both.layers.tolist() == [[4, 5], [0, 1], [2, 3]]
    assert len(r.pick(np.zeros(0, dtype=np.int64))) == 0
    picked = r.pick(np.array([1]))
    picked.lo += 7
    assert (r.lo == q.lo).all(), "a part is a copy"


def test_what_waits_keeps_its_own_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain list: domains of seeded numbers come and go, in blocks of three rows."""
    monkeypatch.setattr(Waiting, "BLOCK", 24)
    q, rng = questions([0, 1, 2], [0, 1, 2], 3), np.random.default_rng(3)
    roots = Pieces.of_questions(q).roots(q, np.zeros(3, dtype=bool), 1, Trail(wanted=False))
    waiting, listed = Waiting(roots.pick(np.zeros(0, dtype=np.int64))), []
    for number in range(60):
        some = roots.pick(rng.integers(0, 3, rng.integers(0, 6)))
        some.layers = rng.normal(size=some.layers.shape).astype(np.float32)
        some.bound, some.name = rng.normal(size=len(some)), 100 * number + np.arange(len(some))
        waiting.add(some)
        listed += [some.pick(np.array([k])) for k in range(len(some))]
        which = rng.permutation(len(listed))[: rng.integers(0, 5)]
        taken, told = waiting.take(which), [listed[k] for k in np.sort(which)]
        listed = [d for k, d in enumerate(listed) if k not in which]
        assert len(waiting) == len(listed) and waiting.bound.tolist() == [float(d.bound[0]) for d in listed]
        assert len(taken) == len(told)
        for k, d in enumerate(told):
            one = taken.pick(np.array([k]))
            assert all((getattr(one, f.name) == getattr(d, f.name)).all() for f in fields(Domains))
    assert listed and waiting.each == roots.each


@pytest.mark.parametrize(("hopeful", "sooner"), [([5], True), ([5, 7], True), ([5, 7, 9], False), ([3], False), ([3, 5], False)])
def test_few_parts_that_rounding_alone_leaves_open_are_divided(hopeful: list[int], sooner: bool) -> None:
    """Fewer than one of sixteen; a part that no number divides is never left to that."""
    q = questions([0] * 40, [0] * 40, 1)
    batch = domains(q, np.zeros(40, dtype=np.int64), np.ones((40, 1), dtype=bool))
    batch.lo[3], batch.hi[3] = 1.0, np.nextafter(1.0, 2.0)
    which = np.isin(np.arange(40), hopeful)
    assert halves_cost_less(batch, which) == sooner
    assert not halves_cost_less(batch.pick(which), np.ones(len(hopeful), dtype=bool))
