"""The tree of a certificate as its author builds it, and the arrays that are written of it."""

from __future__ import annotations

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

    def arrays(self) -> dict[str, Array]:
        """Nodes are numbered from above, so that those of the j-th divided one are 2 j + 1 and 2 j + 2."""
        nodes = [self]
        for node in nodes:
            nodes += node.children or ()
        closed = [(k, piece, row) for k, node in enumerate(nodes) for piece, row in node.closed]
        columns = [[n.split for n in nodes], [n.cut for n in nodes], [n.inner for n in nodes], [n.query for n in nodes]]
        columns += [[c[k] for c in closed] for k in range(3)]
        return {name: np.array(values, dtype=kind) for (name, kind), values in zip(TENSORS.items(), columns, strict=True)}
