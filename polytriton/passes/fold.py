"""Affine merging: batch norms, normalisations and consecutive affine layers become one layer, in float64.

Merging changes arithmetic, so the merged layer says by how much (ir/ops.py):
  slack     roundings made here, as a multiple of 2^-53 relative to the magnitudes `wabs`, `babs`
  ops       float operations of the deployed network that no longer stand in the layer's own sum
  summands  of the deployed sum, where a constant was added to its operands: none of them is zero for certain
  babs      the magnitudes of all constants that went into the bias: at least |b|
passes/rewrite.py holds every merge against what the deployed network executes.

Scales whose factors are extreme or zero stay where they are: the deployed network's intermediate values could overflow
without the merged layer's showing it (runtime/soundness.py relies on this limit).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polytriton.ir.deployed import REACH
from polytriton.ir.net import Attr, Net, Node, Ref
from polytriton.passes.rewrite import drop_dead, rewrite

NAME = "fold"
FEWEST, MOST = 2.0**-960, 2.0**960  # magnitudes of products: far from both ends of float64


def requires(net: Net) -> str | None:
    return None


def ensures(net: Net) -> str | None:
    for n in net:
        b, babs = net.weight(n, "b"), net.weight(n, "babs")
        if b is not None and babs is not None and not (np.asarray(babs) >= np.abs(b)).all():
            return f"%{n.name}: babs is below |b|"
    return None


def run(net: Net) -> Net:
    net = drop_dead(net)
    for _ in range(len(net.nodes) + 1):
        found = _merge_one(net)
        if found is None:
            return net
        net = rewrite(found[0], net, found[1])
    return net


def _merge_one(net: Net) -> tuple[str, Net] | None:
    """The first merge that can be made: the rule's name and the net after it."""
    users, nodes = net.users(), net.by_name
    for n in net:
        if n.op not in ("scale", "linear"):
            continue
        source = nodes[n.inputs[0]]
        if users[source.name] == [n.name] and net.output != source.name and not source.integer("outside"):
            merged = _layer_after(net, n, source)
            if merged is not None:
                return f"{n.op} after {source.op}", merged
    for n in net:
        if n.op in ("conv", "linear"):
            source = nodes[n.inputs[0]]
            if source.op == "scale" and users[source.name] == [n.name] and net.output != source.name:
                merged = _scale_before(net, n, source)
                if merged is not None:
                    return f"scale before {n.op}", merged
    return None


def _layer_after(net: Net, n: Node, source: Node) -> Net | None:
    """n after source, as one layer that keeps n's name and value."""
    if n.op == "scale" and source.op in ("conv", "linear", "scale"):
        return _scale_after(net, n, source)
    if n.op == "linear" and source.op == "linear":
        return _linear_after(net, n, source)
    return None


def _f64(net: Net, node: Node, key: str) -> np.ndarray | None:
    w = net.weight(node, key)
    return None if w is None else w.astype(np.float64)


def _magnitude(net: Net, node: Node, key: str, value: str) -> np.ndarray:
    """The stored magnitudes, or |value| where none are stored."""
    stored = _f64(net, node, key)
    if stored is not None:
        return stored
    plain = _f64(net, node, value)
    assert plain is not None
    return np.abs(plain)


def _gain(factor: np.ndarray, *layers: Node) -> int | None:
    """log2 of what the merged layer's magnitudes may differ by from those before the merge; None beyond REACH."""
    size = np.abs(factor)
    if not ((size > 0) & (size < 2.0**REACH) & (size > 2.0**-REACH)).all():
        return None
    total = sum(n.integer("gain") for n in layers) + int(np.ceil(np.abs(np.log2(size)).max(initial=0.0)))
    return total if total <= REACH else None


def _products_fit(*pairs: tuple[np.ndarray, np.ndarray], terms: int = 1) -> bool:
    """Whether the products of nonzero numbers of each pair, and sums of so many of them, stay in float64's normal range: below it a
    rounding is no relative error, and `slack` would not cover it."""
    for a, b in pairs:
        (least, most), (low, high) = (_ends(a), _ends(b))
        if least * low < FEWEST or not most * high * terms < MOST:
            return False
    return True


def _ends(a: np.ndarray) -> tuple[float, float]:
    """The least and the largest magnitude, zeros apart."""
    size = np.abs(a[a != 0])
    return (float(size.min()), float(size.max())) if size.size else (1.0, 1.0)


