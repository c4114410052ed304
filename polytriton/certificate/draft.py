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
    closed: list[tuple[int, int, int]] = field(default_factory=list)

    def arrays(self) -> dict[str, Array]:
        closed = sorted(set(self.closed))
        columns = {
            "own": [self.box, *self.own], "split": self.split, "cut": self.cut, "inner": self.inner, "query": self.query,
            **{name: [c[k] for c in closed] for k, name in enumerate(("node", "piece", "row"))},
        }  # fmt: skip
        return {name: np.array(columns[name], dtype=kind) for name, kind in TENSORS.items()}
