"""A tree of a certificate before it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polytriton.checker import TENSORS
from polytriton.checker_files import Array


@dataclass
class Draft:
    """Of which box and pieces it is; its nodes from above, those of the j-th divided one being 2 j + 1 and 2 j + 2: how each is divided
    and bounded; and what is refuted where: node, piece, row. By default a root.
    """

    box: int
    own: list[int]
    split: Array = field(default_factory=lambda: np.full(1, -1))
    cut: Array = field(default_factory=lambda: np.zeros(1))
    inner: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    query: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    closed: Array = field(default_factory=lambda: np.zeros((0, 3), np.int32))

    def arrays(self) -> dict[str, Array]:
        """As the file has them: what is refuted by ascending nodes, and once."""
        closed = self.closed[np.lexsort(self.closed.T[::-1])]
        closed = closed[np.diff(closed, axis=0, prepend=-1).any(1)]
        columns = {
            "own": [self.box, *self.own], "split": self.split, "cut": self.cut, "inner": self.inner, "query": self.query,
            **{name: closed[:, k] for k, name in enumerate(("node", "piece", "row"))},
        }  # fmt: skip
        return {name: np.ascontiguousarray(columns[name], dtype=kind) for name, kind in TENSORS.items()}
