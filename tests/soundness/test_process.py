"""Gaps once left by what surrounds the argument: the process's settings, and how a library sums."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction as F
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import UnsupportedModel
from polytriton.ir.net import Builder, Net
from polytriton.runtime import settings
from polytriton.runtime.cpu import fused, products
from polytriton.runtime.soundness import GROW, up
from tests.oracle.small import linear, net_of, output

# ---- the process's settings ------------------------------------------------------------------------------------


def deep(seed: int = 0) -> tuple[Net, np.ndarray]:
    rng = np.random.default_rng(seed)

    def make(b: Builder, x: str) -> str:
        h = b.add("relu", (linear(b, x, rng.standard_normal((40, 20)) / 4, rng.standard_normal(40) / 10),))
        h = b.add("relu", (linear(b, h, rng.standard_normal((40, 40)) / 6, np.zeros(40)),))
        return linear(b, h, rng.standard_normal((1, 40)), [0])

    return net_of(make, 20), rng.standard_normal((1, 20))


def test_emulated_products_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed-point product keeps so many bits below the largest number of a row; a sum of rounded products keeps each term's own."""
    cpu, plain = torch.device("cpu"), torch.Tensor.__matmul__
    assert settings.plain_products.__wrapped__(cpu)
    for kind, bits in ((torch.float64, 55), (torch.float32, 26)):

        def emulated(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype = kind, bits: int = bits) -> torch.Tensor:
            if a.dtype != kind:
                return plain(a, b)
            unit = 2.0 ** (torch.log2(a.abs().amax(1, keepdim=True)) - bits)
            return plain((a / unit).round() * unit, b)

        monkeypatch.setattr(torch.Tensor, "__matmul__", emulated)
        assert not settings.plain_products.__wrapped__(cpu)


@pytest.mark.parametrize("fast", [True, False])
def test_autocast_reaches_no_product(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "AVAILABLE", fast and fused.AVAILABLE)
    net, x = deep()
    form = np.eye(1)

    def found() -> tuple[float, float]:
        v = Verifier.from_net(net, semantics="real", dtype="float32")
        return float(v.margins(x - 1e-6, x + 1e-6, form)[0, 0]), float(-v.margins(x - 1e-6, x + 1e-6, -form)[0, 0])

    plain = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found() == plain
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16, "autocast must still be on behind the call"
    at = float(Verifier.from_net(net).predict(x)[0, 0])
    assert plain[0] <= at <= plain[1]


@contextmanager
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush subnormal numbers")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("fast", [True, False])
def test_flushing_subnormal_numbers_reaches_no_box(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """-2^100 relu(x) over a subnormal box."""
    monkeypatch.setattr(fused, "AVAILABLE", fast and fused.AVAILABLE)
    net = net_of(lambda b, x: linear(b, b.add("relu", (linear(b, x, [[1]], [0]),)), [[-1]], [0]))
    form, lo, hi = np.array([[2.0**100]]), np.array([[1e-40]]), np.array([[9e-39]])

    def found() -> float:
        return float(Verifier.from_net(net, semantics="real", dtype="float32").margins(lo, hi, form)[0, 0])

    plain = found()
    with flushing():
        flushed = found()
        assert float(torch.tensor(2.0**-1060, dtype=torch.float64) * 0.5) == 0, "the setting must be the user's again"
    assert flushed == plain
    assert F(flushed) <= -(F(2) ** 100) * F(hi[0, 0])


THREADS = """
import numpy as np, torch
from polytriton.api import Verifier
from polytriton.ir.net import Builder
torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.ones(1 << 20).mul(2).sum()  # threads started here flush for good
torch.set_flush_denormal(False)
n = 1 << 17
b = Builder("wide")
x = b.input((n,))
w = np.zeros((1, n), np.float32)
w[0, -1] = -1
net = b.build(b.add("linear", (b.add("relu", (x,)),), w=b.constant(w), b=b.constant(np.zeros(1, np.float32))))
v = Verifier.from_net(net, semantics="real", dtype="float32")
print(repr(float(v.margins(np.full((1, n), 1e-40), np.full((1, n), 9e-39), np.array([[2.0**100]]))[0, 0])))
"""


@pytest.mark.slow
def test_threads_that_flush_reach_no_box() -> None:
    """Threads inherit the setting from the one that started them, and keep it."""
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert F(float(run.stdout)) <= -(F(2) ** 100) * F(9e-39)


def test_scalar_sums_may_underflow() -> None:
    """Three products of 0.6 times the smallest float64 number are each rounded to a whole one."""
    x, c = 0.6 * 2.0**-534, 2.0**-540
    true = 3 * F(x) * F(c)
    assert F(x * c) * 3 > true, "the trap does not bite"
    net = net_of(lambda b, n: b.add("reshape", (n,), to=(3,)), 3)
    for dtype in ("float32", "float64"):
        got = Verifier.from_net(net, semantics="real", dtype=dtype).margins(np.full((1, 3), x), np.full((1, 3), x), np.full((1, 1, 3), c))
        assert F(float(got[0, 0])) <= true


# ---- sums of the library ---------------------------------------------------------------------------------------


def test_magnitudes_of_wide_sums_are_rounded_up_far_enough() -> None:
    n = 400_000
    values = np.full(n, 0.49 * 2.0**-52)
    values[0] = 1
    in_sequence = float(np.cumsum(values)[-1])
    true = 1 + (n - 1) * F(0.49 * 2.0**-52)
    assert F(in_sequence) * (1 + F(2) ** -40) < true, "the trap does not bite"
    assert F(float(up(torch.tensor(in_sequence, dtype=torch.float64)))) >= true
    assert F(GROW) - 1 >= 500_000 * F(2) ** -53


def test_sums_beyond_the_argument_are_refused() -> None:
    n = 500_001
    with pytest.raises(UnsupportedModel, match="500001 terms"):
        output(net_of(lambda b, x: linear(b, x, np.ones((1, n), np.float32), [0]), n), np.zeros(n))


@pytest.mark.parametrize("machine,library", [("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False)])
def test_convolutions_are_left_to_libraries_that_sum_plainly(machine: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    b = Builder("gap")
    x = b.input((12, 6, 6))
    for groups in (1, 3, 1):
        w, c = rng.standard_normal((12, 12 // groups, 3, 3)) / 8, rng.standard_normal(12) / 8
        w, c = (b.constant(v.astype(np.float32)) for v in (w, c))
        x = b.add("relu", (b.add("conv", (x,), w=w, b=c, k=(3, 3), s=(1, 1), p=(1, 1, 1, 1), g=groups),))
    net = b.build(linear(b, x, rng.standard_normal((2, 432)) / 8, [0, 0]))
    at = rng.random((1, 432))

    def found() -> np.ndarray:
        o = Verifier.from_net(net, semantics="real", dtype="float32").bounds(at - 0.01, at + 0.01)
        return np.stack([np.asarray(o.lo), np.asarray(o.hi)])

    here = found()
    calls = []

    def counted(*args: object, **more: object) -> torch.Tensor:
        calls.append(1)
        return torch.nn.functional.conv_transpose2d(*args, **more)

    monkeypatch.setattr(products, "F", SimpleNamespace(pad=torch.nn.functional.pad, conv_transpose2d=counted))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    there = found()
    assert bool(calls) == library
    assert np.allclose(here, there, rtol=1e-4, atol=1e-5)
    value = Verifier.from_net(net).predict(at)
    assert (there[0] <= value).all()
    assert (value <= there[1]).all()
