"""Weights that leave few neurons unstable: a network is settled layer by layer on the boxes that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.nets.layers import ZooLayer

Params = dict[str, tuple[np.ndarray, np.ndarray]]  # weight and bias of a layer, float32
TARGET = 0.015  # of a robust network's neurons are unstable


@dataclass
class Box:
    """A centre and a radius for every value, [images, ...]."""

    centre: Tensor
    radius: Tensor

    def unstable(self) -> Tensor:
        return ~(self.centre.abs() >= self.radius)  # so are NaNs: a deep normal network overflows

    def relu(self) -> Box:
        return _box_between((self.centre - self.radius).clamp(min=0), (self.centre + self.radius).clamp(min=0))


def _box_between(lo: Tensor, hi: Tensor) -> Box:
    return Box((hi + lo) / 2, (hi - lo) / 2)


def ball(images: np.ndarray, eps: float) -> Box:
    """All inputs in [0, 1] within eps of an image."""
    x = torch.from_numpy(images)
    return _box_between((x - eps).clamp(min=0), (x + eps).clamp(max=1))


def linear(layer: ZooLayer, x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, stride=layer.stride, padding=layer.pad) if layer.op == "conv" else F.linear(x.flatten(1), weight)


def broadcast(bias: Tensor, layer: ZooLayer) -> Tensor:
    """One number a channel, shaped to add to the layer's values."""
    return bias.view(-1, *[1] * (len(layer.shape) - 1))


def intervals(layers: list[ZooLayer], params: Params, start: Box, settle: Settle | None = None) -> Iterator[tuple[ZooLayer, Box]]:
    """Every layer with its box before the ReLU, in float32 to nearest: a measurement, not a bound. `settle` makes `params` on the way."""
    last = {i: n.name for n in layers for i in n.inputs}
    held = {"input": start}
    for layer in layers:
        operands = [held[i] for i in layer.inputs]
        if layer.op == "add":
            box = Box(operands[0].centre + operands[1].centre, operands[0].radius + operands[1].radius)
        else:
            if settle:
                params[layer.name] = settle.scale(layer, operands[0])
            weight, bias = (torch.from_numpy(p) for p in params[layer.name])
            (x,) = operands
            box = Box(linear(layer, x.centre, weight) + broadcast(bias, layer), linear(layer, x.radius, weight.abs()))
        if settle and (layer.relu or layer is layers[-1]):
            shift = settle.shift(layer, box)
            owner = layer.inputs[0] if layer.op == "add" else layer.name
            np.add(params[owner][1], shift.numpy(), out=params[owner][1])
            box.centre = box.centre + broadcast(shift, layer)
        yield layer, box
        held[layer.name] = box.relu() if layer.relu else box
        for name in layer.inputs:
            if last[name] == layer.name:
                held.pop(name, None)


def he(layer: ZooLayer, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(layer.weight, dtype=np.float32) * np.float32(sqrt(2 / prod(layer.weight[1:])))


@dataclass
class Settle:
    """Makes a robust network layer by layer, given the boxes so far.

    Weights are scaled until the mean radius before the ReLU is again that of the input box: biases come after, so this moves no neuron,
    but the numbers stay small at any depth. Then every channel c gets a side s = +1 or -1 (on or off), a distance h uniform in [1/2, 3/2]
    and the bias that puts the mean of its centres at s b h (std of its centres + mean radius). The one b of the layer is bisected until a
    share TARGET of its neurons has |centre| < radius. A residual sum is settled through the bias of its branch's last convolution. The
    output's means are spread evenly over one mean radius: intervals decide no margin, and none is so small that rounding would.
    """

    radius: float
    rng: np.random.Generator

    def scale(self, layer: ZooLayer, x: Box) -> tuple[np.ndarray, np.ndarray]:
        weight = he(layer, self.rng)
        radius = float(linear(layer, x.radius, torch.from_numpy(weight).abs()).mean())
        return weight * np.float32(self.radius / radius), np.zeros(layer.weight[0], np.float32)

    def shift(self, layer: ZooLayer, box: Box) -> Tensor:
        """What to add to the biases."""
        channels = layer.shape[0]
        centre, radius = (v.transpose(0, 1).reshape(channels, -1) for v in (box.centre, box.radius))
        mean = centre.mean(1)
        if not layer.relu:
            places = torch.from_numpy(self.rng.permutation(np.linspace(-0.5, 0.5, channels, dtype=np.float32)))
            return places * radius.mean() - mean
        side = torch.from_numpy(self.rng.choice(np.array([-1, 1], np.float32), channels))
        distance = torch.from_numpy(self.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        unit = side * distance * (centre.std(1, correction=0) + radius.mean(1))
        near, far = 0.0, 64.0
        for _ in range(30):
            middle = (near + far) / 2
            moved = centre + (middle * unit - mean)[:, None]
            if Box(moved, radius).unstable().float().mean() > TARGET:
                near = middle
            else:
                far = middle
        return far * unit - mean
