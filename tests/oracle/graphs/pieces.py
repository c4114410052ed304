"""Operators that are linear in pieces, or move cells to other sizes, as the ONNX specification has them."""

from __future__ import annotations

import math
from itertools import product as tuples
from typing import Any

import numpy as np

from tests.oracle.graphs.layers import fused
from tests.oracle.graphs.node import NodeView
from tests.oracle.graphs.tape import NotCovered, Tape, Value


def _bounded(tape: Tape, op: str, x: Value, bound: Value) -> Value:
    a, b = np.broadcast_arrays(x.ids, bound.ids.reshape(()) if bound.ids.size == 1 else bound.ids)
    return tape.most(op, np.stack([a.reshape(-1), b.reshape(-1)], 1), a.shape, x)


def clip(tape: Tape, n: NodeView) -> Value:
    """min(max(x, low), high): comparisons alone."""
    x, ends = n.inputs[0], []
    for k, name in ((1, "min"), (2, "max")):
        if n.has(name):
            ends.append(tape.constant(np.array(n.number(name, 0.0), x.dtype)))
        else:
            ends.append(n.inputs[k] if len(n.inputs) > k else None)
    y = x if ends[0] is None else _bounded(tape, "max", x, ends[0])
    y = y if ends[1] is None else _bounded(tape, "min", y, ends[1])
    return tape.most("max", y.ids.reshape(-1, 1), y.shape, x)  # without bounds too it is an operation, which may flush


def prelu(tape: Tape, n: NodeView) -> Value:
    x, slope = n.inputs[0], n.inputs[1]
    return tape.negatives(x, tape.pair("mul", x, slope))


