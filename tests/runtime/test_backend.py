"""The torch backend: its fused and plain forms against each other, its products against autograd, its relaxations in fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from polytriton.errors import InvalidIR
from polytriton.ir.net import Builder
from polytriton.ir.plan import Axis, Window
from polytriton.passes import windows as win
from polytriton.passes.pipeline import compile_net
from polytriton.rounding import dot_error
from polytriton.runtime import fused
from polytriton.runtime.config import Config
from polytriton.runtime.engine import Engine, Forms
from polytriton.runtime.layers import load_layer
from polytriton.runtime.relax import maxpool_winners, relu_lines, round_down, round_up
from polytriton.runtime.soundness import FLOAT32, FLOAT64, SEMANTICS, deployed_error, elementwise_error, gamma, gammas
from polytriton.runtime.torch_backend import ConvShape, Frame, Place, Rows, TorchBackend, crop
from polytriton.runtime.walk import Results

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64)
UNIT = {torch.float32: FLOAT32.u, torch.float64: FLOAT64.u}
numba = pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed")


def backend(fast: bool, threads: int = 1) -> TorchBackend:
    b = TorchBackend(CPU, threads)
    b.fast = b.fast and fast
    return b


def rows_at(image: Tensor, h: Tensor, w: Tensor) -> Rows:
    zero = torch.zeros(len(image), dtype=torch.float64)
    return Rows(image, h, w, zero, zero.clone(), torch.arange(len(image)))


# ---- row passes ---------------------------------------------------------------------------------------------


class Scene:
    """Rows on windows of one node, and tables with a margin as wide as the windows reach."""

    def __init__(self, seed: int, dtype: torch.dtype, rows: int | None = None, large: bool = False) -> None:
        g = torch.Generator().manual_seed(seed)
        self.g, self.dtype = g, dtype

        def pick(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=g))

        h, w, c = (pick(7, 9), pick(7, 9), pick(24, 32)) if large else (pick(1, 6), pick(1, 6), pick(1, 5))
        positions = pick(1, 4), pick(1, 4)
        low = 6 if large else 1
        axes = [Axis(pick(low, 8), pick(1, 2), pick(-1, 3)) if pick(0, 4) or large else Axis(n, 0, 0) for n in (h, w)]
        self.window = Window(*axes)
        over = [win.overhang(a, p, n) for a, p, n in zip(axes, positions, (h, w), strict=True)]
        self.frame = Frame(h, w, c, (over[0][0], over[1][0], over[0][1], over[1][1]))
        self.batch, self.rows = 2, rows or pick(1, 7)
        at = [torch.randint(0, n, (self.rows,), generator=g) for n in (self.batch, *positions)]
        self.at = rows_at(*at)
        self.place: Place = self.frame.place(self.at, self.window)
        self.m = self.draw((self.rows, axes[0].size, axes[1].size, c))
        self.terms = self.place.height * self.place.line

    def draw(self, shape: tuple[int, ...], kind: str = "mixed") -> Tensor:
        x = torch.randn(shape, generator=self.g, dtype=torch.float64)
        if kind == "mixed":
            x = x * torch.pow(10.0, torch.randint(-6, 7, shape, generator=self.g).double())
            x = torch.where(torch.rand(shape, generator=self.g) < 0.2, torch.zeros_like(x), x)
            x = torch.where(torch.rand(shape, generator=self.g) < 0.05, -torch.zeros_like(x), x)
        return x.to(self.dtype)

    def table(self, kind: str = "mixed") -> Tensor:
        f = self.frame
        return f.table(self.draw((self.batch, f.h, f.w, f.channels), kind))

    def box(self) -> tuple[Tensor, Tensor]:
        a, b = self.table(), self.table()
        return torch.minimum(a, b), torch.maximum(a, b)

    def under(self, table: Tensor) -> Tensor:
        """Each row's window of a table, by its definition."""
        out = torch.empty(self.m.shape, dtype=table.dtype)
        t, left = self.frame.halo[0], self.frame.halo[1]
        for r in range(self.rows):
            image, h, w = int(self.at.image[r]), int(self.at.h[r]), int(self.at.w[r])
            top = h * self.window.h.stride - self.window.h.offset + t
            first = w * self.window.w.stride - self.window.w.offset + left
            out[r] = table[image, top : top + self.window.h.size, first : first + self.window.w.size]
        return out


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
@limits(max_examples=40)
def test_row_passes_are_what_they_say_to_within_dot_error(fast: bool, dtype: torch.dtype, seed: int) -> None:
    s = Scene(seed, dtype)
    b, bound = backend(fast), dot_error(s.terms)
    lo, hi = s.box()
    value, weight = b.concretize(s.m, s.place, lo, hi)
    low, high = s.under(lo), s.under(hi)
    size = exact_sum(s.m.abs(), torch.maximum(low.abs(), high.abs()))
    within(value, exact_sum(s.m, torch.where(s.m < 0, high, low)), size, bound)
    within(weight, size, size, bound)
    within(b.weigh(s.m, s.place, torch.maximum(lo.abs(), hi.abs())), size, size, bound)

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
    out, total, constant, error = b.relax_and_charge(s.m.clone(), s.place, below, above, cut, after, t, bias)
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
                *b.concretize(s.m, s.place, lo, hi),
                b.weigh(s.m, s.place, t),
                *b.charge(s.m, s.place, t, bias),
                *b.relax(s.m.clone(), s.place, below, above, lower, cut),
                *b.relax_and_charge(s.m.clone(), s.place, below, above, cut, s.place, t, bias),
            ]
        )
    for other in found[1:]:
        for a, c in zip(found[0], other, strict=True):
            assert torch.equal(a, c)
    plain = backend(False)
    want = [*plain.concretize(s.m, s.place, lo, hi), plain.weigh(s.m, s.place, t), *plain.charge(s.m, s.place, t, bias)]
    size = want[1] + want[2] + (s.m.abs().double().reshape(len(s.m), -1)).sum(1) * float(bias.abs().max())
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
        clean, _ = b.concretize(s.m, s.place, lo, hi)
        assert torch.isfinite(clean).all()
        spoiled = s.m.clone()
        spoiled.view(len(spoiled), -1)[:, seed % s.terms] = bad
        if seed % 2:  # even where it meets a box of zeros
            lo, hi = torch.zeros_like(lo), torch.zeros_like(hi)
        value, _ = b.concretize(spoiled, s.place, lo, hi)
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
    value, _ = b.concretize(m, place, lo, hi)
    assert value[0] == value[1] == -math.inf
    assert not torch.isfinite(value).any() or torch.equal(value[2:], torch.zeros(2, dtype=torch.float64))


