"""Predicted time of a whole run on a GPU under a configuration: every launch of every program, from the data sheet.

It orders a session's trials and leaves out the hopeless. It knows tiles, the reduction split, the coefficients, the plan (windows
that become whole images, checks that are left out) and what a launch outside a graph takes. It does not know lanes, registers of
kernels that are not compiled yet, or how many rows are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.plan import extent
from polytriton.kernels.choose import GPU, Tiles, retile
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames
from polytriton.passes.pipeline import Compiled, replan
from polytriton.runtime.config import Config, Tile
from polytriton.tuning.cross import ROWS, Kind, kind_of
from polytriton.tuning.device import Gpu
from polytriton.tuning.gpu_cost import kernel_cost

FEW = 64  # rows of a query
PLAIN = 8e-6  # seconds by which launches that Python makes one after the other are apart


@dataclass(frozen=True)
class Launched:
    """A kernel that a program launches `times` times, with its default sizes."""

    kind: Kind
    tiles: Tiles
    rows: int
    times: int


class GpuTimes:
    """One network on one GPU; `first` are the coefficients of the default."""

    def __init__(self, compiled: Compiled, gpu: Gpu, target: str, first: str) -> None:
        self.compiled, self.gpu, self.target, self.first = compiled, gpu, target, first
        self._launches: dict[bytes, tuple[list[Launched], int]] = {}
        self._seconds: dict[tuple[str, int, bytes], float] = {}

    def seconds(self, config: Config) -> float:
        """Infinite where a tile is refused."""
        numerics = config.dtype or self.first
        key = msgspec.json.encode((numerics, config.whole, config.skips))
        if key not in self._launches:
            self._launches[key] = self._lower(config, numerics)
        launched, count = self._launches[key]
        total = sum(each.times * self._each(each, config.tiles.get(each.kind.key, Tile()), numerics) for each in launched)
        return total + (0.0 if config.graphs else PLAIN * count)

    def _lower(self, config: Config, numerics: str) -> tuple[list[Launched], int]:
        plan = replan(self.compiled, config.whole, config.skips)
        frames, net = Frames(self.compiled.net, plan), self.compiled.net
        found, count = [], 0
        for program in plan:
            emitter = Emitter()
            count += len(Lowering(emitter, frames, ARITHMETICS[numerics], program, GPU).run().steps)
            rows = FEW if program.kind == "query" else min(ROWS, 2 * _size(net.node(program.target)))
            kinds: dict[str, tuple[Kind, int]] = {}
            for use in (use for uses in emitter.uses.values() for use in uses):
                kind = kind_of(use, emitter)
                if kind is not None:
                    kinds[kind.key] = kind, kinds.get(kind.key, (kind, 0))[1] + 1
            found += [Launched(kind, emitter.asked[key], rows, times) for key, (kind, times) in kinds.items()]
        return found, count

    def _each(self, launched: Launched, tile: Tile, numerics: str) -> float:
        kind = launched.kind
        key = kind.key, launched.rows, msgspec.json.encode(tile)
        if key not in self._seconds:
            try:
                tiles = retile(launched.tiles, tile, ARITHMETICS[numerics])
            except ValueError:
                return float("inf")
            every = {**kind.constants, **tiles.constants}
            self._seconds[key] = kernel_cost(kind.function, every, numerics, launched.rows, self.gpu, None, self.target).seconds
        return self._seconds[key]


def _size(node: Any) -> int:
    h, w, c = extent(node)
    return h * w * c
