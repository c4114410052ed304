"""ONNX operators that are linear in pieces, or move cells only, written in operators that every pass and kernel knows already.

Each rewriting is an identity of real numbers, so `real` loses nothing. Deployed, these operators select numbers and round none, or round
as the docstring says; the sums written here may round, or not, and are charged for it: the deployed execution is among theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polytriton.frontend.onnx_values import ONE, ZERO, Act, Const, Result, Site, Value, cells, rounding
from polytriton.frontend.onnx_windows import MAX_WINDOW_CELLS, reduced_axes
from polytriton.ir.net import Attr

LARGE = 2.0**100  # of float32's 2^128; a deployed semantics bounds nothing beyond 2^60


# ---- one activation, and constants ------------------------------------------------------------------------


def positive_part(s: Site, x: Act, tag: str = "", slope: float = 0.0) -> Act:
    """max(x, 0), or with a slope `slope * x` below zero."""
    return replace(x, node=s.emit("relu", [x.node], {"slope": slope} if slope else {}, tag))


def flip(s: Site, x: Act, tag: str = "") -> Act:
    return s.scale(x, -ONE, ZERO, {}, tag=tag)


def clamp(s: Site, x: Act, lo: Const | None, hi: Const | None, tag: str = "") -> Act:
    """min(max(x, lo), hi): lo + relu(x - lo) where hi is missing, hi - relu(hi - x) where lo is, and with both
    hi - relu((hi - lo) - relu(x - lo)), also where lo > hi, for then the outer relu is zero and the result hi.

    The ends of the result's box are lo and hi themselves: each relu is at least zero.
    hi - lo rounds once, in float64 (`slack`), unless it is exact.
    """
    if hi is None:
        assert lo is not None
        above = positive_part(s, s.scale(x, ONE, -lo.value, rounding(lo), tag="low"), "above")
        return s.scale(above, ONE, lo.value, rounding(lo), tag=tag)
    if lo is None:
        below = positive_part(s, s.scale(x, -ONE, hi.value, rounding(hi), tag="high"), "below")
        return s.scale(below, -ONE, hi.value, rounding(hi), tag=tag)
    above = positive_part(s, s.scale(x, ONE, -lo.value, rounding(lo), tag="low") if lo.value.any() else x, "above")
    span, exact = difference(s, hi.value, lo.value)
    below = positive_part(s, s.scale(above, -ONE, span, rounding(lo, hi, slack=0 if exact else 1), tag="high"), "below")
    return s.scale(below, -ONE, hi.value, rounding(hi), tag=tag)


def difference(s: Site, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
    """a - b in float64, and whether nothing was rounded (two differences give back what was lost: Knuth's two-sum)."""
    wide, less = np.asarray(a, np.float64), -np.asarray(b, np.float64)
    with np.errstate(all="ignore"):
        out = wide + less
        part = out - wide
        lost = (wide - (out - part)) + (less - part)
    s.need(bool(np.isfinite(out).all()), "the difference of its bounds leaves the float64 range")
    return out, not bool(lost.any())


def clip(s: Site) -> Result:
    x = s.act(0)
    found: list[Const | None] = []
    for i, key in ((1, "min"), (2, "max")):
        if s.opset < 11:
            bound = Const(np.asarray(s.attrs[key], np.float64), x.dtype) if key in s.attrs else None
        else:
            bound = None if s.maybe(i) is None else s.weight(i, key)
        s.need(bound is None or (bound.value.size == 1 and bound.dtype == x.dtype), f"its {key} is not one number of the operand's type")
        if bound is not None:
            s.need(bool(np.isfinite(bound.value).all()), f"its {key} is not finite")
            bound = replace(bound, value=bound.value.reshape(()))
        found.append(bound)
    lo, hi = found
    for bound in (lo, hi):  # no sum with so large a number says anything, and left out it would not stop real numbers beyond it
        if bound is not None and abs(float(bound.value)) > LARGE:
            raise s.fail(f"its bound {float(bound.value):.3g} is no smaller than what overflows", "leave that bound out of the model")
    return x if lo is None and hi is None else clamp(s, x, lo, hi)


def hard_sigmoid(s: Site) -> Result:
    """max(0, min(1, alpha x + beta)): the product and the sum round, deployed as here."""
    x = s.act(0)
    alpha, beta = (float(s.get(k, np.float32(d))) for k, d in (("alpha", 0.2), ("beta", 0.5)))
    s.need(math.isfinite(alpha) and math.isfinite(beta), "alpha or beta is not finite")
    line = s.scale(x, np.asarray(alpha), np.asarray(beta), {}, tag="line")
    return clamp(s, line, Const(np.zeros(()), x.dtype), Const(np.ones(()), x.dtype))


def prelu(s: Site) -> Result:
    """slope * x below zero: one relu where the slopes are alike, else slope * x + (1 - slope) relu(x).

    Above zero the two products add up to x; below, the second is zero, and slope * x rounds once, as it does deployed.
    """
    x, slope = s.act(0), s.weight(1, "slope")
    s.need(slope.dtype == x.dtype, f"operands differ in type: {x.dtype} and {slope.dtype}")
    s.need(s.broadcast(x.shape, slope.shape) == x.shape, f"slopes {list(slope.shape)} do not fit {list(x.shape)}")
    first = float(slope.value.reshape(-1)[0])
    if slope.exact and bool((slope.value == first).all()):
        return positive_part(s, x, slope=first)
    rest, exact = difference(s, np.ones_like(slope.value), slope.value)
    line = s.scale(x, slope.value, ZERO, rounding(slope), tag="line")
    bend = s.scale(positive_part(s, x, "above"), rest, ZERO, rounding(slope, slack=0 if exact else 1), tag="bend")
    return s.result(s.emit("add", [line.node, s.view(bend, s.node_shape(line))]), x.shape, x.dtype)


def absolute_value(s: Site) -> Result:
    return positive_part(s, s.act(0), slope=-1.0)


# ---- the larger of several --------------------------------------------------------------------------------


def pick_extreme(s: Site) -> Result:
    """Max and Min of any number of operands, which broadcast: a + relu(b - a) two by two, or a - relu(a - b)."""
    values = [s.value(i) for i in range(len(s.inputs))]
    s.need(len({v.dtype for v in values}) == 1, "operands differ in type")
    if len(values) == 1:
        return s.act(0)
    found = next(v for v in values if isinstance(v, Act))
    rest = list(values)
    rest.remove(found)
    for k, v in enumerate(rest):
        tag = f"first{k + 2}" if k < len(rest) - 1 else ""
        if isinstance(v, Const):
            s.need(v.floating, "its constants are no floating numbers")
            found = s.expand(found, s.broadcast(found.shape, v.shape), f"wide{k + 2}")
            found = clamp(s, found, v, None, tag) if s.op == "Max" else clamp(s, found, None, v, tag)
        else:
            found = larger(s, found, v, tag)
    return found


def larger(s: Site, a: Act, b: Act, tag: str) -> Act:
    """Of two activations, or the less of them."""
    shape = s.broadcast(a.shape, b.shape)
    x, y = s.expand(a, shape, "wide"), s.expand(b, shape, "wide")
    to = s.node_shape(x)
    operands = [s.view(y, to), x.node] if s.op == "Max" else [x.node, s.view(y, to)]
    gap = s.emit("relu", [s.emit("sub", operands, tag="gap")], tag="bend")
    return s.result(s.emit("add" if s.op == "Max" else "sub", [x.node, gap], tag=tag), shape, x.dtype)


def reduce_extreme(s: Site) -> Result:
    """ReduceMax and ReduceMin: a max pool whose window holds the reduced axes; the least is minus the largest of minus."""
    x = s.act(0)
    gone, rest, shape = reduced_axes(s, x)
    outer, inner = cells([x.shape[i] for i in rest]), cells([x.shape[i] for i in gone])
    if inner == 1:
        return replace(x, shape=shape)
    v = s.transpose(x if s.op == "ReduceMax" else flip(s, x, "minus"), [*rest, *gone], "last")
    assert isinstance(v, Act)
    pool = s.emit("maxpool", [s.view(v, (outer, 1, inner))], {"k": (1, inner)}, "" if s.op == "ReduceMax" else "pool")
    found = s.result(pool, shape, x.dtype)
    return found if s.op == "ReduceMax" else flip(s, found)


# ---- cells that move --------------------------------------------------------------------------------------


def where(s: Site) -> Result:
    """Which operand a cell comes from must be known: a constant one is selected by factors of one and zero, which round nothing."""
    test, yes, no = s.const(0, "condition"), s.value(1), s.value(2)
    s.need(test.dtype == bool and yes.dtype == no.dtype, "operands differ in type")
    shape = s.broadcast(test.shape, yes.shape, no.shape)
    s.check_act(shape)
    s.spend(8 * cells(shape))
    chosen = np.broadcast_to(test.value, shape)
    if isinstance(yes, Act) and isinstance(no, Act):
        a, b = s.expand(yes, shape, "wide"), s.expand(no, shape, "wide")
        n = cells(shape)
        both = s.emit("concat", [s.view(a, (n,)), s.view(b, (n,))], {"axis": 0}, "both")
        at = np.where(chosen, 0, n) + np.arange(n).reshape(shape)
        return s.reorder(s.result(both, (2 * n,), a.dtype), at)
    x, c, here = (yes, no, chosen) if isinstance(yes, Act) else (no, yes, ~chosen)
    assert isinstance(x, Act) and isinstance(c, Const)
    return s.scale(x, here.astype(np.float32), np.where(here, 0, c.value), rounding(c))


def gather_points(s: Site) -> Result:
    """GatherND: rows of the index name cells, or slices, of the axes behind the batch axes."""
    v, index, batch = s.value(0), s.const(1, "index"), s.get("batch_dims", 0)
    s.need(np.issubdtype(index.dtype, np.integer) and len(index.shape) >= 1, "its index is not a tensor of integers")
    depth = index.shape[-1]
    fits = 0 <= batch < min(len(v.shape), len(index.shape)) and 1 <= depth <= len(v.shape) - batch
    s.need(fits and v.shape[:batch] == index.shape[:batch], f"an index of shape {list(index.shape)} does not fit {list(v.shape)}")
    sizes = np.array(v.shape[batch : batch + depth], np.int64)
    at = index.value.astype(np.int64)
    s.need(bool(((at >= -sizes) & (at < sizes)).all()), f"an index lies outside {list(v.shape)}")
    at = np.where(at < 0, at + sizes, at)
    shape = (*index.shape[:-1], *v.shape[batch + depth :])
    s.spend(8 * (cells(v.shape) + cells(shape)))
    lead = np.indices(index.shape[:-1], sparse=True)[:batch] if batch else ()
    where = (*lead, *(at[..., k] for k in range(depth)))
    return take(s, v, np.arange(cells(v.shape)).reshape(v.shape)[where])


def take(s: Site, v: Value, index: np.ndarray) -> Value:
    """The value whose cell i is cell index[i] of `v`."""
    if isinstance(v, Act):
        return s.reorder(v, index)
    s.check_const(index.shape)
    return replace(v, value=v.value.reshape(-1)[index])


def depth_to_space(s: Site) -> Result:
    x, b, mode = s.value(0), s.get("blocksize", 0), s.get("mode", b"DCR")
    s.need(len(x.shape) == 4 and b >= 1 and x.shape[1] % (b * b) == 0, f"blocks of {b} do not fit {list(x.shape)}")
    s.need(mode in (b"DCR", b"CRD"), f"mode {mode!r}")
    n, c, h, w = x.shape
    apart, perm = ((n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)) if mode == b"DCR" else ((n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3))
    return s.relabel(s.transpose(s.relabel(x, apart), perm), (n, c // b**2, h * b, w * b))


def space_to_depth(s: Site) -> Result:
    x, b = s.value(0), s.get("blocksize", 0)
    s.need(len(x.shape) == 4 and b >= 1 and x.shape[2] % b == x.shape[3] % b == 0, f"blocks of {b} do not fit {list(x.shape)}")
    n, c, h, w = x.shape
    return s.relabel(s.transpose(s.relabel(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4)), (n, c * b * b, h // b, w // b))


# ---- transposed convolutions ------------------------------------------------------------------------------


def conv_transpose(s: Site) -> Result:
    """The adjoint of a convolution: cells set apart by zeros, convolved with the kernel turned round.

    Products with the zeros between round nothing and change nothing, and the rest are the deployed products.
    """
    x, weight = s.act(0), s.weight(1, "weight")
    rank, groups = len(weight.shape) - 2, s.get("group", 1)
    s.need(rank in (1, 2) and len(x.shape) == len(weight.shape), f"weight {list(weight.shape)} does not fit {list(x.shape)}")
    s.need(x.shape[0] == 1, f"a batch of {x.shape[0]}; the leading axis must be 1")
    s.need(s.get("auto_pad", b"NOTSET") == b"NOTSET" and not s.get("output_shape"), "auto_pad and output_shape are not supported")
    kernel = list(weight.shape[2:])
    s.need(list(s.get("kernel_shape", kernel)) == kernel, "kernel_shape is not the weight's")
    stride, dilation = list(s.get("strides", [1] * rank)), list(s.get("dilations", [1] * rank))
    pads, more = list(s.get("pads", [0] * 2 * rank)), list(s.get("output_padding", [0] * rank))
    s.need(len(stride) == len(dilation) == len(more) == rank and len(pads) == 2 * rank, f"its attributes do not fit {rank} spatial axes")
    s.need(min(*stride, *dilation) >= 1 and min(*pads, *more) >= 0, "strides and dilations must be at least 1, pads at least 0")
    s.need(all(m < max(a, d) for m, a, d in zip(more, stride, dilation, strict=True)), "output_padding reaches the stride")
    s.need(groups >= 1 and weight.shape[0] == x.shape[1] and x.shape[1] % groups == 0, f"{groups} groups do not fit {x.shape[1]} channels")
    bias = s.weight(2, "bias") if s.maybe(2) is not None else None
    outs = weight.shape[1] * groups
    b = np.zeros(outs, np.float32) if bias is None else bias.value
    s.need(x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype) and b.shape == (outs,), "its bias or weight does not fit")
    apart = set_apart(s, x, stride)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    lo = [r - p for r, p in zip(reach, pads[:rank], strict=True)]
    hi = [r - p + m for r, p, m in zip(reach, pads[rank:], more, strict=True)]
    size = [n + a + b_ - r for n, a, b_, r in zip(apart.shape[2:], lo, hi, reach, strict=True)]
    s.need(min(size) >= 1, f"its result has shape {size}")
    shape = (1, outs, *size)
    s.check_act(shape)
    s.need(cells(shape) * cells(kernel) <= MAX_WINDOW_CELLS, "its windows hold too many cells")
    s.spend(weight.value.nbytes)
    per = x.shape[1] // groups
    w = weight.value.reshape(groups, per, weight.shape[1], *kernel).swapaxes(1, 2).reshape(outs, per, *kernel)
    w = np.ascontiguousarray(np.flip(w, axis=tuple(range(2, 2 + rank))))
    flat = rank == 1
    image = (x.shape[1], 1, apart.shape[2]) if flat else apart.shape[1:]
    attrs: dict[str, Attr] = {
        "w": s.ref(w[:, :, None] if flat else w, "w"),
        "b": s.ref(b, "b"),
        "k": (1, *kernel) if flat else tuple(kernel),
        "p": (0, lo[0], 0, hi[0]) if flat else (*lo, *hi),
        "d": (1, *dilation) if flat else tuple(dilation),
        "g": int(groups),
        **rounding(weight, *([bias] if bias else [])),
    }
    plain: dict[str, Attr] = {"p": (0, 0, 0, 0), "d": (1, 1), "g": 1}
    node = s.emit("conv", [s.view(apart, image)], {k: v for k, v in attrs.items() if plain.get(k) != v})
    return s.result(node, shape, x.dtype)


def set_apart(s: Site, x: Act, stride: Sequence[int]) -> Act:
    """stride - 1 zeros between the cells of each axis behind the channels, and none behind the last."""
    if all(t == 1 for t in stride):
        return x
    wide = [d * t for d, t in zip(x.shape[2:], stride, strict=True)]
    s.check_act((*x.shape[:2], *wide))
    split = [n for d in x.shape[2:] for n in (d, 1)]
    v: Value = s.relabel(x, (*x.shape[:2], *split))
    v = s.pad(v, [0] * len(v.shape), [0, 0, *(n for t in stride for n in (0, t - 1))], "apart")
    v = s.relabel(v, (*x.shape[:2], *wide))
    for axis, (n, t) in enumerate(zip(wide, stride, strict=True)):
        v = s.cut(v, 2 + axis, 0, 1, n - t + 1, tag=f"axis{axis}")
    assert isinstance(v, Act)
    return v
