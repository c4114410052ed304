"""Refinements that are recorded and played again: bit for bit what launches one by one find, whatever happens in between."""

# ruff: noqa: F401, F811
# fixtures are imported, and named again as parameters

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu import replay
from polytriton.runtime.gpu.recording import _mine, recording
from polytriton.runtime.gpu.replay import BEFORE, REFINED
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.results import Stopped
from tests.kernels.replays import KINDS, NETS, asked, balls, compiled, engine, having_recorded, launching, lost, plain, ready, script
from tests.kernels.test_device_runs import Waits, asking
from tests.kernels.test_kernel_runs import small
from tests.kernels.test_neurons import EARLY, LATE, equal, settling

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


@pytest.mark.parametrize("name, dtype, semantics", KINDS)
def test_a_replay_finds_what_launches_one_by_one_find(name: str, dtype: str, semantics: str) -> None:
    compiled = compile_net(NETS[name](), "all")
    ours, lone = engine(compiled, dtype, semantics), launching(engine(compiled, dtype, semantics))
    for seed in range(BEFORE + 4):
        ball = balls(ours.net, seed, 2, 0.1 if name == "settling" else 0.05)
        found, want = ours.refine(*ball), lone.refine(*ball)
        assert equal(found, want)
        for mine, theirs in ((found.magnitude, want.magnitude), (found.error, want.error)):
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
        assert torch.equal(asked(ours, found), asked(lone, want))
    assert ours.replays is not None and ours.replays.scripts
    assert all(stretch.part.played for stretch in script(ours).stretches)


@pytest.mark.slow
def test_batches_in_turn_keep_their_own_boxes_and_tables(ready: Engine, plain: Engine) -> None:
    """Boxes of replays are asked in any order, with batches of other sizes and the interval pass between them."""
    held: list[tuple[Boxes, torch.Tensor]] = []
    for seed, batch in ((11, 2), (12, 2), (13, 1), (14, 2), (15, 3), (16, 2)):
        ball = balls(ready.net, seed, batch)
        held.append((ready.refine(*ball), asked(plain, plain.refine(*ball))))
        ready.interval(*ball)
    for k in (0, 3, 1, 5, 4, 2, 0):
        boxes, want = held[k]
        assert torch.equal(asked(ready, boxes), want)


def test_boxes_are_the_callers(ready: Engine, plain: Engine) -> None:
    """What a caller does to them does not come back, and later batches leave them alone."""
    first, second = balls(ready.net, 21, 2), balls(ready.net, 22, 2)
    one = ready.refine(*first)
    before = {k: v.clone() for k, v in one.lo.items()}
    ready.refine(*second)
    assert all(torch.equal(v, before[k]) for k, v in one.lo.items())
    for group in (one.lo, one.hi, one.error, one.magnitude):
        for v in group.values():
            v.fill_(float("nan"))
    assert equal(ready.refine(*first), plain.refine(*first))
    for v in (*one.lo.values(), *one.hi.values()):
        assert v.data_ptr() % 16 == 0  # as wide loads want them


