"""Resize and Upsample: to the nearest cell, which moves cells only, or linearly, which weighs two neighbours along every axis.

Which cells these are, and their weights, is computed in fractions. A deployed kernel computes coordinates in its own type. Where an axis
grows or shrinks by a power of two each step of that is exact, and so are the weights; elsewhere they are off by what a coordinate rounds,
which may be more than the weight itself: so much more of a cell's magnitude is charged (`wabs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np

from polytriton.frontend.onnx_pieces import take
from polytriton.frontend.onnx_products import add_channels
from polytriton.frontend.onnx_values import FLOATS, ZERO, Act, Result, Shape, Site, Value, cells, rounding

HALF = Fraction(1, 2)
NEAREST = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
LINEAR = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
WHOLE = ("half_pixel", "asymmetric")  # the others ask how many cells there are, which a fraction of one does not tell
MANY = 1 << 20  # cells of an axis, above which a coordinate might not fit float32
WEIGHED = 1 << 19  # cells, each with its taps, whose weights are computed in fractions: some seconds
ROUNDINGS = 9
OFF = ROUNDINGS * 2.0**-23
DISAGREE = "mean different things to different runtimes"


def resize(s: Site) -> Result:
    x, old = s.value(0), s.op == "Upsample" or s.opset < 11
    mode = s.get("mode", b"nearest").decode("utf-8", "replace")
    s.need(mode in ("nearest", "linear"), f"mode {mode}; only nearest and linear are supported")
    s.need(not s.get("antialias", 0) and not s.get("exclude_outside", 0), "antialias and exclude_outside are not supported")
    s.need(s.get("keep_aspect_ratio_policy", b"stretch") == b"stretch", "only the aspect ratio policy stretch is supported")
    how = "asymmetric" if old else s.get("coordinate_transformation_mode", b"half_pixel").decode("utf-8", "replace")
    known = NEAREST if mode == "nearest" else LINEAR
    s.need(how in known, f"coordinates {how}; of mode {mode} only {', '.join(known[:-1])} and {known[-1]} are supported")
    found = factors(s, x.shape, old)
    return nearest(s, x, found, how, old) if mode == "nearest" else linear(s, x, found, how)


def factors(s: Site, shape: Shape, old: bool) -> list[Fraction]:
    """By how much each axis grows, from scales or from sizes."""
    rank = len(shape)
    axes = s.axes(list(s.attrs["axes"]), rank) if "axes" in s.attrs else list(range(rank))
    scales_at, sizes_at = (1, 9) if old else (2, 3)
    sizes = s.maybe(sizes_at)
    if sizes is not None and sizes.shape != (0,):
        wanted = s.ints(sizes_at, "sizes")
        s.need(len(wanted) == len(axes), f"sizes {wanted} do not fit {list(shape)}")
        found = [Fraction(n, shape[a]) for n, a in zip(wanted, axes, strict=True)]
    else:
        attribute: Sequence[float] | None = s.attrs.get("scales")
        numbers = s.weight(scales_at, "scales").value.reshape(-1).tolist() if attribute is None else list(attribute)
        s.need(len(numbers) == len(axes) and all(math.isfinite(n) for n in numbers), f"scales {list(numbers)} do not fit {list(shape)}")
        found = [Fraction(n) for n in numbers]
    s.need(min(found, default=Fraction(1)) > 0, f"factors {[float(f) for f in found]}; they must be above 0")
    every = [Fraction(1)] * rank
    for axis, factor in zip(axes, found, strict=True):
        every[axis] = factor
    return every


# ---- the nearest cell -------------------------------------------------------------------------------------


def nearest(s: Site, x: Value, found: list[Fraction], how: str, old: bool) -> Value:
    """By whole factors: which cell is repeated is computed in fractions."""
    s.need(all(f.denominator == 1 for f in found), f"factors {[float(f) for f in found]}; of mode nearest only whole ones are supported")
    near = "floor" if old else s.get("nearest_mode", b"round_prefer_floor").decode("utf-8", "replace")
    s.need(near in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"), f"nearest_mode {near}")
    shape = tuple(d * int(f) for d, f in zip(x.shape, found, strict=True))
    s.check_act(shape)
    s.spend(16 * cells(shape))
    index = np.arange(cells(x.shape), dtype=np.int64).reshape(x.shape)
    for axis, (size, factor) in enumerate(zip(x.shape, found, strict=True)):
        moved = [nearest_cell(i, size, int(factor), how, near) for i in range(size * int(factor))]
        if factor == 1 and moved != list(range(size)):  # onnxruntime leaves such an axis alone, the specification moves it
            raise s.fail(f"coordinates {how} with nearest_mode {near} {DISAGREE}", "use nearest_mode floor")
        index = index if factor == 1 else np.take(index, moved, axis=axis)
    return take(s, x, index)


def nearest_cell(i: int, size: int, factor: int, how: str, near: str) -> int:
    """The cell of an axis that cell i of the enlarged axis repeats."""
    at = Fraction(2 * i + 1, 2 * factor) - HALF
    if how == "asymmetric":
        at = Fraction(i, factor)
    elif how == "tf_half_pixel_for_nn":
        at = Fraction(2 * i + 1, 2 * factor)
    if near.startswith("round"):
        found = math.ceil(at - HALF) if near == "round_prefer_floor" else math.floor(at + HALF)
    else:
        found = math.floor(at) if near == "floor" else math.ceil(at)
    return min(max(found, 0), size - 1)


# ---- between cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """Of every cell of an axis of the result: a cell that it is made of, that one's weight, and how far the deployed weight may be off,
    in units of `OFF` (zero where every step of it is exact)."""

    cell: list[int]
    weight: list[Fraction]
    off: list[int]


def line(s: Site, size: int, factor: Fraction, how: str) -> list[Tap]:
    """The taps of an axis. Coordinates beyond its ends are those of the ends, as if the end cells were repeated.

    A coordinate is at most size + 1 and passes at most 6 roundings (the factor, its inverse, their product or quotient, half a cell, the
    middle of half_pixel_symmetric), a weight one more: each is off by less than OFF (size + 1). Where the coordinate is that near to a
    cell it may fall on its other side: then both its neighbours are taps.
    """
    grown = size * factor
    out = math.floor(grown)
    if grown.denominator != 1:  # in float32 the product may round up to the next whole number, or the specification's coordinates differ
        whole = math.floor(np.float32(size) * np.float32(factor)) == out
        s.need(how in WHOLE and whole, f"a factor {float(factor):g} of {size} cells with coordinates {how} {DISAGREE}: give sizes instead")
    s.need(1 <= out <= MANY and size <= MANY, f"an axis of {size} cells becomes one of {out} (limit 1..{MANY})")
    step = 1 / factor
    if how == "align_corners":
        step = Fraction(size - 1, out - 1) if out > 1 else Fraction(0)
    if how == "pytorch_half_pixel" and out == 1:
        step = Fraction(0)
    middle = HALF if how not in ("align_corners", "asymmetric") and step else Fraction(0)
    places = [min(max((i + middle) * step - middle, Fraction(0)), Fraction(size - 1)) for i in range(out)]
    below = [math.floor(p) for p in places]
    share = [p - b for p, b in zip(places, below, strict=True)]
    above = [min(b + 1, size - 1) for b in below]
    if step == 0 or _is_power(step):
        taps = [Tap(below, [1 - f for f in share], [0] * out)]
        return [*taps, Tap(above, share, [0] * out)] if any(share) else taps
    off = size + 1
    near = [round(p) if abs(p - round(p)) <= 2 * off * Fraction(OFF) else None for p in places]
    first = [b if n is None else n for b, n in zip(below, near, strict=True)]
    weights = [max(Fraction(0), 1 - abs(p - c)) for p, c in zip(places, first, strict=True)]
    right = [max(Fraction(0), p - c) for p, c in zip(places, first, strict=True)]
    left = [max(Fraction(0), c - p) for p, c in zip(places, first, strict=True)]
    taps = [Tap(first, weights, [off] * out), Tap([min(c + 1, size - 1) for c in first], right, [off] * out)]
    if any(n is not None for n in near):
        taps.append(Tap([max(c - 1, 0) for c in first], left, [0 if n is None else off for n in near]))
    return taps


def _is_power(f: Fraction) -> bool:
    """Of two, either way."""
    a, b = f.numerator, f.denominator
    return a & (a - 1) == 0 and b & (b - 1) == 0


def linear(s: Site, x: Value, found: list[Fraction], how: str) -> Value:
    """The cells between which a result lies, each times its weight, added up: a gather, a scale and a sum of channels.

    Deployed, a term is weighed once along each of k axes and added to 2^k - 1 others, in one sum or axis by axis: no more roundings than
    the product and the sum of 2^k cells here are charged. Deployed weights are w_i + e_i along each axis, |e_i| <= OFF c_i (c_i is a tap's
    `off`): their product is off by at most OFF m + ..., m = sum over i of c_i times the other weights and OFF times the other c_j, and so
    on; `wabs` is the weight and all of that over OFF, and `ops` has OFF's roundings once for each axis.
    """
    if not isinstance(x, Act):
        raise s.fail("it is not supported on constants with mode linear: fold the model's constants first")
    lines = [line(s, size, factor, how) for size, factor in zip(x.shape, found, strict=True)]
    shape, rank = tuple(len(taps[0].cell) for taps in lines), len(lines)
    count = math.prod(len(taps) for taps in lines)
    s.check_act((count, *shape))
    s.spend(32 * count * cells(shape))
    if x.dtype == FLOATS[0]:
        s.state.half = True
    first = next((axis for axis, taps in enumerate(lines) if len(taps) > 1 or any(taps[0].off)), rank)
    if first == rank:  # every cell is one of the operand's
        only = s.order(x)
        for axis, (tap,) in enumerate(lines):
            only = np.take(only, tap.cell, axis=axis)
        return s.reorder(x, only)
    outer, inner = cells(shape[:first]), shape[first:]
    s.need(count * cells(inner) <= WEIGHED, f"mode linear weighs {count * cells(inner):,} cells (limit {WEIGHED:,})")
    image = inner if len(inner) == 2 else (1, cells(inner))
    index, weights, sizes = [], [], []
    for chosen in product(*lines):
        at, weight, size = s.order(x), np.full((1,) * rank, Fraction(1), object), np.ones((1,) * rank)
        for axis, tap in enumerate(chosen):
            along = (-1, *(1,) * (rank - 1 - axis))
            at = np.take(at, tap.cell, axis=axis)
            if axis < first:  # whole: its weights are 1
                continue
            part = np.array(tap.weight, object).reshape(along)
            off = np.array(tap.off, np.float64).reshape(along)
            own = np.abs(part).astype(np.float64)
            size = size * own + off * (np.abs(weight).astype(np.float64) + OFF * (size - np.abs(weight).astype(np.float64)))
            weight = weight * part
        index.append(at.reshape(outer, *image))
        weights.append(np.broadcast_to(weight[(0,) * first], inner).reshape(image))
        sizes.append(np.broadcast_to(size[(0,) * first], inner).reshape(image))
    exact, wide = np.stack(weights), np.stack(sizes)
    a: np.ndarray = exact.astype(np.float64)
    rounds = any(Fraction(v) != f for v, f in zip(a.reshape(-1).tolist(), exact.reshape(-1), strict=True))
    small = a.astype(np.float32)
    a = small if bool((small == a).all()) else a
    channels = (outer * count, *image)
    copies = s.reorder(x, np.stack(index, 1).reshape(channels), "cells")
    copies = replace(copies, node=s.view(copies, channels))
    inexact = sum(any(any(tap.off) for tap in taps) for taps in lines)
    made = rounding(slack=2 * int(rounds), ops=ROUNDINGS * inexact)
    wabs = np.tile(wide * (1 + 2.0**-34), (outer, 1, 1)) if inexact else None
    each = s.scale(copies, np.tile(a, (outer, 1, 1)), ZERO, made, tag="shares", wabs=wabs)
    return s.result(add_channels(s, each.node, outer, count, 0.0), shape, x.dtype)
