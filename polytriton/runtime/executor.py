"""A Net run by torch, differentiable: one function an operator, as in `ir/ops.py`, for looking for points rather than bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polytriton.ir.curves import CAP
from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node, Ref
from polytriton.runtime.layers import flush

Forward = Callable[[Tensor], Tensor]
Run = Callable[[Node, Sequence[Tensor], dict[str, Tensor]], Tensor]


def _pick(flat: Tensor, index: Tensor) -> Tensor:
    """flat[:, index], zero where the index is -1."""
    return torch.where(index >= 0, flat[:, index.clamp(min=0)], torch.zeros((), dtype=flat.dtype, device=flat.device))


def _input(n: Node, v: Sequence[Tensor], w: dict[str, Tensor]) -> Tensor:
    flat = v[0].flatten(1)
    return (_pick(flat, w["take"]) if "take" in w else flat).reshape(-1, *n.shape)


def _pad_cells(n: Node, x: Tensor, fill: float) -> Tensor:
    """Rows and columns added, or cropped where the padding is negative: then the crop must come first."""
    top, left, bottom, right = n.ints("p", (0, 0, 0, 0))
    height, width = x.shape[2:]
    x = x[:, :, max(-top, 0) : height + min(bottom, 0), max(-left, 0) : width + min(right, 0)]
    pads = [max(p, 0) for p in (left, right, top, bottom)]
    return F.pad(x, pads, value=fill) if any(pads) else x


def _conv(n: Node, v: Sequence[Tensor], w: dict[str, Tensor]) -> Tensor:
    return F.conv2d(_pad_cells(n, v[0], 0.0), w["w"], w["b"], n.ints("s", (1, 1)), 0, n.ints("d", (1, 1)), n.integer("g", 1))


def _maxpool(n: Node, v: Sequence[Tensor], w: dict[str, Tensor]) -> Tensor:
    return F.max_pool2d(_pad_cells(n, v[0], -torch.inf), n.ints("k"), n.ints("s", (1, 1)), 0, n.ints("d", (1, 1)))


def _slice(n: Node, v: Sequence[Tensor], w: dict[str, Tensor]) -> Tensor:
    cells = n.integer("start") + n.integer("step") * torch.arange(n.integer("size"), dtype=torch.int64, device=v[0].device)
    return v[0].index_select(n.integer("axis") + 1, cells)


def _pad(n: Node, v: Sequence[Tensor], w: dict[str, Tensor]) -> Tensor:
    pairs = zip(n.ints("lo"), n.ints("hi"), strict=True)
    return F.pad(v[0], [p for pair in reversed(list(pairs)) for p in pair])


def _softsign(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _cube(x: Tensor) -> Tensor:
    return x * x * x


def _fourth(x: Tensor) -> Tensor:
    return (x * x) * (x * x)


def _three_halves(x: Tensor) -> Tensor:
    return x * x.sqrt()


def _share(x: Tensor) -> Tensor:
    return 1 / x.clamp(min=1)


def _capped_exp(x: Tensor) -> Tensor:
    return x.clamp(max=CAP).exp()


def _alone(function: Forward) -> Run:
    return lambda n, v, w: function(v[0])


# smooth functions as torch has them, which gradients may pass
SMOOTH: dict[str, Forward] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf, "softsign": _softsign, "softplus": F.softplus, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "reciprocal": torch.reciprocal, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish,
    "square": torch.square, "cube": _cube, "fourth": _fourth, "three_halves": _three_halves, "share": _share,
    "capped": _capped_exp, "sin": torch.sin, "cos": torch.cos, "gelu_tanh": partial(F.gelu, approximate="tanh"), "mish": F.mish,
    "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
}  # fmt: skip

RUN: dict[str, Run] = {
    "input": _input,
    "linear": lambda n, v, w: F.linear(v[0].flatten(1), w["w"], w["b"]).reshape(-1, *n.shape),
    "conv": _conv,
    "scale": lambda n, v, w: v[0] * w["a"] + w["c"],
    "add": lambda n, v, w: v[0] + v[1],
    "sub": lambda n, v, w: v[0] - v[1],
    "relu": lambda n, v, w: torch.where(v[0] >= 0, v[0], n.number("slope") * v[0]),
    "maxpool": _maxpool,
    "mul": lambda n, v, w: v[0] * v[1],
    **{name: _alone(function) for name, function in SMOOTH.items()},
    "elu": lambda n, v, w: F.elu(v[0], n.number("alpha", 1.0)),
    "thresholded": lambda n, v, w: F.threshold(v[0], n.number("alpha", 1.0), 0.0),
    "concat": lambda n, v, w: torch.cat(tuple(v), n.integer("axis") + 1),
    "reshape": lambda n, v, w: v[0].reshape(-1, *n.shape),
    "transpose": lambda n, v, w: v[0].permute(0, *(i + 1 for i in n.ints("perm"))),
    "slice": _slice,
    "pad": _pad,
    "gather": lambda n, v, w: _pick(v[0].flatten(1), w["index"]).reshape(-1, *n.shape),
}


def load_weights(net: Net, dtype: torch.dtype, device: str | torch.device) -> dict[str, dict[str, Tensor]]:
    """Every node's weights as its function in RUN reads them, subnormal ones as zero: products with those are slow on some processors."""

    def load(array: np.ndarray) -> Tensor:
        return flush(torch.tensor(array, dtype=dtype, device=device), torch.finfo(dtype).tiny)

    return {
        n.name: {
            key: torch.tensor(array, dtype=torch.int64, device=device) if key in ("take", "index") else load(array)
            for key, ref in n.attrs.items()
            if isinstance(ref, Ref) and (array := net.weights[ref.name]) is not None and key not in ("babs", "wabs")
        }
        for n in net
    }


def torch_forward(net: Net, dtype: torch.dtype, device: str | torch.device = "cpu") -> Forward:
    """The network as a differentiable function from [batch, *user shape] to [batch, outputs]; its weights are converted once."""
    weights = load_weights(net, dtype, device)
    shape, last = user_shape(net), {i: n.name for n in net for i in n.inputs}
    last[net.output] = ""

    def forward(x: Tensor) -> Tensor:
        values: dict[str, Tensor] = {}
        for n in net:
            operands = [values[i] for i in n.inputs] or [x.reshape(-1, *shape)]
            values[n.name] = RUN[n.op](n, operands, weights[n.name])
            for i in n.inputs:
                if last[i] == n.name:
                    values.pop(i, None)
        return values[net.output].flatten(1)

    return forward
