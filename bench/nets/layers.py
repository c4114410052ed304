"""Layers of networks made for measuring, and how a network is grown of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ZooLayer:
    """One affine layer or residual sum, and whether a ReLU follows. The first operand of a sum is the branch whose bias may move."""

    name: str
    op: Literal["conv", "dense", "add"]
    inputs: tuple[str, ...]
    shape: Shape
    relu: bool
    weight: Shape = ()
    stride: int = 1
    pad: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)


class Stack:
    """Grows a network; `at` is where it has got to."""

    def __init__(self, *shape: int) -> None:
        self.layers: list[ZooLayer] = []
        self.shapes: dict[str, Shape] = {"input": shape}
        self.at = "input"

    def _push(self, layer: ZooLayer) -> None:
        self.layers.append(layer)
        self.shapes[layer.name] = layer.shape
        self.at = layer.name

    def conv(self, channels: int, kernel: int, stride: int, pad: int, *, relu: bool = True, name: str = "") -> Stack:
        c, *image = self.shapes[self.at]
        shape = (channels, *((n + 2 * pad - kernel) // stride + 1 for n in image))
        name = name or f"conv{len(self.layers) + 1}"
        self._push(ZooLayer(name, "conv", (self.at,), shape, relu, (channels, c, kernel, kernel), stride, pad))
        return self

    def dense(self, *sizes: int, relu: bool = True) -> Stack:
        for n in sizes:
            self._push(ZooLayer(f"fc{len(self.layers) + 1}", "dense", (self.at,), (n,), relu, (n, prod(self.shapes[self.at]))))
        return self

    def output(self) -> Stack:
        return self.dense(10, relu=False)

    def block(self, name: str, planes: int, stride: int, shortcut: Literal["conv", "identity", "none"]) -> Stack:
        """conv 3x3 (stride), ReLU, conv 3x3, plus a conv 1x1 (stride), the block's input or nothing; ReLU."""
        start = self.at
        self.conv(planes, 3, stride, 1, name=f"{name}.conv1")
        self.conv(planes, 3, 1, 1, relu=shortcut == "none", name=f"{name}.conv2")
        if shortcut == "none":
            return self
        branch, self.at = self.at, start
        if shortcut == "conv":
            self.conv(planes, 1, stride, 0, relu=False, name=f"{name}.shortcut")
        self._push(ZooLayer(f"{name}.add", "add", (branch, self.at), self.shapes[branch], relu=True))
        return self
