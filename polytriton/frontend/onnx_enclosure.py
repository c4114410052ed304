"""How far a runtime's rounding may carry one ONNX node from the IR nodes it became.

A value is evaluated in float64 beside its magnitude: the same sums with every term's absolute value. Whatever order a
runtime adds in, it ends within gamma(n) of the magnitude (docs/soundness.md), each number by its own: a large number
beside it allows nothing. This is a second reading of the operators, apart from ir/ops.py; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import OPS, curve_of, spatial

CHUNK = 1 << 21  # numbers of a matrix, or cells under windows, that are held at once
EXACT_UNIT = 2.0**-52  # this file's own float64 sums


@dataclass(frozen=True)
class EnclosedArithmetic:
    """One roundoff is `unit`, twice the nearest rounding's; a number of `least` absorbs what underflows, or is flushed to zero;
    `limit` is half the largest number. `most` roundings and `extra` are all that a number meets."""

    unit: float
    least: float
    limit: float
    size: type[np.floating]  # in which magnitudes are kept: they need no more digits than the type
    most: float = float("inf")
    extra: int = 0


# onnxruntime computes float16 in float32 between casts of its own, and may leave out a cast that another undoes: a sum is
# rounded to float16 a few times however long it is, and an operand may be the unrounded one. 32 leaves room for kernels
# that keep partial sums in float16, and stays finite where gamma(n) of a long sum would not be.
ARITHMETIC = {
    "float16": EnclosedArithmetic(2.0**-10, 2.0**-14, 2.0**15, np.float32, 32, 2),
    "float32": EnclosedArithmetic(2.0**-23, 2.0**-103, 2.0**127, np.float32),
    "float64": EnclosedArithmetic(2.0**-52, 2.0**-970, 2.0**1023, np.float64),
}


@dataclass(frozen=True)
class Numbers:
    """[batch, ...]: values, and magnitudes (None: the values' own). A runtime rounds up to `roundings` factors on a term;
    the stored weights are `slack` more of float64 from the exact ones."""

    value: np.ndarray
    size: np.ndarray | None = None
    roundings: int = 0
    slack: int = 0

    def reshape(self, shape: Sequence[int]) -> Numbers:
        to = (len(self.value), *shape)
        return Numbers(self.value.reshape(to), None if self.size is None else self.size.reshape(to), self.roundings, self.slack)

    def allowance(self, a: EnclosedArithmetic) -> np.ndarray:
        """The difference that rounding explains; infinite where nothing can be said, near overflow and beyond."""
        roundings = min(self.roundings, a.most) + a.extra
        if roundings == 0:
            return np.where(np.isfinite(self.value), 0.0, np.inf)
        size = np.abs(self.value) + a.least if self.size is None else self.size
        share = gamma(roundings, a.unit) + gamma(self.roundings + self.slack, EXACT_UNIT)
        return np.where(size < a.limit, size * share, np.inf)  # no magnitude (NaN) is below the limit


LIBRARY = 64  # roundings that a library's exp, tanh or erf may be worth, relative to 1 + |f|


def gamma(roundings: float, unit: float) -> float:
    """A product of this many factors (1 +- unit)^+-1 is within 1 +- gamma."""
    return roundings * unit / (1 - roundings * unit) if roundings * unit < 0.5 else float("inf")


def enclose(node: Node, net: Net, operands: Sequence[Numbers], a: EnclosedArithmetic) -> Numbers:
    """One IR node on operands of the shapes it expects."""
    slack = max(x.slack for x in operands) + node.integer("slack")
    before = max(x.roundings for x in operands) + node.integer("ops")
    x = operands[0]
    if node.op in ("linear", "conv"):
        w, b = net.weight(node, "w"), net.weight(node, "b")
        assert w is not None and b is not None
        big, bias = _magnitude(net, node, "wabs", w), _magnitude(net, node, "babs", b)
        terms = w.size // len(w) + 1
        if node.op == "linear":
            value, size = _dense(x.value, w, b), _dense(_size(x, a), big, bias, a.size)
        else:
            value, size = _conv(x.value, w, b, node), _conv(_size(x, a), big, bias, node, a.size)
        return Numbers(value, size + a.size(a.least), before + terms, slack).reshape(node.shape)
    if node.op == "scale":
        factor, c = (np.asarray(net.weight(node, key), np.float64) for key in ("a", "c"))
        big, bias = (_magnitude(net, node, *of).astype(a.size) for of in (("wabs", factor), ("babs", c)))
        size = _size(x, a) * big + bias + a.size(a.least)
        return Numbers(x.value * factor + c, size, before + 2, slack)
    if node.op in ("add", "sub"):
        y = operands[1]
        value = x.value + y.value if node.op == "add" else x.value - y.value
        return Numbers(value, _size(x, a) + _size(y, a) + a.size(a.least), before + 1, slack)
    if node.op == "mul":
        y = operands[1]
        size = _size(x, a) * _size(y, a) + a.size(a.least) * (1 + _size(x, a) + _size(y, a))
        return Numbers(x.value * y.value, size, x.roundings + y.roundings + node.integer("ops") + 1, slack)
    if node.op == "relu":
        slope = node.number("slope")
        value = np.where(x.value >= 0, x.value, slope * x.value) if slope else np.maximum(x.value, 0.0)
        if not slope:
            return Numbers(value, x.size, before, slack)
        return Numbers(value, _size(x, a) * a.size(max(1.0, abs(slope))) + a.size(a.least), before + 1, slack)
    if node.op in CURVES and CURVES[node.op].jumps:  # exact, on the runtime's own operand
        return Numbers(OPS[node.op].run(node, [x.value], net.weights), None, before, slack)
    if node.op in CURVES:  # a library's function is no correctly rounded one
        value = OPS[node.op].run(node, [x.value], net.weights)
        size = np.abs(value) + 1 + curve_of(node)[1] + (np.abs(x.value) if CURVES[node.op].made_of else 0)
        known = np.isfinite(x.value) & np.isfinite(_size(x, a))  # of what has overflown a Softmax is NaN, its steps need not be
        return Numbers(value, np.where(known, size, np.inf).astype(a.size), before + LIBRARY, slack)
    if node.op == "maxpool":
        return Numbers(_maximum(x.value, node), None if x.size is None else _maximum(x.size, node), before, slack)
    values = OPS[node.op].run(node, [o.value for o in operands], net.weights)
    if all(o.size is None for o in operands):
        return Numbers(values, None, before, slack)
    return Numbers(values, OPS[node.op].run(node, [_size(o, a) for o in operands], net.weights), before, slack)


def _size(x: Numbers, a: EnclosedArithmetic) -> np.ndarray:
    return np.abs(x.value).astype(a.size) if x.size is None else x.size


def _magnitude(net: Net, node: Node, key: str, array: np.ndarray) -> np.ndarray:
    """The sum of magnitudes behind an array, where it is more than the array's own."""
    found = net.weight(node, key)
    return np.abs(array) if found is None else np.maximum(found, np.abs(array))


def _dense(x: np.ndarray, w: np.ndarray, b: np.ndarray, kind: type[np.floating] = np.float64) -> np.ndarray:
    flat, out = x.reshape(len(x), -1), np.empty((len(x), len(w)), kind)
    step = max(1, CHUNK // max(1, w.shape[1]))
    for at in range(0, len(w), step):
        out[:, at : at + step] = flat @ w[at : at + step].astype(kind).T
    out += b.astype(kind)
    return out


def _frame(x: np.ndarray, node: Node, fill: float) -> np.ndarray:
    """[batch, channels, height, width] with the node's padding around it; negative padding crops."""
    top, left, bottom, right = node.ints("p", (0, 0, 0, 0))
    x = x[:, :, max(0, -top) : x.shape[2] - max(0, -bottom), max(0, -left) : x.shape[3] - max(0, -right)]
    frame = (max(0, top), max(0, bottom)), (max(0, left), max(0, right))
    return np.pad(x, ((0, 0), (0, 0), *frame), constant_values=fill) if any(map(any, frame)) else x


def _conv(x: np.ndarray, w: np.ndarray, b: np.ndarray, node: Node, kind: type[np.floating] = np.float64) -> np.ndarray:
    """A matrix product over the cells under the windows, some rows of windows at a time."""
    groups, (kh, kw), (dh, dw), (sh, sw) = node.integer("g", 1), node.ints("k"), node.ints("d", (1, 1)), node.ints("s", (1, 1))
    x = _frame(x, node, 0.0)
    batch, (outs, per), height, width = len(x), w.shape[:2], *spatial(node.drop("p"), x.shape[1:])
    x = x.reshape(batch, groups, per, *x.shape[2:])
    seen = sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(3, 4))[:, :, :, ::sh, ::sw, ::dh, ::dw]
    matrix = w.reshape(groups, outs // groups, per * kh * kw).astype(kind)
    out = np.empty((batch, groups, outs // groups, height, width), kind)
    step = max(1, CHUNK // (batch * groups * per * kh * kw * width))
    for at in range(0, height, step):
        cells = seen[:, :, :, at : at + step].transpose(0, 1, 2, 5, 6, 3, 4)  # [batch, group, channel, i, j, height, width]
        rows = cells.shape[5]
        made = matrix @ cells.reshape(batch, groups, per * kh * kw, rows * width)
        out[:, :, :, at : at + rows] = made.reshape(batch, groups, outs // groups, rows, width)
    return out.reshape(batch, outs, height, width) + b.astype(kind)[:, None, None]


def _maximum(x: np.ndarray, node: Node) -> np.ndarray:
    (kh, kw), (dh, dw), (sh, sw) = node.ints("k"), node.ints("d", (1, 1)), node.ints("s", (1, 1))
    x = _frame(x, node, -np.inf)
    height, width = spatial(node.drop("p"), x.shape[1:])
    found = None
    for i in range(kh):
        for j in range(kw):
            cells = x[:, :, i * dh : i * dh + (height - 1) * sh + 1 : sh, j * dw : j * dw + (width - 1) * sw + 1 : sw]
            found = cells if found is None else np.maximum(found, cells)
    assert found is not None
    return found
