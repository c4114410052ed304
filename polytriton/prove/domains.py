"""What a search has still to refute: sub-boxes of the property's boxes, each with the unsafe pieces that may reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from polytriton.prove.questions import Questions
from polytriton.prove.trail import Trail


@dataclass
class Domains:
    """Parts of boxes [n, inputs]. `root` is the box of the questions that a part belongs to, `open` which of that box's groups it may
    still hold an unsafe point of [n, groups of a box], `bound` the least lower bound that left one of them open, `depth` its cuts.
    `layers` are bounds of the network's nodes that a box around the part has given, [n, 2 cells], float32 rounded outward; no cells where
    they are not kept. `name`: its number in the trail.
    """

    lo: np.ndarray
    hi: np.ndarray
    root: np.ndarray
    open: np.ndarray
    bound: np.ndarray
    depth: np.ndarray
    layers: np.ndarray
    name: np.ndarray

    def __len__(self) -> int:
        return len(self.root)

    def pick(self, which: np.ndarray) -> Domains:
        return Domains(*(getattr(self, f.name)[which] for f in fields(self)))

    @staticmethod
    def join(*parts: Domains) -> Domains:
        return Domains(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Domains)))

    @property
    def each(self) -> int:
        """Bytes that one takes."""
        return 16 * self.lo.shape[1] + self.open.shape[1] + 28 + 4 * self.layers.shape[1]


def _without_layers(domains: Domains) -> Domains:
    return replace(domains, layers=domains.layers[:, :0])


class Waiting:
    """Domains that wait. What is taken makes room for what comes: the nodes' bounds, nearly all that a domain holds, stay where they are
    from the one to the other, in blocks of so many bytes.
    """

    BLOCK = 1 << 24

    def __init__(self, domains: Domains) -> None:
        self.each, self._cells = domains.each, domains.layers.shape[1]
        self._rows = max(1, self.BLOCK // (4 * self._cells or 1 << 12))
        self._blocks: list[np.ndarray] = []
        self._free = np.zeros(0, dtype=np.int64)
        none = np.zeros(0, dtype=np.int64)
        self._few, self._at = _without_layers(domains.pick(none)), none
        self.add(domains)

    def __len__(self) -> int:
        return len(self._few)

    @property
    def lo(self) -> np.ndarray:
        return self._few.lo

    @property
    def hi(self) -> np.ndarray:
        return self._few.hi

    @property
    def root(self) -> np.ndarray:
        return self._few.root

    @property
    def open(self) -> np.ndarray:
        return self._few.open

    @property
    def bound(self) -> np.ndarray:
        return self._few.bound

    @property
    def depth(self) -> np.ndarray:
        return self._few.depth

    def add(self, more: Domains) -> None:
        """They come last."""
        while len(self._free) < len(more):
            first = self._rows * len(self._blocks)
            self._blocks.append(np.empty((self._rows, self._cells), dtype=np.float32))
            self._free = np.concatenate([self._free, np.arange(first, first + self._rows)])
        at, self._free = self._free[: len(more)], self._free[len(more) :]
        for block, mine in self._shares(at):
            block[at[mine] % self._rows] = more.layers[mine]
        self._few = Domains.join(self._few, _without_layers(more))
        self._at = np.concatenate([self._at, at])

    def take(self, which: np.ndarray) -> Domains:
        """Those at these places, in the order of their places; the others wait on in theirs."""
        taken = np.zeros(len(self), dtype=bool)
        taken[which] = True
        at, found = self._at[taken], self._few.pick(taken)
        found.layers = np.empty((len(found), self._cells), dtype=np.float32)
        for block, mine in self._shares(at):
            found.layers[mine] = block[at[mine] % self._rows]
        self._few, self._at = self._few.pick(~taken), self._at[~taken]
        self._free = np.concatenate([self._free, at])
        return found

    def _shares(self, at: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The blocks in which these places lie, each with which of them."""
        for k in np.unique(at // self._rows):
            yield self._blocks[k], np.flatnonzero(at // self._rows == k)


@dataclass(frozen=True)
class Pieces:
    """The groups of every box of some questions, and the forms of every group. Groups of a box are numbered from 0: `groups[box, k]`
    is the questions' own number, -1 where the box has fewer. `forms[first[g]:first[g + 1]]` are the forms of group g.
    """

    groups: np.ndarray
    forms: np.ndarray
    first: np.ndarray

    @staticmethod
    def of_questions(q: Questions) -> Pieces:
        count = int(q.group.max()) + 1
        forms = np.argsort(q.group, kind="stable")
        first = np.searchsorted(q.group[forms], np.arange(count + 1))
        box = q.image[forms[first[:-1]]]
        members = [np.flatnonzero(box == b) for b in range(len(q.lo))]
        groups = np.full((len(q.lo), max(map(len, members))), -1)
        for b, mine in enumerate(members):
            groups[b, : len(mine)] = mine
        return Pieces(groups, forms, first)

    def roots(self, q: Questions, settled: np.ndarray, cells: int, trail: Trail) -> Domains:
        """The boxes in which some group is not settled, whole, with so many cells of which nothing is known."""
        held = (self.groups >= 0) & ~settled[self.groups]
        boxes = np.flatnonzero(held.any(1))
        n = len(boxes)
        layers = np.repeat(np.array([[-np.inf], [np.inf]], dtype=np.float32), cells, axis=1).reshape(1, -1)
        whole = np.repeat(layers, n, axis=0)
        names = [trail.plant(b, self.groups[b][held[b]].tolist(), signs=False) for b in boxes.tolist()]
        bound, depth = np.full(n, -np.inf), np.zeros(n, dtype=np.int32)
        return Domains(q.lo[boxes], q.hi[boxes], boxes, held[boxes], bound, depth, whole, np.array(names, dtype=np.int64))

    def rows(self, domains: Domains | Waiting) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The forms that are to be bounded: for each its domain, its group within the domain's box, and its place in the questions."""
        at, local = np.nonzero(domains.open)
        group = self.groups[domains.root[at], local]
        sizes = self.first[group + 1] - self.first[group]
        begin = np.repeat(self.first[group] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        return np.repeat(at, sizes), np.repeat(local, sizes), self.forms[begin + np.arange(int(sizes.sum()))]
