"""What a run spends its time on: seconds, rows and calls of every convolution, layer and kind of row pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from torch import Tensor

from polytriton.ir.plan import Window
from polytriton.runtime.config import conv_key
from polytriton.runtime.cpu.blocks import Packed
from polytriton.runtime.cpu.torch_backend import ConvShape, TorchBackend
from polytriton.runtime.engine import Engine
from polytriton.tuning.cpu_cost import Load

CONV, LINEAR, PASSES = "conv", "linear", ("concretize", "weigh", "relax", "charge", "relax_and_charge")


class Spent(msgspec.Struct):
    """One kernel's share of a run; `values` are coefficients that went through it."""

    kind: str
    seconds: float = 0.0
    rows: int = 0
    calls: int = 0
    values: int = 0


class Profile(msgspec.Struct):
    """A whole run: `ops` are what the Plan counts."""

    kernels: dict[str, Spent] = {}
    seconds: float = 0.0
    ops: int = 0
    block: int = 0

    def load(self) -> Load:
        """What a prediction for other configurations starts from; what no model covers stays as it was."""
        convs = {k: s for k, s in self.kernels.items() if s.kind == CONV}
        passes = [s for s in self.kernels.values() if s.kind in PASSES]
        covered = sum(s.seconds for s in (*convs.values(), *passes))
        return Load(
            {k: s.rows for k, s in convs.items()}, {k: s.calls for k, s in convs.items()}, float(sum(s.values for s in passes)),
            sum(s.calls for s in passes), max(0.0, self.seconds - covered), self.block,
        )  # fmt: skip


class Measured(TorchBackend):
    """The backend with a clock at every operation; rows are walked step by step for it."""

    plays = False

    def __init__(self, plain: TorchBackend, kernels: dict[str, Spent]) -> None:
        super().__init__(plain.device, plain.threads, plain.config)
        self.kernels = kernels

    def _note(self, name: str, kind: str, m: Tensor, start: float) -> None:
        spent = self.kernels.setdefault(name, Spent(kind))
        spent.seconds += time.perf_counter() - start
        spent.rows += len(m)
        spent.calls += 1
        spent.values += m.numel()

    def conv(self, m: Tensor, w: Tensor | Packed, conv: ConvShape, window: Window) -> Tensor:
        start = time.perf_counter()
        out = super().conv(m, w, conv, window)
        self._note(conv_key((m.shape[1], m.shape[2], m.shape[3]), tuple(w.shape), conv.stride, conv.groups), CONV, m, start)
        return out

    def linear(self, m: Tensor, w: Any, picked: bool = False, narrow: bool = False) -> Tensor:
        start = time.perf_counter()
        out = super().linear(m, w, picked, narrow)
        self._note(f"dense {m[0].numel()}x{out[0].numel()}" if len(m) else LINEAR, LINEAR, m, start)
        return out


def _time_method(name: str) -> Callable[..., Any]:
    plain = getattr(TorchBackend, name)

    def method(self: Measured, m: Tensor, *rest: Any) -> Any:
        start = time.perf_counter()
        out = plain(self, m, *rest)
        self._note(f"{name} {m.shape[1]}x{m.shape[2]}x{m.shape[3]}", name, m, start)
        return out

    return method


for _name in PASSES:
    setattr(Measured, _name, _time_method(_name))


@contextmanager
def profile_engine(engine: Engine) -> Iterator[Profile]:
    """Clocks in the engine while it runs. What a tape would save (runtime/cpu/tape.py) is counted among what no kernel took."""
    made, plain, alone, ops = Profile(block=engine.config.block), engine.walker.backend, engine.walker.alone, engine.operations
    engine.walker.backend, engine.walker.alone = Measured(plain, made.kernels), Measured(alone, made.kernels)
    start = time.perf_counter()
    try:
        yield made
    finally:
        made.seconds = time.perf_counter() - start
        made.ops = engine.operations - ops
        engine.walker.backend, engine.walker.alone = plain, alone
