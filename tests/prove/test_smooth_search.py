"""The search that divides operands of smooth functions: executions that lie in a part, whatever its cuts, slopes and multipliers."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from flint import arb, ctx
from torch import Tensor

import polytriton
from polytriton.prove.forest import Forest
from polytriton.prove.neurons import NeuronSearch
from polytriton.prove.parts import Parts
from polytriton.prove.questions import Questions
from polytriton.prove.tight import Tight
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent, AscentRows
from polytriton.runtime.ascent_lines import Found
from polytriton.runtime.relax import round_outward
from tests.ir.test_curves import exact, piece_of
from tests.prove.test_neurons import fresh
from tests.prove.test_smooth_slopes import model, query
from tests.prove.test_tight import hostile
from tests.soundness.test_curves import NAMES, Drawn, draw, points


def proposals(rng: np.random.Generator, ascent: Ascent, rows: AscentRows) -> dict[str, Found]:
    """Slopes and multipliers of nobody's choice; many multipliers are none."""
    made = {}
    for name in ascent.relaxed_before(rows.target):
        lo, _ = rows.operands[ascent.net.node(name).inputs[0]]
        size = torch.from_numpy(10.0 ** rng.uniform(-3, 1, lo.shape) * rng.choice([-1, 0, 0, 1], lo.shape)).float()
        made[name] = Found(hostile(lo.shape, rng), torch.where(hostile(lo.shape, rng).isfinite(), size, torch.nan), torch.zeros_like(size))
    return made


def operands_of(drawn: Drawn, x: np.ndarray) -> tuple[list[float], list[float]]:
    """What the functions are handed, all of them one after the other, and the outputs; from 300 bits."""
    values, first, seen = [arb(float(v)) for v in x], [], []
    for k, (w, b) in enumerate(drawn.weights):
        values = [sum((arb(float(a)) * v for a, v in zip(row, values, strict=True)), arb(float(c))) for row, c in zip(w, b, strict=True)]
        if k < len(drawn.functions):
            seen += [float(v) for v in values]
            name = NAMES[drawn.functions[k]]
            values = [exact(name, v, piece_of(name, float(v)))[0] for v in values]
            first = values if k == 0 else first
            values = [p + q for p, q in zip(first, values, strict=True)] if drawn.skip and k == 1 else values
    return seen, [float(v) for v in values]


