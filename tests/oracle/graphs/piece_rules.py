"""Generators of what is linear in pieces, selects or enlarges, behind layers whose last places are hostile."""

from __future__ import annotations

import numpy as np

from tests.oracle.graphs.build import ULP, Builder, Tensor
from tests.oracle.graphs.rules import Stage


def layer(b: Builder, x: Tensor) -> Tensor:
    """Something that rounds, most often."""
    how = b.between(0, 5)
    if how == 0:
        return x
    if how == 1:
        return b.scale(x)
    if how == 2 and len(x.shape) == 4:
        return b.conv(x)
    return b.linear(x, b.between(2, 10))


def spread(b: Builder, x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """A constant that broadcasts with x."""
    shape = b.pick((), (1,), x.shape[1:], (x.shape[1], *(1 for _ in x.shape[2:])))
    near = b.pick(np.zeros(shape), b.rng.uniform(low, high, shape), np.full(shape, 1 / 3), np.full(shape, 1 + ULP), b.shifts(*shape))
    return b.constant(near)


def end(b: Builder, x: Tensor) -> Tensor:
    """What comes behind: nothing, a layer, a sum with what came before, another piece."""
    if b.chance(0.3):
        x = b.pair(b.pick("Add", "Sub"), x, b.pick(x, spread(b, x)))
    return layer(b, x)


def clips(b: Builder, x: Tensor) -> Tensor:
    x = layer(b, x)
    for _ in range(b.between(1, 2)):
        op = b.pick("Clip", "Clip", "Clip", "PRelu", "PRelu", "HardSigmoid", "Abs")
        if op == "Clip":
            low, high = sorted(b.pick(0.0, -1.0, 1.0, 1 / 3, -ULP, 6.0, 1 + ULP, 1e-39, 2.0**24) for _ in range(2))
            low, high = (high, low) if b.chance(0.1) else (low, high)
            ends: list[Tensor | None] = [b.constant(np.array(low)), b.constant(np.array(high))]
            x = b.emit("Clip", [x, *b.pick(ends, ends, ends[:1], [None, ends[1]], [])], x.shape)
        elif op == "PRelu":
            slope = spread(b, x, -2.0, 2.0)
            x = b.emit("PRelu", [x, slope], x.shape)
        elif op == "HardSigmoid":
            x = b.emit("HardSigmoid", [x], x.shape, alpha=b.pick(0.2, 1 / 6, 1.0, 3.0), beta=b.pick(0.5, 0.0, -0.3))
        else:
            x = b.emit("Abs", [x], x.shape)
        if b.chance(0.4):
            x = layer(b, x)
    return end(b, x)


def extremes(b: Builder, x: Tensor) -> Tensor:
    """The larger, or the less, of activations that share layers, and of constants."""
    x = layer(b, x)
    other = b.pick(b.scale, b.relu, lambda v: v)(x)
    parts = [x, b.pick(other, other, spread(b, x))]
    if b.chance(0.3):
        parts.append(b.pick(x, spread(b, x), other))
    b.rng.shuffle(parts)  # type: ignore[arg-type]
    y = b.emit(b.pick("Max", "Min"), list(parts), x.shape)
    if b.chance(0.4):
        y = b.pair(b.pick("Add", "Sub"), y, b.pick(x, other))
    return end(b, y)


def reduced_extremes(b: Builder, x: Tensor) -> Tensor:
    x = b.image(layer(b, x))
    axes, keep = b.pick([2, 3], [1], [3], [1, 2, 3]), b.pick(0, 1)
    shape = tuple(1 if k in axes else s for k, s in enumerate(x.shape) if keep or k not in axes)
    op = b.pick("ReduceMax", "ReduceMin")
    if b.opset >= 18:
        y = b.emit(op, [x, b.integers(*axes)], shape, keepdims=keep)
    else:
        y = b.emit(op, [x], shape, keepdims=keep, axes=axes)
    return end(b, y if len(shape) > 1 else b.reshape(y, 1, int(np.prod(shape))))


def selections(b: Builder, x: Tensor) -> Tensor:
    x = layer(b, x)
    mask = b.constant(b.rng.random(b.pick(x.shape[1:], (x.shape[1], *(1 for _ in x.shape[2:])))) < 0.5, np.bool_)
    other = b.pick(b.scale(x), b.relu(x), spread(b, x))
    both = [x, other] if b.chance(0.5) else [other, x]
    y = b.emit("Where", [mask, *both], x.shape)
    if b.chance(0.3):
        y = b.pair("Add", y, x)
    return end(b, y)


def _square(b: Builder, x: Tensor) -> Tensor:
    return b.image(x if b.chance(0.5) else b.scale(x))


def enlarged_images(b: Builder, x: Tensor) -> Tensor:
    """Repeated, moved into space or out of it, or picked by index: each copy may meet a rounding of its own."""
    x = _square(b, x)
    how = b.between(0, 3)
    _, channels, height, width = x.shape
    if how == 0:
        factors = [b.between(1, 3), b.between(1, 3)]
        shape = (1, channels, height * factors[0], width * factors[1])
        how, near = b.pick("half_pixel", "asymmetric"), b.pick("round_prefer_floor", "floor")
        attrs = {"coordinate_transformation_mode": how, "nearest_mode": near}
        y = b.emit("Resize", [x, None, b.constant(np.array([1.0, 1.0, *factors]), np.float32)], shape, **attrs)
    elif how == 1:
        x = b.emit("Expand", [x, b.integers(1, 4 * channels, height, width)], (1, 4 * channels, height, width)) if channels == 1 else x
        if x.shape[1] % 4:
            x = b.concat([x] * 4)
        y = b.emit("DepthToSpace", [x], (1, x.shape[1] // 4, 2 * height, 2 * width), blocksize=2, mode=b.pick("DCR", "CRD"))
    elif how == 2:
        block = b.pick(*(k for k in (1, 2, 3) if height % k == width % k == 0))
        y = b.emit("SpaceToDepth", [x], (1, channels * block**2, height // block, width // block), blocksize=block)
    else:
        rows = b.between(2, 20)
        index = np.stack([b.rng.integers(0, n, rows) for n in x.shape], 1)
        y = b.reshape(b.emit("GatherND", [x, b.constant(index, np.int64)], (rows,)), 1, rows)
    if b.chance(0.4):
        y = b.scale(y)
    return b.linear(y) if len(y.shape) == 2 or b.chance(0.5) else b.conv(y)


def transposed_convs(b: Builder, x: Tensor) -> Tensor:
    x = _square(b, x)
    _, channels, height, width = x.shape
    groups = channels if b.chance(0.2) else 1
    outs, kernel = b.between(1, 2), [b.between(1, 3), b.between(1, 3)]
    stride, dilation = [b.between(1, 3), b.between(1, 3)], [b.pick(1, 1, 2), 1]
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    pads = [b.between(0, min(1, r)) for r in (*reach, *reach)]
    more = [b.between(0, s - 1) for s in stride]
    spans = enumerate(zip((height, width), stride, reach, strict=True))
    size = [(n - 1) * s + r + 1 - pads[i] - pads[2 + i] + more[i] for i, (n, s, r) in spans]
    if min(size) < 1:
        return b.linear(x)
    w = b.weights(channels * kernel[0] * kernel[1], outs).reshape(channels, *kernel, outs).transpose(0, 3, 1, 2)
    bias = [b.constant(b.shifts(groups * outs))] if b.chance(0.6) else []
    attrs = {"strides": stride, "pads": pads, "dilations": dilation, "output_padding": more, "group": groups, "kernel_shape": kernel}
    y = b.emit("ConvTranspose", [x, b.constant(w), *bias], (1, groups * outs, *size), **attrs)
    if b.chance(0.4):
        y = b.pick(b.scale, b.relu)(y)
    return b.linear(y) if b.chance(0.6) else y


def piece_chain(b: Builder, x: Tensor) -> Tensor:
    """Two to four of them, one behind the other."""
    for _ in range(b.between(2, 4)):
        x = PIECE_STAGES[str(b.rng.choice([name for name in PIECE_STAGES if name != "piece_chain"]))](b, x)
        if x.size > 60:
            x = b.linear(x, b.between(4, 12))
        if len(x.shape) not in (2, 4):
            x = b.reshape(x, 1, x.size)
    return x


PIECE_STAGES: dict[str, Stage] = {
    f.__name__: f for f in (clips, extremes, reduced_extremes, selections, enlarged_images, transposed_convs, piece_chain)
}
