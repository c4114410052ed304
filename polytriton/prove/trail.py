"""How a query was proved, as far as a certificate wants to know: what refuted each group, and how a search divided what one bound left.

Nothing here is part of a proof: whoever checks a certificate bounds every node anew.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import numpy as np

EACH = 40  # bytes that a divided node takes here


@dataclass
class Planted:
    """A tree over one box: the number of its root, the groups it refutes, and whether signs of neurons divide it, not inputs."""

    box: int
    root: int
    groups: tuple[int, ...]
    signs: bool


@dataclass
class Trail:
    """Nodes of all trees are numbered together. Of `split` the numbers from 0 on are inputs, ~n is neuron n: cells of the ReLUs named
    `relus`, of such sizes, in the IR's order, one after the other. `most`: bytes; a longer trail is given up, and is `lost`. `first`: the
    number of the first node.
    """

    most: int
    first: int = 0
    relus: tuple[tuple[str, int], ...] = ()
    bounded: dict[int, tuple[int, bool]] = field(default_factory=dict)  # group: form that a bound of the whole box refutes, slopes chosen?
    planted: list[Planted] = field(default_factory=list)
    lost: bool = False
    tight: bool = False  # rounding stood in the way: what intervals decide was bounded too
    _named: int = 0  # of numbers, after the first
    _divided: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    _closed: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    _bytes: int = 0

    @classmethod
    def within(cls, memory: int) -> Trail:
        """A sixteenth of the budget is for notes."""
        return cls(memory // 16)

    def bound(self, groups: np.ndarray, forms: np.ndarray, chosen: bool = False) -> None:
        """These groups were refuted over their whole boxes, by these forms."""
        for g, f in zip(groups.tolist(), forms.tolist(), strict=True):
            self.bounded.setdefault(g, (f, chosen))

    def plant(self, box: int, groups: Sequence[int], *, signs: bool) -> int:
        """A new tree; returns its root's number."""
        self.planted.append(Planted(box, int(self.names(1)[0]), tuple(groups), signs))
        return self.planted[-1].root

    def names(self, count: int) -> np.ndarray:
        """Numbers that no node has yet."""
        self._named += count
        return self.first + np.arange(self._named - count, self._named)

    def divide(self, parent: np.ndarray, split: np.ndarray, cut: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        self._bytes += EACH * len(parent)
        self.lost |= self._bytes > self.most
        if not self.lost:
            self._divided.append((parent, split, cut, first, second))

    def close(self, node: np.ndarray, form: np.ndarray) -> None:
        """What these forms are about is refuted in these nodes."""
        if not self.lost:
            self._closed.append((node, form))

    def add(self, other: Trail) -> None:
        """What another found out about nodes of this one."""
        self._bytes += other._bytes
        self.lost |= other.lost or self._bytes > self.most
        self.tight |= other.tight
        self._divided += [] if self.lost else other._divided
        self._closed += [] if self.lost else other._closed

    def branch(self) -> Trail:
        """For a search that knows forms by numbers of its own, of one box."""
        return Trail(self.most - self._bytes, self.end)

    def adopt(self, other: Trail, box: int, forms: np.ndarray, groups: np.ndarray) -> None:
        """What a branch found out, in this trail's own numbers of forms and groups."""
        self._named += other._named
        self.relus = other.relus
        self.planted += [Planted(box, p.root, tuple(groups[list(p.groups)].tolist()), p.signs) for p in other.planted]
        other._closed = [(node, forms[form]) for node, form in other._closed]
        self.add(other)

    def packed(self) -> bytes:
        """As it travels."""
        state = self.most, self.first, self._named, self.lost, self.tight
        rest = [*state, self.relus, [*self.bounded.items()], [astuple(p) for p in self.planted]]
        file = io.BytesIO()
        np.savez(file, *self.divisions(), *self.refutations(), np.frombuffer(json.dumps(rest).encode(), np.uint8))
        return file.getvalue()

    @staticmethod
    def unpacked(data: bytes) -> Trail:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            *arrays, rest = (file[f"arr_{k}"] for k in range(8))
        most, first, named, lost, tight, relus, bounded, planted = json.loads(rest.tobytes())
        trail = Trail(most, first, tuple((name, size) for name, size in relus), {g: (f, chosen) for g, (f, chosen) in bounded})
        trail.planted = [Planted(box, root, tuple(groups), signs) for box, root, groups, signs in planted]
        trail.lost, trail.tight = lost, tight
        trail._named, trail._divided, trail._closed = named, [tuple(arrays[:5])], [tuple(arrays[5:])]
        return trail

    @property
    def end(self) -> int:
        """The first number that no node has."""
        return self.first + self._named

    def divisions(self) -> tuple[np.ndarray, ...]:
        """Of every divided node its number, split, cut, and its children's numbers."""
        kinds = (np.int64, np.int64, np.float64, np.int64, np.int64)
        return tuple(np.concatenate([np.zeros(0, kind), *(d[k] for d in self._divided)]) for k, kind in enumerate(kinds))

    def refutations(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes, and the forms refuted there."""
        both = [np.concatenate([np.zeros(0, np.int64), *(c[k] for c in self._closed)]) for k in (0, 1)]
        return both[0], both[1]