def hard_sigmoid(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    alpha, beta = (tape.constant(np.array(n.number(k, d), np.float64), x.dtype) for k, d in (("alpha", 0.2), ("beta", 0.5)))
    line = fused(tape, x, alpha, beta)
    low, high = (tape.constant(np.array(v, np.float64), x.dtype) for v in (0.0, 1.0))
    return _bounded(tape, "max", _bounded(tape, "min", line, high), low)


# ---- moving cells ------------------------------------------------------------------------------------------------------


def _at(x: Value, cells: np.ndarray) -> Value:
    return Value(cells, x.dtype, None, x.constant)


def depth_to_space(tape: Tape, n: NodeView) -> Value:
    """Cell by cell, from the specification's own picture of the two modes."""
    x, b = n.inputs[0], n.integer("blocksize", 1)
    count, channels, height, width = x.shape
    depth = channels // (b * b)
    out = np.empty((count, depth, height * b, width * b), x.ids.dtype)
    for c, i, j in tuples(range(depth), range(b), range(b)):
        source = (i * b + j) * depth + c if n.text("mode", "DCR") == "DCR" else c * b * b + i * b + j
        out[:, c, i::b, j::b] = x.ids[:, source]
    return _at(x, out)


def space_to_depth(tape: Tape, n: NodeView) -> Value:
    x, b = n.inputs[0], n.integer("blocksize", 1)
    parts = [x.ids[:, :, i::b, j::b] for i, j in tuples(range(b), range(b))]
    return _at(x, np.concatenate(parts, 1))


def gather_points(tape: Tape, n: NodeView) -> Value:
    """One row of the index after the other."""
    x, index, batch = n.inputs[0], n.given(1), n.integer("batch_dims", 0)
    assert index is not None
    rows = index.shape[:-1]
    found: list[Any] = []
    for place in np.ndindex(rows):
        found.append(x.ids[(*place[:batch], *(int(k) for k in index[place]))])
    return _at(x, np.stack(found).reshape(*rows, *np.shape(found[0])))


def _source(i: int, size: int, out: int, scale: float, how: str) -> float:
    if how == "half_pixel" or (how == "pytorch_half_pixel" and out > 1):
        return (i + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return 0.0
    if how == "asymmetric":
        return i / scale
    if how == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    raise NotCovered(f"coordinates {how}")


def _rounded(x: float, how: str) -> int:
    if how == "floor":
        return math.floor(x)
    if how == "ceil":
        return math.ceil(x)
    below = math.floor(x)
    if x - below == 0.5:
        return below if how == "round_prefer_floor" else below + 1
    return below if x - below < 0.5 else below + 1


def resize(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    old = n.op == "Upsample" or n.opset < 11
    how = "asymmetric" if old else n.text("coordinate_transformation_mode", "half_pixel")
    near = "floor" if old else n.text("nearest_mode", "round_prefer_floor")
    axes = n.integers("axes", list(range(len(x.shape))))
    sizes = None if old else n.given(3)
    if sizes is not None and sizes.size:
        scales = [int(s) / x.shape[a] for s, a in zip(sizes, axes, strict=True)]
    elif n.has("scales"):
        scales = [float(v) for v in n.attributes["scales"].floats]
    else:
        given = n.given(1 if old else 2)
        assert given is not None
        scales = [float(v) for v in given]
    if n.text("mode", "nearest") != "nearest":
        return _between(tape, x, axes, scales, how)
    cells = x.ids
    for axis, scale in zip(axes, scales, strict=True):
        size = x.shape[axis]
        out = math.floor(size * scale)
        where = [min(max(_rounded(_source(i, size, out, scale, how), near), 0), size - 1) for i in range(out)]
        cells = np.take(cells, where, axis)
    return _at(x, cells)


def _place(i: int, size: int, out: int, scale: float, how: str) -> float:
    """Where a cell of the result lies in the operand; its ends are repeated beyond them."""
    if how == "align_corners":
        at = i * (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        at = _source(i, size, out, scale, "half_pixel" if how == "half_pixel_symmetric" and out == size * scale else how)
    return min(max(at, 0.0), size - 1.0)


def _between(tape: Tape, x: Value, axes: list[int], scales: list[float], how: str) -> Value:
    """Axis by axis, or all neighbours in one sum. Only where float32 holds every coordinate: the weights are constants here."""
    joint = tape.forms.mean % 2 == 0
    ids, shape = x.ids[..., None], list(x.shape)
    weights = np.ones((*[1] * len(shape), 1))
    for axis, scale in zip(axes, scales, strict=True):
        size, out = shape[axis], math.floor(shape[axis] * scale)
        places = np.array([_place(i, size, out, scale, how) for i in range(out)])
        if (places * 1024 != np.floor(places * 1024)).any():
            raise NotCovered("coordinates that are rounded")
        low = np.floor(places).astype(int)
        if out == size and (places == np.arange(size)).all():
            continue
        shape[axis] = out
        along = (-1, *(1,) * (len(shape) - axis))  # the last axis is of the terms
        share = (places - low).reshape(along)
        both = [np.take(ids, low, axis), np.take(ids, np.minimum(low + 1, size - 1), axis)]
        parts = [weights * (1 - share), weights * share]
        ids, weights = np.concatenate(both, -1), np.concatenate(np.broadcast_arrays(*parts), -1)
        if not joint:
            ids, weights = _weighed(tape, x, ids, weights)[..., None], np.ones((*[1] * len(shape), 1))
    return Value(_weighed(tape, x, ids, weights) if ids.shape[-1] > 1 else ids[..., 0], x.dtype, None, x.constant)


def _weighed(tape: Tape, x: Value, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    full = np.broadcast_to(weights, ids.shape)
    held = tape.constant(full.astype(np.float64), x.dtype)
    terms = ids.shape[-1]
    made = tape.dots(ids.reshape(-1, terms), held.ids.reshape(-1, terms), None, ids.shape[:-1], x.dtype, x.constant, product=False)
    return made.ids


# ---- transposed convolutions -------------------------------------------------------------------------------------------


def conv_transpose(tape: Tape, n: NodeView) -> Value:
    """Every input cell adds its products to the outputs that it reaches: out = in * stride + tap * dilation - pad."""
    x, w = n.inputs[0], n.inputs[1]
    b = n.inputs[2] if len(n.inputs) > 2 else None
    axes, groups = len(x.shape) - 2, n.integer("group", 1)
    if n.text("auto_pad", "NOTSET") != "NOTSET" or n.has("output_shape"):
        raise NotCovered("a transposed convolution of a given shape")
    stride, dilation = n.integers("strides", [1] * axes), n.integers("dilations", [1] * axes)
    pads, more = n.integers("pads", [0] * 2 * axes), n.integers("output_padding", [0] * axes)
    kernel, spatial = w.shape[2:], x.shape[2:]
    size = [
        (s - 1) * t + (k - 1) * d + 1 - pads[i] - pads[axes + i] + more[i]
        for i, (s, t, k, d) in enumerate(zip(spatial, stride, kernel, dilation, strict=True))
    ]
    ins, outs = x.shape[1] // groups, w.shape[1]
    terms: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for at in np.ndindex(*spatial):
        for tap in np.ndindex(*kernel):
            to = tuple(a * t + k * d - p for a, t, k, d, p in zip(at, stride, tap, dilation, pads[:axes], strict=True))
            if any(not 0 <= v < s for v, s in zip(to, size, strict=True)):
                continue
            for g, c, o in tuples(range(groups), range(ins), range(outs)):
                row = terms.setdefault((g * outs + o, *to), [])
                row.append((int(x.ids[(0, g * ins + c, *at)]), int(w.ids[(g * ins + c, o, *tap)])))
    shape = (groups * outs, *size)
    longest = max((len(row) for row in terms.values()), default=1)
    left, right = (np.zeros((int(np.prod(shape)), longest), np.int32) for _ in range(2))
    for place, row in terms.items():
        k = int(np.ravel_multi_index(place, shape))
        left[k, : len(row)], right[k, : len(row)] = zip(*row, strict=True)
    bias = None if b is None else np.repeat(b.ids, int(np.prod(size)))
    return tape.dots(left, right, bias, (1, *shape), x.dtype, x.constant and w.constant)


PIECES: dict[str, Any] = {
    "Clip": clip, "PRelu": prelu, "HardSigmoid": hard_sigmoid, "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth,
    "GatherND": gather_points, "Resize": resize, "Upsample": resize, "ConvTranspose": conv_transpose,
}  # fmt: skip
