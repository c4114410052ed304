"""Dependence windows: how a cuboid grows through layers, unites with another and is clipped at the image border.

With kernel k, stride s, dilation d and low-side padding p, per axis (the paper's recurrences, with padding):
    W' = (W - 1) s + (k - 1) d + 1,    S' = S s,    P' = P s + p
"""

from __future__ import annotations

from math import gcd

from polytriton.ir.plan import Axis, Window

POINT = Window(Axis(1, 1, 0), Axis(1, 1, 0))
DENSE_SHARE = 0.8  # a window of this share of the image or more costs less as the whole image, where nobody has tuned it


def whole(h: int, w: int) -> Window:
    return Window(Axis(h, 0, 0), Axis(w, 0, 0))


def input_axis(axis: Axis, k: int, s: int, p: int, d: int) -> Axis:
    """The cells of a convolution's (or pool's) input that its output cells `axis` depend on."""
    return Axis((axis.size - 1) * s + (k - 1) * d + 1, axis.stride * s, axis.offset * s + p)


def windows_per_cell(k: int, s: int, d: int) -> int:
    """At most how many windows, along one axis, have a tap on the same cell: every (s / gcd(s, d))-th of the k taps can."""
    return -(-k // (s // gcd(s, d)))


def clip(axis: Axis, positions: int, cells: int) -> Axis:
    """Drops window cells that lie off the image for every position; with a single position what is left is constant."""
    if axis.stride == 0 or positions == 1:
        return Axis(cells, 0, 0)
    lead = max(0, axis.offset - axis.stride * (positions - 1))  # cells before the image even at the last position
    tail = max(0, axis.size - axis.offset - cells)  # cells after it even at the first
    return Axis(max(1, axis.size - lead - tail), axis.stride, axis.offset - lead)


def clip_window(window: Window, positions: tuple[int, int], image: tuple[int, int]) -> Window:
    return Window(clip(window.h, positions[0], image[0]), clip(window.w, positions[1], image[1]))


def densify(window: Window, image: tuple[int, int], share: float = DENSE_SHARE) -> Window:
    """Whole axes where the window is as long as the image, the whole image where it covers `share` of it."""
    if window.cells >= share * image[0] * image[1]:
        return whole(*image)
    h, w = (Axis(n, 0, 0) if a.size >= n else a for a, n in zip((window.h, window.w), image, strict=True))
    return Window(h, w)


def union_axis(a: Axis, b: Axis, cells: int) -> Axis:
    """The exact union box, on both sides; axes that move differently unite to the whole axis."""
    if a.stride != b.stride or a.stride == 0:
        return Axis(cells, 0, 0)
    low = max(a.offset, b.offset)
    high = max(a.size - a.offset, b.size - b.offset)
    return Axis(low + high, a.stride, low)


def union(a: Window, b: Window, image: tuple[int, int]) -> Window:
    return Window(union_axis(a.h, b.h, image[0]), union_axis(a.w, b.w, image[1]))


def margins(inner: Window, outer: Window) -> tuple[int, int, int, int] | None:
    """The cells of a window above, left of, below and right of another that it contains, the same for every row; None for others."""
    if inner.h.stride != outer.h.stride or inner.w.stride != outer.w.stride:
        return None
    top, left = outer.h.offset - inner.h.offset, outer.w.offset - inner.w.offset
    found = top, left, outer.h.size - inner.h.size - top, outer.w.size - inner.w.size - left
    return found if min(found) >= 0 else None


def overhang(axis: Axis, positions: int, cells: int) -> tuple[int, int]:
    """How far windows reach off the image: cells before it, cells after it."""
    if axis.whole:
        return 0, 0
    return max(0, axis.offset), max(0, axis.stride * (positions - 1) - axis.offset + axis.size - cells)
