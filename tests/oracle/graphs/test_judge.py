"""The oracle bites: known counterexamples are attained, planted faults found. And what polytriton says holds, rule by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracle.graphs import __main__ as command
from tests.oracle.graphs import judge as judging
from tests.oracle.graphs import shards
from tests.oracle.graphs.build import ULP, Builder, Tensor
from tests.oracle.graphs.draw import RULES, Graph, draw
from tests.oracle.graphs.execute import Choice, some_choice
from tests.oracle.graphs.judge import SEMANTICS, Said, ask, judge
from tests.oracle.graphs.keep import attempt, restore, store
from tests.oracle.graphs.smooth_rules import SMOOTH_STAGES
from tests.oracle.graphs.trace import program

TAIL = 0.6 * ULP
QUICK, FEW, MANY, OTHERS = 12, 5, 15, 1  # graphs a rule: always, of REAL rules, among the slow tests (the soak draws more), other semantics
REAL = ("normalised_layers",)  # refused under any other semantics
LATER = [r for r in SMOOTH_STAGES if r not in ("products", "gates")]  # smooth functions take a second a graph: among the slow tests


def graph(b: Builder, y: Tensor, x: np.ndarray) -> Graph:
    """A single point."""
    at = x.reshape(1, -1)
    return Graph("crafted", 0, b.model(y).SerializeToString(), at, at, np.ones((1, 1, y.size)))


def attained(g: Graph, sign: float, **choice: Any) -> float:
    """What the adversary makes of the first output."""
    p = program(g.model)
    wanted = p.derivatives(p.near(g.lo), p.goals([(p.output[:1], np.array([sign]))]))
    return float(p.run(g.lo, wanted, Choice(**choice), np.ones(1, np.uint64))[0, p.output[0]])


def tail(terms: int, lead: int, small: float = TAIL) -> np.ndarray:
    w = np.full((terms, 1), small)
    w[lead] = 1
    return w


def constants_beside(shape: int = 100) -> Graph:
    b = Builder(np.random.default_rng(0))
    x = b.input(1, 1)
    joined = b.concat([x, b.constant(np.ones((1, shape)))])
    return graph(b, b.emit("MatMul", [joined, b.constant(tail(shape + 1, 1))], (1, 1)), np.zeros(1))


def padded_sum() -> Graph:
    b = Builder(np.random.default_rng(0))
    y = b.pair("Add", b.pad(b.input(1, 1), [0, 0], [0, 100]), b.constant(np.ones(101)))
    return graph(b, b.emit("MatMul", [y, b.constant(tail(101, 1))], (1, 1)), np.array([-1.0]))


def repeats() -> Graph:
    b = Builder(np.random.default_rng(0))
    y = b.gather(b.input(1, 60), np.tile([0, 2, 4, 6], 15))
    x = np.zeros(60)
    x[[0, 2, 4, 6]] = 1
    return graph(b, b.emit("MatMul", [y, b.constant(tail(60, 0))], (1, 1)), x)


def padded_convolution() -> Graph:
    b = Builder(np.random.default_rng(0))
    y = b.pair("Add", b.pad(b.input(1, 1, 1, 1), [0, 0, 4, 4], [0, 0, 5, 5]), b.constant(np.ones(())))
    w = tail(100, 1).reshape(1, 1, 10, 10)
    return graph(b, b.emit("Conv", [y, b.constant(w)], (1, 1, 1, 1), kernel_shape=[10, 10]), np.array([-1.0]))


KNOWN = {"constants beside": constants_beside, "padding and a sum": padded_sum, "repeats": repeats, "a convolution": padded_convolution}


@pytest.mark.parametrize("name", KNOWN)
def test_known_counterexamples_are_attained_and_covered(name: str) -> None:
    g = KNOWN[name]()
    terms = 59 if name == "repeats" else 99
    low, high = attained(g, -1.0, order=2), attained(g, 1.0, order=2)
    assert high >= 1 + (terms - 1) * ULP, "every small term is rounded up to a whole unit in the last place"
    assert low == 1.0, "or lost"
    assert not judge(g).escapes


def test_the_concatenation_in_order_and_rounded_to_nearest() -> None:
    assert attained(constants_beside(), 1.0, direction=0) == pytest.approx(1.0000118, abs=1e-7)


def test_a_bound_that_is_too_tight_is_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    g = constants_beside()
    exact = 1 + 99 * TAIL
    said = Said(np.full((1, 1), exact - 2e-6), np.full((1, 1), exact + 2e-6), {}, np.array([[exact - 2e-6]]))
    monkeypatch.setattr(judging, "ask", lambda graph, semantics: said)
    found = judge(g).escapes
    assert any(e.startswith("output: ") for e in found) and any(e.startswith("margin: ") for e in found)
    wide = Said(np.full((1, 1), 0.9), np.full((1, 1), 1.1), {}, np.array([[0.9]]))
    monkeypatch.setattr(judging, "ask", lambda graph, semantics: wide)
    outcome = judge(g)
    assert not outcome.escapes and 0 < outcome.ratio < 1e-3
    assert judge(g, "real").escapes == []
    above = Said(np.full((1, 1), exact + 1e-12), np.full((1, 1), 1.1), {}, np.array([[2.0]]))
    monkeypatch.setattr(judging, "ask", lambda graph, semantics: above)
    assert len(judge(g, "real").escapes) == 2


def test_bounds_that_are_one_rounding_short_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds narrowed to a third of their room around the true values: most rules must object within a few graphs."""

    def narrowed(g: Graph, semantics: str) -> Said:
        said = ask(g, semantics)
        p = program(g.model)
        point = (g.lo == g.hi).all(axis=1)
        near = p.near(g.lo)[:, p.output]
        lo, hi = (np.where(point[:, None], near + (e - near) / 3, e) for e in (said.lo, said.hi))
        return Said(lo, hi, {}, said.margins)

    monkeypatch.setattr(judging, "ask", narrowed)
    rules = [r for r in RULES if r.startswith(("scale", "constants"))]
    noticed = [r for r in rules if any(judge(draw(r, s)).escapes for s in range(20))]
    assert len(noticed) > 0.7 * len(rules), noticed


