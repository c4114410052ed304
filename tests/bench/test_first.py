"""What a first answer costs, as `bench.first` counts it."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from bench import first
from bench.core.machine import ROOT


def test_sides_are_asked_in_turns_and_medians_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, asked = tmp_path / "old", list[str]()
    (old / "polytriton").mkdir(parents=True)
    (old / "polytriton" / "__init__.py").touch()

    def run_once(folder: Path, code: str, files: list[str]) -> tuple[float, float, int]:
        asked.append("open" if code == first.OPEN else "before" if folder == old else "now")
        return float(len(asked)), 10.0, 230

    monkeypatch.setattr(first, "run_once", run_once)
    monkeypatch.setattr(
        sys, "argv", ["first", "--before", str(old), "--artifact", "a.poly", "--rounds", "3", "--csv", str(tmp_path / "a.csv")]
    )
    assert first.main() == 0
    assert asked == ["before", "now", "open", "open", "now", "before", "before", "now", "open"]
    with (tmp_path / "a.csv").open() as file:
        rows = [(r["asked"], r["side"], r["kernels"], r["seconds"], r["process"], r["runs"]) for r in csv.DictReader(file)]
    told = [("verify", "before", "", "6.0"), ("verify", "now", "", "5.0"), ("open", "now", "230", "4.0")]
    assert rows == [(*row, "10.0", "3") for row in told]


def test_a_process_knows_one_checkout(tmp_path: Path) -> None:
    (tmp_path / "polytriton.py").write_text("held = 7\n")
    code = "import json, sys, polytriton; print('noise'); print(json.dumps([0.5, 1.5, polytriton.held + len(sys.argv)]))"
    assert first.run_once(tmp_path, code, ["a", "b"]) == (0.5, 1.5, 10)


@pytest.mark.parametrize("code", ["raise SystemExit('no such file')", "import sys; print('no such file', file=sys.stderr); sys.exit(3)"])
def test_a_process_that_fails_is_no_measurement(code: str) -> None:
    with pytest.raises(SystemExit, match="no such file"):
        first.run_once(ROOT, code, [])


def test_a_folder_without_a_checkout_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["first", "--before", str(tmp_path)])
    with pytest.raises(SystemExit):
        first.main()
    assert "is no checkout of polytriton" in capsys.readouterr().err
