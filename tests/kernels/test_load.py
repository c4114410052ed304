"""Kernels as modules: every device has a thread of its own, and all of them ask for the same kernels at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polytriton.ir.launches import Kernel
from polytriton.kernels.load import function, prepare

pytest.importorskip("triton", reason="Triton is not installed")
SOURCE = "import triton\n\n\n@triton.jit\ndef wanted_by_all(x_ptr):\n    pass\n"


def test_threads_that_want_the_same_kernel_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is written once: Triton reads it on import, and another writer would have emptied it meanwhile."""
    prepare(interpret=True)
    written: list[str] = []
    write = Path.write_text

    def slowly(path: Path, text: str) -> int:
        written.append(path.name)
        made = write(path, text[: len(text) // 2])  # as a file looks while it is being written
        time.sleep(0.05)
        return made + path.open("a").write(text[len(text) // 2 :])

    monkeypatch.setattr(Path, "write_text", slowly)
    kernel = Kernel("wanted_by_all", SOURCE, ("x_ptr",), ("*fp64",))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(function, [kernel] * 8))
    assert len(written) == 1 and len({id(m) for m in made}) == 1
