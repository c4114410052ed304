"""The backend on torch tensors: row passes in one compiled loop each, products by libraries (products.py).

Any device torch knows works; on the CPU the row passes are fused (fused.py) where Numba is there.
Coefficients are [rows, height, width, channels], channels last in memory. Row sums are float64, `DOT` bounds their relative error.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytriton.ir.plan import Axis, Window
from polytriton.passes.windows import margins
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.cpu import fused
from polytriton.runtime.cpu.products import FEW, LONG, Compact, ConvShape, Products, crop
from polytriton.runtime.cpu.scalars import Scalars
from polytriton.runtime.input_balls import InputBalls, least_over
from polytriton.runtime.results import Rows

if TYPE_CHECKING:
    from polytriton.runtime.tables import BallTables, LineTables

__all__ = ["FEW", "LONG", "Compact", "ConvShape", "Frame", "Place", "Rows", "TorchBackend", "crop"]


@dataclass(frozen=True)
class Place:
    """Where rows' windows lie in a node's tables: start values, values an image line, window height, values a window line."""

    base: Tensor
    pitch: int
    height: int
    width: int
    channels: int

    @property
    def line(self) -> int:
        return self.width * self.channels


@dataclass(frozen=True)
class OwnLines:
    """Tables of the rows' own for a ReLU, not trusted: slopes of lines below, at least `least`, and multipliers of signs, with the batch's
    table of where rows may have one.
    """

    place: Place
    least: float
    slopes: Tensor
    multipliers: Tensor | None = None
    may: Tensor | None = None


@dataclass(frozen=True)
class Frame:
    """A node's image and the margin its tables carry: tables are [batch, top+h+bottom, left+w+right, channels]."""

    h: int
    w: int
    channels: int
    halo: tuple[int, int, int, int]

    @property
    def padded(self) -> tuple[int, int]:
        t, left, b, right = self.halo
        return t + self.h + b, left + self.w + right

    def table(self, values: Tensor) -> Tensor:
        """[batch, h, w, channels] inside a margin of zeros."""
        t, left, b, right = self.halo
        return F.pad(values, (0, 0, left, right, t, b)).contiguous() if any(self.halo) else values.contiguous()

    def origin(self, window: Window) -> tuple[int, int, int, int, int]:
        """Where a row's window begins in the table: so many values for its image, at first, for its place down and across; and a line's."""
        height, width = self.padded
        pitch = width * self.channels
        if window.whole:  # the same cells for every row of an image
            return height * pitch, (self.halo[0] * width + self.halo[1]) * self.channels, 0, 0, pitch
        start = (self.halo[0] - window.h.offset) * pitch + (self.halo[1] - window.w.offset) * self.channels
        return height * pitch, start, window.h.stride * pitch, window.w.stride * self.channels, pitch

    def place(self, rows: Rows, window: Window) -> Place:
        image, start, down, across, pitch = self.origin(window)
        base = rows.image * image + start
        if not window.whole:
            base.add_(rows.h, alpha=down).add_(rows.w, alpha=across)
        return Place(base, pitch, window.h.size, window.w.size, self.channels)


