"""Stored lines beside smooth functions, in ball arithmetic; how near they are; where there is no bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb, ctx

from polytriton.errors import InvalidIR, UsageError
from polytriton.ir.curves import CURVES, SLOPE, VALUE, Curve
from polytriton.ir.net import Builder, Net, Node
from polytriton.runtime.curves import Boxed, curve_cuts, curve_lines, curve_range
from polytriton.runtime.soundness import find_semantics, state_functions
from tests.ir.test_curves import SMOOTH, exact, piece_of

NAMES = SMOOTH


def boxes(name: str, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of all widths: single points, neighbours, around bends, wide, one-sided."""
    rng = np.random.default_rng([seed, NAMES.index(name)])
    ends = [e for pair in CURVES[name].bends for e in pair] or [0.0]
    middle = np.where(
        rng.random(count) < 0.3, rng.choice(ends, count), rng.standard_normal(count) * rng.choice([0.1, 1.0, 4.0, 30.0], count)
    )
    width = np.abs(rng.standard_normal(count)) * rng.choice([0.0, 1e-15, 1e-9, 1e-3, 0.3, 2.0, 15.0], count)
    left = rng.choice([0.0, 0.5, 1.0], count) * width
    lo, hi = middle - left, middle - left + width
    if CURVES[name].domain[0] == 0:
        lo, hi = np.abs(lo) + 1e-6, np.abs(lo) + 1e-6 + (hi - lo)
    return lo, np.maximum(lo, hi)


def node(name: str, size: int) -> Node:
    return Node("y", name, ("x",), (size,), {})


def inside(name: str, lo: float, hi: float) -> list[float]:
    """Points of a box: the ends, bends, and a grid whose steps shrink towards both ends."""
    share = np.concatenate([np.linspace(0, 1, 23), 2.0 ** -np.arange(4, 40, 6.0), 1 - 2.0 ** -np.arange(4, 40, 6.0)])
    bends = [e for pair in CURVES[name].bends for e in pair if lo <= e <= hi]
    return [float(np.clip(x, lo, hi)) for x in (lo + (hi - lo) * share)] + [lo, hi, *bends]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_stored_lines_and_boxes_hold(name: str, dtype: torch.dtype) -> None:
    lo, hi = boxes(name, 1, 24)
    lines = curve_lines(node(name, len(lo)), torch.tensor(lo), torch.tensor(hi), dtype, None)
    least, most = curve_range(node(name, len(lo)), torch.tensor(lo), torch.tensor(hi))
    with ctx.workprec(300):
        for i, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            low, cut_low, up, cut_up = (arb(v[i].item()) for v in (lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut))
            for x in inside(name, a, b):
                f = exact(name, x, piece_of(name, x))[0]
                assert low * arb(x) + cut_low <= f <= up * arb(x) + cut_up, (name, a, b, x)
                assert arb(least[i].item()) <= f <= arb(most[i].item()), (name, a, b, x)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_lines_of_any_slope_hold(name: str, dtype: torch.dtype) -> None:
    """Slopes of the function and of nobody's choice; a deployed error moves each line outward."""
    lo, hi = boxes(name, 3, 24)
    rng = np.random.default_rng(4)
    own = CURVES[name].slope(lo + (hi - lo) * rng.random(24), CURVES[name].parameter[1])
    k = torch.from_numpy(np.where(rng.random(24) < 0.4, own, rng.standard_normal(24) * 10.0 ** rng.integers(-30, 20, 24))).to(dtype)
    above, error = torch.from_numpy(rng.random(24) < 0.5), torch.full((24,), 1e-3).double()
    cuts, wide = (curve_cuts(node(name, 24), torch.tensor(lo), torch.tensor(hi), k, above, e) for e in (None, error))
    assert torch.isfinite(cuts).all()
    with ctx.workprec(300):
        for i, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            line, cut, far = (arb(v[i].item()) for v in (k, cuts, wide))
            way = 1 if above[i] else -1
            assert way * (far - cut) >= arb("0.0009") - abs(cut) * arb(2) ** -22
            for x in inside(name, a, b):
                assert way * (exact(name, x, piece_of(name, x))[0] - line * arb(x) - cut) <= 0, (name, a, b, x)


