"""The constants of the rounding argument against their formulas in rationals: not below, and not far above."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest
import torch

from polytriton.arithmetic import ARITHMETICS, LIBRARY
from polytriton.rounding import GROW, PARTS, U64, dot_error, gamma, split_error, sum_error
from polytriton.runtime.relax import round_down, round_up
from polytriton.runtime.soundness import SEMANTICS, deployed_error, elementwise_error, gammas, up

COUNTS = (1, 2, 3, 7, 32, 100, 4097, 500_000)
NEAR = F(1) + F(2) ** -30


def exact_gamma(n: int, u: float) -> F:
    return n * F(u) / (1 - n * F(u))


def value(x: torch.Tensor) -> F:
    return F(float(x))


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("u", [2.0**-24, 2.0**-23, U64])
def test_gamma(n: int, u: float) -> None:
    wanted = exact_gamma(n, u)
    for found in (F(gamma(n, u)), value(gammas(torch.tensor([n], dtype=torch.float64), u))):
        assert wanted <= found <= wanted * NEAR


def test_gamma_ends_where_it_means_nothing() -> None:
    assert gamma(2**23, 2.0**-24) == np.inf
    assert gammas(torch.tensor([2.0**23], dtype=torch.float64), 2.0**-24).item() == np.inf


@pytest.mark.parametrize("n", COUNTS)
def test_row_sums(n: int) -> None:
    """A sum of n products, and the sum of magnitudes that it is charged with, both in any order."""
    assert F(dot_error(n)) * (1 - exact_gamma(n, U64)) >= exact_gamma(n, U64)
    enlarged = (1 - exact_gamma(n, U64)) * F(sum_error(n)) * (1 - F(U64)) ** 2
    assert 1 <= enlarged
    assert F(sum_error(n)) <= 1 + 8 * (n + 8) * F(U64)
    assert F(GROW) * (1 - exact_gamma(n, U64)) >= 1
    assert value(up(torch.tensor(1.0, dtype=torch.float64))) == F(GROW)


def test_types() -> None:
    for c, kind in ((LIBRARY["float32"], torch.float32), (LIBRARY["float64"], torch.float64)):
        info = torch.finfo(kind)
        assert c.u >= info.eps / 2
        assert c.eta >= info.tiny
        assert c.dtype == kind


@pytest.mark.parametrize("n", COUNTS)
def test_products(n: int) -> None:
    """A library adds all terms in one chain; kernels add blocks of 32 in the type, the blocks in float64, and round once more."""
    terms = torch.tensor([n], dtype=torch.float64)
    for c in (LIBRARY["float32"], LIBRARY["float64"]):
        assert exact_gamma(n, c.u) <= value(c.product_error(terms)) <= exact_gamma(n, c.u) * NEAR
    inner = exact_gamma(min(n, 32), 2.0**-24)
    blocks = exact_gamma(-(-n // 32), U64)
    wanted = (1 + inner) * (1 + blocks) * (1 + F(2) ** -24) - 1
    assert wanted <= value(ARITHMETICS["float32"].product_error(terms))
    for name, parts in PARTS.items():
        split = ARITHMETICS[name]
        block = exact_gamma(32 * parts, 2.0**-22)
        assert value(split.product_error(terms)) >= (1 + F(2) ** -20) * (1 + block) * (1 + F(2) ** -23) - 1
        assert split.eta >= 8 * LIBRARY["float32"].eta
        assert split_error(parts, 2.0**-24) < 1e-3


@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("ops,products", [(0, 1), (5, 1), (20, 3)])
def test_deployed_error(semantics: str, ops: int, products: int) -> None:
    sem = SEMANTICS[semantics]
    n, magnitude, babs, widest, rowsum = 40, 3.0, 0.5, 2.0, 1.5
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    found = value(deployed_error(sem, n, n * one, ops, products, magnitude * one, babs * one, widest * one, rowsum, None, 1.0))
    g = exact_gamma((2 if sem.u_in else 1) * (n + ops) + 1, 2.0**-23)
    converted = (1 + F(sem.u_in)) ** (2 * products) * (1 + g) - 1
    wanted = converted * F(magnitude) + (converted if ops else g) * F(babs)
    assert wanted <= found <= wanted * (1 + F(2) ** -26)


@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
def test_deployed_underflow(semantics: str) -> None:
    """Magnitudes too small to count: what is left is eta for every operation and every flushed operand."""
    sem = SEMANTICS[semantics]
    one, none = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    found = value(deployed_error(sem, 40, 40 * one, 0, 1, none, none, 2 * one, 1.5, None, 1.0))
    operations, operands = 2 * 40 + 2, F(1.5) + 40 * 2
    assert (operations + operands) * F(2) ** -126 <= found < 2000 * F(2) ** -126


def test_conversions() -> None:
    """One unit in the last place of 11 and 8 bits, in any direction; float16 ends at 65504 and below 2^-14."""
    assert (SEMANTICS["tf32"].u_in, SEMANTICS["bf16"].u_in, SEMANTICS["float16"].u_in) == (2.0**-10, 2.0**-7, 2.0**-10)
    half = SEMANTICS["float16"]
    assert (half.eta_in, half.sub_in, half.big_in) == (2.0**-14, 2.0**-24, 65504.0)
    assert all(SEMANTICS[s].u >= 2.0**-23 and SEMANTICS[s].eta >= 2.0**-126 for s in SEMANTICS if s != "real")


def test_elementwise_error() -> None:
    magnitude = torch.tensor([0.0, 1.0, 1e10], dtype=torch.float64)
    found = elementwise_error(SEMANTICS["float32"], 1, magnitude)
    for m, e in zip(magnitude, found, strict=True):
        assert exact_gamma(1, 2.0**-23) * value(m) + 2 * F(2) ** -126 <= value(e)
    assert elementwise_error(SEMANTICS["float32"], 1, torch.tensor(2.0**61, dtype=torch.float64)).item() == np.inf
    assert not elementwise_error(SEMANTICS["real"], 1, magnitude).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directed_conversion(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(2000) * 2.0 ** rng.integers(-150, 127, 2000)
    x = torch.from_numpy(np.concatenate([wide, [0.0, -0.0, 1e39, -1e39, 2e-46]]))
    above, below = round_up(x, dtype), round_down(x, dtype)
    assert (below.double() <= x).all()
    assert (x <= above.double()).all()
    step = torch.nextafter(below, torch.full_like(below, float("inf")))
    assert (above.double() <= step.double()).all()
