"""Lanes at work in Triton's interpreter: any order of two lanes gives the same bits; streams are forked and joined where they must be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.ir.launches import Launch, Launches
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.config import Config
from polytriton.runtime.cpu.walk import Results
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.binding import Binding, Bound, Part, Ready, Streams
from tests.kernels.branches import dense_branches, faults, projections, regions, twins
from tests.kernels.test_kernel_runs import boxes, engines, forms, same_boxes, same_results

pytest.importorskip("triton", reason="Triton is not installed")
NETS = {"projections": projections, "dense": dense_branches, "twins": twins}
Steps = list[Any]


def asked(engine: Engine, found: Boxes, batch: int = 2) -> list[torch.Tensor]:
    """A query on known bounds: one program."""
    results = engine.query(found, forms(engine, 5, batch))
    return [results.best, results.raw]


def refined(engine: Engine, batch: int = 2) -> Boxes:
    return engine.refine(*boxes(engine.net, 3, batch))


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def ordered(launches: Launches, pick: Callable[[list[Launch], list[Launch]], list[Launch]]) -> Launches:
    """The launches of every region in another order; those of one lane keep theirs."""
    steps: Steps = list(launches.steps)
    for first, together in regions(launches):
        lanes = [[s for s in together if s.lane == lane] for lane in (0, 1)]
        steps[first : first + len(together)] = pick(*lanes)
    return replace(launches, steps=steps)


def mixed(seed: int) -> Callable[[list[Launch], list[Launch]], list[Launch]]:
    """The same mixture whatever was mixed before."""

    def pick(a: list[Launch], b: list[Launch]) -> list[Launch]:
        queues, turns = [iter(a), iter(b)], [0] * len(a) + [1] * len(b)
        random.Random(seed).shuffle(turns)
        return [next(queues[t]) for t in turns]

    return pick


ORDERS: dict[str, Callable[[list[Launch], list[Launch]], list[Launch]]] = {
    "lane 1 first": lambda a, b: b + a, "lane 0 first": lambda a, b: a + b, "mixed": mixed(1),
}  # fmt: skip


def reorder(engine: Engine, usual: dict[tuple[str, str], Ready], pick: Callable[[list[Launch], list[Launch]], list[Launch]]) -> int:
    """Every program with lanes plays its regions in this order from now on; how many that changes."""
    backend, changed = engine.kernels, 0
    assert backend is not None
    backend._forget()
    for key, ready in usual.items():
        backend._ready[key] = replace(ready, launches=ordered(ready.launches, pick))
        changed += backend._ready[key].launches.steps != ready.launches.steps
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("name", NETS)
def test_any_order_of_a_query_gives_the_same_bits(name: str, candidates: str) -> None:
    dtype = "float64" if (name == "twins") == (candidates == "all") else "float32"
    compiled = compile_net(NETS[name](), candidates=candidates)
    ours, theirs = engines(compiled, dtype=dtype)
    found = refined(theirs)
    want = asked(ours, found)
    same_results(Results(*want), Results(*asked(theirs, found)), dtype)
    assert ours.kernels is not None
    usual, changed = dict(ours.kernels._ready), 0
    for pick in ORDERS.values():
        changed += reorder(ours, usual, pick)
        assert same_bits(want, asked(ours, found))
    assert changed >= 1  # some order is not the list's


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("name", NETS)
def test_any_order_of_a_refinement_gives_the_same_bits(name: str, candidates: str) -> None:
    dtype = "float64" if (name == "twins") == (candidates == "input") else "float32"
    compiled = compile_net(NETS[name](), candidates=candidates)
    ours, theirs = engines(compiled, dtype=dtype)
    plain, reference = refined(ours), refined(theirs)
    same_boxes(compiled.net, plain, reference, dtype)
    want = [*plain.lo.values(), *plain.hi.values(), *asked(ours, plain)]
    assert ours.kernels is not None
    usual, changed = dict(ours.kernels._ready), 0
    for pick in ORDERS.values():
        changed += reorder(ours, usual, pick)
        found = refined(ours)
        assert same_bits(want, [*found.lo.values(), *found.hi.values(), *asked(ours, found)])
    assert changed >= 2


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETS)
def test_with_and_without_lanes(name: str, dtype: str) -> None:
    """To within what both have charged; and no value of the network lies below a bound."""
    compiled = compile_net(NETS[name](), candidates="input")
    on, theirs = engines(compiled, dtype=dtype, semantics="real")
    off = engines(compiled, dtype=dtype, semantics="real", config=Config(lanes=False))[0]
    found = refined(theirs)
    a, b = Results(*asked(on, found)), Results(*asked(off, found))
    used = [sum(1 for r in e.kernels._ready.values() for _ in regions(r.launches)) for e in (on, off) if e.kernels is not None]
    assert used[0] > 0 and used[1] == 0
    same_results(a, b, dtype)
    lo, hi = boxes(compiled.net, 3, 2)
    question, rng = forms(on, 5, 2), np.random.default_rng(1)
    assert question.constant is not None
    for _ in range(20):
        x = lo + torch.from_numpy(rng.random(lo.shape).round(int(rng.integers(0, 3)))) * (hi - lo)
        y = theirs.interval(x, x).hi[compiled.net.output].flatten(1)
        value = (question.over_output * y[question.image]).sum(1) - question.constant
        assert (a.best <= value + 1e-6 * (1 + value.abs())).all()


@pytest.mark.parametrize("candidates", ["all", "input"])
def test_tensors_of_two_lanes_lie_apart(candidates: str) -> None:
    """The checker over the addresses that launches are bound to, all tables included."""
    compiled = compile_net(projections(), candidates=candidates)
    ours, theirs = engines(compiled, dtype="float64")
    asked(ours, refined(theirs))
    backend = ours.kernels
    assert backend is not None
    (bound,) = backend._bound.values()
    (places,) = backend.player.places.values()
    binding = Binding(backend, bound.ready, places, bound.capacity, len(bound.starts["best"]))

    def where(symbol: str) -> tuple[str, int, int]:
        tensor = binding.tensor(symbol)
        return "memory", tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes

    assert sum(1 for _ in regions(bound.ready.launches)) == 2
    assert faults(bound.ready.launches, where) == []


# ---- what is broken off ---------------------------------------------------------------------------------------------


class Broken(Exception):
    """Planted."""


def test_a_program_broken_off_in_a_region_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lane 1 has been added to and not merged: the next answer is what it would have been."""
    compiled = compile_net(projections(), candidates="input")
    ours, theirs = engines(compiled, dtype="float64")
    found = refined(theirs)
    want = asked(ours, found)
    backend = ours.kernels
    assert backend is not None
    broken = 0

    def breaks(bound: Bound) -> None:
        nonlocal broken
        (part,) = bound.parts
        for k, step in enumerate(bound.ready.launches.steps):
            if step.lane and "lane_constant" in step.bind:
                for call in part.calls[: k + 1]:
                    call()
                left = [t for (name, _), t in backend._kept.items() if name == "lane_constant"]
                broken += any(bool(t.any()) for t in left)
                raise Broken

    monkeypatch.setattr(backend, "play", breaks)
    with pytest.raises(Broken):
        asked(ours, found)
    assert broken
    monkeypatch.undo()
    assert same_bits(want, asked(ours, found))


