"""What is aimed at: properties, their pieces, and the pieces' rows as one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from polytriton.frontend.query import Disjunct, Property
from polytriton.runtime.attack.ball import Room
from polytriton.runtime.attack.box import Box
from polytriton.runtime.attack.replay import UnsafePoint


@dataclass(eq=False)
class Aim:
    """One property, and what a failed proof knows about it.

    `pieces`: disjuncts not proved empty (None: any). `slopes`: for a disjunct those of linear lower bounds of its rows over
    the inputs, [bounds, inputs]: where a bound is least is the corner worth trying first. `points` are tried first too.
    """

    prop: Property
    pieces: Sequence[int] | None = None
    slopes: Mapping[int, np.ndarray] = field(default_factory=dict)
    points: np.ndarray | None = None
    found: UnsafePoint | None = None
    depth: float = 0.0  # how far inside the unsafe set the found point lies, by the model's own answer
    replays: int = 0

    def starts(self) -> np.ndarray:
        given = () if self.points is None else self.points
        return np.asarray(given, dtype=np.float64).reshape(-1, self.prop.n_in)


@dataclass(eq=False)
class Target:
    """One disjunct, the room that it leaves for the model's numbers, and the best of what was seen of it."""

    aim: Aim
    index: int
    disjunct: Disjunct
    room: Room
    thin: bool = False  # no point of the box is made of the model's numbers: the box is of those nearest to it
    least: float = float("inf")
    denied: float = float("inf")  # the least residual that was replayed although the search's own arithmetic had not reached the piece
    start: np.ndarray | None = None
    queue: list[np.ndarray] = field(default_factory=list)  # where descents begin, before random points

    @property
    def box(self) -> Box:
        return self.room.box

    def corners(self) -> np.ndarray:
        """Where the linear bounds are least, [bounds, inputs]."""
        slopes = self.aim.slopes.get(self.index, np.zeros((0, self.box[0].size)))
        return self.room.least(np.asarray(slopes, dtype=np.float64))


class TargetRows:
    """The rows of some targets in one tensor, one target a point: a target is reached where all its residuals are at most zero."""

    def __init__(self, targets: Sequence[Target], like: Tensor, n_out: int) -> None:
        rows = [t.disjunct.rows for t in targets]
        shape = (len(rows), max(1, *map(len, rows)))
        C, const = np.zeros((*shape, n_out)), np.full(shape, 1e30)  # a row that is not there holds everywhere
        D = np.zeros((*shape, like.shape[1])) if any(r.x for rs in rows for r in rs) else None
        for i, rs in enumerate(rows):
            for k, row in enumerate(rs):
                const[i, k] = row.const
                for j, c in row.y:
                    C[i, k, j] = c
                for j, c in row.x:
                    assert D is not None
                    D[i, k, j] = c
        self.C, self.const = like.new_tensor(C), like.new_tensor(const)
        self.D = None if D is None else like.new_tensor(D)

    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        """[points, rows]; one target serves any number of points."""
        made = (self.C @ y[:, :, None])[:, :, 0] - self.const
        return made if self.D is None else made + (self.D @ x[:, :, None])[:, :, 0]
