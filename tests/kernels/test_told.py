"""What played batches tell a trace, and interval passes; what refinements find is test_player.py's."""

# ruff: noqa: F401, F811
# fixtures are imported, and named again as parameters

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.results import LayerStats
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Stopped
from polytriton.runtime.trace import Trace
from tests.kernels.plays import (
    KINDS,
    NETS,
    asked,
    balls,
    compiled,
    engine,
    forgetful,
    forms_of,
    lost,
    parts_of,
    plain,
    player,
    ready,
)  # fmt: skip
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


def test_a_batch_tells_what_it_tells_alone(ready: Engine, plain: Engine) -> None:
    first, second = balls(ready.net, 71, 2), balls(ready.net, 72, 2, 0.05)
    found = told(ready, first, second)
    assert found == told(plain, first)
    assert [s.stage for s in found].count("bound") == len(ready.bounded_nodes()) == len(found) - 1
    assert any(s.unstable is not None and s.unstable[0] for s in found)


def test_the_first_batches_are_told_too(compiled: Compiled, plain: Engine) -> None:
    ours = engine(compiled)
    for seed in range(2):
        ball = balls(ours.net, 80 + seed, 2)
        assert told(ours, ball) == told(plain, ball)


@pytest.mark.parametrize("at", range(5))
def test_what_was_told_until_a_deadline(ready: Engine, plain: Engine, at: int) -> None:
    """Layers that were finished, and nothing of another batch."""
    ball, later = balls(ready.net, 74, 2), balls(ready.net, 73, 2, 0.3)
    told(ready, later)
    want, trace, count = told(plain, ball), Trace(ready.device), 0

    def expire() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise Stopped

    with pytest.raises(Stopped):
        player(ready).refine(*ball, lambda *_: None, expire, trace, {})
    found = [replace(s, seconds=0.0) for s in trace.read()]
    assert found == want[: len(found)] and len(found) < len(ready.bounded_nodes())
    assert bool(found) == (at > 0)  # the first layer is exact as it is


def test_a_trace_keeps_no_boxes(ready: Engine) -> None:
    """Boxes of one batch go before the next one's are made; what was told of them stays until the proof ends."""
    trace = Trace(ready.device)
    found = ready.refine(*balls(ready.net, 75, 2), trace=trace)
    held = {v.untyped_storage().data_ptr() for values in (found.lo, found.hi, player(ready).places[2].tensors) for v in values.values()}
    told = [t for e in trace.entries for t in e.told or ()]
    assert told and not held & {t.untyped_storage().data_ptr() for t in told}


# ---- interval passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, dtype, semantics", KINDS)
def test_an_interval_pass_is_played(name: str, dtype: str, semantics: str) -> None:
    """Boxes, and what a query makes of them with the tables that were played too."""
    compiled = compile_net(NETS[name](), "all")
    ours, lone = engine(compiled, dtype, semantics), forgetful(engine(compiled, dtype, semantics))
    for seed in range(3):
        ball = balls(ours.net, seed, 2)
        found, want = ours.interval(*ball), lone.interval(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))
        if seed == 0:
            first, answer = found, asked(lone, want)
    assert torch.equal(asked(ours, first), answer)
    (part,) = parts_of(ours, "interval")
    assert part.played == 2  # the first query took memory: what was bound then went


def test_an_interval_pass_with_max_pools() -> None:
    """Their winners are tensor operations, so every batch has its own."""
    compiled = compile_net(small(pool=True), "all")
    ours, lone = engine(compiled), forgetful(engine(compiled))
    for seed in range(3):
        ball = balls(ours.net, seed, 2)
        found, want = ours.interval(*ball), lone.interval(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))
    assert len(parts_of(ours, "interval")) > 1


def test_both_kinds_in_turn(lost: Engine, plain: Engine) -> None:
    """As a proof asks: interval bounds first, then refined ones of the same boxes; tables are those of whichever is asked."""
    narrowed = False
    for seed in range(3):
        ball = balls(lost.net, 90 + seed, 2)
        early, late = lost.interval(*ball), lost.refine(*ball)
        narrowed |= not equal(early, late)
        first, second = ((want, asked(plain, want)) for want in (plain.interval(*ball), plain.refine(*ball)))
        for boxes, (want, best) in ((early, first), (late, second), (early, first)):
            assert equal(boxes, want) and torch.equal(asked(lost, boxes), best)
    assert narrowed


def test_the_query_finds_its_tables(lost: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stretch has filled them: nothing is launched for them."""
    asked(lost, lost.refine(*balls(lost.net, 1, 2)))
    boxes = lost.refine(*balls(lost.net, 2, 2))
    monkeypatch.setattr(player(lost), "_go", None)
    asked(lost, boxes)