@pytest.mark.parametrize("name", NAMES)
def test_lines_have_the_least_area_and_boxes_are_the_range(name: str) -> None:
    """Beside the concave (convex) hull of a thousand points of the graph, at the middle of the box."""
    lo, hi = boxes(name, 2, 40)
    lo, hi = lo[hi - lo > 1e-3], hi[hi - lo > 1e-3]
    lines = curve_lines(node(name, len(lo)), torch.tensor(lo), torch.tensor(hi), torch.float64, None)
    least, most = (v.numpy() for v in curve_range(node(name, len(lo)), torch.tensor(lo), torch.tensor(hi)))
    assert lines.lower_cut is not None
    share = np.linspace(0, 1, 1001)
    for i, (a, b) in enumerate(zip(lo, hi, strict=True)):
        x = a + (b - a) * share
        f = CURVES[name].value(x, CURVES[name].parameter[1])
        middle, spread = 0.5 * (a + b), f.max() - f.min()
        room = 2e-3 * spread + 1e-9 * (1 + np.abs(f).max())
        assert f.min() - room <= least[i] <= f.min() and f.max() <= most[i] <= f.max() + room
        left, right = x < middle, x > middle
        t = (middle - x[left])[:, None] / (x[right][None] - x[left][:, None])
        chords = f[left][:, None] * (1 - t) + f[right][None] * t
        at = [float(k[i]) * middle + float(c[i]) for k, c in ((lines.lower_slope, lines.lower_cut), (lines.upper_slope, lines.upper_cut))]
        assert min(chords.min(), f[500]) - room <= at[0] and at[1] <= max(chords.max(), f[500]) + room, (name, a, b)


def _parabola(value: float, slope: float, invert: bool) -> Curve:
    """-x^2 whose value and slope are off by these shares of what the table allows, and whose summits are anybody's guess."""
    rng = np.random.default_rng(1)
    return Curve(
        lambda x, _: -x * x * (1 + value * VALUE),
        lambda x, _: -2 * x * (1 + slope * SLOPE),
        (-1,),
        invert=(lambda k: rng.standard_normal(k.shape)) if invert else None,
    )


@pytest.mark.parametrize(("value", "slope", "invert"), [(0.9, 0, False), (-0.9, 0, False), (0, 0.9, False), (0, -0.9, False), (0, 0, True)])
def test_nothing_but_the_table_is_trusted(value: float, slope: float, invert: bool) -> None:
    """Values and slopes off by as much as is allowed, points of tangents at random: the greatest value stays below what is said."""
    rng = np.random.default_rng(2)
    lo = rng.standard_normal(400) * 3
    hi = lo + np.abs(rng.standard_normal(400)) * rng.choice([1e-6, 1.0, 1e6], 400)
    k = rng.standard_normal(400) * rng.choice([0.1, 1.0, 10.0], 400)
    found = Boxed(_parabola(value, slope, invert), 0.0, lo, hi).greatest(1, k)
    with ctx.workprec(200):
        for a, b, s, most in zip(lo.tolist(), hi.tolist(), k.tolist(), found.tolist(), strict=True):
            summit = min(max(-arb(s) / 2, arb(a)), arb(b))
            assert -summit * summit - arb(s) * summit <= arb(most), (a, b, s)