# ---- polytriton against the oracle -------------------------------------------------------------------------------------


def hold(rule: str, seeds: range, semantics: str = "float32") -> tuple[int, float]:
    """Bounds that said something, and the tightest share of their room that was used."""
    finite, ratio = 0, 0.0
    for seed in seeds:
        outcome, found = attempt(draw(rule, seed), semantics)
        again = f"python -m tests.oracle.graphs --semantics {semantics} --case {rule}:{seed}"
        assert outcome is not None and not found, f"{found[0]}; see {again}"
        finite, ratio = finite + outcome.finite, max(ratio, outcome.ratio)
    return finite, ratio


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=() if k % 2 and r not in LATER else pytest.mark.slow) for k, r in enumerate(RULES)]
)
def test_no_execution_leaves_the_bounds(rule: str) -> None:
    count = FEW if rule in REAL else QUICK
    finite, ratio = hold(rule, range(count), "real" if rule in REAL else "float32")
    if rule in REAL:
        assert finite > count  # exact arithmetic, whose executions use no room
    elif rule not in ("half_models", "half_arithmetic", "double_models"):
        assert finite > 4 * count and ratio > 0.05, "the rule's graphs are bounded, and its executions come near the bounds"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_no_execution_of_many_graphs_leaves_the_bounds(rule: str) -> None:
    hold(rule, range(1000, 1000 + MANY))


@pytest.mark.parametrize("semantics", [s for s in SEMANTICS if s != "float32"])
@pytest.mark.parametrize("graphs", [OTHERS, pytest.param(2 * OTHERS, marks=pytest.mark.slow)])
def test_other_semantics(graphs: int, semantics: str) -> None:
    """All rules under each; in the quick tests every rule under one of them, in turn."""
    turn, few = list(SEMANTICS).index(semantics) % 4, [r for r in RULES if r not in LATER]
    for rule in RULES if graphs > OTHERS else few[turn::4]:
        hold(rule, range(500 + graphs, 500 + 2 * graphs), semantics)


# ---- the command -------------------------------------------------------------------------------------------------------


def run(folder: Path, *more: str) -> int:
    threads = torch.get_num_threads()
    try:
        return command.main(["--graphs", "4", "--rule", "gather_permute", "--first", "40", "--folder", str(folder), *more])
    finally:
        torch.set_num_threads(threads)


def test_a_run_resumes_and_repeats_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    path = tmp_path / "float32" / "gather_permute" / "progress.jsonl"
    first = path.read_text()
    said = capsys.readouterr().out
    assert "gather_permute" in said and "4 graphs" in said and "0 escapes" in said
    assert run(tmp_path) == 0 and path.read_text() == first
    path.write_text(first + '{"first": 44, "cou')  # killed while writing
    assert run(tmp_path, "--status") == 0 and path.read_text() == first
    assert run(tmp_path, "--semantics", "real") == 0, "each semantics has a folder of its own"


def test_graphs_are_shared_out_among_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = command.main(["--graphs", str(2 * len(RULES) + 3), "--folder", str(tmp_path), "--status"])
    assert args == 0 and "0 graphs" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "float32").iterdir()) == sorted(RULES)


def test_an_escape_is_kept_told_and_makes_the_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ["output: 1 wrong"]
    monkeypatch.setattr(shards, "attempt", lambda g, semantics: (judging.Outcome(escapes=found), found) if g.seed == 42 else (None, []))
    assert run(tmp_path) == 1
    said = capsys.readouterr()
    kept = tmp_path / "float32" / "gather_permute" / "escapes" / "42"
    assert "escapes 1 (42)" in said.out and str(kept) in said.err
    assert json.loads((kept / "case.json").read_text())["found"] == found
    again, semantics = restore(kept)
    drawn = draw("gather_permute", 42)
    assert semantics == "float32" and again.model == drawn.model and np.array_equal(again.lo, drawn.lo)
    monkeypatch.undo()
    assert run(tmp_path, "--replay", str(kept)) == 0
    assert run(tmp_path, "--case", "gather_permute:42") == 0


def test_errors_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph, semantics: str) -> None:
        raise ValueError("planted")

    monkeypatch.setattr("tests.oracle.graphs.keep.judge", broken)
    g = draw("chain", 3)
    outcome, found = attempt(g, "float32")
    assert outcome is None and "planted" in found[0]
    assert restore(store(g, "float32", found, tmp_path))[0].model == g.model


def test_choices_reach_every_freedom() -> None:
    rng = np.random.default_rng(0)
    seen = [some_choice(rng) for _ in range(2000)]
    assert {c.direction for c in seen} == {None, -1, 0, 1, 2, 3, 4}
    assert {c.order for c in seen} == set(range(12))
    assert {c.flush for c in seen} == {0, 1, 2, 3} and {c.daz for c in seen} == {True, False}
    assert {c.fma for c in seen} == {0, 1, 2} and {c.bias_first for c in seen} == {True, False}
