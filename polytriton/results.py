"""What a verifier answers: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polytriton.guard import guarded_class

if TYPE_CHECKING:
    import pandas

VERDICTS = ("unsat", "sat", "unknown", "timeout")
ENDS = ("", "method", "query-time", "process-time", "memory", "worker")  # what may end a query: nothing but its answer, or one of these
ENDED_BY = {"unsat": "", "sat": "", "unknown": "method", "timeout": "query-time"}  # a query of its own


@dataclass(frozen=True, eq=False)
class Interval:
    """Bounds of one layer, [batch, *shape]."""

    lo: np.ndarray
    hi: np.ndarray


@guarded_class
@dataclass(frozen=True, eq=False)
class Bounds:
    """Output bounds [batch, outputs]; `layers` holds the bounds of every nonlinear operator's input by node name."""

    lo: np.ndarray
    hi: np.ndarray
    layers: dict[str, Interval] = field(default_factory=dict)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a box and neuron: layer, box, neuron, lo, hi; the outputs are the layer "output"."""
        from polytriton.show.frames import to_pandas

        return to_pandas(self)


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input of the unsafe set and what the original model answers there, replayed in onnxruntime."""

    x: np.ndarray
    y: np.ndarray


@guarded_class
@dataclass(frozen=True, eq=False)
class Picture:
    """The ball a result is about: the image [*shape] as it was given, its radius, and how pixels become network inputs."""

    pixels: np.ndarray
    epsilon: Fraction
    mean: tuple[Fraction, ...] = (Fraction(0),)
    std: tuple[Fraction, ...] = (Fraction(1),)

    @property
    def shown(self) -> np.ndarray:
        """The pixels as numbers; levels stand for level/255."""
        return self.pixels / 255.0 if self.pixels.dtype == np.uint8 else self.pixels

    def restored(self, x: np.ndarray) -> np.ndarray:
        """The pixels of a network input, to within rounding: x std + mean."""
        spread = (-1, 1, 1) if self.pixels.ndim == 3 else (-1,)
        mean, std = (np.array([float(v) for v in values]).reshape(spread) for values in (self.mean, self.std))
        return np.asarray(x, dtype=np.float64).reshape(self.pixels.shape) * std + mean


@dataclass(frozen=True)
class LayerStats:
    """What one program of the plan did for a query, all its boxes taken together.

    stage: "bound" (the layer `name` was refined), "interval" (the query on interval bounds), "query" (the query on refined bounds).
    unstable, width: neurons of undecided sign (None where a max pool reads them) and the mean of hi - lo, before and after refining.
    rows, left: rows that started, and those left after each checkpoint but the last.
    """

    name: str
    stage: str
    neurons: int = 0
    unstable: tuple[int, int] | None = None
    width: tuple[float | None, float | None] = (None, None)
    rows: int = 0
    left: tuple[int, ...] = ()
    seconds: float = 0.0


class Sample(NamedTuple):
    """Where a search stood after so many seconds; the fields are those of SearchStats."""

    seconds: float
    domains: int
    open: int
    depth: int
    worst: float | None
    share: float


class Level(NamedTuple):
    """How many parts of one depth are refuted, and how many are left. The others were divided."""

    refuted: int
    open: int


@dataclass(frozen=True)
class SearchStats:
    """What a search did. kind: what it divides, "input" or "neurons", or "slopes" where it chose them instead. domains: parts bounded,
    open: parts left, depth: most cuts of one.

    share: how much of the tree is refuted, a cut halving what it divides; worst: the least bound of the parts left. ended: "" where
    nothing was left, "sat", "time", "steps" where every step was made, or "rounding" where a part cannot be divided any more.
    samples: how it went, a few hundred at most; levels: the tree by depth.
    """

    kind: str
    domains: int
    open: int
    depth: int
    share: float
    worst: float | None
    seconds: float
    ended: str
    samples: tuple[Sample, ...] = ()
    levels: tuple[Level, ...] = ()


@guarded_class
@dataclass(frozen=True, eq=False)
class Result:
    """One query's verdict: unsat (the property holds, proved), sat (violated), unknown or timeout.

    margins: for each unsafe piece the best lower bound by which one of its rows is missed; positive means the piece is
    proved empty. For a classification there is one piece a rival label, in the order of `rivals`.
    picture: the image and its ball, where the query was made by `verify`.
    search: where one bound did not decide. The margin of a piece that it proved is the least bound of its parts.
    numerics: the verifier's own arithmetic, "folded" or "interval"; semantics is that of the executions certified.
    ended_by: what kept a query from being decided: "method" where every try was made, "query-time" where its time was over. Two runs
    may disagree on such verdicts alone. "process-time", "memory" and "worker" are said by those who run queries, in their records.
    statistics: the try that decided, else the first that refined bounds, layer by layer; empty where several images were proved together.
    """

    verdict: str
    margins: np.ndarray
    seconds: float
    counterexample: Counterexample | None = None
    label: int | None = None
    rivals: tuple[int, ...] = ()
    semantics: str = "float32"
    statistics: tuple[LayerStats, ...] = ()
    picture: Picture | None = None
    numerics: str = "folded"
    search: SearchStats | None = None
    ended_by: str = ""

    def to_pandas(self) -> pandas.DataFrame:
        """A table of one row; `polytriton.to_pandas` makes one of many results."""
        from polytriton.show.frames import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, the margins and, for a ball around an image, the pictures."""
        from polytriton.show.notebook import result_html

        return result_html(self)

    @property
    def margin(self) -> float:
        """The worst margin; +inf where there is nothing to prove."""
        return float(self.margins.min(initial=np.inf))
