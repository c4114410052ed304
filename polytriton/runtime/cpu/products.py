"""Products of rows with a layer's weights: the library's GEMM and direct transposed convolution, and forms made of GEMMs and sums.

Rounding: an entry of a product is a sum of K terms in some order, with or without FMA (no Winograd, FFT or Strassen;
settings.py pins the library's precision), so gamma_K covers it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Axis, Window
from polytriton.passes.windows import input_axis
from polytriton.runtime.config import AUTO, GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config, conv_key
from polytriton.runtime.cpu import convs, fused, sums
from polytriton.runtime.cpu.blocks import Packed, multiply

FEW = 4  # input channels up to which a convolution's sums go plane by plane, where a library multiplies
LONG = 20  # and from lines of so many cells on


@dataclass(frozen=True)
class Compact:
    """A dense layer without the outputs that no row refers to and the inputs that are always zero."""

    w: Tensor | Packed
    outputs: Tensor
    inputs: Tensor | None  # None: all of them
    size: int  # inputs that the layer has


class Products:
    """The part of a backend that multiplies rows by weights."""

    config: Config
    threads: int
    fast: bool  # Numba's loops are there and the device is a CPU
    direct: bool  # the library's convolutions sum plainly

    def linear(self, m: Tensor, w: Tensor | Packed | Compact, picked: bool = False, narrow: bool = False) -> Tensor:
        """[rows, inputs]. Of a part of a layer: `picked` rows have its outputs alone, a `narrow` result its inputs alone."""
        flat = m.reshape(len(m), -1)
        if not isinstance(w, Compact):
            return self._matrix_product(flat, w)
        product = self._matrix_product(flat if picked else flat.index_select(1, w.outputs), w.w)
        if w.inputs is None or narrow:
            return product
        out = m.new_zeros(len(m), w.size)
        out.index_copy_(1, w.inputs, product)
        return out

    def _matrix_product(self, m: Tensor, w: Tensor | Packed, out: Tensor | None = None) -> Tensor:
        """By the library, in an order that is its own, or in blocks."""
        if isinstance(w, Packed):
            return multiply(m.contiguous(), w, self.threads, self.config.split, out)
        return torch.mm(m, w, out=out)

    def conv(self, m: Tensor, w: Tensor | Packed, conv: ConvShape, window: Window) -> Tensor:
        """Transposed convolution of every row's window, cut to the window the plan asks for.

        An entry of the result sums the same products in every form, in another order; a packed weight's order is known.
        """
        lead = conv.lead(window)
        if isinstance(w, Packed):
            return self._shifted_product(m, w, w.shape[1], conv, lead, window)
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

    def tap_rows(self, each: int) -> int:
        """Rows whose products, `each` values a row, stay in the nearer cache: calls cost nothing between them."""
        return max(1, self.config.taps // 4 // max(1, each))

    def _some(self, m: Tensor, each: int) -> int:
        """Rows of m whose products, `each` values a row, stay in the cache."""
        return max(1, self.threads * self.config.taps * 4 // max(1, each * m.element_size()))

    def _product_and_planes(self, m: Tensor, w: Tensor, conv: ConvShape, lead: tuple[int, int], window: Window) -> Tensor:
        """One GEMM whose cells lie side by side, then sums of whole lines: the better, the fewer input channels there are."""
        r, h, wd, c = m.shape
        (kh, kw), ci = conv.kernel, w.shape[1]
        by_tap = w.permute(2, 3, 1, 0).reshape(kh * kw * ci, c)
        out = m.new_empty(r, window.h.size, window.w.size * ci)
        some = self._some(m, h * wd * kh * kw * ci)
        for a in range(0, r, some):
            part, to = m[a : a + some], out[a : a + some]
            taps = torch.mm(by_tap, part.reshape(-1, c).t()).view(kh, kw, ci, len(part), h, wd)
            fused.over_ranges(
                sums.plane_sums, self.threads, taps.numpy(), to.numpy(), *lead, conv.stride[0], *conv.dilation, least=self.config.split
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
        some = self._some(m, window.cells * kh * kw * c // (sh * sw))
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

    def _shifted_product(
        self, m: Tensor, by_cell: Tensor | Packed, ci: int, conv: ConvShape, lead: tuple[int, int], window: Window
    ) -> Tensor:
        """The sums in a compiled loop; `by_cell` is [channels, kh * kw * ci]."""
        (r, h, wd, c), (kh, kw) = m.shape, conv.kernel
        out = m.new_empty(r, window.h.size, window.w.size * ci)
        if isinstance(by_cell, Packed) and c:
            each = h * wd * by_cell.pitch
            some, threads = self.tap_rows(each), self.threads if r * each >= self.config.split else 1
            moves = ci, *lead, *conv.stride, *conv.dilation
            convs.convolve(m.contiguous().numpy(), by_cell, out.numpy(), (kh, kw * ci), some, moves, threads)
            return out.view(r, window.h.size, window.w.size, ci)
        some = self._some(m, h * wd * kh * kw * ci)
        taps = m.new_empty(min(r, some), h, wd, kh, kw * ci)
        for a in range(0, r, some):
            part, to, made = m[a : a + some].reshape(-1, c), out[a : a + some], taps[: r - a]
            self._matrix_product(part, by_cell, made.view(-1, kh * kw * ci))
            fused.over_slices(
                sums.shifted_sums, self.threads, made.numpy(), to.numpy(), ci, *lead, *conv.stride, *conv.dilation, least=self.config.split
            )
        return out.view(r, window.h.size, window.w.size, ci)

    def _product_and_shift(self, m: Tensor, w: Tensor, conv: ConvShape, lead: tuple[int, int], window: Window) -> Tensor:
        """One GEMM over channels, then shifted sums: float64 has no fast direct convolution on CPUs, nor have a few channels."""
        r, h, wd, c = m.shape
        g, (kh, kw), (sh, sw), (dh, dw) = conv.groups, conv.kernel, conv.stride, conv.dilation
        ci = w.shape[1]
        if self.fast and g == 1:
            return self._shifted_product(m, w.permute(0, 2, 3, 1).reshape(c, -1), ci, conv, lead, window)
        by_tap = w.view(g, c // g, ci, kh, kw).permute(0, 3, 4, 1, 2)  # [g, kh, kw, c/g, ci]
        x = m.reshape(-1, g, c // g).transpose(0, 1)  # [g, cells, c/g]
        full = m.new_zeros(r, (h - 1) * sh + (kh - 1) * dh + 1, (wd - 1) * sw + (kw - 1) * dw + 1, g * ci)
        for i in range(kh):
            for j in range(kw):
                tap = (x @ by_tap[:, i, j]).transpose(0, 1).reshape(r, h, wd, g * ci)
                full[:, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (wd - 1) * sw + 1 : sw] += tap
        return crop(full, lead, window)


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


def conv_shape(node: Node, window: Window) -> ConvShape:
    k, s, d, p = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1)), node.ints("p", (0, 0, 0, 0))
    return ConvShape((k[0], k[1]), (s[0], s[1]), (d[0], d[1]), (p[0], p[1], p[2], p[3]), node.integer("g", 1), window)


def reach(node: Node, window: Window) -> Window:
    """What one cell of a convolution's output reads, for rows that stand on such a window of single cells."""
    k, s, d, p = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1)), node.ints("p", (0, 0, 0, 0))
    h, w = (input_axis(axis, k[side], s[side], p[side], d[side]) for side, axis in enumerate((window.h, window.w)))
    return Window(h, w)


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
