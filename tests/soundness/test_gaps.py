"""One regression test for every gap that the rounding argument once had: forms, pending products, terms that count.

Small networks whose exact answer is known: a linear form of a piecewise linear function of one number has its least value at a
break point or an end, so bounds are compared with it in rationals.
"""

from __future__ import annotations

from fractions import Fraction as F
from importlib.util import find_spec
from itertools import permutations

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.arithmetic import LIBRARY, Arithmetic
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir.net import Builder, Net
from polytriton.runtime.engine import Engine
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms
from polytriton.runtime.tables import Tables
from tests.oracle.small import MANY, least, linear, net_of, output, relu, scale, singles, too_high

CANDIDATES = ("all", "input")


def mixed_bounds(net: Net, lo: np.ndarray, hi: np.ndarray, over_output: np.ndarray, over_input: np.ndarray, candidates: str) -> np.ndarray:
    """Lower bounds of over_output * y + over_input * x for a batch of boxes of one number."""
    verifier = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates)
    engine = Engine(verifier.compiled, semantics="real", dtype="float32")
    low, high, c, d = (torch.from_numpy(v[:, None].copy()) for v in (lo, hi, over_output, over_input))
    with torch.no_grad():
        return engine.query(engine.refine(low, high), Forms(torch.arange(len(lo)), c, d)).best.numpy()


# ---- forms that hold inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("candidates", CANDIDATES)
@pytest.mark.parametrize("row,true", [("(<= (+ X_0 X_1) -1.5)", -0.5), ("(<= (+ Y_0 X_0) -0.5)", -0.5), ("(<= (- Y_0 X_0 X_1) -0.5)", 0.5)])
def test_rows_over_inputs_are_bounded_at_every_candidate(row: str, true: float, candidates: str) -> None:
    """y = relu(relu(x0)) + relu(relu(x1)) over [-1, 1]^2."""

    def make(b: Builder, x: str) -> str:
        for _ in range(2):
            x = b.add("relu", (linear(b, x, np.eye(2), [0, 0]),))
        return linear(b, x, [[1, 1]], [0])

    ends = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} -1))(assert (<= X_{i} 1))" for i in (0, 1))
    prop = read_vnnlib(f"{ends}(declare-const Y_0 Real)(assert {row})")
    verifier = Verifier.from_net(net_of(make, 2), candidates=candidates, semantics="real")
    result = verifier.verify_property(prop, falsifier=False, search="none")  # the margin of one try
    assert true - 2.01 <= result.margin <= true
    assert result.verdict == ("unsat" if result.margin > 0 else "unknown")


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_many_mixed_rows(candidates: str) -> None:
    """y = relu(relu(x)), form a y + d x with both signs of both."""
    rng, draw = np.random.default_rng(1), singles(2)
    net = net_of(lambda b, x: linear(b, b.add("relu", (linear(b, b.add("relu", (linear(b, x, [[1]], [0]),)), [[1]], [0]),)), [[1]], [0]))
    lo, hi, a, d = (next(draw) * sign for sign in (-1, 1, rng.choice([-1, 1], MANY), rng.choice([-1, 0, 1], MANY)))
    d[::7] = -a[::7]  # cancels where the input is reached
    got = mixed_bounds(net, lo, hi, a, d, candidates)
    true = [least(lambda t, i=i: F(a[i]) * relu(t) + F(d[i]) * t, lo[i], hi[i]) for i in range(MANY)]
    assert not too_high(got, true)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_a_form_over_the_input_may_cancel_a_rounded_product(candidates: str) -> None:
    """y = relu(x): the coefficient a * lambda is rounded, then the form's own -a * lambda is added to it."""
    draw = singles(3)
    lo, hi, a = -next(draw), next(draw), next(draw)
    chord = (hi / (hi - lo)).astype(np.float32)
    d = (a.astype(np.float32) * chord).astype(np.float64)
    got = mixed_bounds(net_of(lambda b, x: b.add("relu", (x,))), lo, hi, -a, d, candidates)
    true = [least(lambda t, i=i: -F(a[i]) * relu(t) + F(d[i]) * t, lo[i], hi[i]) for i in range(MANY)]
    assert not too_high(got, true)


# ---- products of a ReLU that are charged late ------------------------------------------------------------------


