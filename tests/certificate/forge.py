"""Certificates of what is false: real ones under other names, with numbers moved, trees rebuilt, bytes damaged.

The forger writes every hash and header anew, so that only the mathematics is left to refuse (but for what is done to the bytes themselves).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import Guide, complete
from polytriton.certificate.write import pack
from polytriton.checker import Refused
from polytriton.checker import Tree as CheckerTree
from polytriton.checker_slopes import Choice
from tests.certificate.cases import Rng, pick
from tests.certificate.models import random_tree
from tests.certificate.nodes import Node

Tree = dict[str, np.ndarray]
NODES, ROWS = ("split", "cut", "inner", "query"), ("node", "piece", "row")


@dataclass
class Victim:
    """A false property, as the forger sees it: the checker's own reading of it, and where it is false."""

    inputs: int
    neurons: int
    boxes: list[Any]  # (box, rows by piece), in the checker's order
    at: tuple[float, ...]
    wrong: int  # the box that holds it
    semantics: str
    false: tuple[str, ...]  # the semantics under which some execution shows it false
    hashes: dict[str, str]
    prover: Any


@dataclass
class Mutant:
    """Bytes, and perhaps slopes and multipliers that the checker is to be given in place of those that it chooses; whether it may divide
    further what the tree leaves open.
    """

    kind: str
    data: bytes
    choice: Rng | None = None
    guided: bool = False


# ---- trees ----------------------------------------------------------------------------------------------------------


def _any(rng: Rng, trees: list[Tree], *names: str) -> tuple[Tree, str, int]:
    """An entry of a tensor that has some; the root's split where none has."""
    some = [(t, n) for t in trees for n in names if len(t[n])]
    t, name = some[int(rng.integers(len(some)))] if some else (trees[0], "split")
    return t, name, int(rng.integers(max(1, len(t[name]))))


def _put(t: Tree, name: str, k: int, value: Any) -> None:
    if len(t[name]):
        t[name][k] = value


