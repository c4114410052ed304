"""Runs programs in the paper's interval arithmetic (kernels/device/interval.py): the generated kernels of kernels/interval_launches.py.

Everything the launches do not do stays as it is: capacities, the arena, captured graphs, rows that leave. What a row starts with
is turned into an interval: target >= M x + c - err holds with c' = c - err, which lies in [c - err, c + err].
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polytriton.ir.launches import Launches
from polytriton.ir.plan import Program
from polytriton.kernels.interval_launches import RELATION, IntervalLowering
from polytriton.kernels.stock import Stock
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.gpu.binding import Binding, Bound
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, relation_error
from polytriton.runtime.tables import Tables


def ball_ends(middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """[middle - radius, middle + radius], float64, rounded outward; exact where the radius is 0. A NaN in either is one in both."""
    low, high = middle - radius, middle + radius
    still = radius == 0
    infinity = torch.full_like(low, float("inf"))
    return torch.where(still, low, torch.nextafter(low, -infinity)), torch.where(still, high, torch.nextafter(high, infinity))


class IntervalBackend(TritonBackend):
    """One network, intervals of one type, one device."""

    takes_relations = True

    def __init__(
        self, kit: Kit, dtype: str, device: torch.device, interpret: bool, memory: int, config: Config = DEFAULT,
        stock: Stock | None = None, *, early: bool = True, tight: bool = False,
    ) -> None:  # fmt: skip
        numerics = f"interval{dtype.removeprefix('float')}"
        tiles = {key: tile for key, tile in config.tiles.items() if f":{numerics}:" in key}  # of others, no launch differs
        own = replace(config, tiles=tiles, rooms={}, lanes=True)
        super().__init__(kit, numerics, device, interpret, memory, own, stock, early=early, tight=tight)

    def lower(self, program: Program) -> Launches:
        return IntervalLowering(self.emitter, self.frames, self.numerics, program, self.sizes).run()

    def table(self, tables: Tables, kind: str, name: str) -> Tensor:
        side, _, end = kind.partition("_")
        frame = self.kit.frames.get(name)
        if side == "box" and frame is not None:
            return frame.table((tables.boxes.lo if end == "lo" else tables.boxes.hi)[name])
        if side == "term" and frame is not None:
            return frame.table(self._terms(tables, name)[end == "hi"])
        return super().table(tables, kind, name)

    def _terms(self, tables: Tables, name: str) -> tuple[Tensor, Tensor]:
        """b + delta of an affine node as a box of float64 numbers: delta is the deployed layer's own error, what merging layers
        rounded, and what the coefficient type cannot hold of the weights (the vector t of a single neuron, tables.first).
        """
        error, layer = tables.first(name), self.kit.forward.layers.get(name)
        return ball_ends(torch.zeros_like(error) if layer is None else layer.b.expand_as(error), error)

    def program_for(self, program: Program, forms: Forms) -> Program:
        return program if forms.over_input is None else replace(program, kind=RELATION)

    def begin_rows(self, bound: Bound, tables: Tables, forms: Forms, begin: int, count: int) -> None:
        """The constant's interval, and the coefficients over the input that rows bring along."""
        constant, error = bound.starts["constant"][:count], bound.starts["error"][:count]
        if forms.over_input is not None:
            rows = torch.arange(begin, begin + count, device=self.device)
            error += relation_error(forms, rows, tables.absmax(self.kit.net.input.name), self.kit.coefficients.dtype)
            given = Binding(self, bound.ready, self.player.bring(tables, self.kit.plan.query), bound.capacity, 0).buffer(1)
            given[: count * forms.over_input.shape[1]] = forms.over_input[begin : begin + count].reshape(-1)
        lo, hi = ball_ends(constant, error)
        constant.copy_(lo)
        error.copy_(hi)
