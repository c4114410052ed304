"""Where candidate bounds are taken, in text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as limits

from polytriton.errors import UsageError
from polytriton.ir.net import Net
from polytriton.passes import schedule
from polytriton.passes.pipeline import fold_net, make_plan
from tests.filecheck import filecheck
from tests.oracle.nets import nets, toy_dense, toy_residual
from tests.passes.texts import plan_of, plan_text, read

DEEP = """
net @deep(%x: f32[4]) -> f32[4] {
  %a = linear %x {w=@w1, b=@b1} : f32[4]
  %ra = relu %a : f32[4]
  %b = linear %ra {w=@w2, b=@b2} : f32[4]
  %rb = relu %b : f32[4]
  %c = linear %rb {w=@w3, b=@b3} : f32[4]
  %rc = relu %c : f32[4]
  %y = linear %rc {w=@w4, b=@b4} : f32[4]
  return %y
}
"""


def test_every_frontier_before_a_nonlinear_step_gives_a_candidate() -> None:
    filecheck(
        plan_text(read(DEEP)),
        """
        CHECK: plan @deep candidates=all {
        CHECK: query %y {
        CHECK-NEXT: start %y -> %y [1 x 1] pay
        CHECK-NEXT: linear %y -> %rc [1 x 1] pay
        CHECK-NEXT: relu %rc -> %c [1 x 1] check pay
        CHECK-NEXT: linear %c -> %rb [1 x 1] pay
        CHECK-NEXT: relu %rb -> %b [1 x 1] check pay
        CHECK-NEXT: linear %b -> %ra [1 x 1] pay
        CHECK-NEXT: relu %ra -> %a [1 x 1] check pay
        CHECK-NEXT: linear %a -> %x [1 x 1] pay
        CHECK-NEXT: input %x check pay
        """,
    )


def test_the_frontier_behind_a_neurons_own_layer_is_what_the_interval_pass_saw() -> None:
    filecheck(
        plan_text(read(DEEP)),
        """
        CHECK: bound %c {
        CHECK: relu %rb -> %b [1 x 1] pay
        CHECK: relu %ra -> %a [1 x 1] check pay
        CHECK: input %x check
        """,
    )


def test_as_crown_does_bounds_are_taken_at_the_end_alone() -> None:
    filecheck(
        plan_text(read(DEEP), "input"),
        "CHECK: plan @deep candidates=input {\nCHECK: relu %rc -> %c [1 x 1] pay\nCHECK: relu %ra -> %a [1 x 1] pay\nCHECK: input %x check",
    )
    for p in plan_of(read(DEEP), "input"):
        assert [s.check for s in p.steps] == [False] * (len(p.steps) - 1) + [True]


def test_a_merge_makes_a_frontier_the_interval_pass_never_saw() -> None:
    text = """
    net @m(%x: f32[4]) -> f32[4] {
      %a = linear %x {w=@w1, b=@b1} : f32[4]
      %r = relu %a : f32[4]
      %p = linear %r {w=@w2, b=@b2} : f32[4]
      %s = add %p, %r : f32[4]
      %y = relu %s : f32[4]
      return %y
    }
    """
    filecheck(plan_text(read(text)), "CHECK: bound %s {\nCHECK: merge %r\nCHECK-NEXT: relu %r -> %a [1 x 1] check")


def test_a_join_makes_a_frontier_of_its_own() -> None:
    filecheck(plan_text(toy_residual()), "CHECK: bound %add {\nCHECK: add %add\nCHECK: relu %relu -> %conv {{.*}} check")


def test_a_pool_is_a_candidates_place_too() -> None:
    text = """
    net @p(%x: f32[1x6x6]) -> f32[1x3x3] {
      %a = conv %x {w=@w1, b=@b1, k=1x1} : f32[1x6x6]
      %m = maxpool %a {k=2x2, s=2x2} : f32[1x3x3]
      %b = conv %m {w=@w2, b=@b2, k=1x1} : f32[1x3x3]
      %r = relu %b : f32[1x3x3]
      %c = conv %r {w=@w3, b=@b3, k=1x1} : f32[1x3x3]
      %y = relu %c : f32[1x3x3]
      return %y
    }
    """
    filecheck(
        plan_text(read(text)),
        "CHECK: bound %b {\nCHECK: maxpool %m -> %a {{[^c]*}}ops\nCHECK: bound %c {\nCHECK: maxpool %m -> %a {{.*}} check",
    )


@given(nets())
@limits(max_examples=60)
def test_what_every_schedule_holds(net: Net) -> None:
    folded = fold_net(net)
    plans = {c: make_plan(folded, c) for c in schedule.CHOICES}
    for all_, end in zip(plans["all"], plans["input"], strict=True):
        assert [replace(s, check=False) for s in all_.steps] == [replace(s, check=False) for s in end.steps]
        assert [k for k, s in enumerate(end.steps) if s.check] == [len(end.steps) - 1]
        for s in all_.steps:
            assert not s.check or s.op in ("relu", "maxpool", "input"), "a candidate that the next nonlinear step would better"
        nonlinear = [s for s in all_.steps if s.op in ("relu", "maxpool")]
        assert sum(not s.check for s in nonlinear) <= (all_.kind == "bound"), "only the first frontier of a neuron is known already"


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(UsageError, match="candidates='some'") as caught:
        make_plan(fold_net(toy_dense()), "some")
    assert "all, input" in caught.value.remedy


def test_ensures_sees_a_program_without_a_bound() -> None:
    plan = plan_of(toy_dense())
    assert schedule.requires(toy_dense(), plan) is None and schedule.ensures(toy_dense(), plan) is None
    mute = replace(plan, programs=tuple(replace(p, steps=(*p.steps[:-1], replace(p.steps[-1], check=False))) for p in plan))
    assert schedule.ensures(toy_dense(), mute) == "the program of %linear_1 ends without a bound"