def some_parts(search: NeuronSearch, cells: Tensor, rng: np.random.Generator, count: int) -> Parts:
    """Boxes cut once or twice, at places between executions, beside one execution that they hold."""
    parts = search.waiting.pick(torch.from_numpy(rng.integers(0, len(search.waiting), count)))
    outer = round_outward(search.lo[:, search.neurons], search.hi[:, search.neurons], torch.float32)
    parts.lo, parts.hi = (v.expand(count, -1).clone() for v in outer)
    for k in range(count):
        mine = cells[int(rng.integers(len(cells)))]
        for neuron in rng.choice(len(search.neurons), min(len(search.neurons), int(rng.integers(1, 5))), replace=False):
            for _ in range(int(rng.integers(1, 3))):
                a, b = sorted([float(mine[neuron]), float(cells[int(rng.integers(len(cells))), neuron])])
                cut = float(np.float32(0.5 * (a + b)))
                side = 1 if mine[neuron] >= cut else -1
                parts.signs[k, neuron] = side
                ends = parts.lo if side > 0 else parts.hi
                ends[k, neuron] = max(ends[k, neuron], cut) if side > 0 else min(ends[k, neuron], cut)
    parts.behind = torch.from_numpy(rng.integers(-1, len(search.operators), count))
    return parts


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(k, marks=pytest.mark.slow) for k in range(5, 60))])
@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("proposed", [True, False])
def test_executions_of_a_part_lie_in_its_bounds(seed: int, semantics: str, proposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, lo, hi = draw(700 + seed)
    rng = np.random.default_rng([10, seed])
    net = polytriton.compile(drawn.model(), semantics=semantics, check=False)
    decider, rows = net._decider, rng.standard_normal((2, drawn.outputs))
    q = Questions(lo[None].astype(float), hi[None].astype(float), np.zeros(2, dtype=np.int64), rows, np.zeros(2), np.arange(2))
    tight = Tight(decider, decider.tries(patient=False)[0])
    if proposed:
        monkeypatch.setattr(Ascent, "improve", lambda self, rows, steps, rate: proposals(rng, self, rows))
    seen, outputs = [], []
    for x in points(lo, hi, rng, 40):
        if semantics == "real":
            with ctx.workprec(300):
                some = operands_of(drawn, x)
        else:
            handed: list[np.ndarray] = []
            y = drawn.execute(x, rng, 4.0, handed)
            some = np.concatenate(handed).astype(float).tolist(), y.astype(float).tolist()
        seen.append(some[0])
        outputs.append(some[1])
    with settings.pin_settings(decider.device):
        box = torch.from_numpy(q.lo), torch.from_numpy(q.hi)
        search = NeuronSearch(tight, tight.engine.refine(*box), decider.forms(q, np.arange(2), q.image), box, None)
        assert len(search.neurons) and search.smooth.all()
        cells = torch.tensor(seen, dtype=torch.float64)[:, search.neurons]
        parts = some_parts(search, cells, rng, 10)
        low, high = parts.lo.clone(), parts.hi.clone()
        search.bound_batch((parts, 3, False))
    compared = 0
    for k in range(len(parts)):
        room = 1e-9 * (1 + cells.abs())
        inside = ((cells >= low[k] - (0 if semantics == "float32" else room)) & (cells <= high[k])).all(1).numpy()
        assert inside.any()
        for form, bound in zip(parts.forms[k].tolist(), parts.bound[k].tolist(), strict=True):
            values = np.array(outputs)[inside] @ rows[form]
            assert (values + 1e-9 * (1 + np.abs(np.array(outputs)[inside]) @ np.abs(rows[form])) >= bound).all(), (k, form)
            compared += int(inside.sum()) * bool(np.isfinite(bound))
        taken = cells[torch.from_numpy(inside)]
        assert ((taken >= parts.lo[k] - 1e-6 * (1 + taken.abs())) & (taken <= parts.hi[k] + 1e-6 * (1 + taken.abs()))).all()
    assert compared > 5


def test_products_that_a_multiplier_changes_are_paid_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One neuron at a point, a steep line, and a multiplier that takes all of the coefficient: nothing is left to be charged later."""
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        w, c = rng.standard_normal((1, 1)).astype(np.float32), (rng.standard_normal((1, 1)) * 3).astype(np.float32)
        zero = np.zeros(1, np.float32)
        drawn = Drawn([(w, zero), (c, zero)], ["Tanh"], False)
        k = np.float32(1000 * rng.standard_normal())

        def improve(self: Ascent, rows: AscentRows, steps: int, rate: float, k: np.float32 = k, c: np.ndarray = c) -> dict[str, Found]:
            all_of_it = torch.full_like(rows.start.flatten(1), float(k * c[0, 0]))
            return {name: Found(torch.full_like(all_of_it, float(k)), all_of_it, all_of_it) for name in self.relaxed_before(rows.target)}

        monkeypatch.setattr(Ascent, "improve", improve)
        net = polytriton.compile(drawn.model(), semantics="real", dtype="float32", check=False)
        x = np.array([np.float32(rng.standard_normal())])
        bound = query(net, x[None].astype(float), x[None].astype(float), np.eye(1))[0]
        with ctx.workprec(300):
            wrong += not arb(float(bound)) <= drawn.exact(x)[0]
    assert not wrong


# ---- a search of its own ---------------------------------------------------------------------------------------------


def searched(op: str, share: float, seconds: float) -> tuple[bool, bool, polytriton.results.SearchStats]:
    """A threshold so far between the bound by chosen slopes and the least value seen: whether slopes and the search prove it."""
    net = polytriton.compile(model(op, (70, 12, 12, 3), 1), semantics="float32", check=False)
    x = np.random.default_rng(2).random((1, 70))
    lo, hi, C = x - 0.05, x + 0.05, np.array([[1.0, -1.0, 0.0]])
    best = np.asarray(net.margins(lo, hi, C, effort="best"))[0, 0]
    some = np.where(np.random.default_rng(3).random((4000, 70)) < 0.5, lo, hi).astype(np.float32)
    least = float((np.asarray(net.predict(some)).reshape(-1, 3) @ C[0]).min())
    zero = np.zeros(1, dtype=np.int64)
    q = Questions(lo, hi, zero, C, np.array([best + share * (least - best)]), zero)
    answers = fresh(q)
    said = Forest(net._decider, q, answers, time.monotonic() + seconds, lambda *_: None).run()
    return best > q.constant[0], bool(answers.settled.all()), said


@pytest.mark.parametrize("op", ["Tanh", pytest.param("Gelu", marks=pytest.mark.slow), pytest.param("gate", marks=pytest.mark.slow)])
def test_dividing_proves_what_slopes_leave_open(op: str) -> None:
    slopes, proved, said = searched(op, 0.1, 60.0)
    assert not slopes and proved and said.domains > 1 and said.open == 0


def test_what_is_reached_is_never_proved() -> None:
    _, proved, said = searched("Tanh", 1.0, 0.5)
    assert not proved and said.open >= 1


@pytest.mark.parametrize("seed", range(3))
def test_every_execution_is_in_a_child(seed: int) -> None:
    """Of what a search of a few rounds leaves and refutes nothing is missing: a value that is reached stays open."""
    drawn, lo, hi = draw(720 + seed)
    net = polytriton.compile(drawn.model(), semantics="real", check=False)
    rng = np.random.default_rng(seed)
    row, reached = rng.standard_normal(drawn.outputs), np.inf
    for x in points(lo, hi, rng, 60):
        with ctx.workprec(300):
            reached = min(reached, float(np.dot(row, operands_of(drawn, x)[1])))
    zero = np.zeros(1, dtype=np.int64)
    q = Questions(lo[None].astype(float), hi[None].astype(float), zero, row[None], np.array([reached + 1e-9]), zero)
    answers = fresh(q)
    Forest(net._decider, q, answers, time.monotonic() + 1.0, lambda *_: None).run()
    assert not answers.settled.any()


def test_a_neuron_is_divided_again_in_the_middle() -> None:
    """Boxes halve; one that is as narrow as its ends' digits is left alone."""
    from polytriton.prove.branching import Gains

    parts = Parts.roots(torch.zeros(1, 1, dtype=torch.int64), 2)
    parts.lo[:], parts.hi[:] = torch.tensor([[-1.0, 5.0]]), torch.tensor([[3.0, 5.0 + 1e-6]])
    parts.signs[:] = 1
    parts.loss[:] = 1.0
    gains = Gains(1, torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool))
    for _, width in pairwise([4.0, 2.0, 1.0, 0.5]):
        part, neuron = gains.candidates(parts)
        assert neuron.tolist() == [0]
        both = parts.divide(part, neuron, torch.zeros(1, dtype=torch.int64), gains.cuts(parts, part, neuron))
        assert (both.hi - both.lo)[:, 0].tolist() == [width, width] and both.hi[1, 0] == both.lo[0, 0]
        parts = both.pick(torch.tensor([1]))
