"""Small networks whose programs hold the launches that bench.gpu looks at, one shape at a time; seeded He weights."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from bench.core.machine import ROOT
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.net import Builder, Net


class NetGrower:
    """A Builder with weights."""

    def __init__(self, name: str, *shape: int) -> None:
        self.builder, self.rng = Builder(name), np.random.default_rng(0)
        self.at = self.builder.input(shape)

    def _push(self, op: str, weight: tuple[int, ...], **attrs: Any) -> NetGrower:
        w = (self.rng.standard_normal(weight, dtype=np.float32) * (2 / prod(weight[1:])) ** 0.5).astype(np.float32)
        b = self.rng.standard_normal(weight[0], dtype=np.float32) * np.float32(0.05)
        made = self.builder
        self.at = made.add(op, (self.at,), w=made.constant(w), b=made.constant(b), **attrs)
        return self

    def conv(self, to: int, k: int, s: int = 1, pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> NetGrower:
        return self._push("conv", (to, self.builder.shape(self.at)[0], k, k), k=(k, k), s=(s, s), p=pad)

    def dense(self, to: int) -> NetGrower:
        return self._push("linear", (to, prod(self.builder.shape(self.at))))

    def relu(self) -> NetGrower:
        self.at = self.builder.add("relu", (self.at,))
        return self

    def plus(self, other: str) -> NetGrower:
        self.at = self.builder.add("add", (self.at, other))
        return self

    def net(self) -> Net:
        return self.dense(10).builder.build(self.at)


POSITIONS = 8  # neurons of the bounded layer along each axis: enough that its windows do not cover the image


def conv_net(channels: int, window: int, kernel: int, stride: int) -> tuple[Net, str]:
    """A network, and the node whose rows step through a convolution of `channels` to as many, on windows of that size."""
    size = (POSITIONS + window - 2) * stride + kernel
    grower = NetGrower("conv", channels, size, size).conv(channels, kernel, stride).relu().conv(8, window)
    target = grower.at
    return grower.relu().net(), target


def dense_net(source: int, to: int) -> tuple[Net, str]:
    """Rows over `source` neurons step to `to` inputs."""
    grower = NetGrower("dense", to).dense(source).relu().dense(64)
    target = grower.at
    return grower.relu().net(), target


def join_net(channels: int, window: int) -> tuple[Net, str]:
    """Two branches, a 3x3 convolution and the identity, meet behind windows of that size; candidates are taken, rows may leave."""
    size = POSITIONS + window + 3
    grower = NetGrower("join", channels, size, size).conv(channels, 3).relu()
    start = grower.at
    grower.conv(channels, 3, pad=(1, 1, 1, 1)).plus(start).relu().conv(8, window)
    target = grower.at
    return grower.relu().net(), target


def residual() -> Net:
    """A stride of two, uneven padding, both kinds of shortcut."""
    grower = NetGrower("residual", 3, 9, 9).conv(8, 3, 2, (1, 0, 1, 1)).relu()
    start = grower.at
    grower.conv(8, 3, pad=(1, 1, 1, 1)).relu().conv(8, 3, pad=(1, 1, 1, 1)).plus(start).relu()
    start = grower.at
    branch = grower.conv(12, 4, 2, (1, 1, 1, 1)).relu().conv(12, 3, pad=(1, 1, 1, 1)).at
    grower.at = start
    return grower.conv(12, 2, 2).plus(branch).relu().dense(20).relu().net()


def operators() -> Net:
    """What multiplies no matrix: slopes, pools that overlap and pools of ReLUs, a scale, a concatenation, shuffled channels."""
    grower = NetGrower("operators", 3, 10, 10).conv(6, 3, pad=(1, 1, 1, 1))
    made, numbers = grower.builder, grower.rng.standard_normal((2, 6, 1, 1)).astype(np.float32)
    start = grower.at = made.add("relu", (grower.at,), slope=0.125)
    grower.at = made.add("maxpool", (grower.at,), k=(3, 3), s=(1, 1), p=(1, 1, 1, 1))
    scaled = made.add("scale", (grower.relu().at,), a=made.constant(numbers[0]), c=made.constant(numbers[1]))
    grower.at = made.add("concat", (scaled, start), axis=0)
    order = np.concatenate([np.arange(100) + 100 * c for c in (7, 0, 3, 11, 5, 3)])
    bent = made.add("relu", (grower.at,), slope=1.5)  # its lower line has a cut
    grower.at = made.add("gather", (bent,), index=made.constant(order, "index"), to=(6, 10, 10))
    grower.at = made.add("maxpool", (grower.at,), k=(2, 3), s=(2, 2), p=(0, 0, 0, 1))
    return grower.conv(8, 3, 2).relu().dense(12).relu().net()


def tiny() -> Net:
    """One residual block, small enough for the interpreter."""
    grower = NetGrower("tiny", 2, 5, 5).conv(3, 3, 2, (1, 1, 1, 1)).relu()
    start = grower.at
    return grower.conv(3, 3, pad=(1, 1, 1, 1)).plus(start).relu().dense(6).relu().net()


def _example(name: str) -> Callable[[], Net]:
    return lambda: load_onnx(ROOT / "examples" / f"{name}.onnx").net


def _zoo() -> Net:
    from bench.zoo import build

    return load_onnx(build("mnist-6x500", "normal")).net


NETWORKS: dict[str, Callable[[], Net]] = {
    **{n: _example(n) for n in ("digits_conv_ibp", "digits_conv_normal", "digits_resnet_ibp", "digits_resnet_normal")},
    "residual": residual,
    "operators": operators,
    "tiny": tiny,
    "mnist-6x500": _zoo,
}
