"""Batches in places that others have had: bit for bit what is found of each alone, whatever happens in between."""

# ruff: noqa: F401, F811
# fixtures are imported, and named again as parameters

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from polytriton.errors import ResourceError
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.results import Stopped
from tests.kernels.plays import (
    KINDS,
    NETS,
    asked,
    balls,
    compiled,
    engine,
    forgetful,
    having_played,
    lost,
    parts_of,
    plain,
    player,
    ready,
)  # fmt: skip
from tests.kernels.test_device_runs import Waits, asking
from tests.kernels.test_kernel_runs import small
from tests.kernels.test_neurons import EARLY, LATE, equal, settling

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


@pytest.mark.parametrize("name, dtype, semantics", KINDS)
def test_later_batches_find_what_they_find_alone(name: str, dtype: str, semantics: str) -> None:
    compiled = compile_net(NETS[name](), "all")
    ours, lone = engine(compiled, dtype, semantics), forgetful(engine(compiled, dtype, semantics))
    for seed in range(4):
        ball = balls(ours.net, seed, 2, 0.1 if name == "settling" else 0.05)
        found, want = ours.refine(*ball), lone.refine(*ball)
        assert equal(found, want)
        for mine, theirs in ((found.magnitude, want.magnitude), (found.error, want.error)):
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
        assert torch.equal(asked(ours, found), asked(lone, want))
    assert max(part.played for part in parts_of(ours, "refine")) > 2


@pytest.mark.slow
def test_batches_in_turn_keep_their_own_boxes_and_tables(ready: Engine, plain: Engine) -> None:
    """Boxes are asked in any order, with batches of other sizes and the interval pass between them."""
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
    lone = engine(compiled)
    with Waits() as waits:
        ready.refine(*balls(ready.net, 31, 2))
    lone.refine(*balls(ready.net, 31, 2))
    assert waits.count == 0 and len(told) == len(ready.programs)
    assert {k: v - rows.get(k, 0) for k, v in ready.tally.rows.items() if v != rows.get(k, 0)} == lone.tally.rows
    assert ready.operations - ops == lone.operations


@pytest.mark.slow
def test_rows_that_are_left_and_rows_that_have_gone(compiled: Compiled, plain: Engine) -> None:
    """What the last batch was like does not show, whichever kind it was."""
    for first in (EARLY, LATE):
        ours = engine(compiled)
        for ball in (first, first, LATE, EARLY, LATE):
            assert equal(ours.refine(*ball), plain.refine(*ball))


@pytest.mark.parametrize("known", ["wide", pytest.param("narrow", marks=pytest.mark.slow)])
def test_bounds_that_somebody_brings(ready: Engine, plain: Engine, known: str) -> None:
    """Nodes are within them, whatever was played before; a batch that brings none is as ever."""
    ball, made = balls(ready.net, 25, 2, 0.3), list[tuple[Boxes, torch.Tensor]]()
    for ours in (ready, plain):
        found = ours.refine(*ball)
        given = {n: (found.lo[n], found.hi[n]) if known == "narrow" else (found.lo[n] - 9, found.hi[n] + 9) for n in ours.bounded_nodes()}
        again = ours.refine(*ball, known=given)
        made.append((again, asked(ours, again)))
        inside = [(again.lo[n] >= found.lo[n]).all() and (again.hi[n] <= found.hi[n]).all() for n in found.lo]
        assert all(inside) and (known == "narrow" or equal(again, found))
        assert equal(ours.refine(*ball), found)
    assert equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])


# ---- memory, errors, deadlines ----------------------------------------------------------------------------------------


def test_a_number_beyond_the_room_is_known_then(lost: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ball, asks = balls(lost.net, 3, 2, radius=0.4), asking(lost.kernels, monkeypatch)  # type: ignore[arg-type]
    monkeypatch.setattr(player(lost), "_room", lambda *_: 1)
    assert equal(lost.refine(*ball), plain.refine(*ball))
    assert len(asks) == len(lost.programs) and any(n > 1 for n, *_ in asks)


@pytest.mark.slow
def test_more_neurons_than_room(compiled: Compiled, plain: Engine) -> None:
    """Balls in which few neurons are undecided, then as many as two an image."""
    ours = having_played(engine(compiled), 36, radius=0.02)
    wide = balls(ours.net, 7, 36, radius=0.6)
    want = plain.refine(*wide)
    for _ in range(3):
        assert equal(ours.refine(*wide), want)


def test_nothing_outlives_its_engine(compiled: Compiled) -> None:
    """Without the collector's help: a device's memory is not the collector's to see."""
    gc.collect()
    gc.disable()
    try:
        ours = having_played(engine(compiled), 2)
        places = player(ours).places[2]
        alive = [weakref.ref(v) for v in (ours, ours.kernels, player(ours), places, *places.tensors.values())]
        del ours, places
        assert not any(v() is not None for v in alive)
    finally:
        gc.enable()


def test_tensors_that_move_are_bound_anew(lost: Engine, plain: Engine) -> None:
    backend = lost.kernels
    assert backend is not None
    for forget in (backend._forget, backend._drop):
        forget()
        assert not player(lost).parts and not backend._bound
        for seed in (41, 42):
            ball = balls(lost.net, seed, 2)
            assert equal(lost.refine(*ball), plain.refine(*ball))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("planted"), RuntimeError("CUDA error: out of memory")])
