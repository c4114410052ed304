"""Compiled loops of affine layers give what the tensor forms give, bit for bit: what is proved of the one is true of the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.ir.net import Builder
from polytriton.runtime.charges import ChargeFactors, LayerCharge
from polytriton.runtime.cpu import affine_cells
from polytriton.runtime.forward import AffineParts, Forward, bound_outputs, split_boxes
from polytriton.runtime.soundness import find_semantics
from tests.runtime.scenes import DTYPES

ODD = (0.0, -0.0, 1.0, -1.5, 5e-324, 1e-45, 2.0**-126, 3.4e38, 1e308, -1e308, math.inf, -math.inf, math.nan)
BATCH, EXTENT = 13, (2, 13, 5)
CELLS = math.prod(EXTENT)

Ask = Callable[[], "Tensor | tuple[Tensor, ...]"]


def assert_alike(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    if not affine_cells.serves(torch.zeros(1)):
        pytest.skip("Numba is not installed: there are no compiled loops")
    made = ask()
    with monkeypatch.context() as without:
        without.setattr(affine_cells, "serves", lambda values: False)
        told = ask()
    pairs = [(made, told)] if isinstance(made, Tensor) else list(zip(made, told, strict=True))
    for a, b in pairs:
        assert isinstance(a, Tensor) and isinstance(b, Tensor)
        assert a.dtype == b.dtype and a.shape == b.shape and a.is_contiguous()
        assert torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0))


def draw(rng: np.random.Generator, shape: tuple[int, ...], odd: float = 0.1) -> Tensor:
    """Numbers of many sizes, some of them odd."""
    values = rng.normal(size=shape) * np.exp(4 * rng.normal(size=shape))
    return torch.from_numpy(np.where(rng.random(shape) < odd, rng.choice(ODD, size=shape), values))


def test_boxes_are_split_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = torch.tensor(list(product(ODD, ODD)), dtype=torch.float64)
    lo, hi = (v.reshape(13, 1, 1, 13) for v in pairs.T)
    assert not lo.is_contiguous()
    assert_alike(lambda: split_boxes(lo, hi), monkeypatch)
    mid, both = split_boxes(lo, hi)
    rad, size = both.chunk(2)
    assert bool((size >= 1e300).any()) and bool(torch.isnan(mid).any()) and bool(torch.isfinite(rad).any())


@pytest.mark.parametrize("period", [EXTENT, EXTENT[-1:]])
def test_outputs_are_bounded_alike(period: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    centre, spread, e, magnitude = (draw(rng, (BATCH, *EXTENT), 0.05) for _ in range(4))
    babs = draw(rng, period, 0.0).abs()
    assert_alike(lambda: bound_outputs(centre, spread, e, magnitude, babs, 3 * 2.0**-53), monkeypatch)
    lo, hi = bound_outputs(centre, spread, e, magnitude, babs, 3 * 2.0**-53)
    assert not bool(torch.isnan(lo).any() or torch.isnan(hi).any())
    assert bool(torch.isneginf(lo).any()) and bool(torch.isposinf(hi).any()) and not bool(torch.isposinf(lo).any())


def draw_charge(rng: np.random.Generator, own: bool, odd: float) -> LayerCharge:
    shape = BATCH, *EXTENT
    e, size, entries, xabs = (draw(rng, shape, odd).abs() for _ in range(4))
    babs = draw(rng, EXTENT if own else EXTENT[-1:], 0.0).abs()
    factors = ChargeFactors(sized=2.0**-50, offset=2.0**-49, imaged=2.0**-48, nu=2.0**-24, u=2.0**-24, eta=2.0**-126, pending=2.0**-23)
    return LayerCharge(e, size, entries, babs, draw(rng, (BATCH,), odd).abs(), xabs, None, None, None, factors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("odd", [0.0, 0.1])
def test_outputs_are_charged_alike(dtype: torch.dtype, own: bool, odd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    plain = draw_charge(rng, own, odd)
    shape = plain.size.shape
    depths = torch.from_numpy(rng.choice([1.0, 3.0, 40.0, 2.0**22, 1.25e7, 2.0**24, 3e7], size=shape if own else EXTENT[-1:]))
    image, loss = draw(rng, shape, odd), draw(rng, shape, odd).abs()
    for centred, product_, small in product((None, image), ("none", "depths", "loss"), (False, True)):
        charge = replace(
            plain,
            image=centred,
            depths=depths if product_ == "depths" else None,
            loss=loss if product_ == "loss" else None,
            factors=replace(plain.factors, eta=0.0 if not small else plain.factors.eta, pending=0.0 if small else plain.factors.pending),
        )
        assert_alike(lambda c=charge: c.total(dtype), monkeypatch)  # type: ignore[misc]
    assert bool(torch.isinf(replace(plain, depths=depths).total(dtype)).any())  # the bound of so long a sum breaks down


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_term_is_charged(dtype: torch.dtype) -> None:
    """Each of the numbers that a charge is made of makes it greater, the cell's own and no other."""
    rng = np.random.default_rng(3)
    plain = replace(draw_charge(rng, True, 0.0), e=torch.zeros(BATCH, *EXTENT, dtype=torch.float64))
    image = draw(rng, plain.size.shape, 0.0)
    depths = torch.full(plain.size.shape, 3.0, dtype=torch.float64)
    for charge, parts in (
        (replace(plain, depths=depths), ("e", "size", "entries", "babs", "xabs")),
        (replace(plain, image=image, loss=depths * 0), ("e", "size", "entries", "babs", "xabs", "image", "loss")),
    ):
        before = charge.total(dtype)
        for name in parts:
            given = getattr(charge, name).clone()
            given[..., 1, 2, 3] = given[..., 1, 2, 3].abs() * 1e6 + 1e6
            grown = replace(charge, **{name: given}).total(dtype) > before
            assert bool(grown[:, 1, 2, 3].all()) and int(grown.sum()) == BATCH, name
        more = replace(charge, below=charge.below + torch.tensor([1e60, *[0.0] * (BATCH - 1)], dtype=torch.float64)).total(dtype) > before
        assert bool(more[0].all()) and int(more.sum()) == CELLS


