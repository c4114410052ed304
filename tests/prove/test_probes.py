"""Counterexamples that a search by signs comes upon: where bounds of open parts are least."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.frontend.query import Disjunct, Property, Row
from polytriton.ir.interp import run
from polytriton.prove import neurons, strategy
from polytriton.prove.forest import Forest
from polytriton.prove.neurons import Bounding, NeuronSearch
from polytriton.prove.questions import questions
from polytriton.prove.tight import Tight
from polytriton.runtime import settings
from polytriton.runtime.attack import Aim, Attack
from polytriton.runtime.results import Stopped
from tests.oracle.crown import draw
from tests.prove.audited import cube, lowered, over, spread
from tests.prove.piecewise import drawn
from tests.prove.test_neurons import ends_after, fresh
from tests.prove.watched import asked, compiled

WEAK = Attack(restarts=1, steps=0, samples=0, operations=1)  # looks at next to nothing
LOOK = Attack(restarts=1, steps=0, samples=0)  # looks at what it is handed, and goes nowhere from there


def hidden(seed: int) -> tuple[Verifier, Property]:
    """Unsafe near one of 65,536 corners."""
    net = draw(np.random.default_rng(seed), "dense", 2, 32)
    verifier, n = Verifier.from_net(net.net, semantics="real"), net.inputs
    y = run(verifier.net, np.array(list(product((-1.0, 1.0), repeat=n)))).reshape(-1, 3)
    gap = y[:, 0] - y[:, 1]
    most = Fraction(float(gap.min() + 0.01 * gap.std()))
    row = Row(((0, Fraction(1)), (1, Fraction(-1))), (), most)
    ends = [Fraction(-1)] * n, [Fraction(1)] * n
    return verifier, Property.from_disjuncts("hidden", n, 3, (Disjunct(np.full(n, -1.0), np.full(n, 1.0), *ends, (row,)),))


@pytest.mark.parametrize(("seed", "divided"), [(15, False), (7, True)])
def test_a_search_finds_what_the_falsifier_misses(seed: int, divided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "QUICK", WEAK)
    monkeypatch.setattr(strategy, "THOROUGH", WEAK)
    monkeypatch.setattr(strategy, "PROBE", LOOK)
    verifier, prop = hidden(seed)
    assert verifier._falsify([Aim(prop)], LOOK, None) == [None]
    assert verifier.verify_property(prop, search="none").verdict == "unknown"
    found = verifier.verify_property(prop, search="neurons", timeout=30)
    assert found.verdict == "sat" and found.search is not None and found.search.ended == "sat"
    assert found.counterexample is not None and prop.violated(found.counterexample.x, found.counterexample.y) == 0
    assert (found.search.domains > 1) == divided


def test_the_falsifier_takes_its_share_within_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick look before it, then looks that grow with the search, up to a thorough one, each from numbers of its own."""
    verifier, prop = hidden(7)
    attacks, points = list[Attack](), list[int]()

    def falsify(_: Verifier, aims: list[Aim], attack: Attack, deadline: float | None) -> list[None]:
        attacks.append(attack)
        points.append(0 if aims[0].points is None else len(aims[0].points))
        return [None]

    def progress(stage: str, done: int, total: int) -> None:
        if stage.startswith("search") and len(attacks) > 5:  # as the clock would, but by looks: a busy machine makes no less of them
            raise Stopped

    monkeypatch.setattr(Verifier, "_falsify", falsify)
    monkeypatch.setattr(strategy, "SECONDS", 600.0)
    verifier.verify_property(prop, search="input", seed=5, progress=progress)
    first, *looks, last = attacks
    assert first == replace(strategy.QUICK, seed=5) and last == replace(strategy.THOROUGH, seed=5)
    assert points[0] == points[-1] == 0 and all(points[1:-1]) and len(looks) >= 5
    assert [a.seed for a in looks] == list(range(5, 5 + len(looks)))
    assert [a.operations for a in looks[:5]] == [n * strategy.PROBE.operations for n in (1, 1, 1, 2, 4)]
    assert [a.samples for a in looks[:5]] == [n * strategy.PROBE.samples for n in (1, 1, 1, 2, 4)]
    most = strategy.PROBE.grow(1 << 20, strategy.THOROUGH)
    assert replace(most, seed=0) == strategy.THOROUGH


def test_without_the_falsifier_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verifier, "_falsify", lambda *_: pytest.fail("looked for a counterexample"))
    verifier, prop = hidden(15)
    assert verifier.verify_property(prop, search="neurons", timeout=0.5, falsifier=False).counterexample is None


@pytest.mark.parametrize("last", [None, 1, pytest.param(3, marks=pytest.mark.slow)])
def test_corners_of_open_parts_are_tried_now_and_then(last: int | None) -> None:
    """After 0, 1, 3 and 7 rounds, for the groups still open; what is found ends the search and proves nothing."""
    net = drawn(np.random.default_rng(103), 2, [7, 5])
    box, forms = cube(2), [over(net, 1.0)]
    reached, _ = lowered(net, forms, box, Fraction(0))
    safe, _ = lowered(net, forms, box, 2 * spread(net, forms, box))
    q = questions(asked([box], [(0, safe), (0, reached)], net.outputs))
    assert q is not None
    answers, calls, rounds = fresh(q), list[int](), [0]

    def probe(points: np.ndarray, pieces: list[int]) -> bool:
        assert points.shape[1] == 2 and 0 < len(points) <= neurons.POINTS and np.isin(points, [-2.0, 2.0]).all()
        assert pieces == [1]
        calls.append(rounds[0] - 1)
        return len(calls) == last

    stop = ends_after(9)

    def progress(stage: str, done: int, total: int) -> None:
        rounds[0] += stage.startswith("search")
        stop(stage, done, total)

    said = Forest(compiled(net)._decider, q, answers, None, progress, probe).run()
    assert answers.settled.tolist() == [True, False] and said.open >= 1
    assert calls == [0, 1, 3, 7][: last or 4]
    assert said.ended == ("sat" if last else "time")


def test_other_processes_hand_their_corners_back() -> None:
    """What one makes of a batch is the same elsewhere, and it tells of corners only where they are wanted."""
    net = drawn(np.random.default_rng(103), 2, [7, 5])
    forms, box = [over(net, 1.0)], cube(2)
    reached, _ = lowered(net, forms, box, Fraction(0))
    q = questions(asked([box], [(0, reached)], net.outputs))
    assert q is not None
    decider = compiled(net)._decider
    tight = Tight(decider, decider.tries(patient=False)[0])
    with settings.pin_settings(tight.engine.device):
        ends = torch.from_numpy(q.lo), torch.from_numpy(q.hi)
        boxes = tight.engine.refine(*ends)
        search = NeuronSearch(tight, boxes, decider.forms(q, np.arange(1), np.zeros(1, dtype=np.int64)), ends, None)
        inner = [search.operand[r] for r in search.operators]
        work = Bounding(
            decider.compiled, decider.options, tight.how, {i: boxes.lo[i] for i in inner}, {i: boxes.hi[i] for i in inner},
            search.forms, ends,
        )  # fmt: skip
        made = [f((deepcopy(search.waiting), 5, wanted)) for f in (search.bound_batch, work.open()) for wanted in (True, False)]
    assert made[1][2] is None and made[3][2] is None and made[0][2] is not None and made[2][2] is not None
    assert all(torch.equal(a, b) for a, b in zip(made[0][2], made[2][2], strict=True)) and made[0][2][1].shape == (1, 2)