@pytest.mark.parametrize("slope", [-0.9, 0.9])
def test_slopes_may_be_off_where_a_function_is_nearly_straight(slope: float) -> None:
    """x - 1e-18 x^2: what a slope may be off by moves the summit over half of the box."""
    bent = 1e-18
    curve = Curve(lambda x, _: x - bent * x * x, lambda x, _: (1 - 2 * bent * x) * (1 + slope * SLOPE), (-1,))
    lo, hi = np.zeros(50), np.full(50, 1e6)
    k = 1 - np.linspace(0, 2e-12, 50)
    found = Boxed(curve, 0.0, lo, hi).greatest(1, k)
    with ctx.workprec(300):
        for s, most in zip(k.tolist(), found.tolist(), strict=True):
            summit = min(max((1 - arb(s)) / (2 * arb(bent)), arb(0)), arb(1e6))
            assert summit - arb(bent) * summit * summit - arb(s) * summit <= arb(most), s


def test_without_a_box_there_is_no_bound() -> None:
    inf = float("inf")
    lo, hi = torch.tensor([-inf, 0.0, float("nan"), 1.0, -inf]).double(), torch.tensor([0.0, inf, 1.0, 2.0, inf]).double()
    for name in NAMES:
        lines = curve_lines(node(name, 5), lo, hi, torch.float32, None)
        assert lines.lower_cut is not None
        found = torch.isfinite(lines.lower_cut) & torch.isfinite(lines.upper_cut)
        assert found.tolist() == [False, False, False, True, False]
        assert (lines.lower_slope[~found] == 0).all() and (lines.lower_cut[~found] == -inf).all() and (lines.upper_cut[~found] == inf).all()


@pytest.mark.parametrize("name", [n for n in NAMES if CURVES[n].domain[0] == 0])
def test_beyond_the_domain_there_is_no_bound(name: str) -> None:
    lo, hi = torch.tensor([-1.0, 0.0, 1e-40, 1e-300, 1e-30]).double(), torch.ones(5).double()
    least, most = curve_range(node(name, 5), lo, hi)
    assert torch.isfinite(least).tolist() == torch.isfinite(most).tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("name", [n for n in NAMES if CURVES[n].period])
def test_far_out_and_in_wide_boxes_a_period_counts(name: str) -> None:
    rng = np.random.default_rng(8)
    middle = rng.standard_normal(60) * rng.choice([1e2, 1e4, 5e5, 1e9], 60)
    width = np.abs(rng.standard_normal(60)) * rng.choice([1e-6, 0.5, 5.0, 12.0, 1e3], 60)
    lo, hi = middle - width, middle + width
    lines = curve_lines(node(name, 60), torch.tensor(lo), torch.tensor(hi), torch.float64, None)
    least, most = (v.numpy() for v in curve_range(node(name, 60), torch.tensor(lo), torch.tensor(hi)))
    assert lines.lower_cut is not None
    assert (least[hi - lo > 7] <= -1).all() and (most[hi - lo > 7] >= 1).all() and (least >= -1.0001).all() and (most <= 1.0001).all()
    with ctx.workprec(300):
        for i, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            low, cut_low, up, cut_up = (arb(v[i].item()) for v in (lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut))
            tops = [float(t) for t in np.pi / 2 * np.arange(np.ceil(a / np.pi * 2), np.ceil(a / np.pi * 2) + 12) if a <= t <= b]
            for x in [*inside(name, a, b), *tops]:
                f = exact(name, x)[0]
                assert low * arb(x) + cut_low <= f <= up * arb(x) + cut_up, (name, a, b, x)
                assert arb(least[i]) <= f <= arb(most[i]), (name, a, b, x)
    assert (lines.lower_slope.numpy()[np.abs(middle) > 1e7] == 0).all()


@pytest.mark.parametrize("name", [n for n in NAMES if CURVES[n].period])
def test_over_many_turns_any_slope_has_an_intercept(name: str) -> None:
    rng = np.random.default_rng(9)
    middle, width = rng.standard_normal(80) * 50, rng.uniform(4, 40, 80)
    lo, hi, k = middle - width, middle + width, rng.standard_normal(80) * rng.choice([1e-3, 0.1, 1.0], 80)
    for side in (1, -1):
        most = Boxed(CURVES[name], 0.0, lo, hi).greatest(side, k)
        x = np.linspace(lo, hi, 4001)
        assert (side * (CURVES[name].value(x, 0.0) - k * x) <= most).all()


