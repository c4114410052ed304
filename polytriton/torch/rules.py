"""What a module's operators do to boxes and to linear forms: one rule each.

An affine operator f has its value, its spread |W| r (what a radius r becomes), and, by torch's own differentiation, its transpose. One
whose weights are all at least zero keeps order, so its box is f(lo), f(hi).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from polytriton.errors import UnsupportedModel, UsageError

REMEDY = "bounds for training know Linear, Conv, BatchNorm, ReLU, LeakyReLU, MaxPool2d, AvgPool, Flatten, sums, shapes and constant factors"
Map = Callable[..., Tensor]


@dataclass(frozen=True)
class Box:
    """Least and greatest values of one tensor."""

    lo: Tensor
    hi: Tensor


@dataclass(frozen=True)
class AffineRule:
    """`value(*xs)`; `spread(*radii)` is None where no weight is negative."""

    value: Map
    spread: Map | None = None

    def box(self, boxes: list[Box]) -> Box:
        if self.spread is None:
            return Box(self.value(*(b.lo for b in boxes)), self.value(*(b.hi for b in boxes)))
        middle = self.value(*((b.lo + b.hi) / 2 for b in boxes))
        radius = self.spread(*((b.hi - b.lo) / 2 for b in boxes))
        return Box(middle - radius, middle + radius)


@dataclass(frozen=True)
class ReluRule:
    """max(y, slope y), 0 <= slope <= 1."""

    slope: float

    def box(self, boxes: list[Box]) -> Box:
        return Box(*(torch.maximum(end, self.slope * end) for end in (boxes[0].lo, boxes[0].hi)))


@dataclass(frozen=True)
class PoolRule:
    """Greatest of each window of an image [batch, channels, height, width]; `windows` holds kernel, stride, padding, dilation."""

    windows: dict[str, Any]

    def box(self, boxes: list[Box]) -> Box:
        return Box(*(F.max_pool2d(end, **self.windows) for end in (boxes[0].lo, boxes[0].hi)))


Rule = AffineRule | ReluRule | PoolRule


@dataclass(frozen=True)
class Call:
    """One call of the traced module: what is called, with the nodes of tensors that depend on the input left in its arguments."""

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    boxed: tuple[fx.Node, ...]

    def value(self, *xs: Tensor) -> Any:
        """The call with these tensors in the nodes' places."""
        given = dict(zip(self.boxed, xs, strict=True))
        return self.target(*fx.node.map_arg(self.args, given.__getitem__), **fx.node.map_arg(dict(self.kwargs), given.__getitem__))

    def check_alone(self) -> None:
        """Only its first argument, and that once, depends on the input."""
        found: list[fx.Node] = []
        fx.node.map_arg((self.args, dict(self.kwargs)), found.append)
        if len(found) != 1 or not self.args or self.args[0] is not found[0]:
            raise self.refuse("more than its first argument depends on the input")

    def operand(self, at: int, name: str, default: Any = None) -> Any:
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)

    def refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.name}: {why}", REMEDY)


# ---- functions ---------------------------------------------------------------------------------------------


def _monotone(call: Call) -> Rule:
    call.check_alone()
    return AffineRule(call.value)


def _joint(call: Call) -> Rule:
    return AffineRule(call.value)


def _sum(call: Call) -> Rule:
    _check_plain(call)
    return AffineRule(call.value)


def _difference(call: Call) -> Rule:
    _check_plain(call)
    return AffineRule(call.value, lambda *radii: sum(radii, torch.zeros_like(call.value(*radii))))


def _check_plain(call: Call) -> None:
    if call.operand(2, "alpha", 1) != 1:
        raise call.refuse("alpha is not supported")


def _product(call: Call) -> Rule:
    """With a constant, on either side: its radius is |c| r."""
    if isinstance(call.operand(0, "input"), (int, float, Tensor)):
        swapped = Call(call.name, call.target, call.args[::-1], call.kwargs, call.boxed)
        swapped.check_alone()
    else:
        call.check_alone()
    return AffineRule(call.value, lambda radius: call.value(radius).abs())


def _quotient(call: Call) -> Rule:
    call.check_alone()
    if call.kwargs:
        raise call.refuse("rounding_mode is not supported")
    return AffineRule(call.value, lambda radius: call.value(radius).abs())


def _negative(call: Call) -> Rule:
    return AffineRule(call.value, lambda radius: radius)


def _affine(call: Call) -> Rule:
    """linear and conv: (x, weight, bias, ...)."""
    call.check_alone()
    weight, bias = call.operand(1, "weight"), call.operand(2, "bias")
    rest, named = call.args[3:], {k: v for k, v in call.kwargs.items() if k not in ("weight", "bias")}
    return AffineRule(
        lambda x: call.target(x, weight, bias, *rest, **named), lambda radius: call.target(radius, weight.abs(), None, *rest, **named)
    )


def _batch_norm(call: Call) -> Rule:
    call.check_alone()
    (mean, variance), (weight, bias) = ((call.operand(k, a), call.operand(k + 1, b)) for k, a, b in _NORM)
    if call.operand(5, "training", False) or mean is None or variance is None:
        raise UsageError(f"{call.name}: a batch norm in training mode answers by the batch", "call .eval() on it")
    gain = torch.rsqrt(variance + call.operand(7, "eps", 1e-5))
    gain = gain if weight is None else weight * gain
    shift = -mean * gain if bias is None else bias - mean * gain
    over = lambda v, x: v.reshape(-1, *[1] * (x.ndim - 2))  # noqa: E731
    return AffineRule(lambda x: x * over(gain, x) + over(shift, x), lambda radius: radius * over(gain.abs(), radius))


