"""One query of a small network is timed, and what of it is compiled."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bench import small
from polytriton.runtime.cpu import loops


def test_a_query_is_watched_and_let_go_of(tmp_path: Path) -> None:
    out = tmp_path / "small.csv"
    assert small.main(["--queries", "3", "--only", "chain-2x64", "--csv", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["candidates"] for row in rows] == ["all", "input"]
    for row in rows:
        least, inside = float(row["least_ms"]), float(row["inside_ms"])
        assert 0 <= inside < least <= float(row["median_ms"]) and float(row["beside_ms"]) == pytest.approx(least - inside)
        assert (int(row["calls"]) > 3 and inside > 0) == loops.AVAILABLE


def test_nobody_watches_afterwards() -> None:
    loops.prepare()
    before = [one._found for one in loops._known]
    with pytest.raises(ZeroDivisionError), loops.watch_calls():
        raise ZeroDivisionError
    assert all(one._found is found for one, found in zip(loops._known, before, strict=True))


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--only", "nothing"], ["--queries", "1"]):
        with pytest.raises(SystemExit) as error:
            small.main(wrong)
        assert error.value.code == 2
    assert "--queries at least 2" in capsys.readouterr().err
