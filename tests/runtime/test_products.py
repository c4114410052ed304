"""Products of rows with weights against autograd, form by form, and how windows are cut, widened and added."""

from __future__ import annotations

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
from polytriton.runtime.config import Config
from polytriton.runtime.cpu.torch_backend import ConvShape, TorchBackend, crop
from polytriton.runtime.layers import load_layer
from polytriton.runtime.soundness import gamma
from tests.runtime.scenes import CPU, DTYPES, UNIT, backend, numba, rows_at

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
@limits(max_examples=30)
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
        grown = Window(win.input_axis(window.h, k[0], s[0], p[0], d[0]), win.input_axis(window.w, k[1], s[1], p[1], d[1]))
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
    got = backend(True).linear(m, w)
    want = m.double().reshape(5, 6) @ w.double()
    assert (
        (got.double() - want).abs()
        <= (gamma(6, UNIT[dtype]) + 1e-15) * (m.double().abs().reshape(5, 6) @ w.double().abs())
    ).all()


@numba
@pytest.mark.parametrize("kh, kw, sh, sw", [(4, 4, 2, 2), (3, 3, 1, 1), (2, 6, 3, 2), (1, 3, 1, 3), (5, 1, 2, 1)])
@pytest.mark.parametrize("h, w", [(1, 1), (1, 4), (3, 2), (5, 6)])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_cells_are_the_convolution(kh: int, kw: int, sh: int, sw: int, h: int, w: int, threads: int) -> None:
    """Small integers, exact in any order; windows that begin and end inside the full result and outside it."""
    g = torch.Generator().manual_seed(h * w)
    m, weight = torch.randint(-9, 9, (5, h, w, 3), generator=g).float(), torch.randint(-9, 9, (3, 16, kh, kw), generator=g).float()
    full = F.conv_transpose2d(m.permute(0, 3, 1, 2), weight, stride=(sh, sw)).permute(0, 2, 3, 1)
    for config, top, left, grow in product((Config(taps=1, split=1), Config()), (-1, 0, 1), (-2, 0, 1), (-1, 0, 2)):
        out = Window(Axis(max(1, full.shape[1] - top + grow), 0, top), Axis(max(1, full.shape[2] - left + grow), 0, left))
        b = TorchBackend(CPU, threads, config)
        shape = ConvShape((kh, kw), (sh, sw), (1, 1), (0, 0, 0, 0), 1, Window(Axis(h, 0, 0), Axis(w, 0, 0)))
        lead = shape.lead(out)
        got = b._product_and_shift(m, weight, shape, lead, out)
        assert torch.equal(got, crop(full, lead, out)), (top, left, grow)


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
