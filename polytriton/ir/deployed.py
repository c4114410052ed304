"""The deployed network as every rewriting must leave it: a law between a net and what a rewriting made of it.

An affine node carries what the network executes where the node stands (ir/ops.py): `summands`, `ops`, `products`, `babs`, `wabs`.
Every rounding that is charged is charged from these, so a rewriting that loses some of it makes wrong bounds. The law holds a
value of the new net against the value of the same name in the old one, path by path from what both nets share:

  roundings     the most that one term passes on its way, where no cell counts that is exactly zero;
  presence      a cell that the old net lets differ from zero may differ from zero in the new one;
  conversions   how often an operand on the way was converted;
  magnitudes    the sum of |products| and |constants| under a cell; what merging rounded (`slack`);
  copies        cells that the new net takes for copies of one number were copies of one number: what is computed twice rounds twice;
  flushes       the sum of |weights| that flushed operands are multiplied by, where weights go out of sight.

None of them may shrink. Which cells are zero depends on the box, so the law is tried with cells of the shared values all zero, all
present, and, where cells are moved, the ones most repeated alone and every other one. tests/ir/test_deployed.py breaks every line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import OPS, patches, rounds
from polytriton.limit import go_on

REACH = 60  # 2^60: how far the factors of all merges of a layer together may hide an intermediate value, either way
BLOCK = 1 << 22  # entries of a matrix taken at once
ROOM = 1 - 2.0**-30  # magnitudes of both nets are float64 sums in different orders
Pattern = Mapping[str, np.ndarray]  # for each value that both nets share: which of its cells are present


@dataclass(frozen=True)
class Account:
    """What one value owes: `present` and `magnitude` are of its cells in row-major order; None where magnitudes are not asked for.

    `label` is the same for cells that are copies of one number, 0 for padding, and tells nothing of cells of another value.
    `exposed` and `weight`, of a product alone and beside magnitudes: the largest sum of |weights| under an output that can meet a
    deployed operand other than zero, and of all.
    """

    present: np.ndarray
    magnitude: np.ndarray | None
    label: np.ndarray
    roundings: int = 0
    conversions: int = 0
    slack: int = 0
    exposed: float = 0.0
    weight: float = 0.0


def summands(net: Net, node: Node, present: np.ndarray) -> int:
    """The most summands of one output of an affine layer, where only these cells of its operand are present; see ir/ops.py."""
    if "summands" in node.attrs:
        return node.integer("summands")
    if node.op == "conv":
        w = net.weight(node, "w")
        assert w is not None
        full = prod(w.shape[1:])
        if present.all() or not present.any():
            return full if present.any() else 0
        g, shape = node.integer("g", 1), net.node(node.inputs[0]).shape
        channels = present.reshape(g, -1, *shape[1:]).sum(1)[None]
        return int(patches(channels, node, 0).sum((-1, -2)).max())
    return int(present.sum()) if node.op == "linear" else 1  # a scale's cells are apart: none tells of another


def _magnitudes(net: Net, node: Node, plain: str, stored: str) -> np.ndarray:
    """The stored magnitudes of weights or constants, or the numbers themselves, whose sign is for the caller to drop."""
    found = net.weight(node, stored)
    found = net.weight(node, plain) if found is None else found
    assert found is not None
    return found


def _times(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """|w| x for a matrix, a few rows at a time: a copy of a large one in float64 would double the memory of compiling."""
    rows = max(1, BLOCK // max(1, w.shape[1]))
    return np.concatenate([np.abs(w[i : i + rows]).astype(np.float64) @ x for i in range(0, len(w), rows)])


def _sums(net: Net, node: Node, x: np.ndarray) -> np.ndarray:
    """The layer's magnitudes over its operand's; those of a convolution are of its inner cells, channel by channel."""
    if node.op == "scale":
        a, c = (np.abs(np.broadcast_to(_magnitudes(net, node, *k), node.shape)).reshape(-1) for k in (("a", "wabs"), ("c", "babs")))
        return np.asarray(a * x + c)
    w, b = _magnitudes(net, node, "w", "wabs"), np.abs(_magnitudes(net, node, "b", "babs"))
    if node.op == "linear":
        return _times(w, x) + b
    g = node.integer("g", 1)
    channel = x.reshape(g, w.shape[1], -1).max(-1)
    taps = np.abs(w).sum((2, 3), dtype=np.float64).reshape(g, -1, w.shape[1])
    sums = np.einsum("goc,gc->go", taps, channel).reshape(-1) + b
    return np.repeat(sums, node.size // len(sums))


def own_labels(size: int) -> np.ndarray:
    """Labels of numbers none of which is a copy of another."""
    return np.arange(1, size + 1)


def _exposure(net: Net, node: Node, present: np.ndarray) -> tuple[float, float]:
    """What all flushed operands of an output together are multiplied by, at most; a layer that gives its summands may hide constants."""
    w = _magnitudes(net, node, "w", "wabs")
    w = w.reshape(len(w), -1)
    full = float(_times(w, np.ones(w.shape[1])).max(initial=0.0))
    if node.op == "conv" or "summands" in node.attrs:
        return full, full
    return float(_times(w, present.astype(np.float64)).max(initial=0.0)), full


def _affine(net: Net, node: Node, operand: Account) -> Account:
    """A linear, conv or scale node."""
    present, label = np.ones(node.size, dtype=bool), own_labels(node.size)
    if node.op == "scale":
        found = (net.weight(node, "a"), net.weight(node, "c"), _magnitudes(net, node, "c", "babs"))
        a, c, size = (np.broadcast_to(v, node.shape).reshape(-1) for v in found if v is not None)
        present = operand.present & (a != 0) | (c != 0) | (size != 0)
        label[(operand.label == 0) & (c == 0) & (size == 0)] = 0  # padding times a factor stays zero
    return Account(
        present,
        None if operand.magnitude is None else _sums(net, node, operand.magnitude),
        label,
        operand.roundings + summands(net, node, operand.present) + 1 + node.integer("ops"),
        operand.conversions + (0 if node.op == "scale" else node.integer("products", 1)),
        operand.slack + node.integer("slack"),
        *((0.0, 0.0) if operand.magnitude is None or node.op == "scale" else _exposure(net, node, operand.present)),
    )


def _move_cells(node: Node, operands: list[np.ndarray], net: Net, shapes: list[tuple[int, ...]]) -> np.ndarray:
    """What a node that moves cells makes of them; padding is zero."""
    cells = [v.astype(np.float64).reshape(1, *s) for v, s in zip(operands, shapes, strict=True)]
    return np.asarray(OPS[node.op].run(node, cells, net.weights)).reshape(-1)


def _account(net: Net, node: Node, operands: list[Account]) -> Account:
    """What the node adds to what its operands owe; a path takes the larger of two branches."""
    if node.op in ("linear", "conv", "scale"):
        return _affine(net, node, operands[0])
    most = [max(getattr(o, key) for o in operands) for key in ("roundings", "conversions", "slack")]
    present, sizes = [o.present for o in operands], [o.magnitude for o in operands if o.magnitude is not None]
    if node.op in ("add", "sub"):
        size = sizes[0] + sizes[1] if sizes else None
        a, b = operands
        label = np.where((a.label == 0) & (b.label == 0), 0, own_labels(node.size))
        return Account(present[0] | present[1], size, label, most[0] + 1 + node.integer("ops"), most[1], most[2])
    if node.op == "mul":
        size = sizes[0] * sizes[1] if sizes else None
        return Account(present[0] & present[1], size, own_labels(node.size), *most)
    if node.op in CURVES:  # what padding becomes is no zero
        return Account(np.ones(node.size, dtype=bool), sizes[0] + 1 if sizes else None, own_labels(node.size), *most)
    if OPS[node.op].kind == "nonlinear":
        grow = max(1.0, abs(node.number("slope")))
        if node.op == "maxpool":
            shape = net.node(node.inputs[0]).shape
            windows = [[patches(v.reshape(1, *shape), node, 0).max((-1, -2)).reshape(-1) for v in group] for group in (present, sizes)]
            present, sizes = windows
        label = operands[0].label
        if node.op == "maxpool" or rounds(node):
            label = own_labels(node.size) if node.op == "maxpool" else np.where(label == 0, 0, own_labels(node.size))
        return Account(present[0].astype(bool), sizes[0] * grow if sizes else None, label, *most)
    shapes, labels = [net.node(i).shape for i in node.inputs], [o.label for o in operands]
    if len(labels) > 1:  # side by side; two operands may be one, so copies are looked for in each alone
        beyond = 1 + max(int(v.max()) for v in labels)
        labels = [np.where(v > 0, v + k * beyond, 0) for k, v in enumerate(labels)]
    label = _move_cells(node, labels, net, shapes).astype(np.int64)
    size = _move_cells(node, sizes, net, shapes) if sizes else None
    return Account(_move_cells(node, present, net, shapes) != 0, size, label, *most)


def _accounts(net: Net, nodes: list[Node], pattern: Pattern, magnitudes: bool) -> dict[str, Account]:
    """The accounts of these nodes over the shared values."""
    found = {name: Account(cells, np.ones(cells.size) if magnitudes else None, own_labels(cells.size)) for name, cells in pattern.items()}
    for node in nodes:
        if node.op == "input":  # the user's cells are what both nets share; `take` moves them
            cells, ones, label = pattern[node.name], np.ones(node.size), own_labels(node.size)
            take = net.weight(node, "take")
            if take is not None:
                cells, ones, label = (take >= 0) & cells[np.maximum(take, 0)], (take >= 0).astype(np.float64), take + 1
            found[node.name] = Account(cells, ones if magnitudes else None, label)
        else:
            found[node.name] = _account(net, node, [found[i] for i in node.inputs])
    return found


def _patterns(before: Net, changed: list[Node], shared: dict[str, int]) -> Iterator[Pattern]:
    """Which cells of the shared values are present: all, none; where cells move, the most repeated ones and every other one as well."""
    yield {name: np.ones(size, dtype=bool) for name, size in shared.items()}
    yield {name: np.zeros(size, dtype=bool) for name, size in shared.items()}
    moved = {n.name for n in changed}
    if any(OPS[n.op].kind == "layout" for n in changed):
        yield {name: np.arange(size) % 2 == 0 for name, size in shared.items()}
        repeated = {name: np.zeros(size, dtype=bool) for name, size in shared.items()}
        for n in changed:
            index = before.weight(n, "index") if n.op == "gather" else None
            if index is None or n.inputs[0] not in repeated:
                continue
            take = before.weight(before.node(n.inputs[0]), "take")  # a changed input's pattern is of the user's cells
            index = index if take is None or n.inputs[0] not in moved else np.where(index >= 0, take[np.maximum(index, 0)], -1)
            if (index >= 0).any():
                uses = np.bincount(index[index >= 0], minlength=shared[n.inputs[0]])
                repeated[n.inputs[0]] |= uses == uses.max()
        yield repeated


def _hides_flushes(was: Account, old: Node, now: Account, new: Node, after: Net) -> bool:
    """Whether flushed operands may cost the old layer more than the new one is charged (runtime.soundness.deployed_error)."""
    w = after.weight(new, "w")
    assert w is not None
    operations = 2 * (max(prod(w.shape[1:]), new.integer("summands")) + new.integer("ops")) + 4
    charged = (operations + now.weight) * (2.0**REACH if new.integer("ops") else 1.0)
    return charged < was.exposed * 2.0 ** min(old.integer("gain"), REACH) * ROOM


def broken_law(before: Net, after: Net) -> str | None:
    """What a rewriting from `before` to `after` lost of the deployed network, or None where it kept all of it."""
    if before.input.integer("half") > after.input.integer("half"):
        return "that the network stores activations in float16 is forgotten (half)"
    if before.input.attrs.get("unstated", "") != after.input.attrs.get("unstated", ""):
        return "that no deployed semantics states an operator's error is forgotten (unstated)"
    old, new = before.by_name, after.by_name
    kept = {name for name, n in old.items() if name in new and (new[name] is n or new[name] == n)}
    changed = {n.name for n in before if n.name not in kept} | {n.name for n in after if n.name not in kept}
    for n in reversed(before.nodes):  # a value that only moves another one's cells is no source of its own
        if OPS[n.op].kind == "layout" and any(n.name in r.inputs and r.name in changed for net in (before, after) for r in net):
            changed.add(n.name)
    gone, made = ([n for n in net if n.name in changed] for net in (before, after))
    shared = {i: old[i].size for n in (*gone, *made) for i in n.inputs if i not in changed}
    shared |= {n.name: prod(n.ints("of") or n.shape) for n in (*gone, *made) if n.op == "input"}
    pairs = [(n.name, n.name) for n in made if n.name in old and n.op != "input"]
    if before.output != after.output:
        pairs.append((before.output, after.output))
    for a, b in pairs:
        if old[a].size != new[b].size:
            return f"%{b} has {new[b].size} cells, not {old[a].size}"
    for k, pattern in enumerate(_patterns(before, gone, shared)):
        go_on()
        was, now = (_accounts(net, nodes, pattern, k == 0) for net, nodes in ((before, gone), (after, made)))
        for a, b in pairs:
            problem = _loss(was[a], now[b])
            if problem:
                return f"%{b}: {problem}"
            if k == 0 and {old[a].op, new[b].op} <= {"linear", "conv"} and _hides_flushes(was[a], old[a], now[b], new[b], after):
                return f"%{b}: weights that a flushed operand meets are out of sight"
    return None


def _merges(was: np.ndarray, now: np.ndarray) -> bool:
    """Whether two cells with one label now had two before."""
    order = np.argsort(now, kind="stable")
    same = now[order][1:] == now[order][:-1]
    return bool((was[order][1:] != was[order][:-1])[same].any())


def _loss(was: Account, now: Account) -> str | None:
    """What the second account lacks of the first."""
    for key, what in (("roundings", "roundings"), ("conversions", "conversions of operands"), ("slack", "roundings of merged weights")):
        if getattr(now, key) < getattr(was, key):
            return f"{getattr(was, key)} {what} became {getattr(now, key)}"
    if (was.present & ~now.present).any():
        return "a cell that may differ from zero is taken for zero"
    if was.magnitude is not None and now.magnitude is not None and (now.magnitude < was.magnitude * ROOM).any():
        return "magnitudes shrank"
    if _merges(was.label, now.label):
        return "numbers that are computed apart, and may round apart, are taken for copies of one"
    return None
