"""The kept corpus again, and a short search: no reader does with foreign bytes what it may not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polytriton.heap import KEPT
from tests.fuzz import engine
from tests.fuzz.targets import CORPUS, TARGETS, Finding, kept, outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory and time are limited as Linux does it")


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    target, inputs = TARGETS[name], kept(name)
    assert inputs
    told = {engine.kind(outcome(target, data)) for data in [*target.seeds(), *inputs]}
    assert "read" in told and len(told) > 2


def test_the_corpus_stays_small() -> None:
    assert sum(p.stat().st_size for p in CORPUS.rglob("*") if p.is_file()) < 300_000


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name, executions", [(n, {"compile": 150, "artifact": 150, "instances": 200}.get(n, 800)) for n in TARGETS])
def test_a_short_search_finds_nothing(name: str, executions: int, tmp_path: Path) -> None:
    tally = engine.plain(TARGETS[name], 60.0, seed=executions, findings=tmp_path, executions=executions)
    assert not tally.findings
    assert tally.executions == executions and len(tally.outcomes) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_longer_search_finds_nothing(name: str, tmp_path: Path) -> None:
    """Longer still: `make fuzz`."""
    assert not engine.plain(TARGETS[name], 2.0, seed=7, findings=tmp_path).findings


# ---- the harness itself -----------------------------------------------------------------------------------------


def _target(act) -> engine.Target:  # type: ignore[no-untyped-def]
    return engine.Target("trial", lambda data: act(), lambda: [b"x"], lambda data, rng: data, seconds=0.3, memory=1 << 28)


def _spin() -> None:
    while True:
        pass


def _hoard() -> None:
    bytearray(KEPT + (1 << 29))  # more than freed memory that the C library may still hold


def _trip() -> None:
    raise KeyError("x")


@pytest.mark.parametrize("act, told", [(_spin, "CPU time"), (_hoard, "MemoryError"), (_trip, "KeyError")])
def test_what_may_not_happen_is_found(act, told: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Finding, match=told):
        outcome(_target(act), b"x")
    tally = engine.plain(_target(act), 5.0, seed=0, findings=tmp_path, executions=1)
    assert len(tally.findings) == 1 and len(list(tmp_path.iterdir())) == 1
