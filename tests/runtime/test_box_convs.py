"""Sums of a convolution over boxes by one loop, against sums over windows that are gathered first, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.ir.net import Builder, Net
from polytriton.runtime.cpu import box_convs, fused, loops
from polytriton.runtime.forward import Forward
from polytriton.runtime.layers import ALONE, Layer
from polytriton.runtime.soundness import find_semantics
from tests.runtime.linked import link

pytestmark = pytest.mark.skipif(not loops.AVAILABLE, reason="Numba is not installed")
CPU = torch.device("cpu")


@cache
def compiled(lanes: int) -> loops.Loop:
    """The loop with vectors of so many numbers, whatever this processor's are."""
    loops.prepare()
    one = loops.Loop(
        box_convs._sum_lines, "I i i", fused.PLAIN, parts=("blocks", "outside"),
        beside=(lambda name: box_convs.text_of_routines(name, lanes),),
    )  # fmt: skip
    return link(one)


def interpreted() -> Callable[..., None]:
    return box_convs._sum_lines


WAYS: dict[str, Callable[[], Callable[..., None]]] = {
    "four lanes": lambda: compiled(4), "eight lanes": lambda: compiled(8), "interpreter": interpreted,
}  # fmt: skip


def one_conv(w: np.ndarray, size: tuple[int, int], kind: type = np.float32, **moves: tuple[int, ...]) -> tuple[Net, Forward, Layer]:
    b = Builder("conv")
    x = b.input((w.shape[1] * moves.get("g", (1,))[0], *size))
    more = {key: value[0] if key == "g" else value for key, value in moves.items()}
    net = b.build(b.add("conv", (x,), w=b.constant(w.astype(kind)), b=b.constant(np.ones(len(w), kind)), k=w.shape[2:], **more))
    forward = Forward(net, find_semantics("real"), CPU)
    (layer,) = forward.layers.values()
    return net, forward, layer


def windows(layer: Layer, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], list[tuple[tuple[int, int], tuple[int, int]]]]]:
    """Of each output cell which taps meet which cells, by the definition of a convolution."""
    node = layer.node
    (kh, kw), (sh, sw), (dh, dw), p = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1)), node.ints("p", (0, 0, 0, 0))
    for y, x in product(range(node.shape[1]), range(node.shape[2])):
        met = [((i, j), (y * sh - p[0] + i * dh, x * sw - p[1] + j * dw)) for i, j in product(range(kh), range(kw))]
        yield (y, x), [(tap, at) for tap, at in met if 0 <= at[0] < shape[0] and 0 <= at[1] < shape[1]]


