"""The law of the deployed network: what every pass keeps, and that each thing it could lose is missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.errors import PassError
from polytriton.ir.deployed import broken_law
from polytriton.ir.net import Builder, Net, Node, Ref
from polytriton.passes import fold, layout, rewrite
from tests.oracle.nets import random_net

F32 = np.float32


def rng_weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def shifted_columns() -> Net:
    """Constants beside an activation, as the importer writes them, and a layer that reads both."""
    b = Builder("constants")
    x = b.input((3,))
    p = b.add("pad", [x], "p", lo=(2,), hi=(4,))
    c = np.concatenate([[1, 2], np.zeros(3), np.ones(4)]).astype(F32)
    s = b.add("scale", [p], "s", a=b.constant(np.ones(1, F32)), c=b.constant(c))
    return b.build(b.add("linear", [s], "y", w=b.constant(rng_weights(5, 9)), b=b.constant(rng_weights(5))))


def plain_shift() -> Net:
    """A normalisation before a layer, and nothing that moves cells."""
    b = Builder("shift")
    s = b.add("scale", [b.input((4,))], "s", a=b.constant(np.ones(1, F32)), c=b.constant(np.ones(1, F32)))
    return b.build(b.add("linear", [s], "y", w=b.constant(rng_weights(2, 4)), b=b.constant(rng_weights(2))))


def repeated_cells(cells: int = 6) -> Net:
    b = Builder("repeats")
    r = b.add("relu", [b.input((cells,))], "r")
    g = b.add("gather", [r], "g", index=b.constant(np.tile([0, 1, -1], 4)), to=(12,))
    return b.build(b.add("linear", [g], "y", w=b.constant(rng_weights(2, 12)), b=b.constant(rng_weights(2))))


def few_of_many() -> Net:
    """All the source's cells outnumber what the gather makes of two."""
    return repeated_cells(60)


def two_layers() -> Net:
    b = Builder("bottleneck")
    h = b.add("linear", [b.input((3,))], "h", w=b.constant(rng_weights(8, 3)), b=b.constant(rng_weights(8)))
    return b.build(b.add("linear", [h], "y", w=b.constant(rng_weights(3, 8, seed=1)), b=b.constant(rng_weights(3))))


def counted_layers() -> Net:
    """Two layers of which the first absorbed constants, the second repeated cells."""
    net = two_layers()
    given = {"h": 50, "y": 70}
    return net.rebuild([n.with_attrs(summands=given[n.name], ops=2) if n.name in given else n for n in net])


def padded_image() -> Net:
    b = Builder("padded")
    p = b.add("pad", [b.input((2, 3, 3))], "p", lo=(0, 1, 1), hi=(0, 1, 1))
    s = b.add("scale", [p], "s", a=b.constant(rng_weights(2, 1, 1)), c=b.constant(rng_weights(2, 1, 1, seed=2)))
    w, bias = b.constant(rng_weights(4, 2, 3, 3)), b.constant(rng_weights(4))
    return b.build(b.add("conv", [s], "y", w=w, b=bias, k=(3, 3)))


def taken_input() -> Net:
    b = Builder("taken")
    g = b.add("gather", [b.input((4,))], "g", index=b.constant(np.array([3, -1, 0])), to=(3,))
    return b.build(b.add("relu", [g], "y"))


def copies(op: str) -> Net:
    """Cells are copied and then computed with, each copy on its own."""
    b = Builder("copies")
    x = b.input((2,))
    index = b.constant(np.array([0, 1, 1, 0]))
    r = b.add("relu", [b.add("linear", [x], "l", w=b.constant(rng_weights(2, 2)), b=b.constant(rng_weights(2)))], "r")
    g = b.add("gather", [r], "g", index=index, to=(4,))
    if op == "leaky":
        h = b.add("relu", [g], "h", slope=0.3)
    elif op == "relu":
        h = b.add("relu", [g], "h")
    elif op == "scale":
        h = b.add("scale", [g], "h", a=b.constant(np.full(1, 3, F32)), c=b.constant(np.zeros(1, F32)))
    else:
        s = b.add("relu", [x], "s")
        h = b.add(op, [g, b.add("gather", [s], "k", index=index, to=(4,))], "h")
    return b.build(b.add("linear", [h], "y", w=b.constant(rng_weights(2, 4)), b=b.constant(rng_weights(2))))


Rewriting = tuple[str, Net, Net]


def rewritings(net: Net, monkeypatch: pytest.MonkeyPatch) -> list[Rewriting]:
    """Every rewriting of both passes, before and after."""
    found: list[Rewriting] = []
    real = rewrite.rewrite

    def noted(rule: str, before: Net, after: Net) -> Net:
        out = real(rule, before, after)
        found.append((rule, before, out))
        return out

    monkeypatch.setattr(fold, "rewrite", noted)
    monkeypatch.setattr(layout, "rewrite", noted)
    fold.run(layout.run(fold.run(net)))
    return found


