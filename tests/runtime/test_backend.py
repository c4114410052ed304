"""The torch backend's row passes: fused and plain forms against exact sums and each other; the tables they read."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from polytriton.passes import windows as win
from polytriton.rounding import dot_error
from polytriton.runtime.cpu import fused
from polytriton.runtime.cpu.torch_backend import Frame, OwnLines
from polytriton.runtime.cpu.walk import Results
from polytriton.runtime.tables import LineTables
from tests.runtime.scenes import DTYPES, Scene, backend, numba, rows_at


def exact_sum(*factors: Tensor) -> list[Fraction]:
    """Sum over a row of products of stored numbers, exactly."""
    flat = [f.reshape(len(f), -1).double().tolist() for f in factors]
    sums = []
    for row in zip(*flat, strict=True):
        sums.append(sum((math.prod(map(Fraction, cell), start=Fraction(1)) for cell in zip(*row, strict=True)), Fraction(0)))
    return sums


def within(got: Tensor, want: list[Fraction], size: list[Fraction], relative: float) -> None:
    for g, w, s in zip(got.tolist(), want, size, strict=True):
        assert abs(Fraction(g) - w) <= Fraction(relative) * s, (g, float(w), float(s))


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6))
@limits(max_examples=25)
def test_row_passes_are_what_they_say_to_within_dot_error(fast: bool, dtype: torch.dtype, seed: int) -> None:
    s = Scene(seed, dtype)
    b, bound = backend(fast), dot_error(s.terms)
    lo, hi = s.box()
    value, weight, *_ = b.concretize(s.m, s.place, lo, hi)
    low, high = s.under(lo), s.under(hi)
    size = exact_sum(s.m.abs(), torch.maximum(low.abs(), high.abs()))
    within(value, exact_sum(s.m, torch.where(s.m < 0, high, low)), size, bound)
    within(weight, size, size, bound)
    within(b.weigh(s.m, s.place, torch.maximum(lo.abs(), hi.abs())), size, size, bound)
    point = s.table()
    values, sizes = exact_sum(s.m, s.under(point)), exact_sum(s.m.abs(), s.under(point).abs())
    least, heavy, there, most = b.concretize(s.m, s.place, lo, hi, point, True)
    within(least, exact_sum(s.m, torch.where(s.m < 0, high, low)), size, bound)
    within(heavy, size, size, bound)
    assert there is not None and most is not None
    within(there, values, sizes, bound)
    within(most, exact_sum(s.m, torch.where(s.m < 0, low, high)), size, bound)

    t, bias = s.table().abs(), s.draw((s.place.height if seed % 2 else 1, s.place.line)).double()
    constant, error = b.charge(s.m, s.place, t, bias)
    spread = bias.expand(s.place.height, -1).reshape(1, *s.m.shape[1:]).expand_as(s.m)
    within(constant, exact_sum(s.m, spread), exact_sum(s.m.abs(), spread.abs()), bound)
    within(error, exact_sum(s.m.abs(), s.under(t)), exact_sum(s.m.abs(), s.under(t)), bound)

    below, above, cut, low_cut = s.table(), s.table(), s.table().abs(), -s.table().abs()
    for lower in (None, low_cut):
        out, total = b.relax(s.m.clone(), s.place, below, above, lower, cut)
        want = s.m * torch.where(s.m < 0, s.under(above), s.under(below))
        assert torch.equal(out, want)
        pairs = [exact_sum(s.m.clamp(max=0), s.under(cut))]
        if lower is not None:
            pairs.append(exact_sum(s.m.clamp(min=0), s.under(lower)))
        sums = [sum(p, Fraction(0)) for p in zip(*pairs, strict=True)]
        within(total, sums, [abs(v) for v in sums], bound)

    after = s.frame.place(s.at, s.window)
    given = below, above, cut, after, t, bias, None, point, t
    out, total, constant, error, there, beyond = b.relax_and_charge(s.m.clone(), s.place, *given)
    assert there is not None and beyond is not None
    within(there, values, sizes, bound)
    gaps = exact_sum(s.m.clamp(min=0), s.under(t))
    within(beyond, gaps, gaps, bound)
    want, want_total = b.relax(s.m.clone(), s.place, below, above, None, cut)
    want_constant, want_error = b.charge(want, after, t, bias)
    assert torch.equal(out, want)
    within(total, exact_sum(s.m.clamp(max=0), s.under(cut)), [abs(v) for v in exact_sum(s.m.clamp(max=0), s.under(cut))], bound)
    within(constant, exact_sum(want, spread), exact_sum(want.abs(), spread.abs()), bound)
    within(error, exact_sum(want.abs(), s.under(t)), exact_sum(want.abs(), s.under(t)), bound)
    torch.testing.assert_close(
        (total, constant, error), (want_total, want_constant, want_error), rtol=1e-6, atol=1e-6 * float(want_error.max() + 1e6)
    )

    table = s.table()
    within(b.table_dot(s.m, s.place, table), exact_sum(s.m, s.under(table)), exact_sum(s.m.abs(), s.under(table).abs()), bound)
    assert torch.equal(b.table_product(s.m, s.place, table), s.m * s.under(table))


@numba
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_split_rows_and_change_nothing(dtype: torch.dtype) -> None:
    s = Scene(5, dtype, rows=131, large=True)
    assert s.m.numel() > 1 << 16, "too little for a second thread"
    lo, hi = s.box()
    below, above, cut, lower, t = s.table(), s.table(), s.table().abs(), -s.table().abs(), s.table().abs()
    bias = s.draw((s.place.height, s.place.line)).double()
    found = []
    for threads in (1, 2, 3):
        b = backend(True, threads)
        found.append(
            [
                *b.concretize(s.m, s.place, lo, hi, t, True),
                b.weigh(s.m, s.place, t),
                *b.charge(s.m, s.place, t, bias),
                *b.relax(s.m.clone(), s.place, below, above, lower, cut),
                *b.relax_and_charge(s.m.clone(), s.place, below, above, cut, s.place, t, bias, None, lower, t),
            ]
        )
    for other in found[1:]:
        for a, c in zip(found[0], other, strict=True):
            assert torch.equal(a, c)
    plain = backend(False)
    want = [*plain.concretize(s.m, s.place, lo, hi, t, True), plain.weigh(s.m, s.place, t), *plain.charge(s.m, s.place, t, bias)]
    size = want[1] + want[4] + (s.m.abs().double().reshape(len(s.m), -1)).sum(1) * float(bias.abs().max())
    for a, c in zip(found[0], want, strict=False):
        assert ((a - c).abs() <= 2 * dot_error(s.terms) * size).all()


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_no_number_goes_unnoticed(fast: bool, dtype: torch.dtype, bad: float) -> None:
    """A coefficient that is no number, an operand without a bound: the row's value is no number either, or minus infinity."""
    b = backend(fast)
    for seed in range(20):
        s = Scene(seed, dtype)
        lo, hi = s.box()
        clean, *_ = b.concretize(s.m, s.place, lo, hi)
        assert torch.isfinite(clean).all()
        spoiled = s.m.clone()
        spoiled.view(len(spoiled), -1)[:, seed % s.terms] = bad
        if seed % 2:  # even where it meets a box of zeros
            lo, hi = torch.zeros_like(lo), torch.zeros_like(hi)
        value, *_ = b.concretize(spoiled, s.place, lo, hi)
        assert not (value > -math.inf).logical_and(torch.isfinite(value)).any()
        constant, _ = b.charge(spoiled, s.place, s.table().abs(), torch.ones(1, s.place.line, dtype=torch.float64))
        assert not torch.isfinite(constant).any()
        out, _ = b.relax(spoiled.clone(), s.place, s.table(), s.table(), None, s.table().abs())
        if math.isnan(bad):
            assert torch.isnan(out.reshape(len(out), -1)[:, seed % s.terms]).all()


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operand_without_a_bound_gives_no_bound(fast: bool, dtype: torch.dtype) -> None:
    b = backend(fast)
    frame = Frame(1, 1, 3, (0, 0, 0, 0))
    place = frame.place(rows_at(*[torch.zeros(4, dtype=torch.int64)] * 3), win.whole(1, 1))
    m = torch.tensor([[1, 1, 1], [1, -1, 1], [1, 0, 1], [0, -0.0, 0]], dtype=dtype).view(4, 1, 1, 3)
    lo = torch.tensor([0, -math.inf, 0], dtype=dtype).view(1, 1, 1, 3)
    hi = torch.tensor([0, math.inf, 0], dtype=dtype).view(1, 1, 1, 3)
    value, *_ = b.concretize(m, place, lo, hi)
    assert value[0] == value[1] == -math.inf
    assert not torch.isfinite(value).any() or torch.equal(value[2:], torch.zeros(2, dtype=torch.float64))


