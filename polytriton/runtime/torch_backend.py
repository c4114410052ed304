"""The backend on torch tensors: products by the library's GEMM and direct transposed convolution, row passes fused.

Any device torch knows works; on the CPU the row passes run in one compiled loop each (fused.py) where Numba is there.
Coefficients are [rows, height, width, channels], channels last in memory.

Rounding: an entry of a product is a sum of K terms in some order, with or without FMA (no Winograd, FFT or Strassen;
settings.py pins the library's precision), so gamma_K covers it. Row sums are float64, `DOT` bounds their relative error.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polytriton.ir.plan import Axis, Window
from polytriton.runtime import fused
from polytriton.runtime.config import AUTO, DEFAULT, GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config, conv_key

FEW, LONG = 4, 12  # `auto` sums planes rather than cells up to so many input channels, from lines of so many cells on


@dataclass
class Rows:
    """Which image and position each row belongs to, and what it has gathered: constant and error, both float64."""

    image: Tensor
    h: Tensor
    w: Tensor
    constant: Tensor
    error: Tensor
    index: Tensor  # where in the program's results the row's bound belongs

    def __len__(self) -> int:
        return len(self.image)

    def keep(self, index: Tensor) -> Rows:
        return Rows(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Compact:
    """A dense layer without the outputs that no row refers to and the inputs that are always zero."""

    w: Tensor
    outputs: Tensor
    inputs: Tensor | None  # None: all of them


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

    def place(self, rows: Rows, window: Window) -> Place:
        height, width = self.padded
        if window.whole:  # the same cells for every row of an image
            start = (self.halo[0] * width + self.halo[1]) * self.channels
            base = rows.image * (height * width * self.channels) + start
            return Place(base, width * self.channels, window.h.size, window.w.size, self.channels)
        pitch = width * self.channels
        base = rows.image * (height * pitch) + ((self.halo[0] - window.h.offset) * pitch + (self.halo[1] - window.w.offset) * self.channels)
        base.add_(rows.h, alpha=window.h.stride * pitch).add_(rows.w, alpha=window.w.stride * self.channels)
        return Place(base, pitch, window.h.size, window.w.size, self.channels)


class TorchBackend:
    """Stateless operations on rows; `threads` splits the fused passes, `config` chooses among forms that mean the same."""

    def __init__(self, device: torch.device, threads: int = 1, config: Config = DEFAULT) -> None:
        self.device, self.config = device, config
        self.threads = threads
        self.fast = fused.AVAILABLE and device.type == "cpu"
        # oneDNN's direct convolutions sum plainly; other libraries may choose Winograd, which no bound here covers
        self.direct = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")

    def padded(self, index: Tensor) -> Tensor:
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

    def _fused(self, kernel: object, m: Tensor, place: Place, *tables: Tensor | int | fused.PerRow, count: int) -> tuple[Tensor, ...]:
        outputs = torch.empty(count, m.shape[0], dtype=torch.float64, device=m.device)
        rest = [t.numpy().reshape(-1) if isinstance(t, Tensor) else t for t in tables]
        fused.over_rows(
            kernel, self.threads, m.view(-1).numpy(), place.base.numpy(), place.pitch, place.height, place.line,
            *rest, outputs=tuple(outputs.numpy()), least=self.config.split,
        )  # fmt: skip
        return outputs.unbind()

    def concretize(self, m: Tensor, place: Place, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Least value of each row over its boxes, to within dot_error * weight; weight = sum |m| max(|lo|, |hi|)."""
        if self.fast:
            value, weight = self._fused(fused.concretize, m, place, lo, hi, count=2)
            return value, weight
        x = m.reshape(len(m), place.height, place.line).double()
        low, high = self._gather(lo, place).double(), self._gather(hi, place).double()
        return (x * torch.where(x < 0, high, low)).sum((1, 2)), (x.abs() * torch.maximum(low.abs(), high.abs())).sum((1, 2))

    def weigh(self, m: Tensor, place: Place, xabs: Tensor) -> Tensor:
        """Sum of |m| xabs over every row's window."""
        if self.fast:
            return self._fused(fused.weigh, m, place, xabs, count=1)[0]
        return self.table_dot(m.abs(), place, xabs)

    def relax(
        self, m: Tensor, place: Place, below: Tensor, above: Tensor, lower_cut: Tensor | None, upper_cut: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rows over f(y) become rows over y, in place; also the sum of intercepts, all of one sign (<= 0)."""
        if self.fast:
            extra = self._fused(fused.positive_dot, m, place, lower_cut, count=1)[0] if lower_cut is not None else None
            (total,) = self._fused(fused.relax, m, place, below, above, upper_cut, count=1)
            return m, total if extra is None else total + extra
        x = m.reshape(len(m), place.height, place.line)
        negative = x < 0
        total = (x.clamp(max=0).double() * self._gather(upper_cut, place).double()).sum((1, 2))
        if lower_cut is not None:
            total = total + (x.clamp(min=0).double() * self._gather(lower_cut, place).double()).sum((1, 2))
        return (x * torch.where(negative, self._gather(above, place), self._gather(below, place))).view_as(m), total

    def charge(self, m: Tensor, place: Place, t: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The scalars of an affine step: sum of m * bias and of |m| * t. bias is [1 or height, width*channels]."""
        if self.fast:
            step = bias.shape[-1] if bias.shape[0] > 1 else 0
            constant, error = self._fused(fused.charge, m, place, t, bias, step, count=2)
            return constant, error
        x = m.reshape(len(m), place.height, place.line).double()
        return (x * bias.double()).sum((1, 2)), (x.abs() * self._gather(t, place).double()).sum((1, 2))

    def relax_and_charge(
        self, m: Tensor, place: Place, below: Tensor, above: Tensor, upper_cut: Tensor, then: Place, t: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`relax` without a lower cut, then `charge` at `then` (the operand's place): one pass where a fused form exists."""
        if self.fast:
            step = bias.shape[-1] if bias.shape[0] > 1 else 0
            start = fused.PerRow(then.base.numpy())
            total, constant, error = self._fused(
                fused.relax_and_charge, m, place, below, above, upper_cut, start, then.pitch, t, bias, step, count=3
            )
            return m, total, constant, error
        m, total = self.relax(m, place, below, above, None, upper_cut)
        return m, total, *self.charge(m, then, t, bias)

    def table_dot(self, m: Tensor, place: Place, table: Tensor) -> Tensor:
        """Sum of m * table over every row's window."""
        x = m.reshape(len(m), place.height, place.line).double()
        return (x * self._gather(table, place).double()).sum((1, 2))

    def table_product(self, m: Tensor, place: Place, table: Tensor) -> Tensor:
        return (m.reshape(len(m), place.height, place.line) * self._gather(table, place)).view_as(m)

    # ---- products --------------------------------------------------------------------------------------

    def linear(self, m: Tensor, w: Tensor | Compact, shape: tuple[int, int, int]) -> Tensor:
        flat = m.reshape(len(m), -1)
        if isinstance(w, Tensor):
            return (flat @ w).view(len(m), *shape)
        product = flat.index_select(1, w.outputs) @ w.w
        if w.inputs is None:
            return product.view(len(m), *shape)
        out = m.new_zeros(len(m), shape[0] * shape[1] * shape[2])
        out.index_copy_(1, w.inputs, product)
        return out.view(len(m), *shape)

    def conv(self, m: Tensor, w: Tensor, conv: ConvShape, window: Window) -> Tensor:
        """Transposed convolution of every row's window, cut to the window the plan asks for.

        An entry of the result sums the same products in every form, in another order.
        """
        lead = conv.lead(window)
        form = self.form(m, w, conv)
        if form == PLANES:
            return self._product_and_planes(m, w, conv, lead, window)
        if form == GATHER:
            return self._gathered_product(m, w, conv, lead, window)
        if form == SHIFTS:
            return self._product_and_shift(m, w, conv, lead, window)
        full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(m.shape[1:3], conv.stride, conv.kernel, conv.dilation, strict=True)]
        # the library drops `cut` cells on both sides and gives back `grow` at the end: no work on cells nobody asked for
        cut, grow = [], []
        for begin, size, f, s, d in zip(lead, (window.h.size, window.w.size), full, conv.stride, conv.dilation, strict=True):
            end = min(begin + size, f)
            room = max(s, d) - 1
            c = max(0, min(begin, f - end + room, (f - 1) // 2))
            cut.append(c)
            grow.append(max(0, end - (f - c)))
        x = m.permute(0, 3, 1, 2)
        if form == PLANAR:
            x, w = x.contiguous(), w.contiguous()
        y = F.conv_transpose2d(x, w, None, conv.stride, cut, grow, conv.groups, conv.dilation)
        return crop(y.permute(0, 2, 3, 1), (lead[0] - cut[0], lead[1] - cut[1]), window)

    def form(self, m: Tensor, w: Tensor, conv: ConvShape) -> str:
        """The form asked for where it is one that this convolution, type and machine admit, else a sound default."""
        asked = self.config.convs.get(conv_key((m.shape[1], m.shape[2], m.shape[3]), tuple(w.shape), conv.stride, conv.groups), AUTO)
        forms = self.forms(m.dtype, conv)
        if asked in forms:
            return asked
        ci, line = w.shape[1], m.shape[2] * w.shape[1]
        if LIBRARY not in forms or (self.fast and conv.groups == 1 and (ci <= self.config.narrow or line <= self.config.short)):
            return PLANES if PLANES in forms and ci <= FEW and m.shape[2] >= LONG else SHIFTS
        return LIBRARY

    def forms(self, dtype: torch.dtype, conv: ConvShape) -> list[str]:
        """The forms whose sums are plain here: a library's float64 convolution is slow, and elsewhere it may be Winograd's."""
        found = [LIBRARY, PLANAR] if self.direct and dtype != torch.float64 else []
        found.append(SHIFTS)
        if self.fast and conv.groups == 1 and conv.stride[1] == 1:
            found.append(PLANES)
        if conv.groups == 1 and conv.dilation == (1, 1):
            found.append(GATHER)
        return found

    def _some(self, each: int) -> int:
        """Rows whose products, `each` values a row, stay in the cache."""
        return max(1, self.threads * self.config.taps // max(1, each))

    def _product_and_planes(self, m: Tensor, w: Tensor, conv: ConvShape, lead: tuple[int, int], window: Window) -> Tensor:
        """One GEMM whose cells lie side by side, then sums of whole lines: the better, the fewer input channels there are."""
        r, h, wd, c = m.shape
        (kh, kw), ci = conv.kernel, w.shape[1]
        by_tap = w.permute(2, 3, 1, 0).reshape(kh * kw * ci, c)
        out = m.new_empty(r, window.h.size, window.w.size * ci)
        some = self._some(h * wd * kh * kw * ci)
        for a in range(0, r, some):
            part, to = m[a : a + some], out[a : a + some]
            taps = torch.mm(by_tap, part.reshape(-1, c).t()).view(kh, kw, ci, len(part), h, wd)
            fused.over_ranges(
                fused.plane_sums, self.threads, taps.numpy(), to.numpy(), *lead, conv.stride[0], *conv.dilation, least=self.config.split
            )
        return out.view(r, window.h.size, window.w.size, ci)

    def _gathered_product(self, m: Tensor, w: Tensor, conv: ConvShape, lead: tuple[int, int], window: Window) -> Tensor:
        """For every phase of the stride a GEMM over the cells and taps that meet in an output cell (im2col).

        Cell f of the full result is sum over q of m[t - q] w[a + s q] with f = s t + a: the taps of its phase a = f mod s.
        """
        r, _, _, c = m.shape
        (kh, kw), (sh, sw), ci = conv.kernel, conv.stride, w.shape[1]
        out = m.new_zeros(r, window.h.size, window.w.size, ci)
        by_tap = w.permute(2, 3, 0, 1)  # [kh, kw, c, ci]
        some = self._some(window.cells * kh * kw * c // (sh * sw))
        for a in range(0, r, some):
            for ph in range(min(sh, kh)):
                th, oh, nh = _phase(lead[0], window.h.size, ph, sh)
                for pw in range(min(sw, kw)):
                    tw, ow, nw = _phase(lead[1], window.w.size, pw, sw)
                    if nh <= 0 or nw <= 0:
                        continue
                    weights = by_tap[ph::sh, pw::sw]
                    qh, qw = weights.shape[:2]
                    need = Window(Axis(nh + qh - 1, 1, 0), Axis(nw + qw - 1, 1, 0))
                    padded = crop(m[a : a + some], (th - qh + 1, tw - qw + 1), need)
                    cells = [padded[:, qh - 1 - i : qh - 1 - i + nh, qw - 1 - j : qw - 1 - j + nw] for i in range(qh) for j in range(qw)]
                    product = torch.cat(cells, 3).view(-1, qh * qw * c) @ weights.reshape(-1, ci)
                    out[a : a + some, oh::sh, ow::sw] = product.view(-1, nh, nw, ci)
        return out

    def _product_and_shift(self, m: Tensor, w: Tensor, conv: ConvShape, lead: tuple[int, int], window: Window) -> Tensor:
        """One GEMM over channels, then shifted sums: float64 has no fast direct convolution on CPUs, nor have a few channels."""
        r, h, wd, c = m.shape
        g, (kh, kw), (sh, sw), (dh, dw) = conv.groups, conv.kernel, conv.stride, conv.dilation
        ci = w.shape[1]
        if self.fast and g == 1:
            by_cell = w.permute(0, 2, 3, 1).reshape(c, -1)  # [c, kh*kw*ci]
            out = m.new_empty(r, window.h.size, window.w.size * ci)
            some = self._some(h * wd * kh * kw * ci)
            taps = m.new_empty(min(r, some), h, wd, kh, kw * ci)
            for a in range(0, r, some):
                part, to, made = m[a : a + some].reshape(-1, c), out[a : a + some].zero_(), taps[: r - a]
                torch.mm(part, by_cell, out=made.view(-1, kh * kw * ci))
                fused.over_slices(
                    fused.shifted_sums, self.threads, made.numpy(), to.numpy(), ci, *lead, sh, sw, dh, dw, least=self.config.split
                )
            return out.view(r, window.h.size, window.w.size, ci)
        by_tap = w.view(g, c // g, ci, kh, kw).permute(0, 3, 4, 1, 2)  # [g, kh, kw, c/g, ci]
        x = m.reshape(-1, g, c // g).transpose(0, 1)  # [g, cells, c/g]
        full = m.new_zeros(r, (h - 1) * sh + (kh - 1) * dh + 1, (wd - 1) * sw + (kw - 1) * dw + 1, g * ci)
        for i in range(kh):
            for j in range(kw):
                tap = (x @ by_tap[:, i, j]).transpose(0, 1).reshape(r, h, wd, g * ci)
                full[:, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (wd - 1) * sw + 1 : sw] += tap
        return crop(full, lead, window)

    # ---- windows ---------------------------------------------------------------------------------------

    def embed(self, m: Tensor, rows: Rows, old: Window, new: Window) -> Tensor:
        """The same coefficients on a window that contains the old one (or on the whole image: cells off it are dropped)."""
        if old == new:
            return m
        if old.h.stride == new.h.stride and old.w.stride == new.w.stride and old.h.size + old.w.size <= new.h.size + new.w.size:
            top, left = new.h.offset - old.h.offset, new.w.offset - old.w.offset
            tail = (new.h.size - old.h.size - top, new.w.size - old.w.size - left)
            if min(top, left, *tail) >= 0:  # the same origin for every row, up to a constant
                return F.pad(m, (0, 0, left, tail[1], top, tail[0]))
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
        if window.h.stride == new.h.stride and window.w.stride == new.w.stride:
            top, left = new.h.offset - window.h.offset, new.w.offset - window.w.offset
            out[:, top : top + window.h.size, left : left + window.w.size] += m
            return out
        return out.add_(self.embed(m, rows, window, new))

    def _cells(self, position: Tensor, old: Axis, new: Axis) -> Tensor:
        """For every row and old cell its index on the new axis, or new.size where it lies outside."""
        shift = position * (old.stride - new.stride) - old.offset + new.offset
        index = shift[:, None] + torch.arange(old.size, device=self.device)
        return torch.where((index >= 0) & (index < new.size), index, torch.full_like(index, new.size))


@dataclass(frozen=True)
class ConvShape:
    """The constants of a convolution (or pool) as back-substitution sees it, from the window `source` over its output."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    groups: int
    source: Window

    def lead(self, window: Window) -> tuple[int, int]:
        """How many cells the full transposed result begins before `window` (negative: after)."""
        source = self.source
        return source.h.offset * self.stride[0] + self.padding[0] - window.h.offset, source.w.offset * self.stride[1] + self.padding[
            1
        ] - window.w.offset


def _phase(lead: int, size: int, phase: int, stride: int) -> tuple[int, int, int]:
    """Of a window that begins at cell `lead`: the first t with stride t + phase in it, where that lies in it, and how many there are."""
    first = -((phase - lead) // stride)
    at = stride * first + phase - lead
    return first, at, -((at - size) // stride)


def crop(full: Tensor, lead: tuple[int, int], window: Window) -> Tensor:
    """[rows, H, W, C] cut (or widened with zeros) to begin `lead` cells later and to have the window's size."""
    for axis, (skip, size) in ((1, (lead[0], window.h.size)), (2, (lead[1], window.w.size))):
        if skip > 0:
            full = full.narrow(axis, skip, max(0, full.shape[axis] - skip)) if skip < full.shape[axis] else full.narrow(axis, 0, 0)
            skip = 0
        missing_tail = size + skip - full.shape[axis]
        if missing_tail < 0:
            full = full.narrow(axis, 0, max(0, size + skip))
            skip, missing_tail = max(skip, -size), 0
        if skip < 0 or missing_tail > 0:
            pad = [0] * 6
            pad[2 * (3 - axis)], pad[2 * (3 - axis) + 1] = -skip, missing_tail
            full = F.pad(full, pad)
    return full.contiguous()
