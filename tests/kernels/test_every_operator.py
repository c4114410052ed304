"""Networks of every operator as launches alone: the bounds of the tensor form, no escape from the exact oracle, one wait a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net
from polytriton.kernels.choose import INTERPRETER
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu import triton_backend
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.kit import Kit
from tests.kernels.test_device_runs import Waits, asking
from tests.kernels.test_kernel_runs import agree, boxes, forms
from tests.oracle.nets import random_net
from tests.soundness.test_soundness import Tally, check

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


class Layers:
    """A Builder with random weights, one node after the other."""

    def __init__(self, name: str, *shape: int) -> None:
        self.rng, self.b = np.random.default_rng(11), Builder(name)
        self.x = self.b.input(shape)

    def weights(self, *shape: int) -> Any:
        return self.b.constant((self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32))

    def add(self, op: str, *more: str, **attrs: Any) -> str:
        self.x = self.b.add(op, (self.x, *more), **attrs)
        return self.x

    def conv(self, out: int, k: int = 3, s: int = 1, p: int = 1) -> str:
        w = self.weights(out, self.b.shape(self.x)[0], k, k)
        return self.add("conv", w=w, b=self.weights(out), k=(k, k), s=(s, s), p=(p, p, p, p))

    def linear(self, out: int) -> str:
        return self.add("linear", w=self.weights(out, int(np.prod(self.b.shape(self.x)))), b=self.weights(out))

    def scale(self, *shape: int) -> str:
        return self.add("scale", a=self.weights(*shape), c=self.weights(*shape))

    def gather(self, index: np.ndarray, *to: int) -> str:
        return self.add("gather", index=self.b.constant(index, "index"), to=to)

    def net(self) -> Net:
        self.linear(3)
        return self.b.build(self.x)


def leaky() -> Net:
    """Slopes below, between and above the two that need no kernel of their own, one behind the other; a residual sum."""
    n = Layers("leaky", 2, 4, 4)
    n.conv(3)
    start = n.add("relu", slope=0.125)
    n.conv(3)
    n.add("relu", slope=-0.25)
    n.conv(3)
    n.add("add", start)
    n.add("relu", slope=1.5)
    n.add("relu", slope=0.5)
    n.linear(6)
    n.add("relu", slope=0.01)
    return n.net()


def pools() -> Net:
    """Windows that overlap, lie apart and are dilated, padded on one side; pools over ReLUs and ReLUs over pools."""
    n = Layers("pools", 2, 7, 7)
    n.conv(3)
    n.add("relu")
    n.add("maxpool", k=(3, 3), s=(1, 2), p=(1, 1, 0, 1))
    n.conv(3)
    n.add("maxpool", k=(2, 1), s=(2, 3), d=(2, 1), p=(0, 0, 1, 0))
    n.add("relu", slope=0.125)
    n.linear(5)
    n.add("relu")
    return n.net()


def scales() -> Net:
    """Cell by cell and by channel, on windows, on whole images and on vectors, where no layer can take them in."""
    n = Layers("scales", 2, 5, 5)
    n.conv(3)
    start = n.add("relu")
    n.scale(3, 5, 5)
    n.add("relu")
    n.scale(3, 1, 1)
    n.add("add", start)
    n.add("relu")
    n.conv(2, s=2)
    n.add("relu")
    n.linear(7)
    n.add("relu")
    n.scale(7)
    n.add("relu")
    return n.net()


def concats() -> Net:
    """By channel on windows, by height and width on images, of vectors, and of one node with itself."""
    n = Layers("concats", 2, 4, 4)
    n.conv(2)
    a = n.add("relu")
    n.conv(3)
    b = n.add("relu")
    n.x = n.b.add("concat", (a, b), axis=0)
    n.conv(2)
    c = n.add("relu")
    for axis in (1, 2):
        n.x = n.b.add("concat", (n.x, n.x if axis == 1 else n.add("relu", slope=0.5)), axis=axis)
        n.conv(2, s=2)
        n.add("relu")
    n.linear(4)
    d = n.add("relu")
    n.x = c
    n.linear(3)
    e = n.add("relu")
    n.x = n.b.add("concat", (d, e, d), axis=0)
    n.linear(5)
    n.add("relu")
    return n.net()


def gathers() -> Net:
    """Shuffled and repeated channels on windows; cells picked, repeated and left to padding, of images and of vectors."""
    n = Layers("gathers", 2, 4, 4)
    n.conv(4)
    n.add("relu")
    n.gather(np.concatenate([np.arange(16) + 16 * c for c in (2, 0, 3, 1, 2)]), 5, 4, 4)
    n.add("relu", slope=0.5)
    n.conv(3)
    n.add("relu")
    n.gather(np.random.default_rng(5).integers(-1, 30, 36), 4, 3, 3)
    n.add("relu", slope=0.5)
    n.conv(2, p=0)
    n.add("relu")
    start = n.linear(6)
    n.gather(np.array([5, 5, 5, 0, -1, 3]), 6)
    n.add("add", n.b.add("relu", (start,)))
    n.add("relu")
    return n.net()


def every() -> Net:
    """All of them in one small network."""
    n = Layers("every", 2, 4, 4)
    n.conv(3)
    start = n.add("relu", slope=0.125)
    n.scale(3, 1, 1)
    n.add("concat", start, axis=0)
    n.add("relu")
    n.gather(np.concatenate([np.arange(16) + 16 * c for c in (5, 0, 3, 1)]), 4, 4, 4)
    n.add("maxpool", k=(3, 2), s=(2, 2), p=(1, 0, 0, 0))
    n.linear(4)
    n.add("relu")
    return n.net()


NETS: dict[str, tuple[Callable[[], Net], str]] = {
    "leaky": (leaky, "slope_rows"), "pools": (pools, "pool_rows"), "scales": (scales, "scale_rows"), "concats": (concats, "part_rows"),
    "gathers": (gathers, "gather_rows"),
}  # fmt: skip


def functions(engine: Engine) -> set[str]:
    """The library kernels that a network's programs launch."""
    assert engine.kernels is not None
    return {s.function for p in engine.plan for s in engine.kernels.ready(p).launches.steps}


