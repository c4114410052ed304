"""One regression test for every gap that the rounding argument once had.

Small networks whose exact answer is known: a linear form of a piecewise linear function of one number has its least value at a
break point or an end, so bounds are compared with it in rationals.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction as F
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import UnsupportedModel
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir.net import Builder, Net
from polytriton.runtime import fused, torch_backend
from polytriton.runtime.engine import Engine, Forms
from polytriton.runtime.soundness import FLOAT32, FLOAT64, GROW, SEMANTICS, Coefficients, deployed_error, up
from polytriton.runtime.tables import Kit, Tables

CANDIDATES = ("all", "input")
MANY = 400
Line = tuple[float, float]


def linear(b: Builder, x: str, w: object, c: object) -> str:
    return b.add("linear", (x,), w=b.constant(np.asarray(w, np.float32)), b=b.constant(np.asarray(c, np.float32)))


def scale(b: Builder, x: str, a: float, c: float) -> str:
    return b.add("scale", (x,), a=b.constant(np.array([a], np.float32)), c=b.constant(np.array([c], np.float32)))


def net_of(make: Callable[[Builder, str], str], inputs: int = 1) -> Net:
    b = Builder("gap")
    return b.build(make(b, b.input((inputs,))))


def output(net: Net, x: object, **knobs: object) -> tuple[float, float]:
    """Bounds of the first output at one point."""
    at = np.atleast_2d(np.asarray(x, np.float64))
    found = Verifier.from_net(net, **knobs).bounds(at, at)
    return float(np.asarray(found.lo)[0, 0]), float(np.asarray(found.hi)[0, 0])


def singles(seed: int, count: int = MANY) -> Iterator[np.ndarray]:
    """Random float32 numbers between 0.5 and 4.5, as float64 arrays of `count`."""
    rng = np.random.default_rng(seed)
    while True:
        yield (rng.random(count) * 4 + 0.5).astype(np.float32).astype(np.float64)


def relu(t: F) -> F:
    return max(t, F(0))


def least(form: Callable[[F], F], lo: float, hi: float) -> F:
    """The least value of a function that is linear on both sides of zero."""
    return min(form(F(lo)), form(F(hi)), *([form(F(0))] if lo < 0 < hi else []))


def too_high(bounds: np.ndarray, true: Sequence[F]) -> list[tuple[int, float]]:
    return [(i, float(F(float(m)) - t)) for i, (m, t) in enumerate(zip(bounds, true, strict=True)) if np.isfinite(m) and F(float(m)) > t]


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
    result = verifier.verify_property(prop, falsifier=False)
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


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_a_merge_may_cancel_a_rounded_product(candidates: str) -> None:
    """[relu(x), x] with the form -a y0 + b y1, b nearly a times the chord's slope."""
    net = net_of(lambda b, x: b.add("concat", (b.add("relu", (x,)), x), axis=0))
    verifier = Verifier.from_net(net, semantics="real", dtype="float32", candidates=candidates)
    draw = singles(4)
    lo, hi, a = -next(draw), next(draw), next(draw)
    b = (a.astype(np.float32) * (hi / (hi - lo)).astype(np.float32)).astype(np.float64)
    got = verifier.margins(lo[:, None], hi[:, None], np.stack([-a, b], 1)[:, None])[:, 0]
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
    got = verifier.margins(np.stack([lo] * cells, 1), np.stack([hi] * cells, 1), -a[:, None, None])[:, 0]
    assert not too_high(got, [-F(x) * F(y) for x, y in zip(a, hi, strict=True)])
    assert (-a * hi - got < 1e-4).all()


# ---- which terms take part in a rounding -----------------------------------------------------------------------


@pytest.mark.parametrize("coefficients", [FLOAT32, FLOAT64])
def test_a_cell_with_a_slope_is_live(coefficients: Coefficients) -> None:
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


# ---- the process's settings ------------------------------------------------------------------------------------