def changed(net: Net, name: str, change: Callable[[Node], Node], **weights: np.ndarray) -> Net:
    return net.rebuild([change(n) if n.name == name else n for n in net], weights)


def lowered(key: str, by: int = 1) -> Callable[[Net], Net]:
    """One number of %y too small."""
    return lambda net: changed(net, "y", lambda n: n.with_attrs(**{key: n.integer(key) - by}))


def dropped(*keys: str) -> Callable[[Net], Net]:
    return lambda net: changed(net, "y", lambda n: n.drop(*keys))


def shrunk(key: str) -> Callable[[Net], Net]:
    """Magnitudes of one weight or constant forgotten."""

    def work(net: Net) -> Net:
        made = net.weight(net.node("y"), key)
        assert made is not None
        made = made.copy()
        made[np.unravel_index(np.argmax(made), made.shape)] = 0
        return changed(net, "y", lambda n: n.with_attrs(**{key: Ref("smaller")}), smaller=made)

    return work


def without_half(net: Net) -> Net:
    return net.rebuild([n.drop("half") if n.op == "input" else n for n in net])


def lost_cells(net: Net) -> Net:
    """The input's cells are taken with one of them replaced by padding."""
    return changed(net, net.input.name, lambda n: n.with_attrs(take=Ref("fewer")), fewer=np.array([3, -1, -1]))


LOSSES: list[tuple[Callable[[], Net], str, Callable[[Net], Net], str]] = [
    (shifted_columns, "scale before linear", lowered("summands"), "roundings"),
    (shifted_columns, "scale before linear", dropped("summands"), "roundings"),
    (shifted_columns, "scale before linear", lowered("ops"), "roundings"),
    (shifted_columns, "scale before linear", shrunk("babs"), "magnitudes"),
    (shifted_columns, "gather into reader", dropped("summands"), "roundings"),
    (shifted_columns, "gather into reader", lowered("summands", 6), "roundings"),
    (plain_shift, "scale before linear", dropped("summands"), "roundings"),
    (repeated_cells, "gather into reader", dropped("summands"), "roundings"),
    (repeated_cells, "gather into reader", lowered("summands", 4), "roundings"),
    (few_of_many, "gather into reader", dropped("summands"), "roundings"),
    (repeated_cells, "gather into reader", dropped("wabs"), "magnitudes"),
    (repeated_cells, "gather into reader", shrunk("wabs"), "magnitudes"),
    (two_layers, "linear after linear", lowered("ops", 2), "roundings"),
    (two_layers, "linear after linear", lowered("products"), "conversions"),
    (two_layers, "linear after linear", shrunk("wabs"), "magnitudes"),
    (two_layers, "linear after linear", shrunk("babs"), "magnitudes"),
    (counted_layers, "linear after linear", dropped("summands"), "roundings"),
    (counted_layers, "linear after linear", lowered("ops", 63), "roundings"),
    (padded_image, "scale before conv", lowered("summands"), "roundings"),
    (padded_image, "scale before conv", dropped("summands"), "roundings"),
    (padded_image, "pad into conv", dropped("summands"), "roundings"),
    (taken_input, "gather into input", lost_cells, "taken for zero"),
]


@pytest.mark.parametrize(("make", "rule", "loss", "why"), LOSSES)
def test_each_loss_is_missed(
    make: Callable[[], Net], rule: str, loss: Callable[[Net], Net], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(a, b) for r, a, b in rewritings(make(), monkeypatch) if r == rule]
    assert found, f"{rule} did not fire"
    before, after = found[0]
    assert broken_law(before, after) is None
    problem = broken_law(before, loss(after))
    assert problem is not None and any(part in problem for part in why.split("|"))


def test_weights_out_of_sight_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant's column of 2^100 stays in sight: nothing else would tell what flushing the constant costs."""
    net = shifted_columns()
    large = rng_weights(5, 9)
    large[:, 0] = 2.0**100
    net = replace(net, weights={**net.weights, net.node("y").attrs["w"].name: large})  # type: ignore[union-attr]
    assert "gather into reader" not in [r for r, _, _ in rewritings(net, monkeypatch)]
    monkeypatch.setattr(layout, "_hides", lambda *_: False)
    with pytest.raises(PassError, match=r"gather into reader.*out of sight"):
        layout.run(fold.run(net))