def leaf_missing(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t, count = pick(rng, trees), int(rng.integers(1, 3))
    for n in NODES:
        t[n] = t[n][:-count].copy()


def leaf_or_not(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t, name, k = _any(rng, trees, "split")
    _put(t, name, k, -1 if t[name][k] >= 0 else int(rng.integers(v.inputs + v.neurons)))


def subtree_dropped(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """A divided node that becomes a leaf, its last two nodes taken away: the tree fits together, and says less."""
    t = pick(rng, trees)
    divided = np.flatnonzero(t["split"] >= 0)
    if len(divided):
        t["split"][divided[-1]] = -1
        for n in NODES:
            t[n] = t[n][:-2].copy()
        t["node"] = np.minimum(t["node"], len(t["split"]) - 1).astype(np.int32)


def children_swapped(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t = pick(rng, trees)
    if len(t["split"]) > 2:
        k = 1 + 2 * int(rng.integers((len(t["split"]) - 1) // 2))
        for n in NODES:
            t[n][[k, k + 1]] = t[n][[k + 1, k]]


def nodes_shuffled(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t = pick(rng, trees)
    order = rng.permutation(len(t["split"]))
    for n in NODES if rng.random() < 0.5 else ("split", "cut"):
        t[n] = t[n][order].copy()


def rows_dropped(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t = pick(rng, trees)
    keep = rng.random(len(t["node"])) < 0.7
    for n in ROWS:
        t[n] = t[n][keep].copy()


def rows_repeated(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t = pick(rng, trees)
    some = np.sort(rng.integers(max(1, len(t["node"])), size=len(t["node"]) + 2)) if len(t["node"]) else np.zeros(0, int)
    for n in ROWS:
        t[n] = t[n][some].copy()


def rows_out_of_order(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t = pick(rng, trees)
    t["node"] = rng.permutation(t["node"]).astype(np.int32)


def row_moved(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """Another node, piece or row, there or not, known only further down, or negative."""
    t, name, k = _any(rng, trees, *ROWS)
    _put(t, name, k, pick(rng, [-1, -2, 0, 1, 2, len(t["split"]) - 1, len(t["split"]), 2**31 - 1, -(2**31), int(t[name][k]) + 1]))


def cut_moved(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t, name, k = _any(rng, trees, "cut")
    old = float(t[name][k])
    near = [float(np.nextafter(old, np.inf)), -old, old + 0.5, old / 2, *v.at]
    _put(t, name, k, pick(rng, [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, 5e-324, 2.0, -2.0, *near]))


def split_changed(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t, name, k = _any(rng, trees, "split")
    n = v.inputs + v.neurons
    _put(t, name, k, pick(rng, [-1, -2, -(2**31), 0, 1, n - 1, n, 2**31 - 1, int(rng.integers(n))]))


def steps_changed(rng: Rng, trees: list[Tree], v: Victim) -> None:
    t, name, k = _any(rng, trees, "inner", "query")
    _put(t, name, k, pick(rng, [-(2**31), -2, -1, 0, 1, 3, 1001, 2**31 - 1]))


def boxes_changed(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """A box's tree left out, doubled or exchanged."""
    what = int(rng.integers(4))
    if what == 0:
        trees.pop(int(rng.integers(len(trees))))
    elif what == 1:
        trees.append({n: a.copy() for n, a in trees[0].items()})
    elif what == 2:
        trees.reverse()
    else:
        trees[int(rng.integers(len(trees)))] = {n: a[:0].copy() for n, a in trees[0].items()}


def grafted(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """The donor's tree below a division, once or on both sides."""
    k = int(rng.integers(len(trees)))
    old, root = rebuilt(trees[k]), Node()
    other = claims(Node(0), v, min(k, len(v.boxes) - 1), rng) if rng.random() < 0.5 else old
    sides = (old, other) if rng.random() < 0.5 else (other, old)
    root.divide(int(rng.integers(v.inputs + v.neurons)), float(pick(rng, [0.0, 0.25, -0.5, *v.at])), *sides)
    trees[k] = _of_box(root, v, k)


def _of_box(root: Node, v: Victim, k: int) -> Tree:
    """A tree about all pieces of a box."""
    box = min(k, len(v.boxes) - 1)
    return root.arrays(box, range(len(v.boxes[box][1])))


def own_changed(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """Of another box, or about other pieces, or fewer."""
    t, name, k = _any(rng, trees, "own")
    if rng.random() < 0.5:
        t[name] = t[name][: 1 + int(rng.integers(len(t[name]) + 1))].copy()
    else:
        _put(t, name, k, pick(rng, [-1, 0, 1, 2, 2**31 - 1, -(2**31)]))


def drawn_tree(rng: Rng, trees: list[Tree], v: Victim) -> None:
    for k in range(len(trees)):
        pieces = len(v.boxes[min(k, len(v.boxes) - 1)][1])
        trees[k] = _of_box(random_tree(rng, v.inputs, v.neurons, pieces, int(rng.integers(1, 5))), v, k)


def closing_in(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """Narrow boxes around where the property is false, or parts with the signs that neurons have there; every leaf claims everything."""
    if v.wrong < len(trees):
        lo, hi = (np.array([float(q) for q in side]) for side in v.boxes[v.wrong][0])
        root = here = Node(int(rng.integers(-1, 1)))
        for _ in range(int(rng.integers(1, 14))):
            i = int(rng.integers(v.inputs))
            near = v.at[i] + float(rng.choice([-1.0, 1.0])) * (hi[i] - lo[i]) * 2.0 ** -float(rng.integers(1, 45))
            below = near > v.at[i]
            if rng.random() < 0.2 or not lo[i] < near < hi[i]:
                first, second = here.divide(v.inputs + int(rng.integers(v.neurons)), 0.0)
                below = rng.random() < 0.5
            else:
                first, second = here.divide(i, near)
                (hi if below else lo)[i] = near
            here, other = (first, second) if below else (second, first)
            claims(other, v, v.wrong, rng)
        claims(here, v, v.wrong, rng)
        trees[v.wrong] = _of_box(root, v, v.wrong)


def grown(rng: Rng, trees: list[Tree], v: Victim) -> None:
    """The writer's own attempt at what is false, for some milliseconds; what it leaves open is claimed."""
    if v.wrong < len(trees):
        box, group = v.boxes[v.wrong]
        guide, alone = Guide(1 << 20, time.monotonic() + 0.02), CheckerTree(Draft(v.wrong, list(range(len(group)))).arrays())
        with suppress(Refused):
            complete(v.prover, box, group, alone, guide)
        waiting = [root := rebuilt(guide.complete(alone).arrays())]
        for node in waiting:
            waiting += node.children or ()
            if node.children is None:
                claims(node, v, v.wrong, rng)
        trees[v.wrong] = _of_box(root, v, v.wrong)


def claims(node: Node, v: Victim, box: int, rng: Rng) -> Node:
    """It says to refute every piece by some row, the right one perhaps."""
    node.inner, node.query = max(0, node.inner), pick(rng, [0, 0, 0, 2])
    node.closed = [(p, int(rng.integers(max(1, len(rows))))) for p, rows in enumerate(v.boxes[box][1])]
    return node


def rebuilt(t: Tree) -> Node:
    """A tree that fits together, as nodes again; else a leaf."""
    nodes = [Node(int(i), int(q)) for i, q in zip(t["inner"], t["query"], strict=False)]
    for n, p, r in zip(t["node"].tolist(), t["piece"].tolist(), t["row"].tolist(), strict=False):
        if 0 <= n < len(nodes):
            nodes[n].closed.append((p, r))
    for j, k in enumerate(np.flatnonzero(t["split"] >= 0).tolist()):
        if 2 * j + 2 < len(nodes) and k < 2 * j + 1:
            nodes[k].divide(int(t["split"][k]), float(t["cut"][k]), nodes[2 * j + 1], nodes[2 * j + 2])
    return nodes[0] if nodes else Node()


TREES: dict[str, Callable[[Rng, list[Tree], Victim], None]] = {
    f.__name__.replace("_", " "): f
    for f in (
        leaf_missing, leaf_or_not, subtree_dropped, children_swapped, nodes_shuffled, rows_dropped, rows_repeated, rows_out_of_order,
        row_moved, cut_moved, split_changed, steps_changed, boxes_changed, own_changed, grafted, drawn_tree, closing_in, grown,
    )
}  # fmt: skip


# ---- bytes ----------------------------------------------------------------------------------------------------------


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _joined(text: bytes, body: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + body


def truncated(rng: Rng, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data)))]


def extended(rng: Rng, data: bytes) -> bytes:
    more = rng.bytes(int(rng.integers(1, 40)))
    header, body = _header(data)
    return pick(rng, [data + more, more + data, _joined(json.dumps(header).encode(), more + body)])


def flipped(rng: Rng, data: bytes) -> bytes:
    bad = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
    return bytes(bad)


def header_changed(rng: Rng, data: bytes) -> bytes:
    """Offsets, types, names and counts of tensors, keys said twice; the digest is made to fit."""
    header, body = _header(data)
    name = pick(rng, [n for n in header if n != "__metadata__"] or ["__metadata__"])
    what = int(rng.integers(6))
    if name == "__metadata__" or what == 0:
        header["__metadata__"]["trees"] = pick(rng, ["0", "1", "2", "-1", "1e3", "nan", ""])
    elif what == 1:
        a, b = header[name]["data_offsets"]
        header[name]["data_offsets"] = pick(rng, [[a + 4, b], [a, b - 4], [0, 10**18], [-8, 8], [b, a], [None, None], [a + 1, b + 1]])
    elif what == 2:
        header[name]["data_offsets"] = header[pick(rng, [n for n in header if n != "__metadata__"])]["data_offsets"]
    elif what == 3:
        header[name]["dtype"] = pick(rng, ["F32", "I64", "F64", "I32", None])
    elif what == 4:
        header[pick(rng, ["0.line", "1.split", "__metadata__"])] = header.pop(name)
    meta = header.get("__metadata__")
    return _signed(header, meta, body, twice=what == 5)


def _signed(header: dict[str, Any], meta: Any, body: bytes, twice: bool = False) -> bytes:
    from polytriton.checker import digest

    with suppress(KeyError, TypeError):
        meta["data"] = digest(meta, body)
    text = json.dumps(header)
    return _joined((text[:-1] + ", " + text[1:] if twice else text).encode(), body)


BYTES = {f.__name__.replace("_", " "): f for f in (truncated, extended, flipped, header_changed)}


# ---- slopes and multipliers, which no file holds --------------------------------------------------------------------


def hostile(rng: Rng) -> Callable[..., Choice]:
    """In place of `Boxes.choose`: slopes above 1 and below 0, negative multipliers, numbers that are none."""

    def choose(boxes: Any, draft: Any, start: Any, at: np.ndarray, *_: Any) -> Choice:
        lines = {}
        for k in boxes.lines:
            shape = boxes.net.sizes[k], len(at)
            s, b = rng.choice([-3.0, -0.5, 0.0, 0.5, 1.0, 1.5, 8.0], shape), rng.choice([-4.0, -0.5, 0.0, 0.0, 0.5, 4.0, 100.0], shape)
            for v in (s, b):
                v[rng.random(shape) < 0.03] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
            lines[k] = s, b
        return Choice(lines, {}, np.zeros(0))

    return choose


# ---- a mutant -------------------------------------------------------------------------------------------------------

KINDS = ("as it is", "other semantics", "slopes", "slopes in a forged tree", "several changes", *TREES, *BYTES)
RARE = ("grown",)  # it costs twenty milliseconds
GUIDED = 24  # divisions that the checker may add


def forge(rng: Rng, kind: str, trees: list[Tree], v: Victim) -> Mutant:
    """A certificate that claims the false property, made of one of a true property near it."""
    trees = [{n: a.copy() for n, a in t.items()} for t in trees]
    semantics, choice = v.semantics, None
    if kind in TREES:
        TREES[kind](rng, trees, v)
    elif kind == "several changes":
        for name in rng.choice([n for n in TREES if n not in RARE], int(rng.integers(2, 5))):
            with suppress(IndexError, ValueError):  # of a tree that is in pieces already
                TREES[str(name)](rng, trees, v)
        trees = trees or [Node().arrays()]
    elif kind.startswith("slopes"):
        if "forged" in kind:
            pick(rng, [drawn_tree, closing_in, grafted])(rng, trees, v)
        for t in trees:
            t["query"][:] = 1
            t["inner"][:] = int(rng.integers(0, 2))
        choice = np.random.default_rng(int(rng.integers(1 << 32)))
    elif kind == "other semantics":
        semantics = pick(rng, ["real", "float32", "float64", "REAL", "", "tf32"])
    data = pack(trees, semantics, v.hashes)
    return Mutant(kind, BYTES[kind](rng, data) if kind in BYTES else data, choice, guided=choice is None and rng.random() < 0.5)


def judged(checker: ModuleType, files: Any, mutant: Mutant, held: Callable[[bytes], Any]) -> tuple[str, str]:
    """The semantics under which the checker confirms a mutant, else "", and why it refuses. Other exceptions are faults of the checker."""
    kept = checker.Boxes.choose
    if mutant.choice is not None:
        checker.Boxes.choose = hostile(mutant.choice)
    try:
        return checker.check(*files, held(mutant.data), guide=Guide(GUIDED, cuts=True) if mutant.guided else None).semantics, ""
    except Refused as error:
        return "", str(error)
    finally:
        checker.Boxes.choose = kept