@pytest.mark.parametrize("side", [1, -1])
def test_over_many_turns_a_product_that_cancels_the_span_pays_its_rounding(side: int) -> None:
    """Slopes k about 1 / lo, where the sine has its summit: 1 - k lo is nearly zero, and the rounding of k lo is all that counts."""
    turn = np.arange(50, 3000, dtype=np.float64)
    lo = np.repeat(side * np.pi / 2 + 2 * np.pi * turn, 3)
    k = side / lo * (1 + np.tile([-(2.0**-53), 0.0, 2.0**-52], len(turn)))
    cut, a, b = (torch.from_numpy(v) for v in (k, lo, lo + 1000.0))
    cuts = curve_cuts(Node("s", "sin", ("x",), (len(lo),), {}), a, b, cut, torch.full((len(lo),), side > 0), None)
    with ctx.workprec(200):
        missed = [side * (arb(x).sin() - arb(m) * arb(x) - arb(c)) for x, m, c in zip(lo.tolist(), k.tolist(), cuts.tolist(), strict=True)]
        assert not any(v > 0 for v in missed), max(float(v.mid()) for v in missed)


def test_what_overflows_is_no_bound() -> None:
    lo, hi = torch.tensor([700.0, 0.0]).double(), torch.tensor([800.0, 709.0]).double()
    least, most = curve_range(node("exp", 2), lo, hi)
    assert not most[0] < float("inf") and most[1] < 1e308 and least[1] > 0.99
    lines = curve_lines(node("exp", 2), lo, hi, torch.float32, None)
    assert lines.upper_cut[0] == float("inf") and torch.isfinite(lines.upper_slope).all()


def test_the_error_widens_both_lines() -> None:
    lo, hi, error = torch.full((3,), -1.0).double(), torch.full((3,), 2.0).double(), torch.tensor([0.0, 1e-3, float("inf")]).double()
    plain, wide = (curve_lines(node("tanh", 3), lo, hi, torch.float64, e) for e in (None, error))
    assert plain.lower_cut is not None and wide.lower_cut is not None
    assert wide.lower_cut[1] <= plain.lower_cut[1] - 1e-3 and wide.upper_cut[1] >= plain.upper_cut[1] + 1e-3
    assert wide.lower_cut[2] == -float("inf") and wide.upper_cut[2] == float("inf")


def test_stated_errors() -> None:
    unit, one = 2.0**-23, torch.ones(1).double()
    assert find_semantics("float32").function_error(node("tanh", 1), 0.5 * one, one).item() >= 4 * unit
    assert find_semantics("float32,tanh=9").function_error(node("tanh", 1), 0.5 * one, one).item() >= 9 * unit
    assert find_semantics("bf16,tanh=0.5").function_error(node("tanh", 1), one, one).item() < 0.6 * unit
    assert find_semantics("float32").function_error(node("exp", 1), 1000 * one, one).item() >= 4000 * unit
    steep = node("elu", 1).with_attrs(alpha=1000.0)  # alpha (exp(x) - 1) cancels near 0
    assert find_semantics("float32").function_error(steep, 0 * one, 0 * one).item() >= 4000 * unit
    # a product with a sigmoid that errs: the operand times that error
    assert find_semantics("float32,sigmoid=10").function_error(node("silu", 1), 0 * one, 50 * one).item() >= 500 * unit
    assert find_semantics("float32,sigmoid=10").function_error(node("sigmoid", 1), 0 * one, 50 * one).item() < 11 * unit
    # products and what IEEE 754 defines err by their own size, and by what is flushed
    for name in ("sqrt", "reciprocal", "square", "cube", "fourth", "three_halves"):
        small, none = (find_semantics("float32").function_error(node(name, 1), v * one, one).item() for v in (1e-6, 0.0))
        assert 4e-6 * unit <= small <= 5e-6 * unit and none >= 2.0**-126
    assert find_semantics("float32").function_error(node("exp", 1), 1e-6 * one, one).item() >= 4 * unit
    for name in ("gelu", "gelu_tanh", "mish"):
        assert find_semantics("float32").function_error(node(name, 1), 0 * one, 50 * one).item() >= 300 * unit
    assert find_semantics("real").function_error(node("silu", 1), one, one).item() == 0
    for large in (2.0**61, float("inf"), float("nan")):
        assert find_semantics("float32").function_error(node("silu", 1), one, large * one).item() == float("inf")
        assert find_semantics("float32").function_error(node("exp", 1), large * one, one).item() == float("inf")
    assert find_semantics("float32").function_error(node("exp", 1).with_attrs(stated="nothing"), one, one).item() == 0
    assert find_semantics("float32,softmax=3").function_error(node("share", 1).with_attrs(stated="softmax"), one, one).item() <= 4 * unit


