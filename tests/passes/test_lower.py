"""Programs of the Plan, in text: what is substituted when, on which windows, and what each step must do besides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits

from polytriton.errors import InvalidIR
from polytriton.ir.check import check_plan
from polytriton.ir.net import Net
from polytriton.ir.ops import OPS
from polytriton.ir.plan import Axis, Plan, Step, Window
from polytriton.passes import lower
from polytriton.passes.pipeline import fold_net, make_plan
from tests.filecheck import filecheck
from tests.oracle.nets import nets, toy_conv, toy_dense, toy_residual
from tests.passes.texts import after, plan_of, plan_text, read


def test_the_residual_network_of_the_architecture_page() -> None:
    filecheck(
        plan_text(toy_residual()),
        """
        CHECK: plan @toy_residual candidates=all {
        CHECK: bound %add {
        CHECK-NEXT: start %add -> %add [1@1i+0 x 1@1i+0]
        CHECK-NEXT: add %add -> %conv_1 [1@1i+0 x 1@1i+0], %relu [1@1i+0 x 1@1i+0]
        CHECK-NEXT: conv %conv_1 -> %relu [3@1i-1 x 3@1i-1]
        CHECK-NEXT: merge %relu -> %relu [3@1i-1 x 3@1i-1]
        CHECK-NEXT: relu %relu -> %conv [3@1i-1 x 3@1i-1] check
        CHECK-NEXT: conv %conv -> %x [5@1i-2 x 5@1i-2]
        CHECK-NEXT: input %x check
        CHECK-NEXT: }
        CHECK-NEXT: query %linear {
        CHECK-NEXT: start %linear -> %linear [1 x 1]
        CHECK-NEXT: linear %linear -> %relu_1 [8 x 8]
        CHECK-NEXT: relu %relu_1 -> %add [8 x 8] check
        """,
    )


def test_one_affine_layer_over_the_input_needs_no_program() -> None:
    filecheck(plan_text(toy_conv()), "CHECK-NOT: bound %conv {\nCHECK: bound %conv_1 {\nCHECK-NOT: bound\nCHECK: query %linear {")
    filecheck(plan_text(toy_dense()), "CHECK-NOT: bound %linear {\nCHECK: bound %linear_1 {\nCHECK: query %linear_2 {")


BRANCHES = """
net @b(%x: f32[2x12x12]) -> f32[2x12x12] {
  %h = conv %x {w=@wh, b=@bh, k=1x1} : f32[2x12x12]
  %g = relu %h : f32[2x12x12]
  %p = conv %g {w=@w1, b=@b1, k=3x3, p=1,1,1,1} : f32[2x12x12]
  %q = relu %p : f32[2x12x12]
  %r = conv %q {w=@w2, b=@b2, k=3x3, p=1,1,1,1} : f32[2x12x12]
  %t = conv %g {w=@w3, b=@b3, k=1x1} : f32[2x12x12]
  %s = add %r, %t : f32[2x12x12]
  %y = relu %s : f32[2x12x12]
  return %y
}
"""


def test_branches_are_substituted_on_their_own_windows_and_meet_where_they_part() -> None:
    filecheck(
        plan_text(read(BRANCHES)),
        """
        CHECK: bound %s {
        CHECK-NEXT: start
        CHECK-NEXT: add %s -> %r [1@1i+0 x 1@1i+0], %t [1@1i+0 x 1@1i+0]
        CHECK-NEXT: conv %t -> %g [1@1i+0 x 1@1i+0]
        CHECK-NEXT: conv %r -> %q [3@1i-1 x 3@1i-1]
        CHECK-NEXT: relu %q -> %p [3@1i-1 x 3@1i-1]
        CHECK-NEXT: conv %p -> %g [5@1i-2 x 5@1i-2]
        CHECK-NEXT: merge %g -> %g [5@1i-2 x 5@1i-2]
        CHECK-NEXT: relu %g -> %h [5@1i-2 x 5@1i-2] check
        CHECK-NEXT: conv %h -> %x [5@1i-2 x 5@1i-2]
        CHECK-NEXT: input
        """,
    )


def test_strides_that_differ_meet_on_the_whole_image() -> None:
    """One branch looks at every cell, the other at every second: no window moves with both."""
    text = """
    net @n(%x: f32[1x16x16]) -> f32[1x8x8] {
      %h = conv %x {w=@wh, b=@bh, k=1x1} : f32[1x16x16]
      %g = relu %h : f32[1x16x16]
      %p = conv %g {w=@w1, b=@b1, k=2x2, s=2x2} : f32[1x8x8]
      %t = slice %g {axis=1, start=4, step=1, size=8} : f32[1x8x16]
      %u = slice %t {axis=2, start=0, step=1, size=8} : f32[1x8x8]
      %s = add %p, %u : f32[1x8x8]
      %y = relu %s : f32[1x8x8]
      return %y
    }
    """
    filecheck(plan_text(read(text)), "CHECK: bound %s\nCHECK: conv %p -> %g [2@2i+0 x 2@2i+0]\nCHECK-NEXT: merge %g -> %g [16 x 16]")


MASKS = """
net @m(%x: f32[2x12x12]) -> f32[2x{n}x{n}] {{
  %h = conv %x {{w=@wh, b=@bh, k=1x1}} : f32[2x12x12]
  %g = {op} : f32[2x12x12]
  %p = conv %g {{w=@w1, b=@b1, k=3x3, p={p}}} : f32[2x{n}x{n}]
  %y = relu %p : f32[2x{n}x{n}]
  return %y
}}
"""


@pytest.mark.parametrize(
    "op, mask",
    [
        ("relu %h", False),  # the margin's slopes are zero
        ("maxpool %h {k=1x1}", False),
        ("scale %h {a=@a, c=@c}", True),
        ("conv %h {w=@w2, b=@b2, k=1x1}", True),
        ("add %h, %h", True),
    ],
)
def test_coefficients_off_the_image_are_zeroed_where_an_affine_node_would_carry_them_on(op: str, mask: bool) -> None:
    scale = {"a": np.arange(1, 145, dtype=np.float32).reshape(1, 12, 12)} if "scale" in op else {}
    want = "mask" if mask else "{{(check )?pay}}"
    filecheck(plan_text(read(MASKS.format(op=op, p="1,1,1,1", n=12), **scale)), f"CHECK: conv %p -> %g [3@1i-1 x 3@1i-1] {want}")
    filecheck(plan_text(read(MASKS.format(op=op, p="0,0,0,0", n=10), **scale)), "CHECK: conv %p -> %g [3@1i+0 x 3@1i+0] {{(check )?pay}}")


def test_the_input_needs_no_mask() -> None:
    filecheck(plan_text(toy_residual()), "CHECK-NOT: mask\nCHECK: query")


def test_a_window_becomes_dense_before_a_linear_layer() -> None:
    text = """
    net @n(%x: f32[8]) -> f32[2x4x4] {
      %h = linear %x {w=@w, b=@b} : f32[8]
      %r = relu %h : f32[8]
      %l = linear %r {w=@v, b=@d, to=2x4x4} : f32[2x4x4]
      %c = conv %l {w=@u, b=@e, k=2x2, p=0,0,1,1} : f32[2x4x4]
      %y = relu %c : f32[2x4x4]
      return %y
    }
    """
    filecheck(
        plan_text(read(text)),
        "CHECK: bound %c\n"
        "CHECK-NEXT: start\n"
        "CHECK-NEXT: conv %c -> %l [2@1i+0 x 2@1i+0] mask\n"
        "CHECK-NEXT: dense %l -> %l [4 x 4]\n"
        "CHECK-NEXT: linear %l -> %r [1 x 1]",
    )


def test_channels_that_move_keep_the_window_and_cells_that_move_do_not() -> None:
    text = """
    net @n(%x: f32[2x9x9]) -> f32[2x9x9] {
      %h = conv %x {w=@wh, b=@bh, k=1x1} : f32[2x9x9]
      %g = relu %h : f32[2x9x9]
      %f = gather %g {index=@i, to=2x9x9} : f32[2x9x9]
      %c = conv %f {w=@w, b=@b, k=3x3, p=1,1,1,1} : f32[2x9x9]
      %y = relu %c : f32[2x9x9]
      return %y
    }
    """
    cells = np.arange(162).reshape(2, 9, 9)
    filecheck(
        plan_text(read(text, i=cells[::-1].ravel())),
        "CHECK: conv %c -> %f [3@1i-1 x 3@1i-1] mask\nCHECK-NEXT: gather %f -> %g [3@1i-1 x 3@1i-1]",
    )
    filecheck(
        plan_text(read(text, i=cells[:, ::-1].ravel())),
        "CHECK: conv %c -> %f [3@1i-1 x 3@1i-1] mask\nCHECK-NEXT: dense %f\nCHECK-NEXT: gather %f -> %g [9 x 9]",
    )
    padded = np.where(cells[::-1] < 81, cells[::-1], -1)
    filecheck(plan_text(read(text, i=padded.ravel())), "CHECK: dense %f\nCHECK-NEXT: gather %f -> %g [9 x 9]")


def test_channel_gathers_are_told_apart() -> None:
    text = """
    net @n(%x: f32[3x2x2]) -> f32[{to}] {{
      %r = relu %x : f32[3x2x2]
      %g = gather %r {{index=@i, to={to}}} : f32[{to}]
      return %g
    }}
    """
    cells = np.arange(12).reshape(3, 4)

    def picked(index: np.ndarray, to: str = "2x2x2") -> list[int] | None:
        net = read(text.format(to=to), i=index.ravel())
        found = lower.channel_gather(net, net.node("g"))
        return None if found is None else found.tolist()

    assert picked(cells[[2, 0]]) == [2, 0] and picked(cells[[1, 1]]) == [1, 1]
    assert picked(cells[[2, 0]][:, ::-1]) is None and picked(cells[[2, 0]], "8") is None and picked(cells[[2, 0]], "2x4x1") is None
    assert picked(np.where(cells[[0, 1]] > 6, -1, cells[[0, 1]])) is None


def test_concatenated_channels_keep_the_window_and_concatenated_rows_do_not() -> None:
    text = """
    net @n(%x: f32[2x9x9]) -> f32[{shape}] {{
      %h = conv %x {{w=@wh, b=@bh, k=1x1}} : f32[2x9x9]
      %g = relu %h : f32[2x9x9]
      %p = conv %g {{w=@w1, b=@b1, k=1x1}} : f32[2x9x9]
      %k = concat %g, %p {{axis={axis}}} : f32[{shape}]
      %c = conv %k {{w=@w, b=@b, k=3x3, p=1,1,1,1}} : f32[{shape}]
      %y = relu %c : f32[{shape}]
      return %y
    }}
    """
    filecheck(
        plan_text(read(text.format(axis=0, shape="4x9x9"))),
        "CHECK: conv %c\nCHECK-NEXT: concat %k -> %g [3@1i-1 x 3@1i-1], %p [3@1i-1 x 3@1i-1]",
    )
    filecheck(
        plan_text(read(text.format(axis=1, shape="2x18x9"))),
        "CHECK: conv %c\nCHECK-NEXT: dense %k -> %k [18 x 9]\nCHECK-NEXT: concat %k -> %g [9 x 9], %p [9 x 9]",
    )


def test_a_node_reached_three_times_is_merged_twice() -> None:
    text = """
    net @n(%x: f32[3]) -> f32[3] {
      %h = linear %x {w=@w, b=@b} : f32[3]
      %r = relu %h : f32[3]
      %t = add %r, %r : f32[3]
      %c = linear %r {w=@v, b=@d} : f32[3]
      %s = add %t, %c : f32[3]
      %y = relu %s : f32[3]
      return %y
    }
    """
    filecheck(
        plan_text(read(text)),
        "CHECK: linear %c -> %r\n"
        "CHECK-NEXT: add %t -> %r [1 x 1], %r [1 x 1]\n"
        "CHECK-NEXT: merge %r\n"
        "CHECK-NEXT: merge %r\n"
        "CHECK-NEXT: relu %r",
    )


def test_what_lower_requires() -> None:
    net = read("net @n(%x: f32[2x2]) -> f32[4] {\n  %f = reshape %x {to=4} : f32[4]\n  return %f\n}")
    assert lower.requires(net) == "%f: reshape was not folded"
    assert lower.requires(after(net, "layout")) is None


def test_what_lower_ensures() -> None:
    plan = plan_of(toy_dense())
    assert lower.ensures(plan) is None
    for steps in ((), plan.query.steps[:-1], plan.query.steps[1:]):
        assert (
            lower.ensures(replace(plan, programs=(replace(plan.query, steps=steps),)))
            == "the program of %linear_2 does not run from start to input"
        )


@given(nets())
@limits(max_examples=100)
def test_every_plan_bounds_what_decides_a_relaxation_once_and_in_order(net: Net) -> None:
    folded = fold_net(net)
    plan = make_plan(folded)
    check_plan(folded, plan)
    users = folded.users()
    first = {n.name for n in folded if n.inputs == (folded.input.name,)}
    wanted = [
        n.name
        for n in folded
        if any(OPS[folded.node(u).op].kind == "nonlinear" for u in users[n.name])
        and OPS[n.op].kind in ("affine", "layout")
        and n.name not in first
    ]
    assert [p.target for p in plan if p.kind == "bound"] == wanted
    assert plan.programs[-1].kind == "query" and plan.query.target == folded.output


# ---- the checker --------------------------------------------------------------------------------------------


def spoil(plan: Plan, program: int, at: int, *steps: Step) -> Plan:
    p = plan.programs[program]
    changed = replace(p, steps=(*p.steps[:at], *steps, *p.steps[at + 1 :]))
    return replace(plan, programs=(*plan.programs[:program], changed, *plan.programs[program + 1 :]))


def broken_plans() -> dict[str, tuple[Plan, str]]:
    plan = plan_of(toy_residual())
    steps = plan.programs[0].steps  # start, add, conv, merge, relu, conv, input
    far = Window(Axis(3, 1, 2), Axis(3, 1, 1))
    empty = Window(Axis(0, 1, 0), Axis(3, 1, 1))
    image = Window(Axis(7, 0, 0), Axis(8, 0, 0))
    return {
        "no query": (replace(plan, programs=plan.programs[:-1]), "does not end with its one query"),
        "query first": (replace(plan, programs=plan.programs[::-1]), "does not end with its one query"),
        "bounded twice": (replace(plan, programs=(plan.programs[0], *plan.programs)), "bounds a node twice"),
        "unknown target": (replace(plan, programs=(replace(plan.programs[0], target="q"), plan.query)), "%q"),
        "unknown margin": (replace(plan, halos={**plan.halos, "q": (0, 0, 0, 0)}), "%q"),
        "no steps": (replace(plan, programs=(replace(plan.programs[0], steps=()), plan.query)), "has no steps"),
        "no start": (spoil(plan, 0, 0), "add %add: stands in the wrong place"),
        "no end": (spoil(plan, 0, 6), "conv %conv: stands in the wrong place"),
        "not at the frontier": (spoil(plan, 0, 4), "conv %conv: is not at the frontier"),
        "unmerged": (spoil(plan, 0, 3), "relu %relu: comes before a merge"),
        "merged twice": (spoil(plan, 0, 3, steps[3], steps[3]), "merge %relu: has nothing to merge"),
        "another operator": (spoil(plan, 0, 2, replace(steps[2], op="maxpool")), "maxpool %conv_1: is not what the network computes"),
        "another operand": (spoil(plan, 0, 2, replace(steps[2], to=("conv",))), "conv %conv_1: is not what the network computes"),
        "no window": (spoil(plan, 0, 2, replace(steps[2], windows=())), "conv %conv_1: a window for every operand is missing"),
        "empty window": (spoil(plan, 0, 2, replace(steps[2], windows=(empty,))), "holds no cell"),
        "another image": (spoil(plan, 0, 2, replace(steps[2], windows=(image,))), "is not its image"),
        "past the margin": (spoil(plan, 0, 2, replace(steps[2], windows=(far,))), "leaves the margin of %relu"),
        "dense elsewhere": (spoil(plan, 0, 3, steps[3], Step("dense", "relu", ("conv",), (far,))), "dense %relu: leads to another node"),
    }  # fmt: skip


BROKEN = broken_plans()


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_sees_what_is_wrong(name: str) -> None:
    net = fold_net(toy_residual())
    check_plan(net, plan_of(toy_residual()))
    plan, says = BROKEN[name]
    with pytest.raises(InvalidIR) as caught:
        check_plan(net, plan)
    assert says in caught.value.message and caught.value.remedy
