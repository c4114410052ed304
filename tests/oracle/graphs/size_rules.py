"""Generators of sums of several operands, images of other sizes between cells, and normalised layers."""

from __future__ import annotations

import numpy as np

from tests.oracle.graphs.build import ULP, Builder, Tensor
from tests.oracle.graphs.piece_rules import end, layer, spread
from tests.oracle.graphs.rules import Stage


def several(b: Builder, x: Tensor) -> Tensor:
    """Operands of very different sizes, or that cancel, so that orders tell; some of them the same activation."""
    x = layer(b, x)
    parts = [x]
    for _ in range(b.between(1, 5)):
        how = b.between(0, 4)
        if how == 0:
            parts.append(spread(b, x))
        elif how == 1:
            parts.append(b.pair("Mul", x, b.constant(np.array(b.pick(-1.0, -1 - ULP, 2.0**-24, 0.6 * ULP, 2.0**12)))))
        else:
            parts.append(b.pick(b.relu, b.scale, lambda v: v)(x))
    b.rng.shuffle(parts)  # type: ignore[arg-type]
    y = b.emit(b.pick("Sum", "Sum", "Mean"), list(parts), x.shape)
    if b.chance(0.4):
        y = b.pair(b.pick("Add", "Sub"), y, b.pick(*parts))
    return end(b, y)


def resized_images(b: Builder, x: Tensor) -> Tensor:
    """By powers of two: what the executor's weights, which are constants, are exact for."""
    x = b.image(layer(b, x))
    _, channels, height, width = x.shape
    sides, scales = [height, width], [1.0, 1.0]
    for k in range(2):
        scales[k] = b.pick(*(s for s in (1.0, 2.0, 4.0, 0.5) if sides[k] * s == int(sides[k] * s)))
    shape = (1, channels, *(int(n * s) for n, s in zip(sides, scales, strict=True)))
    how = b.pick("half_pixel", "asymmetric", "pytorch_half_pixel")
    attrs = {"mode": "linear", "coordinate_transformation_mode": how}
    y = b.emit("Resize", [x, None, b.constant(np.array([1.0, 1.0, *scales]), np.float32)], shape, **attrs)
    if b.chance(0.3):
        y = b.scale(y)
    return b.linear(y) if b.chance(0.6) else b.conv(y)


def normalised_layers(b: Builder, x: Tensor) -> Tensor:
    """A LayerNormalization, for exact arithmetic alone."""
    b.opset = max(b.opset, 17)  # no other operator changed from 13 to 17
    x = b.flat(layer(b, x))
    if x.size > 12:
        x = b.linear(x, b.between(2, 8))
    given = [b.constant(b.rng.standard_normal(x.shape[-1])) for _ in range(b.between(1, 2))]
    return end(b, b.emit("LayerNormalization", [x, *given], x.shape, epsilon=b.pick(1e-3, 0.1, 1.0), axis=-1))


SIZE_STAGES: dict[str, Stage] = {f.__name__: f for f in (several, resized_images, normalised_layers)}
