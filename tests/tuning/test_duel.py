"""A winner is one only where fresh times, in turns, say so beyond their own noise."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import msgspec
import pytest

from polytriton.tuning import session as sessions
from polytriton.tuning.duel import LOSSES, MOST, NARROW, ROUNDS, SURE, Duel, Pair, duel, is_lost
from polytriton.tuning.trials import TrialFailed
from tests.tuning.test_session import eager, tune

EVEN = (1.0,) * ROUNDS


def test_rounds_go_on_until_the_ratio_is_known_or_there_are_too_many() -> None:
    assert duel(lambda: (1.0, 0.9)) == Duel(EVEN, (0.9,) * ROUNDS)
    noisy = itertools.cycle([0.5, 0.9, 0.7])
    fought = duel(lambda: (1.0, next(noisy)))
    assert len(fought.default) == MOST and not fought.narrow
    calmer = itertools.chain([0.5] * 3, itertools.repeat(0.9))
    assert ROUNDS < len(duel(lambda: (1.0, next(calmer))).ratios) < MOST


@pytest.mark.parametrize("rounds", [1, 2, 5, ROUNDS, 12, 20, MOST])
def test_an_interval_holds_the_middle_as_often_as_it_says(rounds: int) -> None:
    """Counted over all ways in which rounds may lie on either side of the true middle."""
    ratios = tuple(1.0 + k for k in range(rounds))
    low, high = Duel((1.0,) * rounds, ratios).interval
    k = int(low) - 1
    assert high == rounds - k, "as many are left out on either side"

    def outside(k: int) -> float:
        return 2 * sum(math.comb(rounds, j) for j in range(k + 1)) / 2**rounds

    assert k == 0 or outside(k) <= 1 - SURE + 1e-12
    assert rounds < 3 or k + 1 >= (rounds + 1) // 2 or outside(k + 1) > 1 - SURE, "no wider than it must be"


def test_what_is_told_where_rounds_never_agree_is_the_lesser_ratio() -> None:
    fought = Duel((1.0,) * MOST, tuple(0.5 + 0.01 * k for k in range(MOST)))
    assert not fought.narrow and fought.speedup == 1 / fought.interval[1] < 1 / 0.65
    steady = Duel(EVEN, (0.8,) * ROUNDS)
    assert steady.narrow and steady.speedup == 1 / 0.8 and NARROW < 0.05


def test_a_race_ends_early_for_what_is_slower_and_hardly_ever_for_what_is_faster() -> None:
    assert is_lost([1.3, 1.4]) and not is_lost([1.3]) and not is_lost([1.3, 1.2])
    assert is_lost([1.01] * LOSSES) and not is_lost([1.01] * (LOSSES - 1)) and not is_lost([1.01] * (LOSSES - 1) + [0.99])
    rng = random.Random(1)
    drawn = [[rng.choice([0.95, 1.01]) for _ in range(LOSSES)] for _ in range(4000)]  # the least that is still not slower
    assert sum(any(is_lost(r[: k + 1]) for k in range(LOSSES)) for r in drawn) / 4000 < 1.3 / 2**LOSSES


@pytest.mark.parametrize(
    "challenger, won",
    [
        ((0.9,) * ROUNDS, True),
        ((0.995,) * ROUNDS, False),  # no gain worth a configuration
        ((1.0,) * ROUNDS, False),
        ((0.5,) * (ROUNDS - 1) + (3.0,), True),  # a busy machine in one round
        ((0.5,) * (ROUNDS - 2) + (3.0,) * 2, False),
        ((0.98, 0.7, 0.98, 0.75, 0.99, 0.72, 0.97, 0.98, 0.7, 0.99, 0.98), False),  # it wins every round, and hardly more is sure
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
        return tuple(speed * rng.uniform(1, 1.25) for _ in range(MOST))

    def fight(speed: float) -> Duel:
        rounds = iter(zip(drawn(1), drawn(speed), strict=True))
        return duel(lambda: next(rounds))

    assert sum(fight(1).won for _ in range(2000)) < 0.02 * 2000
    won = [f.speedup for f in (fight(0.6) for _ in range(200)) if f.won]
    assert len(won) > 0.9 * 200
    assert sum(w > 1.03 / 0.6 for w in won) < 0.03 * 200, "what is told is hardly ever above the truth by 3 %"


def test_ctrl_c_ends_a_duel_with_whole_rounds() -> None:
    left = iter(range(5))

    def pair() -> Pair:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 1.0, 1.0

    assert duel(pair) == Duel((1.0,) * 5, (1.0,) * 5)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_lucky_trial_is_no_winner(poly: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool) -> None:
    """Its trial looked a hundred times faster; timed again it is as fast as the default, or does not answer at all."""
    from polytriton.commands.tune import _report

    ask, trials = eager(sessions.Session._ask), []

    def asked(self: sessions.Session, point: dict[str, object], **how: object) -> object:
        if how.get("check", True):
            answer = ask(self, point, **how)  # type: ignore[arg-type]
            trials.append(point)
            return msgspec.structs.replace(answer, times=[1.0 if not point else 0.01] * 2, base=[1.0] * 2)
        if fails and point:
            raise TrialFailed("crash: signal 11")
        return msgspec.structs.replace(ask(self, {}, **how), times=[1.0], base=[1.0])  # type: ignore[arg-type]

    monkeypatch.setattr(sessions.Session, "_ask", asked)
    monkeypatch.setattr(sessions.Session, "_problem", lambda self, answer, fewer=False: "")
    outcome = tune(poly, most=3)
    assert len(trials) > 1 and outcome.duel is not None and not outcome.duel.won
    assert outcome.entry.config == {} and outcome.entry.seconds == outcome.entry.default_seconds
    _report(poly, outcome, False)
    said = capsys.readouterr().out
    assert "nothing beats the default beyond noise" in said and "x (" not in said
