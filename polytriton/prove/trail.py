"""How a query was proved, as far as a certificate wants to know: what refuted each group, and how a search divided what one bound left.

Nothing here is part of a proof: whoever checks a certificate bounds every node anew.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from polytriton.prove.notes import Notes

DIVIDED = (("node", "<i8"), ("split", "<i8"), ("cut", "<f8"), ("first", "<i8"), ("second", "<i8"))  # and its children
CLOSED = (("node", "<i8"), ("form", "<i8"))


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
    `relus`, of such sizes, in the IR's order, one after the other. `folder`: where what a whole search notes lies; without one it stays in
    memory. `first`: the number of the first node. One that is not `wanted` gives numbers and notes nothing; one that is `lost`, and says
    why, does so from then on.
    """

    folder: Path | None = None
    first: int = 0
    wanted: bool = True
    relus: tuple[tuple[str, int], ...] = ()
    bounded: dict[int, tuple[int, bool]] = field(default_factory=dict)  # group: form that a bound of the whole box refutes, slopes chosen?
    planted: list[Planted] = field(default_factory=list)
    lost: str = ""
    tight: bool = False  # rounding stood in the way: what intervals decide was bounded too
    _named: int = 0  # of numbers, after the first

    def __post_init__(self) -> None:
        self._divided, self._closed = Notes(DIVIDED, self.folder), Notes(CLOSED, self.folder)

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

    def divide(self, node: np.ndarray, split: np.ndarray, cut: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        self._note(lambda: self._divided.add(node, split, cut, first, second))

    def close(self, node: np.ndarray, form: np.ndarray) -> None:
        """What these forms are about is refuted in these nodes."""
        self._note(lambda: self._closed.add(node, form))

    def add(self, other: Trail) -> None:
        """What another, of a batch, found out about nodes of this one."""
        self.tight |= other.tight
        self._note(lambda: self._divided.extend(other._divided))
        self._note(lambda: self._closed.extend(other._closed))

    def _note(self, what: Callable[[], None]) -> None:
        """The search goes on where the disk takes no more."""
        if not self.wanted or self.lost:
            return
        try:
            what()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = f"notes of the search could not be written to {self.folder}: {error.strerror or error}"
        self._divided.clear()
        self._closed.clear()

    def pack(self) -> bytes:
        """As it travels."""
        divided, closed = self.divisions(), self.refutations()
        state = self.first, self._named, self.lost, self.tight
        rest = [*state, self.relus, [*self.bounded.items()], [astuple(p) for p in self.planted]]
        file = io.BytesIO()
        np.savez(file, divided, closed, np.frombuffer(json.dumps(rest).encode(), np.uint8))
        return file.getvalue()

    @staticmethod
    def unpack(data: bytes) -> Trail:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            divided, closed, rest = (file[f"arr_{k}"] for k in range(3))
        first, named, lost, tight, relus, bounded, planted = json.loads(rest.tobytes())
        trail = Trail(None, first, True, tuple((name, size) for name, size in relus), {g: (f, chosen) for g, (f, chosen) in bounded})
        trail.planted = [Planted(box, root, tuple(groups), signs) for box, root, groups, signs in planted]
        trail.lost, trail.tight, trail._named = lost, tight, named
        trail._divided.add(*(divided[name] for name, _ in DIVIDED))
        trail._closed.add(*(closed[name] for name, _ in CLOSED))
        return trail

    @property
    def end(self) -> int:
        """The first number that no node has."""
        return self.first + self._named

    def divisions(self) -> np.ndarray:
        """Records of what was divided, fields as DIVIDED has them."""
        return self._records(self._divided)

    def refutations(self) -> np.ndarray:
        """Records of what was refuted where, fields as CLOSED has them."""
        return self._records(self._closed)

    def _records(self, notes: Notes) -> np.ndarray:
        try:
            return notes.records()
        except OSError as error:  # the last block
            self._lose(error)
            return notes.records()


@dataclass(frozen=True)
class Branch:
    """A trail for a search of one box, which knows forms and groups by numbers of its own."""

    trail: Trail
    box: int
    forms: np.ndarray
    groups: np.ndarray

    @staticmethod
    def of_none(forms: int) -> Branch:
        """Nobody wants to know."""
        return Branch(Trail(wanted=False), 0, np.arange(forms), np.arange(forms))

    def plant(self, groups: Sequence[int]) -> int:
        """A tree divided by signs; returns its root's number."""
        return self.trail.plant(self.box, self.groups[list(groups)].tolist(), signs=True)

    def close(self, node: np.ndarray, form: np.ndarray) -> None:
        self.trail.close(node, self.forms[form])
