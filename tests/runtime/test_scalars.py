"""Rows' scalars, in the compiled loops and in the torch forms: against exact rationals, and each other."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.runtime.cpu import cells, fused
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.results import Forms, Results, Rows, form_rows

FORMS = [pytest.param(True, marks=pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed")), False]


def backend(fast: bool) -> TorchBackend:
    made = TorchBackend(torch.device("cpu"))
    made.fast = fast
    return made


def wide(rng: np.random.Generator, n: int, low: int = -30, high: int = 31) -> Tensor:
    return torch.from_numpy(rng.standard_normal(n) * 2.0 ** rng.integers(low, high, n))


def some_rows(rng: np.random.Generator, n: int, images: int = 3) -> Rows:
    where = torch.arange(n)
    image = torch.from_numpy(rng.integers(0, images, n))
    return Rows(image, where, where, wide(rng, n), wide(rng, n, -90, 1).abs(), where)


@pytest.mark.parametrize("fast", FORMS)
def test_rows_pay_for_the_roundings_of_their_scalars(fast: bool) -> None:
    rng = np.random.default_rng(0)
    n = 2000
    rows = some_rows(rng, n)
    old, error = rows.constant.clone(), rows.error.clone()
    more, charge, floor = wide(rng, n), wide(rng, n, -90, 1).abs(), wide(rng, 3, -80, -20).abs()
    backend(fast).pay(rows, more, 1.0, charge, 1.25, floor)
    for k in range(n):
        lost = abs(F(rows.constant[k].item()) - F(old[k].item()) - F(more[k].item()))
        due = F(error[k].item()) + F(charge[k].item()) * F(5, 4) + F(floor[rows.image[k]].item())
        assert F(rows.error[k].item()) >= due + lost
    assert (rows.error <= (error + 1.25 * charge + floor[rows.image]) * (1 + 1e-14) + 1e-15 * rows.constant.abs() + 1e-299).all()


@pytest.mark.parametrize("fast", FORMS)
def test_what_is_not_given_is_not_paid(fast: bool) -> None:
    rng = np.random.default_rng(1)
    rows = some_rows(rng, 50)
    old, error = rows.constant.clone(), rows.error.clone()
    backend(fast).pay(rows, None, math.nan)
    assert torch.equal(rows.constant, old)
    assert (rows.error >= error).all() and (rows.error <= error * (1 + 1e-14) + 1e-15 * old.abs() + 1e-299).all()
    backend(fast).pay(rows, torch.full((50,), -1.0, dtype=torch.float64), 2.0)
    assert torch.equal(rows.constant, old - 2)


@pytest.mark.parametrize("fast", FORMS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_candidate_is_no_higher_than_the_exact_one(fast: bool, nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    n, rel = 1000, 2.0**-20
    rows = some_rows(rng, n)
    results = Results(torch.full((n,), -math.inf, dtype=torch.float64), torch.full((n,), -math.inf, dtype=torch.float64))
    least, weight, floor = wide(rng, n), wide(rng, n).abs(), wide(rng, 3, -80, -20).abs()
    more = wide(rng, n)  # what another node's candidate came to
    raw, slack = (rows.constant, rows.error) if nodes == 1 else (rows.constant + more, rows.error * 1.0)
    backend(fast).settle(rows, results, raw, slack, least, weight, rel, floor, nodes)
    for k in range(n):
        constant, last = F(rows.constant[k].item()), F(least[k].item())
        exact = constant + last + (F(more[k].item()) if nodes == 2 else 0)
        due = F(rows.error[k].item()) + F(weight[k].item()) * F(rel) + F(floor[rows.image[k]].item())
        found, size = F(results.best[k].item()), abs(exact) + abs(constant) + abs(last)
        assert exact - due - (size + due) * F(2) ** -45 - F(1e-299) <= found <= exact - due
        assert abs(F(results.raw[k].item()) - exact) <= size * F(2) ** -50


@pytest.mark.parametrize("fast", FORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["least", "weight", "slack", "constant", "floor"])
def test_nothing_finite_comes_of_a_broken_row(fast: bool, bad: float, where: str) -> None:
    one = torch.ones(2, dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.int64)
    given = {name: one.clone() for name in ("least", "weight", "slack", "constant")} | {"floor": one[:1].clone()}
    given[where][0] = bad
    rows = Rows(zero, zero, zero, given["constant"], given["slack"], torch.arange(2))
    results = Results(torch.tensor([-7.0, -7.0], dtype=torch.float64), torch.tensor([-7.0, -7.0], dtype=torch.float64))
    backend(fast).settle(rows, results, rows.constant, rows.error, given["least"], given["weight"], 1.0, given["floor"], 1)
    assert results.best[0] == -7.0  # what was known stays
    assert math.isfinite(results.raw[0].item())


@pytest.mark.parametrize("fast", FORMS)
@pytest.mark.parametrize("strict", [False, True])
def test_groups_leave_together_and_padded_rows_count_once(fast: bool, strict: bool) -> None:
    index = torch.tensor([0, 1, 2, 3, 4, 0])  # the last is a repetition
    zero = torch.zeros(6, dtype=torch.int64)
    rows = Rows(zero, zero, zero, torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64), index)
    best = torch.tensor([-1.0, 5.0, 0.0, math.nan, -0.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 2, 3])
    results = Results(best, best.clone(), group, torch.zeros(4, dtype=torch.bool), strict=strict)
    stay = backend(fast).open_rows(rows, results)
    assert results.done is not None
    assert results.done.tolist() == [True, not strict, False, not strict]
    assert stay.tolist() == ([2, 3, 4] if strict else [3])
    assert backend(fast).open_rows(rows.keep(stay), results).tolist() == list(range(len(stay)))


@pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed")
def test_both_forms_say_the_same() -> None:
    rng = np.random.default_rng(7)
    found = []
    for fast in (True, False):
        rng = np.random.default_rng(7)
        rows = some_rows(rng, 500)
        rows.index = torch.from_numpy(rng.integers(0, 200, 500))
        none = torch.full((200,), -math.inf, dtype=torch.float64)
        results = Results(none, none.clone(), torch.arange(200), torch.zeros(200, dtype=torch.bool))
        b = backend(fast)
        b.settle(rows, results, rows.constant, rows.error, wide(rng, 500), wide(rng, 500).abs(), 1e-6, wide(rng, 3, -60, -30).abs(), 1)
        stay = b.open_rows(rows, results)
        b.pay(rows, wide(rng, 500), 1.0, wide(rng, 500).abs(), 1e-6, wide(rng, 3, -60, -30).abs())
        found.append((results.best, results.raw, rows.constant, rows.error, stay))
    for a, b_ in zip(*found, strict=True):
        torch.testing.assert_close(a, b_, rtol=1e-14, atol=0)


def test_scalars_are_computed_as_written() -> None:
    assert not fused.PLAIN


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("fast", FORMS)
def test_bounds_are_kept_on_the_side_of_their_sign(fast: bool, best: bool) -> None:
    rng = np.random.default_rng(6)
    at = torch.from_numpy(rng.permutation(40)[:30])
    sign, found = torch.from_numpy(rng.choice([-1, 1], 30)), torch.from_numpy(rng.standard_normal(30))
    found[::7], found[3] = -math.inf, math.nan
    old = torch.from_numpy(rng.standard_normal(40)), torch.from_numpy(rng.standard_normal(40))
    kept = old[0].clone(), old[1].clone()
    backend(fast).keep(found, sign, at, kept, best)
    for k, side in enumerate((1, -1)):
        want = old[k].clone()
        for value, to, s in zip(found.tolist(), at.tolist(), sign.tolist(), strict=True):
            if s == side and math.isfinite(value) and (value > want[to] or not best):
                want[to] = value
        assert torch.equal(kept[k], want) and not torch.equal(want, old[k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [True, False], ids=["error and constant", "plain"])
def test_forms_begin_as_the_tensor_form_says(given: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coefficients and constants bit for bit; errors summed in another order, which their enlargement covers."""
    if not fused.AVAILABLE:
        pytest.skip("Numba is not installed: there are no compiled loops")
    rng, (rows, outputs, images) = np.random.default_rng(8), (60, 7, 4)
    image, block = torch.from_numpy(rng.integers(0, images, rows)), torch.from_numpy(rng.permutation(rows)[:45])
    forms = Forms(image, wide(rng, rows * outputs).view(rows, outputs))
    if given:
        forms.coefficient_error = wide(rng, rows * outputs, -60, -10).abs().view(rows, outputs)
        forms.constant = wide(rng, rows)
    largest = wide(rng, images * outputs).abs().view(images, 1, 1, outputs)
    for flush in (0.0, 2.0**-20):
        some, start = form_rows(forms, block, (largest, None), flush, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(cells, "serves", lambda values: False)
            want, begin = form_rows(forms, block, (largest, None), flush, dtype)
        assert start.shape == begin.shape and start.dtype == dtype and torch.equal(start, begin)
        assert torch.equal(some.constant, want.constant) and torch.equal(some.image, want.image) and torch.equal(some.index, want.index)
        assert bool(((some.error - want.error).abs() <= 1e-14 * want.error).all())
        assert bool((want.error > 0).all()) == (dtype == torch.float32 or given or flush > 0)
