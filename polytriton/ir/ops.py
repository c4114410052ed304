"""The one operator table: arity, attributes, shape rule and float64 meaning of every Net operator.

Values carry no batch axis in the IR; the interpreter adds one in front. Images are [channels, height, width].

Seven attributes may stand on every affine operator. They carry what a pass changed, so that the rounding
argument (docs/soundness.md) survives it:
  slack=k   the stored weights differ from the exact ones by at most gamma64_k times `wabs` / `babs`
  ops=k     the deployed network performs up to k roundings a term more than the layer's own sum
  products=k  this many matrix products were merged, each of which may convert its operands (default 1)
  summands=k the deployed sum has up to k summands whatever the operand holds: constants among them, real padding, repeated cells.
            Without it they are the operand's own cells, each at most once, and a cell that is exactly zero rounds nothing
  gain=k    intermediate values of the deployed network may be 2^k larger or smaller than the merged layer shows
  babs=@v   the sum of magnitudes of the constants behind the bias, where it exceeds |b|
  wabs=@m   likewise for the weights, where terms cancelled in a merge
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from polytriton.errors import InvalidIR
from polytriton.ir.curves import CURVES, STATED, Curve
from polytriton.ir.net import Net, Node, Ref, Shape

Weights = Mapping[str, np.ndarray]
NORMAL, LARGEST = 2.0**-126, float(np.finfo(np.float32).max)  # of float32
SHARED = {"slack": int, "ops": int, "gain": int, "products": int, "summands": int, "babs": Ref, "wabs": Ref}


@dataclass(frozen=True)
class OpSpec:
    """`kind` is input, affine, nonlinear or layout; attributes are name -> type, `required` those without default."""

    name: str
    arity: int | None
    kind: str
    attrs: Mapping[str, type]
    required: tuple[str, ...]
    infer: Callable[[Node, Sequence[Shape], Weights], Shape]
    run: Callable[[Node, Sequence[np.ndarray], Weights], np.ndarray]
    doc: str


def _size(shape: Sequence[int]) -> int:
    return prod(int(d) for d in shape)  # int64 would wrap around


def _weight(node: Node, key: str, weights: Weights) -> np.ndarray:
    ref = node.attrs[key]
    assert isinstance(ref, Ref)
    if ref.name not in weights:
        raise InvalidIR(f"%{node.name} = {node.op}: weight @{ref.name} is missing", "load the weights with the text")
    return np.asarray(weights[ref.name], dtype=np.float64) if key != "take" and key != "index" else weights[ref.name]


def _need(ok: bool, node: Node, why: str) -> None:
    if not ok:
        raise InvalidIR(f"%{node.name} = {node.op}: {why}", "correct the node's attributes or its operands' shapes")


# ---- windows of convolutions and pools ------------------------------------------------------------------


def spatial(node: Node, shape: Shape) -> Shape:
    """Output height and width of a convolution or pool over [channels, height, width]; p = top,left,bottom,right."""
    _need(len(shape) == 3, node, f"needs [channels, height, width], not {list(shape)}")
    k, s, p, d = node.ints("k"), node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0)), node.ints("d", (1, 1))
    _need(len(k) == 2 and len(s) == 2 and len(p) == 4 and len(d) == 2, node, "k, s, d take 2 numbers and p takes 4")
    _need(min(*k, *s, *d) >= 1, node, "kernel, stride and dilation must be at least 1")
    out = tuple((shape[1 + i] + p[i] + p[2 + i] - (k[i] - 1) * d[i] - 1) // s[i] + 1 for i in (0, 1))
    _need(min(out) >= 1, node, f"the window {k} is larger than the padded image {list(shape[1:])}")
    return out


def patches(x: np.ndarray, node: Node, fill: float) -> np.ndarray:
    """x[B,C,H,W] -> [B,C,Ho,Wo,kh,kw] of the cells under every window; cells off the image read `fill`."""
    k, s, p, d = node.ints("k"), node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0)), node.ints("d", (1, 1))
    ho, wo = spatial(node, x.shape[1:])
    index = []
    inside = []
    for axis, n in ((0, ho), (1, wo)):
        cells = np.arange(n)[:, None] * s[axis] - p[axis] + np.arange(k[axis])[None] * d[axis]
        ok = (cells >= 0) & (cells < x.shape[2 + axis])
        index.append(np.where(ok, cells, 0))
        inside.append(ok)
    out = x[:, :, index[0][:, None, :, None], index[1][None, :, None, :]]
    mask = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    return np.where(mask, out, fill)


# ---- shape rules and meanings ----------------------------------------------------------------------------


def _infer_input(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    if "take" in n.attrs:
        take = _weight(n, "take", w)
        _need(take.shape == (_size(n.shape),), n, f"@take holds {take.size} indices for {list(n.shape)}")
        _need(
            bool((take >= -1).all() and (take < _size(n.ints("of") or n.shape)).all()), n, "an index of @take lies outside the user's input"
        )
    return n.shape


def _run_input(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    (x,) = v
    flat = x.reshape(len(x), -1)
    if "take" in n.attrs:
        take = _weight(n, "take", w)
        flat = np.where(take >= 0, flat[:, np.maximum(take, 0)], 0.0)
    return flat.reshape(len(x), *n.shape)


def _infer_linear(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    m = _weight(n, "w", w)
    _need(m.ndim == 2 and m.shape[1] == _size(s[0]), n, f"weight {list(m.shape)} does not fit input {list(s[0])}")
    _need(_weight(n, "b", w).shape == (m.shape[0],), n, "the bias needs one value an output")
    to = n.ints("to") or (m.shape[0],)
    _need(_size(to) == m.shape[0], n, f"{m.shape[0]} outputs do not make {list(to)}")
    return to


def _run_linear(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    (x,) = v
    y = x.reshape(len(x), -1) @ _weight(n, "w", w).T + _weight(n, "b", w)
    return y.reshape(len(x), *n.shape)


def _infer_conv(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    m, g = _weight(n, "w", w), n.integer("g", 1)
    _need(len(s[0]) == 3, n, f"needs [channels, height, width], not {list(s[0])}")
    _need(m.ndim == 4 and m.shape[2:] == n.ints("k"), n, f"weight {list(m.shape)} does not fit kernel {n.ints('k')}")
    _need(
        g >= 1 and m.shape[0] % g == 0 and m.shape[1] * g == s[0][0],
        n,
        f"groups {g} and weight {list(m.shape)} do not fit {s[0][0]} channels",
    )
    _need(_weight(n, "b", w).shape == (m.shape[0],), n, "the bias needs one value an output channel")
    return (m.shape[0], *spatial(n, s[0]))


def _run_conv(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    (x,) = v
    m, g = _weight(n, "w", w), n.integer("g", 1)
    cells = patches(x, n, 0.0)
    cells = cells.reshape(len(x), g, -1, *cells.shape[2:])
    y = np.einsum("bgchwij,gocij->bgohw", cells, m.reshape(g, -1, *m.shape[1:]), optimize=True)
    return y.reshape(len(x), *n.shape) + _weight(n, "b", w)[:, None, None]


def _infer_scale(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    for key in ("a", "c"):
        got = _weight(n, key, w).shape
        fits = len(got) <= len(s[0]) and all(g in (1, d) for g, d in zip(reversed(got), reversed(s[0]), strict=False))
        _need(fits, n, f"@{key} {list(got)} does not broadcast to {list(s[0])}")
    return s[0]


def _run_scale(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    return v[0] * _weight(n, "a", w) + _weight(n, "c", w)


def _infer_same(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    _need(all(t == s[0] for t in s), n, f"operands differ in shape: {[list(t) for t in s]}")
    return s[0]


def _infer_relu(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    slope = abs(n.number("slope"))
    _need(slope == 0 or slope >= NORMAL, n, f"slope {slope} is below the normal range: a network that flushes it to zero computes another function")
    return s[0]


def _run_relu(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    return np.where(v[0] >= 0, v[0], n.number("slope") * v[0])


def curve_of(node: Node) -> tuple[Curve, float]:
    """The smooth function that the node computes, and its parameter."""
    curve = CURVES[node.op]
    return curve, node.number(*curve.parameter)


def stated_name(node: Node) -> str:
    """Of the function whose deployed error the node's result has; `nothing` for a step on the way to one, or an exact one."""
    found = node.attrs.get("stated", node.op if CURVES[node.op].ulps else "nothing")
    assert isinstance(found, str)
    return found


