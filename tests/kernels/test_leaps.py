"""Refinements in one stretch: bit for bit what is found from wait to wait, whatever the batch turns out to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu import habits, leaps
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.habits import WINDOW, Habit, Need, expect
from polytriton.runtime.gpu.leaps import Leap
from polytriton.runtime.results import Stopped
from polytriton.runtime.trace import Trace
from tests.kernels.fake_cuda import FakeCuda
from tests.kernels.plays import KINDS, NETS, asked, balls, engine, forgetful, having_played, player
from tests.kernels.sanitized import Device, bits
from tests.kernels.test_device_runs import Waits, asking, small_net
from tests.kernels.test_neurons import EARLY, LATE, NONE, alone, equal, settling

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
Ball = tuple[torch.Tensor, torch.Tensor]


def leaping(ours: Engine) -> Engine:
    """Without graphs, so that the interpreter does as a GPU would."""
    assert ours.kernels is not None
    ours.kernels.leaps = True
    return ours


def leap_of(ours: Engine) -> Leap | None:
    """The one for batches of any size, where there is one."""
    found = [part for part in player(ours).parts.values() if isinstance(part, Leap)]
    assert len(found) < 2
    return found[0] if found else None


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose leaps are measured by two batches, and go as far as those needed that were like the first."""
    for module in (leaps, habits):
        monkeypatch.setattr(module, "WINDOW", 2)
    made = leaping(Engine(compile_net(settling(4), "all"), dtype="float64", kernels="interpret"))
    for _ in range(4):
        made.refine(*EARLY)
    leap = leap_of(made)
    assert leap is not None and leap.stood == 1 and not any(landing.stride.both for landing in leap.landings)
    return made


@pytest.mark.parametrize("name, dtype, semantics", KINDS)
def test_leaps_find_what_is_found_alone(name: str, dtype: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_net(NETS[name](), "all")
    ours, lone = leaping(engine(compiled, dtype, semantics)), forgetful(engine(compiled, dtype, semantics))
    assert ours.kernels is not None
    told, shown = asking(ours.kernels, monkeypatch), list[tuple[str, int, int]]()
    for seed in range(3):
        ball = balls(ours.net, seed, 2, 0.1 if name == "settling" else 0.05)
        told.clear()
        with Waits() as waits:
            found = ours.refine(*ball, progress=lambda *stage: shown.append(stage))
        want = lone.refine(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))
        for mine, theirs in ((found.magnitude, want.magnitude), (found.error, want.error)):
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
        assert ours.tally.rows == lone.tally.rows and ours.operations == lone.operations
        assert shown[-1] == ("bounds", len(ours.programs), len(ours.programs))
        assert len(told) == (0 if seed else len(ours.programs)) and (seed < 2 or not waits.count)
    leap = leap_of(ours)
    assert leap is not None and leap.stood == 2 == leap.played


@pytest.mark.parametrize("ball, failed", [(LATE, 1), (NONE, 0), (EARLY, 0)], ids=["late", "none", "early"])
def test_a_batch_unlike_those_before(ours: Engine, ball: Ball, failed: int) -> None:
    """Where rows are left that nobody expected it is played from wait to wait; where there are fewer it stands."""
    assert equal(ours.refine(*ball), alone(ours, *ball))
    assert player(ours).leaps.failed == failed and (leap_of(ours) is None) == bool(failed)


