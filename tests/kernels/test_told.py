"""What replays tell a trace, and recordings of the interval pass; what a refinement's own find is test_replay.py's."""

# ruff: noqa: F401, F811
# fixtures are imported, and named again as parameters

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.results import LayerStats
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.replay import BEFORE, INTERVAL, REFINED
from polytriton.runtime.results import Stopped
from polytriton.runtime.trace import Trace
from tests.kernels.replays import KINDS, NETS, asked, balls, compiled, engine, forms_of, launching, lost, plain, ready, script
from tests.kernels.test_kernel_runs import small
from tests.kernels.test_neurons import equal

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


# ---- what is told of them ---------------------------------------------------------------------------------------------


def told(ours: Engine, ball: tuple[torch.Tensor, torch.Tensor], later: tuple[torch.Tensor, torch.Tensor] | None = None) -> list[LayerStats]:
    """The statistics of one batch but its times; read after the `later` one has been played in the same places."""
    trace = Trace(ours.device)
    ours.query(ours.refine(*ball, trace=trace), forms_of(ours, 2), trace=trace)
    if later is not None:
        ours.refine(*later)
    return [replace(s, seconds=0.0) for s in trace.read()]


def test_a_replay_tells_what_launches_one_by_one_tell(ready: Engine, plain: Engine) -> None:
    first, second = balls(ready.net, 71, 2), balls(ready.net, 72, 2, 0.05)
    played = [s.part.played for s in script(ready).stretches]
    found = told(ready, first, second)
    assert [s.part.played - n for s, n in zip(script(ready).stretches, played, strict=True)] == [2] * len(played)
    assert found == told(plain, first)
    assert [s.stage for s in found].count("bound") == len(ready.bounded_nodes()) == len(found) - 1
    assert any(s.unstable is not None and s.unstable[0] for s in found)


def test_a_recording_is_told_too(compiled: Compiled, plain: Engine) -> None:
    ours = engine(compiled)
    for seed in range(BEFORE + 2):
        ball = balls(ours.net, 80 + seed, 2)
        assert told(ours, ball) == told(plain, ball)
    assert script(ours)


@pytest.mark.parametrize("at", range(5))
def test_what_was_told_until_a_deadline(ready: Engine, plain: Engine, at: int) -> None:
    """Layers that were finished, and nothing of another batch."""
    ball, later = balls(ready.net, 74, 2), balls(ready.net, 73, 2, 0.3)
    told(ready, later)
    want, trace, count = told(plain, ball), Trace(ready.device), 0
    assert ready.replays is not None

    def expire() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise Stopped

    with pytest.raises(Stopped):
        ready.replays.refine(*ball, lambda *_: None, expire, trace)
    found = [replace(s, seconds=0.0) for s in trace.read()]
    assert found == want[: len(found)] and len(found) < len(ready.bounded_nodes())
    assert bool(found) == (at > 1)


def test_a_trace_keeps_no_boxes(ready: Engine) -> None:
    """Boxes of one batch go before the next one's are made; what was told of them stays until the proof ends."""
    trace = Trace(ready.device)
    found = ready.refine(*balls(ready.net, 75, 2), trace=trace)
    held = {v.untyped_storage().data_ptr() for values in (found.lo, found.hi, script(ready).boxes.lo) for v in values.values()}
    told = [t for e in trace.entries for t in e.told or ()]
    assert told and not held & {t.untyped_storage().data_ptr() for t in told}


# ---- interval passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, dtype, semantics", KINDS)
def test_an_interval_pass_is_replayed(name: str, dtype: str, semantics: str) -> None:
    """Boxes, and what a query makes of them with the tables that were played too."""
    compiled = compile_net(NETS[name](), "all")
    ours, lone = engine(compiled, dtype, semantics), launching(engine(compiled, dtype, semantics))
    for seed in range(BEFORE + 3):
        ball = balls(ours.net, seed, 2)
        found, want = ours.interval(*ball), lone.interval(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))
        if seed == 0:
            first, answer = found, asked(lone, want)
    assert torch.equal(asked(ours, first), answer)
    assert ours.replays is not None
    (stretch,) = ours.replays.scripts[INTERVAL, 2].stretches
    assert stretch.part.played == 2 and stretch.ahead is None


def test_an_interval_pass_with_max_pools_is_not() -> None:
    """Their winners are no part of a recording, so every batch has its own."""
    compiled = compile_net(small(pool=True), "all")
    ours, lone = engine(compiled), launching(engine(compiled))
    for seed in range(BEFORE + 2):
        ball = balls(ours.net, seed, 2)
        found, want = ours.interval(*ball), lone.interval(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))
    assert ours.replays is not None and not ours.replays.seen


def test_both_kinds_in_turn(lost: Engine, plain: Engine) -> None:
    """As a proof asks: interval bounds first, then refined ones of the same boxes; tables are those of whichever is asked."""
    for seed in range(BEFORE + 2):
        ball = balls(lost.net, 90 + seed, 2)
        early, late = lost.interval(*ball), lost.refine(*ball)
        first, second = ((want, asked(plain, want)) for want in (plain.interval(*ball), plain.refine(*ball)))
        for boxes, (want, best) in ((early, first), (late, second), (early, first)):
            assert equal(boxes, want) and torch.equal(asked(lost, boxes), best)
    assert lost.replays is not None and set(lost.replays.scripts) == {(INTERVAL, 2), (REFINED, 2)}
    assert [s.part.played for s in lost.replays.scripts[INTERVAL, 2].stretches] == [1]


def test_the_query_finds_its_tables(lost: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stretch has filled them: nothing is launched for them."""
    asked(lost, lost.refine(*balls(lost.net, 1, 2)))
    boxes = lost.refine(*balls(lost.net, 2, 2))
    assert lost.kernels is not None
    monkeypatch.setattr(lost.kernels.writer, "fill", None)
    asked(lost, boxes)
