"""The user's process-wide settings neither reach a bound nor change because one was computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.errors import PolytritonError
from tests.oracle.exact import exact
from tests.oracle.nets import random_box, random_net, toy_conv, toy_residual


def knobs() -> dict[str, Any]:
    """Every process-wide setting a bound could touch, as readable as this torch makes it."""

    def read(get: Callable[[], Any]) -> Any:
        try:
            return get()
        except RuntimeError as error:  # some releases refuse to read a knob that an older switch has set otherwise
            return type(error).__name__

    b = torch.backends
    found = {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "matmul precision": read(torch.get_float32_matmul_precision),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "flushes": bool((torch.tensor([1e-39], device="cpu") * 0.5).item() == 0),
        "mkldnn": b.mkldnn.enabled,
        "mkldnn deterministic": getattr(b.mkldnn, "deterministic", None),
        "cudnn tf32": read(lambda: b.cudnn.allow_tf32),
        "cuda tf32": read(lambda: b.cuda.matmul.allow_tf32),
        "numpy": tuple(sorted(np.geterr().items())),
        "torch random": torch.get_rng_state().sum().item(),
        "numpy random": int(np.random.get_state()[1].sum()),  # type: ignore[index,union-attr]  # noqa: NPY002
    }
    for owner in (b, b.mkldnn, getattr(b.mkldnn, "matmul", None), getattr(b.mkldnn, "conv", None)):
        found[f"fp32 {len(found)}"] = read(partial(getattr, owner, "fp32_precision", None))
    return found


@contextmanager
def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    old = get()
    try:
        put(value)
        yield
    finally:
        put(old)


def _default_dtype(dtype: torch.dtype) -> Any:
    return switched(torch.get_default_dtype, torch.set_default_dtype, dtype)


@contextmanager
def _precision(value: str) -> Iterator[None]:
    owner = getattr(torch.backends.mkldnn, "matmul", None)
    raw = getattr(owner, "fp32_precision", None)
    with switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value):
        yield
    if raw is not None:  # the older switch leaves a value behind in the newer one
        owner.fp32_precision = raw  # type: ignore[union-attr]


@contextmanager
def _fp32(path: str, value: str) -> Iterator[None]:
    owner: Any = torch.backends
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part, None)
    if owner is None or not hasattr(owner, "fp32_precision"):
        yield  # this torch has no such knob
        return
    with switched(lambda: owner.fp32_precision, lambda v: setattr(owner, "fp32_precision", v), value):
        yield


@contextmanager
def _deterministic(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _flushing() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: _precision("highest"),
    "default float64": lambda: _default_dtype(torch.float64),
    "default float16": lambda: _default_dtype(torch.float16),
    "default bfloat16": lambda: _default_dtype(torch.bfloat16),
    "matmul high": lambda: _precision("high"),
    "matmul medium": lambda: _precision("medium"),
    "fp32 everywhere tf32": lambda: _fp32("", "tf32"),
    "fp32 mkldnn bf16": lambda: _fp32("mkldnn", "bf16"),
    "fp32 mkldnn.matmul bf16": lambda: _fp32("mkldnn.matmul", "bf16"),
    "fp32 mkldnn.conv bf16": lambda: _fp32("mkldnn.conv", "bf16"),
    "fp32 mkldnn.conv tf32": lambda: _fp32("mkldnn.conv", "tf32"),
    "mkldnn off": lambda: torch.backends.mkldnn.flags(enabled=False),
    "mkldnn deterministic": lambda: torch.backends.mkldnn.flags(enabled=True, deterministic=True),
    "deterministic": lambda: _deterministic(False),
    "deterministic warns": lambda: _deterministic(True),
    "gradients": lambda: torch.enable_grad(),
    "no gradients": lambda: torch.no_grad(),
    "inference": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "one thread": lambda: switched(torch.get_num_threads, torch.set_num_threads, 1),
    "two threads": lambda: switched(torch.get_num_threads, torch.set_num_threads, 2),
    "flush": _flushing,
    "default device": lambda: _default_device("meta"),
    "numpy raises": lambda: np.errstate(all="raise"),
}
REORDERED = ("one thread", "two threads", "mkldnn off", "mkldnn deterministic", "flush")


def results(dtype: str) -> list[np.ndarray]:
    """Bounds and margins of two nets with fresh verifiers."""
    found = []
    for net in (toy_conv(), toy_residual()):
        lo, hi = random_box(np.random.default_rng(0), net, "ordinary", batch=2)
        verifier = Verifier.from_net(net, semantics="float32", dtype=dtype)
        b = verifier.bounds(lo, hi)
        C = np.eye(10)[1:4] - np.eye(10)[0]
        layers = [side for layer in b.layers.values() for side in (layer.lo, layer.hi)]
        found += [np.asarray(v) for v in (b.lo, b.hi, verifier.margins(lo, hi, C), *layers)]
    return found


PLAIN: dict[str, list[np.ndarray]] = {}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETTINGS)
def test_bounds_do_not_see_the_setting_and_leave_it(name: str, dtype: str) -> None:
    if dtype not in PLAIN:
        PLAIN[dtype] = results(dtype)
    before = knobs()
    with SETTINGS[name]():
        inside = knobs()
        got = results(dtype)
        assert knobs() == inside
    assert knobs() == before
    for g, w in zip(got, PLAIN[dtype], strict=True):
        assert np.isfinite(w).all()
        if name in REORDERED:
            assert np.abs(g - w).max() <= 1e-6 * max(1.0, np.abs(w).max())
        else:
            assert np.array_equal(g, w)


def test_the_settings_bite() -> None:
    """At least autocast lowers a float32 product on every machine: what the test above would miss is not nothing."""
    a = torch.full((64, 64), 1 + 2.0**-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).float()[0, 0] != (a.double() @ a.double())[0, 0].float()


@pytest.mark.parametrize("name", ["matmul medium", "default float64", "deterministic", "fp32 mkldnn bf16"])
def test_settings_come_back_after_an_error(name: str) -> None:
    net = toy_conv()
    with SETTINGS[name]():
        inside = knobs()
        with pytest.raises(PolytritonError):
            Verifier.from_net(net, memory=1 << 20).bounds(np.zeros((600, 3, 8, 8)), np.ones((1, 3, 8, 8)))
        with pytest.raises(PolytritonError):
            Verifier.from_net(net).margins(np.zeros((1, 3, 8, 8)), np.ones((1, 3, 8, 8)), np.full((1, 10), np.nan))
        assert knobs() == inside


def test_flushing_the_users_subnormals_keeps_bounds_sound() -> None:
    """With set_flush_denormal the verifier itself flushes: subnormal weights and products must still be covered."""
    with _flushing():
        for seed in range(40, 48):
            net = random_net(seed, scale="subnormal", steps=4)
            rng = np.random.default_rng(seed)
            lo, hi = random_box(rng, net, "huge" if seed % 2 else "ordinary")
            for dtype in ("float32", "float64"):
                b = Verifier.from_net(net, semantics="real", dtype=dtype).bounds(lo, hi)
                torch.set_flush_denormal(False)  # the exact values must not be flushed themselves
                true = exact(net, np.concatenate([lo, hi, lo / 2 + hi / 2]))[net.output]
                down, up = (v.reshape(3, -1) for v in (true.down(), true.up()))
                assert (np.asarray(b.lo) <= down).all(), seed
                assert (up <= np.asarray(b.hi)).all(), seed
                torch.set_flush_denormal(True)


def test_concurrent_callers_share_the_pin() -> None:
    """Two threads at once, under a lowered precision: the first to finish must not unpin the other."""
    plain = results("float32")
    found: list[list[np.ndarray]] = []
    with _precision("medium"):
        threads = [threading.Thread(target=lambda: found.append(results("float32"))) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert torch.get_float32_matmul_precision() == "medium"
    assert len(found) == 3
    for got in found:
        for g, w in zip(got, plain, strict=True):
            assert np.array_equal(g, w) or np.abs(g - w).max() <= 1e-6 * max(1.0, np.abs(w).max())
