"""What a verifier answers: plain data, which tells itself in a line (`oneline.py`), as a table (`frames.py`) and in a notebook."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, overload

import numpy as np

from polytriton.errors import UsageError
from polytriton.guard import guard_class

if TYPE_CHECKING:
    import pandas

VERDICTS = ("unsat", "sat", "unknown", "timeout")
ENDS = ("", "method", "query-time", "process-time", "memory", "worker")  # what may end a query: nothing but its answer, or one of these
ENDED_BY = {"unsat": "", "sat": "", "unknown": "method", "timeout": "query-time"}  # a query of its own


@dataclass(frozen=True, eq=False, repr=False)
class Interval:
    """Bounds of one layer, [batch, *shape]."""

    lo: np.ndarray
    hi: np.ndarray

    def __repr__(self) -> str:
        from polytriton.results.oneline import interval_line

        return interval_line(self)


@guard_class
@dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """Output bounds [batch, outputs]; `layers` holds the bounds of every nonlinear operator's input by node name."""

    lo: np.ndarray
    hi: np.ndarray
    layers: dict[str, Interval] = field(default_factory=dict)

    def __repr__(self) -> str:
        from polytriton.results.oneline import bounds_line

        return bounds_line(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a box and neuron: layer, box, neuron, lo, hi; the outputs are the layer "output"."""
        from polytriton.results.frames import to_pandas

        return to_pandas(self)


@dataclass(frozen=True, eq=False, repr=False)
class Counterexample:
    """An input of the unsafe set and what the original model answers there, replayed in onnxruntime."""

    x: np.ndarray
    y: np.ndarray

    def __repr__(self) -> str:
        from polytriton.results.oneline import counterexample_line

        return counterexample_line(self)


@guard_class
@dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """The ball a result is about: the image [*shape] as it was given, its radius, and how pixels become network inputs."""

    pixels: np.ndarray
    epsilon: Fraction
    mean: tuple[Fraction, ...] = (Fraction(0),)
    std: tuple[Fraction, ...] = (Fraction(1),)
    norm: str = "linf"

    def __repr__(self) -> str:
        from polytriton.results.oneline import picture_line

        return picture_line(self)

    @property
    def around(self) -> str:
        """Its radius in words: 1/2, or 1/2 in l2."""
        return str(self.epsilon) + (f" in {self.norm}" if self.norm != "linf" else "")

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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        from polytriton.results.oneline import search_line

        return search_line(self)


@guard_class
@dataclass(frozen=True, repr=False)
class Radius:
    """The bracket [proved, not_proved] in pixel space.

    proved: the largest radius a query proved; None where not even the image itself was. not_proved: the least radius above it at
    which a query failed, with its `verdict`; None where the whole pixel range is proved. finished: False where time ran out first.
    """

    proved: Fraction | None
    not_proved: Fraction | None = None
    verdict: str = ""
    finished: bool = True
    queries: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        from polytriton.results.oneline import radius_line

        return radius_line(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A table of one row; `polytriton.to_pandas` makes one of many radii."""
        from polytriton.results.frames import to_pandas

        return to_pandas(self)


@dataclass(frozen=True)
class Origin:
    """The question that a result answers, as far as a record must tell it.

    network: its file, or its name where it came from none; sha256 and output: of the model. name: the query's own. given: the label, where
    somebody named one. file, index: of the image. path, digest: of the property's file. answer: what the network says of the image as it
    is, where that was looked at.
    """

    network: str
    name: str
    sha256: str = ""
    output: str = ""
    dtype: str = ""
    candidates: str = ""
    method: str = ""
    timeout: float | None = None
    falsifier: bool = True
    seed: int = 0
    search: str = "none"
    file: str = ""
    index: int = 0
    clip: tuple[Fraction, Fraction] | None = None
    targets: tuple[int, ...] | None = None
    given: int | None = None
    answer: int | None = None
    path: str = ""
    digest: str = ""


@guard_class
@dataclass(frozen=True, eq=False, repr=False)
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
    radius: the largest certified radius of the image, where `ResultList.with_radii` has put it there. origin: the question, for records.
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
    radius: Radius | None = None
    origin: Origin | None = None

    def __repr__(self) -> str:
        from polytriton.results.oneline import result_line

        return result_line(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A table of one row; `polytriton.to_pandas` makes one of many results."""
        from polytriton.results.frames import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, the margins and, for a ball around an image, the pictures."""
        from polytriton.results.notebook import result_html

        return result_html(self)

    @property
    def margin(self) -> float:
        """The worst margin; +inf where there is nothing to prove."""
        return float(self.margins.min(initial=np.inf))


@guard_class
class ResultList(list[Result]):
    """A list of results that turns into a table, and into records that `polytriton report` and `run --resume` read."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Result: ...
    @overload
    def __getitem__(self, at: slice) -> ResultList: ...
    def __getitem__(self, at: SupportsIndex | slice) -> Result | ResultList:
        return ResultList(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __add__(self, other: list[Result]) -> ResultList:  # type: ignore[override]
        return ResultList([*self, *other])

    def __repr__(self) -> str:
        from polytriton.results.oneline import results_line

        return results_line(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: how many there are of each verdict, and a line for each of the first."""
        from polytriton.results.notebook import results_html

        return results_html(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row a result."""
        from polytriton.results.frames import to_pandas

        return to_pandas(self)

    def with_radii(self, radii: Sequence[Radius]) -> ResultList:
        """The same results, each with the largest certified radius of its image: `net.radius` of the same images in the same order."""
        if len(radii) != len(self):
            raise UsageError(f"{len(radii)} radii for {len(self)} results", "ask for the radii of the same images, in the same order")
        return ResultList(replace(result, radius=radius) for result, radius in zip(self, radii, strict=True))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes JSON Lines, whole or not at all: one record a result, as `polytriton run --json` writes them."""
        import polytriton  # runs make records, and know results: the package's face knows where

        return polytriton.save_results(self, Path(path), overwrite=overwrite)