def test_one_wait_a_layer_and_few_operations(ready: Engine, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ready.kernels
    assert backend is not None
    told = asking(backend, monkeypatch)
    rows, ops = dict(ready.tally.rows), ready.operations
    lone = launching(engine(compiled))
    with Waits() as waits:
        ready.refine(*balls(ready.net, 31, 2))
    lone.refine(*balls(ready.net, 31, 2))
    assert waits.count == 0 and len(told) == len(ready.programs)
    assert {k: v - rows.get(k, 0) for k, v in ready.tally.rows.items() if v != rows.get(k, 0)} == lone.tally.rows
    assert ready.operations - ops == lone.operations


@pytest.mark.slow
def test_rows_that_are_left_and_rows_that_have_gone(compiled: Compiled, plain: Engine) -> None:
    """The recording was made of batches that settle early, or late; each kind then comes in turn."""
    for first in (EARLY, LATE):
        ours = engine(compiled)
        for _ in range(BEFORE + 2):
            ours.refine(*first)
        made = script(ours, 3)
        for ball in (LATE, EARLY, LATE):
            assert equal(ours.refine(*ball), plain.refine(*ball))
        assert script(ours, 3) is made


# ---- what ends a recording --------------------------------------------------------------------------------------------


def test_a_number_beyond_the_room_ends_a_recording(lost: Engine, plain: Engine) -> None:
    last = script(lost).stretches[-2]
    assert last.ahead is not None
    last.ahead = replace(last.ahead, room=1)
    ball = balls(lost.net, 3, 2, radius=0.4)
    assert equal(lost.refine(*ball), plain.refine(*ball))
    assert lost.replays is not None and not lost.replays.scripts and lost.replays.seen[REFINED, 2] == BEFORE


@pytest.mark.slow
def test_more_neurons_than_room_begin_again(compiled: Compiled, plain: Engine) -> None:
    """Balls in which no neuron is undecided, then as many as two an image."""
    ours = having_recorded(engine(compiled), 36, radius=1e-9)
    assert [s.ahead.room for s in script(ours, 36).stretches if s.ahead is not None] == [64] * len(ours.programs)
    wide = balls(ours.net, 7, 36, radius=0.6)
    for _ in range(4):
        assert equal(ours.refine(*wide), plain.refine(*wide))
    assert max(s.ahead.room for s in script(ours, 36).stretches if s.ahead is not None) > 64  # recorded anew, with more


def test_nothing_outlives_its_engine(compiled: Compiled) -> None:
    """Without the collector's help: a device's memory is not the collector's to see."""
    gc.collect()
    gc.disable()
    try:
        ours = having_recorded(engine(compiled), 2)
        alive = [weakref.ref(v) for v in (ours, ours.kernels, ours.replays, script(ours), *script(ours).values)]
        del ours
        assert not any(v() is not None for v in alive)
    finally:
        gc.enable()


@pytest.mark.slow
def test_tensors_that_move_end_a_recording(lost: Engine, plain: Engine) -> None:
    backend = lost.kernels
    assert backend is not None
    old, ball = script(lost), balls(lost.net, 41, 2)
    backend._forget()
    backend._kept.clear()
    backend._filled.clear()
    assert lost.replays is not None and not lost.replays.scripts  # whose tensors nobody holds any more
    assert equal(lost.refine(*ball), plain.refine(*ball))
    for seed in range(42, 47):
        ball = balls(lost.net, seed, 2)
        assert equal(lost.refine(*ball), plain.refine(*ball))
    assert script(lost) is not old


@pytest.mark.parametrize("at, error", [(0, torch.OutOfMemoryError("planted")), (2, RuntimeError("CUDA error: out of memory"))])
def test_out_of_memory_begins_again(lost: Engine, plain: Engine, error: BaseException, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, ball = lost.kernels, balls(lost.net, 51, 2)
    assert backend is not None
    part, planted = backend.part, script(lost).stretches[at].part

    def scarce(some: Any) -> None:
        if some is planted:
            script_boxes = script(lost).boxes
            for v in script_boxes.lo.values():
                v.fill_(1e30)  # nobody may believe them
            raise error
        part(some)

    monkeypatch.setattr(backend, "part", scarce)
    assert equal(lost.refine(*ball), plain.refine(*ball))
    assert lost.replays is not None and not lost.replays.scripts


def test_out_of_memory_while_recording_begins_again(compiled: Compiled, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = engine(compiled)
    for seed in range(BEFORE):
        ours.refine(*balls(ours.net, seed, 2))
    backend, failed = ours.kernels, []
    assert backend is not None
    ask = backend.ask

    def scarce(states: int) -> list[int]:
        if not failed:
            failed.append(recording_now())
            raise torch.OutOfMemoryError("planted")
        return ask(states)

    monkeypatch.setattr(backend, "ask", scarce)
    for seed in range(6, 9):
        ball = balls(ours.net, seed, 2)
        assert equal(ours.refine(*ball), plain.refine(*ball))
    assert failed == [True] and script(ours) and recording() is None


def recording_now() -> bool:
    """Whether this thread records, aside of it or not."""
    return _mine.recording is not None


def test_another_error_is_raised(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(part: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(ready.kernels, "part", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        ready.refine(*balls(ready.net, 1, 2))


@pytest.mark.parametrize("at, stop", [pytest.param(0, Stopped, marks=pytest.mark.slow), (1, KeyboardInterrupt), (3, Stopped)])
def test_broken_off_in_the_middle(ready: Engine, plain: Engine, stop: type[BaseException], at: int) -> None:
    """Tables half written are nobody's: boxes from before are asked right, and so is the next batch."""
    first, second = balls(ready.net, 61, 2), balls(ready.net, 62, 2)
    boxes, want = ready.refine(*first), asked(plain, plain.refine(*first))
    assert ready.replays is not None
    count = 0

    def expire() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise stop

    with pytest.raises(stop):
        ready.replays.refine(*second, lambda *_: None, expire)
    assert torch.equal(asked(ready, boxes), want)
    assert equal(ready.refine(*second), plain.refine(*second))


def test_a_recording_outlives_its_deadline(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = engine(compiled)
    now = [0.0]
    monkeypatch.setattr("polytriton.runtime.engine.time.monotonic", lambda: now[0])
    for seed in range(BEFORE + 2):
        ours.refine(*balls(ours.net, seed, 2), deadline=1.0)
    assert script(ours)
    now[0] = 2.0
    ours.refine(*balls(ours.net, 5, 2))
    ours.refine(*balls(ours.net, 5, 2), deadline=3.0)
    with pytest.raises(Stopped):
        ours.refine(*balls(ours.net, 5, 2), deadline=1.0)


def test_an_empty_batch_has_empty_boxes(ready: Engine, compiled: Compiled) -> None:
    """Whatever was asked before, or nothing."""
    for ours in (ready, engine(compiled)):
        for _ in range(BEFORE + 2):
            found = ours.refine(*balls(ours.net, 0, 0))
            assert found.batch == 0 and all(v.shape[0] == 0 for v in (*found.lo.values(), *found.hi.values()))
        assert ours.replays is not None and (REFINED, 0) not in ours.replays.scripts


# ---- what is never recorded -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_networks_with_tensor_operations_are_not_recorded() -> None:
    """A max pool's neurons never leave; a concatenation's box is a tensor operation."""
    for net in (small(pool=True), settling(2)):
        ours = engine(compile_net(net, "all"))
        if not ours.unsettled:
            cells = ours.forward.cells
            assert cells is not None
            ours.forward.cells = None  # boxes by tensor operations from now on
        lone = launching(engine(Compiled(ours.net, ours.plan)))
        lone.forward.cells = ours.forward.cells
        for seed in range(BEFORE + replay.TRIES + 2):
            ball = balls(ours.net, seed, 1)
            assert equal(ours.refine(*ball), lone.refine(*ball))
        assert ours.replays is not None and not ours.replays.scripts


@pytest.mark.parametrize("options, candidates", [({"early": False}, "all"), ({}, "input")])
def test_rows_that_never_leave_are_not_recorded(options: dict[str, Any], candidates: str) -> None:
    ours = engine(compile_net(settling(2), candidates), **options)
    for seed in range(BEFORE + 2):
        ours.refine(*balls(ours.net, seed, 1))
    assert ours.replays is not None and not ours.replays.possible and not ours.replays.scripts


@pytest.mark.slow
def test_a_spoiled_recording_still_answers(compiled: Compiled, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And after some of them nobody tries again."""
    ours, tries = engine(compiled), 0
    transfer = ours.forward.transfer

    def spoils(node: Any, boxes: Boxes) -> None:
        nonlocal tries
        transfer(node, boxes)
        if recording() is not None and node is ours.net.nodes[-1]:
            tries += 1
            boxes.lo[node.name] = boxes.lo[node.name] + 0.0

    monkeypatch.setattr(ours.forward, "transfer", spoils)
    for seed in range(BEFORE + replay.TRIES + 3):
        ball = balls(ours.net, seed, 2)
        assert equal(ours.refine(*ball), plain.refine(*ball))
    assert ours.replays is not None and not ours.replays.scripts and tries == replay.TRIES


@pytest.mark.slow
def test_recordings_keep_within_their_memory(lost: Engine) -> None:
    one = sum(v.nbytes for v in script(lost).values)
    lost.memory = 4 * one * replay.SHARE
    for batch in (3, 1, 2, 40, 3):
        for seed in range(BEFORE + 3):
            lost.refine(*balls(lost.net, seed, batch))
        assert lost.replays is not None
        held = sum(v.nbytes for s in lost.replays.scripts.values() for v in s.values)
        assert held * replay.SHARE <= lost.memory
    assert (REFINED, 40) not in lost.replays.scripts and (REFINED, 3) in lost.replays.scripts


def test_stretches_are_captured_like_programs(lost: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first replay plays, the second captures each stretch and replays the graph."""
    backend, captured = lost.kernels, []
    assert isinstance(backend, TritonBackend)

    class Graph:
        def __init__(self, calls: list[Any]) -> None:
            self.calls = calls

        def replay(self) -> None:
            for call in self.calls:
                call()

    def capture(part: Any) -> None:
        captured.append(part)
        part.graph = Graph(part.calls)

    monkeypatch.setattr(backend, "_capture", capture)
    backend.graphs = True
    for seed in (71, 72, 73):
        ball = balls(lost.net, seed, 2)
        assert equal(lost.refine(*ball), plain.refine(*ball))
    stretches = [s.part for s in script(lost).stretches]
    assert all(sum(p is s for p in captured) == 1 for s in stretches)
