"""Callers in several threads use generated kernels one after another: kernels play on tensors that stay where they are."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from polytriton.api import Verifier
from tests.oracle.nets import random_box, random_net


def test_callers_take_turns() -> None:
    net = random_net(1, steps=4)
    lo, hi = random_box(np.random.default_rng(3), net, "ordinary")
    a, b = (Verifier.from_net(net, device="interpret") for _ in range(2))
    want = a.bounds(lo, hi, effort="quick")
    running, overlaps = list[str](), list[list[str]]()

    def watch(stage: str, done: int, total: int) -> None:
        """From the first stage to the last of one call."""
        if done == 0:
            running.append(stage)
            time.sleep(0.05)
        if len(running) > 1:
            overlaps.append([*running])
        if done == total:
            running.pop()

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda k: (a, b)[k % 2].bounds(lo, hi, effort="quick", progress=watch), range(4)))
    assert not overlaps
    for mine in got:
        assert np.array_equal(mine.lo, want.lo) and np.array_equal(mine.hi, want.hi)
