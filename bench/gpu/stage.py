"""One program of a network on the device, its launches one at a time, over random boxes and rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu.setting import Setting
from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constants
from polytriton.ir.net import Node
from polytriton.ir.plan import Program, Step, extent
from polytriton.kernels.arena import lay_out
from polytriton.kernels.choose import Sizes, Tiles, power
from polytriton.kernels.interval_launches import IntervalLowering
from polytriton.kernels.launches import Lowering
from polytriton.passes.pipeline import Compiled
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.binding import ALIGN, Binding, Ready
from polytriton.runtime.gpu.kernel_arguments import LAYER
from polytriton.runtime.gpu.triton_backend import MOST

NEVER = float("inf")
# what all rows read
SHARED = {"lo", "hi", "below", "above", "lower", "cut", "t", "floor", "underflow", "first", "bias", "winner", "most", "largest", *LAYER}


@dataclass(frozen=True)
class Note:
    """What a launch was made of: the library kernel, the values of its constants, the symbol of each of its parameters."""

    function: str
    constants: Constants
    bind: dict[str, str]
    step: Step
    state: int


class Noting(Lowering):
    """Lowering that keeps a note of every launch."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.notes: dict[int, Note] = {}

    def _launch(self, function: str, constants: Constants, bind: Any, tiles: Tiles, **grid: int) -> None:  # type: ignore[override]
        self.notes[len(self.out.steps)] = Note(function, {**constants, **tiles.constants}, dict(bind), self.step, self.state)
        super()._launch(function, constants, bind, tiles, **grid)


class Noted(Noting):
    """`fuse`: whether products apply the ReLU before them; None: as they come."""

    def __init__(self, *given: Any, fuse: bool | None = None) -> None:
        super().__init__(*given)
        self.fuse = fuse

    def _fuses(self, node: Node) -> bool:
        return super()._fuses(node) if self.fuse is None else self.fuse


class NotedInterval(Noting, IntervalLowering):
    """The same in interval arithmetic."""


def carry(numerics: Arithmetic, inner: int) -> Arithmetic:
    """Products of float32 that go on in float64 after `inner` terms; 0: as they come."""
    return replace(numerics, inner=inner) if inner and numerics.inner else numerics


@dataclass(frozen=True)
class Shaped(Sizes):
    """Products with these warps and stages."""

    warps: int = 4
    stages: int = 3

    def product(self, *given: Any) -> Tiles:
        return replace(super().product(*given), warps=self.warps, stages=self.stages)


class Stage:
    """`rows` rows of one program, all of which stay: their bounds are taken but none is ever enough."""

    def __init__(
        self, compiled: Compiled, program: Program, numerics: str, setting: Setting, rows: int, *,
        batch: int = 2, sizes: Sizes | None = None, fuse: bool | None = None, inner: int = 0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.program, self.rows, self.setting = program, rows, setting
        device = setting.device
        self.generator = torch.Generator(device=device).manual_seed(seed)
        engine = Engine(compiled, semantics="real", dtype=numerics, device=device, kernels=setting.kernels)
        backend = engine.kernels
        assert backend is not None
        self.coefficients = engine.coefficients
        arithmetic = carry(backend.numerics, inner)
        lowering = Noted(backend.emitter, backend.frames, arithmetic, program, sizes or backend.sizes, fuse=fuse)
        launches = lowering.run()
        self.notes, self.backend = lowering.notes, backend
        centre = torch.rand(batch, compiled.net.input.size, dtype=torch.float64, device=device, generator=self.generator)
        boxes = engine.interval((centre - 0.1).clamp(0, 1), (centre + 0.1).clamp(0, 1))
        target = compiled.net.node(program.target)
        h, w, c = extent(target)
        image, row_h, row_w, channel = (self.whole_numbers(n, rows) for n in (batch, h, w, c))
        tables, capacity = engine.tables(boxes), power(rows, ALIGN, MOST)
        self.ready = Ready(launches, lay_out(launches))
        backend.arena(self.ready.arena.size * capacity * backend.word)  # before tensors are bound to places in it
        self.binding = Binding(backend, self.ready, backend.player.bring(tables, program), capacity, capacity)
        self.bound = self.binding.bind()
        self.calls = [backend.call(step, capacity, self.binding.tensor) for step in launches.steps]  # idle ones too: each is looked at
        every, to = torch.arange(rows, device=device), self.bound.starts
        whole = program.kind == "query"
        given = {"image": image, "index": every, "group": every, "row_h": row_h * (not whole), "row_w": row_w * (not whole)}
        for name, values in given.items():
            to[name][:rows] = values
        to["count"][0] = rows
        to["limit"].fill_(NEVER)
        if whole:
            to["start"][: rows * h * w * c] = self.random(rows * h * w * c).to(engine.coefficients.dtype)
        else:
            to["sign"][:rows], to["channel"][:rows] = (1 - 2 * self.whole_numbers(2, rows)).double(), channel
        to["best"].fill_(-NEVER)
        to["raw_best"].fill_(-NEVER)
        self.steps = launches.steps

    def play(self, index: int) -> object:
        """One launch; on a GPU it answers with Triton's compiled kernel."""
        return self.calls[index]()

    def count(self, state: int) -> int:
        """How many rows reached a state."""
        return int(self.binding.rows("count", state)[0])

    def whole_numbers(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self.generator, device=self.setting.device)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator, device=self.setting.device)

    def uniform(self, like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=self.generator, device=like.device)

    def fill(self, given: dict[str, Tensor]) -> None:
        """Random coefficients, a fifth of them zero, in the buffers that a launch with these tensors reads."""
        for name in ("m_ptr", "a_ptr", "b_ptr"):
            if name in given:
                given[name].normal_(generator=self.generator).mul_(self.uniform(given[name]) >= 0.2)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """The launch's tensors by parameter; those that its kernel does not read are missing."""
        launch = self.steps[index]
        return {p: self.binding.tensor(s) for p, s in zip(launch.kernel.parameters, launch.bind, strict=True)}

    def traffic(self, index: int) -> int:
        """Bytes the launch has to move at least: every value of its tensors once."""
        launch = self.steps[index]
        total = 0
        for symbol in launch.bind:
            kind, _, name = symbol.partition(":")
            tensor = self.binding.tensor(symbol)
            values = self.rows * (self.ready.launches.buffers[int(name)] if kind == "buf" else 1)
            total += (tensor.numel() if kind in SHARED else values) * tensor.element_size()
        return total
