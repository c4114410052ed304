"""Two checkouts asked in turns: toy packages that spend what they are told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.turns import Checkout, in_turns

PACKAGE = """
import time
from types import SimpleNamespace

class Net:
    asked = 0
    def verify_property(self, spec, timeout):
        Net.asked += 1
        until = time.process_time() + ({first} if Net.asked == 1 else {seconds})
        while time.process_time() < until:
            pass
        return SimpleNamespace(verdict="{verdict}")

def compile(path, semantics):
    return Net()
"""


@contextmanager
def checkout(folder: Path, seconds: float, verdict: str = "unsat", first: float = 0.0) -> Iterator[Checkout]:
    made = folder / "polytriton"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text(PACKAGE.format(seconds=seconds, verdict=verdict, first=first))
    side = Checkout(folder)
    try:
        yield side
    finally:
        side.end()
    assert side.process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "note"), [(0.0, 0.06, "slower"), (0.06, 0.0, ""), (0.1, 0.105, ""), (0.01, 0.02, "")])
def test_slower_is_more_than_a_tenth_and_more_than_20_ms(tmp_path: Path, before: float, after: float, note: str) -> None:
    question = {"net": "net.onnx", "spec": "a.vnnlib", "semantics": "real"}
    with checkout(tmp_path / "a", before) as old, checkout(tmp_path / "b", after, first=0.3) as new:
        row = in_turns([old, new], question, rounds=4)
    assert row["note"] == note and row["runs"] == 3 and row["verdict"] == "unsat"
    assert row["before"] >= before and row["after"] >= after and row["first_after"] >= 0.3  # which is no part of the medians
    assert row["slower"] == pytest.approx(row["after"] - row["before"]) and row["after"] < 0.3


def test_another_verdict_is_told(tmp_path: Path) -> None:
    with checkout(tmp_path / "a", 0.0, "sat") as old, checkout(tmp_path / "b", 0.0) as new:
        row = in_turns([old, new], {"net": "n", "spec": "s", "semantics": "real"}, rounds=1)
    assert row["note"] == "was sat" and row["verdict"] == "unsat"
