"""The passes in order: what is dumped, and that whatever goes wrong names the pass and those before it."""

from __future__ import annotations

import pytest

from polytriton.errors import InvalidIR, PassError, UsageError
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import parse_plan
from polytriton.ir.text import parse_net
from polytriton.passes import charge, fold, layout, lower, memory, schedule
from polytriton.passes.pipeline import NET_PASSES, PLAN_PASSES, SEQUENCE, compile_net, fold_net, make_plan, run_net_pass
from tests.oracle.nets import toy_dense, toy_residual
from tests.passes.texts import read


def test_every_stage_is_shown_as_text_that_parses() -> None:
    seen: list[tuple[str, str]] = []
    compiled = compile_net(toy_residual(), observe=lambda name, text, seconds: seen.append((name, text)) if seconds >= 0 else None)
    assert [n for n, _ in seen] == ["import", *SEQUENCE, "lower", "schedule", "charge", "memory"]
    nets = [parse_net(t) for _, t in seen[:4]]
    assert nets[0] == toy_residual() and nets[3] == compiled.net
    assert [parse_plan(t) for _, t in seen[4:]][-1] == compiled.plan


def test_compiling_twice_gives_the_same_text_and_bytes() -> None:
    first, second = compile_net(toy_residual()), compile_net(toy_residual())
    assert first.net == second.net and first.plan == second.plan
    assert {k: v.tobytes() for k, v in first.net.weights.items()} == {k: v.tobytes() for k, v in second.net.weights.items()}


def test_each_pass_is_a_module_with_its_conditions() -> None:
    for name, module in {**NET_PASSES, **PLAN_PASSES}.items():
        assert module.NAME == name and callable(module.requires) and callable(module.run) and callable(module.ensures)
    assert set(SEQUENCE) <= set(NET_PASSES)


def test_an_invalid_network_is_refused_before_any_pass() -> None:
    net = toy_dense()
    with pytest.raises(InvalidIR, match="%q"):
        fold_net(Net(net.name, net.nodes, "q", net.weights))


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(UsageError, match="'polish'") as caught:
        run_net_pass("polish", toy_dense(), [])
    assert "fold, layout, lower, schedule, charge, memory" in caught.value.remedy


@pytest.mark.parametrize("module, before", [(layout, "fold"), (fold, "nothing")])
def test_a_pass_that_breaks_the_network_is_named(module: object, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run", lambda net: Net(net.name, net.nodes[:-1], net.output, net.weights))
    with pytest.raises(PassError) as caught:
        fold_net(toy_residual())
    name = module.NAME  # type: ignore[attr-defined]
    assert f"pass {name} broke its result" in caught.value.message and f"(before it: {before})" in caught.value.message
    assert "%linear" in caught.value.message and caught.value.remedy


@pytest.mark.parametrize("error", [KeyError("gone"), AssertionError(), IndexError("far")])
def test_a_pass_that_fails_is_named(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(net: Net) -> Net:
        raise error

    monkeypatch.setattr(layout, "run", fail)
    with pytest.raises(PassError, match=rf"pass layout failed: {type(error).__name__}.*\(before it: fold\)") as caught:
        fold_net(toy_residual())
    assert caught.value.__cause__ is error


def test_a_pass_that_does_not_finish_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "run", lambda net: net)
    net = read("net @n(%x: f32[2x2]) -> f32[4] {\n  %f = reshape %x {to=4} : f32[4]\n  return %f\n}")
    with pytest.raises(PassError, match=r"pass layout did not finish: %f still moves cells about \(before it: fold\)"):
        fold_net(net)


def test_a_pass_whose_conditions_do_not_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "requires", lambda net: "it is Monday")
    with pytest.raises(PassError, match=r"pass layout cannot run: it is Monday \(before it: fold\)"):
        fold_net(toy_residual())
    flat = read("net @n(%x: f32[2x2]) -> f32[4] {\n  %f = reshape %x {to=4} : f32[4]\n  return %f\n}")
    with pytest.raises(PassError, match=r"pass lower cannot run: %f: reshape was not folded") as caught:
        make_plan(flat)
    assert "fold and layout" in caught.value.remedy


PLANNED = ", ".join(SEQUENCE)


@pytest.mark.parametrize(
    "module, before",
    [
        (lower, PLANNED),
        (schedule, PLANNED + ", lower"),
        (charge, PLANNED + ", lower, schedule"),
        (memory, PLANNED + ", lower, schedule, charge"),
    ],
)
def test_a_plan_pass_that_breaks_the_plan_is_named(module: object, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = module.run  # type: ignore[attr-defined]

    def cut(*args: object) -> Plan:
        plan = kept(*args)
        return Plan(plan.name, plan.programs[:-1], plan.candidates, plan.halos)

    monkeypatch.setattr(module, "run", cut)
    net = fold_net(toy_residual())
    name = module.NAME  # type: ignore[attr-defined]
    with pytest.raises(PassError) as caught:
        make_plan(net)
    assert f"pass {name} broke its result: plan @toy_residual does not end with its one query (before it: {before})" in caught.value.message
    monkeypatch.setattr(module, "run", kept)
    monkeypatch.setattr(module, "ensures", lambda *args: "something is missing")
    with pytest.raises(PassError) as caught:
        make_plan(net)
    assert f"pass {name} did not finish: something is missing (before it: {before})" in caught.value.message
