"""Sessions and what their winners show again: counted, resumed, filed; and the default that is slower than it need be."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

from bench import believe, slowed
from bench.core.table import Row
from polytriton.api import Verifier
from polytriton.tuning import work, worker

ABOUT = {"budget": "60s", "trials": 5, "rounds": 31, "default_seconds": 0.01, "seconds": 9.0, "load": 3.0}


def told(network: str, k: int, slower: float, told: float | None, again: float = 1.2) -> Row:
    found = {} if told is None else {
        "told": told, "low": told - 0.1, "high": told + 0.1, "again": again, "again_low": again, "again_high": again,
        "over": told / again - 1,
    }  # fmt: skip
    return {"network": network, "seed": k, "slowed": slower, **ABOUT, **found}


def test_what_is_told_too_high_fails() -> None:
    assert believe.summary([told("a", 0, 0, None)]) == ("1 sessions, 0 winners; nothing to believe", True)
    assert believe.summary([told("a", 0, 0, 1.2), told("a", 1, 0, 1.0)]) == (
        "2 sessions, 2 winners; told at most 0.0 % above the re-timing: pass", True
    )  # fmt: skip
    said, met = believe.summary([told("a", 0, 0, 1.2), told("a", 1, 0, 1.25)])
    assert not met and said.endswith("4.2 % above the re-timing: FAIL")


def test_the_command_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def session(network: Path, seed: int, settings: believe.BelieveSettings) -> Row:
        if len(asked) == 3:
            asked.append("stopped")
            raise KeyboardInterrupt
        asked.append((network.stem, seed, settings.slowed))
        return told(network.stem, seed, settings.slowed, 1.21 if settings.slowed else None)

    monkeypatch.setattr(believe, "session", session)
    for name in "abc":
        (tmp_path / f"{name}.poly").mkdir()
    line = [*(str(tmp_path / f"{n}.poly") for n in "abc"), "--sessions", "5", "--slowed", "0.2", "--out", str(tmp_path / "out")]
    assert believe.main(line) == 130
    assert believe.main(line) == 0
    assert asked == [("a", 0, 0.0), ("b", 1, 0.2), ("c", 2, 0.0), "stopped", ("a", 3, 0.2), ("b", 4, 0.0)]
    assert capsys.readouterr().out.splitlines()[-1] == "5 sessions, 2 winners; told at most 0.8 % above the re-timing: pass"
    with (tmp_path / "out" / "believe.csv").open() as f:
        assert [r["seed"] for r in csv.DictReader(f)] == list("01234")
    page = (tmp_path / "out" / "believe.html").read_text()
    assert "5 sessions, 2 winners" in page and page.count("<td") == 5 * 11 and "1.110 to 1.310" in page


def test_a_slowed_default_alone_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        def __init__(self, *changes: str) -> None:
            self.changes = lambda: changes

    def spend(*_: object) -> None:
        ended = time.process_time() + 0.01
        while time.process_time() < ended:
            pass

    def verifier(*changes: str) -> Verifier:
        return type("V", (), {"options": type("O", (), {"config": Config(*changes)})})  # type: ignore[return-value]

    monkeypatch.setattr("sys.argv", ["far.py", "3"])
    monkeypatch.setattr(work, "decide", spend)
    monkeypatch.setattr(worker, "handler", lambda: bytes)
    slowed.handler()
    for changes, least, most in ((("block",), 0.01, 0.035), ((), 0.04, 10.0)):
        taken = []
        for _ in range(5):
            began = time.process_time()
            work.decide(verifier(*changes), None, "verify")  # type: ignore[arg-type]
            taken.append(time.process_time() - began)
        assert least <= min(taken) <= most


def test_a_session_by_the_command_runs_the_slowed_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from polytriton import cli
    from polytriton.tuning import session

    monkeypatch.setattr(session, "TrialProcess", session.TrialProcess)
    monkeypatch.setattr(cli, "main", lambda line: (line, session.TrialProcess()))
    monkeypatch.setattr("sys.argv", ["slowed.py", "0.2", "tune", "a.poly"])
    line, worker = slowed.main()  # type: ignore[misc]
    assert line == ["tune", "a.poly"] and worker._command[-2:] == [slowed.NAME, "0.2"]
