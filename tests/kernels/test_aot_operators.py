"""The kernels of every operator as machine code: compiled ahead of time for small and for large layers, without a spill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polytriton.kernels.files import emit_files
from polytriton.kernels.network import network_kernels
from polytriton.passes.pipeline import compile_net
from tests.kernels.test_aot import TARGETS, TYPES, compiled_clean, cubins, pytestmark
from tests.kernels.test_every_operator import Layers, every

__all__ = ["cubins", "pytestmark"]
MADE = ("slope_rows", "scale_rows", "pool_rows", "part_rows", "gather_rows")


def large() -> Layers:
    """Dozens of channels, overlapping and dilated windows, a pool over a whole image, channels that are read often."""
    n = Layers("large", 3, 24, 24)
    n.conv(48)
    n.add("relu", slope=0.01)
    n.add("maxpool", k=(3, 3), s=(2, 2), p=(1, 1, 1, 1))
    start = n.add("relu")
    n.scale(48, 12, 12)
    n.add("concat", start, axis=0)
    n.add("relu")
    n.gather(np.concatenate([np.arange(144) + 144 * (c % 40) for c in range(96)]), 96, 12, 12)
    n.add("maxpool", k=(2, 3), s=(1, 1), d=(2, 1))
    n.conv(64, s=2)
    n.add("relu", slope=0.5)
    n.add("maxpool", k=n.b.shape(n.x)[1:])
    n.linear(32)
    n.add("relu")
    return n


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_no_kernel_spills(size: str, numerics: str, target: str, cubins: Path) -> None:
    compiled = compile_net(every() if size == "small" else large().net())
    kernels = [k for k in network_kernels(compiled, [numerics]) if k.name.startswith(MADE)]
    assert {k.family for k in kernels} == set(MADE)
    compiled_clean(kernels, target, cubins)


def test_an_artifact_lists_them_with_their_headers() -> None:
    """Every kernel of the programs has a head that tells its steps and what its sums cost."""
    found = emit_files(compile_net(every()), ["cuda:90", "interpret"], ["float64", "float32"])
    for function in MADE:
        mine = [found.kernel_text(k.name) for k in found.filed.kernels.values() if k.family == function]
        assert mine, function
        for text in mine:
            head = text[: text.index("import triton")]
            assert "#   steps     %" in head and "#   error     " in head and "#   constants " in head
    machine = {k.family for k in found.machine}
    assert set(MADE) <= machine
