"""Whole runs on a GPU that is not there: everything that a run of a network launches, in one small program that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.ascent_kernels import AscentKernels
from polytriton.runtime.results import Forms
from tests.kernels import grids
from tests.kernels.branches import Layers
from tests.kernels.fake_cuda import FakeCuda
from tests.kernels.test_ascent import given

RATE, TURNS = 0.2, 2


def fork() -> Net:
    """Two dense branches and what reads their sum: a program of two lanes, as small as one can be."""
    n = Layers(5, "fork")
    x = n.relu(n.linear(n.b.input((3,)), 4))
    y = n.relu(n.b.add("add", (n.linear(x, 3), n.linear(x, 3))))
    return n.b.build(n.linear(y, 2))


class Device:
    """An engine on such a GPU, or, for comparison, in the interpreter alone."""

    def __init__(self, net: Net | Compiled, cuda: FakeCuda | None, tiles: bool = False, **options: Any) -> None:
        self.cuda, self.device = cuda, torch.device("cpu" if cuda is None else "cuda")
        compiled = net if isinstance(net, Compiled) else compile_net(net)
        self.engine = Engine(compiled, kernels="interpret", device=self.device, **options)
        assert self.engine.kernels is not None
        self.backend = self.engine.kernels
        if tiles:
            grids.small_tiles(self.engine, pytest.MonkeyPatch())

    def batch(self, seed: int, batch: int, groups: int = 3) -> list[Tensor]:
        """Boxes of a batch and what forms over them are at least, on the host."""
        found = self.engine.refine(*self.balls(seed, batch))
        return self.told(found) + self.asked(found, seed, groups)

    def balls(self, seed: int, batch: int, radius: float = 0.3) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, self.engine.net.input.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return x - radius, x + radius

    def told(self, boxes: Boxes) -> list[Tensor]:
        return [v.cpu() for group in (boxes.lo, boxes.hi) for v in group.values()]

    def asked(self, boxes: Boxes, seed: int, groups: int = 3) -> list[Tensor]:
        """Groups of rows leave as one of them is proved: what the others are then depends on how many went at a time. 0: none leaves."""
        out = self.engine.net.node(self.engine.net.output).size
        forms = torch.randn(2 * boxes.batch, out, generator=torch.Generator().manual_seed(seed + 99), dtype=torch.float64)
        of = torch.arange(boxes.batch).repeat_interleave(2)
        asked = Forms(of.to(self.device), forms.to(self.device))
        found = self.engine.query(boxes, asked, torch.arange(len(of)) % groups if groups else None)
        return [found.best.cpu(), found.raw.cpu()]

    def climb(self, seed: int, signed: bool = False) -> list[Tensor]:
        """Slopes of rows' own, uphill; none where max pools keep them from it, as whoever proves asks first."""
        if not AscentKernels.serves(self.engine.net):
            return []
        rows = given(Engine(Compiled(self.engine.net, self.engine.plan), dtype="float32", semantics="real"), seed, signed)
        found = AscentKernels(self.backend).improve(rows, TURNS, RATE)
        return [v.cpu() for f in found.values() for v in (f.slopes, f.loss) if v is not None]


def whole_run(on: Device, batches: tuple[tuple[int, int], ...] = ((1, 2), (2, 2), (3, 2), (4, 1), (5, 2))) -> list[Tensor]:
    """Interval passes, refinements, queries over boxes of this batch and of an earlier one, a batch of another size, and an ascent."""
    found = [v for seed, batch in batches for v in on.batch(seed, batch)]
    early, late = (on.engine.interval(*on.balls(seed, 2)) for seed in (7, 8))
    found += on.told(late) + on.asked(early, 7) + on.asked(late, 8)  # the first lies in the places no more, and is brought back
    return found + on.climb(9)


def bits(tensors: list[Tensor]) -> list[bytes]:
    return [t.contiguous().numpy().tobytes() for t in tensors]


def forget(on: Device) -> None:
    """Nobody has written what a program is to write before it reads it."""
    assert on.cuda is not None
    memory, backend = on.cuda.memory, on.backend
    if backend._arena.numel():
        memory.forget(backend._arena)
    for (name, _), tensor in backend._kept.items():
        if name.partition(":")[0] in grids.OWN and name != "count":
            memory.forget(tensor)


@contextmanager
def forgotten(on: Device) -> Iterator[list[int]]:
    """Every block of rows begins in memory that nobody wrote; counts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "soil", lambda backend: forget(on))
        with grids.soiled(on.engine) as blocks:
            yield blocks