# the operators differ in one type as in the other: float32 with one of them, and with all in the slow tests
BOTH = [pytest.param(d, n, marks=() if d == "float64" or n == "pools" else pytest.mark.slow) for d in ("float64", "float32") for n in NETS]


@pytest.mark.parametrize("dtype, name", BOTH)
def test_networks_of_one_operator(name: str, dtype: str) -> None:
    """Bounds and forms are the tensor form's to within what both have charged; candidates at the end alone in one type."""
    candidates = "all" if dtype == "float64" else "input"
    engine = agree(NETS[name][0](), 8, dtype, early=dtype == "float64", candidates=candidates, semantics="float32")
    assert NETS[name][1] in functions(engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", ["zero", "huge"])
def test_boxes_that_are_points_or_wide(name: str, kind: str) -> None:
    agree(NETS[name][0](), 9, "float32" if kind == "huge" else "float64", kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_networks_of_these_operators(seed: int) -> None:
    moves = ("conv", "relu", "relu", "maxpool", "scale_cells", "layout", "layout", "concat", "concat", "preact", "depthwise")
    net = random_net(seed + 700, scale="normal", limit=60, steps=6, moves=moves, leaky=0.6, image=seed % 4 != 0)
    more: dict[str, Any] = {"semantics": ("float32", "real", "tf32")[seed % 3], "candidates": ("all", "input")[seed % 5 == 4]}
    agree(net, seed, ("float64", "float32")[seed % 2], **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_exact_values_and_deployed_runs_stay_inside(name: str) -> None:
    tally = Tally()
    for seed, (dtype, semantics) in enumerate((("float32", "float32"), ("float64", "real"))):
        check(NETS[name][0](), "ordinary", seed, {"device": "interpret", "dtype": dtype, "semantics": semantics}, tally, points=4, runs=2)
    assert not tally.failures and tally.finite > 0.9 * tally.total


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_exact_values_stay_inside_on_random_networks(seed: int) -> None:
    tally, scale = Tally(), ("normal", "range", "cancel", "subnormal", "ties", "zeros")[seed % 6]
    moves = ("conv", "relu", "maxpool", "scale_cells", "layout", "concat", "postact")
    net = random_net(seed + 900, scale=scale, limit=40, steps=5, moves=moves, leaky=0.6)
    knobs = {"device": "interpret", "dtype": ("float32", "float64")[seed % 2], "semantics": ("float32", "real")[seed % 4 // 2]}
    check(net, ("ordinary", "tiny", "touching")[seed % 3], seed, knobs, tally, points=6, runs=3)
    assert not tally.failures


def test_one_wait_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From boxes to bounds the host asks the device once a bounded layer, and for a query never: no launch counts rows for it."""
    compiled = compile_net(every())
    engine = Engine(compiled, kernels="interpret", dtype="float64")
    assert engine.kernels is not None and functions(engine) >= {function for _, function in NETS.values()}
    engine.query(engine.refine(*boxes(compiled.net, 3, 1)), forms(engine, 1, 1))  # imports kernels, makes tables that stay
    call, waits = TritonBackend.call, Waits()

    def unwatched(*given: Any) -> Callable[[], Any]:
        """Triton's interpreter reads tensors on the host, a GPU does not."""
        play = call(*given)

        def played() -> None:
            before = waits.count
            play()
            waits.count = before

        return played

    monkeypatch.setattr(TritonBackend, "call", unwatched)
    told = asking(engine.kernels, monkeypatch)
    engine.kernels._forget()
    with waits:
        found = engine.refine(*boxes(compiled.net, 4, 1))
    assert waits.count == 0
    assert len(told) == len(engine.programs.keys() - engine.unsettled)  # every neuron of a pooled layer has rows
    asked = forms(engine, 2, 1)
    with waits:
        engine.query(found, asked)
    assert waits.count == 0 and len(told) == len(engine.programs.keys() - engine.unsettled)


@pytest.mark.parametrize("name", NETS)
def test_launches_charge_what_the_tensor_form_charges(name: str) -> None:
    """On the same boxes, with the same bound for products, and one candidate a row: raw - best is the error, to float32's noise."""
    compiled = compile_net(NETS[name][0](), candidates="input")
    ours, theirs = (Engine(compiled, kernels=k, dtype="float32", semantics="real") for k in ("interpret", ""))
    theirs.kit = Kit(theirs.net, theirs.plan, theirs.forward, ours.coefficients)
    # kernels charge the most terms that a layer's coefficient can have, the tensor form those that are live
    theirs.forward.readers = lambda layer, live: torch.full((len(live), 1, 1, 1), float(layer.fan))  # type: ignore[method-assign]
    lo, hi = boxes(compiled.net, 6, 2)
    found, asked = theirs.refine(lo, hi), forms(ours, 5, 2, each=8)
    got, want = ours.query(found, asked), theirs.query(found, asked)
    torch.testing.assert_close(got.raw, want.raw, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.raw - got.best, want.raw - want.best, rtol=2e-3, atol=0.0)


BETWEEN = ["relu", "apart", "leaky", pytest.param("nothing", marks=pytest.mark.slow)]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_dense_layer_whose_output_is_an_image(between: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolution behind it reads off the image, so the dense layer's tables have a margin between their lines. `apart`: the ReLU
    goes before the product, as where there are several tiles of columns, and pays what the product owes: a bias a cell.
    """
    n = Layers("generator", 5)
    hidden = 20 if between == "apart" else 6
    n.linear(hidden)
    n.add("relu")
    n.add("linear", w=n.weights(12, hidden), b=n.weights(12), to=(3, 2, 2))
    if between != "nothing":
        n.add("relu", slope=0.25 if between == "leaky" else 0.0)
    n.conv(2)
    n.add("relu")
    tally, net = Tally(), n.net()
    if between == "apart":
        monkeypatch.setattr(triton_backend, "INTERPRETER", replace(INTERPRETER, columns=16))
        backend = Engine(compile_net(net), kernels="interpret").kernels
        assert backend is not None
        passes = [dict(k.constants) for k in backend.kernels() if k.family == "relax_rows"]
        assert any(c["BIAS"] == "image" and c["CHARGE"] for c in passes)
    agree(net, 4, dtype)
    check(net, "ordinary", 1, {"device": "interpret", "dtype": dtype, "semantics": "float32"}, tally, points=4, runs=1)
    assert not tally.failures and tally.finite > 0.9 * tally.total
