"""The independent checker of certificates (`polytriton check`): numpy, exact rationals, `checker_files.py`, which reads files, and
`checker_boxes.py`, which bounds values and rows, with the proof of what is rounded there and of what executions round.

A property's unsafe set is a union of pieces {x in a box, every row C y + D x <= k}. A certificate gives trees, each about some pieces of
one box, every piece in some. The root is every execution of every x in the box. A node's children are two boxes that share a number in an
input's range, or the executions with a neuron's operand >= 0 and those with it <= 0. Nothing is lost, so a piece is empty if on every path
some node refutes it: one of its rows exceeds k there, or it has no execution. The checker makes children and bounds; the certificate says
where to divide, how hard to work, which rows to try. An end with open pieces is refused, or cut (5) and divided as a `Divider` says; it and
who proposes slopes (`checker_slopes.py`) may say anything, but write nothing. Bounds of a node hold for its children.
1. The network comes from the ONNX file, the unsafe set from the VNN-LIB file in exact rationals, its boxes rounded outward.
2. In the network's order each value gets an interval from its operands' (`Boxes.interval`). Operands of ReLUs are bounded again by
   backward substitution (`Boxes.lower`); two bounds that cross, both being proved, show that the node has no execution.
3. Where a ReLU's operand z may have both signs, the line below is s z, the line above t z + m (`Boxes.relax`). Any s in [0, 1] is right,
   row by row; relu is convex, so a line above both ends, m >= -t l and m >= u (1 - t), is above it between them. Otherwise the ReLU is the
   identity or zero. Where all executions have sigma z >= 0, sigma = 1 or -1, A.z >= A.z - b sigma z: a row may lose any b sigma, b >= 0.
4. A row's least value, by the same substitution, exceeds k, compared in exact rationals.
5. At the input a row is >= A.x + c >= L over the box. Let x_i lie d above its lower end, where A_i > 0, or below its upper one, where
   A_i < 0: A.x + c >= L + |A_i| d, so the row is <= k only where d <= (k - L) / |A_i| (`margins`, moved up). A piece wants all rows <= k:
   the box around what each open piece leaves holds all that reach one, and the node, its margins too, is of these from then on (`cut`).
Assumed: IEEE float64, to nearest, gradual underflow (`plain` sets them, `check` tries them), matrix products that sum products."""

from __future__ import annotations

import ctypes
import functools
import gzip
import hashlib
import io
import json
import math
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from polytriton.checker_boxes import SEMANTICS, Boxes, outward
from polytriton.checker_files import HUGE, MAX_TEXT, Array, Atom, Box, Network, Pieces, Refused, Unsupported, need, unsafe
from polytriton.checker_slopes import Divider, Progress, StillOpen

FORMAT = {"format": "polytriton certificate", "version": "3"}
BATCH, STEPS, TIGHT, NODES, WAYS = 1 << 18, 1000, 1001, 1 << 24, 64  # values at a time; what may be asked
PROBE, ROUNDED = (np.resize(np.array(bits), 255) for bits in ([1 << 30, 0x3FFC << 48, (0x3FF << 52) + 1], [0, 2, 1]))  # tiny, 1.75, 1 + 2 u
TENSORS = dict.fromkeys(("own", "split", "inner", "query", "node", "piece", "row"), "<i4") | {"cut": "<f8"}
def plain(function: Any) -> Any:
    """It runs where this thread rounds to nearest, keeps subnormal numbers and traps nothing; its caller gets back what was set."""
    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        old, libc = ctypes.create_string_buffer(512), ctypes.PyDLL(None) if sys.platform == "linux" else None
        _ = libc and (libc.fegetenv(old), libc.fesetenv(ctypes.c_void_p(-1)))
        try:
            return np.errstate(all="ignore")(function)(*given, **named)
        finally:
            _ = libc and libc.fesetenv(old)
    return run