def test_a_candidate_pays_for_its_own_sum() -> None:
    """0 y + d x at the point x = 1: before the ReLU a candidate is nothing but the float64 sum of d, in an order that nobody promises."""
    net = net_of(lambda b, x: linear(b, b.add("relu", (linear(b, x, np.eye(3), [0, 0, 0]),)), [[1, 1, 1]], [0]), 3)
    engine = Engine(Verifier.from_net(net, semantics="real", dtype="float64").compiled, semantics="real", dtype="float64")
    point = torch.ones(1, 3, dtype=torch.float64)
    orders = torch.tensor(list(permutations((2.0**53, 3.0, -(2.0**53)))), dtype=torch.float64)
    forms = Forms(torch.zeros(len(orders), dtype=torch.int64), torch.zeros(len(orders), 1, dtype=torch.float64), orders)
    assert (engine.query(engine.refine(point, point), forms).best <= 3).all()


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_a_merge_may_cancel_a_rounded_product(candidates: str) -> None:
    """[relu(x), x] with the form -a y0 + b y1, b nearly a times the chord's slope."""
    net = net_of(lambda b, x: b.add("concat", (b.add("relu", (x,)), x), axis=0))
    verifier = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates)
    draw = singles(4)
    lo, hi, a = -next(draw), next(draw), next(draw)
    b = (a.astype(np.float32) * (hi / (hi - lo)).astype(np.float32)).astype(np.float64)
    got = verifier.margins(lo[:, None], hi[:, None], np.stack([-a, b], 1)[:, None], effort="quick")[:, 0]
    true = [least(lambda t, i=i: -F(a[i]) * relu(t) + F(b[i]) * t, lo[i], hi[i]) for i in range(MANY)]
    assert not too_high(got, true)
    assert max(float(t) - m for m, t in zip(got, true, strict=True)) < 1e-4


@pytest.mark.parametrize("candidates", CANDIDATES)
@pytest.mark.parametrize("first", ["maxpool", "leaky"])
def test_a_nonlinear_operator_that_reads_another(first: str, candidates: str) -> None:
    """relu(max(x0, x1)) and relu(leaky(x)), form -a y: the least value is -a times the upper end."""
    b = Builder("gap")
    if first == "maxpool":
        x = b.input((1, 1, 2))
        net = b.build(b.add("reshape", (b.add("relu", (b.add("maxpool", (x,), k=(1, 2)),)),), to=(1,)))
    else:
        x = b.input((1,))
        net = b.build(b.add("relu", (b.add("relu", (x,), slope=0.3),)))
    verifier = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates)
    draw, cells = singles(5), net.input.size
    lo, hi, a = -(next(draw) * 2.0**-10), next(draw), next(draw)
    got = verifier.margins(np.stack([lo] * cells, 1), np.stack([hi] * cells, 1), -a[:, None, None], effort="quick")[:, 0]
    assert not too_high(got, [-F(x) * F(y) for x, y in zip(a, hi, strict=True)])
    assert (-a * hi - got < 1e-4).all()


# ---- which terms take part in a rounding -----------------------------------------------------------------------