def _round_up(x: np.ndarray) -> np.ndarray:
    """Magnitudes rounded up past the few roundings of their own computation."""
    return x * (1 + 2.0**-34)


def _replace_weights(net: Net, node: Node, arrays: dict[str, np.ndarray], **attrs: Attr) -> Net:
    """`node` (by name, or in place of the node called attrs['_at']) with fresh weights."""
    weights = {}
    refs: dict[str, Attr] = {}
    for key, value in arrays.items():
        name = f"{node.name}_{key}"
        k = 0
        while name in net.weights:
            name, k = f"{node.name}_{key}_{k}", k + 1
        weights[name], refs[key] = np.ascontiguousarray(value), Ref(name)
    merged = node.with_attrs(**refs, **attrs)
    return net.rebuild([merged if m.name == node.name else m for m in net], weights)


def _rename(net: Net, source: Node, n: Node) -> Net:
    """Drops n and gives its name to source, whose value is n's now."""
    nodes = [replace(m, name=n.name) if m.name == source.name else m for m in net if m.name != n.name]
    return net.rebuild(nodes)


def _per_channel(value: np.ndarray, node: Node) -> np.ndarray | None:
    """One number a channel of an image, or None where the constant varies over space."""
    full = np.broadcast_to(value, node.shape)
    if len(node.shape) != 3:
        return None
    first = full[:, :1, :1]
    return first[:, 0, 0].astype(np.float64) if bool((full == first).all()) else None


def _is_uncertain(node: Node) -> bool:
    """A scale whose deployed factors may be off by more than their own rounding (a resized image's weights) stays one."""
    return node.op == "scale" and "wabs" in node.attrs


def _scale_after(net: Net, n: Node, source: Node) -> Net | None:
    """a (W x + b) + c = (a W) x + (a b + c): one rounding a weight, two a bias."""
    a, c, cabs = _f64(net, n, "a"), _f64(net, n, "c"), _magnitude(net, n, "babs", "c")
    assert a is not None and c is not None
    slack, ops = source.integer("slack") + n.integer("slack") + 3, source.integer("ops") + n.integer("ops") + 2
    gain = _gain(a, n, source)
    if gain is None or _is_uncertain(n) or _is_uncertain(source):
        return None
    if source.op == "conv":
        parts = [_per_channel(v, n) for v in (a, c, cabs)]
        if any(p is None for p in parts):
            return None
        a, c, cabs = (p for p in parts if p is not None)
        shape: tuple[int, ...] = (-1, 1, 1, 1)
    elif source.op == "linear":
        a, c, cabs = (np.broadcast_to(v, n.shape).reshape(-1) for v in (a, c, cabs))
        shape = (-1, 1)
    else:
        first, shift = _f64(net, source, "a"), _f64(net, source, "c")
        assert first is not None and shift is not None
        sizes = _magnitude(net, source, "babs", "c")
        if _gain(first) is None or not _products_fit((a, first), (a, shift), (a, sizes)):
            return None
        arrays = {"a": a * first, "c": a * shift + c, "babs": _round_up(np.abs(a) * sizes + cabs)}
        full = np.broadcast_shapes(arrays["c"].shape, arrays["babs"].shape)
        arrays["c"], arrays["babs"] = np.broadcast_to(arrays["c"], full), np.broadcast_to(arrays["babs"], full)
        return _rename(_replace_weights(net, source, arrays, slack=slack, ops=ops, gain=gain), source, n)
    w, b = _f64(net, source, "w"), _f64(net, source, "b")
    assert w is not None and b is not None
    babs, wabs = _magnitude(net, source, "babs", "b"), _f64(net, source, "wabs")
    if not _products_fit((w, a), (b, a), (babs, a), *(() if wabs is None else ((wabs, a),))):
        return None
    arrays = {"w": w * a.reshape(shape), "b": a * b + c, "babs": _round_up(np.abs(a) * babs + cabs)}
    if wabs is not None:
        arrays["wabs"] = _round_up(wabs * np.abs(a).reshape(shape))
    return _rename(_replace_weights(net, source, arrays, slack=slack, ops=ops, gain=gain), source, n)


