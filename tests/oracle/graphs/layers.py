"""Operators that sum products or look at windows, as the ONNX specification has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.oracle.graphs.node import NodeView
from tests.oracle.graphs.tape import NotCovered, Tape, Value


def _floats(tape: Tape, value: float, like: Value) -> Value:
    """An attribute: a float32 number in a tensor's arithmetic, not rounded to its type."""
    return tape.constant(np.array(value, np.float64), like.dtype)


def matmul(tape: Tape, n: NodeView) -> Value:
    a, b = n.inputs[0], n.inputs[1]
    return product(tape, a.ids, b.ids, a, b)


def product(tape: Tape, a: np.ndarray, b: np.ndarray, x: Value, y: Value, bias: np.ndarray | None = None) -> Value:
    """numpy.matmul of two tensors of cells."""
    lost = (a.ndim == 1, b.ndim == 1)
    a = a[None] if lost[0] else a
    b = b[:, None] if lost[1] else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    full = (*batch, rows, columns, inner)
    left = np.broadcast_to(a[..., :, None, :], full).reshape(-1, inner)
    right = np.broadcast_to(np.swapaxes(b, -1, -2)[..., None, :, :], full).reshape(-1, inner)
    shape = (*batch, *(() if lost[0] else (rows,)), *(() if lost[1] else (columns,)))
    flat = None if bias is None else np.broadcast_to(bias, (rows, columns)).reshape(-1)
    return tape.dots(left, right, flat, shape, x.dtype, x.constant and y.constant)


def gemm(tape: Tape, n: NodeView) -> Value:
    """alpha A' B' + beta C; with alpha 1 the sum may begin or end with beta C, and a product with alpha may be fused into the sum."""
    a, b = n.inputs[0], n.inputs[1]
    c = n.inputs[2] if len(n.inputs) > 2 else None
    alpha, beta = n.number("alpha", 1.0), n.number("beta", 1.0)
    if c is not None and beta != 1:
        c = tape.pair("mul", _floats(tape, beta, c), c)
    if alpha != 1 and tape.forms.gemm == 1:
        a, alpha = tape.pair("mul", _floats(tape, alpha, a), a), 1.0
    left = a.ids.T if n.integer("transA", 0) else a.ids
    right = b.ids.T if n.integer("transB", 0) else b.ids
    if alpha == 1:
        return product(tape, left, right, a, b, None if c is None else c.ids)
    y = product(tape, left, right, a, b)
    times = np.broadcast_to(_floats(tape, alpha, y).ids, (y.ids.size, 1))
    bias = None if c is None else np.broadcast_to(c.ids, y.shape).reshape(-1)
    return tape.dots(y.ids.reshape(-1, 1), times, bias, y.shape, y.dtype, y.constant, product=False)


# ---- windows -----------------------------------------------------------------------------------------------------------


