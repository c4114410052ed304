"""Layout operators disappear: what moves cells about is absorbed by re-indexing weights, the input or the window.

Every layout operator becomes a `gather` (output cell i is input cell index[i], or zero). A gather is then absorbed
  by the `linear` that reads it (its columns are re-indexed) or that feeds it (its rows),
  by the input (`take`), where each cell is used at most once,
  by a neighbouring gather (composition), or, for zero padding, by the convolution that reads it,
and on the way there it is moved through elementwise operators. Spatial slices become one-tap depthwise convolutions, so
that windows stay windows. What is left stays a gather and is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

import numpy as np

from polytriton.errors import ResourceError
from polytriton.ir.net import Attr, Net, Node, Ref
from polytriton.ir.ops import OPS, rounds
from polytriton.passes.rewrite import drop_dead, rewrite

NAME = "layout"
Found = tuple[str, Net] | None  # the rule that fired and what it made
ELEMENTWISE = ("relu", "scale")
MAX_ENTRIES = 1 << 24  # of a matrix that absorbs a gather, where it is over four times the one it was
HALF_MOST = 2.0**15  # magnitudes that every float type holds, even rounded up


def requires(net: Net) -> str | None:
    return None


def ensures(net: Net) -> str | None:
    left = [n.name for n in net if OPS[n.op].kind == "layout" and n.op != "gather"]
    return f"%{left[0]} still moves cells about" if left else None


def run(net: Net) -> Net:
    net = _exhaust(drop_dead(net), _spatial)
    net = rewrite("layout to gathers", net, _to_gathers(net))
    return _exhaust(net, lambda now: _absorb(now) or _move(now))


def _exhaust(net: Net, rules: Callable[[Net], Found]) -> Net:
    """The net once none of the rules fires any more; they come to an end long before the limit."""
    for _ in range(4 * len(net.nodes) + 4):
        found = rules(net)
        if found is None:
            return net
        net = rewrite(found[0], net, found[1])
    return net


def _replace(net: Net, old: str, new: str) -> Net:
    """Every reader of `old` reads `new`."""
    nodes = [replace(n, inputs=tuple(new if i == old else i for i in n.inputs)) for n in net]
    return net.rebuild(nodes, output=new if net.output == old else net.output)


def _swap(net: Net, *changed: Node, weights: dict[str, np.ndarray] | None = None) -> Net:
    by = {n.name: n for n in changed}
    return net.rebuild([by.get(n.name, n) for n in net], weights)


def _fresh(net: Net, stem: str, more: Container[str] = ()) -> str:
    """An unused name, in the net and in `more`."""
    taken = net.weights.keys() | {n.name for n in net}
    k = 0
    while f"{stem}_{k}" in taken or f"{stem}_{k}" in more:
        k += 1
    return f"{stem}_{k}"


def _new(net: Net, stem: str) -> str:
    """A name for a value that the network given did not have: no imported name begins so, not even one of a node that is gone by now."""
    return _fresh(net, f"_{stem.strip('_')}")


# ---- spatial zero padding and slices -----------------------------------------------------------------------


def _spatial(net: Net) -> Found:
    """Padding around images joins the convolutions that read it; image slices along height or width become them."""
    users = net.users()
    nodes = net.by_name
    for n in net:
        if n.op == "pad" and len(n.shape) == 3 and n.ints("lo")[0] == n.ints("hi")[0] == 0 and net.output != n.name:
            readers = [nodes[u] for u in users[n.name]]
            if readers and all(r.op == "conv" for r in readers):
                lo, hi = n.ints("lo"), n.ints("hi")
                extra = (lo[1], lo[2], hi[1], hi[2])
                merged = [
                    replace(r, inputs=n.inputs).with_attrs(p=tuple(a + b for a, b in zip(r.ints("p", (0, 0, 0, 0)), extra, strict=True)))
                    for r in readers
                ]
                return "pad into conv", _swap(net, *merged)
        if n.op == "slice" and len(n.shape) == 3 and n.integer("axis") > 0 and n.integer("step") > 0:
            return "slice to conv", _slice_to_conv(net, n, nodes[n.inputs[0]])
    return None


def _slice_to_conv(net: Net, n: Node, source: Node) -> Net:
    """x[:, start:...:step] is a depthwise convolution of one tap with negative padding: exact, one term a cell."""
    axis, start, step, size = n.integer("axis") - 1, n.integer("start"), n.integer("step"), n.integer("size")
    channels, cells = source.shape[0], source.shape[1 + axis]
    tail = start + (size - 1) * step + 1 - cells
    p, s = [0, 0, 0, 0], [1, 1]
    p[axis], p[2 + axis], s[axis] = -start, tail, step
    w, b = _fresh(net, "ones"), _fresh(net, "zeros")
    attrs: dict[str, Attr] = {"w": Ref(w), "b": Ref(b), "k": (1, 1), "s": tuple(s), "p": tuple(p), "g": channels}
    conv = Node(n.name, "conv", n.inputs, n.shape, attrs)
    return _swap(net, conv, weights={w: np.ones((channels, 1, 1, 1), np.float32), b: np.zeros(channels, np.float32)})


def _to_gathers(net: Net) -> Net:
    nodes: list[Node] = []
    weights: dict[str, np.ndarray] = {}
    for n in net:
        if OPS[n.op].kind == "layout" and n.op != "gather":
            source = net.node(n.inputs[0])
            cells = np.arange(1, source.size + 1, dtype=np.float64).reshape(1, *source.shape)
            index = OPS[n.op].run(n, [cells], net.weights).reshape(-1).astype(np.int64) - 1  # padding, zero, becomes -1
            name = f"{n.name}_index"
            name = _fresh(net, name, weights) if name in net.weights or name in weights else name
            weights[name] = index
            n = Node(n.name, "gather", n.inputs, n.shape, {"index": Ref(name), "to": n.shape})
        nodes.append(n)
    return net.rebuild(nodes, weights)


# ---- absorption --------------------------------------------------------------------------------------------


def _index(net: Net, n: Node) -> np.ndarray:
    index = net.weight(n, "index")
    assert index is not None
    return index


def _in_order(index: np.ndarray, source: Node) -> bool:
    return len(index) == source.size and bool((index == np.arange(len(index))).all())


def _absorb(net: Net) -> Found:
    users, nodes = net.users(), net.by_name
    for n in net:
        if n.op != "gather":
            continue
        source, index = nodes[n.inputs[0]], _index(net, n)
        if _in_order(index, source) and source.shape == n.shape:
            return "idle gather", _replace(net, n.name, source.name)
        if source.op == "gather":
            inner = _index(net, source)
            name = _fresh(net, "index")
            index = np.where(index >= 0, inner[np.maximum(index, 0)], -1)
            return "gather of gather", _swap(net, replace(n, inputs=source.inputs).with_attrs(index=Ref(name)), weights={name: index})
        readers = [nodes[u] for u in users[n.name]]
        taking = [r for r in readers if r.op == "linear" and not _hides(net, r, index)]
        if net.output != n.name and taking:
            return "gather into reader", _into_reader(net, n, taking[0], source, index)
        alone = users[source.name] == [n.name] and net.output != source.name
        if alone and source.op == "linear":
            return "gather into linear", _into_linear(net, n, source, index)
        if alone and source.op == "input" and _distinct(index[index >= 0]):
            return "gather into input", _into_input(net, n, source, index)
        if net.output == n.name and _in_order(index, source):
            return "shape of the result", _replace(net, n.name, source.name)
    return None


def _hides(net: Net, reader: Node, index: np.ndarray) -> bool:
    """Whether a weight that meets padding is too large for a conversion to float16: times zero it is NaN there, and must stay in sight."""
    w = net.weight(reader, "w")
    return w is not None and bool((np.abs(w[:, index < 0]) > HALF_MOST).any())


def _distinct(index: np.ndarray) -> bool:
    """Whether no cell is read twice; counting takes a tenth of the time that sorting does."""
    return bool(np.bincount(index).max(initial=0) <= 1)


def _check_entries(n: Node, entries: int, old: np.ndarray) -> None:
    """A gather repeats rows of a matrix as often as it likes: a small file must not make a huge one."""
    if entries > max(MAX_ENTRIES, 4 * old.size):
        raise ResourceError(f"%{n.name}: moving its cells takes a matrix of {entries} entries", "make the model smaller")


def _into_reader(net: Net, n: Node, reader: Node, source: Node, index: np.ndarray) -> Net:
    """Columns of the reading layer; where a cell was read twice its columns add up, one rounding each.

    The deployed sum has a summand for every cell that the gather makes. Where each of them is another cell of the source, or
    padding that is exactly zero, the source's own cells tell which of them round. Cells read twice do not, so `summands` says how
    many there are. Nor do operands that a shift moved off zero: their number stands in `summands` already. The weights that met
    them go out of sight; none exceeds HALF_MOST, so what flushing them costs is within what a merged layer is charged.
    """
    changes: dict[str, Attr] = {}
    weights = {}
    used = index >= 0
    repeats = int(np.bincount(index[used]).max(initial=1))
    if repeats > 1:
        # merged weights are not the deployed ones any more, which `ops` tells as well
        changes["summands"] = max(reader.integer("summands"), int(used.sum()))
        changes |= {"slack": reader.integer("slack") + repeats, "ops": reader.integer("ops") + 1}
    for key in ("w", "wabs"):
        w = net.weight(reader, key)
        if w is None:
            continue
        _check_entries(n, w.shape[0] * source.size, w)
        if repeats == 1:
            out = np.zeros((w.shape[0], source.size), w.dtype)
            out[:, index[used]] = w[:, used]
        else:
            out = _add_columns(w, index, source.size)
            if key == "w" and "wabs" not in reader.attrs:
                name = _fresh(net, "wabs")
                weights[name], changes["wabs"] = _add_columns(np.abs(w), index, source.size), Ref(name)
        name = _fresh(net, key)
        weights[name], changes[key] = out, Ref(name)
    inputs = (source.name,)
    return _swap(net, replace(reader, inputs=inputs).with_attrs(**changes), weights=weights)


def _add_columns(w: np.ndarray, index: np.ndarray, cells: int) -> np.ndarray:
    """The columns of w that read the same cell, added in float64."""
    out, used = np.zeros((w.shape[0], cells)), index >= 0
    np.add.at(out.T, index[used], w.T[used].astype(np.float64))
    return out


def _into_linear(net: Net, n: Node, source: Node, index: np.ndarray) -> Net:
    """Rows of the feeding layer; padding becomes rows of zeros."""
    changes: dict[str, Attr] = {"to": n.shape}
    weights = {}
    for key in ("w", "b", "wabs", "babs"):
        w = net.weight(source, key)
        if w is not None:
            _check_entries(n, index.size * w[0].size, w)
            name = _fresh(net, key)
            keep = (index >= 0).reshape(-1, *[1] * (w.ndim - 1))
            weights[name], changes[key] = np.where(keep, w[np.maximum(index, 0)], w.dtype.type(0)), Ref(name)
    moved = replace(source, name=n.name, shape=n.shape).with_attrs(**changes)
    return net.rebuild([moved if m.name == source.name else m for m in net if m.name != n.name], weights)


def _into_input(net: Net, n: Node, source: Node, index: np.ndarray) -> Net:
    take = net.weight(source, "take")
    if take is not None:
        index = np.where(index >= 0, take[np.maximum(index, 0)], -1)
    name = _fresh(net, "take")
    moved = replace(source, shape=n.shape).with_attrs(take=Ref(name), of=source.ints("of") or source.shape)
    return _replace(_swap(net, moved, weights={name: index.astype(np.int64)}), n.name, source.name)


# ---- moving ------------------------------------------------------------------------------------------------


def _op_below(net: Net, n: Node, users: dict[str, list[str]], nodes: dict[str, Node]) -> str | None:
    """Follows single elementwise readers to the operator that could absorb the gather."""
    name = n.name
    while name != net.output and len(users[name]) == 1:
        reader = nodes[users[name][0]]
        if reader.op not in ELEMENTWISE:
            return reader.op
        name = reader.name
    return "output" if name == net.output else None


def _op_above(net: Net, n: Node, users: dict[str, list[str]], nodes: dict[str, Node]) -> str | None:
    node = nodes[n.inputs[0]]
    while len(users[node.name]) == 1 and node.name != net.output:
        if node.op not in ELEMENTWISE:
            return node.op
        node = nodes[node.inputs[0]]
    return None


def _move(net: Net) -> Found:
    users, nodes = net.users(), net.by_name
    for n in net:
        if n.op != "gather":
            continue
        index, readers = _index(net, n), users[n.name]
        source = nodes[n.inputs[0]]
        alone = source.op in ELEMENTWISE and users[source.name] == [n.name]
        upwards = alone and _op_above(net, n, users, nodes) in ("linear", "input", "gather")
        if len(readers) == 1 and net.output != n.name:
            reader = nodes[readers[0]]
            goal = _op_below(net, n, users, nodes)
            # one direction a gather, or it would go to and fro
            if reader.op in ELEMENTWISE and (goal in ("linear", "gather") or (goal == "output" and not upwards and (index >= 0).all())):
                moved = _move_below(net, n, reader, index)
                if moved is not None:
                    return f"gather behind {reader.op}", moved
                continue
            both = [nodes[i] for i in reader.inputs] if reader.op in ("add", "sub") else []
            if len(both) == 2 and both[0].name != both[1].name and all(o.op == "gather" for o in both):
                if all(len(users[o.name]) == 1 for o in both) and nodes[both[0].inputs[0]].shape == nodes[both[1].inputs[0]].shape:
                    shared = _index(net, both[0])  # copies of a cell are added each on its own, and may round apart
                    if np.array_equal(shared, _index(net, both[1])) and _distinct(shared[shared >= 0]):
                        return "gather behind a sum", _below_sum(net, both, reader)
        if upwards:
            return f"gather before {source.op}", _move_above(net, n, source, index)
    return None


def _elementwise_at(net: Net, node: Node, shape: tuple[int, ...], cells: np.ndarray) -> tuple[Node, dict[str, np.ndarray]]:
    """The elementwise node on re-ordered cells; its own constants are re-ordered with them."""
    weights = {}
    changes: dict[str, Attr] = {}
    for key in ("a", "c", "wabs", "babs"):
        w = net.weight(node, key)
        if w is not None:
            full = np.broadcast_to(w, node.shape).reshape(-1)
            name = _fresh(net, f"{node.name}_{key}")
            weights[name] = np.where(cells >= 0, full[np.maximum(cells, 0)], full.dtype.type(0)).reshape(shape)
            changes[key] = Ref(name)
    return replace(node, shape=shape).with_attrs(**changes), weights


def _move_below(net: Net, n: Node, reader: Node, index: np.ndarray) -> Net | None:
    """f(gather x) = gather f(x): the elementwise node is computed on the source's cells.

    Not where f rounds and a cell is read twice: the deployed network rounds each of its copies on its own, so their difference
    is not zero.
    """
    source = net.node(n.inputs[0])
    if rounds(reader) and not _distinct(index[index >= 0]):
        return None
    if reader.op == "scale":
        cells = np.full(source.size, -1, np.int64)
        cells[index[index >= 0]] = np.flatnonzero(index >= 0)
        c = net.weight(reader, "c")
        assert c is not None
        lost = np.broadcast_to(c, reader.shape).reshape(-1)[index < 0]
        if np.any(lost != 0):
            return None
    else:
        cells = np.arange(source.size)
    early, weights = _elementwise_at(net, reader, source.shape, cells)
    first = replace(early, name=_new(net, reader.name), inputs=n.inputs)
    second = Node(reader.name, "gather", (first.name,), reader.shape, n.attrs)
    return _exchange(net, n, first, second, weights)


def _below_sum(net: Net, both: list[Node], reader: Node) -> Net:
    first, source = both[0], net.node(both[0].inputs[0])
    total = replace(reader, name=_new(net, reader.name), inputs=(both[0].inputs[0], both[1].inputs[0]), shape=source.shape)
    late = Node(reader.name, "gather", (total.name,), reader.shape, first.attrs)
    nodes = [late if n.name == reader.name else n for n in net if n.name not in (first.name, both[1].name)]
    nodes.insert(next(i for i, n in enumerate(nodes) if n.name == late.name), total)
    return net.rebuild(nodes)


def _move_above(net: Net, n: Node, source: Node, index: np.ndarray) -> Net:
    """gather f(x) = f(gather x) where f keeps zero."""
    late, weights = _elementwise_at(net, source, n.shape, index)
    first = Node(_new(net, n.name), "gather", source.inputs, n.shape, n.attrs)
    second = replace(late, name=n.name, inputs=(first.name,))
    return _exchange(net, source, first, second, weights)


def _exchange(net: Net, gone: Node, first: Node, second: Node, weights: dict[str, np.ndarray]) -> Net:
    """`gone` and the node that read it change places: `first` stands where `gone` stood, `second` keeps its name."""
    by = {gone.name: first, second.name: second}
    return net.rebuild([by.get(m.name, m) for m in net], weights)