@pytest.mark.parametrize("attrs", [{}, {"ops": 3}, {"products": 2, "ops": 1}, {"summands": 70}, {"outside": 1}], ids=str)
@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("weight", [1.0, 2.0**-130, 2.0**125])
def test_outputs_err_as_the_tensor_form_says(semantics: str, attrs: dict[str, int], weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two add in another order, which what either is enlarged by covers many times over; where one is infinite both are."""
    if not affine_cells.serves(torch.zeros(1)):
        pytest.skip("Numba is not installed: there are no compiled loops")
    rng, b, (inputs, outputs) = np.random.default_rng(4), Builder("errs"), (12, 7)
    w, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((outputs, inputs), (outputs,)))
    net = b.build(b.add("linear", (b.input((inputs,)),), w=b.constant(w * np.float32(weight)), b=b.constant(c), **attrs))
    forward = Forward(net, find_semantics(semantics), torch.device("cpu"))
    (layer,) = forward.layers.values()
    operand = draw(rng, (400, 1, 1, inputs), 0.03).abs()
    operand[rng.random(400) < 0.3] *= torch.from_numpy((rng.random(inputs) < 0.5).astype(float))  # fewer summands
    magnitude = draw(rng, (400, 1, 1, outputs), 0.01).abs()
    magnitude[:50] = 2.0**60 * torch.linspace(0.5, 1.5, 50, dtype=torch.float64)[:, None, None, None]
    count = (operand > 0).sum((1, 2, 3), keepdim=True).double() if "summands" not in attrs else torch.full((1, 1, 1, 1), 70.0).double()
    parts = AffineParts(magnitude, magnitude, magnitude, count)
    made = forward._own_layer_error(layer, operand, parts)
    monkeypatch.setattr(affine_cells, "serves", lambda values: False)
    told = forward._own_layer_error(layer, operand, parts)
    assert made.shape == told.shape and torch.equal(torch.isfinite(made), torch.isfinite(told)) and not bool(torch.isnan(made).any())
    counts = torch.isfinite(told)
    assert counts.double().mean() < 0.97 and (weight > 1 or counts.double().mean() > 0.05)
    assert bool(((made - told).abs() <= 1e-14 * told)[counts].all())
