"""The oracle of `make bench-gpu` knows the kernels of every operator: each launch of a network of them passes, a wrong one does not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.core.table import Row
from bench.gpu.kernels import _steps
from bench.gpu.setting import Setting
from bench.nets.grow import operators
from polytriton.passes.pipeline import Compiled, compile_net
from tests.kernels.planted import planted

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
MADE = {"slope_rows", "scale_rows", "pool_rows", "part_rows", "gather_rows"}
WRONG = [  # a module, a line of it, the same line wrong, and the step and quantity that show it
    ("elementwise", "total += tl.where(x > 0, ", "total += tl.where(x < 0, ", "slope_rows", "constant"),
    ("elementwise", "c.PENDING * tl.sum(sizes, 1) + floor", "0.9 * c.PENDING * tl.sum(sizes, 1) + floor", "slope_rows", "error paid"),
    ("elementwise", "fixed += x.to(tl.float64) * shift", "fixed += 0.999 * x.to(tl.float64) * shift", "scale_rows", "constant"),
    ("maxpool", "full_y = q // (c.WO * c.C) + c.TOP", "full_y = q // (c.WO * c.C) + c.TOP + 1", "pool_rows", "rows"),
    ("maxpool", "c.REL * tl.sum(sizes, 1) + floor", "0.9 * c.REL * tl.sum(sizes, 1) + floor", "pool_rows", "error paid"),
    ("route", "+ BEGIN + q % INNER", "+ q % INNER", "part_rows", "rows"),
    ("route", "begin + k < end", "begin + k + 1 < end", "gather_rows", "rows"),
]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(operators())


def found(compiled: Compiled, numerics: str) -> Iterator[Row]:
    return _steps(compiled, numerics, Setting(True, time.time() + 300))


@pytest.mark.parametrize("numerics", ["float64", "tf32x3"])
def test_every_launch_is_what_the_oracle_says(compiled: Compiled, numerics: str) -> None:
    rows = list(found(compiled, numerics))
    assert {row["step"] for row in rows} >= MADE
    assert [row for row in rows if not row["fraction"] <= 1] == []


@pytest.mark.parametrize("module, right, wrong, step, what", WRONG)
def test_a_wrong_kernel_is_found(
    module: str, right: str, wrong: str, step: str, what: str, compiled: Compiled
) -> None:
    with planted(module, right, wrong):
        assert any((row["step"], row["what"]) == (step, what) for row in found(compiled, "float64") if not row["fraction"] <= 1)
