"""No operator can be forgotten: what the table lists, every room of the compiler handles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.ir.check import check_net
from polytriton.ir.curves import CURVES
from polytriton.ir.interp import evaluate, run, user_shape
from polytriton.ir.net import Attr, Builder, Net
from polytriton.ir.ops import OPS
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.executor import RUN, torch_forward

RNG = np.random.default_rng(0)
SHAPE = (2, 4, 4)
# for every operator, attributes that make it do something; arrays become weights
EXAMPLES: dict[str, tuple[int, dict[str, Attr | np.ndarray]]] = {
    "linear": (1, {"w": RNG.standard_normal((6, 32)), "b": RNG.standard_normal(6)}),
    "conv": (1, {"w": RNG.standard_normal((3, 2, 3, 2)), "b": RNG.standard_normal(3), "k": (3, 2), "s": (1, 2), "p": (1, 0, 0, 1)}),
    "scale": (1, {"a": RNG.standard_normal((2, 1, 1)), "c": RNG.standard_normal(SHAPE)}),
    "add": (2, {}),
    "sub": (2, {}),
    "mul": (2, {}),
    "relu": (1, {"slope": 0.25}),
    "maxpool": (1, {"k": (2, 3), "s": (2, 1), "p": (0, 1, 0, 1)}),
    "concat": (2, {"axis": 1}),
    "reshape": (1, {"to": (4, 8)}),
    "transpose": (1, {"perm": (2, 0, 1)}),
    "slice": (1, {"axis": 2, "start": 3, "step": -2, "size": 2}),
    "pad": (1, {"lo": (0, 1, 0), "hi": (1, 0, 2)}),
    **{name: (1, {}) for name in CURVES},
    "elu": (1, {"alpha": 0.75}),
    "gather": (1, {"index": np.array([5, 5, -1, 31, 0, 7]), "to": (2, 3)}),
}


def example(op: str, *, last: bool) -> Net:
    """The operator behind a layer and a ReLU, and before another layer unless it comes last."""
    b = Builder(op)
    x = b.input((5,))
    w = RNG.standard_normal((32, 5))
    h = b.add("linear", (x,), w=b.constant(w), b=b.constant(RNG.standard_normal(32)), to=SHAPE)
    r = b.add("relu", (h,))
    operands, attrs = EXAMPLES[op]
    held = {k: b.constant(v, k) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    if op in CURVES and CURVES[op].domain[0] == 0:
        r = b.add("scale", (r,), a=b.constant(np.ones(())), c=b.constant(np.full((), 0.3)))
    y = b.add(op, (r, h)[:operands], hint="it", **held)
    if not last:
        size = int(np.prod(b.shape(y)))
        y = b.add("linear", (b.add("relu", (y,)),), w=b.constant(RNG.standard_normal((3, size))), b=b.constant(np.zeros(3)))
    return b.build(y)


def flipped() -> Net:
    """A layout operator that nothing can absorb: a convolution reads it, a ReLU feeds it."""
    b = Builder("flipped")
    h = b.add("conv", (b.input(SHAPE),), w=b.constant(np.ones((2, 2, 1, 1))), b=b.constant(np.zeros(2)), k=(1, 1))
    h = b.add("slice", (b.add("relu", (h,)),), axis=1, start=3, step=-1, size=4)
    h = b.add("conv", (h,), w=b.constant(np.ones((2, 2, 3, 3))), b=b.constant(np.zeros(2)), k=(3, 3))
    return b.build(b.add("relu", (h,)))


def test_every_operator_has_an_example() -> None:
    assert EXAMPLES.keys() == OPS.keys() - {"input"}
    assert RUN.keys() == OPS.keys()


def test_every_operator_is_described() -> None:
    for spec in OPS.values():
        assert spec.doc and spec.kind in ("input", "affine", "nonlinear", "layout")
        assert set(spec.required) <= set(spec.attrs)


def test_every_step_of_a_plan_has_a_walker() -> None:
    steps: set[str] = set()
    for net in (*(example(op, last=False) for op in EXAMPLES), flipped()):
        for p in compile_net(net).plan:
            steps |= {s.op for s in p.steps} - {"start", "input"}
    left = {op for op, spec in OPS.items() if spec.kind != "layout" and op != "input"} | {"gather"}
    assert steps == left | {"dense", "merge"}, "an operator that survives the passes is never lowered, or one that should be folded is"
    for op in steps:
        assert callable(getattr(Walk, "_curve" if op in CURVES else "_" + op)), op


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_node_that_one_step_reaches_twice_and_another_has_reached_before(dtype: str) -> None:
    """r + r + (W r + b) is (W + 2) r + b, though three contributions wait at r at once."""
    rng = np.random.default_rng(0)  # which neurons the interval pass leaves undecided may differ between the two
    w, v, b = rng.standard_normal((4, 3)), rng.standard_normal((4, 4)), rng.standard_normal(4)
    found = []
    for joined in (True, False):
        net = Builder("thrice")
        h = net.add("linear", (net.input((3,)),), w=net.constant(w), b=net.constant(b))
        r = net.add("relu", (h,))
        if joined:
            twice = net.add("add", (r, r))
            y = net.add("add", (twice, net.add("linear", (r,), w=net.constant(v), b=net.constant(b))))
        else:
            y = net.add("linear", (r,), w=net.constant(v + 2 * np.eye(4)), b=net.constant(b))
        y = net.add("linear", (net.add("relu", (y,)),), w=net.constant(v), b=net.constant(b))
        bounds = Verifier.from_net(net.build(y), semantics="real", dtype=dtype, candidates="input").bounds(
            -np.ones((1, 3)), np.ones((1, 3))
        )
        found.append((np.asarray(bounds.lo), np.asarray(bounds.hi)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", EXAMPLES)
def test_every_operator_passes_through_every_room(op: str, last: bool) -> None:
    net = example(op, last=last)
    check_net(net)
    assert parse_net(print_net(net), net.weights) == net
    x = RNG.uniform(-1, 1, (40, *user_shape(net)))
    want = run(net, x)
    np.testing.assert_allclose(torch_forward(net, torch.float64)(torch.from_numpy(x)).numpy(), want, rtol=1e-9, atol=1e-9)
    folded = compile_net(net).net
    np.testing.assert_allclose(run(folded, x), want, rtol=1e-9, atol=1e-9)
    values = evaluate(folded, x)
    for candidates in ("all", "input"):
        verifier = Verifier.from_net(net, semantics="real", dtype="float64", candidates=candidates)
        found = verifier.bounds(-np.ones((1, 5)), np.ones((1, 5)))
        lo, hi = np.asarray(found.lo)[0], np.asarray(found.hi)[0]
        assert np.isfinite(lo).all() and np.isfinite(hi).all(), "no bound is no support"
        assert (want >= lo).all() and (want <= hi).all()
        assert (hi - lo).max() < 50 * (want.max(0) - want.min(0) + 1e-9).max(), "a bound worth having"
        for name, box in found.layers.items():
            inner = values[name].reshape(len(x), -1)
            assert (inner >= np.asarray(box.lo).reshape(-1)).all() and (inner <= np.asarray(box.hi).reshape(-1)).all(), name