def test_compiled_loops_keep_the_meaning_of_what_is_no_number() -> None:
    assert not {"fast", "nnan", "ninf", "arcp", "afn"} & set(fused._FLAGS)


def test_results_never_take_what_is_no_number() -> None:
    r = Results(torch.full((2,), -math.inf), torch.full((2,), -math.inf))
    assert r.decided(torch.tensor([math.nan, 0.0])).tolist() == [False, True]
    r.strict = True
    assert r.decided(torch.tensor([0.0, 1e-300], dtype=torch.float64)).tolist() == [False, True]


def test_padded_row_numbers_repeat_the_first() -> None:
    b = backend(True)
    for n in (0, 1, 2, 5, 9, 100, 1000):
        index = torch.arange(10, 10 + n)
        out = b.padded(index)
        assert torch.equal(out[:n], index) and (out[n:] == 10).all() and len(out) <= max(n + 3, 1.25 * n) * (n > 0)
    assert len({len(b.padded(torch.arange(n))) for n in range(513, 1025)}) <= 16


# ---- tables -------------------------------------------------------------------------------------------------


def test_a_frames_margin_is_zero_and_the_rest_in_place() -> None:
    values = torch.arange(1.0, 25).view(1, 2, 3, 4)
    table = Frame(2, 3, 4, (1, 2, 3, 0)).table(values)
    assert table.shape == (1, 6, 5, 4) and torch.equal(table[:, 1:3, 2:5], values)
    assert table.sum() == values.sum()


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


