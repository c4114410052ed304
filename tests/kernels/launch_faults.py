"""Faults for test_sanitizer.py, planted into what binds, plays and launches: what each does to the library, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polytriton.ir.launches import Launch
from polytriton.kernels import lanes
from polytriton.kernels.arena import Arena
from polytriton.runtime.gpu import binding, player, queries, triton_backend
from polytriton.runtime.gpu.binding import Binding, Bound, Part, Streams
from polytriton.runtime.gpu.player import Player
from polytriton.runtime.gpu.queries import Queries
from polytriton.runtime.gpu.triton_backend import TritonBackend
from tests.kernels.planted import planted
from tests.kernels.sanitized import Device, forgotten

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """`kind`: the name of the fault that must be told. `line`: a line of the kernels and the same line wrong. `between`: what happens
    behind every batch. `forgets`: seen only where what earlier blocks wrote is nobody's."""

    kind: str
    plant: Plant = lambda patch: None
    line: tuple[str, str, str] | None = None
    between: Callable[[Device], None] = lambda on: None
    forgets: bool = False
    graphs: bool = True

    @contextmanager
    def at_work(self, on: Device) -> Any:
        wrong: AbstractContextManager[Any] = planted(*self.line) if self.line else nullcontext()
        with pytest.MonkeyPatch.context() as patch, wrong:
            self.plant(patch)
            on.backend.graphs = self.graphs
            with forgotten(on) if self.forgets else nullcontext():
                yield


# ---- pointers, sizes, types -----------------------------------------------------------------------------------------


def small_results(patch: pytest.MonkeyPatch) -> None:
    for module in (binding, player, queries):
        patch.setattr(module, "round_size", lambda size: 2)


def called(change: Callable[[Launch, Callable[[str], Tensor]], Callable[[str], Tensor]]) -> Plant:
    """Launches on other tensors."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        call = TritonBackend.call
        patch.setattr(TritonBackend, "call", lambda self, launch, count, tensor: call(self, launch, count, change(launch, tensor)))

    return plant


def swapped(family: str, a: str, b: str) -> Plant:
    def change(launch: Launch, tensor: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
        if launch.function != family:
            return tensor
        at = dict(zip(launch.kernel.parameters, launch.bind, strict=True))
        other = {at[a]: at[b], at[b]: at[a]} if a in at and b in at else {}
        return lambda symbol: tensor(other.get(symbol, symbol))

    return called(change)


def shifted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queries, "_align", lambda given: torch.cat((given[:1], given))[1:])


def on_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queries, "_block", lambda self, begin, count: torch.tensor([begin, count]))


def forgotten_launch(patch: pytest.MonkeyPatch) -> None:
    call = TritonBackend.call
    patch.setattr(
        TritonBackend, "call", lambda self, launch, *given: (lambda: None) if launch.function == "join_rows" else call(self, launch, *given)
    )


# ---- lanes and streams ----------------------------------------------------------------------------------------------


def no_join(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Streams, "join", lambda self: None)


def no_fork(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Streams, "fork", lambda self: None)


def shared_scalars(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lanes, "_place", lambda step, lane, region: replace(step, lane=lane, region=region))


def shared_buffers(patch: pytest.MonkeyPatch) -> None:
    """All buffers that lanes touch begin at one place."""

    def lay_out(launches: Any) -> Arena:
        made = OWN_LAYOUT(launches)
        beside = {int(s[4:]) for step in launches.steps if step.region for s in step.bind if s.startswith("buf:")}
        return Arena(tuple(0 if k in beside else offset for k, offset in enumerate(made.offsets)), made.size)

    patch.setattr(triton_backend, "lay_out", lay_out)


OWN_LAYOUT = triton_backend.lay_out


def released(patch: pytest.MonkeyPatch) -> None:
    """What lane 1 reads goes while it may still run."""
    own = Streams.on_side

    def on_side(self: Streams, call: Any) -> Any:
        beside = own(self, call)

        def run() -> None:
            scratch = torch.zeros(8, device=self.device)
            with torch.cuda.stream(self.side):
                scratch.add_(1)
            beside()

        return run

    patch.setattr(Streams, "on_side", on_side)


# ---- graphs ---------------------------------------------------------------------------------------------------------


def no_owner(patch: pytest.MonkeyPatch) -> None:
    """A graph is kept, and not the tensors that were captured; what is bound to them neither."""
    capture = TritonBackend._capture

    def captured(self: TritonBackend, part: Part) -> None:
        capture(self, part)
        part.calls = [lambda: None]

    patch.setattr(TritonBackend, "_capture", captured)
    patch.setattr(TritonBackend, "_forget", lambda self: None)


def drops(on: Device) -> None:
    on.backend._kept.clear()
    on.backend.player.places.clear()
    on.backend._bound.clear()


def behind_rows(also: Callable[[Bound], Any]) -> Plant:
    """Something else is asked for where rows are made, or their bounds brought back."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        own = Player.rows_call

        def rows(self: Player, places: Any, bound: Bound, *given: Any) -> Any:
            call = own(self, places, bound, *given)
            return lambda: (call(), also(bound))

        patch.setattr(Player, "rows_call", rows)

    return plant


