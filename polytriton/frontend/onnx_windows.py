"""ONNX operators with windows: convolutions, pools and means over space. One spatial axis counts as an image of height 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polytriton.frontend.onnx_layout import axes_of
from polytriton.frontend.onnx_values import Act, Result, Shape, Site, Value, cells, rounding, share
from polytriton.ir.net import Attr

MAX_WINDOW_CELLS = 1 << 27  # cells under all windows of one layer
EXPLICIT = "write the padding as `pads` instead of auto_pad"


@dataclass(frozen=True)
class Windows:
    """A layer's windows over [channels, height, width]; `hi` pads so that exactly `out` windows fit, `real_hi` is the declared padding."""

    image: Shape
    k: tuple[int, int]
    s: tuple[int, int]
    d: tuple[int, int]
    lo: tuple[int, int]
    hi: tuple[int, int]
    real_hi: tuple[int, int]
    out: tuple[int, int]
    rank: int

    @property
    def attrs(self) -> dict[str, Attr]:
        found: dict[str, Attr] = {"k": self.k, "s": self.s, "p": (*self.lo, *self.hi), "d": self.d}
        plain = {"s": (1, 1), "p": (0, 0, 0, 0), "d": (1, 1)}
        return {key: v for key, v in found.items() if plain.get(key) != v}

    def onnx_shape(self, channels: int) -> Shape:
        return (1, channels, *self.out[2 - self.rank :])

    def counts(self, padding: bool) -> np.ndarray:
        """How many cells of the image (or of the declared padding too) lie under each window: [height, width]."""
        axes = []
        for i in (0, 1):
            start, step = np.arange(self.out[i]) * self.s[i] - self.lo[i], self.d[i]
            lowest, end = (-self.lo[i], self.image[1 + i] + self.real_hi[i]) if padding else (0, self.image[1 + i])
            first = np.maximum(0, -((start - lowest) // step))  # the least j with start + j*step >= lowest
            last = np.minimum(self.k[i] - 1, (end - 1 - start) // step)
            axes.append(np.maximum(0, last - first + 1))
        return axes[0][:, None] * axes[1][None]


def windows(s: Site, x: Act, kernel: Sequence[int]) -> Windows:
    """Reads strides, pads, auto_pad, dilations and ceil_mode."""
    rank = len(x.shape) - 2
    s.need(rank in (1, 2), f"an input of shape {list(x.shape)}; [1, channels, length] and [1, channels, height, width] are supported")
    s.need(x.shape[0] == 1, f"a batch of {x.shape[0]}; the leading axis must be 1")
    strides, dilations = list(s.get("strides", [1] * rank)), list(s.get("dilations", [1] * rank))
    pads, ceil = list(s.get("pads", [0] * 2 * rank)), s.flag("ceil_mode", 0)
    auto = s.get("auto_pad", b"NOTSET").decode("utf-8", "replace")
    s.need(
        len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank,
        f"kernel, strides, pads or dilations do not fit {rank} spatial axes",
    )
    s.need(min(*kernel, *strides, *dilations) >= 1 and min(pads) >= 0, "kernel, strides and dilations must be at least 1, pads at least 0")
    s.need(auto in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), f"auto_pad {auto}")
    s.need(auto == "NOTSET" or not any(pads), "pads beside auto_pad")
    # onnxruntime refuses this for convolutions and, against the specification, pads pools by the undilated window
    if auto.startswith("SAME") and max(dilations) > 1:
        raise s.fail(f"auto_pad {auto} with dilations means different things to different runtimes", EXPLICIT)
    lo, hi, out, fit = list[int](), list[int](), list[int](), list[int]()
    for i in range(rank):
        size, stride, reach = x.shape[2 + i], strides[i], (kernel[i] - 1) * dilations[i] + 1
        low, high = pads[i], pads[rank + i]
        if auto.startswith("SAME"):
            total = (-(-size // stride) - 1) * stride + reach - size
            if total < 0:  # onnxruntime crops the image's start, the frameworks that made the rule do not pad: other windows
                raise s.fail(
                    f"auto_pad {auto} with stride {stride} beyond the window of {reach} on an axis of {size}: "
                    "some runtimes crop it, some do not",
                    EXPLICIT,
                )
            low, high = (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
        span = size + low + high - reach
        s.need(span >= 0, f"the window of {reach} is larger than the padded axis of {size + low + high}")
        count = span // stride + 1
        if ceil and span % stride and count * stride < size + low:  # a window may hang over the end, not start beyond it
            count += 1
        fits = max(high, (count - 1) * stride + reach - size - low)
        for into, n in ((lo, low), (hi, high), (out, count), (fit, fits)):
            into.append(n)
    channels, flat = x.shape[1], rank == 1

    def pair(values: Sequence[int], first: int) -> tuple[int, int]:
        a, b = [first, *values] if flat else values
        return int(a), int(b)

    w = Windows(
        (channels, *pair(x.shape[2:], 1)),
        pair(kernel, 1),
        pair(strides, 1),
        pair(dilations, 1),
        pair(lo, 0),
        pair(fit, 0),
        pair(hi, 0),
        pair(out, 1),
        rank,
    )
    s.need(
        channels * cells(w.out) * cells(w.k) <= MAX_WINDOW_CELLS,
        f"{cells(w.out)} windows of {cells(w.k)} cells in {channels} channels are too many",
    )
    return w


def conv(s: Site) -> Result:
    x = s.act(0)
    weight = s.weight(1, "weight")
    rank, groups = len(weight.shape) - 2, s.get("group", 1)
    s.need(len(x.shape) == len(weight.shape), f"weight {list(weight.shape)} does not fit {list(x.shape)}")
    s.need(list(s.get("kernel_shape", weight.shape[2:])) == list(weight.shape[2:]), "kernel_shape is not the weight's")
    w = windows(s, x, weight.shape[2:])
    outs = weight.shape[0]
    bias = s.weight(2, "bias") if s.maybe(2) is not None else None
    b = np.zeros(outs, np.float32) if bias is None else bias.value
    s.need(x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype), "operands differ in type")
    s.need(b.shape == (outs,) and outs >= 1, "the bias needs one value an output channel")
    s.need(
        groups >= 1 and outs % groups == 0 and weight.shape[1] * groups == x.shape[1],
        f"{groups} groups and weight {list(weight.shape)} do not fit {x.shape[1]} channels",
    )
    s.check_act(w.onnx_shape(outs))
    kernel = weight.value if rank == 2 else weight.value[:, :, None]
    group: dict[str, Attr] = {"g": int(groups)} if groups != 1 else {}
    attrs: dict[str, Attr] = {
        "w": s.ref(kernel, "w"),
        "b": s.ref(b, "b"),
        **w.attrs,
        **group,
        **rounding(weight, *([bias] if bias else [])),
    }
    return s.result(s.emit("conv", [s.view(x, w.image)], attrs), w.onnx_shape(outs), x.dtype)


def maxpool(s: Site) -> Result:
    x = s.act(0)
    s.need(not any(s.wanted[1:]), "the indices are not supported")
    w = windows(s, x, list(s.get("kernel_shape", ())))
    s.need(bool((w.counts(padding=False) > 0).all()), "a window lies wholly in the padding")
    s.check_act(w.onnx_shape(x.shape[1]))
    return s.result(s.emit("maxpool", [s.view(x, w.image)], w.attrs), w.onnx_shape(x.shape[1]), x.dtype)


def avgpool(s: Site) -> Result:
    x = s.act(0)
    w = windows(s, x, list(s.get("kernel_shape", ())))
    counts = w.counts(padding=s.flag("count_include_pad", 0))
    s.need(bool((counts > 0).all()), "a window lies wholly in the padding")
    s.check_act(w.onnx_shape(x.shape[1]))
    if bool((counts == counts[0, 0]).all()):
        node = depthwise(s, s.view(x, w.image), w.image[0], w.k, int(counts[0, 0]), {k: v for k, v in w.attrs.items() if k != "k"})
        return s.result(node, w.onnx_shape(x.shape[1]), x.dtype)
    node = depthwise(s, s.view(x, w.image), w.image[0], w.k, 1, {k: v for k, v in w.attrs.items() if k != "k"}, "sum")
    # 1/count rounds once here; the deployed quotient is one rounding more than the scale's own product
    return s.scale(
        s.result(node, w.onnx_shape(x.shape[1]), x.dtype),
        1.0 / counts.reshape(w.out[2 - w.rank :]),
        np.zeros(1, np.float32),
        {"slack": 1, "ops": 1},
    )


def depthwise(s: Site, node: str, channels: int, k: tuple[int, int], count: int, attrs: dict[str, Attr], tag: str = "") -> str:
    """The sum under every window, divided by `count`."""
    s.spend(8 * channels * cells(k))
    factor, made = share(count)
    w = np.full((channels, 1, *k), factor)
    group: dict[str, Attr] = {"g": channels} if channels != 1 else {}
    weights: dict[str, Attr] = {"w": s.ref(w, "w"), "b": s.ref(np.zeros(channels, np.float32), "b"), "k": k}
    return s.emit("conv", [node], {**weights, **group, **attrs, **made}, tag)


def global_pool(s: Site) -> Result:
    x = s.act(0)
    s.need(len(x.shape) >= 3 and x.shape[0] == 1, f"an input of shape {list(x.shape)}; [1, channels, ...] is supported")
    image = x.shape[1:] if len(x.shape) == 4 else (x.shape[1], 1, cells(x.shape[2:]))
    k = (image[1], image[2])
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    if s.op == "GlobalMaxPool":
        return s.result(s.emit("maxpool", [s.view(x, image)], {"k": k}), shape, x.dtype)
    return s.result(depthwise(s, s.view(x, image), image[0], k, cells(k), {}), shape, x.dtype)


def reduced_axes(s: Site, x: Act) -> tuple[list[int], list[int], Shape]:
    """Which axes a Reduce operator takes together, which it leaves, each in order, and its result's shape."""
    axes, rank = axes_of(s, 1), len(x.shape)
    if not axes and s.flag("noop_with_empty_axes", 0):
        return [], list(range(rank)), x.shape
    gone = sorted(s.axes(axes, rank)) if axes else list(range(rank))
    keep = s.flag("keepdims", 1)
    shape = tuple(1 if i in gone else d for i, d in enumerate(x.shape) if keep or i not in gone)
    return gone, [i for i in range(rank) if i not in gone], shape


def reduce_mean(s: Site) -> Result:
    """ReduceMean and ReduceSum: over all cells a linear layer, else one depthwise window over the reduced axes."""
    x = s.act(0)
    gone, rest, shape = reduced_axes(s, x)
    outer, inner = cells([x.shape[i] for i in rest]), cells([x.shape[i] for i in gone])
    if inner == 1:
        return replace(x, shape=shape)
    divisor = inner if s.op == "ReduceMean" else 1
    if outer == 1:
        factor, made = share(divisor)
        s.spend(8 * inner)
        w = np.full((1, inner), factor)
        return s.result(s.emit("linear", [x.node], {"w": s.ref(w, "w"), "b": s.ref(np.zeros(1, np.float32), "b"), **made}), shape, x.dtype)
    v: Value = s.transpose(x, [*rest, *gone], "last")
    assert isinstance(v, Act)
    image = (outer, 1, inner)
    if len(x.shape) == 4 and x.shape[0] == 1 and gone == [2, 3]:
        image = (outer, x.shape[2], x.shape[3])
    node = depthwise(s, s.view(v, image), outer, (image[1], image[2]), divisor, {})
    return s.result(node, shape, x.dtype)
