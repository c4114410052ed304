"""Graphs: when a program's launches are captured, and what happens where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu import triton_backend
from polytriton.runtime.gpu.binding import Bound, Part
from polytriton.runtime.gpu.triton_backend import TritonBackend
from tests.kernels.test_device_runs import boxes_of, small_net
from tests.kernels.test_neurons import equal

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    return {"all": compile_net(small_net(), "all")}


class Graph:
    """Stands for torch.cuda.CUDAGraph: what is played while it captures is not run, a replay runs it."""

    made: ClassVar[list[Graph]] = []
    fails: ClassVar[BaseException | None] = None

    def __init__(self) -> None:
        self.capturing, self.replays = False, 0
        Graph.made.append(self)

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local" and not self.capturing
        self.capturing = True

    def capture_end(self) -> None:
        assert self.capturing
        self.capturing = False
        if Graph.fails is not None:
            raise RuntimeError("the capture failed before")

    def replay(self) -> None:
        self.replays += 1


class FakeStreams:
    capture = "the stream that captures"
    settled = 0

    def settle(self) -> None:
        self.settled += 1


@pytest.fixture
def capturing(compiled: dict[str, Compiled], monkeypatch: pytest.MonkeyPatch) -> tuple[TritonBackend, Bound, list[str]]:
    """A backend whose second play is captured by the fakes, and the streams that were current, in order."""
    engine = Engine(compiled["all"], dtype="float64", kernels="interpret")
    engine.refine(*boxes_of(1, 1))
    backend, current = engine.kernels, ["default"]
    assert backend is not None
    bound = next(iter(backend._bound.values()))
    backend.graphs, backend.streams = True, FakeStreams()  # type: ignore[assignment]

    @contextmanager
    def stream(which: str) -> Any:
        current.append(which)
        try:
            yield
        finally:
            current.append("default")

    Graph.made, Graph.fails = [], None
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return backend, bound, current


def failing(error: BaseException) -> Callable[[], None]:
    """A launch that cannot be captured."""

    def call() -> None:
        if Graph.made and Graph.made[-1].capturing:
            Graph.fails = error
            raise error

    return call


def test_the_second_play_is_captured_and_later_ones_replay(capturing: Any) -> None:
    backend, bound, current = capturing
    calls: list[bool] = []
    bound.parts = [Part([lambda: calls.append(bool(Graph.made) and Graph.made[-1].capturing)], 1) for _ in "ab"]
    for _ in range(4):
        backend.play(bound, 0, 1)
    assert calls == [False, True] and len(Graph.made) == 1 and bound.parts[0].graph.replays == 3
    assert current == ["default", FakeStreams.capture, "default"]
    assert bound.parts[1].graph is None and not bound.parts[1].played
    backend.play(bound)  # a part has to be played itself before it is captured
    assert calls == [False, True, False] and len(Graph.made) == 1 and bound.parts[0].graph.replays == 4


def test_a_capture_that_fails_is_noted_and_played(capturing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, bound, current = capturing
    bound.parts = [Part([failing(RuntimeError("operation not permitted\nand more"))], 1, played=1)]
    told: list[str] = []
    monkeypatch.setattr(triton_backend, "note", lambda level, text: told.append(text))
    backend.play(bound)
    backend.play(bound)
    assert bound.parts[0].graph is None and not backend.graphs and len(Graph.made) == 1 and not Graph.made[0].capturing
    assert len(told) == 1 and told[0].endswith("operation not permitted")
    assert current[-1] == "default" and backend.streams.settled == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("none left")])
def test_what_breaks_a_capture_off_leaves_the_stream_and_goes_on(capturing: Any, error: BaseException) -> None:
    """An interrupt is the user's, a lack of memory is for those who can do with less; graphs stay wanted."""
    backend, bound, current = capturing
    bound.parts = [Part([failing(error)], 1, played=1)]
    with pytest.raises(type(error)) as raised:
        backend.play(bound)
    assert raised.value is error and bound.parts[0].graph is None and backend.graphs
    assert not Graph.made[0].capturing and current[-1] == "default" and backend.streams.settled == 1
    assert not triton_backend.CAPTURE.locked()


def test_a_capture_without_memory_goes_on_with_less(capturing: Any, compiled: dict[str, Compiled], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows whose launches were to be captured are played in halves, and their bounds are the same."""
    engine, other = (Engine(compiled["all"], dtype="float64", kernels="interpret") for _ in "ab")
    want, backend = other.refine(*boxes_of(3, 1)), engine.kernels
    assert backend is not None
    backend.graphs, backend.streams = True, FakeStreams()  # type: ignore[assignment]
    capture, capacities = backend._capture, []

    def once(part: Part) -> None:
        capacities.append(next(b.capacity for b in backend._bound.values() if any(p is part for p in b.parts)))
        if len(capacities) == 1:
            part.calls = [failing(RuntimeError("CUDA error: out of memory"))]
            capture(part)

    monkeypatch.setattr(backend, "capacity", lambda program, rows: 256 if not capacities else 128)
    monkeypatch.setattr(backend, "_capture", once)
    assert equal(engine.refine(*boxes_of(3, 1)), want)
    assert capacities[:2] == [256, 128] and len(Graph.made) == 1 and backend.streams.settled == 1  # type: ignore[attr-defined]