@pytest.mark.parametrize("at", [0, 2])
def test_out_of_memory_begins_again(lost: Engine, plain: Engine, error: BaseException, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the input, whatever had become of the boxes: a layer that has been closed must not be closed again."""
    backend, ball, played, progress = lost.kernels, balls(lost.net, 51, 2), 0, list[str]()
    assert backend is not None
    part, places = backend.part, player(lost).places[2]

    def scarce(some: Part) -> None:
        nonlocal played
        played += 1
        if played == at + 1:
            for symbol, v in places.tensors.items():
                if symbol.startswith(("low:", "high:")):
                    v.fill_(1e30)  # nobody may believe them
            raise error
        part(some)

    monkeypatch.setattr(backend, "part", scarce)
    assert equal(lost.refine(*ball, progress=lambda stage, *_: progress.append(stage)), plain.refine(*ball))
    assert player(lost).places[2] is not places and progress.count(progress[0]) == 2


def test_out_of_memory_without_rows_is_an_error(lost: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(part: Part) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(lost.kernels, "part", none)
    with pytest.raises(ResourceError, match="out of memory with 2 boxes"):
        lost.interval(*balls(lost.net, 1, 2))


@pytest.mark.slow
def test_out_of_memory_at_a_wait_begins_again(lost: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, failed = lost.kernels, list[int]()
    assert backend is not None
    ask = backend.ask

    def scarce(states: int) -> list[int]:
        if len(failed) < 2:
            failed.append(states)
            if len(failed) == 2:
                raise torch.OutOfMemoryError("planted")
        return ask(states)

    monkeypatch.setattr(backend, "ask", scarce)
    capacity = backend.capacity
    monkeypatch.setattr(backend, "capacity", lambda program, rows: 128 if len(failed) < 2 else capacity(program, rows))
    for seed in range(6, 9):
        ball = balls(lost.net, seed, 2)
        assert equal(lost.refine(*ball), plain.refine(*ball))
    assert len(failed) == 2


def test_another_error_is_raised(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(part: Part) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(ready.kernels, "part", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        ready.refine(*balls(ready.net, 1, 2))


EARLIER = [pytest.param(*v, marks=pytest.mark.slow) for v in ((0, Stopped), (1, KeyboardInterrupt))]


@pytest.mark.parametrize("at, stop", [*EARLIER, (3, Stopped)])
def test_broken_off_in_the_middle(ready: Engine, plain: Engine, stop: type[BaseException], at: int) -> None:
    """Places half written are nobody's: boxes from before are asked right, and so is the next batch."""
    first, second = balls(ready.net, 61, 2), balls(ready.net, 62, 2)
    boxes, want = ready.refine(*first), asked(plain, plain.refine(*first))
    count = 0

    def expire() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise stop

    with pytest.raises(stop):
        player(ready).refine(*second, lambda *_: None, expire, None, {})
    assert torch.equal(asked(ready, boxes), want)
    assert equal(ready.refine(*second), plain.refine(*second))


def test_a_deadline_is_each_batchs_own(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = engine(compiled)
    now = [0.0]
    monkeypatch.setattr("polytriton.runtime.results.time.monotonic", lambda: now[0])
    for seed in range(2):
        ours.refine(*balls(ours.net, seed, 2), deadline=1.0)
    now[0] = 2.0
    ours.refine(*balls(ours.net, 5, 2))
    ours.refine(*balls(ours.net, 5, 2), deadline=3.0)
    with pytest.raises(Stopped):
        ours.refine(*balls(ours.net, 5, 2), deadline=1.0)


def test_an_empty_batch_has_empty_boxes(ready: Engine, compiled: Compiled) -> None:
    """Whatever was asked before, or nothing."""
    for ours in (ready, engine(compiled)):
        found = ours.refine(*balls(ours.net, 0, 0))
        assert found.batch == 0 and all(v.shape[0] == 0 for v in (*found.lo.values(), *found.hi.values()))
        assert 0 not in player(ours).places


# ---- stretches --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_host_comes_in_between() -> None:
    """A max pool's box and winners are tensor operations, and its operand's neurons never leave."""
    ours = engine(compile_net(small(pool=True), "all"))
    lone = forgetful(engine(Compiled(ours.net, ours.plan)))
    for seed in range(3):
        ball = balls(ours.net, seed, 1)
        found, want = ours.refine(*ball), lone.refine(*ball)
        assert equal(found, want) and torch.equal(asked(ours, found), asked(lone, want))


@pytest.mark.parametrize("options, candidates", [({"early": False}, "all"), ({}, "input")])
def test_rows_that_never_leave_do_not_go_ahead(options: dict[str, Any], candidates: str) -> None:
    ours = engine(compile_net(settling(2), candidates), **options)
    for seed in range(2):
        ours.refine(*balls(ours.net, seed, 1))
    assert not player(ours).habits and all(key[-1] is None for key in player(ours).parts)


@pytest.mark.slow
def test_places_of_other_sizes_go_at_a_runs_beginning(lost: Engine, plain: Engine) -> None:
    backend, mine = lost.kernels, player(lost)
    assert backend is not None
    backend.memory = 64 * max(backend.row_bytes(p) for p in lost.plan)  # little more than the rows
    for batch in (3, 1, 3):
        ball = balls(lost.net, batch, batch)
        assert equal(lost.refine(*ball), plain.refine(*ball))
        assert list(mine.places) == [batch]


@pytest.mark.slow
def test_stretches_are_captured_like_programs(lost: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time plays, the second captures each stretch and replays the graph."""
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
    backend._forget()
    for seed in (71, 72, 73, 74):
        ball = balls(lost.net, seed, 2)
        assert equal(lost.refine(*ball), plain.refine(*ball))
    again = [part for part in parts_of(lost, "refine") if part.played > 1]
    assert again and all(sum(p is part for p in captured) == 1 for part in again)