@pytest.mark.parametrize("coefficients", [LIBRARY["float32"], LIBRARY["float64"]])
def test_a_cell_with_a_slope_is_live(coefficients: Arithmetic) -> None:
    """A ReLU over the box [0, 0] has slope one: its operand's coefficients are products like any others."""
    ends = [(0.0, 0.0), (-0.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0), (1.0, 2.0)]
    n = len(ends)
    net = net_of(lambda b, x: linear(b, b.add("relu", (linear(b, x, np.ones((n, 2)), np.zeros(n)),)), np.ones((1, n)), [0]), 2)
    engine = Engine(Verifier.from_net(net, semantics="real").compiled, semantics="real")
    boxes = engine.interval(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    node = next(m for m in engine.net if m.op == "relu")
    source = node.inputs[0]
    boxes.lo[source][:] = torch.tensor([a for a, _ in ends], dtype=torch.float64)
    boxes.hi[source][:] = torch.tensor([b for _, b in ends], dtype=torch.float64)
    tables = Tables(Kit(engine.net, engine.plan, engine.forward, coefficients), boxes)
    lines = tables.lines(node)
    sloped = ((lines.below != 0) | (lines.above != 0)).flatten()
    assert sloped.tolist() == [True, True, False, True, True, False, True]
    assert (tables.live(source).flatten() | ~sloped).all()
    assert not tables.live(source).flatten()[5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_operand_of_zero_behind_a_merged_shift(dtype: str) -> None:
    """W (x + 1) at x = 0: the merged layer multiplies zeros, the deployed one sums 784 ones times their weights."""
    n = 784
    w = np.full((1, n), 0.6 * 2.0**-23, np.float32)
    w[0, 0] = 1
    net = net_of(lambda b, x: linear(b, scale(b, x, 1, 1), w, [0]), n)
    run = float(np.cumsum(w[0])[-1])  # numpy adds in sequence, in float32
    true = sum(F(float(v)) for v in w[0])
    assert run > float(true) + 2.0**-16, "the trap does not bite"
    lo, hi = output(net, np.zeros(n), semantics="float32", dtype=dtype)
    assert lo <= true <= hi
    assert lo <= run <= hi
    assert hi - lo < 1e-3


def wide(seed: int) -> tuple[Net, np.ndarray, np.ndarray]:
    """Dense layers large enough to be cut, and two boxes: a point with half of all neurons off, a box with the other half off."""
    rng = np.random.default_rng(seed)
    n = 160

    def make(b: Builder, x: str) -> str:
        h = linear(b, x, np.concatenate([np.ones((n // 2, 1)), -np.ones((n // 2, 1))]), rng.uniform(-0.2, 0.2, n))
        for _ in range(2):
            h = linear(b, b.add("relu", (h,)), rng.standard_normal((n, n)) / np.sqrt(n), rng.uniform(-0.1, 0.1, n))
        return linear(b, b.add("relu", (h,)), rng.standard_normal((2, n)) / np.sqrt(n), [0, 0])

    return net_of(make), np.array([[3.0], [-3.5]]), np.array([[3.0], [-2.5]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_cut_layer_is_cut_for_the_image_whose_rows_it_multiplies(dtype: str) -> None:
    net, lo, hi = wide(0)
    verifier = Verifier.from_net(net, semantics="real", dtype=dtype)
    both, alone = verifier.bounds(lo, hi, effort="quick"), verifier.bounds(lo[1:], hi[1:], effort="quick")
    assert np.allclose(both.lo[1], alone.lo[0], rtol=1e-4) and np.allclose(both.hi[1], alone.hi[0], rtol=1e-4)
    form = np.array([[1.0, -1.0]])
    assert np.allclose(verifier.margins(lo, hi, form)[1], verifier.margins(lo[1:], hi[1:], form)[0], rtol=1e-4)
    points = np.linspace(lo[1], hi[1], 200)
    y = verifier.predict(points)
    assert (both.lo[1] <= y).all() and (y <= both.hi[1]).all()


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_overlapping_windows_add_up_with_rounding(candidates: str) -> None:
    """Three windows with one sure winner: 1 + 1.5 * 2^-25 - 1 is no zero, though float32 says so."""
    b = Builder("overlap")
    x = b.input((1, 1, 5))
    net = b.build(b.add("reshape", (b.add("maxpool", (x,), k=(1, 3)),), to=(3,)))
    lo, hi = np.full((1, 5), -3000.0), np.full((1, 5), -2000.0)
    lo[0, 2], hi[0, 2] = -1000, -999
    small = 1.5 * 2.0**-25
    for order in ([1, small, -1], [-1, small, 1], [small, 1, -1], [1, -1, small]):
        form = np.array([order])
        got = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates).margins(lo, hi, form, effort="quick")[0, 0]
        assert -5e-3 < got <= F(small) * -1000


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no wheels for this platform")
@pytest.mark.parametrize("candidates", CANDIDATES)
def test_kernels_pay_for_a_rounded_product_at_a_candidate(candidates: str) -> None:
    """relu(max(x0, x1)) with the form -a y in generated kernels: the chord's product is rounded, and no affine step follows."""
    b = Builder("gap")
    x = b.input((1, 1, 2))
    net = b.build(b.add("reshape", (b.add("relu", (b.add("maxpool", (x,), k=(1, 2)),)),), to=(1,)))
    verifier = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates, device="interpret")
    draw = singles(5, 150)
    lo, hi, a = -(next(draw) * 2.0**-10), next(draw), next(draw)
    got = verifier.margins(np.stack([lo] * 2, 1), np.stack([hi] * 2, 1), -a[:, None, None], effort="quick")[:, 0]
    assert not too_high(got, [-F(x) * F(y) for x, y in zip(a, hi, strict=True)])
    assert (-a * hi - got < 1e-4).all()
