"""Where branches meet again: at the node where they part, by the order of the plan alone. No network stores it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import settings as limits

from polytriton.errors import InvalidIR
from polytriton.ir.check import check_net
from polytriton.ir.net import Net
from polytriton.ir.plan import Program
from polytriton.passes.pipeline import fold_net, make_plan
from tests.oracle.nets import JOIN_MOVES, nets
from tests.passes.texts import passed, plan_of, read


def net(body: str, last: str = "y") -> Net:
    """Nodes over one image shape; `c`, `r`, `a`, ... abbreviate operators."""
    ops = {"c": "conv {operands} {{w=@w, b=@b, k=3x3, p=1,1,1,1}}", "r": "relu {operands}", "a": "add {operands}", "s": "sub {operands}"}
    lines = []
    for item in body.split(";"):
        name, op, *operands = item.split()
        lines.append(f"%{name} = {ops[op].format(operands=', '.join('%' + o for o in operands))} : f32[2x6x6]")
    return read("net @n(%x: f32[2x6x6]) -> f32[2x6x6] {\n" + "\n".join(lines) + f"\nreturn %{last}\n}}")


def merges(body: str) -> list[str]:
    """The nodes at which the query's branches meet, in the order of the program."""
    return [s.node for s in plan_of(net(body)).query.steps if s.op == "merge"]


@pytest.mark.parametrize(
    "body, met",
    [
        ("h c x; r r h; c c r; y a c r", ["r"]),  # an identity shortcut
        ("h c x; r r h; c c r; y a c h", ["h"]),  # a shortcut around the activation
        ("h c x; r r h; p c r; q r p; s c q; t c r; y s s t", ["r"]),  # a convolution in both branches
        ("c c x; y a c x", ["x"]),  # a sum at the input
        ("c c x; y a c c", ["c"]),  # an operand taken twice
        ("h c x; r r h; p c r; q r p; i c q; j a i q; k r j; l c k; y a l r", ["q", "r"]),  # a block within a block
        ("h c x; p a h x; q r p; i c q; y a i q", ["q", "x"]),  # a block behind a block
        ("h c x; r r h; p c r; q a p r; i c q; y a i h", ["r", "h"]),  # a branch that leaves the block: the outer sum meets above it
        ("h c x; p c h; q c h; s a p q; t a q p; y a s t", ["p", "q", "h"]),  # crossing branches
    ],
)
def test_branches_meet_where_they_part(body: str, met: list[str]) -> None:
    assert merges(body) == met


def separates(net: Net, name: str, target: str) -> bool:
    """Whether every way from the target back to the input leads through the node."""
    seen, open_ = set(), [target]
    while open_:
        at = open_.pop()
        if at != name and at not in seen:
            seen.add(at)
            open_ += net.node(at).inputs
    return net.input.name not in seen


def met_alone(net: Net, program: Program) -> int:
    """Holds the frontier against the definition of a dominator; returns how many nodes were met by two branches or more."""
    frontier = {program.target: 1}
    for step in program.steps[1:-1]:
        if step.op in ("merge", "dense"):
            continue
        if separates(net, step.node, program.target):
            assert set(frontier) == {step.node}, f"%{step.node} separates the target from the input, and {sorted(frontier)} are open"
        readers = {n.name for n in net if step.node in n.inputs}
        assert not readers & set(frontier), f"%{step.node} comes before its reader"
        frontier.pop(step.node)
        for name in step.to:
            frontier[name] = frontier.get(name, 0) + 1
    assert set(frontier) == {net.input.name}
    return sum(s.op == "merge" for s in program.steps)


@given(nets(moves=JOIN_MOVES))
@limits(max_examples=80)
def test_where_every_way_leads_through_a_node_it_is_met_alone(net: Net) -> None:
    """What a stored head would say: when an immediate dominator is substituted, no branch is still under way around it."""
    folded = fold_net(net)
    for program in make_plan(folded):
        ways = sum(len(folded.node(s.node).inputs) for s in program.steps[1:-1] if s.op not in ("merge", "dense"))
        reached = {name for s in program.steps for name in s.to} - {program.target}
        assert met_alone(folded, program) == ways - len(reached)


def test_the_passes_write_nothing_on_a_sum() -> None:
    folded = passed(net("h c x; r r h; c c r; y a c r"), "fold", "layout", "fold")
    assert "%y = add %c, %r " in folded and "head" not in folded


def test_a_head_is_no_attribute() -> None:
    """Networks of earlier versions stored one, which nothing read: a wrong one could not be noticed."""
    for op in "as":
        plain = net(f"c c x; y {op} c x")
        with pytest.raises(InvalidIR, match="head"):
            check_net(plain.rebuild([n.with_attrs(head="x") if n.name == "y" else n for n in plain]))


def test_compiling_loads_no_library_of_graphs() -> None:
    text = "import sys; from polytriton.passes.pipeline import compile_net; from tests.oracle.nets import toy_residual; "
    text += "compile_net(toy_residual()); print('networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["False"], done.stderr
