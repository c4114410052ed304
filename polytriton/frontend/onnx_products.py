"""Products and quotients of two activations, Softmax and LayerNormalization, written in products cell by cell and smooth functions.

Each rewriting is an identity of real numbers. Deployed, a product rounds as here; a quotient is one of the executions of a product by an
inverse, for an inverse may be exact; a matrix product's sums may be added in any order, as here. Softmax has an error of its own, stated
as a smooth function's is: its steps on the way may be exact, so what the last one may be off by covers it.
"""

from __future__ import annotations

import numpy as np

from polytriton.frontend.onnx_curves import smooth, times_itself
from polytriton.frontend.onnx_values import ZERO, Act, Result, Site, cells, rounding
from polytriton.ir.net import Attr
from polytriton.ir.ops import LARGEST

TINY_SPREAD = 2.0**-100  # of a variance with epsilon


def multiply(s: Site, a: Act, b: Act, tag: str = "") -> Act:
    """Cell by cell; both broadcast."""
    s.need(a.dtype == b.dtype, f"operands differ in type: {a.dtype} and {b.dtype}")
    own = times_itself(s, a, b, tag)
    if own is not None:
        return own
    shape = s.broadcast(a.shape, b.shape)
    x, y = s.expand(a, shape, "wide"), s.expand(b, shape, "wider")
    return s.result(s.emit("mul", [x.node, s.view(y, s.node_shape(x))], tag=tag), shape, x.dtype)


def divide(s: Site) -> Act:
    """x / y = x (1 / y), c / y = c (1 / y): bounded where y is above 0."""
    x, y = s.value(0), s.act(1)
    s.need(x.dtype == y.dtype, f"operands differ in type: {x.dtype} and {y.dtype}")
    inverse = smooth(s, y, "reciprocal", tag="inverse")
    if isinstance(x, Act):
        return multiply(s, x, inverse)
    c = s.weight(0, "dividend")
    return s.scale(inverse, c.value, ZERO, rounding(c))


def matrix_product(s: Site, a: Act, b: Act) -> Act:
    """A [..., m, k] times B [..., k, n]: images of k channels, m x n cells each, are multiplied cell by cell, and channels added."""
    s.need(min(len(a.shape), len(b.shape)) >= 2, "a product of two activations, one of them a vector")
    (rows, inner), (same, columns) = a.shape[-2:], b.shape[-2:]
    s.need(inner == same, f"{list(a.shape)} and {list(b.shape)} do not multiply")
    batch = s.broadcast(a.shape[:-2], b.shape[:-2])
    images, size = cells(batch), (*batch, inner, rows, columns)
    s.check_act(size)
    s.spend(16 * cells(size))
    left = np.broadcast_to(s.order(a).swapaxes(-1, -2)[..., None], size).reshape(images * inner, rows, columns)
    right = np.broadcast_to(s.order(b)[..., None, :], size).reshape(images * inner, rows, columns)
    x, y = s.reorder(a, left, "rows"), s.reorder(b, right, "columns")
    to = (images * inner, rows, columns)
    node = s.emit("mul", [s.view(x, to), s.view(y, to)], {"converts": 1}, "terms")
    return s.result(add_channels(s, node, images, inner, 0.0), (*batch, rows, columns), a.dtype)


def add_channels(s: Site, node: str, images: int, inner: int, more: float, tag: str = "") -> str:
    """The IR node whose channels are sums of `inner` channels of `node` each, plus `more`."""
    ones, bias = np.ones((images, inner, 1, 1), np.float32), np.full(images, more, np.float32)
    attrs: dict[str, Attr] = {"w": s.ref(ones, "w"), "b": s.ref(bias, "b"), "k": (1, 1), "g": images}
    return s.emit("conv", [node], attrs, tag)


