"""No cell of memory is written by one program of a launch and read or written by another, nor touched by both lanes of a region if
either writes it: programs of a launch, and lanes, have no order on a GPU and see each other's stores at any time or never. Nor does a
program touch what it was not given, or a launch take a tensor that does not begin where kernels compiled ahead expect it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polytriton.ir.launches import Launch
from polytriton.runtime.gpu.triton_backend import TritonBackend
from tests.kernels.grids import Launched, Traffic, crooked, meetings, outside
from tests.kernels.test_program_order import Case, answer, engine_of

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FLAGS = frozenset({"done_ptr"})  # many programs may write the same 1 there; who reads it is another launch
CASES: list[Case] = [
    ("tiny", "folded", "float64", "float32"), ("branches", "folded", "float32", "real"), ("random 43", "folded", "float32", "float32"),
]  # fmt: skip
MORE: list[Case] = [
    ("tiny", "interval", "float64", "float32"), ("branches", "interval", "float32", "real"), ("twins", "interval", "float64", "real"),
    ("residual", "folded", "float64", "float32"), ("pool", "folded", "float32", "float32"), ("leaky", "folded", "float64", "float32"),
    ("projections", "folded", "float32", "real"), ("twins", "folded", "float32", "real"),
    ("random 40", "folded", "float64", "float32"), ("random 51", "folded", "float64", "float16"),
]  # fmt: skip


def region_faults(launches: list[Launched]) -> list[str]:
    """Lanes of one region as if they were programs of one launch."""
    whole = Launched(f"region {launches[0].region}", [t for one in launches for t in one.tensors])
    for one in launches:
        whole.reads += [(one.lane, at, values) for _, at, values in one.reads]
        whole.writes += [(one.lane, at, values) for _, at, values in one.writes]
    return meetings(whole, frozenset())


class Watch:
    """Judges launches as they end, and regions once they are over."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.programs: dict[str, int] = {}
        self.regions = 0
        self.open: list[Launched] = []

    def seen(self, one: Launched) -> None:
        self.programs[one.name] = max(self.programs.get(one.name, 0), one.programs)
        self.found += meetings(one, FLAGS) + outside(one) + crooked(one)
        if self.open and one.region != self.open[0].region:
            self.close()
        if one.region:
            self.open.append(one)

    def close(self) -> None:
        if self.open:
            assert {one.lane for one in self.open} == {0, 1}
            self.found += region_faults(self.open)
            self.regions += 1
        self.open = []


@pytest.mark.parametrize(
    ("name", "numerics", "dtype", "semantics"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_no_program_meets_another(name: str, numerics: str, dtype: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, call = Watch(), TritonBackend.call
    traffic = Traffic(watch.seen)

    def told(backend: TritonBackend, launch: Launch, *given: Any) -> Any:
        play = call(backend, launch, *given)

        def tell() -> None:
            traffic.lane, traffic.region = launch.lane, launch.region
            play()
            traffic.lane = traffic.region = 0

        return tell

    monkeypatch.setattr(TritonBackend, "call", told)
    with traffic.watched():
        answer(engine_of((name, numerics, dtype, semantics), monkeypatch))
    watch.close()
    assert not watch.found, "\n".join(sorted(set(watch.found))[:12])
    assert sum(programs > 1 for programs in watch.programs.values()) >= 4, watch.programs
    assert watch.regions > 0 or name not in ("twins", "projections", "branches") or numerics == "interval"


# ---- the instrument itself ------------------------------------------------------------------------------------------


def meeting() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def meeting(x_ptr, y_ptr, READ: tl.constexpr, STEP: tl.constexpr, SAME: tl.constexpr):  # type: ignore[no-untyped-def]
        program = tl.program_id(0)
        if READ:
            tl.load(y_ptr + program + 1)
        tl.store(y_ptr + program * STEP, tl.full((), 7, tl.int64) if SAME else program.to(tl.int64))

    return meeting


@pytest.mark.parametrize(
    ("read", "step", "same", "flags", "wrong"),
    [
        (False, 1, False, (), ""),
        (True, 1, False, (), "a program reads what another writes in y_ptr"),
        (False, 0, False, (), "several programs write the same cell of y_ptr"),
        (False, 0, True, (), "several programs write the same cell of y_ptr"),
        (False, 0, True, ("y_ptr",), ""),
        (False, 0, False, ("y_ptr",), "several programs write the same cell of y_ptr"),
        (True, 0, True, ("y_ptr",), ""),  # reads begin past the flag
    ],
)
def test_meetings_are_told(read: bool, step: int, same: bool, flags: tuple[str, ...], wrong: str) -> None:
    found: list[str] = []
    y = torch.zeros(8, dtype=torch.int64)
    with Traffic(lambda one: found.extend(meetings(one, frozenset(flags)))).watched():
        meeting()[(5,)](torch.zeros(1), y, read, step, same)
    assert found == ([f"meeting: {wrong}"] if wrong else [])


def test_a_place_outside_every_tensor_is_told() -> None:
    found: list[str] = []
    y = torch.zeros(8, dtype=torch.int64)
    with Traffic(lambda one: found.extend(outside(one))).watched():
        meeting()[(5,)](torch.zeros(1), y[:3], False, 1, False)
    assert found == ["meeting touches 2 cells of nothing it was given"]


def test_a_tensor_that_begins_in_between_is_told() -> None:
    found: list[str] = []
    y = torch.zeros(8, dtype=torch.int64)
    with Traffic(lambda one: found.extend(crooked(one))).watched():
        meeting()[(2,)](torch.zeros(1), y[1:], False, 1, False)
        meeting()[(2,)](torch.zeros(1), y[2:], False, 1, False)
    assert found == ["meeting: y_ptr begins at no multiple of 16 bytes"]


def test_lanes_that_meet_are_told() -> None:
    def one(lane: int, wrote: int, read: int) -> Launched:
        def at(cell: int) -> Any:
            return (0, np.array([cell], np.uint64), np.zeros(1))

        return Launched("k", [("m_ptr", 0, 8)], lane=lane, region=1, reads=[at(read)], writes=[at(wrote)])

    assert region_faults([one(0, 1, 5), one(1, 2, 5)]) == []
    assert region_faults([one(0, 1, 5), one(1, 2, 1)]) == ["region 1: a program reads what another writes in m_ptr"]
    assert region_faults([one(0, 1, 5), one(1, 1, 5)]) == ["region 1: several programs write the same cell of m_ptr"]