def _scale_before(net: Net, n: Node, source: Node) -> Net | None:
    """W (a x + c) + b = (W a) x + (W c + b); a convolution only where no padding takes the place of c."""
    a, c, cabs = _f64(net, source, "a"), _f64(net, source, "c"), _magnitude(net, source, "babs", "c")
    w, b = _f64(net, n, "w"), _f64(net, n, "b")
    assert a is not None and c is not None and w is not None and b is not None
    gain = _gain(a, n, source)
    if gain is None or _is_uncertain(source) or cabs.max() > 2.0**REACH:  # a weight of zero would hide a shift that overflowed
        return None
    wabs = _magnitude(net, n, "wabs", "w")
    babs = _magnitude(net, n, "babs", "b")
    if not _products_fit((w, a), (wabs, a), (w, c), (wabs, cabs), terms=w[0].size):
        return None
    if n.op == "linear":
        a, c, cabs = (np.broadcast_to(v, source.shape).reshape(-1) for v in (a, c, cabs))
        arrays = {"w": w * a, "b": b + w @ c, "babs": _round_up(babs + wabs @ cabs)}
        terms = w.shape[1]
        if "wabs" in n.attrs:
            arrays["wabs"] = _round_up(wabs * np.abs(a))
    else:
        parts = [_per_channel(v, source) for v in (a, c, cabs)]
        if any(p is None for p in parts):
            return None
        a, c, cabs = (p for p in parts if p is not None)
        if max(n.ints("p", (0, 0, 0, 0))) > 0 and np.any(cabs != 0):
            return None
        g = n.integer("g", 1)
        a, c, cabs = (np.repeat(v.reshape(g, 1, -1), w.shape[0] // g, axis=1).reshape(w.shape[0], -1) for v in (a, c, cabs))
        arrays = {"w": w * a[:, :, None, None], "b": b + np.einsum("oc,ocij->o", c, w)}
        arrays["babs"] = _round_up(babs + np.einsum("oc,ocij->o", cabs, wabs))
        terms = int(np.prod(w.shape[1:]))
        if "wabs" in n.attrs:
            arrays["wabs"] = _round_up(wabs * np.abs(a)[:, :, None, None])
    slack = n.integer("slack") + source.integer("slack") + terms + 3
    ops = n.integer("ops") + source.integer("ops") + 2
    more: dict[str, Attr] = {}
    if np.any(cabs != 0):  # an operand of zero is the constant in the deployed network: every term rounds
        more["summands"] = max(n.integer("summands"), terms)
    return _replace_weights(net, replace(n, inputs=source.inputs), arrays, slack=slack, ops=ops, gain=gain, **more)


def _linear_after(net: Net, n: Node, source: Node) -> Net | None:
    """W2 (W1 x + b1) + b2, where the product is no larger than its factors; cancelled terms are kept in `wabs`."""
    w2, b2, w1, b1 = _f64(net, n, "w"), _f64(net, n, "b"), _f64(net, source, "w"), _f64(net, source, "b")
    assert w2 is not None and b2 is not None and w1 is not None and b1 is not None
    used = np.abs(w2[w2 != 0])
    if w2.shape[0] * w1.shape[1] > w1.size + w2.size or used.size < w2.size:
        return None
    gain = _gain(used, n, source)
    if gain is None:
        return None
    m2, m1 = _magnitude(net, n, "wabs", "w"), _magnitude(net, source, "wabs", "w")
    sizes, terms = _magnitude(net, source, "babs", "b"), w1.shape[0]
    if not _products_fit((w2, w1), (w2, b1), (m2, m1), (m2, sizes), terms=terms):
        return None
    babs = _round_up(m2 @ sizes + _magnitude(net, n, "babs", "b"))
    arrays = {"w": w2 @ w1, "b": w2 @ b1 + b2, "wabs": _round_up(m2 @ m1), "babs": babs}
    slack = source.integer("slack") + n.integer("slack") + terms + 3
    # a term passes the first sum, whose summands stay the layer's, and then the second with all of its own
    ops = source.integer("ops") + n.integer("ops") + max(terms, n.integer("summands")) + 2
    to: dict[str, Attr] = {"to": n.shape} if len(n.shape) != 1 else {}
    to["products"] = source.integer("products", 1) + n.integer("products", 1)
    merged = _replace_weights(net, replace(source, shape=n.shape).drop("to"), arrays, slack=slack, ops=ops, gain=gain, **to)
    return _rename(merged, source, n)
