"""Law 2 on random networks: no pass changes what a network computes, nor what a node that keeps its name computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits

from polytriton.ir.check import check_net
from polytriton.ir.interp import evaluate, user_shape
from polytriton.ir.net import Net, Node, Ref
from polytriton.ir.ops import OPS
from polytriton.passes.pipeline import NET_PASSES, fold_net, run_net_pass
from tests.oracle.nets import nets
from tests.passes.texts import after


def masses(net: Net, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every node's value were all weights and inputs taken by magnitude: what rounding errors are relative to."""
    weights = {k: np.abs(v) if v.dtype.kind == "f" else v for k, v in net.weights.items()}
    nodes = []
    for n in net:
        op = "add" if n.op == "sub" else n.op
        attrs = {k: v for k, v in n.attrs.items() if k not in ("wabs", "babs")}
        if n.op == "relu":
            attrs["slope"] = 0.0
        nodes.append(Node(n.name, op, n.inputs, n.shape, attrs))
    values: dict[str, np.ndarray] = {}
    for n, original in zip(nodes, net, strict=True):
        operands = [values[i] for i in n.inputs] if n.inputs else [np.abs(x).reshape(len(x), -1)]
        values[n.name] = OPS[n.op].run(n, operands, weights) * max(1.0, abs(original.number("slope")))
    return values


def same(before: Net, out: Net) -> None:
    check_net(out)
    assert user_shape(out) == user_shape(before)
    x = np.random.default_rng(11).standard_normal((5, *user_shape(before)))
    old, new, mass = evaluate(before, x), evaluate(out, x), masses(before, x)
    room = {k: 1e-9 * m.reshape(len(x), -1).max(1, keepdims=True) + 1e-300 for k, m in mass.items()}

    def close(a: str, b: str) -> bool:
        p, q = old[a].reshape(len(x), -1), new[b].reshape(len(x), -1)
        return p.shape == q.shape and bool((np.abs(p - q) <= room[a]).all())

    assert close(before.output, out.output), "the result changed"
    for n in out.nodes[1:]:
        if n.name in old:
            assert close(n.name, n.name), f"%{n.name} kept its name and changed its value"


ORDERS = [
    ("fold",),
    ("layout",),
    ("layout", "fold"),
    ("fold", "layout", "fold"),
    ("layout", "layout", "fold"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@given(net=nets())
@limits(max_examples=60)
def test_passes_keep_the_meaning(order: tuple[str, ...], net: Net) -> None:
    same(net, after(net, *order))


@given(nets())
@limits(max_examples=60)
def test_folding_twice_is_folding_once(net: Net) -> None:
    once = fold_net(net)
    again = fold_net(once)
    assert again == once


@given(nets())
@limits(max_examples=60)
def test_no_pass_touches_the_weights_it_was_given(net: Net) -> None:
    kept = {k: v.copy() for k, v in net.weights.items()}
    out = fold_net(net)
    for k, v in kept.items():
        np.testing.assert_array_equal(net.weights[k], v)
    used = {v.name for n in out for v in n.attrs.values() if isinstance(v, Ref)}
    assert used == set(out.weights)


def test_the_law_can_be_broken() -> None:
    """A pass that forgets a bias is found out."""
    from tests.oracle.nets import toy_dense

    net = toy_dense()
    zeros = {str(n.attrs["b"].name): np.zeros(n.size, np.float32) for n in net if "b" in n.attrs}  # type: ignore[union-attr]
    broken = replace(net, weights={**net.weights, **zeros})
    with pytest.raises(AssertionError):
        same(net, broken)
    assert all(run_net_pass(p, net, []) is not None for p in NET_PASSES)