# ---- streams --------------------------------------------------------------------------------------------------------


class Told:
    """In place of Streams: what is forked, joined and made beside, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.forked = False

    def fork(self) -> None:
        assert not self.forked
        self.forked = True
        self.log.append("fork")

    def join(self) -> None:
        assert self.forked
        self.forked = False
        self.log.append("join")

    settle = Streams.settle

    def on_side(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def on_side() -> Any:
            assert self.forked
            self.log.append("beside")
            return call()

        return on_side


@pytest.mark.parametrize("candidates", ["all", "input"])
def test_a_region_is_forked_and_joined(candidates: str) -> None:
    """Launches of lane 1, and no others, run beside, between a fork and a join."""
    compiled = compile_net(projections(), candidates=candidates)
    ours, theirs = engines(compiled, dtype="float64")
    found = refined(theirs)
    usual = asked(ours, found)
    backend = ours.kernels
    assert backend is not None
    told = Told()
    backend.streams = told  # type: ignore[assignment]
    backend._forget()
    assert same_bits(usual, asked(ours, found))
    (bound,) = backend._bound.values()
    want = [w for _, together in regions(bound.ready.launches) for w in ("fork", *["beside"] * sum(s.lane for s in together), "join")]
    assert told.log == want and want.count("fork") == 2 and not told.forked


def test_streams_are_joined_when_a_program_is_broken_off() -> None:
    compiled = compile_net(projections(), candidates="input")
    backend = engines(compiled)[0].kernels
    assert backend is not None
    told = Told()
    backend.streams = told  # type: ignore[assignment]

    def fails() -> None:
        raise Broken

    for calls, log in (([told.fork, told.on_side(lambda: None), fails], ["fork", "beside", "join"]), ([fails], [])):
        told.log.clear()
        with pytest.raises(Broken):
            backend._play(Part(calls, 1))
        assert told.log == log


def test_streams_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork: the side waits for the caller's. Join: the caller's waits for the side. Calls beside are made on the side."""
    log: list[tuple[str, str]] = []
    now = ["main"]

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            log.append((self.name, other.name))

    @contextmanager
    def stream(which: Stream) -> Iterator[None]:
        before, now[0] = now[0], which.name
        yield
        now[0] = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(now[0]))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    streams = Streams(torch.device("cuda"))
    streams.settle()
    assert log == []
    streams.fork()
    assert streams.on_side(lambda: now[0])() == "side" and now == ["main"]
    streams.join()
    streams.settle()
    assert log == [("side", "main"), ("main", "side")]
