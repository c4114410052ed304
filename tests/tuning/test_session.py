"""Sessions: what wins is sound, and nothing that goes wrong in a trial costs more than the trial."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton.api import Verifier, load
from polytriton.artifact import read_artifact
from polytriton.errors import UsageError
from polytriton.runtime.config import DEFAULT, Config
from polytriton.tuned import config_here, plan_key
from polytriton.tuning import session as sessions
from polytriton.tuning import work
from polytriton.tuning.duel import ROUNDS, Duel
from polytriton.tuning.evidence import Reference, gather_evidence
from polytriton.tuning.session import Outcome, SessionSettings
from polytriton.tuning.sessions import tune_device
from polytriton.tuning.store import TRIALS, recall
from polytriton.tuning.trials import TrialProcess

slow, TERM = pytest.mark.slow, "rounding term"
OPTIONS = {"device": "cpu", "semantics": "float32", "dtype": "auto", "memory": 1 << 30}


def tune(poly: Path, kind: str = "", most: int = 4, **how: object) -> Outcome:
    held = read_artifact(poly)
    verifier = Verifier.from_artifact(held, **OPTIONS, config=DEFAULT)
    q = work.pack(work.default_work(verifier, 0))
    settings = SessionSettings(OPTIONS, 1, 0, 60.0, most, 2)
    worker = TrialProcess("tests.tuning.planted", [kind]) if kind else None
    return tune_device(poly, held, verifier, q, settings, poly.with_suffix(".tune"), worker=worker, **how)  # type: ignore[arg-type]


def verdicts(outcome: Outcome) -> list[str]:
    return [t.verdict for t in outcome.trials if t.point]


@pytest.mark.parametrize(
    "kind, word",
    [("no term", TERM), *(pytest.param(k, w, marks=slow) for k, w in (("half", TERM), ("convolutions", TERM), ("shifted", "point")))],
)
def test_a_configuration_that_charges_too_little_never_wins(
    poly: Path, monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    """However fast it is: here every trial looks faster than the default."""
    monkeypatch.setattr(sessions.Session, "_ask", eager(sessions.Session._ask))
    outcome = tune(poly, kind, most=3)
    assert all(v.startswith("unsound") and word in v for v in verdicts(outcome)), verdicts(outcome)
    assert len(verdicts(outcome)) == 2
    assert outcome.entry.config == {}
    assert load(poly).options.config == DEFAULT


def eager(ask: Any) -> Any:
    """Every trial is checked, whatever its time."""

    def asked(self, point, **how):  # type: ignore[no-untyped-def]
        self.state.best, held = 0.0, self.state.best
        try:
            return ask(self, point, **how)
        finally:
            self.state.best = held

    return asked


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, word",
    [
        ("crash", "killed by SIGSEGV"),
        ("hang", "timeout"),
        ("exit", "code 7"),
        ("fail", "a launch failed"),
    ],
)
def test_what_goes_wrong_costs_one_trial(poly: Path, monkeypatch: pytest.MonkeyPatch, kind: str, word: str) -> None:
    monkeypatch.setattr(sessions, "LEAST", 2.0)
    monkeypatch.setattr(sessions, "SLOW", 1.0)
    outcome = tune(poly, kind, most=3)
    assert len(verdicts(outcome)) == 2
    assert all(word in v for v in verdicts(outcome)), verdicts(outcome)
    assert outcome.entry.config == {}
    assert load(poly).options.config == DEFAULT


@pytest.mark.slow
def test_a_slow_default_is_found(poly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from polytriton.commands.tune import _report

    outcome = tune(poly, "slow default", most=3)
    assert outcome.duel is not None and outcome.duel.won and outcome.entry.config
    assert outcome.entry.default_seconds > 0.05 > outcome.entry.seconds
    assert outcome.entry.default_seconds / outcome.entry.seconds == pytest.approx(outcome.duel.speedup)
    _report(poly, outcome, False)
    assert "rounds in turns): 0." in capsys.readouterr().out


@slow
def test_a_session_in_which_nothing_gains_ends_early(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 2)
    monkeypatch.setattr(sessions, "GAIN", 1e-9)
    outcome = tune(poly, most=0)
    assert outcome.early and len(outcome.trials) == 3
    assert not tune(poly, most=2, overwrite=True).early, "who says how many trials gets as many"


@slow
def test_a_winner_travels_in_the_artifact_and_to_another_of_the_same_plan(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.Session, "_again", lambda self, best: Duel((2.0,) * ROUNDS, (1.0,) * ROUNDS))
    monkeypatch.setattr(sessions.Session, "_best", lambda self: self.folder.trials[-1])
    outcome = tune(poly, most=3)
    assert outcome.entry.config
    found = load(poly)
    assert found.options.config == Config.of(outcome.entry.config) == outcome.config
    x = np.full((1, found.inputs), 0.5)
    plain = Verifier(found.compiled, replace(found.options, config=DEFAULT), found.imported)
    assert np.allclose(found.bounds(x - 0.01, x + 0.01, effort="quick").lo, plain.bounds(x - 0.01, x + 0.01).lo, atol=5e-3)
    kept = recall(outcome.entry.place)
    assert kept == outcome.entry
    assert read_artifact(found.save(poly.with_name("again.poly"))).tuned == read_artifact(poly).tuned
    other = tune(poly.with_name("again.poly"), most=2)
    assert other.trials[1].point == outcome.best  # what was found for the plan is tried first


@pytest.mark.slow
def test_an_entry_of_another_machine_or_version_is_not_used(poly: Path) -> None:
    entry = tune(poly, most=1).entry
    held = read_artifact(poly)
    assert held.tuned is not None
    assert entry.plan == plan_key(held.compiled)
    for changed in ({"device": "cpu: another"}, {"versions": {**entry.versions, "torch": "0"}}, {"plan": "0"}):
        other = replace_struct(entry, config={"least": 8}, **changed)
        assert config_here(replace_struct(held.tuned, entries=(other,)), held.compiled, "cpu") == DEFAULT
    mine = replace_struct(entry, config={"least": 8})
    assert config_here(replace_struct(held.tuned, entries=(mine,)), held.compiled, "cpu") == Config(least=8)


def replace_struct(made, **changes):  # type: ignore[no-untyped-def]
    import msgspec

    return msgspec.structs.replace(made, **changes)


@slow
def test_a_resumed_session_repeats_nothing_and_refuses_other_settings(poly: Path) -> None:
    tune(poly, most=3)
    rows = lines(poly)
    with pytest.raises(UsageError, match="holds a session already"):
        tune(poly)
    outcome = tune(poly, most=5, resume=True)
    after = lines(poly)
    assert after[: len(rows)] == rows
    assert len(after) == 1 + 5
    assert len({row[0] for row in after}) == len(after)
    assert len(outcome.trials) == 5
    with open(poly.with_suffix(".tune") / TRIALS, "ab") as file:
        file.write(b"cut off in the mid")
    assert tune(poly, most=5, resume=True).trials == outcome.trials
    other = read_artifact(poly)
    changed = replace(other, imported=replace(other.imported, model=other.imported.model + b" "))
    verifier = Verifier.from_artifact(other, **OPTIONS)
    q, settings = work.pack(work.default_work(verifier, 0)), SessionSettings(OPTIONS, 1, 0, 60.0, 5, 2)
    with pytest.raises(UsageError, match="weights differ"):
        tune_device(poly, changed, verifier, q, settings, poly.with_suffix(".tune"), resume=True)


def lines(poly: Path) -> list[list[str]]:
    with open(poly.with_suffix(".tune") / TRIALS, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = sessions.Session._try

    def interrupted(self: sessions.Session, point: dict[str, object]) -> None:
        if len(self.folder.trials) == 3:
            raise KeyboardInterrupt
        trial(self, point)

    monkeypatch.setattr(sessions.Session, "_try", interrupted)
    outcome = tune(poly, most=9)
    assert outcome.interrupted
    assert len(outcome.trials) == 3
    assert read_artifact(poly).tuned is not None


@pytest.mark.parametrize(
    "config",
    [{}, {"block": 1, "least": 4}, {"leave": 0.5}, {"counts": 2, "taps": 1 << 15}, {"dtype": "float64"}, {"short": 0, "narrow": 0}],
)
def test_sound_configurations_pass_the_check(poly: Path, config: dict[str, object]) -> None:
    held = read_artifact(poly)
    verifier = Verifier.from_artifact(held, **OPTIONS, config=DEFAULT)
    q = work.default_work(verifier, 3)
    reference = Reference(verifier, q, 3)
    other = Verifier.from_artifact(held, **OPTIONS, config=Config.of(config))
    assert reference.problem(gather_evidence(other, q, 3, work.run(other, q))) == ""
