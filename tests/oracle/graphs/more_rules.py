"""Further generators: forms of layers, pools and means, constants that are computed, sums of the same value, and mixtures."""

from __future__ import annotations

import numpy as np

from tests.oracle.graphs.build import ULP, Builder, Tensor
from tests.oracle.graphs.rules import FIRST, Stage

# ---- forms of layers ---------------------------------------------------------------------------------------------------


def transposes(b: Builder, x: Tensor) -> Tensor:
    x = b.image(x)
    perm = [0, *(1 + b.rng.permutation(3))]
    y = b.emit("Transpose", [x], tuple(x.shape[p] for p in perm), perm=perm)
    if b.chance(0.3):
        y = b.scale(y)
    y = b.conv(y) if b.chance(0.5) else b.linear(y)
    if len(y.shape) == 4 and b.chance(0.5):
        y = b.emit("Transpose", [y], tuple(y.shape[p] for p in (0, 2, 3, 1)), perm=[0, 2, 3, 1])
        return b.linear(y)
    return y


def gemm_forms(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    out = b.between(1, 4)
    w = b.weights(x.size, out)
    alpha, beta = b.pick(1.0, 1 / 3, 0.7, -2.0, 1 + ULP), b.pick(1.0, 1 / 3, 0.0, -1.0, 1 + ULP)
    given, left = {"alpha": alpha, "beta": beta}, b.pick("plain", "plain", "A turned", "constant A")
    if left == "constant A":  # W x, the activation a column
        column = b.reshape(x, x.size, 1)
        c = [b.constant(b.shifts(out, 1))] if b.chance(0.6) else []
        y = b.emit("Gemm", [b.constant(w), column, *c], (out, 1), transA=1, **given)
        return b.reshape(y, 1, out)
    a = b.reshape(x, x.size, 1) if left == "A turned" else x
    turned = b.chance(0.5)
    c = [b.constant(b.pick(b.shifts(out), b.shifts(1, out), b.shifts(1), b.shifts()))] if b.chance(0.7) else []
    inputs = [a, b.constant(w.T if turned else w), *c]
    y = b.emit("Gemm", inputs, (1, out), transA=int(left == "A turned"), transB=int(turned), **given)
    return b.scale(y) if b.chance(0.3) else y


def batched_matmul(b: Builder, x: Tensor) -> Tensor:
    """One matrix for every row, from the right or from the left; or a matrix a batch."""
    x = b.image(x)
    _, channels, height, width = x.shape
    how = b.between(0, 2)
    if how == 0:
        out = b.between(1, 3)
        y = b.emit("MatMul", [x, b.constant(b.weights(width, out))], (1, channels, height, out))
    elif how == 1:
        out = b.between(1, 3)
        y = b.emit("MatMul", [b.constant(b.weights(height, out).T), x], (1, channels, out, width))
    else:
        out = b.between(1, 2)
        w = np.stack([b.weights(width, out) for _ in range(channels)])
        y = b.emit("MatMul", [x, b.constant(w)], (1, channels, height, out))
    if b.chance(0.4):
        y = b.scale(y)
    return b.linear(y) if b.chance(0.5) else y


def average_pool(b: Builder, x: Tensor) -> Tensor:
    x = b.image(x)
    if b.chance(0.4):
        x = b.scale(x) if b.chance(0.5) else b.conv(x)
    if b.chance(0.25):
        y = b.emit("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
    else:
        kernel = [min(s, b.between(1, 3)) for s in x.shape[2:]]
        pads = [b.between(0, k - 1) for k in (*kernel, *kernel)]
        stride = [b.pick(1, 1, 2), b.pick(1, 2)]
        size = [(s + pads[i] + pads[2 + i] - kernel[i]) // stride[i] + 1 for i, s in enumerate(x.shape[2:])]
        attrs = {"kernel_shape": kernel, "pads": pads, "strides": stride, "count_include_pad": b.pick(0, 1)}
        y = b.emit("AveragePool", [x], (*x.shape[:2], *size), **attrs)
    if b.chance(0.3):
        y = b.scale(y)
    return b.pick(b.conv, b.linear)(y) if b.chance(0.4) else y


def reduce_mean(b: Builder, x: Tensor) -> Tensor:
    x = b.image(x)
    if b.chance(0.3):
        x = b.scale(x)
    axes = b.pick([2, 3], [1], [3], [1, 2, 3], [-1, -2])
    keep = b.pick(0, 1)
    gone = [a % 4 for a in axes]
    shape = tuple(1 if k in gone else s for k, s in enumerate(x.shape) if keep or k not in gone)
    op = b.pick("ReduceMean", "ReduceMean", "ReduceSum")
    if op == "ReduceSum" or b.opset >= 18:
        y = b.emit(op, [x, b.integers(*axes)], shape, keepdims=keep)
    else:
        y = b.emit(op, [x], shape, keepdims=keep, axes=axes)
    if len(shape) < 2:
        y = b.reshape(y, 1, int(np.prod(shape)))
    if b.chance(0.4):
        y = b.pair(b.pick("Mul", "Add", "Div"), y, b.constant(b.factors()))
    return b.linear(y) if b.chance(0.5) else y


# ---- constants that are computed ---------------------------------------------------------------------------------------


def _computed(b: Builder, values: np.ndarray, chain: int = 2) -> Tensor:
    """Constants by arithmetic on constants, near `values`."""
    held = b.constant(values)
    for _ in range(b.between(1, chain)):
        op = b.pick("Mul", "Div", "Add", "Sub", "Sqrt", "Reciprocal", "Neg")
        if op in ("Sqrt", "Reciprocal"):
            over = b.constant(np.asarray(b.pick(2.0, 3.0, 1e-5, 0.7)))
            held = b.pair("Mul", held, b.emit(op, [over], ()))
        elif op == "Neg":
            held = b.emit("Neg", [held], held.shape)
        else:
            other = b.factors(*values.shape[-1:]) if op in ("Mul", "Div") else b.shifts(*values.shape[-1:])
            held = b.pair(op, held, b.constant(other))
    return held


def folded_constants(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    if b.chance(0.5):
        op = b.pick("Mul", "Add", "Sub", "Div")
        values = b.factors(x.size)
        held = _computed(b, values) if op != "Div" else b.pair("Mul", b.constant(values), b.constant(b.factors(x.size)))
        x = b.pair(op, x, held)
    out = b.between(1, 4)
    y = b.emit("MatMul", [x, _computed(b, b.weights(x.size, out))], (1, out))
    return b.pair("Add", y, _computed(b, b.shifts(out))) if b.chance(0.6) else y


def _stored(b: Builder, values: np.ndarray, early: bool) -> Tensor:
    """Held in float16 and cast; computed with before the cast (early) or after it."""
    held = b.constant(values, np.float16)
    if early:
        for _ in range(b.between(1, 2)):
            held = b.pair(b.pick("Mul", "Add", "Div"), held, b.constant(b.pick(1 / 3, 0.1, 3.0, 1 + 2.0**-10), np.float16))
    kind = {"float32": 1, "float64": 11, "float16": 10}[b.dtype.name]
    wide = b.emit("Cast", [held], held.shape, to=kind)
    if early and b.chance(0.7):
        return wide
    return b.pair(b.pick("Mul", "Add"), wide, b.constant(b.pick(1 / 3, 0.1, 1 + ULP)))


def _with_stored(b: Builder, x: Tensor, early: bool) -> Tensor:
    x, out = b.flat(x), b.between(1, 4)
    if b.chance(0.4):
        x = b.pair(b.pick("Mul", "Add"), x, _stored(b, b.factors(x.size), early))
    shape = (x.size, out)
    w = b.pick(b.rng.standard_normal(shape), np.full(shape, 1 / 3), np.full(shape, 2.0**-13), b.weights(*shape))
    y = b.emit("MatMul", [x, _stored(b, np.clip(w, -60000, 60000), early)], (1, out))
    return b.pair("Add", y, _stored(b, b.shifts(out), early)) if b.chance(0.4) else y


def half_constants(b: Builder, x: Tensor) -> Tensor:
    """Stored in float16, cast, and then computed with."""
    return _with_stored(b, x, False)


def half_arithmetic(b: Builder, x: Tensor) -> Tensor:
    """Computed with in float16, then cast."""
    return _with_stored(b, x, True)


# ---- sums and the rest -------------------------------------------------------------------------------------------------


def residual(b: Builder, x: Tensor) -> Tensor:
    how = b.between(0, 4)
    if how == 0:  # the same value twice
        y = b.pair(b.pick("Add", "Sub"), x, x)
    elif how == 1:
        x = b.flat(x)
        y = b.pair(b.pick("Add", "Sub"), b.linear(x, w=b.weights(x.size, x.size)), x)
    elif how == 2:
        y = b.pair("Add", b.scale(b.relu(x)), x)
    elif how == 3:
        both = b.pair("Add", x, b.scale(x))
        y = b.pair(b.pick("Add", "Sub"), both, x)
    else:
        x = b.image(x)
        channels = x.shape[1]
        held = [b.constant(b.weights(channels * k * k, channels).T.reshape(channels, channels, k, k)) for k in (1, 3)]
        one = b.emit("Conv", [x, held[0]], x.shape, kernel_shape=[1, 1])
        three = b.emit("Conv", [x, held[1]], x.shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        y = b.pair(b.pick("Add", "Sub"), b.relu(one) if b.chance(0.4) else one, three)
    return b.linear(y) if b.chance(0.6) else y


def computed_copies(b: Builder, x: Tensor) -> Tensor:
    """Copies of a cell, each computed with on its own: results may round apart, and differences of them show it."""
    x = b.flat(x)
    if x.size > 6:
        x = b.linear(x, b.between(1, 4))
    other = b.scale(x) if b.chance(0.5) else b.relu(x)
    index = b.rng.integers(0, x.size, b.between(2, 8))
    index[-1] = index[0]
    y = b.gather(x, index)
    for _ in range(b.between(1, 2)):
        how = b.between(0, 3)
        if how == 0:
            y = b.emit("LeakyRelu", [y], y.shape, alpha=b.pick(1 / 3, 0.3, 1.7))
        elif how == 1:
            y = b.scale(y)
        else:
            y = b.pair(b.pick("Add", "Sub"), y, b.gather(other, index))
    if b.chance(0.5):
        return y
    w = np.zeros((y.size, 2))
    w[0, 0], w[-1, 0], w[:, 1] = 1, -1, b.rng.choice([1.0, -1.0], y.size)
    return b.linear(y, w=w)


def plain(b: Builder, x: Tensor) -> Tensor:
    """The other operators: pools, leaks, splits, squeezes, casts."""
    x = b.image(x)
    for _ in range(b.between(1, 3)):
        how = b.between(0, 6)
        if how == 0 and min(x.shape[2:]) >= 2:
            x = b.emit("MaxPool", [x], (*x.shape[:2], *(s - 1 for s in x.shape[2:])), kernel_shape=[2, 2])
        elif how == 1:
            x = b.emit("LeakyRelu", [x], x.shape, alpha=b.pick(0.01, 1 / 3, 0.5))
        elif how == 2 and x.shape[2] >= 2:
            x = _split(b, x)
        elif how == 3:
            line = b.emit("Unsqueeze", [x, b.integers(1)], (1, *x.shape))
            x = b.emit("Squeeze", [line, b.integers(1)], x.shape)
        elif how == 4:
            x = b.emit(b.pick("Identity", "Dropout"), [x], x.shape)
        elif how == 5:
            x = b.emit("GlobalMaxPool", [x], (*x.shape[:2], 1, 1)) if b.chance(0.3) else b.relu(x)
        else:
            x = b.scale(b.conv(x))
    return b.linear(x)


def _split(b: Builder, x: Tensor) -> Tensor:
    cut = b.between(1, x.shape[2] - 1)
    sizes = (cut, x.shape[2] - cut)
    parts = [Tensor(f"s{len(b.nodes)}_{k}", (*x.shape[:2], s, x.shape[3])) for k, s in enumerate(sizes)]
    b.emit("Split", [x, b.integers(*sizes)], x.shape, axis=2)
    b.nodes[-1].output[:] = [p.name for p in parts]
    return b.concat([b.scale(parts[1]), parts[0]], axis=2)


def chain(b: Builder, x: Tensor) -> Tensor:
    """Two to four of all rules, one behind the other."""
    for k in range(b.between(2, 4)):
        if k and b.chance(0.3):
            x = b.relu(x)
        x = STAGES[MIXABLE[int(b.rng.integers(len(MIXABLE)))]](b, x)
        if x.size > 100:
            x = b.linear(x, b.between(4, 12))
        elif k and x.size < 4 and b.chance(0.7):
            x = b.linear(x, b.between(6, 12))
    return x


STAGES: dict[str, Stage] = {
    **FIRST,
    **{
        f.__name__: f
        for f in (
            transposes, gemm_forms, batched_matmul, average_pool, reduce_mean, folded_constants, half_constants, half_arithmetic,
            residual, plain, computed_copies,
        )
    },
}  # fmt: skip

MIXABLE = tuple(name for name in STAGES if name != "half_arithmetic")  # whose escapes would hide those of others
