"""A generator for every rewriting that a compiler of such graphs does: the pattern that invites it, with hostile numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.oracle.graphs.build import ULP, Builder, Tensor

Stage = Callable[[Builder, Tensor], Tensor]


def _rows(b: Builder, x: Tensor, most: int = 3) -> Tensor:
    """Up to `most` scales."""
    for _ in range(b.between(1, most)):
        x = b.scale(x)
    return x


# ---- scales and layers -------------------------------------------------------------------------------------------------


def scale_after_conv(b: Builder, x: Tensor) -> Tensor:
    return _rows(b, b.conv(x))


def scale_after_linear(b: Builder, x: Tensor) -> Tensor:
    return _rows(b, b.linear(x))


def scale_before_linear(b: Builder, x: Tensor) -> Tensor:
    x = b.image(x) if b.chance(0.3) else b.flat(x)
    return b.linear(_rows(b, x))


def scale_before_conv(b: Builder, x: Tensor) -> Tensor:
    return b.conv(_rows(b, b.image(x)), padding=b.chance(0.2))


def scale_after_scale(b: Builder, x: Tensor) -> Tensor:
    x = _rows(b, b.flat(x) if b.chance(0.5) else b.image(x), 4)
    return b.scale(x)


def linear_after_linear(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    hidden, out = b.between(8, 40), b.between(1, 3)
    y = b.linear(x, hidden)
    if b.chance(0.3):
        y = b.scale(y)
    normal, tail = b.rng.standard_normal((hidden, out)), b.column("tail", hidden)[:, None]
    w = b.pick(np.full((hidden, out), 1 / 3), b.weights(hidden, out), normal, tail)
    return b.linear(y, w=np.where(w == 0, 1.0, w))


# ---- cells that move ---------------------------------------------------------------------------------------------------


def _permuted(b: Builder, n: int) -> np.ndarray:
    return b.rng.permutation(n)


def _repeated(b: Builder, n: int) -> np.ndarray:
    """Some cells read often, perhaps some not at all."""
    how = b.between(0, 6)
    times = b.between(2, 8)
    if how >= 4:  # few of many, each often: a compiler that counts the source's cells misses terms
        few = b.rng.choice(n, min(n, b.between(2, 6)), replace=False)
        return np.tile(few, b.between(5, max(5, 120 // len(few))))
    if how == 0:
        return np.tile(np.arange(n), times)
    if how == 1:
        return np.repeat(np.arange(n), times)
    if how == 2:
        return b.rng.integers(0, n, n * b.between(1, 3))
    index = np.zeros(b.between(8, 100), np.int64)
    index[: min(n, len(index))] = np.arange(min(n, len(index)))
    return index


def gather_permute(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    return b.linear(b.gather(x, _permuted(b, x.size)))


def gather_padded(b: Builder, x: Tensor) -> Tensor:
    """Zeros beside the cells, by Pad or by Concat."""
    x = b.flat(x)
    more = [b.between(0, 30), b.between(1, 30)]
    if b.chance(0.5):
        y = b.pad(x, [0, more[0]], [0, more[1]])
    else:
        parts = [b.constant(np.zeros((1, more[0])))] if more[0] else []
        y = b.concat([*parts, x, b.constant(np.zeros((1, more[1])))])
    if b.chance(0.4):
        y = b.gather(y, _permuted(b, y.size))
    return b.linear(y)


def gather_repeats(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    how = b.between(0, 7)
    if how == 0:
        times = b.between(2, 6)
        y = b.emit("Tile", [x, b.integers(1, times)], (1, x.size * times))
    elif how == 1:
        y = b.concat([x] * b.between(2, 5))
    else:
        index = _repeated(b, x.size)
        if b.chance(0.5):  # the cells that nobody reads are off
            live = np.isin(np.arange(x.size), index)
            x = b.relu(b.pair("Add", x, b.constant(np.where(live, 0.0, -100.0))))
        y = b.gather(x, index)
    if b.chance(0.2):
        y = b.gather(y, _repeated(b, y.size)[:120])
    w = None
    if b.chance(0.4):  # columns that cancel where a cell is read twice
        w = b.weights(y.size, 2)
        w[1::2] = -w[::2][: len(w[1::2])]
        w[b.between(0, y.size - 1)] += b.pick(1.0, ULP)
    return b.linear(y, w=w)


def gather_dead(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    keep = np.sort(b.rng.choice(x.size, max(1, x.size // 2), replace=False))
    return b.linear(b.gather(x, keep))


def gather_into_linear(b: Builder, x: Tensor) -> Tensor:
    y = b.linear(x, b.between(2, 6))
    if b.chance(0.3):
        return b.relu(b.pad(y, [0, 1], [0, b.between(0, 2)]))
    index = b.pick(_permuted, _repeated)(b, y.size)[:24]
    return b.relu(b.gather(y, index)) if b.chance(0.5) else b.gather(y, index)


def gather_into_input(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    y = b.pad(b.gather(x, _permuted(b, x.size)), [0, b.between(0, 4)], [0, 4 * b.between(0, 4)])
    return b.conv(y) if b.chance(0.5) else b.linear(b.relu(y))


def gather_through_relu(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    index = b.pick(_permuted, _repeated)(b, x.size)[:120]
    y = b.relu(b.gather(x, index))
    return b.linear(y) if b.chance(0.8) else y


def gather_through_scale(b: Builder, x: Tensor) -> Tensor:
    x = b.linear(x, b.between(3, 8)) if b.chance(0.4) else b.flat(x)
    index = b.pick(_permuted, _repeated)(b, x.size)[:120]
    y = b.gather(x, index)
    if b.chance(0.3):
        y = b.pad(y, [0, b.between(0, 5)], [0, b.between(1, 20)])
    y = b.scale(y, spread=b.chance(0.7) or None)
    return b.linear(y) if b.chance(0.8) else y


def gather_behind_scale(b: Builder, x: Tensor) -> Tensor:
    """Between ReLUs: nothing but the gather can take the scale, and no input the gather."""
    x = b.relu(b.flat(x))
    y = b.gather(x, b.pick(_permuted, _permuted, _repeated)(b, x.size)[:120])
    if b.chance(0.2):
        y = b.pad(y, [0, b.between(0, 5)], [0, b.between(1, 20)])
    return b.linear(b.relu(b.scale(y, spread=b.chance(0.7) or None)))


def gather_below_sum(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    other = b.scale(x) if b.chance(0.5) else b.relu(x)
    index = b.pick(_permuted, _repeated)(b, x.size)[:100]
    y = b.pair(b.pick("Add", "Sub"), b.gather(x, index), b.gather(other, index))
    return b.linear(y) if b.chance(0.8) else y


# ---- padding and slices of images --------------------------------------------------------------------------------------


def _around(b: Builder, x: Tensor, channels: bool = False) -> Tensor:
    """Zeros around an image, sometimes channels of zeros too."""
    x = b.image(x)
    widths = [b.between(0, 2) for _ in range(4)]
    more = b.between(1, 2) if channels else 0
    return b.pad(x, [0, 0, widths[0], widths[1]], [0, more, widths[2], widths[3]])


def pad_into_conv(b: Builder, x: Tensor) -> Tensor:
    return b.conv(_around(b, x, b.chance(0.1)))


def slice_to_conv(b: Builder, x: Tensor) -> Tensor:
    x = b.image(x)
    axis = b.pick(2, 3)
    size = x.shape[axis]
    step = b.pick(1, 1, 2, -1)
    start = b.between(0, max(0, size - 2))
    cells = len(range(start, size, step)) if step > 0 else size
    first, last = (start, size) if step > 0 else (size - 1, -size - 1)
    shape = [*x.shape]
    shape[axis] = cells
    y = b.emit("Slice", [x, b.integers(first), b.integers(last), b.integers(axis), b.integers(step)], tuple(shape))
    y = b.relu(y) if b.chance(0.2) else y
    return b.conv(y) if b.chance(0.7) else b.linear(y)


def pad_add_matmul(b: Builder, x: Tensor) -> Tensor:
    """What is padding becomes a constant by the sum, and then takes part in the product."""
    x = b.flat(x)
    y = b.pad(x, [0, b.between(0, 50)], [0, b.between(1, 50)])
    y = b.scale(y, b.pick("Add", "Add", "Sub", "from"), spread=b.chance(0.5))
    if b.chance(0.2):
        y = b.scale(y)
    return b.linear(y)


def pad_add_conv(b: Builder, x: Tensor) -> Tensor:
    y = _around(b, x, b.chance(0.3))
    y = b.scale(y, b.pick("Add", "Sub", "from"))
    return b.conv(y)


def pad_batchnorm_conv(b: Builder, x: Tensor) -> Tensor:
    y = b.batchnorm(_around(b, x, b.chance(0.3)))
    return b.conv(y)


# ---- constants that join -----------------------------------------------------------------------------------------------


def _constants(b: Builder, x: Tensor) -> Tensor:
    """A constant beside x along axis 1: ones, small ones, or anything."""
    count = b.pick(b.between(1, 5), b.between(20, 100)) if len(x.shape) == 2 else b.between(1, 3)
    shape = (1, count, *x.shape[2:])
    values = b.pick(np.ones(shape), np.ones(shape), np.full(shape, 1 / 3), b.rng.standard_normal(shape), np.full(shape, 0.6 * ULP))
    if b.chance(0.2):
        values = np.where(b.rng.random(shape) < 0.5, 0.0, values)
    return b.constant(values)


def _joined(b: Builder, x: Tensor, before: bool, after: bool) -> Tensor:
    x = b.image(x) if b.chance(0.3) else b.flat(x)
    y = b.concat([*([_constants(b, x)] if before else []), x, *([_constants(b, x)] if after else [])])
    if b.chance(0.2):
        y = b.relu(y)
    if b.chance(0.2):
        y = b.gather(y, _permuted(b, y.shape[1]))
    return b.conv(y) if len(y.shape) == 4 and b.chance(0.8) else b.linear(y)


def constants_before(b: Builder, x: Tensor) -> Tensor:
    return _joined(b, x, True, False)


def constants_after(b: Builder, x: Tensor) -> Tensor:
    return _joined(b, x, False, True)


def constants_both(b: Builder, x: Tensor) -> Tensor:
    return _joined(b, x, True, True)


def concat_add_matmul(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    zeros = b.constant(np.zeros((1, b.between(5, 80))))
    other = b.pick(zeros, _constants(b, x), x)
    y = b.concat([x, other] if b.chance(0.5) else [other, x])
    y = b.scale(y, b.pick("Add", "Sub"), spread=b.chance(0.5))
    return b.linear(y)


def expand_mul_matmul(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    times = b.between(2, 6)
    y = b.emit("Expand", [b.reshape(x, 1, 1, x.size), b.integers(1, times, x.size)], (1, times, x.size))
    y = b.pair("Mul", y, b.constant(b.factors(times, x.size)))
    if b.chance(0.4):
        y = b.pair("Add", y, b.constant(b.shifts(times, x.size)))
    return b.linear(y)


def tile_mul_matmul(b: Builder, x: Tensor) -> Tensor:
    x = b.flat(x)
    times = b.between(2, 6)
    y = b.emit("Tile", [x, b.integers(1, times)], (1, times * x.size))
    y = b.pair(b.pick("Mul", "Mul", "Div"), y, b.constant(b.factors(times * x.size)))
    if b.chance(0.4):
        y = b.scale(y)
    return b.linear(y)


FIRST: dict[str, Stage] = {
    f.__name__: f
    for f in (
        scale_after_conv, scale_after_linear, scale_before_linear, scale_before_conv, scale_after_scale, linear_after_linear,
        gather_permute, gather_padded, gather_repeats, gather_dead, gather_into_linear, gather_into_input, gather_through_relu,
        gather_through_scale, gather_behind_scale, gather_below_sum, pad_into_conv, slice_to_conv, pad_add_matmul, pad_add_conv,
        pad_batchnorm_conv, constants_before, constants_after, constants_both, concat_add_matmul, expand_mul_matmul, tile_mul_matmul,
    )
}  # fmt: skip
