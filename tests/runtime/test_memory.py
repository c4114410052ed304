"""The memory budget: it holds, it changes no bound, and where it cannot hold the message says how much would do."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import ResourceError, UsageError
from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Forms
from polytriton.runtime.tables import Tables
from tests.oracle.nets import random_box, toy_conv, toy_residual
from tests.processes import plain_environment

ROOT = Path(__file__).parents[2]


def conv_net(channels: int = 32, side: int = 32) -> Net:
    """Two convolutions and two dense layers on colour images."""
    rng, b = np.random.default_rng(0), Builder("budget")

    def he(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    def conv(x: str, ci: int, k: int, s: int) -> str:
        w, bias = b.constant(he(channels, ci, k, k)), b.constant(np.zeros(channels, np.float32))
        return b.add("relu", (b.add("conv", (x,), w=w, b=bias, k=(k, k), s=(s, s), p=(1, 1, 1, 1)),))

    def dense(x: str, n: int) -> str:
        return b.add("linear", (x,), w=b.constant(he(n, int(np.prod(b.shape(x))))), b=b.constant(np.zeros(n, np.float32)))

    x = conv(conv(b.input((3, side, side)), 3, 3, 1), channels, 4, 2)
    return b.build(dense(b.add("relu", (dense(x, 100),)), 10))


# ---- the same bounds ----------------------------------------------------------------------------------------


def all_bounds(net: Net, memory: int, dtype: str, candidates: str) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    e = Engine(compile_net(net, candidates), semantics="real", dtype=dtype, memory=memory)
    lo, hi = (torch.from_numpy(v).reshape(3, -1) for v in random_box(np.random.default_rng(4), net, "ordinary", 3))
    boxes = e.refine(lo, hi)
    n = net.node(e.plan.query.target).size
    got = e.query(boxes, Forms(torch.arange(3).repeat_interleave(n), torch.eye(n, dtype=torch.float64).repeat(3, 1)))
    found = {f"{name}.{side}": getattr(boxes, side)[name].numpy() for name in e.bounded_nodes() for side in ("lo", "hi")}
    return {**found, "query": got.best.numpy()}, {p.target: len(e.walker.blocks(10_000, p)) for p in e.plan}


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("dtype, rel", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("net", [toy_conv(), toy_residual()], ids=lambda n: n.name)
def test_small_blocks_and_large_ones_give_the_same_bounds(net: Net, dtype: str, rel: float, candidates: str) -> None:
    plan = compile_net(net).plan
    few = 2 * max(p.row_bytes for p in plan) * 7  # seven rows of the widest program at a time
    small, many = all_bounds(net, few, dtype, candidates)
    large, one = all_bounds(net, 8 << 30, dtype, candidates)
    assert all(many[t] >= 3 * one[t] for t in one) and max(many.values()) > 500
    for name, want in large.items():
        np.testing.assert_allclose(small[name], want, rtol=rel, atol=rel * float(np.abs(want).max()), err_msg=name)


def test_half_a_gigabyte_and_eight_give_the_same_margins() -> None:
    net = conv_net(16, 16)
    x = np.random.default_rng(1).random((12, 3, 16, 16))
    C = np.eye(10)[:-1] - np.eye(10)[1:]
    small, large = (Verifier.from_net(net, semantics="real", memory=m).margins(x - 0.01, x + 0.01, C) for m in (500 << 20, 8 << 30))
    np.testing.assert_allclose(small, large, rtol=1e-5, atol=1e-5)


def test_batches_of_images_are_as_many_as_half_the_budget_holds() -> None:
    v = Verifier.from_net(toy_conv(), memory=1 << 20)
    engine = v._decider.engine(v._decider.tries(patient=False)[0])
    sizes = [s.stop - s.start for s in v._decider.batches(100, engine)]
    assert sum(sizes) == 100 and sizes[0] == (1 << 19) // engine.image_bytes < 100
    assert sizes[:-1] == [sizes[0]] * (len(sizes) - 1)


# ---- too little ---------------------------------------------------------------------------------------------


def wanted(error: ResourceError) -> int:
    found = re.search(r"--memory at least (\d+)M", error.remedy)
    assert found is not None, error.remedy
    return int(found[1]) << 20


def test_a_budget_that_one_row_exceeds_names_one_that_suffices() -> None:
    compiled = compile_net(conv_net())
    program = compiled.plan.query
    row = program.row_bytes // 2  # float32
    assert len(Engine(compiled, memory=2 * row).walker.blocks(5, program)) == 5
    with pytest.raises(ResourceError, match=r"one row of %linear_1 takes") as caught:
        Engine(compiled, memory=2 * row - 2).walker.blocks(1, program)
    assert 2 * row <= wanted(caught.value) <= 2 * row + (1 << 20), "the least that suffices"


@pytest.mark.slow
@pytest.mark.parametrize("channels", [8, 16, 20, 24, 32])
def test_a_budget_that_one_image_exceeds_names_one_that_suffices(channels: int) -> None:
    net = conv_net(channels)
    x = np.zeros((1, 3, 32, 32))
    with pytest.raises(ResourceError, match="one image needs") as caught:
        Verifier.from_net(net, memory=1 << 20).bounds(x, x)
    enough = wanted(caught.value)
    assert Verifier.from_net(net, memory=enough).bounds(x, x).lo.shape == (1, 10)
    with pytest.raises(ResourceError):
        Verifier.from_net(net, memory=enough - (2 << 20)).bounds(x, x)


@pytest.mark.parametrize("memory", [0, -1, 1000])
def test_a_budget_that_is_none_is_refused(memory: int) -> None:
    with pytest.raises(UsageError, match="too small") as caught:
        Verifier.from_net(toy_conv(), memory=memory)
    assert "--memory" in caught.value.remedy


# ---- what is held -------------------------------------------------------------------------------------------


def test_nothing_of_a_batch_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the help of the garbage collector: what is large must not hang in a cycle until that comes by."""
    made: list[weakref.ref[object]] = []
    for cls in (Tables, Boxes):
        plain = cls.__init__

        def init(self: object, *args: object, _plain: object = plain, **kwargs: object) -> None:
            _plain(self, *args, **kwargs)  # type: ignore[operator]
            made.append(weakref.ref(self))

        monkeypatch.setattr(cls, "__init__", init)
    v = Verifier.from_net(toy_residual(), memory=1 << 20)
    x = np.random.default_rng(0).random((30, 3, 8, 8))
    gc.collect()
    gc.disable()
    try:
        v.margins(x - 0.1, x + 0.1, np.eye(10))
        alive = [type(r()).__name__ for r in made if r() is not None]
    finally:
        gc.enable()
    assert len(made) > 6 and alive == []


