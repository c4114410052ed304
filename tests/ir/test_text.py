"""Law 1: text parses back to what was printed, and text that is no IR is refused with its line and a remedy."""

from __future__ import annotations

import random
import string
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.errors import InvalidIR, PolytritonError
from polytriton.ir.check import check_net
from polytriton.ir.net import Builder, Net, Node, Ref
from polytriton.ir.plan import PAYMENTS, Axis, Plan, Program, Step, Window
from polytriton.ir.plan_text import parse_plan, print_plan
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import compile_net, fold_net
from tests.filecheck import filecheck
from tests.oracle.nets import nets, random_net, toy_conv, toy_residual

names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=6)


@given(nets())
@limits(max_examples=60)
def test_a_network_parses_back_before_and_after_the_passes(net: Net) -> None:
    for stage in (net, fold_net(net)):
        again = parse_net(print_net(stage), stage.weights)
        assert again == stage
        assert dict(again.weights).keys() == dict(stage.weights).keys()
        check_net(again)


@given(nets(), st.sampled_from(("all", "input")))
@limits(max_examples=40)
def test_a_compiled_plan_parses_back(net: Net, candidates: str) -> None:
    plan = compile_net(net, candidates).plan
    assert parse_plan(print_plan(plan)) == plan


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_attribute_is_kept_to_the_bit(slope: float) -> None:
    net = Net("f", (Node("x", "input", (), (2,)), Node("y", "relu", ("x",), (2,), {"slope": slope})), "y")
    got = parse_net(print_net(net)).nodes[1].attrs["slope"]
    assert isinstance(got, float) and got.hex() == slope.hex()


@pytest.mark.parametrize("slope", [1e-40, -1e-40, 5e-324, 1.7976931348623157e308, -0.0, 0.1 + 2**-55, float(np.float32(0.1)), 2])
def test_odd_floats_survive(slope: float) -> None:
    net = Net("f", (Node("x", "input", (), ()), Node("y", "relu", ("x",), (), {"slope": slope})), "y")
    again = parse_net(print_net(net))
    assert again == net and float(again.nodes[1].number("slope")).hex() == float(slope).hex()


def test_numpy_numbers_print_as_plain_ones() -> None:
    attrs = {"slope": np.float64(0.1)}
    net = Net("f", (Node("x", "input", (), (np.int64(2),)), Node("y", "relu", ("x",), (2,), attrs)), "y")  # type: ignore[arg-type]
    assert "slope=0.1" in print_net(net) and parse_net(print_net(net)) == net


def test_empty_tuples_and_scalars_survive() -> None:
    net = Net("f", (Node("x", "input", (), (1,)), Node("y", "reshape", ("x",), (), {"to": ()})), "y")
    check_net(net)
    assert parse_net(print_net(net)) == net


def test_the_text_of_the_architecture_page() -> None:
    filecheck(
        print_net(fold_net(toy_residual())),
        """
        CHECK: net @toy_residual(%x: f32[3x8x8]) -> f32[10] {
        CHECK-NEXT: %conv = conv %x {w=@{{w\\w*}}, b=@{{w\\w*}}, k=3x3, s=1x1, p=1,1,1,1} : f32[8x8x8]
        CHECK-NEXT: %relu = relu %conv : f32[8x8x8]
        CHECK-NEXT: %conv_1 = conv %relu
        CHECK-NEXT: %add = add %conv_1, %relu : f32[8x8x8]
        CHECK: return %linear
        CHECK-NEXT: }
        """,
    )


def test_comments_and_blank_lines_are_nothing() -> None:
    text = "\n// a net\n" + print_net(toy_conv()).replace("\n", "   // why\n\n")
    assert parse_net(text) == toy_conv()
    plan = compile_net(toy_conv()).plan
    assert parse_plan("// first\n" + print_plan(plan).replace("\n", " // why\n")) == plan


axes = st.builds(Axis, st.integers(1, 40), st.integers(1, 8), st.integers(-9, 9)) | st.builds(
    Axis, st.integers(1, 40), st.just(0), st.just(0)
)
windows = st.builds(Window, axes, axes)
payments = st.none() | st.lists(st.sampled_from(PAYMENTS), max_size=4).map(tuple)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    to = draw(st.lists(names, max_size=3))
    shown = tuple(draw(windows) for _ in to)
    count = st.integers(0, 10**12)
    marks = draw(st.booleans()), draw(st.booleans()), draw(payments)
    return Step(draw(names), draw(names), tuple(to), shown, *marks, draw(count), draw(count))


plans = st.builds(
    Plan,
    names,
    st.lists(st.builds(Program, st.sampled_from(("bound", "query")), names, st.lists(steps(), max_size=4).map(tuple)), max_size=3).map(
        tuple
    ),
    st.sampled_from(("all", "input")),
    st.dictionaries(names, st.tuples(*[st.integers(0, 99)] * 4), max_size=3),
)


@given(plans)
@limits(max_examples=100)
def test_any_plan_parses_back(plan: Plan) -> None:
    assert parse_plan(print_plan(plan)) == plan


NET = """\
net @n(%x: f32[2x4x4]) -> f32[3] {
  %c = conv %x {w=@w, b=@b, k=3x3, p=1,1,1,1} : f32[2x4x4]
  %r = relu %c {slope=0.5} : f32[2x4x4]
  %a = add %r, %x : f32[2x4x4]
  %y = linear %a {w=@m, b=@n} : f32[3]
  return %y
}
"""
PLAN = """\
plan @n candidates=all {
  halo %x 1,1,1,1
  bound %a {
    start    %a -> %a [1@1i+0 x 1@1i+0] ops=0 bytes=8
    conv     %a -> %x [3@1i-1 x 3@1i-1] check mask ops=1 bytes=8
    input    %x check ops=0 bytes=8
  }
}
"""


