"""What a network can answer over a box, as data: a union of polytopes, each given by least values of the same linear forms."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UsageError
from polytriton.guard import guard_class
from polytriton.whole import save_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

U = 2.0**-53
Plane = tuple[int, int]  # two outputs


@guard_class
@dataclass(frozen=True, eq=False, repr=False)
class Reach:
    """Holds every output of the executions that `semantics` covers, for inputs of the box that was asked.

    The set is the union over pieces p of {y : directions y >= least[p]}; the piece's inputs lie between input_lo[p] and input_hi[p], and
    all pieces' inputs together are the box. The first rows of `directions` are the outputs, then their negatives. planes: pairs of outputs
    in which more directions were asked. samples: outputs of some executions, [count, outputs], to look at. gap: how far, at most, a bound
    lies beyond what points of its piece were seen to reach, or outputs bend within a piece, as a share of the form's range. ended_by: ""
    where no piece has a gap worth another cut, else "pieces" or "time".
    """

    network: str
    semantics: str
    planes: tuple[Plane, ...]
    directions: np.ndarray
    least: np.ndarray
    input_lo: np.ndarray
    input_hi: np.ndarray
    samples: np.ndarray
    gap: float
    ended_by: str
    seconds: float

    def __repr__(self) -> str:
        from polytriton.results.oneline import reach_line

        return reach_line(self)

    @property
    def outputs(self) -> int:
        return self.directions.shape[1]

    @property
    def lo(self) -> np.ndarray:
        """The least value of every output."""
        return np.asarray(self.least[:, : self.outputs].min(0))

    @property
    def hi(self) -> np.ndarray:
        """The greatest value of every output."""
        return np.asarray(-self.least[:, self.outputs : 2 * self.outputs].min(0))

    def contains(self, y: ArrayLike) -> bool:
        """Whether the output y lies in one of the pieces, decided in exact rationals."""
        point = np.asarray(y, dtype=np.float64).ravel()
        if point.size != self.outputs or not np.isfinite(point).all():
            raise UsageError(f"a point of {point.size} numbers is no output of {self.outputs}", f"give {self.outputs} finite numbers")
        value, size = self.directions @ point, np.abs(self.directions) @ np.abs(point)
        near = 4 * (point.size + 2) * U * size + 1e-300  # more than the sum's own rounding
        held = value - near >= self.least
        for row in np.flatnonzero((~held & (value + near >= self.least)).any(0)):
            pairs = zip(self.directions[row].tolist(), point.tolist(), strict=True)
            exact = sum((Fraction(c) * Fraction(v) for c, v in pairs), start=Fraction(0))
            held[:, row] = [b == -math.inf or (b < math.inf and exact >= Fraction(b)) for b in self.least[:, row].tolist()]
        return bool(held.all(1).any())

    def polygons(self, plane: Plane) -> list[np.ndarray]:
        """The pieces seen in two outputs, each as corners [count, 2] in order; rounded, for drawing. Pieces without an end are left out."""
        mine = np.array(plane)
        rest = np.delete(np.arange(self.outputs), mine)
        rows = np.flatnonzero(~self.directions[:, rest].any(1))
        found = []
        for least in self.least[:, rows]:
            if np.isfinite(least).all():
                found.append(_polygon(self.directions[np.ix_(rows, mine)], least))
        return [p for p in found if len(p)]

    def to_json(self) -> str:
        """One JSON document; numbers are written so that they are read back as they are, a missing bound as null."""
        pieces = [
            {"input_lo": lo.tolist(), "input_hi": hi.tolist(), "least": _numbers(least)}
            for lo, hi, least in zip(self.input_lo, self.input_hi, self.least, strict=True)
        ]
        document = {
            "network": self.network, "semantics": self.semantics, "outputs": self.outputs, "lo": _numbers(self.lo), "hi": _numbers(self.hi),
            "planes": self.planes, "gap": _numbers([self.gap])[0], "ended_by": self.ended_by, "seconds": self.seconds,
            "directions": self.directions.tolist(), "pieces": pieces,
        }  # fmt: skip
        return json.dumps(document) + "\n"

    def svg(self, planes: Sequence[Plane] | None = None) -> str:
        """A picture of the pieces in each of these planes, over one another, with the samples as dots; by default all that were asked."""
        import polytriton  # pages draw, and know results: the package's face knows where

        return polytriton.draw_reach(self, self.planes if planes is None else tuple(planes))

    def _repr_svg_(self) -> str | None:
        """What a notebook shows."""
        return self.svg() if self.planes else None

    def save(self, path: str | os.PathLike[str], *, planes: Sequence[Plane] | None = None, overwrite: bool = False) -> Path:
        """Writes the picture (.svg) or the document (.json), whole or not at all."""
        kind = saved_kind(path)
        text = self.to_json() if kind == ".json" else self.svg(planes)
        return save_whole(Path(path), text.encode(), "the reachable set", overwrite=overwrite)


def saved_kind(path: str | os.PathLike[str]) -> str:
    """By its ending, what a file is to hold."""
    kind = Path(path).suffix.lower()
    if kind not in (".svg", ".json"):
        raise UsageError(f"no reachable set is written as {os.fspath(path)}", 'name the file like "reach.svg" or "reach.json"')
    return kind


def _numbers(values: np.ndarray | Sequence[float]) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in map(float, values)]


def _polygon(rows: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Corners of {v : rows v >= least}, which the first rows bound: a rectangle, cut row by row."""
    ends = {}
    for (a, b), least_of in zip(rows.tolist(), least.tolist(), strict=True):
        if (a, b) in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            ends[a, b] = (a + b) * least_of
    (x0, x1), (y0, y1) = (ends[1, 0], ends[-1, 0]), (ends[0, 1], ends[0, -1])
    corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    for (a, b), least_of in zip(rows.tolist(), least.tolist(), strict=True):
        over = [a * x + b * y - least_of + 1e-9 * (abs(a * x) + abs(b * y)) for x, y in corners]  # a line is not cut away by rounding
        kept = []
        for k, here in enumerate(corners):
            there, p, q = corners[k - 1], over[k - 1], over[k]
            if (p < 0) != (q < 0):
                t = p / (p - q)
                kept.append((there[0] + t * (here[0] - there[0]), there[1] + t * (here[1] - there[1])))
            if q >= 0:
                kept.append(here)
        corners = kept
    return np.array(corners).reshape(-1, 2)