# a box's executions, some neurons' signs; bounds of ReLU operands; open pieces; ReLUs behind the `since`-th are to be bounded again
Part = namedtuple("Part", "lo hi signs low high open since")
class Prover:
    def __init__(self, model: bytes, semantics: str) -> None:
        self.net, self.draft, self.semantics = Network(model), Network(model, np.float32), semantics
        self.relus = [k for k, op in enumerate(self.net.ops) if op.kind == "relu"]
        self.first, self.batch = np.cumsum([0, *(self.net.sizes[k] for k in self.relus)]), max(1, BATCH // sum(self.net.sizes))
    def root(self, box: Box, pieces: Iterable[int]) -> Part:
        return Part(*outward(box), np.zeros(n := self.first[-1], np.int8), np.full(n, -np.inf), np.full(n, np.inf), frozenset(pieces), -1)
    def divide(self, part: Part, split: int, cut: float) -> tuple[Part, ...]:
        """Both halves; the whole for split -1."""
        if split < 0:
            return (part,)
        if split < len(part.lo):
            need(part.lo[split] < cut < part.hi[split], f"a cut of input {split} outside its box", Refused)
            lo, hi = (np.where(np.arange(len(side)) == split, cut, side) for side in (part.lo, part.hi))
            return part._replace(hi=hi, since=-1), part._replace(lo=lo, since=-1)
        known = (neuron := split - len(part.lo)) >= self.first[-1] or part.signs[neuron] != 0
        need(not known, f"neuron {neuron}: there is none, or its sign is assumed already", Refused)
        on, off = (np.where(np.arange(len(part.signs)) == neuron, np.int8(sign), part.signs) for sign in (1, -1))
        since = min(part.since, int(np.searchsorted(self.first, neuron, "right")) - 1)
        return part._replace(signs=on, since=since), part._replace(signs=off, since=since)
    def cut(self, part: Part, cuts: list[list[tuple[Array, Array]]]) -> Part:
        """What of a part any open piece can reach: the box around what all rows of each leave. Where none is left, nothing is cut."""
        lows, highs = (np.array([f([part[k], *(c[k] for c in some)], 0) for some in cuts]) for k, f in enumerate((np.max, np.min)))
        lo, hi = (lows.min(0), highs.max(0)) if (lows <= highs).all() else part[:2]
        return part._replace(lo=lo, hi=hi, since=-1 if (hi - lo < 0.9 * (part.hi - part.lo)).any() else part.since)
    def bound(self, parts: list[Part], inner: int) -> tuple[Boxes, list[Part]]:
        """Bounds of all values, and the parts with what was learnt. `inner` < 0: from intervals and what is known alone; else what ReLUs
        read is bounded by substitution, where it is undecided still with so many steps of ascent; from TIGHT on where it is on too."""
        lo, hi, signs, low, high = (np.stack([getattr(p, name) for p in parts], 1) for name in ("lo", "hi", "signs", "low", "high"))
        since, pairs = np.array([p.since for p in parts]), [slice(*self.first[r : r + 2]) for r in range(len(self.relus))]
        sigma = {k: signs[at].astype(np.float64) for k, at in zip(self.relus, pairs, strict=True) if signs[at].any()}
        boxes = Boxes(self.net, lo, hi, self.semantics, sigma)
        for k in range(1, len(self.net.ops)):
            if self.net.ops[k].kind == "relu":
                r, i = self.relus.index(k), self.net.ops[k].inputs[0]
                boxes.narrow(k, low[pairs[r]], high[pairs[r]])
                if inner >= 0 and i and not (self.net.ops[i].push and self.net.ops[i].inputs[0] == 0):
                    self._operands(boxes, k, (since < r) | (inner >= TIGHT), *divmod(inner, TIGHT))
                boxes.relax(k)
                low[pairs[r]], high[pairs[r]] = boxes.lo[i], boxes.hi[i]
            boxes.interval(k)
        told = zip(parts, low.T, high.T, strict=True)
        return boxes, [p._replace(low=l, high=h, since=len(self.relus) if inner >= 0 else p.since) for p, l, h in told]
    def _operands(self, boxes: Boxes, k: int, wanted: Array, whole: int, steps: int) -> None:
        i = self.net.ops[k].inputs[0]
        for tried in sorted({0, steps}):
            low, high, e = boxes.z[k]
            at, box = np.nonzero(((low < 0) | bool(whole)) & (high > 0) & wanted & ~boxes.empty)
            found = np.stack([boxes.lo[i][at, box], -boxes.hi[i][at, box]])
            goal = np.broadcast_to(2 * e, low.shape)[at, box]
            first = (found[1] > found[0]).astype(int)
            for n, side in enumerate((first, 1 - first, first | 1)[: 2 + whole]):  # last the upper ends of what is on
                open_ = np.flatnonzero(((found < goal).all(0) if n < 2 else found[0] >= goal) if len(at) else at)
                which = side[open_]
                got = boxes.neurons(self.draft, i, at[open_], box[open_], np.where(which == 0, 1.0, -1.0), goal[open_], tried)
                found[which, open_] = np.maximum(found[which, open_], got)
            lo, hi = boxes.lo[i].copy(), boxes.hi[i].copy()
            lo[at, box], hi[at, box] = found[0], -found[1]
            boxes.narrow(k, lo, hi)
class Tree:
    """Of which box and of which of its pieces it is; by node how it is divided and bounded, and which rows of which pieces it refutes.
    Node 0 is the root; the children of the j-th divided node are nodes 2 j + 1 and 2 j + 2, so none can be missing."""
    def __init__(self, tensors: dict[str, Array]) -> None:
        own, self.split, self.inner, self.query, self.node, self.piece, self.row, self.cut = (tensors[name] for name in TENSORS)
        self.box, self.own, n, divided = int([*own, 0][0]), own[1:].tolist(), len(self.split), np.flatnonzero(self.split >= 0)
        same = len({n, len(self.cut), len(self.inner), len(self.query)}) == len({len(self.node), len(self.piece), len(self.row)}) == 1
        need(same and self.own and n == 2 * len(divided) + 1 <= NODES, "a tree whose nodes do not fit together", Refused)
        need((np.arange(len(divided)) * 2 + 1 > divided).all(), "a node above its parent", Refused)
        ordered = (np.diff(self.node, prepend=0, append=n - 1) >= 0).all()
        few, pairs = max(self.inner.max() - TIGHT, self.query.max()) <= STEPS, zip(self.inner.tolist(), self.query.tolist(), strict=True)
        need(ordered and few and len({*pairs}) <= WAYS, f"more than {STEPS} steps, {WAYS} ways to bound, or rows out of order", Refused)
        self.child = np.where(self.split >= 0, 2 * np.cumsum(self.split >= 0) - 1, -1)
        self.closed = np.searchsorted(self.node, np.arange(n + 1))
    def ends(self, n: int) -> bool:
        return n < 0 or bool(self.child[n] < 0)
    def rows_at(self, n: int, open_: frozenset[int], pieces: list[list[Atom]]) -> list[tuple[int, int]]:
        """Rows worth bounding at a node: those named; at an end, and below it, all rows of an open piece for which none is."""
        at = slice(*self.closed[n : n + 2]) if n >= 0 else slice(0)
        named = list(zip(self.piece[at].tolist(), self.row[at].tolist(), strict=True))
        need(all(0 <= p < len(pieces) and 0 <= r < len(pieces[p]) for p, r in named), f"node {n}: a row that is none", Refused)
        rest = open_.difference(p for p, _ in named) if self.ends(n) else ()
        return [(p, r) for p, r in named if p in open_] + [(p, r) for p in sorted(rest) for r in range(len(pieces[p]))]
Work = namedtuple("Work", "node inner query part")  # nodes below the ends of a tree have numbers below 0
def _children(prover: Prover, tree: Tree, w: Work, part: Part, wanted: Array) -> list[Work]:
    both = prover.divide(part, int(tree.split[w.node]), float(tree.cut[w.node]))
    return [Work(n, int(tree.inner[n]), int(tree.query[n]), half) for n, half in enumerate(both, int(tree.child[w.node])) if wanted[n]]
def follow(prover: Prover, box: Box, pieces: list[list[Atom]], tree: Tree, wanted: Array, told: Callable[[int], None],
           guide: Divider | None = None) -> dict[int, float]:  # fmt: skip
    """Walks a tree, or its `wanted` nodes; the least margin proved for each of its pieces. An end that is left open is divided further, or
    bounded once more, as `guide` says, which may say anything. Raises Refused where anything does not follow."""
    least, stacks, done, below = dict.fromkeys(tree.own, math.inf), dict[tuple[int, ...], list[Work]](), 0, 0
    def push(some: Iterable[Work]) -> None:  # by how they are bounded; () are those that are divided and no more
        for w in some:
            passes = w.inner < 0 and not tree.ends(w.node) and tree.closed[w.node] == tree.closed[w.node + 1]
            stacks.setdefault(() if passes else w[1:3], []).append(w)
    push([Work(0, int(tree.inner[0]), int(tree.query[0]), prover.root(box, tree.own))])
    while stacks:
        full = (how for how, some in stacks.items() if how and len(some) >= prover.batch)
        how = next(full, () if () in stacks else next(reversed(stacks)))
        work = [stacks[how].pop() for _ in range(min(len(stacks[how]), prover.batch if how else 1))]
        _ = stacks[how] or stacks.pop(how)
        if not how:
            push(_children(prover, tree, work[0], work[0].part, wanted))
            done += 1
            continue
        asked = [(j, p, r) for j, w in enumerate(work) for p, r in tree.rows_at(w.node, w.part.open, pieces)]
        boxes, parts = prover.bound([w.part for w in work], how[0])
        rows, at = [pieces[p][r] for _, p, r in asked], np.array([j for j, _, _ in asked], dtype=np.int64)
        met, closed = dict[tuple[int, int], list[Any]](), [set(w.part.open) if boxes.empty[j] else set() for j, w in enumerate(work)]
        for (j, p, r), margin, c in zip(asked, *boxes.margins(prover.draft, rows, at, max(0, how[1])), strict=True):
            met.setdefault((j, p), []).append((margin, r, c))
        for (j, p), some in met.items():
            margin, r = max(found[:2] for found in some)
            if margin > 0 and not boxes.empty[j]:
                least[p] = min(least[p], float(min(margin, Fraction(HUGE))))
                closed[j].add(p)
                if guide:
                    guide.note(work[j].node, p, r)
        parts, left = [p._replace(open=p.open - c) for p, c in zip(parts, closed, strict=True)], list[int]()
        for j, (w, part) in enumerate(zip(work, parts, strict=True)):
            if not tree.ends(w.node):
                push(_children(prover, tree, w, part, wanted))
            elif part.open:
                need(guide, f"node {w.node}: pieces {sorted(part.open)[:3]} are left open", StillOpen)
                left.append(j)
                parts[j] = prover.cut(part, [[c for *_, c in met.get((j, p), ())] for p in part.open]) if guide and guide.cuts else part
        open_ = [work[j]._replace(part=parts[j]) for j in left]
        hints = guide.divide(prover, pieces, boxes, open_, np.array(left)) if guide and left else []
        for j, (split, cut, inner, query) in zip(left, hints, strict=True):
            push(Work(below := below - 1, inner, query, half) for half in prover.divide(parts[j], split, cut))
        told(done := done + sum(w.node >= 0 for w in work))
    return least
def digest(meta: dict[str, Any], body: bytes) -> str:
    return hashlib.sha256(json.dumps([meta[k] for k in ("semantics", "onnx", "vnnlib", "trees")]).encode() + body).hexdigest()
def read(data: bytes) -> tuple[dict[str, str], list[dict[str, Array]]]:
    """A safetensors file: header length, JSON header, numbers. Tensor `T.NAME` is of tree T."""
    try:
        body = data[(end := 8 + int.from_bytes(data[:8], "little")) :]
        header = json.loads(data[8:end], object_pairs_hook=lambda p: dict(p) if len(dict(p)) == len(p) else {})  # a name twice: none at all
        meta = header.pop("__metadata__")
        need(FORMAT.items() <= meta.items(), f"no {FORMAT}: written by another version of polytriton", Refused)
        need(meta["data"] == digest(meta, body) and meta["semantics"] in SEMANTICS, "a damaged certificate, or other semantics", Refused)
        need(len(header) == len(TENSORS) * (count := int(meta["trees"])) and count < NODES, "tensors missing, or others", Refused)
        spans = [t["data_offsets"] for t in header.values()]
        need(all(0 <= a <= b for a, b in spans) and sum(b - a for a, b in spans) == len(body), "numbers named twice, or never", Refused)
        need(all(("F64" if n.endswith(".cut") else "I32") == t["dtype"] for n, t in header.items()), "a tensor of another type", Refused)
        trees = [{n: np.frombuffer(body[slice(*header[f"{b}.{n}"]["data_offsets"])], TENSORS[n]) for n in TENSORS} for b in range(count)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise Refused(f"no certificate: {type(error).__name__} in its header") from None
    return meta, trees
@plain
def load(onnx_file: Path, vnnlib_file: Path) -> tuple[Network, Pieces, dict[str, str]]:
    model, text = onnx_file.read_bytes(), vnnlib_file.read_bytes()
    try:
        net = Network(model)
        plainly = gzip.GzipFile(fileobj=io.BytesIO(text)).read(MAX_TEXT + 1) if vnnlib_file.suffix == ".gz" else text
        pieces = unsafe(plainly.decode(), net.sizes[0], net.sizes[net.output])
    except Exception as error:  # of a parser, on a file that is none
        raise error if isinstance(error, Refused) else Unsupported(f"the network or property cannot be read: {repr(error)[:400]}") from None
    return net, pieces, {"onnx": hashlib.sha256(model).hexdigest(), "vnnlib": hashlib.sha256(text).hexdigest()}
def open_files(onnx: Path, vnnlib: Path, certificate: Path) -> tuple[str, Prover, Pieces, list[Tree]]:
    """Semantics, what bounds nodes, the unsafe set, and by box a tree that nobody has followed yet; or Refused."""
    tried: Array = np.diag(PROBE.view(np.float64)) @ np.diag(np.resize(PROBE[2:3].view(np.float64), len(PROBE)))  # numpy's workers too
    need((np.diag(tried).copy().view(np.int64) == PROBE + ROUNDED).all(), "this machine flushes subnormal numbers, or rounds otherwise")
    (net, pieces, hashes), (meta, tensors) = load(onnx, vnnlib), read(certificate.read_bytes())
    trees, every = list(map(Tree, tensors)), {(b, p) for b, group in enumerate(pieces.values()) for p in range(len(group))}
    need(meta | hashes == meta, "the certificate belongs to another network or property file", Refused)
    need(every == {(t.box, p) for t in trees for p in t.own}, "a piece that no tree is about, or that is none", Refused)
    return meta["semantics"], Prover(net.data, meta["semantics"]), pieces, trees
Checked = namedtuple("Checked", "semantics margins nodes leaves")  # by piece the least margin, nodes walked, leaves among them
@plain
def check(onnx: Path, vnnlib: Path, certificate: Path, progress: Progress = lambda *_: None, guide: Divider | None = None,
          some: Callable[[list[Tree]], list[Array]] | None = None) -> Checked:  # fmt: skip
    """What the certificate proves, or Refused. `some`: only these nodes of each tree are looked at: evidence, not proof."""
    semantics, prover, pieces, trees = open_files(onnx, vnnlib, certificate)
    wanted = some(trees) if some else [np.ones(len(tree.child), dtype=bool) for tree in trees]
    margins = {(b, p): math.inf for b, group in enumerate(pieces.values()) for p in range(len(group))}
    total, groups = int(sum(w.sum() for w in wanted)), list(pieces.items())
    for tree, mine in zip(trees, wanted, strict=True):
        found = follow(prover, *groups[tree.box], tree, mine, lambda n: progress("nodes", n, total), guide) if mine.any() else {}
        margins |= {(tree.box, p): min(margins[tree.box, p], m) for p, m in found.items()}
    return Checked(semantics, list(margins.values()), total, sum(int(w[t.child < 0].sum()) for t, w in zip(trees, wanted, strict=True)))
