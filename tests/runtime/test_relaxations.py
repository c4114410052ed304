"""Stored relaxations in fractions, the constants of the rounding argument, and rows that share memory."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from polytriton.ir.net import Builder
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.centres import find_centre
from polytriton.runtime.cpu import cells
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes, Forward, positive_part
from polytriton.runtime.relax import Lines, maxpool_winners, relu_lines, round_down, round_outward, round_up, sum_sizes
from polytriton.runtime.results import Forms
from polytriton.runtime.soundness import SEMANTICS, deployed_error, elementwise_error, find_semantics, gamma, gammas
from tests.runtime.scenes import DTYPES


@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
@limits(max_examples=300)
def test_rounding_is_outward_and_tight(x: float) -> None:
    v = torch.tensor([x], dtype=torch.float64)
    lo, hi = round_down(v, torch.float32), round_up(v, torch.float32)
    assert lo.double().item() <= x <= hi.double().item()
    with np.errstate(over="ignore"):
        between = np.nextafter(lo.numpy()[0], np.float32(np.inf))
    assert lo.item() == hi.item() == x or between == hi.numpy()[0]
    assert torch.equal(round_up(v, torch.float64), v) and torch.equal(round_down(v, torch.float64), v)


# ---- relaxations --------------------------------------------------------------------------------------------

SPECIAL = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e-310,
    -1e-300,
    1e-45,
    -1e-45,
    1e-38,
    -1.0,
    1.0,
    1 + 2**-52,
    -1 - 2**-23,
    0.1,
    -3.0,
    1e30,
    -1e38,
    3.5e38,
    -1e300,
    1.7e308,
]


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pairs l <= u of every kind, and all pairs of special values."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 2)) * 10.0 ** rng.integers(-12, 13, (count, 2))
    kinds = rng.integers(0, 5, count)
    x[kinds == 1, 1] = -x[kinds == 1, 0]  # symmetric: the area rule's tie
    x[kinds == 2] = np.abs(x[kinds == 2]) * [-1, 1]  # crossing
    x[kinds == 3, 1] = np.nextafter(x[kinds == 3, 0], np.inf)  # one number wide
    x[kinds == 4] = x[kinds == 4].astype(np.float32)
    x.sort(axis=1)
    special = np.array([p for p in product(SPECIAL, SPECIAL) if p[0] <= p[1]])
    both = np.concatenate([special, x])
    return both[:, 0], both[:, 1]


def sign_at(y: float, slope: float, k: float, c: float) -> int:
    """The sign of f(y) - (k y + c), exactly."""
    f = Fraction(y) * (1 if y >= 0 else Fraction(slope))
    d = f - Fraction(k) * Fraction(y) - Fraction(c)
    return (d > 0) - (d < 0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("slope", [0.0, 0.1, -1.0, 2.0])
def test_stored_lines_hold_at_every_break_point(slope: float, dtype: torch.dtype) -> None:
    """f is linear between l, 0 and u: a line that holds there holds everywhere. In fractions, from the stored numbers."""
    lo, hi = pairs(4_000)
    lines = relu_lines(torch.from_numpy(lo), torch.from_numpy(hi), slope, dtype)
    zero = torch.zeros(len(lo))
    stored = [lines.lower_slope, zero if lines.lower_cut is None else lines.lower_cut, lines.upper_slope, lines.upper_cut]
    assert all(v.dtype == dtype or v is zero for v in stored)
    columns = [v.double().tolist() for v in stored]
    loose = 0
    for l, u, a, b, c, d in zip(lo.tolist(), hi.tolist(), *columns, strict=True):
        assert math.isfinite(a) and math.isfinite(c) and not math.isnan(b) and not math.isnan(d), (l, u)
        for y in {l, u, 0.0} if l <= 0 <= u else {l, u}:
            assert b == -math.inf or sign_at(y, slope, a, b) >= 0, ("lower", l, u, y, a, b)
            assert d == math.inf or sign_at(y, slope, c, d) <= 0, ("upper", l, u, y, c, d)
        loose += not math.isfinite(b) or not math.isfinite(d)
    assert loose < 0.02 * len(lo), "lines that say nothing"


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("slope", [0.0, 0.1, -1.0, 2.0])
def test_lines_are_deeppolys(slope: float, dtype: torch.dtype) -> None:
    """Chord on the far side, the area rule on the near one, the function itself where it is linear."""
    lo, hi = (torch.from_numpy(v) for v in pairs(2000))
    ordinary = (lo.abs() < 1e6) & (hi.abs() < 1e6) & (hi - lo > 1e-3)
    lo, hi = lo[ordinary], hi[ordinary]
    lines = relu_lines(lo, hi, slope, dtype)
    chord = (hi - slope * lo) / (hi - lo)
    near = torch.where(hi > -lo, torch.ones_like(lo), torch.full_like(lo, slope))
    below, above = (near, chord) if slope <= 1 else (chord, near)
    for got, cut, crossing in ((lines.lower_slope, lines.lower_cut, below), (lines.upper_slope, lines.upper_cut, above)):
        want = torch.where(lo >= 0, torch.ones_like(lo), torch.where(hi <= 0, torch.full_like(lo, slope), crossing))
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)
        offset = torch.where((lo < 0) & (hi > 0) & (crossing == chord), hi - chord * hi, torch.zeros_like(lo))
        if cut is not None:
            torch.testing.assert_close(cut.double(), offset, rtol=1e-4, atol=1e-6 * float(hi.abs().max()))
    assert (lines.lower_cut is None) == (slope == 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("slope", [0.0, 0.1, 2.0])
def test_lines_over_unbounded_operands_say_nothing_false(slope: float, dtype: torch.dtype) -> None:
    lo = torch.tensor([-math.inf, -math.inf, -1.0, 0.0, -math.inf], dtype=torch.float64)
    hi = torch.tensor([math.inf, 1.0, math.inf, math.inf, -1.0], dtype=torch.float64)
    lines = relu_lines(lo, hi, slope, dtype)
    cut = torch.zeros(5) if lines.lower_cut is None else lines.lower_cut
    for i, samples in enumerate([(-1e30, 0, 1e30), (-1e30, 0, 1.0), (-1.0, 0, 1e30), (0, 1e30), (-1e30, -1.0)]):
        for y in samples:
            f = y if y >= 0 else slope * y
            assert math.isfinite(lines.lower_slope[i]) and math.isfinite(lines.upper_slope[i])
            # no number is no bound: the row that meets it has none either
            assert math.isnan(cut[i]) or float(lines.lower_slope[i]) * y + float(cut[i]) <= f + 1e-6 * abs(f)
            above = float(lines.upper_cut[i])
            assert math.isnan(above) or float(lines.upper_slope[i]) * y + above >= f - 1e-6 * abs(f)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_the_operators_own_error_lies_between_the_lines(dtype: torch.dtype) -> None:
    lo, hi = (torch.from_numpy(v[-2000:]) for v in pairs(2000))
    error = 1e-3 * torch.maximum(lo.abs(), hi.abs())
    lines = relu_lines(lo, hi, 0.1, dtype, error)
    assert lines.lower_cut is not None
    for l, u, e, a, b, c, d in zip(
        *(v.double().tolist() for v in (lo, hi, error, lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut)), strict=True
    ):
        for y in {l, u, 0.0} if l <= 0 <= u else {l, u}:
            f = Fraction(y) * (1 if y >= 0 else Fraction(0.1))
            assert Fraction(a) * Fraction(y) + Fraction(b) <= f - Fraction(e)
            assert Fraction(c) * Fraction(y) + Fraction(d) >= f + Fraction(e)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_cells_are_the_tensor_forms(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, NaN and infinity included: what is proved of the one is then true of the other."""
    if not cells.serves(torch.zeros(1)):
        pytest.skip("Numba is not installed: there are no compiled loops")
    rng = np.random.default_rng(5)
    odd = [*SPECIAL, *(-v for v in SPECIAL), math.inf, -math.inf, math.nan]
    drawn = np.sort(rng.normal(size=(20_000, 2)) * np.exp(4 * rng.normal(size=(20_000, 2))), axis=1)
    lo, hi = (torch.from_numpy(v.copy()) for v in np.concatenate([np.array(list(product(odd, odd))), drawn]).T)
    made, part = (relu_lines(lo, hi, 0.0, dtype), round_outward(lo, hi, dtype)), positive_part(lo, hi)
    monkeypatch.setattr(cells, "serves", lambda values: False)
    told = relu_lines(lo, hi, 0.0, dtype), round_outward(lo, hi, dtype)
    assert all(map(torch.equal, part, positive_part(lo, hi))) and bool(torch.isinf(part[1]).any())
    for one, other in zip(made, told, strict=True):
        parts = [(v.lower_slope, v.upper_slope, v.upper_cut) if isinstance(v, Lines) else v for v in (one, other)]
        for a, b in zip(*parts, strict=True):
            assert torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0)) and a.dtype == b.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_sizes_and_centres_are_the_tensor_forms(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order, which what they are enlarged by covers; all else bit for bit."""
    if not cells.serves(torch.zeros(1)):
        pytest.skip("Numba is not installed: there are no compiled loops")
    rng, b = np.random.default_rng(6), Builder("sizes")
    forward = Forward(
        b.build(b.add("linear", (b.input((70,)),), w=b.constant(rng.standard_normal((3, 70))), b=b.constant(np.ones(3)))),
        find_semantics("real"), torch.device("cpu"),
    )  # fmt: skip
    odd = [math.nan, *SPECIAL, *(-v for v in SPECIAL), 1e-40, 3e38, 1e39, math.inf, -math.inf]
    drawn = np.sort(rng.normal(size=(60, 70, 2)) * np.exp(4 * rng.normal(size=(60, 70, 2))), axis=-1)
    drawn[:30][rng.random((30, 70)) < 0.1] = rng.choice(odd, size=2)
    drawn[rng.random((60, 70)) < 0.1] = 0.0
    pairs = np.array(list(product(odd, odd)))
    drawn[0], drawn[1] = pairs[:70], pairs[70:140]
    lo, hi = (torch.from_numpy(drawn[..., k].copy()).view(60, 1, 1, 70) for k in (0, 1))
    (layer,), boxes = forward.layers.values(), Boxes({forward.net.input.name: lo}, {forward.net.input.name: hi})
    (sizes, sums), centre = sum_sizes(lo, hi), find_centre(forward, layer, boxes, dtype)
    monkeypatch.setattr(cells, "serves", lambda values: False)
    (want, total), other = sum_sizes(lo, hi), find_centre(forward, layer, boxes, dtype)

    def same(a: Tensor, b: Tensor) -> bool:
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=-7.0, posinf=-8.0), b.nan_to_num(nan=-7.0, posinf=-8.0))

    assert same(sizes, want) and same(centre.point, other.point) and same(centre.radius, other.radius)
    counts = torch.isfinite(total)
    assert same(sums * ~counts, total * ~counts) and 20 < int(counts.sum()) < 60
    assert bool(((sums - total).abs() <= 1e-13 * total)[counts].all())
    images = torch.isfinite(other.image) & torch.isfinite(centre.image)
    assert bool(((centre.image - other.image).abs() <= 1e-12 * (1 + other.point.double().abs().sum(-1, keepdim=True) * 5))[images].all())


def test_winners_of_a_pool() -> None:
    rng = np.random.default_rng(0)
    x = np.sort(np.round(rng.standard_normal((4000, 5, 2)), 1) * 10.0 ** rng.integers(-2, 3, (4000, 5, 1)), axis=-1)
    off = rng.random((4000, 5)) < 0.3
    off[np.arange(4000), rng.integers(0, 5, 4000)] = False
    x[off] = -np.inf
    open_ = (rng.random((4000, 5)) < 0.03) & ~off
    x[open_, 0] = -np.inf
    x[(rng.random((4000, 5)) < 0.03) & ~off, 1] = np.inf
    lo, hi = torch.from_numpy(x[..., 0].copy()), torch.from_numpy(x[..., 1].copy())
    w = maxpool_winners(lo, hi)
    sure = 0
    for i in range(4000):
        tap = int(w.tap[i])
        assert not off[i, tap], "padding won"
        inside = [j for j in range(5) if not off[i, j]]
        assert lo[i, tap] == max(lo[i, j] for j in inside)
        others = [float(hi[i, j]) for j in inside if j != tap]
        if bool(w.sure[i]):
            assert float(lo[i, tap]) >= max(others, default=-math.inf) and w.most[i] == 0
            sure += 1
        else:
            assert float(w.most[i]) == max(float(hi[i, j]) for j in inside)
            assert not float(lo[i, tap]) > max(others)
    assert 400 < sure < 3600


def test_a_lone_cell_is_a_sure_winner_even_without_a_bound() -> None:
    lo, hi = (torch.tensor([[-math.inf, v]], dtype=torch.float64) for v in (-math.inf, 3.0))
    w = maxpool_winners(lo, hi)
    assert int(w.tap) == 1 and bool(w.sure)


# ---- constants of the rounding argument ---------------------------------------------------------------------


@pytest.mark.parametrize("u", [2.0**-10, 2.0**-24, 2.0**-53])
def test_gamma_is_above_its_definition_grows_and_ends(u: float) -> None:
    counts = [0, 1, 2, 3, 10, 1000, 12345, 10**6, 10**9, 2**40]
    counts = [n for n in counts if n * u < 0.5]
    values = [gamma(n, u) for n in counts]
    for n, g in zip(counts, values, strict=True):
        exact = Fraction(n) * Fraction(u) / (1 - Fraction(n) * Fraction(u))
        assert exact <= Fraction(g) <= exact * (1 + Fraction(1, 10**9))
    assert values == sorted(values) and gamma(0, u) == 0
    assert gamma(0.5 / u, u) == gamma(2 / u, u) == math.inf
    table = gammas(torch.tensor([*map(float, counts), 0.5 / u, 1 / u, 2 / u], dtype=torch.float64), u)
    assert table.tolist() == [*values, math.inf, math.inf, math.inf]


def error_of(
    semantics: str, *, magnitude: float = 1.0, babs: float = 0.0, x: float = 1.0, w: float = 1.0, terms: int = 4, ops: int = 0
) -> float:
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    sem = SEMANTICS[semantics]
    flushed = 0 * one if sem.eta_in > 2.0**-100 else None
    out = deployed_error(sem, terms, terms * one, ops, 1, magnitude * one, babs * one, x * one, 4 * w, flushed, w)
    return float(out)


DEPLOYED = ("float32", "tf32", "bf16", "float16")


@pytest.mark.parametrize("semantics", DEPLOYED)
def test_the_deployed_error_grows_with_what_it_is_made_of(semantics: str) -> None:
    base = error_of(semantics)
    assert 0 < base < 0.1
    assert error_of(semantics, magnitude=2.0) > base and error_of(semantics, babs=1.0) > base
    assert error_of(semantics, terms=400) > base and error_of(semantics, ops=5) > base
    assert base >= gamma(5, 2.0**-23), "less than the roundings of four terms and a bias"


@pytest.mark.parametrize("semantics", DEPLOYED)
@pytest.mark.parametrize("what", ["magnitude", "babs"])
@pytest.mark.parametrize("value", [2.0**61, 1e300, math.inf, math.nan])
def test_what_may_overflow_has_no_error_bound(semantics: str, what: str, value: float) -> None:
    assert error_of(semantics, **{what: value}) == math.inf  # type: ignore[arg-type]
    assert elementwise_error(SEMANTICS[semantics], 1, torch.tensor(value, dtype=torch.float64)) == math.inf


def test_operands_that_a_conversion_overflows_have_no_error_bound() -> None:
    assert error_of("float16", x=65505.0) == error_of("float16", w=65505.0) == math.inf
    assert math.isfinite(error_of("float16", x=65504.0)) and math.isfinite(error_of("float32", x=65505.0))
    assert error_of("float32", x=2.0**61, magnitude=0.0) == math.inf, "a weight of zero may hide an operand that overflowed"


def test_too_many_terms_have_no_error_bound() -> None:
    assert not math.isfinite(error_of("float32", terms=2**23)) and math.isfinite(error_of("float32", terms=2**20))
    assert error_of("float32", terms=2**23, babs=1.0) == math.inf


def test_real_arithmetic_makes_no_errors() -> None:
    assert error_of("real", magnitude=1e300) == 0
    assert elementwise_error(SEMANTICS["real"], 1, torch.tensor(1e300, dtype=torch.float64)) == 0


# ---- the walk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_both_sides_of_a_sum_keep_their_own_rows(merged: bool) -> None:
    """relu(x) + relu(-x), and that less relu(relu(x) + 1): a sum's operands share memory until a step works in place."""
    b = Builder("sum")
    x = b.input((2,))

    def relu(source: str, scale: float, bias: float) -> str:
        w, shift = np.eye(2, dtype=np.float32) * scale, np.full(2, bias, np.float32)
        return b.add("relu", (b.add("linear", (source,), w=b.constant(w), b=b.constant(shift)),))

    first = relu(x, 1.0, 0.0)
    total = b.add("add", (first, relu(x, -1.0, 0.0)))
    net = b.build(b.add("sub", (total, relu(first, 1.0, 1.0))) if merged else total)
    engine = Engine(compile_net(net, "input"), semantics="real", dtype="float64")
    lo, hi = torch.tensor([[2.0, -4.0]], dtype=torch.float64), torch.tensor([[4.0, -2.0]], dtype=torch.float64)
    forms = Forms(torch.zeros(2, dtype=torch.int64), torch.eye(2, dtype=torch.float64))
    best = engine.query(engine.refine(lo, hi), forms).best
    torch.testing.assert_close(best, torch.tensor([-1.0, 1.0] if merged else [2.0, 2.0], dtype=torch.float64))
