"""What the engine left of a proof as the trees of a certificate, by the checker's own numbers of pieces, rows, inputs and neurons."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np

from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import part_steps, whole_steps
from polytriton.checker import TIGHT
from polytriton.checker_files import Network, Pieces
from polytriton.frontend.query import Property, Row
from polytriton.prove.trail import Planted, Trail

Place = tuple[int, int]  # a box and a piece of it; or a piece and a row of it
Key = tuple[tuple[int, Fraction], ...]  # a row, divided by the magnitude of its first coefficient; the right-hand side stands last
LAST = 1 << 40


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


def trees(prop: Property, pieces: Pieces, net: Network, trail: Trail, float32: bool) -> list[Draft]:
    """A tree for each of the search's; pieces that one bound refuted are refuted at a root. What has no tree is left to the checker."""
    numbers, relus = PieceNumbers(prop, pieces), [net.sizes[k] for k, op in enumerate(net.ops) if op.kind == "relu"]
    same = [size for _, size in trail.relus] == relus
    planted = [p for p in trail.planted if numbers.places[p.groups[0]] and (same or not p.signs)]
    made = [_tree(p, trail, numbers, net.sizes, float32 and trail.tight) for p in planted]
    of = {(d.box, p): d for d in made for p in d.own}
    first = {b: d for (b, _), d in reversed(of.items())}
    for b, group in enumerate(pieces.values()):
        for p in range(len(group)):
            if (b, p) not in of:
                d = of[b, p] = first.setdefault(b, Draft(b, []))
                d.own.append(p)
    for g, (form, chosen) in trail.bounded.items():
        for b, p in numbers.places[g]:
            d = of[b, p]
            d.closed += [(0, p, r) for at, r in numbers.rows[form] if at == p]
            if chosen or d.inner[0] < 0:
                d.inner[0], d.query[0] = np.maximum((d.inner[0], d.query[0]), whole_steps(sum(net.sizes)) if chosen else (0, 0))
    return list({id(d): d for d in (*made, *first.values())}.values())


def _tree(planted: Planted, trail: Trail, numbers: PieceNumbers, sizes: list[int], tight: bool) -> Draft:
    """Its nodes from above. A node is bounded where something is refuted, and where signs divide its box, since it holds below. `tight`:
    the first on every path is so with what intervals decide too, which holds below as well.
    """
    places = [place for g in planted.groups for place in numbers.places[g]]
    parent, split, cut, first, second = trail.divisions()
    at = np.full(trail.end, -1)  # which division is each node's
    at[parent] = np.arange(len(parent))
    level, levels = np.array([planted.root]), list[np.ndarray]()
    while len(level):
        levels.append(level)
        some = at[level]
        level = np.stack([first[some[some >= 0]], second[some[some >= 0]]], 1).ravel()
    nodes = np.concatenate(levels)
    number, which = np.full(trail.end, -1), at[nodes]
    number[nodes], divided = np.arange(len(nodes)), which >= 0
    where, cuts = np.full(len(nodes), -1), np.zeros(len(nodes))
    where[divided], cuts[divided] = split[which[divided]], cut[which[divided]]
    where[divided] = np.where(where[divided] < 0, sizes[0] + ~where[divided], where[divided])
    draft = Draft(places[0][0], sorted({p for b, p in places if b == places[0][0]}), where, cuts)
    node, form = trail.refutations()
    mine = number[node] >= 0
    for n, f in zip(number[node[mine]].tolist(), form[mine].tolist(), strict=True):
        draft.closed += [(n, p, r) for p, r in numbers.rows[f]]
    busy, cells = ~divided, sum(sizes)
    busy[[n for n, _, _ in draft.closed]] = True
    steps = part_steps(cells) if planted.signs else (0, 0)
    draft.inner, draft.query = np.where(busy, steps[0], -1), np.where(busy, steps[1], 0)
    if planted.signs:
        draft.inner[0], draft.query[0] = whole_steps(cells)
    elif tight:
        begun = np.zeros(len(nodes), dtype=bool)  # whether it is bounded, or what it is part of
        draft.inner[0] += TIGHT * busy[0]
        begun[0], children = busy[0], 2 * np.cumsum(divided) - 1
        for n in np.flatnonzero(divided).tolist():
            for child in (children[n], children[n] + 1):
                draft.inner[child] += TIGHT * (busy[child] and not begun[n])
                begun[child] = begun[n] or busy[child]
    return draft
