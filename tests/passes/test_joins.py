"""Heads of joins: the node at which the branches meet again, by dominators."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import settings as limits

from polytriton.ir.net import Net
from polytriton.passes import joins
from tests.filecheck import filecheck
from tests.oracle.nets import JOIN_MOVES, nets
from tests.passes.texts import passed, read


def net(body: str, last: str = "y") -> Net:
    """Nodes over one image shape; `c`, `r`, `a`, ... abbreviate operators."""
    ops = {"c": "conv {operands} {{w=@w, b=@b, k=3x3, p=1,1,1,1}}", "r": "relu {operands}", "a": "add {operands}", "s": "sub {operands}"}
    lines = []
    for item in body.split(";"):
        name, op, *operands = item.split()
        lines.append(f"%{name} = {ops[op].format(operands=', '.join('%' + o for o in operands))} : f32[2x6x6]")
    return read("net @n(%x: f32[2x6x6]) -> f32[2x6x6] {\n" + "\n".join(lines) + f"\nreturn %{last}\n}}")


def check(body: str, checks: str) -> None:
    filecheck(passed(net(body), "joins"), checks)


def test_an_identity_shortcut() -> None:
    check("h c x; r r h; c c r; y a c r", "CHECK: %y = add %c, %r {head=%r}")


def test_a_shortcut_around_the_activation() -> None:
    check("h c x; r r h; c c r; y a c h", "CHECK: %y = add %c, %h {head=%h}")


def test_a_convolution_in_both_branches() -> None:
    check("h c x; r r h; p c r; q r p; s c q; t c r; y s s t", "CHECK: %y = sub %s, %t {head=%r}")


def test_a_join_at_the_input() -> None:
    check("c c x; y a c x", "CHECK: %y = add %c, %x {head=%x}")


def test_an_operand_taken_twice() -> None:
    check("c c x; y a c c", "CHECK: %y = add %c, %c {head=%c}")


def test_nested_blocks_have_their_own_heads() -> None:
    check(
        "h c x; r r h; p c r; q r p; i c q; j a i q; k r j; l c k; y a l r",
        "CHECK: %j = add %i, %q {head=%q}\nCHECK: %y = add %l, %r {head=%r}",
    )


def test_blocks_in_a_row() -> None:
    check("h c x; p a h x; q r p; i c q; y a i q", "CHECK: %p = add %h, %x {head=%x}\nCHECK: %y = add %i, %q {head=%q}")


def test_a_branch_that_leaves_the_block_pulls_the_head_up() -> None:
    """The second join also reads a node above the first join's head."""
    check(
        "h c x; r r h; p c r; q a p r; i c q; y a i h",
        "CHECK: %q = add %p, %r {head=%r}\nCHECK: %y = add %i, %h {head=%h}",
    )


def test_crossing_branches_meet_at_their_common_head() -> None:
    check(
        "h c x; p c h; q c h; s a p q; t a q p; y a s t",
        "CHECK: %s = add %p, %q {head=%h}\nCHECK: %t = add %q, %p {head=%h}\nCHECK: %y = add %s, %t {head=%h}",
    )


def test_dense_blocks() -> None:
    text = """
    net @dense(%x: f32[2x4x4]) -> f32[8x4x4] {
      %a = conv %x {w=@u, b=@d, k=1x1} : f32[2x4x4]
      %r = relu %a : f32[2x4x4]
      %b = conv %r {w=@v, b=@e, k=3x3, p=1,1,1,1} : f32[2x4x4]
      %c = concat %r, %b {axis=0} : f32[4x4x4]
      %s = relu %c : f32[4x4x4]
      %d = conv %s {w=@w, b=@f, k=3x3, p=1,1,1,1} : f32[2x4x4]
      %e = concat %r, %b, %d, %b {axis=0} : f32[8x4x4]
      return %e
    }
    """
    filecheck(
        passed(read(text), "joins"), "CHECK: %c = concat %r, %b {axis=0, head=%r}\nCHECK: %e = concat %r, %b, %d, %b {axis=0, head=%r}"
    )


def test_a_wrong_head_is_replaced() -> None:
    first = joins.run(net("h c x; r r h; c c r; y a c r"))
    wrong = first.rebuild([n.with_attrs(head="h") if n.op == "add" else n for n in first])
    assert joins.run(wrong) == first


def test_ensures_sees_a_missing_a_late_and_an_unknown_head() -> None:
    plain = net("c c x; y a c x")
    assert joins.requires(plain) is None and joins.ensures(plain) == "%y has no head before it"
    for head in ("y", "gone"):
        assert joins.ensures(plain.rebuild([n.with_attrs(head=head) if n.op == "add" else n for n in plain])) == "%y has no head before it"
    assert joins.ensures(joins.run(plain)) is None


@given(nets(moves=JOIN_MOVES))
@limits(max_examples=80)
def test_without_its_head_no_join_is_reached_and_no_later_node_is_such(net: Net) -> None:
    """The definition, by taking nodes away: the head separates the join from the input, and nothing behind it does."""
    out = joins.run(net)
    graph = nx.DiGraph([(i, n.name) for n in out for i in n.inputs])
    graph.add_node(out.input.name)
    order = {n.name: k for k, n in enumerate(out)}
    for n in out:
        if n.op not in joins.JOINS:
            continue
        head = str(n.attrs["head"])

        def cuts(name: str, n: object = n.name) -> bool:
            rest = graph.copy()
            rest.remove_node(name)
            return name == out.input.name or not nx.has_path(rest, out.input.name, n)

        assert cuts(head)
        assert not any(cuts(m.name) for m in out.nodes[order[head] + 1 : order[n.name]])
