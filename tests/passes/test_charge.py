"""Who pays which rounding, in text; plans that forget a charge or pay one twice; executors that do as they are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits

from polytriton.arithmetic import ARITHMETICS
from polytriton.errors import InvalidIR, PassError
from polytriton.ir.check import check_plan
from polytriton.ir.launches import Launches
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan, Program
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.interval_launches import IntervalLowering
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames
from polytriton.passes import charge
from polytriton.passes.pipeline import PLAN_PASSES, Compiled, compile_net, fold_net, make_plan, run_plan_pass
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms
from tests.filecheck import filecheck
from tests.oracle.nets import nets, toy_conv, toy_residual
from tests.passes.texts import plan_text, read

POOLED = """
net @pooled(%x: f32[2x4x4]) -> f32[3] {
  %c = conv %x {w=@w0, b=@b0, k=3x3, p=1,1,1,1} : f32[4x4x4]
  %r = relu %c : f32[4x4x4]
  %m = maxpool %r {k=2x2, s=2x2} : f32[4x2x2]
  %y = linear %m {w=@w1, b=@b1} : f32[3]
  return %y
}
"""
SPLIT = """
net @split(%x: f32[4]) -> f32[4] {
  %a = linear %x {w=@w0, b=@b0} : f32[4]
  %n = scale %a {a=@a1, c=@c1} : f32[4]
  %r = relu %n : f32[4]
  %g = linear %r {w=@w2, b=@b2} : f32[4]
  %s = sub %g, %n : f32[4]
  %h = relu %s : f32[4]
  %y = linear %h {w=@w3, b=@b3} : f32[4]
  return %y
}
"""
INPUT = """
net @direct(%x: f32[4]) -> f32[2] {
  %r = relu %x : f32[4]
  %y = linear %r {w=@w, b=@b} : f32[2]
  return %y
}
"""


# ---- the pass -------------------------------------------------------------------------------------------------


def test_a_relu_pays_for_the_layer_right_behind_it() -> None:
    filecheck(
        plan_text(toy_conv()),
        """
        CHECK: query
        CHECK-NEXT: start {{.*}} pay=none ops
        CHECK-NEXT: linear {{.*}} pay=product ops
        CHECK-NEXT: relu {{.*}} check pay=behind ops
        CHECK-NEXT: conv {{.*}} pay=none ops
        CHECK: input %{{\\w+}} check pay=none ops
        """,
    )


def test_a_relu_that_a_pool_reads_pays_what_the_pool_left_and_for_the_layer_behind() -> None:
    filecheck(
        plan_text(read(POOLED)),
        """
        CHECK: query %y {
        CHECK: linear %y -> %m {{.*}} pay=product ops
        CHECK-NEXT: maxpool %m -> %r {{.*}} check pay=none ops
        CHECK: relu %r -> %c {{.*}} check pay=relu,behind ops
        CHECK-NEXT: conv %c -> %x {{.*}} pay=none ops
        """,
    )


def test_a_merge_pays_for_both_products_before_they_may_cancel() -> None:
    """What it leaves on the node counts as a product again: tables are by node, and know of no way on which it is none."""
    filecheck(
        plan_text(read(SPLIT)),
        """
        CHECK: query %y {
        CHECK: relu %h -> %s {{.*}} check pay=none ops
        CHECK-NEXT: sub %s -> %g {{.*}}, %n {{.*}} pay=relu,product ops
        CHECK-NEXT: linear %g -> %r {{.*}} pay=product ops
        CHECK-NEXT: relu %r -> %n {{.*}} check pay=none ops
        CHECK-NEXT: merge %n {{.*}} pay=relu,sum ops
        CHECK-NEXT: linear %n -> %x {{.*}} pay=relu,product ops
        """,
    )


def test_the_input_pays_where_a_relu_reads_it() -> None:
    filecheck(plan_text(read(INPUT)), "CHECK: relu %r -> %x {{.*}} pay=none ops\nCHECK-NEXT: input %x check pay=relu ops")


def test_a_candidate_is_taken_before_anybody_pays_for_what_lies_behind_it() -> None:
    """No schedule wants one right behind a ReLU; were there one, the row would be without what the ReLU has paid for the layer."""
    net = fold_net(toy_conv())
    plan = run_plan_pass("schedule", net, run_plan_pass("lower", net, None, []), [])
    steps = [replace(s, check=s.check or s.op == "conv") for s in plan.query.steps]
    marked = replace(plan, programs=(*plan.programs[:-1], replace(plan.query, steps=tuple(steps))))
    charged = run_plan_pass("charge", net, marked, [])
    assert not any(s.pays("behind") for s in charged.query.steps)
    assert [s.pay for s in charged.query.steps if s.op == "conv"] == [("relu", "product")] * sum(s.op == "conv" for s in steps)


@given(nets())
@limits(max_examples=60)
def test_every_rounding_is_paid_once(net: Net) -> None:
    """By soundness.md, section 7: counted by node and kind, whoever pays."""
    folded = fold_net(net)
    plan = make_plan(folded)
    read_by = {i for n in folded if n.op in ("relu", "maxpool") for i in n.inputs}
    taken = {s.node for p in plan for s in p.steps if s.op not in ("start", "dense")}
    assert plan.pending == read_by & taken
    for program in plan:
        paid, owed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for step in program.steps:
            for kind in step.pay or ():
                paid.update([(step.to[0], "relu"), (step.to[0], "product")] if kind == "behind" else [(step.node, kind)])
            if step.op in ("conv", "linear", "scale", "add", "sub", "concat", "gather"):
                owed[step.node, "product"] += 1
            if step.op == "merge":
                owed[step.node, "sum"] += 1
            if step.op not in ("start", "dense") and step.node in read_by:
                owed[step.node, "relu"] += 1
        assert paid == owed


# ---- the checker ----------------------------------------------------------------------------------------------


def changed(plan: Plan, op: str, node: str, pay: tuple[str, ...] | None, **more: bool) -> Plan:
    """The plan whose query pays something else at one step."""
    steps = plan.query.steps
    assert sum((s.op, s.node) == (op, node) for s in steps) == 1
    found = tuple(replace(s, pay=pay, **more) if (s.op, s.node) == (op, node) else s for s in steps)
    return replace(plan, programs=(*plan.programs[:-1], replace(plan.query, steps=found)))


WRONG: dict[str, tuple[str, str, str, tuple[str, ...] | None, str]] = {
    "a layer's product is forgotten": (SPLIT, "linear", "g", (), "linear %g: forgets to pay product"),
    "a layer's ReLU is forgotten": (SPLIT, "sub", "s", ("product",), "sub %s: forgets to pay relu"),
    "a merge's products are forgotten": (SPLIT, "merge", "n", ("sum",), "merge %n: forgets to pay relu"),
    "a merge's own sum is forgotten": (SPLIT, "merge", "n", ("relu",), "merge %n: forgets to pay sum"),
    "a pool's product is forgotten": (POOLED, "relu", "r", ("behind",), "relu %r: forgets to pay relu"),
    "an input's product is forgotten": (INPUT, "input", "x", (), "input %x: forgets to pay relu"),
    "nobody pays for the layer behind": (POOLED, "relu", "r", ("relu",), "conv %c: forgets to pay"),
    "the layer behind is paid twice": (POOLED, "conv", "c", ("product",), "conv %c: pays product twice"),
    "its ReLU is paid twice": (POOLED, "conv", "c", ("relu",), "conv %c: pays relu twice"),
    "one step pays twice": (SPLIT, "linear", "g", ("product", "product"), "linear %g: pays in another order, twice"),
    "another order": (SPLIT, "sub", "s", ("product", "relu"), "sub %s: pays in another order"),
    "an unknown kind": (SPLIT, "linear", "g", ("product", "tax"), "linear %g: pays in another order, twice, or what is not known"),
    "a ReLU that no other reads": (SPLIT, "relu", "h", ("relu",), "relu %h: pays relu, which it does not owe"),
    "a sum of no merge": (SPLIT, "linear", "g", ("sum", "product"), "linear %g: pays sum, which it does not owe"),
    "a product of no layer": (SPLIT, "relu", "h", ("product",), "relu %h: pays product, which it does not owe"),
    "a start": (SPLIT, "start", "y", ("product",), "start %y: pays product, which it does not owe"),
    "a layer for the one behind": (SPLIT, "sub", "s", ("relu", "product", "behind"), "sub %s: pays for a step that is not right behind it"),
    "a ReLU for a merge": (SPLIT, "relu", "r", ("behind",), "relu %r: pays for a step that is not right behind it"),
    "a ReLU for what it cannot": (SPLIT, "relu", "h", ("behind",), "relu %h: pays for a step that is not right behind it"),
    "nothing is said": (SPLIT, "linear", "g", None, "linear %g: does not say what it pays"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_counts(name: str) -> None:
    text, op, node, pay, says = WRONG[name]
    net = fold_net(read(text))
    plan = make_plan(net)
    check_plan(net, plan)
    with pytest.raises(InvalidIR) as caught:
        check_plan(net, changed(plan, op, node, pay))
    assert says in caught.value.message


def test_no_candidate_stands_between_a_relu_and_what_it_has_paid_for() -> None:
    """The row's constant would hold the layer's bias already, its coefficients would not: a wrong bound."""
    net = fold_net(read(POOLED))
    with pytest.raises(InvalidIR) as caught:
        check_plan(net, changed(make_plan(net), "conv", "c", (), check=True))
    assert "relu %r: pays for a step that is not right behind it" in caught.value.message


@pytest.mark.parametrize("gone", ["relu", "sum", "product", "behind"])
def test_a_pass_that_forgets_is_named(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = charge.run

    def careless(net: Net, plan: Plan) -> Plan:
        made = plain(net, plan)
        kept = [tuple(replace(s, pay=tuple(k for k in s.pay or () if k != gone)) for s in p.steps) for p in made]
        return replace(made, programs=tuple(replace(p, steps=s) for p, s in zip(made, kept, strict=True)))

    monkeypatch.setattr(charge, "run", careless)
    net = fold_net(toy_residual() if gone == "behind" else read(SPLIT))
    with pytest.raises(PassError, match=r"pass charge broke its result: .* forgets to pay"):
        make_plan(net)


# ---- who executes it ------------------------------------------------------------------------------------------


def uncharged(net: Net) -> Plan:
    plan = None
    for name in PLAN_PASSES:
        if name != "charge":
            plan = run_plan_pass(name, net, plan, [])
    assert plan is not None
    return plan


def test_a_plan_that_does_not_say_who_pays_is_not_run() -> None:
    net = fold_net(toy_residual())
    plan = uncharged(net)
    with pytest.raises(InvalidIR, match="does not say what it pays"):
        Engine(Compiled(net, plan))
    for lowering in (Lowering, IntervalLowering):
        with pytest.raises(InvalidIR, match="does not say what it pays"):
            lowering(Emitter(), Frames(net, plan), ARITHMETICS["float64"], plan.query).run()


def apart(plan: Plan) -> Plan:
    """The same charges, every one with its own step."""

    def own(p: Program) -> Program:
        steps, ahead = [], False
        for s in p.steps:
            pay = ("relu", "product") if ahead else tuple(k for k in s.pay or () if k != "behind")
            ahead = s.pays("behind")
            steps.append(replace(s, pay=pay))
        return replace(p, steps=tuple(steps))

    return replace(plan, programs=tuple(own(p) for p in plan))


def error(compiled: Compiled) -> np.ndarray:
    """What the query's rows have paid at the end."""
    engine = Engine(compiled, dtype="float32", semantics="float32")
    x = torch.from_numpy(np.random.default_rng(3).random((1, compiled.net.input.size)))
    forms = Forms(torch.zeros(3, dtype=torch.int64), torch.eye(3, compiled.net.node(compiled.net.output).size, dtype=torch.float64))
    found = engine.query(engine.refine(x - 0.1, x + 0.1), forms)
    return np.asarray(found.raw - found.best)


@pytest.mark.parametrize("text", [POOLED, SPLIT, ""])
def test_whoever_pays_rows_pay_the_same(text: str) -> None:
    compiled = compile_net(read(text) if text else toy_residual(), candidates="input")
    other = replace(compiled, plan=apart(compiled.plan))
    check_plan(compiled.net, other.plan)
    np.testing.assert_allclose(error(other), error(compiled), rtol=1e-6)


@pytest.mark.parametrize("text, numerics", [(POOLED, "float32"), ("", "interval64")])
def test_whoever_pays_launches_are_the_same(text: str, numerics: str) -> None:
    """A ReLU with a pass of its own leaves what it pays for the layer behind to that layer's kernel."""
    net = fold_net(read(text) if text else toy_residual())
    plan = make_plan(net)
    made, other = (launches(net, p, numerics)[0] for p in (plan, apart(plan)))
    assert plan != apart(plan) and made.steps == other.steps


@pytest.mark.parametrize(
    "op, node, left", [("linear", "y", ()), ("sub", "s", ("relu",)), ("merge", "n", ("relu",)), ("merge", "n", ("sum",))]
)
def test_the_walk_pays_what_the_plan_says_and_nothing_else(op: str, node: str, left: tuple[str, ...]) -> None:
    compiled = compile_net(read(SPLIT), candidates="input")
    less = replace(compiled, plan=changed(compiled.plan, op, node, left))
    assert (error(less) < error(compiled) * (1 - 1e-3)).all()


def launches(net: Net, plan: Plan, numerics: str = "float32") -> tuple[Launches, list[tuple[str, object]]]:
    emitter, kind = Emitter(), IntervalLowering if numerics.startswith("interval") else Lowering
    made = kind(emitter, Frames(net, plan), ARITHMETICS[numerics], plan.query).run()
    uses = [u for found in emitter.uses.values() for u in found]
    told = {(u.step, u.function): dict(u.constants) for u in uses}
    return made, [(step.split()[0], told[step, f].get("CHARGE", told[step, f].get("OUT_REL"))) for step, f in told]


def test_launches_pay_what_the_plan_says_and_nothing_else() -> None:
    net = fold_net(read(SPLIT))
    plan = make_plan(net)
    _, pays = launches(net, plan)
    assert ("%g", True) in pays and any(name == "%n" and value not in (None, True, False, 0.0) for name, value in pays)
    _, less = launches(net, changed(plan, "linear", "g", ()))
    assert ("%g", False) in less and ("%g", True) not in less
    _, less = launches(net, changed(plan, "merge", "n", ("relu",)))
    assert ("%n", 0.0) in less


def test_a_scale_whose_kernel_cannot_but_charge_is_not_launched_without() -> None:
    net = fold_net(
        read(INPUT.replace("linear %r {w=@w, b=@b} : f32[2]", "scale %r {a=@a, c=@c} : f32[4]").replace("-> f32[2]", "-> f32[4]"))
    )
    launches(net, make_plan(net))
    with pytest.raises(AssertionError, match="the kernel charges it"):
        launches(net, changed(make_plan(net), "scale", "y", ()))


def test_interval_launches_add_a_layers_constants_where_the_plan_says_so() -> None:
    net = fold_net(read(SPLIT))
    plan = make_plan(net)
    whole = [s.function for s in launches(net, plan, "interval64")[0].steps]
    less = [s.function for s in launches(net, changed(plan, "linear", "g", ()), "interval64")[0].steps]
    assert len(whole) == len(less) + 1 and whole.count("interval_concretize") == less.count("interval_concretize") + 1
