"""Whether two nets are the same function, value by value: what a rewriting gets wrong in its numbers no law about roundings can see.

A name that both nets have means one value. What a nonlinear operator of the old net returns gets random numbers, everything else follows
from these, and where the nets define a value differently both definitions are evaluated in float64 on the old net's operands: every
segment between nonlinear operators is judged alone, and neither depth nor a ReLU that is off hides anything. Both sides round each term of
an output at most as often as there are terms and merges, so they may differ by 2^-40 of the sum of all magnitudes before anything cancels.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from zlib import crc32

import numpy as np

from polytriton.ir.curves import CURVES
from polytriton.ir.interp import user_shape
from polytriton.ir.net import Attr, Net, Node, Ref
from polytriton.ir.ops import OPS
from polytriton.limit import go_on

ROOM = 2.0**-40
SEED, ROWS, MOST = 12, 12, 1 << 20  # values at random of a node, and cells of all of them together
Value = tuple[np.ndarray, np.ndarray]  # numbers, and the sums of magnitudes behind them; [rows, *shape]


def disagreement(before: Net, after: Net) -> str | None:
    """The first value of `after` that is another than that of the same name in `before`, in words."""
    old, new = before.by_name, after.by_name
    shared = (old.keys() & new.keys()) - {before.input.name, after.input.name}
    changed = {name for name in shared if not _alike(old[name], new[name], before, after)}
    drawn = {name for name in shared if OPS[old[name].op].kind == "nonlinear"}
    mine = [n for n in after if n.name not in shared or n.name in changed]
    ends = {before.output} if before.output != after.output else set[str]()
    roots = {i for n in mine for i in n.inputs if i in shared} | {i for name in changed for i in old[name].inputs} | ends
    with np.errstate(all="ignore"):  # what overflows says nothing
        rows = max(1, min(ROWS, MOST // max(n.size for n in (*before, *after))))
        theirs = _evaluate(before, _find_sources(before, roots, drawn), drawn, rows)
        found: dict[str, Value] = {}
        for node in mine:
            go_on()
            operands = [_reshape(theirs[i], new[i]) if i in shared else found[i] for i in node.inputs]
            found[node.name] = _value(node, after, operands, rows)
            if node.name in changed:
                was = old[node.name]
                if problem := _compare(node.name, found[node.name], _value(was, before, [theirs[i] for i in was.inputs], rows)):
                    return problem
        if ends:
            end = theirs[after.output] if after.output in shared else found[after.output]
            return _compare(after.output, end, theirs[before.output])
    return None


def _alike(a: Node, b: Node, before: Net, after: Net) -> bool:
    if (a.op, a.inputs, a.attrs.keys()) != (b.op, b.inputs, b.attrs.keys()) or a.size != b.size or before.input.name in a.inputs:
        return False
    refs = [(v, b.attrs[k]) for k, v in a.attrs.items() if isinstance(v, Ref)]
    plain = all(v == b.attrs[k] for k, v in a.attrs.items() if not isinstance(v, Ref))
    return plain and all(isinstance(w, Ref) and before.weights[v.name] is after.weights[w.name] for v, w in refs)


def _find_sources(net: Net, roots: Iterable[str], drawn: Container[str]) -> set[str]:
    """The roots and what they follow from, back to the values that are drawn."""
    nodes, found, open_ = net.by_name, set[str](), list(roots)
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += () if name in drawn else nodes[name].inputs
    return found


def _evaluate(net: Net, wanted: Container[str], drawn: Container[str], rows: int) -> dict[str, Value]:
    held: dict[str, Value] = {}
    for node in net:
        if node.name in wanted:
            go_on()
            if node.name in drawn:
                numbers = _random(node.name, node.size, rows).reshape(rows, *node.shape)
                held[node.name] = numbers, np.abs(numbers)
            else:
                held[node.name] = _value(node, net, [held[i] for i in node.inputs], rows)
    return held


def _random(name: str, size: int, rows: int) -> np.ndarray:
    """[rows, size]: of both signs, then all of one, whatever cells a nonlinear operator compares."""
    found = np.random.default_rng([SEED, crc32(name.encode())]).standard_normal((rows, size))
    found[1:2], found[2:3] = np.abs(found[1:2]), -np.abs(found[2:3])
    return found


def _reshape(value: Value, node: Node) -> Value:
    return value[0].reshape(-1, *node.shape), value[1].reshape(-1, *node.shape)


def _value(node: Node, net: Net, operands: list[Value], rows: int) -> Value:
    if node.op == "input":
        numbers = OPS[node.op].run(node, [_random("", int(np.prod(user_shape(net), dtype=np.int64)), rows)], net.weights)
        return numbers, np.abs(numbers)
    numbers, sizes = OPS[node.op].run(node, [v for v, _ in operands], net.weights), [s for _, s in operands]
    if node.op == "relu":
        return numbers, sizes[0] * max(1.0, abs(node.number("slope")))
    if node.op in CURVES:  # a step of the operand's last place moves f by as much, or by its share of exp
        return numbers, (np.abs(numbers) + 1) * (1 + sizes[0])
    if node.op in ("add", "sub"):
        return numbers, sizes[0] + sizes[1]
    changes, weights = dict[str, Attr](), dict[str, np.ndarray]()
    for key, stored in (("w", "wabs"), ("a", "wabs"), ("b", "babs"), ("c", "babs")):
        if key in node.attrs:
            size = net.weight(node, stored if stored in node.attrs else key)
            assert size is not None
            weights[key], changes[key] = np.abs(size), Ref(key)
    return numbers, OPS[node.op].run(node.with_attrs(**changes), sizes, weights or net.weights)


def _compare(name: str, mine: Value, theirs: Value) -> str | None:
    (a, sizes), (b, others) = mine, theirs
    if a.size != b.size:
        return f"%{name} has {a[0].size} cells instead of {b[0].size}"
    b, others = b.reshape(a.shape), others.reshape(a.shape)
    off = ~(np.abs(a - b) <= ROOM * np.maximum(sizes, others)) & np.isfinite(b)
    if not off.any():
        return None
    at = tuple(np.argwhere(off)[0])
    return f"%{name} is {a[at]:.9g} instead of {b[at]:.9g} at {[int(i) for i in at[1:]]}, on random operands"
