"""The scalars of a second lane join the rows': against exact rationals, and as machine code."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.errors import KernelError
from polytriton.kernels.build import check, compile_all, triton_version
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.header import header, source
from polytriton.kernels.lanes import MERGE
from tests.kernels.steps import blocks, covers, draw, run

pytest.importorskip("triton", reason="Triton is not installed")
KINDS = ("mixed", "integers", "one sign", "cancelling", "subnormal", "huge")


def merged(constant: np.ndarray, error: np.ndarray, more: np.ndarray, charge: np.ndarray, count: int, b: int = 4) -> dict[str, np.ndarray]:
    values = {"constant": constant, "error": error, "lane_constant": more, "lane_error": charge, "count": np.array([count])}
    return run("merge_scalars", {"B": b}, "float64", (blocks(len(constant), b) + 1, 1), values)


@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from((0, 1, 2, 5, 9)), st.sampled_from((1, 4, 16)))
@limits(max_examples=60)
def test_against_rationals(seed: int, kind: str, count: int, b: int) -> None:
    """Never more than both promise together, and hardly less; rows past the count stay; lane 1's begin anew."""
    rng = np.random.default_rng(seed)
    n = count + int(rng.integers(0, 3))
    constant, more = draw(rng, (n,), kind), draw(rng, (n,), kind)
    error, charge = np.abs(draw(rng, (n,), kind)), np.abs(draw(rng, (n,), kind))
    found = merged(constant, error, more, charge, count, b)
    for r in range(count):
        parts = [Fraction(float(x[r])) for x in (constant, more, error, charge)]
        demand, size = parts[0] + parts[1] - parts[2] - parts[3], sum(abs(p) for p in parts)
        assert covers(float(found["constant"][r]), float(found["error"][r]), demand, size)
        assert np.isfinite(found["constant"][r] - found["error"][r]) or kind == "huge"
    for name, before in (("constant", constant), ("error", error), ("lane_constant", more), ("lane_error", charge)):
        assert np.array_equal(found[name][count:], before[count:])
    assert not found["lane_constant"][:count].any() and not found["lane_error"][:count].any()


def test_the_additions_own_rounding_is_paid() -> None:
    """1 + 0.49 units in the last place drops them; so does the error of 1."""
    little = 0.49 * 2.0**-52
    found = merged(np.array([-1.0, -1.0]), np.array([0.0, 1.0]), np.array([-little, 0.0]), np.array([0.0, little]), 2)
    for r, demand in enumerate((-1 - Fraction(little), -2 - Fraction(little))):
        assert Fraction(float(found["constant"][r])) - Fraction(float(found["error"][r])) <= demand


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", range(4))
def test_nothing_finite_comes_of_a_broken_branch(where: int, bad: float) -> None:
    values = [np.zeros(2) for _ in range(4)]
    values[where][0] = bad
    found = merged(*values, 2)  # type: ignore[call-arg]
    with np.errstate(invalid="ignore"):
        bound = found["constant"] - found["error"]
    assert not np.isfinite(bound[0]) and np.isfinite(bound[1])


def test_text_and_header_can_be_read() -> None:
    emitter = Emitter()
    kernel = emitter.kernel("merge_scalars", MERGE.constants, ARITHMETICS["float32"], MERGE, step="branches of query %y")
    assert kernel.types == ("*fp64",) * 4 + ("*i64",) and kernel.parameters[-1] == "count_ptr"
    text = header(kernel, [use.step for use in emitter.uses[kernel.name]], ["float32"]) + source(kernel)
    why = "target >= sum M x + (constant + lane_constant) - (error + lane_error)"
    assert all(line in text for line in ("branches of query %y", "2 terms a row", why, "def pay("))
    assert f"constants B={MERGE.constants['B']}" in text


@pytest.mark.parametrize("target", [pytest.param("cuda:80", marks=pytest.mark.slow), "cuda:90"])
def test_compiles_without_a_spill(target: str, tmp_path: Path) -> None:
    try:
        triton_version()
    except KernelError as error:
        pytest.skip(error.message)
    kernel = make_kernel("merge_scalars", tuple(MERGE.constants.items()), "float64", MERGE.warps, MERGE.stages)
    reports = [m.report for m in compile_all([kernel], target, cache=tmp_path, jobs=1)]
    check(reports, [kernel])
    assert reports[0].spills == 0 and reports[0].registers <= 64
