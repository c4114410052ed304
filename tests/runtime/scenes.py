"""Rows on windows and their tables, drawn by seed; the torch backend with and without its compiled loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polytriton.arithmetic import LIBRARY
from polytriton.ir.plan import Axis, Window
from polytriton.passes import windows as win
from polytriton.runtime.cpu import fused
from polytriton.runtime.cpu.torch_backend import Frame, Place, Rows, TorchBackend

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64)
UNIT = {torch.float32: LIBRARY["float32"].u, torch.float64: LIBRARY["float64"].u}
numba = pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed")


def backend(fast: bool, threads: int = 1) -> TorchBackend:
    b = TorchBackend(CPU, threads)
    b.fast = b.fast and fast
    return b


def rows_at(image: Tensor, h: Tensor, w: Tensor) -> Rows:
    zero = torch.zeros(len(image), dtype=torch.float64)
    return Rows(image, h, w, zero, zero.clone(), torch.arange(len(image)))


class Scene:
    """Rows on windows of one node, and tables with a margin as wide as the windows reach."""

    def __init__(self, seed: int, dtype: torch.dtype, rows: int | None = None, large: bool = False) -> None:
        g = torch.Generator().manual_seed(seed)
        self.g, self.dtype = g, dtype

        def pick(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=g))

        h, w, c = (pick(7, 9), pick(7, 9), pick(24, 32)) if large else (pick(1, 6), pick(1, 6), pick(1, 5))
        positions = pick(1, 4), pick(1, 4)
        low = 6 if large else 1
        axes = [Axis(pick(low, 8), pick(1, 2), pick(-1, 3)) if pick(0, 4) or large else Axis(n, 0, 0) for n in (h, w)]
        self.window = Window(*axes)
        over = [win.overhang(a, p, n) for a, p, n in zip(axes, positions, (h, w), strict=True)]
        self.frame = Frame(h, w, c, (over[0][0], over[1][0], over[0][1], over[1][1]))
        self.batch, self.rows = 2, rows or pick(1, 7)
        at = [torch.randint(0, n, (self.rows,), generator=g) for n in (self.batch, *positions)]
        self.at = rows_at(*at)
        self.place: Place = self.frame.place(self.at, self.window)
        self.m = self.draw((self.rows, axes[0].size, axes[1].size, c))
        self.terms = self.place.height * self.place.line

    def draw(self, shape: tuple[int, ...], kind: str = "mixed") -> Tensor:
        x = torch.randn(shape, generator=self.g, dtype=torch.float64)
        if kind == "mixed":
            x = x * torch.pow(10.0, torch.randint(-6, 7, shape, generator=self.g).double())
            x = torch.where(torch.rand(shape, generator=self.g) < 0.2, torch.zeros_like(x), x)
            x = torch.where(torch.rand(shape, generator=self.g) < 0.05, -torch.zeros_like(x), x)
        return x.to(self.dtype)

    def table(self, kind: str = "mixed") -> Tensor:
        f = self.frame
        return f.table(self.draw((self.batch, f.h, f.w, f.channels), kind))

    def box(self) -> tuple[Tensor, Tensor]:
        a, b = self.table(), self.table()
        return torch.minimum(a, b), torch.maximum(a, b)

    def under(self, table: Tensor) -> Tensor:
        """Each row's window of a table, by its definition."""
        out = torch.empty(self.m.shape, dtype=table.dtype)
        t, left = self.frame.halo[0], self.frame.halo[1]
        for r in range(self.rows):
            image, h, w = int(self.at.image[r]), int(self.at.h[r]), int(self.at.w[r])
            top = h * self.window.h.stride - self.window.h.offset + t
            first = w * self.window.w.stride - self.window.w.offset + left
            out[r] = table[image, top : top + self.window.h.size, first : first + self.window.w.size]
        return out
