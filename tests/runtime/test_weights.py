"""Weights as the runtime holds them: large dense layers of float32 numbers as such, with every number and every product as in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polytriton.arithmetic import LIBRARY
from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import layers
from polytriton.runtime.cpu import vectors
from polytriton.runtime.forward import Forward
from polytriton.runtime.kit import Kit
from polytriton.runtime.layers import ALONE, Layer
from polytriton.runtime.soundness import find_semantics

LARGE, MIDDLE, SMALL = (400, 350), (200, 90), (20, 30)
CPU = torch.device("cpu")


def weights(shape: tuple[int, int], kind: type = np.float32) -> np.ndarray:
    """Numbers of all magnitudes, subnormal ones and a zero of either sign among them."""
    rng = np.random.default_rng(shape[0])
    w = (rng.standard_normal(shape) * 2.0 ** rng.integers(-60, 10, shape)).astype(kind)
    w[0, :6] = 0.0, -0.0, 2.0**-149, -(2.0**-130), 2.0**-126, 3.0
    return w


def one_layer(w: np.ndarray, wabs: np.ndarray | None = None) -> Net:
    b = Builder("layer")
    more = {} if wabs is None else {"wabs": b.constant(wabs)}
    return b.build(b.add("linear", (b.input((w.shape[1],)),), w=b.constant(w), b=b.constant(np.ones(len(w), w.dtype)), **more))


def loaded(w: np.ndarray, wabs: np.ndarray | None = None) -> tuple[Forward, Layer]:
    forward = Forward(one_layer(w, wabs), find_semantics("real"), CPU)
    (layer,) = forward.layers.values()
    return forward, layer


@pytest.mark.parametrize(("shape", "kind", "stored", "short"), [
    (LARGE, np.float32, torch.float32, True), (MIDDLE, np.float32, torch.float64, True), (SMALL, np.float32, torch.float64, False),
    (LARGE, np.float64, torch.float64, False),
])  # fmt: skip
def test_numbers_are_those_given(
    shape: tuple[int, int], kind: type, stored: torch.dtype, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SOME", 1000)
    assert LARGE[0] * LARGE[1] >= ALONE > MIDDLE[0] * MIDDLE[1] >= vectors.LEAST > SMALL[0] * SMALL[1]
    w = weights(shape, kind)
    _, layer = loaded(w)
    assert layer.stored.dtype == stored and (layer.short is not None) == short
    for found, wanted in ((layer.w, w), (layer.wabs, np.abs(w))):
        assert found.dtype == torch.float64 and np.array_equal(found.numpy(), wanted.astype(np.float64))
    if layer.short is not None:
        assert np.array_equal(layer.short.numpy(), w)
        assert (layer.stored.data_ptr() == layer.short.data_ptr()) == (stored == torch.float32)
    assert layer.w_max == np.abs(w).max()
    most = max(math.fsum(abs(float(v)) for v in row) for row in w)
    assert most <= layer.w_rowsum <= most * (1 + 2.0**-30)


@pytest.mark.parametrize("count", [1, vectors.FEW, vectors.FEW + 1])
def test_products_are_those_of_float64(count: int) -> None:
    w = weights(LARGE)
    forward, layer = loaded(w)
    x = torch.from_numpy(np.random.default_rng(count).standard_normal((count, 1, 1, LARGE[1])))
    for found, matrix in ((forward.layer_product(layer, x), w), (forward.sizes_product(layer, x), np.abs(w))):
        flat = x.flatten(1).numpy()
        bound = np.abs(flat) @ np.abs(matrix.astype(np.float64)).T * (2 * LARGE[1] * 2.0**-53)
        exact = np.array([[math.fsum(float(a) * float(b) for a, b in zip(v, row, strict=True)) for row in matrix[:9]] for v in flat])
        assert (np.abs(found.flatten(1).numpy()[:, :9] - exact) <= bound[:, :9]).all()


@pytest.mark.parametrize("count", [1, 3, vectors.FEW, vectors.FEW + 1])
@pytest.mark.parametrize("shape", [LARGE, MIDDLE, SMALL])
def test_sums_over_boxes_are_those_of_float64(shape: tuple[int, int], count: int) -> None:
    """By a loop that reads a weight once, where there is one, and by products with W and |W|."""
    w, rng = weights(shape), np.random.default_rng(count)
    forward, layer = loaded(w)
    mid, rad, size = (torch.from_numpy(v).reshape(count, 1, 1, -1) for v in rng.standard_normal((3, count, shape[1])))
    sums = forward.box_sums(layer, mid, torch.cat([rad, size]))[:3]
    for found, x, matrix in zip(
        (*sums, *forward.centre_sums(layer, mid, rad)), (mid, rad, size, mid, rad), (w, abs(w), abs(w), w, abs(w)), strict=True
    ):
        flat = x.flatten(1).numpy()
        bound = np.abs(flat) @ np.abs(matrix.astype(np.float64)).T * (2 * shape[1] * 2.0**-53)
        exact = np.array([[math.fsum(float(a) * float(b) for a, b in zip(v, row, strict=True)) for row in matrix[:9]] for v in flat])
        assert (np.abs(found.flatten(1).numpy()[:, :9] - exact) <= bound[:, :9]).all()


@pytest.mark.parametrize("shape", [LARGE, MIDDLE])
def test_what_cancelled_in_a_merge_counts(shape: tuple[int, int]) -> None:
    w = weights(shape)
    wabs = 3 * np.abs(w)
    forward, layer = loaded(w, wabs)
    one = torch.ones(1, 1, 1, shape[1], dtype=torch.float64)
    assert layer.cancelled and np.array_equal(layer.wabs.numpy(), wabs.astype(np.float64)) and layer.w_max == wabs.max()
    assert np.allclose(forward.sizes_product(layer, one).flatten().numpy(), wabs.astype(np.float64).sum(1), rtol=1e-12)
    assert np.allclose(forward.layer_product(layer, one).flatten().numpy(), w.astype(np.float64).sum(1), rtol=1e-9)
    _, spread, magnitude, _ = forward.box_sums(layer, one, torch.cat([one, one]))
    assert np.allclose(magnitude, 3 * spread, rtol=1e-6) and torch.equal(forward.centre_sums(layer, one, one)[1], magnitude)


def test_rows_share_the_memory_unless_something_is_flushed() -> None:
    for smallest, shared in ((2.0**-126, True), (2.0**-127, False)):
        w = weights(LARGE)
        w[np.abs(w) < 2.0**-100] = 0.0
        w[0, 0] = smallest
        compiled = compile_net(one_layer(w))
        forward = Forward(compiled.net, find_semantics("real"), CPU)
        ((name, layer),) = forward.layers.items()
        kit = Kit(compiled.net, compiled.plan, forward, LIBRARY["float32"])
        assert (kit.weights[name].back.data_ptr() == layer.stored.data_ptr()) == shared
        assert layer.w[0, 0] == smallest and kit.weights[name].back[0, 0] == (smallest if shared else 0.0)
