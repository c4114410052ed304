"""Known ways in which a verifier that rounds to nearest, or bounds one rounding a layer, says something false.

Each trap first shows that it bites: a bound without extra width, or the float64 answer, would be wrong.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import PolytritonError
from polytriton.ir.net import Builder
from polytriton.runtime.relax import relu_lines
from tests.oracle.exact import Machine, exact, execute
from tests.oracle.small import bounds, dense, once

DTYPES = ("float32", "float64")
SEMANTICS = ("real", "float32", "tf32", "bf16", "float16")


@pytest.mark.parametrize("n", [784, pytest.param(20000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [False, True])
def test_sum_in_sequence_drifts_further_than_one_rounding(n: int, dtype: str, hidden: bool) -> None:
    w = np.full((1, n), 0.6 * 2.0**-23, np.float32)
    w[0, 0] = 1
    net = dense((w, [0]), ([[1]], [0])) if hidden else dense((w, [0]))
    x = np.ones(n)
    run = float(np.cumsum(w[0])[-1])  # numpy adds in sequence, rounding to nearest
    true = exact(net, x[None])[net.output].fraction(0, 0)
    assert abs(Fraction(run) - true) > n // 4 * Fraction(2) ** -23, "the trap does not bite"
    lo, hi = bounds(net, x, x, semantics="real", dtype="float64")
    assert lo[0] <= true <= hi[0]
    assert not lo[0] <= run <= hi[0], "real arithmetic has no room for the drift"
    for mode in ("nearest", "down", "up"):
        at = once(net, x[None], mode)
        assert mode != "nearest" or at == run
        lo, hi = bounds(net, x, x, semantics="float32", dtype=dtype)
        assert lo[0] <= at <= hi[0]
        assert hi[0] - lo[0] < 0.02 * (n / 784), "sound, but not worth having"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("power", [27, 56])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("candidates", ["all", "input"])
def test_cancelling_weights_swallow_a_unit(power: int, dtype: str, semantics: str, candidates: str) -> None:
    big = 2.0**power
    one, eye = [[big, 1, -big]], np.eye(3)
    type_ = np.float32 if power == 27 else np.float64
    assert type_(big) + type_(1) - type_(big) == 0, "the trap does not bite"
    start = np.array([1, 0, 1.0]), np.array([1, 1, 1.0])
    for net in (
        dense((one, [2]), relu_last=True),
        dense((eye, [0, 0, 0]), (one, [2]), relu_last=True),  # the rows meet the weights behind a ReLU
        dense(([[big], [1], [-big]], [0, 0, 0]), ([[1, 1, 1]], [2])),  # not cancelling: values of one sign
        dense((eye, [0, 0, 0]), (np.vstack([one, one]), [2, 2]), ([[1, 0], [0, 1]], [0, 0])),
    ):
        lo, hi = start if net.input.size == 3 else (np.array([0.0]), np.array([1.0]))
        low, high = bounds(net, lo, hi, semantics=semantics, dtype=dtype, candidates=candidates)
        for at in (lo, hi, (lo + hi) / 2):
            for i in range(len(low)):
                value = exact(net, at[None])[net.output].fraction(0, i)
                assert not np.isnan([low[i], high[i]]).any()
                assert Fraction(low[i]) <= value if np.isfinite(low[i]) else low[i] < 0
                assert value <= Fraction(high[i]) if np.isfinite(high[i]) else high[i] > 0
        if net.input.size == 3:
            assert high[0] >= 3


def test_coefficients_that_cancel_on_the_way_back() -> None:
    """(B + 1) - B over two paths: the row itself cancels, in a join and in a product."""
    for power, dtype in ((25, "float32"), (54, "float64")):
        big = 2.0**power
        b = Builder("join")
        x = b.input((1,))
        zero = b.constant(np.zeros(2, np.float32))
        arms = [b.add("linear", (x,), w=b.constant(np.array([[w], [v]], np.float32)), b=zero) for w, v in ((big, 1), (-big, 0))]
        ones, none = b.constant(np.array([[1, 1]], np.float32)), b.constant(np.zeros(1, np.float32))
        net = b.build(b.add("linear", (b.add("add", tuple(arms)),), w=ones, b=none))
        lo, hi = bounds(net, [-3], [5], semantics="real", dtype=dtype)
        assert lo[0] <= -3
        assert hi[0] >= 5


PADDINGS = ((0, 0), (2, 2), (1, 0), (0, 1), (3, 1), (0, 3))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels,groups", [(1, 1), (12, 1), (12, 12), (12, 2)])
@pytest.mark.parametrize("down", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_cell_is_lost_at_a_border(channels: int, groups: int, dtype: str, down: bool) -> None:
    """Weights of one over [0, 1]: the bound counts the (cell, window) pairs, along one axis of every second window geometry."""
    other = down == (dtype == DTYPES[0])  # the other half is the other type's, and the other axis's
    for k, s, d, p, cells in list(product((1, 2, 3), (1, 2, 3), (1, 2), PADDINGS, (2, 5)))[other::2]:
        if cells + sum(p) < (k - 1) * d + 1:
            continue

        def along(a: int, b: int) -> tuple[int, int]:
            return (a, b) if down else (b, a)

        b = Builder("border")
        x = b.input((channels, *along(cells, 1)))
        pads = (p[0], 0, p[1], 0) if down else (0, p[0], 0, p[1])
        w, c = b.constant(np.ones((groups, channels // groups, *along(k, 1)), np.float32)), b.constant(np.zeros(groups, np.float32))
        y = b.add("conv", (x,), w=w, b=c, k=along(k, 1), s=along(s, 1), p=pads, d=along(d, 1), g=groups)
        m = int(np.prod(b.shape(y)))
        net = b.build(b.add("linear", (y,), w=b.constant(np.ones((1, m), np.float32)), b=b.constant(np.zeros(1, np.float32))))
        outputs = m // groups
        pairs = channels * sum(0 <= i * s + j * d - p[0] < cells for i in range(outputs) for j in range(k))
        shape = (1, *net.input.shape)
        verifier = Verifier.from_net(net, semantics="real", dtype=dtype, candidates="input")
        found = verifier.bounds(np.zeros(shape), np.ones(shape), effort="quick")
        low, high = float(np.asarray(found.lo)[0, 0]), float(np.asarray(found.hi)[0, 0])
        assert -1e-3 <= low <= 0, (k, s, d, p, cells)
        assert pairs <= high <= pairs + 1e-3, (k, s, d, p, cells)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.5, -0.25, 1.0])
def test_relu_lines_enclose_the_function_in_rationals(slope: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    n = 4_000
    lo = -rng.random(n) * 10.0 ** rng.integers(-12, 8, n)
    hi = rng.random(n) * 10.0 ** rng.integers(-12, 8, n)
    lo[:500], hi[500:1000] = -lo[:500] * 1e-3, -hi[500:1000] * 1e-3  # settled both ways
    lo[1000:1200], hi[1200:1400] = -0.0, 0.0
    lo[1400:1420], hi[1420:1440] = -1e-310, 1e-310
    lo[1440:1500] = -hi[1440:1500]  # the area rule's tie
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    lines = relu_lines(torch.from_numpy(lo), torch.from_numpy(hi), slope, dtype)
    zero = torch.zeros(n)
    columns = [c if c is not None else zero for c in (lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut)]
    assert lines.lower_slope.dtype == lines.upper_slope.dtype == dtype
    a = Fraction(slope)
    nearest_cuts = 0
    for i, (low_s, low_c, up_s, up_c) in enumerate(zip(*(c.double().tolist() for c in columns), strict=True)):
        l, u = Fraction(lo[i]), Fraction(hi[i])
        for y in (l, u, *([Fraction(0)] if l < 0 < u else [])):
            f = y if y >= 0 else a * y
            assert Fraction(low_s) * y + Fraction(low_c) <= f, (lo[i], hi[i])
            assert f <= Fraction(up_s) * y + Fraction(up_c), (lo[i], hi[i])
        if l < 0 < u and slope == 0:
            near = float(np.float64(hi[i]) / (hi[i] - lo[i]))
            nearest_cuts += Fraction(near) * (u - l) < u
            assert up_s * hi[i] + up_c <= hi[i] * (1 + 1e-6) + 1e-37, "the chord is not tight"
    assert slope != 0 or nearest_cuts > n // 10, "the trap does not bite"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_overflow_never_makes_a_finite_wrong_bound(dtype: str, semantics: str) -> None:
    huge = 1e38
    cases = [
        dense(([[huge, huge]], [0]), ([[1]], [0])),
        dense(([[huge, huge], [huge, huge]], [0, 0]), ([[1, -1]], [0.5])),
        dense(([[huge, -huge]], [1]), ([[huge]], [0]), ([[1e-38]], [0])),
        dense(([[huge, huge]], [0]), ([[huge]], [0]), ([[1e-38]], [0]), ([[1e-38]], [0])),
        dense(([[1e30, 0], [0, 1e30]], [0, 0]), ([[1e30, -1e30]], [1]), ([[1e-30]], [0])),
        dense(([[huge, -huge]], [1]), relu_last=True),  # relu(inf - inf) is NaN, not at least zero
        dense(([[huge, -huge]], [1]), ([[1]], [1])),
    ]
    points = np.array([[5.0, 5.0], [6.0, 6.0], [5.0, 6.0], [6.0, 5.0], [5.5, 5.5]])
    rng = np.random.default_rng(0)
    for net in cases:
        verifier = Verifier.from_net(net, semantics=semantics, dtype=dtype)
        found = verifier.bounds(np.array([[5.0, 5.0]]), np.array([[6.0, 6.0]]))
        low, high = float(np.asarray(found.lo)[0, 0]), float(np.asarray(found.hi)[0, 0])
        margin = float(np.asarray(verifier.margins(np.array([[5.0, 5.0]]), np.array([[6.0, 6.0]]), np.array([[1.0]])))[0, 0])
        assert not np.isnan([low, high, margin]).any()
        true = exact(net, points)[net.output]
        assert (low <= true.down()).all()
        assert (true.up() <= high).all()
        assert (margin <= true.down()).all()
        if semantics == "real":
            continue
        for mode, fma in product(("nearest", "zero", "up"), (True, False)):
            with np.errstate(all="ignore"):
                run = execute(net, points, Machine(mode, fma, False, rng, semantics), "forward", False)[net.output]
            if np.isnan(run).any():
                assert low == -np.inf
                assert high == np.inf
                assert not margin > 0
            else:
                assert (low <= run).all() and (run <= high).all() and (margin <= run).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16", "float16"])
def test_flushed_operands_are_covered(dtype: str, semantics: str) -> None:
    """Hardware that flushes results flushes operands too: a subnormal weight times a large input vanishes."""
    net = dense(([[1e-39, 0], [0, 1e-39]], [0, 0]), ([[1, 1]], [0]))
    x = np.array([[1e30, 1e37]], np.float32).astype(np.float64)
    kept, lost = (once(net, x, "nearest", flush=flush) for flush in (False, True))
    assert kept > 0.009
    assert lost == 0, "the trap does not bite"
    lo, hi = bounds(net, x, x, semantics=semantics, dtype=dtype)
    assert lo[0] <= lost
    assert kept <= hi[0]


@pytest.mark.parametrize("semantics,unit", [("tf32", 2.0**-11), ("bf16", 2.0**-8), ("float16", 2.0**-11)])
def test_every_layer_converts_its_operands_merged_or_not(semantics: str, unit: float) -> None:
    """A chain of layers without ReLU: a tensor core rounds each intermediate value again, a pass that merges them must say so."""
    w = float(np.float32(1 + unit + 2.0**-20))
    b = Builder("chain")
    x = b.input((1,))
    for _ in range(6):
        x = b.add("linear", (x,), w=b.constant(np.array([[w]], np.float32)), b=b.constant(np.zeros(1, np.float32)))
    net, at = b.build(x), np.array([[w]])
    lo, hi = bounds(net, at, at, semantics=semantics, dtype="float64")
    runs = [once(net, at, mode, semantics) for mode in ("nearest", "up", "down", "zero")]
    assert max(runs) > (1 + 2 * unit) ** 6, "the trap does not bite"
    assert lo[0] <= min(runs)
    assert max(runs) <= hi[0]
    assert semantics == "float16" or hi[0] - lo[0] < 64 * unit


def test_float16_operands_below_its_smallest_number() -> None:
    """Rounded up, a weight of 1e-9 becomes 2^-24, sixty times as much: an error relative to the weight is not enough."""
    net, x = dense(([[1e-9]], [0])), np.array([[60000.0]])
    runs = [once(net, x, mode, "float16") for mode in ("nearest", "up", "zero")]
    assert min(runs) == 0
    assert max(runs) > 3e-3, "the trap does not bite"
    lo, hi = bounds(net, x, x, semantics="float16", dtype="float64")
    assert lo[0] <= min(runs)
    assert max(runs) <= hi[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_never_verified(dtype: str) -> None:
    net = dense(([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [5]))
    C = np.array([[1.0]])
    for bad in (np.nan, np.inf, -np.inf):
        for lo, hi in (([bad, 0], [1, 1]), ([0, 0], [bad, 1]), ([bad, 0], [bad, 1])):
            try:
                verifier = Verifier.from_net(net, dtype=dtype, semantics="real")
                margin = np.asarray(verifier.margins(np.array([lo], float), np.array([hi], float), C))
            except PolytritonError:
                continue
            unbounded_above_only = np.isfinite(lo).all() and not np.isnan(hi).any() and min(hi) > 0
            assert unbounded_above_only or not margin[0, 0] > 0, (lo, hi)
    for rows in (np.array([[np.nan]]), np.array([[np.inf]])):
        try:
            margin = np.asarray(Verifier.from_net(net, dtype=dtype, semantics="real").margins(np.zeros((1, 2)), np.ones((1, 2)), rows))
        except PolytritonError:
            continue
        assert not margin[0, 0] > 0
    for bad in (np.nan, np.inf):
        with pytest.raises(PolytritonError):
            Verifier.from_net(dense(([[bad, 0], [0, 1]], [0, 0]), ([[1, 1]], [5])), dtype=dtype)