# ---- products -----------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[int, int, int, dict[str, tuple[int, ...]], tuple[int, int], int]:
    two = lambda lo, hi: draw(st.tuples(st.integers(lo, hi), st.integers(lo, hi)))  # noqa: E731
    g, ci, co = draw(st.sampled_from([(1, 1, 2), (1, 3, 4), (1, 9, 5), (2, 4, 6), (3, 3, 3), (2, 20, 2)]))
    stencil = {"k": two(1, 4), "s": two(1, 3), "d": two(1, 3), "p": draw(st.tuples(*[st.integers(-2, 3)] * 4))}
    return g, ci, co, stencil, two(3, 9), draw(st.integers(0, 10**6))


def conv_case(case: tuple[int, int, int, dict[str, tuple[int, ...]], tuple[int, int], int]) -> tuple[object, ...]:
    g, ci, co, a, (h, w), seed = case
    rng = np.random.default_rng(seed)
    b = Builder("c")
    x = b.input((ci, h, w))
    weight = rng.standard_normal((co, ci // g, *a["k"])).astype(np.float32)
    try:
        y = b.add("conv", (x,), w=b.constant(weight), b=b.constant(np.zeros(co, np.float32)), g=g, **a)
    except InvalidIR:
        assume(False)
    net = b.build(y)
    return net, net.node(y), torch.from_numpy(weight), rng


@pytest.mark.parametrize("fast", [pytest.param(True, marks=numba), False])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@given(case=convolutions())
@limits(max_examples=50)
def test_substituting_a_convolution_is_its_gradient(fast: bool, direct: bool, dtype: torch.dtype, case: tuple) -> None:  # type: ignore[type-arg]
    """For rows on a window anywhere: what autograd finds, to within gamma_K |M||W| with the K that the error vector charges."""
    net, node, weight, rng = conv_case(case)  # type: ignore[misc]
    _, h, w = net.input.shape
    co, ho, wo = node.shape
    p, s, d, k, g = node.ints("p"), node.ints("s"), node.ints("d"), node.ints("k"), node.integer("g", 1)
    b = backend(fast)
    b.direct = b.direct and direct
    whole = win.whole(ho, wo), (1, 1), [(0, 0)]
    size = (int(rng.integers(1, ho + 1)), int(rng.integers(1, wo + 1)))
    stride = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    offset = (int(rng.integers(0, 2)), int(rng.integers(0, 2)))
    positions = tuple(max(1, (n + o - z) // t + 1) for n, o, z, t in zip((ho, wo), offset, size, stride, strict=True))
    some = Window(*(Axis(z, t, o) for z, t, o in zip(size, stride, offset, strict=True)))
    for window, count, at in (whole, (some, positions, list(product(range(positions[0]), range(positions[1]))))):
        grown = Window(win.through(window.h, k[0], s[0], p[0], d[0]), win.through(window.w, k[1], s[1], p[1], d[1]))
        out = win.clip_window(grown, (count[0], count[1]) if count != (1, 1) else (1, 1), (h, w))
        if count == (1, 1) and window is some:
            window = win.whole(ho, wo)  # with one position the plan would have made it whole
            at = [(0, 0)]
        rows = len(at)
        m = torch.from_numpy(rng.standard_normal((rows, window.h.size, window.w.size, co))).to(dtype)
        full = torch.zeros(rows, co, ho, wo, dtype=torch.float64)
        for r, (i, j) in enumerate(at):
            top, left = window.h.stride * i - window.h.offset, window.w.stride * j - window.w.offset
            for y, x in product(range(window.h.size), range(window.w.size)):
                if 0 <= top + y < ho and 0 <= left + x < wo:
                    full[r, :, top + y, left + x] = m[r, y, x].double()
                else:
                    m[r, y, x] = 0  # what the mask does
        got = b.conv(m, weight.to(dtype).contiguous(memory_format=torch.channels_last), ConvShape(k, s, d, p, g, window), out)  # type: ignore[arg-type]
        assert got.shape == (rows, out.h.size, out.w.size, net.input.shape[0]) and got.dtype == dtype
        want, mass = (_gradient(f, v, (h, w), p, s, d, g) for f, v in ((full, weight.double()), (full.abs(), weight.double().abs())))
        room = (gamma(load_layer(net, node, CPU).fan, UNIT[dtype]) + 1e-14) * mass
        for r, (i, j) in enumerate(at):
            top, left = out.h.stride * i - out.h.offset, out.w.stride * j - out.w.offset
            held = torch.zeros(h, w, dtype=torch.bool)
            for y, x in product(range(out.h.size), range(out.w.size)):
                if 0 <= top + y < h and 0 <= left + x < w:
                    held[top + y, left + x] = True
                    difference = (got[r, y, x].double() - want[r, :, top + y, left + x]).abs()
                    assert (difference <= room[r, :, top + y, left + x]).all()
            assert not mass[r, :, ~held].any(), "a cell that matters lies outside the window"


def _gradient(
    m: Tensor, weight: Tensor, image: tuple[int, int], p: tuple[int, ...], s: tuple[int, ...], d: tuple[int, ...], g: int
) -> Tensor:
    x = torch.zeros(len(m), weight.shape[1] * g, *image, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(F.pad(x, (p[1], p[3], p[0], p[2])), weight, None, tuple(s), 0, tuple(d), g)
    (y * m).sum().backward()
    assert x.grad is not None
    return x.grad


@numba
@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_made_in_parts_is_the_whole(threads: int) -> None:
    g = torch.Generator().manual_seed(1)
    m, w = torch.randint(-9, 9, (7, 3, 4, 5), generator=g).float(), torch.randint(-9, 9, (5, 6, 3, 2), generator=g).float()
    shape = ConvShape((3, 2), (2, 1), (1, 1), (0, 0, 0, 0), 1, Window(Axis(3, 1, 0), Axis(4, 1, 0)))
    out, cells = Window(Axis(7, 2, 0), Axis(5, 1, 0)), 3 * 4 * 6 * 3 * 2
    want = F.conv_transpose2d(m.permute(0, 3, 1, 2), w, stride=(2, 1)).permute(0, 2, 3, 1)  # small integers: exact in any order
    for rows in (1, 2, 3, 7, 100):
        made = backend(True, threads)
        made.config = Config(taps=-(-rows * cells // threads))
        assert torch.equal(made.conv(m, w.contiguous(memory_format=torch.channels_last), shape, out), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_substituting_a_linear_layer_is_a_product(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    m = torch.randn(5, 2, 1, 3, generator=g, dtype=torch.float64).to(dtype)
    w = torch.randn(6, 12, generator=g, dtype=torch.float64).to(dtype)
    got = backend(True).linear(m, w, (2, 3, 2))
    want = (m.double().reshape(5, 6) @ w.double()).view(5, 2, 3, 2)
    assert (
        (got.double() - want).abs()
        <= (gamma(6, UNIT[dtype]) + 1e-15) * (m.double().abs().reshape(5, 6) @ w.double().abs()).view(5, 2, 3, 2)
    ).all()


# ---- windows ------------------------------------------------------------------------------------------------


axes = st.builds(Axis, st.integers(1, 5), st.integers(1, 3), st.integers(-3, 4))


@given(axes, axes, axes, axes, st.booleans(), st.sampled_from(("any", "any", "aligned", "whole", "rows")), st.integers(0, 999))
@limits(max_examples=300)
def test_embedding_keeps_every_cell_that_the_new_window_has(
    oh: Axis, ow: Axis, nh: Axis, nw: Axis, large: bool, kind: str, seed: int
) -> None:
    """Both windows of a row laid on one infinite image."""
    g = torch.Generator().manual_seed(seed)
    if kind == "aligned":
        nh, nw = (Axis(n.size + 4 * large, o.stride, n.offset) for o, n in ((oh, nh), (ow, nw)))
    wh, ww = kind in ("whole", "rows"), kind == "whole"
    old, new = Window(oh, ow), Window(Axis(6, 0, 0) if wh else nh, Axis(5, 0, 0) if ww else nw)
    at = rows_at(torch.zeros(6, dtype=torch.int64), torch.randint(0, 4, (6,), generator=g), torch.randint(0, 4, (6,), generator=g))
    m = torch.randn(6, oh.size, ow.size, 2, generator=g)
    out = backend(True).embed(m, at, old, new)
    assert out.shape == (6, new.h.size, new.w.size, 2)
    for r in range(6):
        i, j = int(at.h[r]), int(at.w[r])
        want = torch.zeros(new.h.size, new.w.size, 2)
        for y, x in product(range(oh.size), range(ow.size)):
            to = (
                i * (oh.stride - new.h.stride) - oh.offset + new.h.offset + y,
                j * (ow.stride - new.w.stride) - ow.offset + new.w.offset + x,
            )
            if 0 <= to[0] < new.h.size and 0 <= to[1] < new.w.size:
                want[to] = m[r, y, x]
        assert torch.equal(out[r], want)


@given(axes, axes, axes, axes, st.booleans(), st.integers(0, 999))
@limits(max_examples=100)
def test_a_union_is_the_sum_of_both_on_one_window(ah: Axis, aw: Axis, bh: Axis, bw: Axis, same: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    if same:
        bh, bw = Axis(bh.size, ah.stride, bh.offset), Axis(bw.size, aw.stride, bw.offset)
    image = 30, 30
    a, b = Window(ah, aw), Window(bh, bw)
    new = win.union(a, b, image)
    at = rows_at(torch.zeros(4, dtype=torch.int64), torch.randint(3, 5, (4,), generator=g), torch.randint(3, 5, (4,), generator=g))
    m, n = torch.randn(4, ah.size, aw.size, 2, generator=g), torch.randn(4, bh.size, bw.size, 2, generator=g)
    want = backend(True).embed(m, at, a, new) + backend(True).embed(n, at, b, new)
    for first, second in (((m, a), (n, b)), ((n, b), (m, a))):
        got = backend(True).union(at, (first[0].clone(), first[1]), (second[0].clone(), second[1]), new)
        assert torch.equal(got, want)


@given(st.integers(1, 6), st.integers(-9, 9), st.integers(1, 9), st.integers(1, 6), st.integers(-9, 9), st.integers(1, 9))
@limits(max_examples=200)
def test_cropping_moves_the_origin(h: int, top: int, size: int, w: int, left: int, width: int) -> None:
    full = torch.arange(1.0, 2 * h * w + 1).view(1, h, w, 2)
    out = crop(full, (top, left), Window(Axis(size, 0, 0), Axis(width, 0, 0)))
    want = torch.zeros(1, size, width, 2)
    for y, x in product(range(size), range(width)):
        if 0 <= y + top < h and 0 <= x + left < w:
            want[0, y, x] = full[0, y + top, x + left]
    assert torch.equal(out, want) and out.is_contiguous()


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


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("slope", [0.0, 0.1, -1.0, 2.0])
def test_stored_lines_hold_at_every_break_point(slope: float, dtype: torch.dtype) -> None:
    """f is linear between l, 0 and u: a line that holds there holds everywhere. In fractions, from the stored numbers."""
    lo, hi = pairs(10_000)
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