def _infer_curve(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    curve, parameter = curve_of(n)
    _need(stated_name(n) in STATED or stated_name(n) == "nothing", n, f"no deployed error of {stated_name(n)!r} is known")
    _need(not curve.parameter[0] or NORMAL <= parameter <= LARGEST, n, f"{curve.parameter[0]} must be a positive normal number of float32")
    return s[0]


def _run_curve(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    curve, parameter = curve_of(n)
    with np.errstate(all="ignore"):  # outside its domain, or overflown
        return curve.value(v[0], parameter)


def _curve_spec(name: str, curve: Curve) -> OpSpec:
    attrs: dict[str, type] = {"stated": str, **({curve.parameter[0]: float} if curve.parameter[0] else {})}
    return OpSpec(name, 1, "nonlinear", attrs, (), _infer_curve, _run_curve, curve.doc)


def _infer_pool(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    out = (*s[0][:1], *spatial(n, s[0]))
    k, p, step, d = n.ints("k"), n.ints("p", (0, 0, 0, 0)), n.ints("s", (1, 1)), n.ints("d", (1, 1))
    _need(max(out) <= 1 << 22, n, f"{max(out)} windows along one axis")
    for i in (0, 1):  # a window is a product of two ranges, so each axis is judged alone, without building any window
        last = (out[1 + i] - 1) * step[i] - p[i]
        _need(p[i] <= (k[i] - 1) * d[i] and last < s[0][1 + i], n, "a window lies wholly in the padding")
        start = np.arange(out[1 + i]) * step[i] - p[i]
        first = np.maximum(0, -(start // d[i]))
        _need(bool(((first < k[i]) & (start + first * d[i] < s[0][1 + i])).all()), n, "a window lies wholly in the padding")
    return out


def _run_maxpool(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    return patches(v[0], n, -np.inf).max(axis=(-1, -2))


def _infer_concat(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    axis = n.integer("axis")
    _need(0 <= axis < len(s[0]), n, f"axis {axis} is outside {list(s[0])}")
    rest = [t[:axis] + t[axis + 1 :] for t in s]
    _need(all(r == rest[0] for r in rest), n, "operands differ off the axis")
    return (*s[0][:axis], sum(t[axis] for t in s), *s[0][axis + 1 :])


def _infer_reshape(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    _need(_size(n.ints("to")) == _size(s[0]), n, f"{list(s[0])} cannot become {list(n.ints('to'))}")
    return n.ints("to")


def _infer_transpose(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    perm = n.ints("perm")
    _need(sorted(perm) == list(range(len(s[0]))), n, f"perm {perm} does not permute {len(s[0])} axes")
    return tuple(s[0][i] for i in perm)


def _infer_slice(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    a, start, step, size = (n.integer(k) for k in ("axis", "start", "step", "size"))
    _need(0 <= a < len(s[0]) and step != 0 and size >= 1, n, "axis, step or size out of range")
    last = start + (size - 1) * step
    _need(0 <= min(start, last) and max(start, last) < s[0][a], n, f"cells {start}..{last} lie outside axis of {s[0][a]}")
    return (*s[0][:a], size, *s[0][a + 1 :])


def _run_slice(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    cells = n.integer("start") + n.integer("step") * np.arange(n.integer("size"))
    return np.take(v[0], cells, axis=n.integer("axis") + 1)


def _infer_pad(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    lo, hi = n.ints("lo"), n.ints("hi")
    _need(len(lo) == len(hi) == len(s[0]) and min((*lo, *hi), default=0) >= 0, n, "needs one count >= 0 an axis and side")
    return tuple(d + a + b for d, a, b in zip(s[0], lo, hi, strict=True))


def _run_pad(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    return np.pad(v[0], ((0, 0), *zip(n.ints("lo"), n.ints("hi"), strict=True)))


def _infer_gather(n: Node, s: Sequence[Shape], w: Weights) -> Shape:
    index, to = _weight(n, "index", w), n.ints("to")
    _need(index.ndim == 1 and len(index) == _size(to), n, f"{len(index)} indices do not make {list(to)}")
    _need(index.size > 0 and index.min() >= -1 and index.max() < _size(s[0]), n, "an index lies outside the operand")
    return to


def _run_gather(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    index, flat = _weight(n, "index", w), v[0].reshape(len(v[0]), -1)
    return np.where(index >= 0, flat[:, np.maximum(index, 0)], 0.0).reshape(len(flat), *n.shape)


def _reshape(n: Node, v: Sequence[np.ndarray], w: Weights) -> np.ndarray:
    return v[0].reshape(len(v[0]), *n.shape)


_WINDOW = {"k": tuple, "s": tuple, "p": tuple, "d": tuple}

# fmt: off
OPS: dict[str, OpSpec] = {
    s.name: s
    for s in (
        OpSpec("input", 0, "input", {"take": Ref, "of": tuple, "half": int, "unstated": str}, (), _infer_input, _run_input, "the network's input; take=@i picks cells of the user's input of shape `of`; half=1: the network stores activations in float16; unstated=%op: no deployed semantics tells how far a kernel of this operator may be off"),
        OpSpec("linear", 1, "affine", {"w": Ref, "b": Ref, "to": tuple, "outside": int, **SHARED}, ("w", "b"), _infer_linear, _run_linear, "w @ flat(x) + b; outside=1: an input map, whose result is what the network is given"),
        OpSpec("conv", 1, "affine", {"w": Ref, "b": Ref, "g": int, **_WINDOW, **SHARED}, ("w", "b", "k"), _infer_conv, _run_conv, "convolution; padding may be negative (crop)"),
        OpSpec("scale", 1, "affine", {"a": Ref, "c": Ref, **SHARED}, ("a", "c"), _infer_scale, _run_scale, "a * x + c, broadcast"),
        OpSpec("add", 2, "affine", SHARED, (), _infer_same, lambda n, v, w: v[0] + v[1], "sum of two activations"),
        OpSpec("sub", 2, "affine", SHARED, (), _infer_same, lambda n, v, w: v[0] - v[1], "difference of two activations"),
        OpSpec("mul", 2, "nonlinear", {"converts": int}, (), _infer_same, lambda n, v, w: v[0] * v[1], "product of two activations; converts=1: of a matrix product, whose operands a deployment may convert"),
        OpSpec("relu", 1, "nonlinear", {"slope": float}, (), _infer_relu, _run_relu, "x where x >= 0, else slope * x"),
        OpSpec("maxpool", 1, "nonlinear", dict(_WINDOW), ("k",), _infer_pool, _run_maxpool, "maximum over a window; padding never wins"),
        *(_curve_spec(name, curve) for name, curve in CURVES.items()),
        OpSpec("concat", None, "affine", {"axis": int}, ("axis",), _infer_concat, lambda n, v, w: np.concatenate(v, axis=n.integer("axis") + 1), "activations side by side"),
        OpSpec("reshape", 1, "layout", {"to": tuple}, ("to",), _infer_reshape, _reshape, "the same cells in another shape"),
        OpSpec("transpose", 1, "layout", {"perm": tuple}, ("perm",), _infer_transpose, lambda n, v, w: v[0].transpose(0, *(i + 1 for i in n.ints("perm"))), "axes permuted"),
        OpSpec("slice", 1, "layout", {"axis": int, "start": int, "step": int, "size": int}, ("axis", "start", "step", "size"), _infer_slice, _run_slice, "cells start, start+step, ... of one axis"),
        OpSpec("pad", 1, "layout", {"lo": tuple, "hi": tuple}, ("lo", "hi"), _infer_pad, _run_pad, "zeros around"),
        OpSpec("gather", 1, "layout", {"index": Ref, "to": tuple}, ("index", "to"), _infer_gather, _run_gather, "output cell i is input cell index[i], or zero where -1"),
    )
}
# fmt: on


def infer_shape(node: Node, shapes: Sequence[Shape], weights: Weights) -> Shape:
    """The node's output shape by the table; raises InvalidIR naming the node."""
    spec = OPS.get(node.op)
    if spec is None:
        raise InvalidIR(f"%{node.name}: unknown operator {node.op!r}", f"use one of: {', '.join(sorted(OPS))}")
    want = spec.arity
    if (want is not None and len(shapes) != want) or (want is None and not shapes):
        raise InvalidIR(
            f"%{node.name} = {node.op}: takes {'at least 1' if want is None else want} operands, got {len(shapes)}",
            "correct the operand list",
        )
    for key in spec.required:
        _need(key in node.attrs, node, f"attribute {key} is missing")
    for key, value in node.attrs.items():
        _need(key in spec.attrs, node, f"unknown attribute {key}")
        kind = spec.attrs[key]
        _need(isinstance(value, kind) or (kind is float and isinstance(value, int)), node, f"attribute {key} must be {kind.__name__}")
        _need(not isinstance(value, float) or isfinite(value), node, f"attribute {key} must be finite")
    return tuple(int(d) for d in spec.infer(node, [tuple(s) for s in shapes], weights))


def rounds(node: Node) -> bool:
    """Whether a deployed network rounds when it computes the node, so that two cells computed alike may differ."""
    return node.op in ("linear", "conv", "scale", "add", "sub", "mul", *CURVES) or (node.op == "relu" and node.number("slope") not in (0.0, 1.0))


def relaxed_nodes(net: Net) -> set[str]:
    """Nodes that a nonlinear operator reads: their bounds decide its relaxation."""
    return {i for n in net if OPS[n.op].kind == "nonlinear" for i in n.inputs}


def unsettled_nodes(net: Net) -> set[str]:
    """Nodes whose every neuron's box matters, whatever its signs: a max pool, a product or a smooth function reads them."""
    return {i for n in net if n.op in ("maxpool", "mul", *CURVES) for i in n.inputs}