def beside_capture(patch: pytest.MonkeyPatch) -> None:
    def on_side(self: Streams, call: Any) -> Any:
        def run() -> None:
            with torch.cuda.stream(torch.cuda.Stream(self.device)):
                call()

        return run

    patch.setattr(Streams, "on_side", on_side)


def unaligned_rows(patch: pytest.MonkeyPatch) -> None:
    """Arrays of rows begin a row later."""
    own = Binding.rows
    patch.setattr(Binding, "rows", lambda self, name, state: own(self, name, state)[name != "count" :])


ROW = "rows", "out_ptr + rows.to(tl.int64)[:, None] * SIZE", "out_ptr + (rows.to(tl.int64) + 1)[:, None] * SIZE"
STRIDE = "rows", "c.START, c.PLANE, c.PITCH, C,", "c.START, c.PLANE * 4096, c.PITCH, C,"
FAULTS = {
    "an offset of one row": Planted("read before it was written", line=ROW, forgets=True, graphs=False),
    "a wrong stride": Planted("outside of its tensors", line=STRIDE),
    "a buffer too small": Planted("outside of its tensors", small_results),
    "arguments of two types swapped": Planted("a tensor of another type", swapped("concretize_rows", "best_ptr", "done_ptr")),
    "what is read and written swapped": Planted("a network's own numbers are written", swapped("dense_step", "w_ptr", "out_ptr")),
    "a tensor that begins in between": Planted("begins at no multiple of 16 bytes", shifted),
    "row arrays that begin a row later": Planted("begins at no multiple of 16 bytes", unaligned_rows),
    "a tensor left on the host": Planted("a tensor of another device", on_host),
    "a launch that is forgotten": Planted("read before it was written", forgotten_launch, forgets=True, graphs=False),
    "no wait at a join": Planted("no wait between streams", no_join),
    "no wait at a fork": Planted("no wait between streams", no_fork, graphs=False),
    "a capture that is not joined": Planted("a capture ends unjoined", no_join),
    "lanes that share scalars": Planted("no wait between streams", shared_scalars),
    "lanes that share buffers": Planted("no wait between streams", shared_buffers),
    "a buffer released early": Planted("freed while in use", released, graphs=False),
    "a graph with a stale pointer": Planted("a graph has a stale pointer", no_owner, between=drops),
    "a wait in a stretch": Planted("the host waits in a capture", behind_rows(lambda bound: bound.starts["found"].tolist())),
    "memory taken in a stretch": Planted("memory is allocated in a capture", behind_rows(lambda bound: bound.starts["found"].clone())),
    "a lane that no capture knows": Planted("a launch beside the capture", beside_capture),
}  # fmt: skip