class TorchBackend(Products, Scalars):
    """Stateless operations on rows; `threads` splits the fused passes, `config` chooses among forms that mean the same."""

    plays = True  # programs may be played in one call (tape.py); a backend whose operations are watched says that they may not

    def __init__(self, device: torch.device, threads: int = 1, config: Config = DEFAULT) -> None:
        self.device, self.config = device, config
        self.threads = threads
        self.fast = fused.AVAILABLE and device.type == "cpu"
        # oneDNN's direct convolutions sum plainly; other libraries may choose Winograd, which no bound here covers
        self.direct = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")

    def pad(self, index: Tensor) -> Tensor:
        """Row numbers, the first repeated up to one of few counts: libraries prepare a convolution anew for every count."""
        n = len(index)
        if n == 0 or self.device.type != "cpu":
            return index
        step = max(4, 1 << max(0, n.bit_length() - self.config.counts))
        return torch.cat([index, index[:1].expand(-n % step)])

    # ---- row passes ------------------------------------------------------------------------------------

    def _gather(self, table: Tensor, place: Place) -> Tensor:
        """Every row's window of a table, [rows, height, line]."""
        step = torch.arange(place.height, device=self.device)[:, None] * place.pitch + torch.arange(place.line, device=self.device)
        return table.reshape(-1)[place.base[:, None, None] + step]

    def _run_fused(self, kernel: object, m: Tensor, place: Place, *tables: Tensor | int | fused.PerRow, count: int) -> tuple[Tensor, ...]:
        outputs = np.empty((count, m.shape[0]))
        rest = [t.numpy().reshape(-1) if isinstance(t, Tensor) else t for t in tables]
        fused.over_rows(
            kernel, self.threads, m.view(-1).numpy(), place.base.numpy(), place.pitch, place.height, place.line,
            *rest, outputs=tuple(outputs), least=self.config.split,
        )  # fmt: skip
        return torch.from_numpy(outputs).unbind()

    def concretize(
        self, m: Tensor, place: Place, lo: Tensor, hi: Tensor, point: Tensor | None = None, ends: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Least value of each row over its boxes, to within dot_error * weight; weight = sum |m| max(|lo|, |hi|); its value at a
        point, where one is given; its greatest value, where both `ends` are asked for."""
        if self.fast:
            given = lo, hi, lo[:0] if point is None else point, ends
            least, weight, at, greatest = self._run_fused(fused.concretize, m, place, *given, count=4)
            return least, weight, None if point is None else at, greatest if ends else None
        x = m.reshape(len(m), place.height, place.line).double()
        low, high = self._gather(lo, place).double(), self._gather(hi, place).double()
        least, weight = (x * torch.where(x < 0, high, low)).sum((1, 2)), (x.abs() * torch.maximum(low.abs(), high.abs())).sum((1, 2))
        most = (x * torch.where(x < 0, low, high)).sum((1, 2)) if ends else None
        return least, weight, None if point is None else self.table_dot(m, place, point), most

    def least_in_ball(self, m: Tensor, place: Place, ball: BallTables, images: Tensor) -> Tensor:
        """A number not above any row's value where its box and ball meet; what it rounds is paid."""

        def windows(table: Tensor) -> Tensor:
            return self._gather(table, place).flatten(1)

        b = ball.balls
        return least_over(
            m.reshape(len(m), -1), windows(ball.lo), windows(ball.hi),
            InputBalls(b.norm, windows(b.centre), windows(b.scale), b.radius[images]),
        )  # fmt: skip

    def weigh(self, m: Tensor, place: Place, xabs: Tensor) -> Tensor:
        """Sum of |m| xabs over every row's window."""
        if self.fast:
            return self._run_fused(fused.weigh, m, place, xabs, count=1)[0]
        return self.table_dot(m.abs(), place, xabs)

    def relax(
        self, m: Tensor, place: Place, below: Tensor, above: Tensor, lower_cut: Tensor | None, upper_cut: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rows over f(y) become rows over y, in place; also the sum of intercepts, all of one sign (<= 0)."""
        if self.fast:
            extra = self.positive_dot(m, place, lower_cut) if lower_cut is not None else None
            (total,) = self._run_fused(fused.relax, m, place, below, above, upper_cut, count=1)
            return m, total if extra is None else total + extra
        x = m.reshape(len(m), place.height, place.line)
        negative = x < 0
        total = (x.clamp(max=0).double() * self._gather(upper_cut, place).double()).sum((1, 2))
        if lower_cut is not None:
            total = total + self.positive_dot(m, place, lower_cut)
        return (x * torch.where(negative, self._gather(above, place), self._gather(below, place))).view_as(m), total

    def positive_dot(self, m: Tensor, place: Place, table: Tensor) -> Tensor:
        """Sum of m * table over the positive coefficients of every row's window."""
        if self.fast:
            return self._run_fused(fused.positive_dot, m, place, table, count=1)[0]
        return self.table_dot(m.clamp(min=0), place, table)

    def charge(self, m: Tensor, place: Place, t: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The scalars of an affine step: sum of m * bias and of |m| * t. bias is [1 or height, width*channels], or a table as t is."""
        if self.fast:
            constant, error = self._run_fused(fused.charge, m, place, t, bias, fused.PerRow(_lines_of(bias, place)), count=2)
            return constant, error
        x = m.reshape(len(m), place.height, place.line).double()
        own = bias if bias.dim() == 2 else self._gather(bias, place)
        return (x * own.double()).sum((1, 2)), (x.abs() * self._gather(t, place).double()).sum((1, 2))

    def relax_chosen(
        self, m: Tensor, place: Place, lines: LineTables, box: tuple[Tensor, Tensor, Place], own: OwnLines
    ) -> tuple[Tensor, Tensor]:
        """As `relax` by `lines`, into new memory, with the rows' own slopes where the operand's box leaves the sign open, and their own
        multipliers where it shows theirs (runtime/chosen.py).
        """
        lo, hi, then = box
        if self.fast and lines.lower_cut is None and own.least == 0.0:
            out, none = torch.empty_like(m), m.view(-1)[:0]
            start = fused.PerRow(np.arange(m.shape[0]) * (place.height * place.line))
            mine, after = fused.PerRow(own.place.base.numpy()), fused.PerRow(then.base.numpy())
            less, may = (none, none) if own.multipliers is None or own.may is None else (own.multipliers, own.may)
            tables = m, start, mine, own.slopes, lines.below, lines.above, lines.upper_cut, after, then.pitch, lo, hi, less, may
            (total,) = self._run_fused(fused.relax_chosen, out, place, *tables, count=1)
            return out, total
        x, gather = m.reshape(len(m), place.height, place.line), self._gather
        low, high = gather(lo, then), gather(hi, then)
        slopes = gather(own.slopes, own.place).nan_to_num(1.0).clamp(own.least, 1.0)
        below = torch.where((low < 0) & (high > 0), slopes, gather(lines.below, place)) if own.least <= 1.0 else gather(lines.below, place)
        total = (x.clamp(max=0).double() * gather(lines.upper_cut, place).double()).sum((1, 2))
        if lines.lower_cut is not None:
            total = total + (x.clamp(min=0).double() * gather(lines.lower_cut, place).double()).sum((1, 2))
        out = x * torch.where(x < 0, gather(lines.above, place), below)
        if own.multipliers is not None and own.may is not None:
            b = gather(own.multipliers, own.place).nan_to_num(0.0, 0.0, 0.0)
            shown = ((b > 0) & (low >= 0)) | ((b < 0) & (high <= 0))
            out = out - torch.where(shown & (gather(own.may, place) != 0), b, torch.zeros_like(b))
        return out.view_as(m), total

    def relax_and_charge(
        self,
        m: Tensor,
        place: Place,
        below: Tensor,
        above: Tensor,
        upper_cut: Tensor,
        then: Place,
        t: Tensor,
        bias: Tensor,
        stay: Tensor | None = None,
        point: Tensor | None = None,
        gap: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """`relax` without a lower cut, then `charge` at `then` (the operand's place): one pass where a fused form exists. Then come each
        row's value at a point before that, and what `positive_dot` says of its gaps, where one is given.

        m is left as it is. With `stay` the result has those rows of m, and the places are theirs.
        """
        if self.fast:
            rows = np.arange(m.shape[0]) if stay is None else stay.numpy()
            out = m.new_empty(len(rows), *m.shape[1:])
            lines = np.concatenate(
                [_lines_of(bias, then), (rows * (place.height * place.line))[:, None], then.base.numpy()[:, None]], axis=1
            )
            gaps, centre = (upper_cut[:0] if v is None else v for v in (gap, point))
            tables = m, below, above, upper_cut, gaps, centre, then.pitch, t, bias, fused.PerRow(lines)
            total, constant, error, there, over = self._run_fused(fused.relax_and_charge, out, place, *tables, count=5)
            return out, total, constant, error, None if point is None else there, None if gap is None else over
        m = m.clone() if stay is None else m.index_select(0, stay)
        at = None if point is None else self.table_dot(m, place, point)
        beyond = None if gap is None else self.positive_dot(m, place, gap)
        m, total = self.relax(m, place, below, above, None, upper_cut)
        constant, error = self.charge(m, then, t, bias)
        return m, total, constant, error, at, beyond

    def table_dot(self, m: Tensor, place: Place, table: Tensor) -> Tensor:
        """Sum of m * table over every row's window."""
        x = m.reshape(len(m), place.height, place.line).double()
        return (x * self._gather(table, place).double()).sum((1, 2))

    def table_product(self, m: Tensor, place: Place, table: Tensor) -> Tensor:
        return (m.reshape(len(m), place.height, place.line) * self._gather(table, place)).view_as(m)

    # ---- windows ---------------------------------------------------------------------------------------

    def embed(self, m: Tensor, rows: Rows, old: Window, new: Window) -> Tensor:
        """The same coefficients on a window that contains the old one (or on the whole image: cells off it are dropped)."""
        if old == new:
            return m
        around = margins(old, new)
        if around is not None:
            top, left, bottom, right = around
            return F.pad(m, (0, 0, left, right, top, bottom))
        out = m.new_zeros(len(m), new.h.size + 1, new.w.size + 1, m.shape[-1])  # one line more takes what is dropped
        ih, iw = self._cells(rows.h, old.h, new.h), self._cells(rows.w, old.w, new.w)
        row = torch.arange(len(m), device=self.device)[:, None, None]
        out[row, ih[:, :, None], iw[:, None, :]] = m
        return out[:, : new.h.size, : new.w.size].contiguous()

    def union(self, rows: Rows, first: tuple[Tensor, Window], second: tuple[Tensor, Window], new: Window) -> Tensor:
        """The sum of two contributions on a window that contains both; the arguments may be overwritten."""
        if second[1] == new:
            first, second = second, first
        out = self.embed(first[0], rows, first[1], new)
        m, window = second
        around = margins(window, new)
        if around is not None:
            top, left, *_ = around
            out[:, top : top + window.h.size, left : left + window.w.size] += m
            return out
        return out.add_(self.embed(m, rows, window, new))

    def _cells(self, position: Tensor, old: Axis, new: Axis) -> Tensor:
        """For every row and old cell its index on the new axis, or new.size where it lies outside."""
        shift = position * (old.stride - new.stride) - old.offset + new.offset
        index = shift[:, None] + torch.arange(old.size, device=self.device)
        return torch.where((index >= 0) & (index < new.size), index, torch.full_like(index, new.size))


def _lines_of(bias: Tensor, place: Place) -> np.ndarray:
    """Where each row's lines of a bias begin and how far they lie apart: in a table at the place, or the same for all rows."""
    lines, (own, apart) = np.zeros((place.base.shape[0], 2), np.int64), bias_lines(bias)
    if own:
        lines[:, 0], lines[:, 1] = place.base.numpy(), place.pitch
    else:
        lines[:, 1] = apart
    return lines


def bias_lines(bias: Tensor) -> tuple[bool, int]:
    """Whether a bias is a table, whose lines lie at the rows' places, and how far lines that all rows share lie apart."""
    return bias.dim() == 4, bias.shape[-1] if bias.dim() != 4 and bias.shape[0] > 1 else 0