def softmax(s: Site) -> Result:
    """1 / (1 + sum over j != i of exp(x_j - x_i)): differences of one layer's outputs are bounded as such.

    Terms are capped at e^30 (ir/curves.py): where one is larger, the result and the one written here lie in [0, e^-30], which `share` is
    charged.
    """
    x = s.act(0)
    axis = s.axis(int(s.get("axis", 1 if s.opset < 13 else -1)), len(x.shape))
    order = s.order(x)
    groups = order.reshape(cells(x.shape[:axis]), -1) if s.opset < 13 else np.moveaxis(order, axis, -1).reshape(-1, x.shape[axis])
    outer, n = groups.shape
    stated: dict[str, Attr] = {"stated": "softmax"}
    if n == 1:  # a library's share of one is off as its others are
        one = s.scale(x, np.zeros((), np.float32), np.ones((), np.float32), {}, tag="one")
        return smooth(s, one, "share", stated)
    s.check_act((n - 1, outer, n))
    s.spend(24 * outer * n * n)
    others = (np.arange(n)[None] + 1 + np.arange(n - 1)[:, None]) % n  # [other, cell]
    theirs = groups[:, others].swapaxes(0, 1)  # [other, group, cell]
    own = np.broadcast_to(groups[None], theirs.shape)
    to = theirs.shape
    gap = s.emit("sub", [s.view(s.reorder(x, theirs, "theirs"), to), s.view(s.reorder(x, own, "own"), to)], tag="gap")
    power = s.emit("capped", [gap], {"stated": "nothing"}, "power")
    total = add_channels(s, power, 1, n - 1, 1.0, "total")
    last = s.emit("share", [total], stated, "share")
    found = s.result(last, (outer, n), x.dtype)
    back = np.argsort(groups.reshape(-1), kind="stable").reshape(x.shape)
    return s.reorder(found, back)


def layer_norm(s: Site) -> Result:
    """g (x - mean) / sqrt(variance + epsilon) + b over the last axes, from `axis` on: exact, for `real` alone.

    Deployed, a kernel may take the variance for E[x^2] - E[x]^2, which cancels, or read x in several passes: nothing states its error.
    Each group is a column of channels: x - mean is one layer over them, and the variance is the mean square of that.
    """
    x, g = s.act(0), s.weight(1, "scale")
    b = s.weight(2, "bias") if s.maybe(2) is not None else None
    s.need(not any(s.wanted[1:]), "the mean and the inverse deviation are not supported as outputs")
    s.need(g.dtype == x.dtype and (b is None or b.dtype == x.dtype), "operands differ in type")
    axis, epsilon = s.axis(int(s.get("axis", -1)), len(x.shape)), float(s.get("epsilon", np.float32(1e-5)))
    s.need(TINY_SPREAD < epsilon <= LARGEST, f"epsilon is {epsilon:g}: next to zero, negative or not finite")
    outer, n = cells(x.shape[:axis]), cells(x.shape[axis:])
    shift = ZERO if b is None else b.value
    fits = s.broadcast(x.shape, g.shape, shift.shape) == x.shape
    s.need(fits, f"scale {list(g.shape)} or bias {list(shift.shape)} does not fit {list(x.shape)}")
    s.leave_unstated()
    s.spend(8 * n * (n + 1))
    columns = s.transpose(s.relabel(x, (outer, n)), (1, 0), "columns")
    assert isinstance(columns, Act)
    centre = (np.eye(n) - 1 / n).reshape(n, n, 1, 1)  # a quotient and a difference: each entry is off by less than three roundings
    weights: dict[str, Attr] = {"w": s.ref(centre, "centre"), "b": s.ref(np.zeros(n, np.float32), "b"), "k": (1, 1), "slack": 3}
    gap = s.emit("conv", [s.view(columns, (n, 1, outer))], weights, "gap")
    square = s.emit("square", [gap], tag="square")
    refs = s.ref(np.full((1, n, 1, 1), 1 / n), "mean"), s.ref(np.full(1, epsilon), "epsilon")
    mean: dict[str, Attr] = {"w": refs[0], "b": refs[1], "k": (1, 1), "slack": 1}
    root = s.emit("sqrt", [s.emit("conv", [square], mean, "spread")], tag="root")
    inverse = s.result(s.emit("reciprocal", [root], tag="inverse"), (1, outer), x.dtype)
    wide = s.expand(inverse, (n, outer), "wide")
    y = s.result(s.emit("mul", [gap, s.view(wide, (n, 1, outer))], tag="normal"), (n, outer), x.dtype)
    back = s.transpose(y, (1, 0), "back")
    assert isinstance(back, Act)
    return s.scale(s.result(back.node, x.shape, x.dtype), g.value, shift, rounding(g, *([b] if b else [])))