def deep(seed: int = 0) -> tuple[Net, np.ndarray]:
    rng = np.random.default_rng(seed)

    def make(b: Builder, x: str) -> str:
        h = b.add("relu", (linear(b, x, rng.standard_normal((40, 20)) / 4, rng.standard_normal(40) / 10),))
        h = b.add("relu", (linear(b, h, rng.standard_normal((40, 40)) / 6, np.zeros(40)),))
        return linear(b, h, rng.standard_normal((1, 40)), [0])

    return net_of(make, 20), rng.standard_normal((1, 20))


@pytest.mark.parametrize("fast", [True, False])
def test_autocast_reaches_no_product(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "AVAILABLE", fast and fused.AVAILABLE)
    net, x = deep()
    form = np.eye(1)

    def found() -> tuple[float, float]:
        v = Verifier.from_net(net, semantics="real", dtype="float32")
        return float(v.margins(x - 1e-6, x + 1e-6, form)[0, 0]), float(-v.margins(x - 1e-6, x + 1e-6, -form)[0, 0])

    plain = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found() == plain
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16, "autocast must still be on behind the call"
    at = float(Verifier.from_net(net).predict(x)[0, 0])
    assert plain[0] <= at <= plain[1]


@contextmanager
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush subnormal numbers")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("fast", [True, False])
def test_flushing_subnormal_numbers_reaches_no_box(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """-2^100 relu(x) over a subnormal box."""
    monkeypatch.setattr(fused, "AVAILABLE", fast and fused.AVAILABLE)
    net = net_of(lambda b, x: linear(b, b.add("relu", (linear(b, x, [[1]], [0]),)), [[-1]], [0]))
    form, lo, hi = np.array([[2.0**100]]), np.array([[1e-40]]), np.array([[9e-39]])

    def found() -> float:
        return float(Verifier.from_net(net, semantics="real", dtype="float32").margins(lo, hi, form)[0, 0])

    plain = found()
    with flushing():
        flushed = found()
        assert float(torch.tensor(2.0**-1060, dtype=torch.float64) * 0.5) == 0, "the setting must be the user's again"
    assert flushed == plain
    assert F(flushed) <= -(F(2) ** 100) * F(hi[0, 0])


THREADS = """
import numpy as np, torch
from polytriton.api import Verifier
from polytriton.ir.net import Builder
torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.ones(1 << 20).mul(2).sum()  # threads started here flush for good
torch.set_flush_denormal(False)
n = 1 << 17
b = Builder("wide")
x = b.input((n,))
w = np.zeros((1, n), np.float32)
w[0, -1] = -1
net = b.build(b.add("linear", (b.add("relu", (x,)),), w=b.constant(w), b=b.constant(np.zeros(1, np.float32))))
v = Verifier.from_net(net, semantics="real", dtype="float32")
print(repr(float(v.margins(np.full((1, n), 1e-40), np.full((1, n), 9e-39), np.array([[2.0**100]]))[0, 0])))
"""


def test_threads_that_flush_reach_no_box() -> None:
    """Threads inherit the setting from the one that started them, and keep it."""
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert F(float(run.stdout)) <= -(F(2) ** 100) * F(9e-39)


def test_scalar_sums_may_underflow() -> None:
    """Three products of 0.6 times the smallest float64 number are each rounded to a whole one."""
    x, c = 0.6 * 2.0**-534, 2.0**-540
    true = 3 * F(x) * F(c)
    assert F(x * c) * 3 > true, "the trap does not bite"
    net = net_of(lambda b, n: b.add("reshape", (n,), to=(3,)), 3)
    for dtype in ("float32", "float64"):
        got = Verifier.from_net(net, semantics="real", dtype=dtype).margins(np.full((1, 3), x), np.full((1, 3), x), np.full((1, 1, 3), c))
        assert F(float(got[0, 0])) <= true


# ---- deployments -----------------------------------------------------------------------------------------------

UNIT = {"tf32": 2.0**-12, "bf16": 2.0**-9}  # added to one, a conversion to nearest drops it


@pytest.mark.parametrize("semantics", ["tf32", "bf16"])
@pytest.mark.parametrize("layers", ["shift before", "two products", "three products", "many products"])
def test_constants_are_converted_with_the_values_they_join(semantics: str, layers: str) -> None:
    """The input is zero, so all a merged layer has is its bias; the deployed one carried it through conversions."""
    c = 1 + UNIT[semantics]
    if layers == "shift before":
        net = net_of(lambda b, x: linear(b, scale(b, x, 1, c), [[1]], [0]))
        deployed = 1.0
    elif layers == "two products":
        net = net_of(lambda b, x: linear(b, linear(b, x, [[1], [1]], [c, c]), [[1, 1]], [0]))
        deployed = 2.0
    elif layers == "many products":
        net = net_of(lambda b, x: reduce(lambda h, _: linear(b, h, [[c]], [0]), range(12), linear(b, x, [[1]], [c])))
        deployed = 1.0
    else:  # the weight loses its last bit too
        net = net_of(lambda b, x: linear(b, linear(b, linear(b, x, [[1]], [c]), [[c]], [UNIT[semantics]]), [[c]], [0]))
        deployed = 1.0
    lo, hi = output(net, [0], semantics=semantics, dtype="float64")
    assert lo <= deployed <= hi
    assert hi - lo < 0.6
    lo, hi = output(net, [0], semantics="float32", dtype="float64")
    assert not lo <= deployed <= hi, "the trap does not bite"


def charged(semantics: str, n: int, nonzero: int, ops: int, products: int) -> F:
    """The deployed error of a sum whose magnitudes add up to one."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    flushed = one * 0 if semantics == "float16" else None
    tiny = 2.0**-60
    return F(float(deployed_error(SEMANTICS[semantics], n, nonzero * one, ops, products, one, one * 0, one * tiny, 1.0, flushed, tiny)))


def truncated(semantics: str, n: int, products: int) -> F:
    """Four addends and the sum, aligned and cut off: five roundings of one unit for four products."""
    sem = SEMANTICS[semantics]
    return (1 + F(sem.u_in)) ** (2 * products) * (1 + F(5, 4) * n * F(sem.u)) - 1


@pytest.mark.parametrize("semantics", ["tf32", "bf16", "float16"])
@pytest.mark.parametrize("n", [256, 1 << 17])
def test_tensor_cores_round_more_often_than_plain_sums(semantics: str, n: int) -> None:
    assert charged(semantics, n, n, 0, 1) >= truncated(semantics, n, 1)


@pytest.mark.parametrize("semantics", ["tf32", "bf16"])
@pytest.mark.parametrize("n", [256, 1 << 17])
def test_tensor_cores_truncate_a_sum_that_a_merge_hid(semantics: str, n: int) -> None:
    """One input, n inner cells, one output: the inner sum is among the merged layer's ops."""
    assert charged(semantics, n, 1, n + 2, 2) >= truncated(semantics, n, 2)


@pytest.mark.parametrize("first,deployed", [(2.0**-20, 0.0), (2.0**20, np.inf)])
def test_a_chain_of_factors_hides_no_overflow(first: float, deployed: float) -> None:
    """Eight factors of 2^20 and eight of 2^-20: one in all, but infinity or zero on the way."""

    def make(b: Builder, x: str) -> str:
        x = linear(b, x, [[1]], [0])
        for f in [first] * 8 + [1 / first] * 8:
            x = scale(b, x, f, 0)
        return x

    value = np.float32(1)
    with np.errstate(all="ignore"):
        for f in [first] * 8 + [1 / first] * 8:
            value = value * np.float32(f)
    assert value == deployed, "the trap does not bite"
    lo, hi = output(net_of(make), [1], semantics="float32", dtype="float64")
    assert lo <= deployed <= hi


def test_an_operand_as_large_as_its_weight_is_small() -> None:
    """2^100 times 2^50 overflows, and only then comes 2^-95."""
    net = net_of(lambda b, x: linear(b, scale(b, x, 2.0**50, 0), [[2.0**-95]], [0]))
    lo, hi = output(net, [2.0**100], semantics="float32", dtype="float64")
    assert lo == -np.inf
    assert hi == np.inf


def test_float16_overflow_behind_a_merged_shift() -> None:
    net = net_of(lambda b, x: linear(b, scale(b, x, 1, 1e5), [[1]], [-1e5]))
    verifier = Verifier.from_net(net, semantics="float16", dtype="float64")
    assert np.isposinf(verifier.bounds(np.zeros((1, 1)), np.ones((1, 1))).hi).all()


def test_float16_weights_may_be_rounded_away_from_zero() -> None:
    """1e-9 becomes float16's smallest number, 2^-24, under a rounding mode; to nearest 4e-8 does."""
    for weight in (1e-9, 4e-8):
        lo, hi = output(net_of(lambda b, x, weight=weight: linear(b, x, [[weight]], [0])), [60000], semantics="float16", dtype="float64")
        assert lo <= 0
        assert hi >= 2.0**-24 * 60000
        assert hi < 0.1


def test_an_operator_over_an_overflow_has_no_bound() -> None:
    """inf - inf is NaN, and relu(NaN) is not at least zero."""
    for op in ({}, {"slope": 1.0}, {"slope": 0.1}):
        net = net_of(lambda b, x, op=op: b.add("relu", (linear(b, x, [[1e38, -1e38]], [1]),), **op), 2)
        lo, hi = output(net, [5, 5], semantics="float32", dtype="float64")
        assert (lo, hi) == (-np.inf, np.inf)


# ---- sums of the library ---------------------------------------------------------------------------------------


def test_magnitudes_of_wide_sums_are_rounded_up_far_enough() -> None:
    n = 400_000
    values = np.full(n, 0.49 * 2.0**-52)
    values[0] = 1
    in_sequence = float(np.cumsum(values)[-1])
    true = 1 + (n - 1) * F(0.49 * 2.0**-52)
    assert F(in_sequence) * (1 + F(2) ** -40) < true, "the trap does not bite"
    assert F(float(up(torch.tensor(in_sequence, dtype=torch.float64)))) >= true
    assert F(GROW) - 1 >= 500_000 * F(2) ** -53


def test_sums_beyond_the_argument_are_refused() -> None:
    n = 500_001
    with pytest.raises(UnsupportedModel, match="500001 terms"):
        output(net_of(lambda b, x: linear(b, x, np.ones((1, n), np.float32), [0]), n), np.zeros(n))


@pytest.mark.parametrize("machine,library", [("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False)])
def test_convolutions_are_left_to_libraries_that_sum_plainly(machine: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    b = Builder("gap")
    x = b.input((12, 6, 6))
    for groups in (1, 3, 1):
        w, c = rng.standard_normal((12, 12 // groups, 3, 3)) / 8, rng.standard_normal(12) / 8
        w, c = (b.constant(v.astype(np.float32)) for v in (w, c))
        x = b.add("relu", (b.add("conv", (x,), w=w, b=c, k=(3, 3), s=(1, 1), p=(1, 1, 1, 1), g=groups),))
    net = b.build(linear(b, x, rng.standard_normal((2, 432)) / 8, [0, 0]))
    at = rng.random((1, 432))

    def found() -> np.ndarray:
        o = Verifier.from_net(net, semantics="real", dtype="float32").bounds(at - 0.01, at + 0.01)
        return np.stack([np.asarray(o.lo), np.asarray(o.hi)])

    here = found()
    calls = []

    def counted(*args: object, **more: object) -> torch.Tensor:
        calls.append(1)
        return torch.nn.functional.conv_transpose2d(*args, **more)

    monkeypatch.setattr(torch_backend, "F", SimpleNamespace(pad=torch.nn.functional.pad, conv_transpose2d=counted))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    there = found()
    assert bool(calls) == library
    assert np.allclose(here, there, rtol=1e-4, atol=1e-5)
    value = Verifier.from_net(net).predict(at)
    assert (there[0] <= value).all()
    assert (value <= there[1]).all()