@pytest.mark.parametrize(
    "old, new, line, says",
    [
        ("net @n(", "network n(", 1, "not a net"),
        ("f32[2x4x4]) -> f32[3]", "f32[2x4x]) -> f32[3]", 1, "not a net"),
        ("-> f32[3] {", "-> f32[4] {", 1, "%y is 3"),
        ("%r = relu", "%r relu", 3, "cannot read"),
        ("{slope=0.5}", "{slope=half}", 3, "slope=half"),
        ("{slope=0.5}", "{slope=0.5, slope=0.25}", 3, "twice"),
        ("{slope=0.5}", "{incline=0.5}", 3, "incline"),
        ("k=3x3", "k=3,3", 2, "k=3,3"),
        ("w=@w", "w=w", 2, "w=w"),
        ("relu %c {slope=0.5}", "rely %c {slope=0.5}", 3, "rely"),
        ("f32[2x4x4]\n  %a", "f32[2x4x]\n  %a", 3, "cannot read"),
        ("  return", "  retrun", 6, "cannot read"),
        ("return %y\n}", "return %y\n  %z = relu %y : f32[3]\n}", 7, "after the return"),
        ("return %y\n}", "return %y\n}\n}", 8, "after the net"),
    ],
)
def test_what_is_no_network_is_refused_by_line(old: str, new: str, line: int, says: str) -> None:
    assert NET.count(old) == 1
    with pytest.raises(InvalidIR) as caught:
        parse_net(NET.replace(old, new))
    assert f"line {line}:" in caught.value.message and says in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "old, new, line",
    [
        ("plan @n", "plan n", 1),
        ("halo %x 1,1,1,1", "halo %x 1,1,1", 2),
        ("bound %a", "bind %a", 3),
        ("1@1i+0 x 1@1i+0", "1@1i+0 1@1i+0", 4),
        ("1@1i+0 x 1@1i+0", "1@i x 1@1i+0", 4),
        ("%a -> %a [1", "%a -> %a, %b [1", 4),
        ("%a -> %x [3", "%a -> %x 3", 5),
        (" bytes=8\n    conv", "\n    conv", 4),
        ("  }\n}", "  }\n}\nhalo %x 1,1,1,1", 9),
    ],
)
def test_what_is_no_plan_is_refused_by_line(old: str, new: str, line: int) -> None:
    assert PLAN.count(old) == 1
    with pytest.raises(InvalidIR) as caught:
        parse_plan(PLAN.replace(old, new))
    assert f"line {line}:" in caught.value.message and caught.value.remedy


@pytest.mark.parametrize("text", ["", "\n", "// nothing", NET.replace("return %y\n}", ""), NET.replace("\n}", "")])
def test_an_unfinished_network_is_refused(text: str) -> None:
    with pytest.raises(InvalidIR):
        parse_net(text)


@pytest.mark.parametrize("text", ["", PLAN[:-2], PLAN.replace("  }\n}", "}")])
def test_an_unfinished_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidIR):
        parse_plan(text)


def _mutate(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(text))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:i] + text[i + rng.randint(1, 4) :]
        elif kind == 1:
            text = text[:i] + rng.choice("%@{}[]x,=:-9 0\n/é²") + text[i:]
        elif kind == 2:
            lines = text.splitlines(keepends=True)
            rng.shuffle(lines)
            text = "".join(lines) if rng.random() < 0.2 else text[:i] + rng.choice(lines) + text[i:]
        else:
            j = rng.randrange(len(text))
            text = text[:i] + text[j : j + rng.randint(1, 9)] + text[i + 1 :]
        text = text or " "
    return text


def test_mutated_networks_raise_only_errors_for_users() -> None:
    rng = random.Random(7)
    accepted, remedies = 0, []
    for seed in range(12):
        net = random_net(seed)
        text = print_net(net)
        for _ in range(150):
            try:
                check_net(parse_net(_mutate(rng, text), net.weights))
                accepted += 1
            except PolytritonError as error:
                remedies.append(error.remedy)
    assert len(remedies) > 900 and accepted > 20 and all(remedies)


def test_mutated_plans_raise_only_errors_for_users() -> None:
    rng = random.Random(8)
    remedies = []
    for seed in range(12):
        plan = compile_net(random_net(seed, limit=60)).plan
        text = print_plan(plan)
        for _ in range(60):
            mutated = _mutate(rng, text)
            try:
                again = parse_plan(mutated)
                assert parse_plan(print_plan(again)) == again
            except PolytritonError as error:
                remedies.append(error.remedy)
    assert len(remedies) > 400 and all(remedies)


def test_equality_sees_every_part() -> None:
    """Otherwise the round trip would prove nothing."""
    net = parse_net(NET)
    assert net != replace(net, output="a") and net != replace(net, name="m")
    changed = [n.with_attrs(slope=0.25) if n.op == "relu" else n for n in net]
    assert net != net.rebuild(changed)
    plan = parse_plan(PLAN)
    assert plan != replace(plan, candidates="input") and plan != replace(plan, halos={})
    assert plan != parse_plan(PLAN.replace("check mask", "check")) and plan != parse_plan(PLAN.replace("3@1i-1 x", "3@1i-2 x"))


def test_the_builder_makes_legal_unique_names() -> None:
    b = Builder("n")
    x = b.input((2,), hint="ünïcode 1/2")
    y = b.add("relu", (x,), hint="ünïcode 1/2")
    z = b.add("relu", (y,), hint="...")
    assert len({x, y, z}) == 3
    assert b.constant(np.zeros(1), "a/b") == Ref("a_b") and b.constant(np.zeros(1), "a b") == Ref("a_b_1")
    net = b.build(z)
    check_net(net)
    assert parse_net(print_net(net)) == net
