"""What `python -m bench.tuning default` says of a session."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bench.tuning import spearman, verdict
from polytriton.tuning.store import HEADER


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [9, 7, 5, 3]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)  # ties share their mean rank
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def trials(path: Path, times: list[float], bad: int = 0) -> Path:
    """A session's list: the default first; the last `bad` are rejected, however fast."""
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for k, seconds in enumerate(times + [0.01] * bad):
            out.writerow((f"k{k}", "{}", 0, 0, seconds, 0, 0, "ok" if k < len(times) else "unsound: a bound"))
        out.writerow(("k999", "{}", 0, 0, 0.0, 0, 0, "crash: signal 11"))
    return path


@pytest.mark.parametrize(
    "times, speedup, met, words",
    [
        ([1.0] + [0.95] * 59, 1.05, True, ("60 distinct", "5.0 %", "1.050 times", "pass")),
        ([1.0] + [0.95] * 58, 1.05, False, ("59 distinct", "too few", "FAIL")),
        ([1.0] + [0.80] * 79, 1.25, False, ("80 distinct", "25.0 %", "not met", "FAIL")),
        ([1.0] + [0.70] * 9, 1.42, True, ("10 distinct", "1.420 times", "goal 1.3: met", "too few", "pass")),
    ],
)
def test_the_verdict_of_a_session(tmp_path: Path, times: list[float], speedup: float, met: bool, words: tuple[str, ...]) -> None:
    text, found = verdict({"speedup": speedup}, trials(tmp_path / "trials.csv", times, bad=3))
    assert found is met
    assert all(w in text for w in words), text
    assert text.splitlines()[-1].startswith("pass" if met else "FAIL")