class Window:
    """Kernel, strides, dilations and padding of a node over the spatial axes of x."""

    def __init__(self, n: NodeView, spatial: Sequence[int], kernel: Sequence[int]) -> None:
        axes = len(spatial)
        self.kernel = list(kernel)
        self.stride, self.dilation = n.integers("strides", [1] * axes), n.integers("dilations", [1] * axes)
        span = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        auto, pads = n.text("auto_pad", "NOTSET"), n.integers("pads", [0] * 2 * axes)
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            self.out = [-(-size // s) for size, s in zip(spatial, self.stride, strict=True)]
            total = [max(0, (o - 1) * s + f - size) for o, s, f, size in zip(self.out, self.stride, span, spatial, strict=True)]
            less = [t // 2 for t in total]
            more = [t - v for t, v in zip(total, less, strict=True)]
            self.before, self.after = (less, more) if auto == "SAME_UPPER" else (more, less)
        else:
            pads = [0] * 2 * axes if auto == "VALID" else pads
            self.before, self.after = pads[:axes], pads[axes:]
            self.out = []
            for k in range(axes):
                room = spatial[k] + self.before[k] + self.after[k] - span[k]
                steps = room / self.stride[k]
                size = (math.ceil(steps) if n.integer("ceil_mode", 0) else math.floor(steps)) + 1
                if n.integer("ceil_mode", 0) and (size - 1) * self.stride[k] >= spatial[k] + self.before[k]:
                    size -= 1  # no window begins in the padding after the image
                self.out.append(size)
        self.spatial = list(spatial)

    def axis(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[out, kernel]: positions, whether they lie in the image, whether in the image and its padding."""
        at = np.arange(self.out[k])[:, None] * self.stride[k] + np.arange(self.kernel[k]) * self.dilation[k] - self.before[k]
        return at, (at >= 0) & (at < self.spatial[k]), at < self.spatial[k] + self.after[k]

    def table(self, x: np.ndarray, outside: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x is [batch, channels, *spatial]; cells and the two masks under every output, [batch, channels, *out, taps]."""
        axes, cells = len(self.out), x
        inside, padded = np.ones((), bool), np.ones((), bool)
        for k in range(axes):
            at, within, around = self.axis(k)
            cells = np.take(cells, np.clip(at, 0, self.spatial[k] - 1), axis=2 + 2 * k)  # ..., out_k, kernel_k, ...
            place = [1] * 2 * axes
            place[2 * k : 2 * k + 2] = at.shape
            inside, padded = inside & within.reshape(place), padded & around.reshape(place)
        order = [0, 1, *(2 + 2 * k for k in range(axes)), *(3 + 2 * k for k in range(axes))]
        mask = [o - 2 for o in order[2:]]
        shape = (*x.shape[:2], *self.out, -1)
        cells = cells.transpose(order).reshape(shape)
        inside, padded = (np.broadcast_to(m.transpose(mask).reshape(*self.out, -1), cells.shape) for m in (inside, padded))
        return np.where(inside, cells, outside), inside, padded


def conv(tape: Tape, n: NodeView) -> Value:
    x, w = n.inputs[0], n.inputs[1]
    b = n.inputs[2] if len(n.inputs) > 2 else None
    groups = n.integer("group", 1)
    window = Window(n, x.shape[2:], n.integers("kernel_shape", list(w.shape[2:])))
    cells, _, _ = window.table(x.ids, 0)
    batch, channels, places, taps = x.shape[0], x.shape[1], int(np.prod(window.out)), cells.shape[-1]
    out = w.shape[0]
    split = cells.reshape(batch, groups, channels // groups, places, taps).transpose(0, 1, 3, 2, 4)
    left = np.repeat(split.reshape(batch, groups, 1, places, -1), out // groups, axis=2).reshape(batch * out * places, -1)
    right = np.broadcast_to(w.ids.reshape(1, out, 1, -1), (batch, out, places, left.shape[1])).reshape(left.shape)
    bias = None if b is None else np.broadcast_to(b.ids.reshape(1, out, 1), (batch, out, places)).reshape(-1)
    return tape.dots(left, right, bias, (batch, out, *window.out), x.dtype, x.constant and w.constant)


def maxpool(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    window = Window(n, x.shape[2:], n.integers("kernel_shape", []))
    cells, inside, _ = window.table(x.ids, -1)
    if not inside.any(-1).all():
        raise NotCovered("a window of a max pool that lies in the padding")
    first = np.take_along_axis(cells, inside.argmax(-1)[..., None], -1)
    cells = np.where(inside, cells, first)
    return tape.most("max", cells.reshape(-1, cells.shape[-1]), cells.shape[:-1], x)


def avgpool(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    window = Window(n, x.shape[2:], n.integers("kernel_shape", []))
    cells, inside, padded = window.table(x.ids, 0)
    number = (padded if n.integer("count_include_pad", 0) else inside).sum(-1)
    return mean(tape, x, cells.reshape(-1, cells.shape[-1]), number.reshape(-1), cells.shape[:-1], convert=True)


def mean(tape: Tape, x: Value, cells: np.ndarray, number: np.ndarray, shape: tuple[int, ...], convert: bool) -> Value:
    """Means of rows of cells over `number` values each."""
    count = tape.constant(number.astype(x.dtype))
    if tape.forms.mean == 2:
        weights = np.broadcast_to(tape.single_over("div", count).ids[:, None], cells.shape)
        return tape.dots(cells, weights, None, shape, x.dtype, x.constant, product=convert)
    total = tape.dots(cells, np.ones_like(cells), None, (len(cells),), x.dtype, x.constant, product=convert)
    y = tape.pair("mul", total, tape.single_over("div", count)) if tape.forms.mean == 1 else tape.pair("div", total, count)
    return y.reshaped(shape)


def global_pool(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    cells = x.ids.reshape(x.shape[0] * x.shape[1], -1)
    shape = (*x.shape[:2], *[1] * (len(x.shape) - 2))
    if n.op == "GlobalMaxPool":
        return tape.most("max", cells, shape, x)
    return mean(tape, x, cells, np.full(len(cells), cells.shape[1]), shape, convert=True)


def reduce(tape: Tape, n: NodeView) -> Value:
    """ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd of numbers."""
    x = n.inputs[0]
    axes = n.axes()
    if axes is None and n.integer("noop_with_empty_axes", 0):
        return x
    rank = len(x.shape)
    gone = sorted(a % rank for a in axes) if axes else list(range(rank))
    shape = tuple(1 if k in gone else s for k, s in enumerate(x.shape) if n.integer("keepdims", 1) or k not in gone)
    if x.cells is None:
        assert x.known is not None
        function = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod}[n.op]
        return Value(None, x.dtype, function(x.known, axis=tuple(gone)).reshape(shape).astype(x.dtype), True)
    cells = np.moveaxis(x.ids, gone, range(-len(gone), 0)).reshape(int(np.prod(shape)), -1)
    if n.op in ("ReduceMax", "ReduceMin"):
        return tape.most(n.op[6:].lower(), cells, shape, x)
    if n.op == "ReduceSum":
        return tape.dots(cells, np.ones_like(cells), None, shape, x.dtype, x.constant, product=False)
    if n.op == "ReduceMean":
        return mean(tape, x, cells, np.full(len(cells), cells.shape[1]), shape, convert=False)
    raise NotCovered(f"{n.op} of numbers")


def batchnorm(tape: Tape, n: NodeView) -> Value:
    """Inference: (x - mean) / sqrt(var + epsilon) * scale + bias, a number a channel, in one of the forms in use."""
    if n.integer("training_mode", 0):
        raise NotCovered("training")
    x = n.inputs[0]
    scale, bias, middle, var = (v.reshaped((-1, *[1] * (len(x.shape) - 2))) for v in n.inputs[1:5])
    form = tape.forms.norm
    wide = tape.pair("add", var, _floats(tape, n.number("epsilon", 1e-5), var))
    if form == 3:
        y = tape.pair("div", tape.pair("sub", x, middle), tape.single("sqrt", wide))
        return fused(tape, y, scale, bias)
    root = tape.single("rsqrt", wide) if tape.forms.root else tape.single_over("div", tape.single("sqrt", wide))
    if form == 1:
        return fused(tape, tape.pair("mul", tape.pair("sub", x, middle), root), scale, bias)
    a = tape.pair("mul", scale, root)
    if form == 2:
        return fused(tape, tape.pair("sub", x, middle), a, bias)
    c = fused(tape, tape.single("neg", middle), a, bias)
    return fused(tape, x, a, c)


def fused(tape: Tape, x: Value, a: Value, c: Value) -> Value:
    """a x + c, fused or not as the execution chooses."""
    left, times, shift = np.broadcast_arrays(x.ids, a.ids, c.ids)
    fixed = x.constant and a.constant and c.constant
    return tape.dots(left.reshape(-1, 1), times.reshape(-1, 1), shift.reshape(-1), left.shape, x.dtype, fixed, product=False)


LAYERS = {
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "MaxPool": maxpool, "AveragePool": avgpool, "GlobalMaxPool": global_pool,
    "GlobalAveragePool": global_pool, "BatchNormalization": batchnorm,
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), reduce),
}  # fmt: skip
