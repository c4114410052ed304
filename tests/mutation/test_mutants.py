"""The mutation check stays alive: every fault can still be planted, and a sample of them is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.__main__ import RESULTS, ROOT, Found, applies, copy, first_failure, read_results, try_mutant, write_results
from tests.mutation.mutants import BACKEND, CONSTANTS, MUTANTS

SAMPLE = (
    "halve gamma of a product",
    "t without the ReLU's product",
    "mu rounded to nearest",
    "the padding mask is skipped",
    "a window one cell short",
    "kernels: an infinite bound stands",
)


def test_every_fault_can_be_planted() -> None:
    stale = [m.name for m in MUTANTS if not applies(m)]
    assert not stale, "the code has moved on: adapt these mutants"
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 40
    assert all(m.tests and m.old != m.new for m in MUTANTS)
    assert {"kernels", "runtime", "passes"} <= {m.file.split("/")[0] for m in MUTANTS}


def test_results_are_those_of_the_list_and_none_survived() -> None:
    found = read_results(RESULTS)
    assert set(found) == {m.name for m in MUTANTS}, "run python -m tests.mutation"
    assert {r.verdict for r in found.values()} <= {"caught", "argued"}
    assert all(r.by for r in found.values())


def test_the_tests_of_the_results_are_there() -> None:
    """Under the name that noticed the fault: a test that moved, or was split into a quick and a slow one, is looked after here too."""
    for result in read_results(RESULTS).values():
        file, _, test = result.by.partition("::")
        if result.verdict == "caught" and file.startswith("tests/"):
            text = (ROOT / file).read_text()
            name = test.partition("[")[0]
            assert not name or f"def {name}(" in text or f"\n{name} = " in text, result


def test_results_are_read_as_written(tmp_path: Path) -> None:
    some = {m.name: Found(m.name, m.file, "caught", "a test, with a comma", 2.0) for m in MUTANTS[:3]}
    write_results(tmp_path / "results.csv", some)
    assert read_results(tmp_path / "results.csv") == some


@pytest.mark.slow
def test_a_sample_is_noticed() -> None:
    chosen = [m for m in MUTANTS if m.name in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    with copy() as folder:
        for mutant in chosen:
            assert try_mutant(mutant, folder).verdict == "caught", mutant.name
            assert (folder / mutant.path).read_bytes() == (ROOT / mutant.path).read_bytes()


@pytest.mark.slow
def test_a_change_that_changes_nothing_survives() -> None:
    """Else every mutant would be caught by a suite that is broken in the copy."""
    with copy() as folder:
        path = folder / "polytriton" / "runtime" / "soundness.py"  # which no loop holds: nothing is compiled anew
        path.write_text(path.read_text() + "\nEIGHT = 8\n")
        assert first_failure(folder, [CONSTANTS, BACKEND]) == ""