_NORM = ((1, "running_mean", "running_var"), (3, "weight", "bias"))


def _dropout(call: Call) -> Rule:
    if call.operand(2, "training", True) and call.operand(1, "p", 0.5):
        raise UsageError(f"{call.name}: dropout draws random numbers in training mode", "call .eval() on it, or leave it out")
    return AffineRule(lambda x: x)


def _relu(call: Call) -> Rule:
    return ReluRule(0.0)


def _leaky_relu(call: Call) -> Rule:
    slope = float(call.operand(1, "negative_slope", 0.01))
    if not 0 <= slope <= 1:
        raise call.refuse(f"a slope of {slope} is not between 0 and 1")
    return ReluRule(slope)


def _max_pool(call: Call) -> Rule:
    call.check_alone()
    named = (("kernel_size", 2), ("stride", None), ("padding", 0), ("dilation", 1))
    kernel, stride, padding, dilation = (call.operand(k, name, default) for k, (name, default) in enumerate(named, 1))
    if call.operand(5, "ceil_mode", False) or call.operand(6, "return_indices", False):
        raise call.refuse("ceil_mode and return_indices are not supported")
    return PoolRule({"kernel_size": kernel, "stride": stride or kernel, "padding": padding, "dilation": dilation})


FUNCTIONS: dict[Callable[..., Any], Callable[[Call], Rule]] = {
    F.linear: _affine, F.conv1d: _affine, F.conv2d: _affine, F.conv3d: _affine, F.batch_norm: _batch_norm, F.dropout: _dropout,
    F.relu: _relu, torch.relu: _relu, F.leaky_relu: _leaky_relu, F.max_pool2d: _max_pool, torch.cat: _joint,
    **dict.fromkeys((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.pad), _monotone),
    **dict.fromkeys((torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze), _monotone),
    **dict.fromkeys((torch.mean, torch.sum, operator.getitem), _monotone),
    **dict.fromkeys((operator.add, torch.add), _sum), **dict.fromkeys((operator.sub, torch.sub), _difference),
    **dict.fromkeys((operator.mul, torch.mul), _product), **dict.fromkeys((operator.truediv, torch.div), _quotient),
    operator.neg: _negative,
}  # fmt: skip
_METHODS: dict[str, Callable[[Call], Rule]] = {
    **dict.fromkeys(("flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "clone"), _monotone),
    **dict.fromkeys(("mean", "sum"), _monotone),
    "relu": _relu, "add": _sum, "sub": _difference, "mul": _product, "div": _quotient, "neg": _negative,
}  # fmt: skip
FUNCTIONS |= {getattr(Tensor, name): make for name, make in _METHODS.items()}
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    F.relu_: F.relu, torch.relu_: F.relu, operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, **{getattr(Tensor, f"{n}_"): getattr(Tensor, n) for n in ("relu", "add", "sub", "mul", "div")},
}  # fmt: skip
SHAPES = (Tensor.size, Tensor.dim, Tensor.numel)  # what tells of a tensor's shape alone

_ORDERED = (
    nn.Flatten, nn.Unflatten, nn.Identity, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.ZeroPad2d, nn.ConstantPad2d,
)  # fmt: skip
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def as_function(call: Call, m: nn.Module) -> Call:
    """The function that a layer of torch.nn computes, with its weights and settings as arguments."""

    def make(target: Callable[..., Any], *args: object, **kwargs: object) -> Call:
        return Call(call.name, target, (*call.args, *args), {**call.kwargs, **kwargs}, call.boxed)

    if m._forward_hooks or m._forward_pre_hooks:
        raise call.refuse("its hooks may change what it computes")
    if isinstance(m, tuple(_CONVS)):
        if m.padding_mode != "zeros":
            raise call.refuse(f"padding_mode={m.padding_mode!r} is not supported")
        function = next(f for kind, f in _CONVS.items() if isinstance(m, kind))
        return make(function, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
    if isinstance(m, nn.Linear):
        return make(F.linear, m.weight, m.bias)
    if isinstance(m, _NORMS):
        by_batch = m.training or m.running_mean is None
        return make(F.batch_norm, m.running_mean, m.running_var, m.weight, m.bias, by_batch, 0.0, m.eps)
    if isinstance(m, _DROPOUTS):
        return make(F.dropout, m.p, m.training)
    if isinstance(m, nn.ReLU):
        return make(F.relu, m.inplace)
    if isinstance(m, nn.LeakyReLU):
        return make(F.leaky_relu, m.negative_slope, m.inplace)
    if isinstance(m, nn.MaxPool2d):
        return make(F.max_pool2d, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)
    return call


def rule_of(call: Call) -> Rule:
    make = FUNCTIONS.get(call.target)
    if make is None and isinstance(call.target, _ORDERED):
        make = _monotone
    if make is None:
        raise call.refuse("no bounds for training of this operator")
    return make(call)


def inplace(call: Call) -> bool:
    """Whether F.relu or F.leaky_relu was asked to overwrite its operand."""
    return bool(call.operand({F.relu: 1, F.leaky_relu: 2}.get(call.target, 99), "inplace", False))
