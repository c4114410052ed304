"""Triton's interpreter as the tests run it, quickened, finds bit for bit what it finds as it comes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from itertools import cycle

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from tests.interpreter import quicken
from tests.kernels.test_every_operator import NETS
from tests.kernels.test_neurons import settling
from tests.processes import plain_environment

PLAIN = "from tests.test_interpreter import bounds; print(bounds({name!r}, {dtype!r}))"


def net_of(name: str) -> Net:
    return settling(1) if name == "settling" else NETS[name][0]()


def bounds(name: str, dtype: str) -> str:
    """A digest of every bound of a box, in this process's interpreter."""
    net = net_of(name)
    engine = Engine(compile_net(net, "all"), dtype=dtype, semantics="float32", kernels="interpret")
    x = 1 + torch.rand(1, net.input.size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    boxes = engine.refine(x - 0.1, x + 0.1)
    told = [bytes(v[n].numpy().tobytes()) for v in (boxes.lo, boxes.hi) for n in sorted(v)]
    return hashlib.sha256(b"".join(told)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("settling", "float64"), *zip(["settling", *sorted(NETS)], cycle(["float32", "float64"]))])
def test_bounds_are_those_of_triton_as_it_comes(name: str, dtype: str) -> None:
    assert not quicken()  # it happened before this test
    env = plain_environment(TRITON_INTERPRET="1")
    script = PLAIN.format(name=name, dtype=dtype)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == bounds(name, dtype)


@triton.jit
def replayed(x_ptr, y_ptr, out_ptr, shift, N: tl.constexpr):
    """Calls of one kind whose numbers, and whose operands' being one and the same, differ: what one noted is not the other's."""
    p = tl.program_id(0)
    k = tl.arange(0, N)
    x = tl.load(x_ptr + k)
    y = tl.load(y_ptr + k)
    squared = x * x
    product = x * y
    some = tl.load(x_ptr + k, mask=k < p, other=y)
    one = tl.load(x_ptr, mask=p > 0, other=-0.0)  # whether `mask` holds is looked at
    first = tl.load(y_ptr + p)
    last = tl.load(y_ptr + p, mask=p > 5, other=first)  # as is whether `other` is nothing
    low, high = tl.split(tl.join(x, y))
    row = out_ptr + p * 8 * N + k
    tl.store(row, squared)
    tl.store(row + N, product - shift)
    tl.store(row + 2 * N, some)
    tl.store(row + 3 * N, tl.where(k == p, one, last))
    tl.store(row + 4 * N, high - low)
    tl.store(row + 5 * N, tl.sum(tl.dot(x[:, None] + y[None, :], y[:, None] * x[None, :]), axis=1))
    tl.store(row + 6 * N, (k + p).to(x.dtype), mask=k != p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_one_call_noted_is_another_ones_with_its_own_numbers(dtype: torch.dtype) -> None:
    n = 64
    for seed in range(2):  # the second time everything is known
        x, y = torch.randn(2, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        y[1], y[2] = 0.0, -0.0
        out = torch.full((3, 8, n), 7.0, dtype=dtype)
        replayed[(3,)](x, y, out, seed, N=n)
        a, b, k, found = x.numpy(), y.numpy(), np.arange(n), out.numpy()
        for p in range(3):
            last = b[p] if b[p] else a.dtype.type(0)  # Triton: an `other` of zero is none
            expected = [a * a, a * b - seed, np.where(k < p, a, b), np.where(k == p, a[0] if p else a.dtype.type(0), last), b - a]
            for row, values in zip(found[p], expected, strict=False):
                assert row.tobytes() == values.astype(a.dtype).tobytes()
            table = np.matmul(a[:, None] + b[None, :], b[:, None] * a[None, :])
            np.testing.assert_allclose(found[p, 5], table.sum(1), rtol=1e-3, atol=1e-3)
            assert (found[p, 6] == np.where(k == p, 7, k + p)).all()
            assert (found[p, 7] == 7).all()
