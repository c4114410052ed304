"""A winner is one only where fresh times, in turns, say so beyond their own noise."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from polytriton.tuning import session as sessions
from polytriton.tuning.duel import LOST, ROUNDS, Duel, duel
from polytriton.tuning.trials import TrialFailed
from tests.tuning.test_session import tune

EVEN = (1.0,) * ROUNDS


def test_sides_take_turns_and_each_begins_as_often() -> None:
    seen: list[str] = []
    clock = itertools.count(1)
    fought = duel(lambda: seen.append("default") or next(clock), lambda: seen.append("other") or next(clock))  # type: ignore[func-returns-value]
    assert ROUNDS >= 5 and len(seen) == 2 * ROUNDS
    assert all({a, b} == {"default", "other"} for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert abs(seen[::2].count("default") - seen[::2].count("other")) <= 1
    assert sorted((*fought.default, *fought.challenger)) == list(range(1, 2 * ROUNDS + 1))


@pytest.mark.parametrize(
    "challenger, won",
    [
        ((0.9,) * ROUNDS, True),
        ((0.995,) * ROUNDS, False),  # no gain worth a configuration
        ((1.0,) * ROUNDS, False),
        ((0.5,) * (ROUNDS - LOST) + (3.0,) * LOST, True),  # a busy machine in one round
        ((0.5,) * (ROUNDS - LOST - 1) + (3.0,) * (LOST + 1), False),
        ((0.98, 0.7, 0.98, 0.75, 0.99, 0.72, 0.97), False),  # it wins every round by less than the rounds differ
        ((0.9,) * (ROUNDS - 1), False),  # interrupted
        ((), False),
    ],
)
def test_who_wins(challenger: tuple[float, ...], won: bool) -> None:
    assert Duel(EVEN[: len(challenger)], challenger).won is won


def test_the_same_configuration_hardly_ever_beats_itself() -> None:
    """A quarter of noise on both sides, as on a busy machine; a best of many trials would show a ratio every time."""
    rng = random.Random(0)

    def drawn(speed: float) -> tuple[float, ...]:
        return tuple(speed * rng.uniform(1, 1.25) for _ in range(ROUNDS))

    assert sum(Duel(drawn(1), drawn(1)).won for _ in range(2000)) < 0.02 * 2000
    assert sum(Duel(drawn(1), drawn(0.6)).won for _ in range(200)) > 0.9 * 200


def test_ctrl_c_ends_a_duel_with_whole_rounds() -> None:
    left = iter(range(5))

    def side() -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 1.0

    assert duel(side, side) == Duel((1.0, 1.0), (1.0, 1.0))


@pytest.mark.parametrize("fails", [False, True])
def test_a_lucky_trial_is_no_winner(poly: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool) -> None:
    """Its trial looked a hundred times faster; timed again it is as fast as the default, or does not answer at all."""
    from polytriton.commands.tune import _report

    ask, trials = sessions.Session._ask, []

    def asked(self: sessions.Session, point: dict[str, object], **how: object) -> object:
        if how.get("check", True):
            answer = ask(self, point, **how)  # type: ignore[arg-type]
            trials.append(point)
            return type(answer)(**{**{f: getattr(answer, f) for f in answer.__struct_fields__}, "times": [1.0 if not point else 0.01] * 2})
        if fails and point:
            raise TrialFailed("crash: signal 11")
        return ask(self, {}, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions.Session, "_ask", asked)
    monkeypatch.setattr(sessions.Session, "_problem", lambda self, answer, fewer=False: "")
    outcome = tune(poly, most=3)
    assert len(trials) > 1 and outcome.duel is not None and not outcome.duel.won
    assert outcome.entry.config == {} and outcome.entry.seconds == outcome.entry.default_seconds
    _report(poly, outcome, False)
    said = capsys.readouterr().out
    assert "no winner beyond noise" in said and "x:" not in said
