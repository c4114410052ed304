"""Triton's interpreter as the tests run it, quickened, finds bit for bit what it finds as it comes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from tests.interpreter import quicken
from tests.kernels.test_every_operator import NETS
from tests.kernels.test_neurons import settling

PLAIN = "from tests.test_interpreter import bounds; print(bounds({name!r}, {dtype!r}))"


def net_of(name: str) -> Net:
    return settling(1) if name == "settling" else NETS[name][0]()


def bounds(name: str, dtype: str) -> str:
    """A digest of every bound of two boxes, in this process's interpreter."""
    net = net_of(name)
    engine = Engine(compile_net(net, "all"), dtype=dtype, semantics="float32", kernels="interpret")
    x = 1 + torch.rand(2, net.input.size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    boxes = engine.refine(x - 0.1, x + 0.1)
    told = [bytes(v[n].numpy().tobytes()) for v in (boxes.lo, boxes.hi) for n in sorted(v)]
    return hashlib.sha256(b"".join(told)).hexdigest()


@pytest.mark.parametrize("name", ["settling", *(pytest.param(n, marks=pytest.mark.slow) for n in sorted(NETS))])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_bounds_are_those_of_triton_as_it_comes(name: str, dtype: str) -> None:
    assert not quicken()  # it happened before this test
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    script = PLAIN.format(name=name, dtype=dtype)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == bounds(name, dtype)