def gathered(layer: Layer, shape: tuple[int, ...], x: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = np.zeros((len(x), *layer.node.shape[1:], w.shape[0]))
    for (oy, ox), met in windows(layer, shape):
        for (i, j), (y, z) in met:
            out[:, oy, ox] += x[:, y, z] @ w[:, :, i, j].T
    return out


@given(seed=st.integers(0, 10**6))
@limits(max_examples=25, deadline=None)
def test_the_loop_sums_what_a_convolution_meets(seed: int) -> None:
    """Whole numbers, so every sum is exact and any difference is a wrong cell, tap or weight."""
    rng = np.random.default_rng(seed)
    kernel, (sh, sw), dilation = rng.integers(1, 5, 2), rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    pads, size = rng.integers(-1, 3, 4), rng.integers(9, 12, 2)
    w = rng.integers(-9, 10, (int(rng.integers(1, 36)), int(rng.integers(1, 6)), *kernel)).astype(np.float64)
    moves = {"s": (int(sh), int(sw)), "d": tuple(map(int, dilation)), "p": tuple(map(int, pads))}
    _, _, layer = one_conv(w, (int(size[0]), int(size[1])), **moves)
    shape = int(size[0]), int(size[1]), w.shape[1]
    boxes = int(rng.integers(1, 4))
    xs = [rng.integers(-20, 21, (boxes, *shape)) * (rng.random((boxes, *shape)) < rng.random()) for _ in range(3)]
    xs[2] = abs(xs[0]) + abs(xs[1])
    present = gathered(layer, shape, (xs[2] > 0).astype(np.float64), np.ones((1, *w.shape[1:])))
    for way, threads in (("four lanes", 1), ("four lanes", 3), ("eight lanes", 1), ("interpreter", 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(box_convs, "_sum", WAYS[way]())
            for count in (2, 3):
                sums, terms = box_convs.sum_products(layer, shape, [torch.from_numpy(x.astype(np.float64)) for x in xs[:count]], threads)
                for k, (found, x) in enumerate(zip(sums, xs, strict=False)):
                    want = gathered(layer, shape, x.astype(np.float64), abs(w) if k else w)
                    assert found.is_contiguous() and np.array_equal(found.numpy(), want), (way, threads, k)
                assert np.array_equal(terms.numpy(), present)


@pytest.mark.parametrize("way", WAYS)
def test_sums_round_no_more_than_one_order(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((20, 7, 3, 3)) * 2.0 ** rng.integers(-30, 30, (20, 7, 3, 3)), rng.standard_normal((2, 6, 5, 7))
    _, _, layer = one_conv(w, (6, 5), p=(1, 1, 1, 1))
    monkeypatch.setattr(box_convs, "_sum", WAYS[way]())
    sums, _ = box_convs.sum_products(layer, (6, 5, 7), [torch.from_numpy(v) for v in (x, abs(x), 3 * abs(x))], 1)
    exact = layer.w.numpy()
    for found, v, matrix in zip(sums, (x, abs(x), 3 * abs(x)), (exact, abs(exact), abs(exact)), strict=True):
        want = gathered(layer, (6, 5, 7), v.astype(np.longdouble), matrix.astype(np.longdouble))
        size = gathered(layer, (6, 5, 7), abs(v), abs(matrix))
        assert (abs(found.numpy() - want) <= (layer.terms + 1) * 2.0**-53 * size).all()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_number_stays_none(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box without an end, and weights of zero beside it: no sum that meets it is finite, all others are."""
    w = np.ones((3, 2, 3, 3))
    w[1] = 0.0
    _, _, layer = one_conv(w, (7, 7))
    monkeypatch.setattr(box_convs, "_sum", WAYS[way]())
    for wild in (np.inf, np.nan):
        x = torch.zeros(1, 7, 7, 2, dtype=torch.float64)
        reach = x.clone()
        reach[0, 2, 2, 1] = wild
        (signed, sizes), terms = box_convs.sum_products(layer, (7, 7, 2), [x, reach], 1)
        met = gathered(layer, (7, 7, 2), (reach != 0).double().numpy(), np.ones((1, 2, 3, 3))) > 0
        assert np.array_equal(~np.isfinite(sizes.numpy()), np.broadcast_to(met, sizes.shape)) and np.array_equal(terms.numpy() > 0, met)
        assert torch.isfinite(signed).all()


def test_which_layers_have_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, one = np.random.default_rng(0), torch.zeros(1, dtype=torch.float64)
    w = rng.standard_normal((4, 2, 3, 3))
    assert box_convs.serves(one_conv(w, (5, 5))[2], one)
    assert not box_convs.serves(one_conv(w, (5, 5), g=(2,))[2], one)  # groups
    assert not box_convs.serves(one_conv(w, (5, 5), np.float64)[2], one)  # weights that float32 does not hold
    assert not box_convs.serves(replace(one_conv(w, (5, 5))[2], cancelled=True), one)  # other magnitudes than those of the weights
    monkeypatch.setattr(box_convs._sum, "_found", {})  # a release of LLVM that did not take its text
    assert not box_convs.serves(one_conv(w, (5, 5))[2], one)


@pytest.mark.parametrize("threads", [1, 2])
def test_boxes_are_those_of_tensor_operations(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large layer, whose weights are held once; zero cells are left out by one and multiplied by the other."""
    rng = np.random.default_rng(8)
    w = rng.standard_normal((130, 120, 3, 3))
    assert w.size >= ALONE
    net, forward, layer = one_conv(w, (9, 8), p=(1, 1, 1, 1))
    assert layer.stored.dtype == torch.float32 and layer.sizes is None and layer.w.dtype == torch.float64
    lo = torch.from_numpy(rng.standard_normal((2, 120 * 72)) * (rng.random((2, 120 * 72)) < 0.5))
    hi = lo + torch.from_numpy(rng.random(lo.shape)) * (lo != 0)
    monkeypatch.setattr("polytriton.runtime.layer_products.allowed_threads", lambda: threads)
    made = []
    for here in (True, False):
        monkeypatch.setattr(box_convs, "serves", lambda layer, like, here=here: here)
        boxes = forward.start(lo, hi)
        forward.transfer(net.nodes[1], boxes)
        made.append((boxes.lo[net.output], boxes.hi[net.output], boxes.magnitude[net.output]))
        sums = forward.centre_sums(layer, boxes.lo[net.input.name], boxes.hi[net.input.name] - boxes.lo[net.input.name])
        made[-1] += sums
    size = made[0][2].max()
    for found, want in zip(*made, strict=True):
        assert found.shape == want.shape and bool((abs(found - want) <= 1e-11 * size).all())