@pytest.mark.parametrize(("op", "moves"), [("leaky", False), ("relu", True), ("scale", False), ("add", False), ("sub", False)])
def test_what_is_computed_twice_is_not_computed_once(op: str, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes leave copies before what rounds; a pass that does not is stopped."""
    fired = [r for r, _, _ in rewritings(copies(op), monkeypatch) if r.startswith("gather behind")]
    assert bool(fired) == moves
    if moves:
        return
    monkeypatch.setattr(layout, "_distinct", lambda _: True)
    with pytest.raises(PassError, match=r"gather behind.*copies of one"):
        layout.run(copies(op))


def test_the_storage_type_is_missed() -> None:
    net = two_layers()
    stored = net.rebuild([n.with_attrs(half=1) if n.op == "input" else n for n in net])
    assert broken_law(stored, without_half(stored)) == "that the network stores activations in float16 is forgotten (half)"
    assert layout.run(fold.run(stored)).input.integer("half") == 1


def test_another_output_must_owe_as_much() -> None:
    net = two_layers()
    problem = broken_law(net, net.rebuild(net.nodes, output="h"))
    assert problem is not None and "cells" in problem


def test_a_rewriting_that_loses_something_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes themselves, with one rule that forgets the constants: no bound is computed from it."""
    monkeypatch.setattr(fold, "_scale_before", lambda net, n, source: dropped("summands")(forgetful(net, n, source)))
    forgetful = _REAL
    with pytest.raises(PassError, match=r"scale before linear.*loses part of the deployed network"):
        fold.run(shifted_columns())


_REAL = fold._scale_before


@given(st.integers(0, 2**31 - 1))
@limits(max_examples=40)
def test_rewritings_of_drawn_networks_keep_the_law(seed: int) -> None:
    """Including those that move cells; `trace_rules` hears them in order."""
    net = random_net(seed, steps=6, limit=40)
    with rewrite.trace_rules() as heard:
        out = fold.run(layout.run(fold.run(net)))
    assert heard.count("layout to gathers") == 1
    assert out.node(out.output).size == net.node(net.output).size


def test_rules_are_heard_only_inside() -> None:
    with rewrite.trace_rules() as outer:
        with rewrite.trace_rules() as inner:
            fold.run(two_layers())
        layout.run(two_layers())
    fold.run(two_layers())
    assert inner == ["linear after linear"] and outer == ["linear after linear", "layout to gathers"]


@pytest.mark.parametrize("op", ["leaky", "scale", "add"])
def test_zeros_of_padding_are_copies_of_one_zero(op: str) -> None:
    """Zero times a factor, zero through a slope and zero plus zero round nothing, wherever they are computed."""
    b = Builder("zeros")
    x = b.input((2,))
    r = b.add("relu", [x], "r")
    index = b.constant(np.array([-1, 1, -1, 0, -1]))
    g = b.add("gather", [r], "g", index=index, to=(5,))
    if op == "leaky":
        h = b.add("relu", [g], "h", slope=0.3)
    elif op == "scale":
        h = b.add("scale", [g], "h", a=b.constant(rng_weights(5)), c=b.constant(np.zeros(1, F32)))
    else:
        h = b.add("add", [g, b.add("gather", [b.add("relu", [x], "s", slope=0.5)], "k", index=index, to=(5,))], "h")
    net = b.build(b.add("linear", [h], "y", w=b.constant(rng_weights(2, 5)), b=b.constant(rng_weights(2))))
    with rewrite.trace_rules() as heard:
        layout.run(net)
    assert any(rule.startswith("gather behind") for rule in heard)


@pytest.mark.parametrize("index", [[1], [0, 2], [3, 1], [1, -1]])
def test_a_part_of_what_was_scaled_is_no_loss(index: list[int]) -> None:
    """The law once took the roundings of cells that nobody reads for lost, and refused honest networks."""
    for c in (0.0, 0.5):
        b = Builder("part")
        s = b.add("scale", [b.input((4,))], "s", a=b.constant(rng_weights(4)), c=b.constant(np.full(1, c, F32)))
        net = b.build(b.add("gather", [s], "y", index=b.constant(np.array(index)), to=(len(index),)))
        with rewrite.trace_rules() as heard:
            layout.run(net)
        assert "gather before scale" in heard


def test_a_scale_that_adds_nothing_keeps_zeros_out_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor alone leaves zero at zero: such a layer still counts what is present, as before."""
    b = Builder("factor")
    s = b.add("scale", [b.input((4,))], "s", a=b.constant(rng_weights(4)), c=b.constant(np.zeros(1, F32)))
    net = b.build(b.add("linear", [s], "y", w=b.constant(rng_weights(2, 4)), b=b.constant(rng_weights(2))))
    ((_, before, after),) = [r for r in rewritings(net, monkeypatch) if r[0] == "scale before linear"]
    assert "summands" not in after.node("y").attrs
    assert broken_law(before, after) is None
