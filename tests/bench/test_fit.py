"""The rule that names a change: rare false alarms, real changes found; exponents."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from bench.report.fit import Change, compare_pairs, power, relative_error, tail, threshold


def measured(times: np.ndarray) -> tuple[float, float, int]:
    return statistics.median(times.tolist()), float(times.max() - times.min()), len(times)


def judged(a: np.ndarray, b: np.ndarray, floor: float = 0.0) -> str:
    before, after = measured(a), measured(b)
    return Change(before[0], after[0], threshold(before, after, floor)).verdict


@pytest.mark.parametrize("runs", [2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("noise", ["normal", "exponential"])
def test_equal_runs_are_called_equal(runs: int, noise: str) -> None:
    rng = np.random.default_rng(runs)
    draw = rng.standard_normal if noise == "normal" else rng.standard_exponential
    pairs = 1 + 0.03 * draw((4000, 2, runs))
    wrong = sum(judged(a, b) != "same" for a, b in pairs)
    assert wrong <= 4000 * 0.003


@pytest.mark.parametrize("factor, verdict", [(1.3, "slower"), (1 / 1.3, "faster")])
def test_a_change_beyond_the_spread_is_found(factor: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    pairs = 1 + 0.02 * rng.standard_normal((500, 2, 5))
    found = [judged(a, factor * b, 0.05) for a, b in pairs]
    assert found.count(verdict) >= 480 and set(found) <= {verdict, "same"}


def test_the_floor_holds_where_there_is_no_spread() -> None:
    assert threshold((1.0, 0.0, 5), (1.0, 0.0, 5), 0.05) == 0.05
    assert Change(1.0, 1.04, 0.05).verdict == "same" and Change(1.0, 1.06, 0.05).verdict == "slower"
    assert Change(1.0, 0.96, 0.05).verdict == "same" and Change(1.0, 0.94, 0.05).verdict == "faster"


def test_one_run_is_never_judged() -> None:
    assert relative_error(1.0, 0.0, 1) == math.inf
    assert Change(1.0, 100.0, threshold((1.0, 0.0, 1), (100.0, 1.0, 5))).verdict == "one run"


def test_paired_images_share_what_makes_them_slow() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(300):
        each = np.exp(rng.normal(0, 2, 40))  # images differ by far more than runs do
        before, after = (each * (1 + 0.03 * rng.standard_normal(40)) for _ in range(2))
        alarms += compare_pairs(before.tolist(), after.tolist(), 0.0).verdict != "same"
        assert compare_pairs(before.tolist(), (1.2 * after).tolist()).verdict == "slower"
    assert alarms <= 1
    assert compare_pairs([1.0] * 3, [9.0] * 3).verdict == "one run"


def test_a_power_is_found_with_its_error() -> None:
    exact = power([(x, 3 * x**2.5) for x in (1, 2, 4, 8)])
    assert exact is not None
    assert exact.exponent == pytest.approx(2.5) and exact.value(16) == pytest.approx(3 * 16**2.5) and exact.error < 1e-12
    rng = np.random.default_rng(2)
    off = []
    for _ in range(400):
        noisy = power([(x, x**2 * math.exp(0.1 * rng.standard_normal())) for x in (1, 2, 4, 8, 16, 32)])
        assert noisy is not None
        off.append((noisy.exponent - 2) / noisy.error)
    assert 0.6 < statistics.median(map(abs, off)) < 0.9  # 0.741 for four degrees of freedom
    assert power([(2, 1.0), (2, 3.0)]) is None and power([]) is None


def test_the_tail_is_the_larger_half() -> None:
    points = [(float(x), 1.0) for x in (5, 1, 4, 2, 3, 6, 7, 8)]
    assert [x for x, _ in tail(points)] == [5, 6, 7, 8]
    assert len(tail(points[:4])) == 3