def test_compiled_loops_keep_the_meaning_of_what_is_no_number() -> None:
    assert not {"fast", "nnan", "ninf", "arcp", "afn"} & set(fused.REORDERED)


def test_results_never_take_what_is_no_number() -> None:
    r = Results(torch.full((2,), -math.inf), torch.full((2,), -math.inf))
    assert r.decide(torch.tensor([math.nan, 0.0])).tolist() == [False, True]
    r.strict = True
    assert r.decide(torch.tensor([0.0, 1e-300], dtype=torch.float64)).tolist() == [False, True]


def test_padded_row_numbers_repeat_the_first() -> None:
    b = backend(True)
    for n in (0, 1, 2, 5, 9, 100, 1000):
        index = torch.arange(10, 10 + n)
        out = b.pad(index)
        assert torch.equal(out[:n], index) and (out[n:] == 10).all() and len(out) <= max(n + 3, 1.25 * n) * (n > 0)
    assert len({len(b.pad(torch.arange(n))) for n in range(513, 1025)}) <= 16


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6))
@limits(max_examples=40)
def test_rows_that_stay_are_relaxed_as_if_moved_before(fast: bool, dtype: torch.dtype, seed: int) -> None:
    """Any row numbers, the first repeated behind them; neighbours on one window and on several."""
    s = Scene(seed, dtype, rows=9)
    s.at = rows_at(s.at.image // 2, s.at.h // 2, s.at.w // 2)  # many rows share a window
    b, m = backend(fast), s.m.clone()
    below, above, cut, t = s.table(), s.table(), s.table().abs(), s.table().abs()
    bias = s.draw((s.place.height if seed % 2 else 1, s.place.line)).double()
    stay = torch.nonzero(torch.rand(9, generator=s.g) < 0.6).flatten()
    stay = b.pad(stay)[:9]
    place = s.frame.place(s.at.keep(stay), s.window)
    point = s.table()
    found = b.relax_and_charge(m, place, below, above, cut, place, t, bias, stay, point, t)
    at = b.concretize(s.m[stay], place, point, point)[0]
    torch.testing.assert_close(found[4], at, rtol=1e-9, atol=1e-12 * float(s.m.abs().double().sum() * point.abs().max()))
    torch.testing.assert_close(found[5], b.positive_dot(s.m[stay], place, t), rtol=1e-12, atol=0)
    want, total = b.relax(s.m[stay], place, below, above, None, cut)
    assert torch.equal(found[0], want) and torch.equal(m, s.m), "rows are left as they were"
    torch.testing.assert_close(found[1], total, rtol=1e-12, atol=0)
    constant, error = b.charge(want, place, t, bias)
    torch.testing.assert_close(found[3], error, rtol=1e-12, atol=0)
    size = (want.double().abs().reshape(len(want), place.height, -1) * bias.abs()).sum((1, 2))
    assert ((found[2] - constant).abs() <= 2 * dot_error(s.terms) * size).all()


@numba
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6))
@limits(max_examples=40)
def test_lines_that_rows_choose_are_taken_alike_with_and_without_loops(dtype: torch.dtype, signed: bool, seed: int) -> None:
    """Bit for bit, each cell by its definition; slopes and multipliers may be anything."""
    s = Scene(seed, dtype)
    lo, hi = s.box()
    lines = LineTables(s.table(), s.table(), None, s.table().abs(), None)

    def own() -> Tensor:
        values = s.draw((s.rows, s.frame.h, s.frame.w, s.frame.channels)) * 0.5
        strange = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1.0], dtype=dtype)
        at = torch.rand(values.shape, generator=s.g) < 0.2
        values[at] = strange[torch.randint(0, 5, (int(at.sum()),), generator=s.g)]
        return s.frame.table(values)

    mine = s.frame.place(rows_at(torch.arange(s.rows), s.at.h, s.at.w), s.window)
    chosen = OwnLines(mine, 0.0, own(), own() if signed else None, s.table().sign() if signed else None)
    box = lo, hi, s.place
    out, total = backend(True).relax_chosen(s.m, s.place, lines, box, chosen)
    want, summed = backend(False).relax_chosen(s.m, s.place, lines, box, chosen)
    assert torch.equal(out, want)
    exact = exact_sum(s.m.clamp(max=0), s.under(lines.upper_cut))
    within(total, exact, [abs(v) for v in exact], dot_error(s.terms))
    within(summed, exact, [abs(v) for v in exact], dot_error(s.terms))
    low, high, k = s.under(lo), s.under(hi), backend(False)._gather(chosen.slopes, mine).view_as(s.m)
    k = torch.where(k >= 1, 1.0, torch.where(k <= 0, 0.0, k)).nan_to_num(1.0).to(dtype)
    cells = s.m * torch.where(s.m < 0, s.under(lines.above), torch.where((low < 0) & (high > 0), k, s.under(lines.below)))
    if chosen.multipliers is not None and chosen.may is not None:
        b = backend(False)._gather(chosen.multipliers, mine).view_as(s.m)
        taken = torch.isfinite(b) & (s.under(chosen.may) != 0) & (((b > 0) & (low >= 0)) | ((b < 0) & (high <= 0)))
        cells = torch.where(taken, cells - b, cells)
    assert torch.equal(out, cells)


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_neighbour_that_is_no_number_spoils_no_row(fast: bool, bad: float) -> None:
    """Rows on one window are read in pairs: each keeps to itself."""
    b, frame = backend(fast), Frame(3, 3, 5, (0, 0, 0, 0))
    at = rows_at(*[torch.zeros(5, dtype=torch.int64)] * 3)
    place = frame.place(at, win.whole(3, 3))
    g = torch.Generator().manual_seed(0)
    clean, lo = torch.randn(5, 3, 3, 5, generator=g), -torch.rand(1, 3, 3, 5, generator=g)
    bias = torch.randn(1, 15, generator=g, dtype=torch.float64)
    for row in range(5):
        m = clean.clone()
        m[row, 1, 2, 3] = bad
        others = torch.arange(5) != row
        for want, got in (
            (b.concretize(clean, place, lo, -lo, lo, True), b.concretize(m, place, lo, -lo, lo, True)),
            (
                b.relax_and_charge(clean, place, -lo, -lo, -lo, place, -lo, bias, None, lo, -lo),
                b.relax_and_charge(m, place, -lo, -lo, -lo, place, -lo, bias, None, lo, -lo),
            ),
        ):
            for x, y in zip(want, got, strict=True):
                assert torch.equal(x[others], y[others])
            assert not torch.isfinite(got[3 if len(got) > 3 else 1][row]), "the weight, or the error"


# ---- tables -------------------------------------------------------------------------------------------------


def test_a_frames_margin_is_zero_and_the_rest_in_place() -> None:
    values = torch.arange(1.0, 25).view(1, 2, 3, 4)
    table = Frame(2, 3, 4, (1, 2, 3, 0)).table(values)
    assert table.shape == (1, 6, 5, 4) and torch.equal(table[:, 1:3, 2:5], values)
    assert table.sum() == values.sum()
