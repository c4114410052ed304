"""Sums of a convolution's products: taps that a GEMM has made land on the cells they reach, in loops compiled by Numba.

An entry of the result sums the same taps in every form, in some order, which the bound counts.
"""

from __future__ import annotations

import numpy as np

from polytriton.runtime.cpu.fused import PLAIN, compile_loop


@compile_loop("T5 T3 i i i i i i i i T T I", PLAIN)
def shifted_loop(taps, out, channels, top, left, sh, sw, dh, dw, pitch, source, target, places):  # type: ignore[no-untyped-def]
    """out[r, y*sh + i*dh - top, x*sw + j*dw - left] is the sum of the taps[r, y, x, i, j] that lie there.

    taps are [rows, h, w, kh, kw*channels], a cell's begin `pitch` values after the last one's; out is [rows, height, width*channels],
    so that taps side by side land side by side. A line of `out` takes those of three lines of the kernel at once, in an order that charges
    rely on (blocks.tap_depths).
    """
    rows, h, w, kh, size = taps.shape
    height, line = out.shape[1], out.shape[2]
    run = size if dw == 1 else channels
    for r in range(rows):
        for to in range(height):
            out[r, to] = 0
            found = 0
            for i in range(kh):
                f = to + top - i * dh
                if f >= 0 and f % sh == 0 and f // sh < h:
                    places[found] = (r * h + f // sh) * w * pitch + i * size
                    found += 1
            for k in range(0, found, 3):
                for x in range(w):
                    for j in range(0, size, run):
                        at = (x * sw - left) * channels + j * dw
                        begin, end = max(0, -at), min(run, line - at)
                        if begin < end:
                            # unsigned: no index counts from the end, so the sums need no test each
                            b, n = np.uint64((r * height + to) * line + at + begin), np.uint64(end - begin)
                            step = x * pitch + j + begin
                            s0 = np.uint64(places[k] + step)
                            if found > k + 2:
                                s1, s2 = np.uint64(places[k + 1] + step), np.uint64(places[k + 2] + step)
                                for q in range(n):
                                    target[b + q] += source[s0 + q] + source[s1 + q] + source[s2 + q]
                            elif found == k + 2:
                                s1 = np.uint64(places[k + 1] + step)
                                for q in range(n):
                                    target[b + q] += source[s0 + q] + source[s1 + q]
                            else:
                                for q in range(n):
                                    target[b + q] += source[s0 + q]


@compile_loop("T6 T3 i i i i i i i T T T")
def _plane_sums(taps, out, top, left, sh, dh, dw, first, last, source, target, line):  # type: ignore[no-untyped-def]
    """The same sums from planes: taps are [kh, kw, channels, rows, h, w], so that cells of a line lie side by side; sw is 1."""
    kh, kw, channels, rows, h, w = taps.shape
    height, width = out.shape[1], out.shape[2] // channels
    for r in range(first, last):
        for y in range(height):
            line[:] = 0
            for i in range(kh):
                at = y + top - i * dh
                if at < 0 or at % sh != 0 or at // sh >= h:
                    continue
                for j in range(kw):
                    shift = j * dw - left
                    begin, end = max(0, -shift), min(w, width - shift)
                    if begin >= end:
                        continue
                    for c in range(channels):
                        # unsigned: no index counts from the end, so the sums need no test each
                        a = np.uint64(((((i * kw + j) * channels + c) * rows + r) * h + at // sh) * w + begin)
                        b = np.uint64(c * width + begin + shift)
                        for q in range(np.uint64(end - begin)):
                            line[b + q] += source[a + q]
            to = np.uint64((r * height + y) * width * channels)
            for c in range(np.uint64(channels)):
                for x in range(np.uint64(width)):
                    target[to + x * np.uint64(channels) + c] = line[c * np.uint64(width) + x]


# What the loops read and write comes flat too, and with room for notes: compiled loops make no arrays.


def shifted_sums(taps: np.ndarray, out: np.ndarray, *rest: int) -> None:
    pitch = taps.shape[3] * taps.shape[4]
    shifted_loop(taps, out, *rest, pitch, taps.reshape(-1), _flat(out), np.empty(taps.shape[3], dtype=np.int64))


def plane_sums(taps: np.ndarray, out: np.ndarray, *rest: int) -> None:
    _plane_sums(taps, out, *rest, taps.reshape(-1), _flat(out), np.empty(out.shape[2], dtype=out.dtype))


def _flat(out: np.ndarray) -> np.ndarray:
    """The same memory: what is written to a copy would be lost."""
    if not out.flags.c_contiguous:
        raise ValueError("sums are written to contiguous arrays")
    return out.reshape(-1)