def chain(*ops: str, **attrs: str) -> Net:
    b = Builder("chain")
    y = b.input((2,))
    for op in ops:
        y = b.add(op, (y,), **attrs)
    return b.build(y)


def test_what_is_stated_is_told() -> None:
    for given, net, told in (
        ("float32", chain("relu", "tanh", "sigmoid"), "float32,sigmoid=4,tanh=4"),
        ("float32,tanh=2", chain("tanh"), "float32,tanh=2"),
        ("real", chain("tanh"), "real"),
        ("float32,sigmoid=9", chain("silu"), "float32,silu=11"),
        ("float32,tanh=2", chain("relu"), "float32"),
        ("float32,tanh=12345.64,exp=1048576", chain("tanh", "exp"), "float32,tanh=12345.64,exp=1048576"),
        ("bf16", chain("exp", "share", stated="softmax"), "bf16,softmax=8"),
        ("float32", chain("exp", stated="nothing"), "float32"),
    ):
        assert state_functions(given, net) == told
    with pytest.raises(InvalidIR, match="no deployed error"):
        chain("tanh", stated="sine")


@pytest.mark.parametrize(
    "name",
    ["float32,relu=2", "float32,tanh", "float32,tanh=-1", "float32,tanh=inf", "float32,tanh=nan", "float32,", "real,tanh=2", "tanh=2"],
)
def test_errors_that_are_none(name: str) -> None:
    with pytest.raises(UsageError):
        find_semantics(name)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-40, 1e39])
def test_an_elu_is_curved_upwards(alpha: float) -> None:
    b = Builder("n")
    with pytest.raises(InvalidIR, match="alpha"):
        b.add("elu", (b.input((2,)),), alpha=alpha)


def test_an_elu_of_another_alpha() -> None:
    """A kink at 0, either way, for which no formula of the table stands."""
    rng = np.random.default_rng(3)
    lo = rng.standard_normal(60) - 1
    hi = lo + np.abs(rng.standard_normal(60)) * rng.choice([1e-6, 1.0, 5.0], 60)
    for alpha in (0.3, 1.6732632, 5.0):
        made = Node("y", "elu", ("x",), (60,), {"alpha": alpha})
        lines = curve_lines(made, torch.tensor(lo), torch.tensor(hi), torch.float32, None)
        assert lines.lower_cut is not None
        for i in range(60):
            k_low, c_low, k_up, c_up = (arb(v[i].item()) for v in (lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut))
            for x in [*np.linspace(lo[i], hi[i], 41).tolist(), *([0.0] if lo[i] <= 0 <= hi[i] else [])]:
                f = arb(x) if x > 0 else arb(alpha) * (arb(x).exp() - 1)
                assert k_low * arb(x) + c_low <= f <= k_up * arb(x) + c_up, (alpha, lo[i], hi[i], x)
