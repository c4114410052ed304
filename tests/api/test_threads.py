"""Many threads at one verifier: the bits of their bounds are those of one thread, and torch's settings end as they were."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from polytriton.api import Verifier
from polytriton.prove import decider
from polytriton.runtime import settings
from tests.oracle.nets import random_box, random_net, toy_conv, toy_residual

EXAMPLES = Path(__file__).parents[2] / "examples"
THREADS = 8


def together(work: Callable[[int], Any], count: int, threads: int = THREADS) -> list[Any]:
    """work(0) ... work(count - 1), all threads let go at the same moment."""
    gate = threading.Barrier(threads)

    def started(k: int) -> Any:
        if k < threads:
            gate.wait(60)
        return work(k)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(started, range(count)))


def everything(b: polytriton.Bounds) -> list[np.ndarray]:
    return [b.lo, b.hi, *(side for layer in b.layers.values() for side in (layer.lo, layer.hi))]


def precision() -> str:
    """Of float32 products on the CPU, as this torch tells it."""
    newer = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)
    return str(newer or torch.get_float32_matmul_precision())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [toy_conv, toy_residual, lambda: random_net(7, steps=5)], ids=["conv", "residual", "random"])
def test_bounds_of_many_threads_are_those_of_one(make: Callable[[], Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, engines = make(), list[object]()
    engine = decider.Engine

    def slowly(*args: Any, **options: Any) -> Any:
        engines.append(args)
        time.sleep(0.02)
        return engine(*args, **options)

    monkeypatch.setattr(decider, "Engine", slowly)
    boxes = [random_box(np.random.default_rng(k), net, "ordinary", batch=1 + k % 3) for k in range(2 * THREADS)]
    alone = Verifier.from_net(net, dtype=dtype)
    want = [everything(alone.bounds(*box)) for box in boxes]
    for fresh in (True, False):  # engines, tables and weights made in a race, and found
        shared = Verifier.from_net(net, dtype=dtype) if fresh else alone
        engines.clear()
        got = together(lambda k, v=shared: everything(v.bounds(*boxes[k])), len(boxes))
        assert len(engines) == 2 * fresh  # one for each choice of candidates
        for mine, wanted in zip(got, want, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_verdicts_margins_and_counterexamples_of_many_threads() -> None:
    with np.load(EXAMPLES / "digits.npz") as held:
        x, labels = held["images"].astype(np.float64)[:12], held["labels"][:12].astype(int)
    one, many = (polytriton.compile(EXAMPLES / "digits_conv_normal.onnx") for _ in range(2))

    def ask(net: Verifier, k: int) -> tuple[str, list[float], list[float]]:
        r = net.verify(x[k], "0.04", int(labels[k]), clip=(0, 1), search="none")
        return r.verdict, r.margins.tolist(), [] if r.counterexample is None else r.counterexample.x.ravel().tolist()

    want = [ask(one, k) for k in range(len(x))]
    assert together(lambda k: ask(many, k), len(x)) == want
    assert {"unsat", "sat"} <= {verdict for verdict, _, _ in want}


def test_different_verifiers_at_once() -> None:
    nets = [random_net(seed, steps=4) for seed in range(THREADS)]
    boxes = [random_box(np.random.default_rng(k), net, "ordinary") for k, net in enumerate(nets)]

    def ask(k: int) -> list[np.ndarray]:
        return everything(Verifier.from_net(nets[k], semantics="real").bounds(*boxes[k]))

    want = [ask(k) for k in range(THREADS)]
    for mine, wanted in zip(together(ask, THREADS), want, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_settings_stay_pinned_until_the_last_caller_is_done_and_come_back() -> None:
    net = toy_conv()
    lo, hi = random_box(np.random.default_rng(0), net, "ordinary", batch=4)
    want = everything(Verifier.from_net(net, dtype="float32").bounds(lo, hi))
    inside: set[str] = set()
    torch.set_float32_matmul_precision("medium")
    outside = precision()
    torch.use_deterministic_algorithms(True)
    try:
        shared = Verifier.from_net(net, dtype="float32")

        def ask(k: int) -> tuple[list[np.ndarray], bool, bool]:
            found = everything(shared.bounds(lo, hi, progress=lambda *_: inside.add(precision())))
            return found, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

        got = together(ask, 4 * THREADS)
        assert outside not in ("highest", "ieee") and inside <= {"highest", "ieee"} and inside
        assert precision() == outside and torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert settings._holders == 0 and not settings._restore
    for found, grad, autocast in got:
        assert grad and not autocast
        assert all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))


def test_an_error_in_one_thread_disturbs_no_other() -> None:
    net = toy_conv()
    lo, hi = random_box(np.random.default_rng(0), net, "ordinary")
    shared = Verifier.from_net(net)
    want = everything(shared.bounds(lo, hi))

    def ask(k: int) -> list[np.ndarray] | None:
        if k % 3:
            return everything(shared.bounds(lo, hi))
        with pytest.raises(ValueError, match="stop here"):
            shared.bounds(lo, hi, progress=_stop)
        return None

    for mine in together(ask, 2 * THREADS):
        assert mine is None or all(np.array_equal(a, b) for a, b in zip(mine, want, strict=True))
    assert settings._holders == 0


def _stop(stage: str, done: int, total: int) -> None:
    raise ValueError("stop here")


def test_the_precision_probe_sees_the_pinned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked by whoever comes first, pinned or not: a lowered precision outside says nothing about what bounds are computed with."""
    seen: list[int] = []
    probe = settings._keeps_24_bits
    monkeypatch.setattr(settings, "_probe", None)
    monkeypatch.setattr(settings, "_keeps_24_bits", lambda: seen.append(settings._holders) or probe())
    assert settings.exact_float32() == settings.exact_float32()
    assert seen == [1]
