"""Whole programs in the paper's interval arithmetic: sound against exact rationals, and what the folded arithmetic finds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from polytriton.api import Verifier
from polytriton.errors import UnsupportedModel
from polytriton.ir.net import Builder, Net
from polytriton.kernels.interval_launches import check_supported
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.interval_backend import ball_ends
from polytriton.runtime.results import Forms
from tests.kernels.test_kernel_runs import boxes, forms, proved
from tests.oracle.exact import Machine, exact, execute
from tests.oracle.nets import random_box, random_net, toy_dense
from tests.oracle.small import bounds, dense
from tests.soundness.test_soundness import SEMANTICS, Tally, check

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
INTERVAL = {"device": "interpret", "numerics": "interval"}
MOVES = ("conv", "relu", "relu", "maxpool", "scale_cells", "linear", "residual", "preact", "layout")


def small(residual: bool = False, slope: float = 0.0, stride: int = 1) -> Net:
    """3x3x1 through two convolutions to two outputs."""
    rng, b = np.random.default_rng(3), Builder("small")
    x = b.input((1, 3, 3))

    def conv(x: str, out: int, **attrs: Any) -> str:
        w = rng.standard_normal((out, b.shape(x)[0], 2, 2)).astype(np.float32) / 2
        return b.add("conv", (x,), w=b.constant(w), b=b.constant(rng.standard_normal(out).astype(np.float32) / 3), k=(2, 2), **attrs)

    h = b.add("relu", (conv(x, 2, p=(1, 1, 0, 0)),), slope=slope)
    y = conv(h, 2, p=(1, 1, 0, 0), s=(stride, stride))
    if residual:
        y = b.add("add", (y, h))
    y = b.add("relu", (y,))
    w = rng.standard_normal((2, int(np.prod(b.shape(y))))).astype(np.float32)
    return b.build(b.add("linear", (y,), w=b.constant(w), b=b.constant(np.ones(2, np.float32))))


def mlp(seed: int = 0, widths: tuple[int, ...] = (3, 6, 5, 2)) -> Net:
    rng = np.random.default_rng(seed)
    shapes = zip(widths[1:], widths, strict=False)
    return dense(*(((rng.standard_normal(s) / s[1] ** 0.5).astype(np.float32), (rng.standard_normal(s[0]) / 4).tolist()) for s in shapes))


def routes() -> Net:
    """3x3x1 through a convolution, a max pool whose windows overlap, and a gather that reads cells twice and padding."""
    rng, b = np.random.default_rng(5), Builder("routes")
    w = rng.standard_normal((2, 1, 2, 2)).astype(np.float32)
    x = b.add("conv", (b.input((1, 3, 3)),), w=b.constant(w), b=b.constant(np.ones(2, np.float32)), k=(2, 2), p=(1, 1, 0, 0))
    x = b.add("maxpool", (b.add("relu", (x,)),), k=(2, 2), p=(1, 0, 0, 0))
    x = b.add("gather", (x,), index=b.constant(np.array([0, 5, 5, -1, 11, 7, 0, 3]), "index"), to=(8,))
    x = b.add("relu", (x,), slope=0.5)  # else the layer takes the gather in
    x = b.add("linear", (x,), w=b.constant(rng.standard_normal((3, 8)).astype(np.float32)), b=b.constant(np.zeros(3, np.float32)))
    w = rng.standard_normal((2, 3)).astype(np.float32)
    return b.build(b.add("linear", (b.add("relu", (x,)),), w=b.constant(w), b=b.constant(np.ones(2, np.float32))))


NETS = {
    "toy": toy_dense,
    "dense": mlp,
    "conv": lambda: small(stride=2),
    "residual": lambda: small(residual=True),
    "leaky": lambda: small(slope=0.125),
    "routes": routes,
}


QUICK = (("toy", "float64"), ("residual", "float32"), ("routes", "float32"))
EVERY = [pytest.param(n, d, marks=() if (n, d) in QUICK else pytest.mark.slow) for n in NETS for d in ("float64", "float32")]


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_small_networks_bound_as_the_folded_arithmetic_does(name: str, dtype: str) -> None:
    """Both enclose the same numbers, so they intersect; float64 intervals lose next to nothing on shallow networks."""
    net = NETS[name]()
    lo, hi = random_box(np.random.default_rng(5), net, "ordinary", 2)
    for semantics in ("real", "float32"):
        ours = Verifier.from_net(net, dtype=dtype, semantics=semantics, **INTERVAL).bounds(lo, hi, effort="quick")
        theirs = Verifier.from_net(net, dtype=dtype, semantics=semantics).bounds(lo, hi, effort="quick")
        best = Verifier.from_net(net, dtype="float64", semantics=semantics).bounds(lo, hi, effort="quick")
        pairs = [(ours, theirs, best), *((ours.layers[k], theirs.layers[k], best.layers[k]) for k in ours.layers)]
        for a, b, c in pairs:
            size = np.abs([c.lo, c.hi]).max()
            assert (a.lo <= b.hi).all() and (b.lo <= a.hi).all()
            room = (1e-6 if dtype == "float64" else 1e-4) * size
            assert (np.abs(a.lo - c.lo) <= room).all() and (np.abs(a.hi - c.hi) <= room).all()
        points = np.random.default_rng(6).uniform(lo, hi, (64, *lo.shape))
        for k in range(2):
            values = exact(net, points[:, k])[net.output]
            down, up = (v.reshape(64, -1) for v in (values.down(), values.up()))
            assert (ours.lo[k] <= down).all() and (up <= ours.hi[k]).all()


@pytest.mark.parametrize("examples", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_random_networks_against_exact_values_and_executions(examples: int) -> None:
    """The law of tests/soundness: exact values at any point, and every execution the semantics covers, lie inside."""
    tally = Tally()

    @settings(derandomize=True, deadline=None, max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.builds(random_net, st.integers(0, 2**31 - 1), steps=st.integers(1, 3), moves=st.just(MOVES), limit=st.just(14)),
        st.sampled_from(["ordinary", "zero", "tiny", "touching"]),
        st.sampled_from(SEMANTICS),
        st.sampled_from(["float64", "float32"]),
        st.sampled_from(["all", "input"]),
        st.integers(0, 2**31 - 1),
    )
    def search(net: Net, kind: str, semantics: str, dtype: str, candidates: str, seed: int) -> None:
        try:
            check_supported(compile_net(net).net)
        except UnsupportedModel:
            assume(False)
        tally.failures.clear()
        check(net, kind, seed, {"semantics": semantics, "dtype": dtype, "candidates": candidates, **INTERVAL}, tally, points=5, runs=2)

    search()
    assert tally.finite > 0.5 * tally.total, "most bounds said nothing"


OTHERS = [("float32", 27), ("float64", 27), ("float32", 56)]  # float32's own, and powers that swallow nothing in their type


@pytest.mark.parametrize("dtype, power", [("float64", 56), *(pytest.param(*v, marks=pytest.mark.slow) for v in OTHERS)])
def test_cancelling_weights_swallow_a_unit(dtype: str, power: int) -> None:
    """relu([B, 1, -B] x + 2) at x = (1, [0, 1], 1): 3 at (1, 1, 1), where sums to nearest answer at most 2.5."""
    big = 2.0**power
    one, eye = [[big, 1, -big]], np.eye(3)
    lo, hi = np.array([1, 0, 1.0]), np.array([1, 1, 1.0])
    for net in (
        dense((one, [2]), relu_last=True),
        dense((eye, [0, 0, 0]), (one, [2]), relu_last=True),
        dense((eye, [0, 0, 0]), (np.vstack([one, one]), [2, 2]), ([[1, 0], [0, 1]], [0, 0])),
    ):
        low, high = bounds(net, lo, hi, semantics="real", dtype=dtype, **INTERVAL)
        for at in (lo, hi, (lo + hi) / 2):
            for i in range(len(low)):
                value = exact(net, at[None])[net.output].fraction(0, i)
                assert Fraction(float(low[i])) <= value <= (Fraction(float(high[i])) if np.isfinite(high[i]) else value)
        assert high[0] >= 3


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_forms_over_the_input_too(dtype: str) -> None:
    """C y + D x, as a property that relates outputs to inputs asks; and what cancels across the network is seen."""
    net = small(residual=True)
    compiled = compile_net(net)
    ours = Engine(compiled, kernels="interpret", numerics="interval", dtype=dtype)
    theirs = Engine(compiled, dtype="float64")
    lo, hi = boxes(net, 3, 2)
    found = theirs.refine(lo, hi)
    asked = forms(ours, 4, 2)
    plain = ours.query(found, asked).best
    asked.over_input = torch.from_numpy(np.random.default_rng(8).standard_normal((len(asked.image), net.input.size)))
    got, want = ours.query(found, asked).best, theirs.query(found, asked).best
    room = (1e-12 if dtype == "float64" else 1e-5) * (1 + want.abs())
    assert ((got - want).abs() <= room).all()
    assert torch.equal(ours.query(found, Forms(asked.image, asked.over_output, constant=asked.constant)).best, plain)


def test_rows_of_proved_groups_leave_and_blocks_share_them() -> None:
    compiled = compile_net(mlp(1))
    ours = Engine(compiled, kernels="interpret", numerics="interval", dtype="float64")
    lo, hi = boxes(compiled.net, 2, 2)
    found = ours.refine(lo, hi)
    asked, groups = forms(ours, 4, 2, each=60), torch.arange(120) % 4
    asked.constant = torch.tensor([-1000.0, 1000.0, 0.0, 1000.0], dtype=torch.float64)[groups]
    assert ours.kernels is not None
    free = ours.query(found, asked)
    ours.kernels.memory = 70 * ours.kernels.row_bytes(ours.plan.query)
    assert ours.kernels.capacity(ours.plan.query, 120) < 120
    left = ours.query(found, asked, groups)
    done = proved(left.best, groups)
    assert done[0] and not done[1] and not done[3]
    undone = ~done[groups]
    assert torch.equal(left.best[undone], free.best[undone]) and (left.best <= free.best).all()
    assert (free.best <= free.raw).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_unbounded_inputs_end_as_no_bound(dtype: str) -> None:
    """One image's box is infinite: it gets no finite bound, the other image all of its own."""
    net = mlp(2)
    ours = Engine(compile_net(net), kernels="interpret", numerics="interval", dtype=dtype)
    lo, hi = boxes(net, 1, 2)
    asked = forms(ours, 1, 1)
    want = ours.query(ours.refine(lo[1:], hi[1:]), asked).best
    lo[0, 0], hi[0, 0] = -float("inf"), float("inf")
    assert asked.constant is not None
    both = Forms(torch.tensor([0] * 3 + [1] * 3), asked.over_output.repeat(2, 1), constant=asked.constant.repeat(2))
    got = ours.query(ours.refine(lo, hi), both).best
    assert (got[:3] == -float("inf")).all() and torch.equal(got[3:], want)


