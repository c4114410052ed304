"""What the engine left of a proof as the trees of a certificate, by the checker's own numbers of pieces, rows, inputs and neurons."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import part_steps, whole_steps
from polytriton.checker import NODES, TIGHT
from polytriton.checker_files import Network, Pieces, Refused, need
from polytriton.frontend.query import Property, Row
from polytriton.prove.trail import Planted, Trail

Place = tuple[int, int]  # a box and a piece of it; or a piece and a row of it
Key = tuple[tuple[int, Fraction], ...]  # a row, divided by the magnitude of its first coefficient; the right-hand side stands last
LAST = 1 << 40
SOME = 1 << 16  # notes that are read at a time


def _key(row: dict[int, Fraction], k: Fraction) -> Key:
    by = abs(row[min(row)]) if row else Fraction(1)
    return (*((v, row[v] / by) for v in sorted(row)), (LAST, k / by))


def _key_of(row: Row) -> Key:
    return _key({~i: c for i, c in row.y} | dict(row.x), row.const)


class PieceNumbers:
    """The checker's pieces, by box, of each group of the engine's questions, and pieces and rows of each form: whatever says the same."""

    def __init__(self, prop: Property, pieces: Pieces) -> None:
        same: dict[object, list[tuple[int, int, dict[Key, int]]]] = defaultdict(list)
        index, boxes = {box: b for b, box in enumerate(pieces)}, dict[tuple[int, int], int | None]()
        for b, group in enumerate(pieces.values()):
            for p, atoms in enumerate(group):
                rows = {_key(*atom): r for r, atom in enumerate(atoms)}
                same[b, frozenset(rows)].append((b, p, rows))
        self.places: dict[int, list[Place]] = defaultdict(list)
        self.rows: dict[int, list[Place]] = defaultdict(list)
        form = 0
        for g, d in enumerate(prop.disjuncts):
            keys, at = list(map(_key_of, d.rows)), (id(d.lo), id(d.hi))
            if at not in boxes:  # long ones take their time, and disjuncts share them
                boxes[at] = index.get((tuple(d.exact_lo), tuple(d.exact_hi)))
            for b, p, rows in same[boxes[at], frozenset(keys)]:
                self.places[g].append((b, p))
                for k, key in enumerate(keys):
                    self.rows[form + k].append((p, rows[key]))
            form += max(1, len(keys))


def trees(prop: Property, pieces: Pieces, net: Network, trail: Trail, *, rounds: bool) -> list[Draft]:
    """A tree for each of the search's; pieces that one bound refuted are refuted at a root. What has no tree is left to the checker."""
    numbers, relus = PieceNumbers(prop, pieces), [net.sizes[k] for k, op in enumerate(net.ops) if op.kind == "relu"]
    same = [size for _, size in trail.relus] == relus
    planted = [p for p in trail.planted if numbers.places[p.groups[0]] and (same or not p.signs)]
    made = _plant(planted, trail, numbers, net.sizes, rounds)
    of = {(d.box, p): d for d in made for p in d.own}
    first = {b: d for (b, _), d in reversed(of.items())}
    for b, group in enumerate(pieces.values()):
        for p in range(len(group)):
            if (b, p) not in of:
                d = of[b, p] = first.setdefault(b, Draft(b, []))
                d.own.append(p)
    drafts, whole = list({id(d): d for d in (*made, *first.values())}.values()), defaultdict[int, list[tuple[int, int, int]]](list)
    for g, (form, chosen) in trail.bounded.items():
        for b, p in numbers.places[g]:
            d = of[b, p]
            whole[id(d)] += [(0, p, r) for at, r in numbers.rows[form] if at == p]
            if chosen or d.inner[0] < 0:
                d.inner[0], d.query[0] = np.maximum((d.inner[0], d.query[0]), whole_steps(sum(net.sizes)) if chosen else (0, 0))
    for d in drafts:
        d.closed = np.concatenate([np.array(whole[id(d)], np.int32).reshape(-1, 3), d.closed])
    return drafts


def _plant(planted: list[Planted], trail: Trail, numbers: PieceNumbers, sizes: list[int], rounds: bool) -> list[Draft]:
    """Trees of the search, whose nodes are numbered from above, each tree's after those of the tree before."""
    divided, at = trail.divisions(), np.full(trail.end, -1, np.int32)  # ~1 - k where record k divides a node; once it has one, its number
    for k in range(0, len(divided), SOME):
        some = divided["node"][k : k + SOME]
        at[some] = ~1 - np.arange(k, k + len(some))
    grown, first = list[Grown](), 0
    for p in planted:
        grown.append(_grow(p.root, divided, at, first, sizes[0]))
        first += len(grown[-1].split)
    closed = _list_closed(trail.refutations(), at, numbers)
    del at, divided
    made, end = list[Draft](), 0
    for p, g in zip(planted, grown, strict=True):
        begin, end = end, end + len(g.split)
        own = closed[slice(*np.searchsorted(closed[:, 0], (begin, end)))] - np.array([begin, 0, 0], np.int32)
        made.append(_draft(p, g, own, numbers, sizes, rounds, trail.tight))
    return made


