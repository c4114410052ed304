"""Trees of certificates as these tests draw them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from polytriton.checker import TENSORS, Array


@dataclass
class Node:
    """How a node is bounded (`inner`, `query`), the pieces with the rows that refute them there, and how it is divided."""

    inner: int = -1
    query: int = 0
    closed: list[tuple[int, int]] = field(default_factory=list)
    split: int = -1
    cut: float = 0.0
    children: tuple[Node, Node] | None = None

    def divide(self, split: int, cut: float, first: Node | None = None, second: Node | None = None) -> tuple[Node, Node]:
        self.split, self.cut, self.children = split, cut, (first or Node(), second or Node())
        return self.children

    def arrays(self, box: int = 0, own: Sequence[int] | None = None) -> dict[str, Array]:
        """Nodes are numbered from above, so that those of the j-th divided one are 2 j + 1 and 2 j + 2. By default it is about all pieces
        up to the last one that it names.
        """
        nodes = [self]
        for node in nodes:
            nodes += node.children or ()
        closed = [(k, piece, row) for k, node in enumerate(nodes) for piece, row in node.closed]
        columns = {name: [getattr(n, name) for n in nodes] for name in ("split", "cut", "inner", "query")}
        columns |= {name: [c[k] for c in closed] for k, name in enumerate(("node", "piece", "row"))}
        columns["own"] = [box, *(range(max((p for _, p, _ in closed), default=0) + 1) if own is None else own)]
        return {name: np.array(columns[name], dtype=kind) for name, kind in TENSORS.items()}