def test_what_a_row_starts_with_is_rounded_outward() -> None:
    middle = torch.tensor([1.0, 1.0, -3.0, float("nan"), 1.0], dtype=torch.float64)
    radius = torch.tensor([0.0, 2.0**-60, 1.0, 0.0, float("inf")], dtype=torch.float64)
    low, high = ball_ends(middle, radius)
    assert low[0] == high[0] == 1 and low[1] < 1 < high[1] and low[2] <= -4 and high[2] >= -2
    assert low[3].isnan() and high[3].isnan() and low[4] == -float("inf") and high[4] == float("inf")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_an_execution_rounds_joins_as_a_box(dtype: str) -> None:
    """At one point the bounds are wider than a number by the deployed sums' own error alone: they hold every rounding mode's answer."""
    rng = np.random.default_rng(4)
    shapes = ((4, 40), (4, 4), (2, 4))
    net = dense(*((rng.random(s).astype(np.float32), rng.random(s[0]).astype(np.float32).tolist()) for s in shapes))
    x = rng.random(40).astype(np.float32).astype(np.float64)
    found = Verifier.from_net(net, dtype=dtype, semantics="float32", **INTERVAL).bounds(x[None], x[None], effort="quick")
    for mode in ("nearest", "down", "up"):
        run = execute(net, x[None], Machine(mode, False, False, rng), "forward", False)
        for name, box in (*found.layers.items(), (net.output, found)):
            assert (box.lo[0] <= run[name][0]).all() and (run[name][0] <= box.hi[0]).all(), (mode, name)
    real = Verifier.from_net(net, dtype=dtype, semantics="real", **INTERVAL).bounds(x[None], x[None], effort="quick")
    assert (found.hi - found.lo > 10 * (real.hi - real.lo)).all()
