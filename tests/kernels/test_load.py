"""Kernels as functions: every device has a thread of its own, and all of them ask for the same kernels at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from polytriton.kernels import load
from polytriton.kernels.catalogue import make_kernel

pytest.importorskip("triton", reason="Triton is not installed")


def test_threads_that_want_the_same_kernel_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    load.prepare(interpret=True)
    asked: list[str] = []
    own = load.library_function

    def slowly(family: str) -> Any:
        asked.append(family)
        time.sleep(0.05)
        return own(family)

    monkeypatch.setattr(load, "library_function", slowly)
    kernel = make_kernel("count_staying", (("B", 17),), "float64", 4, 1)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(load.function, [kernel] * 8))
    assert asked == ["count_staying"] and len({id(m) for m in made}) == 1