def test_more_neurons_than_room(ours: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours.kernels is not None
    monkeypatch.setattr("polytriton.runtime.gpu.player.expect", lambda *_: 1)
    monkeypatch.setattr(ours.kernels, "capacity", lambda *_: 1)
    ours.kernels._forget()
    assert equal(ours.refine(*EARLY), alone(ours, *EARLY)) and player(ours).leaps.failed == 1


@pytest.mark.slow
def test_room_grows_with_what_was_met() -> None:
    """What had none was within the tensors all the same."""
    ours, plain = leaping(engine(compiled := compile_net(settling(2), "all"))), forgetful(engine(compiled))
    leap, wide = leap_of(having_played(ours, 36, radius=0.02)), balls(ours.net, 7, 36, radius=0.6)
    assert leap is not None and max(landing.stride.room for landing in leap.landings) == 64
    want = plain.refine(*wide)
    for failed in (1, 1, 1, 0):  # tried again after two batches
        assert equal(ours.refine(*wide), want) and player(ours).leaps.failed == failed
    leap = leap_of(ours)
    assert leap is not None and max(landing.stride.room for landing in leap.landings) == 128


def test_leaps_that_fail_are_tried_less_often(ours: Engine) -> None:
    """After one of them the next goes all the way, later ones as far as the last batches needed."""
    mine, told = player(ours).leaps, list[tuple[int, int, bool]]()
    for ball in (LATE, EARLY, EARLY, LATE, EARLY, EARLY, LATE):
        assert equal(ours.refine(*ball), alone(ours, *ball))
        leap = leap_of(ours)
        told.append((mine.failed, mine.rest, leap is not None and leap.landings[-1].stride.both))
    assert told == [(1, 2, False), (1, 1, False), (1, 0, False), (0, 0, True), (0, 0, True), (0, 0, True), (0, 0, True)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("why", ["much work", "many launches", "several blocks", "rows that never leave"])
def test_where_it_does_not_pay(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = leaping(engine(compile_net(settling(2), "input" if why == "rows that never leave" else "all")))
    if why == "several blocks":
        monkeypatch.setattr(ours.kernels, "capacity", lambda program, rows: 1)
    elif why in LIMITS:
        monkeypatch.setattr(leaps, LIMITS[why], 0)
    having_played(ours, 2, radius=0.4)
    assert leap_of(ours) is None
    monkeypatch.undo()
    having_played(ours, 2, radius=0.4)
    assert (leap_of(ours) is None) == (why == "rows that never leave")


LIMITS = {"much work": "WORTH", "many launches": "LAUNCHES"}


def test_who_asks_for_times_or_brings_bounds_waits(ours: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours.kernels is not None
    told, wide = asking(ours.kernels, monkeypatch), {n: (-torch.ones(1), torch.full((1,), 9.0)) for n in ours.bounded_nodes()}
    options: tuple[dict[str, Any], ...] = ({"trace": Trace(torch.device("cpu"))}, {"known": wide})
    for given in options:
        told.clear()
        assert equal(ours.refine(*EARLY, **given), alone(ours, *EARLY)) and len(told) == len(ours.programs)
    leap = leap_of(ours)
    assert leap is not None and leap.stood == 1


def test_rows_settle_as_they_do_from_wait_to_wait(ours: Engine) -> None:
    """Whatever somebody else has asked the same launches for in the meantime."""
    leap = leap_of(ours)
    assert leap is not None and ours.kernels is not None
    for landing in leap.landings:
        ours.kernels.limit(landing.bound, float("inf"))
    assert equal(ours.refine(*EARLY), alone(ours, *EARLY)) and player(ours).leaps.failed == 0


def test_programs_of_one_leap_lie_in_one_arena(ours: Engine) -> None:
    """However much each of them needs: none is bound to memory that has been given back."""
    backend = ours.kernels
    assert backend is not None
    backend._drop()
    backend._arena = torch.empty(0, dtype=torch.uint8)
    assert equal(ours.refine(*EARLY), alone(ours, *EARLY))
    leap = leap_of(ours)
    assert leap is not None and leap.stood == 1
    assert all(backend._bound[landing.bound.key] is landing.bound for landing in leap.landings)


def test_memory_that_runs_out_on_the_way(ours: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours.kernels is not None
    part, failed = ours.kernels.part, list[Part]()

    def scarce(some: Part) -> None:
        part(some)
        if isinstance(some, Leap) and not failed:
            failed.append(some)
            raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(ours.kernels, "part", scarce)
    assert equal(ours.refine(*EARLY), alone(ours, *EARLY)) and len(failed) == 1
    leap = leap_of(ours)
    assert leap is not None and leap is not failed[0]  # its tensors went


def test_a_deadline_that_has_passed_before(ours: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.runtime.results.time.monotonic", lambda: 2.0)
    with pytest.raises(Stopped):
        ours.refine(*EARLY, deadline=1.0)
    assert equal(ours.refine(*LATE, deadline=3.0), alone(ours, *LATE))


@pytest.mark.slow
def test_a_leap_is_one_graph_and_stays_within_its_tensors() -> None:
    """On a GPU that is not there (fake_cuda.py): captured once, replayed, and right where there are more neurons than room."""
    compiled, options, cuda = compile_net(small_net()), {"dtype": "float32", "semantics": "float32"}, FakeCuda()
    found, taken = list[list[torch.Tensor]](), list[Leap | None]()
    with cuda.present():
        on = Device(compiled, cuda, **options)
        for seed, radius in CHANGING:
            found.append(on.told(on.engine.refine(*on.balls(seed, 2, radius))))
            taken.append(leap_of(on.engine))
    assert not cuda.faults, "\n".join(map(str, cuda.faults[:12]))
    leap = taken[2]
    assert leap is taken[1] is not None and (leap.stood, leap.played, leap.graph.replays) == (2, 3, 2)
    assert taken[3] is None and player(on.engine).leaps.failed == 1
    want = Device(compiled, None, **options)
    for got, (seed, radius) in zip(found, CHANGING, strict=True):
        assert bits(got) == bits(want.told(want.engine.refine(*want.balls(seed, 2, radius))))
    assert leap_of(want.engine) is None


CHANGING = [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.8)]


def test_habits_are_the_most_of_the_last_batches() -> None:
    habit = Habit(0.5)
    habit.see(3, True)
    habit.neurons = 2.0
    for _ in range(WINDOW - 1):
        habit.see(1, False)
    assert habit.most() == Need(2.0, 3, True)
    habit.see(1, False)
    assert habit.most() == Need(2.0, 1, False)
    assert expect(2.0, 3) == 8 and expect(0.0, 3) == 0