@dataclass
class Grown:
    """A tree's nodes from above: how many each level has, and how they are divided."""

    counts: list[int]
    split: np.ndarray
    cut: np.ndarray


def _grow(root: int, divided: np.ndarray, at: np.ndarray, number: int, inputs: int) -> Grown:
    """Its nodes get numbers from this on."""
    level, counts, splits, cuts = np.array([root]), list[int](), list[np.ndarray](), list[np.ndarray]()
    while len(level):
        which = ~1 - at[level]
        begin = number + sum(counts)
        at[level] = np.arange(begin, begin + len(level))
        counts.append(len(level))
        need(sum(counts) <= NODES, f"a tree of more than {NODES:,} nodes, which no certificate holds", Refused)
        here = which >= 0
        records, split, cut = which[here], np.full(len(level), -1, np.int32), np.zeros(len(level))
        where = divided["split"][records]
        split[here], cut[here] = np.where(where < 0, inputs + ~where, where), divided["cut"][records]
        splits.append(split)
        cuts.append(cut)
        level = np.stack([divided["first"][records], divided["second"][records]], 1).ravel()
    return Grown(counts, np.concatenate(splits), np.concatenate(cuts))


def _list_closed(refuted: np.ndarray, number: np.ndarray, numbers: PieceNumbers) -> np.ndarray:
    """What was refuted in nodes that have numbers, [n, 3], in order: node, piece, row. A form is the row of all that say the same."""
    places = sorted({place for some in numbers.rows.values() for place in some})
    place, forms = {pair: k for k, pair in enumerate(places)}, max(numbers.rows, default=-1) + 1
    count = np.array([len(numbers.rows.get(f, ())) for f in range(forms)], np.int64)
    flat = np.array([place[pair] for f in range(forms) for pair in numbers.rows.get(f, ())], np.int64)
    begin = np.cumsum(count) - count
    keys = [np.empty(0, np.int64)]  # a node and a place in one number: nodes are fewer than 2^32, and so are places
    for k in range(0, len(refuted), SOME):
        some = refuted[k : k + SOME]
        some = some[(number[some["node"]] >= 0) & (some["form"] < forms)]
        each = count[some["form"]]
        before = np.cumsum(each) - each
        which = np.repeat(begin[some["form"]] - before, each) + np.arange(each.sum())
        keys.append(np.unique(np.repeat(number[some["node"]].astype(np.int64), each) << 32 | flat[which]))
    key = np.concatenate(keys)
    del keys
    key.sort()
    key = key[np.diff(key, prepend=-1) > 0]
    found = np.empty((len(key), 3), np.int32)
    found[:, 0], found[:, 1:] = key >> 32, np.array(places, np.int32).reshape(-1, 2)[key & 0xFFFFFFFF]
    return found


def _draft(
    planted: Planted, grown: Grown, closed: np.ndarray, numbers: PieceNumbers, sizes: list[int], rounds: bool, tight: bool
) -> Draft:
    """A node is bounded where something is refuted, and where signs divide its box, since it holds below. Where executions round, the
    first on every path is so with what intervals decide too, which holds below as well: errors are charged by magnitudes. Boxes that
    inputs divide pay for it where the search did too, which is `tight`.
    """
    places = [place for g in planted.groups for place in numbers.places[g]]
    busy, cells = grown.split < 0, sum(sizes)
    busy[closed[:, 0]] = True
    steps = part_steps(cells) if planted.signs else (0, 0)
    inner, query = np.full(len(busy), -1, np.int32), np.zeros(len(busy), np.int32)
    inner[busy], query[busy] = steps
    if planted.signs:
        inner[0], query[0] = whole_steps(cells)
        inner[0] += TIGHT * rounds
    elif rounds and tight:
        inner[_first_busy(grown, busy)] += TIGHT
    return Draft(places[0][0], sorted({p for b, p in places if b == places[0][0]}), grown.split, grown.cut, inner, query, closed)


def _first_busy(grown: Grown, busy: np.ndarray) -> np.ndarray:
    """The first nodes on every path that are bounded."""
    found, begun, end = list[np.ndarray](), np.zeros(1, dtype=bool), 0
    for count in grown.counts:
        here = slice(end, end := end + count)
        found.append(busy[here] & ~begun)
        begun = np.repeat((begun | busy[here])[grown.split[here] >= 0], 2)
    return np.concatenate(found)