SCRIPT = """
import os, sys, threading, time
import numpy as np, torch
torch.set_num_threads(1)
from polytriton.api import Verifier
from tests.runtime.test_memory import conv_net

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

budget, images, dtype = int(sys.argv[1]) << 20, int(sys.argv[2]), sys.argv[3]
first = Verifier.from_net(conv_net(4), semantics="real", dtype=dtype)  # compiles loops, prepares libraries
first.margins(np.zeros((1, 3, 32, 32)), np.full((1, 3, 32, 32), 0.05), np.eye(10))
v = Verifier.from_net(conv_net(), semantics="real", dtype=dtype, memory=budget)
x = np.random.default_rng(0).random((images, 3, 32, 32))
v.margins(x[:1], x[:1], np.eye(10))
base = peak = resident()
done = False

def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.001)

thread = threading.Thread(target=watch, daemon=True)
thread.start()
v.margins(x - 0.004, x + 0.004, np.eye(10))
done = True
thread.join()
print((peak - base) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("budget, images, dtype", [(200, 40, "float32"), (100, 20, "float64"), (60, 12, "float32")])
def test_the_process_stays_within_the_budget(budget: int, images: int, dtype: str) -> None:
    """Over what the process holds before; a fifth is left to the allocator."""
    env = plain_environment(OMP_NUM_THREADS="1")
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(budget), str(images), dtype], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr
    peak = float(out.stdout)
    assert 5 < peak <= 1.2 * budget, f"{peak:.0f} MiB over the base with a budget of {budget} MiB"
