"""Answers one query in this process: opens the network, asks it, makes the record. Every engine of a run ends here."""

from __future__ import annotations

import math
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polytriton.api import Verifier
from polytriton.artifact import Artifact, read_artifact
from polytriton.cache import cached_artifact
from polytriton.errors import PolytritonError, ResourceError, UsageError
from polytriton.explain import explain
from polytriton.frontend.query import Property
from polytriton.guard import guard, guard_class
from polytriton.knobs import SUMMARY, note
from polytriton.limit import OutOfTime, go_on
from polytriton.prove.crew import Others
from polytriton.prove.options import OWN
from polytriton.prove.together import decide_together
from polytriton.prove.trail import Trail
from polytriton.results import Counterexample, Result
from polytriton.runs.image_record import with_image
from polytriton.runs.queries import Asked, Ball, Query
from polytriton.runs.records import Point, Record
from polytriton.runtime.attack import inner_box
from polytriton.runtime.engine import Progress, _silent

OPEN_NETWORKS = 8  # networks kept in memory at once


@dataclass(frozen=True)
class Settings:
    """How every query of a run is asked; `engine` are options of the verifier that were given."""

    engine: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    falsify: bool = True
    seed: int = 0
    search: str = "none"
    trail: str | None = None  # how proofs went is kept for certificates, and notes of it in this folder where there is one


class Opened(msgspec.Struct, frozen=True):
    """What a record's key must know of an open network; `seconds` is what opening it took."""

    sha256: str
    output: str
    semantics: str
    dtype: str
    candidates: str
    seconds: float = 0.0
    numerics: str = "folded"
    method: str = ""  # other than polytriton's own


@dataclass(frozen=True)
class Answer:
    """A record and, where there is one, the property it answers, for those who print a counterexample.

    `prepare`: seconds spent on opening the network for this query. `trail`: how an unsat was proved, where that is wanted.
    """

    record: Record
    prop: Property | None = None
    result: Result | None = None
    error: BaseException | None = None
    resumed: bool = False
    prepare: float = 0.0
    query: Query | None = None
    trail: Trail | None = None


@dataclass(frozen=True)
class Begun:
    """A query before any proof of its own: what it asks, and its result where that is known already."""

    asked: Asked
    result: Result | None = None
    remark: str = ""


@guard_class
class Networks:
    """Verifiers by path, the last few kept. An artifact is read, an ONNX file compiled or taken from the cache."""

    def __init__(self, engine: dict[str, Any], places: Mapping[str, Path] | None = None) -> None:
        """`places`: where a network really lies, for those that were shipped here."""
        self._engine, self._places = engine, {} if places is None else places
        self._open, self._failed = OrderedDict[str, Verifier](), dict[str, PolytritonError]()

    def __call__(self, network: str | Path) -> Verifier:
        name = str(network)
        if name in self._failed:
            raise self._failed[name]
        if name not in self._open:
            go_on()
            try:
                self._open[name] = Verifier.from_artifact(find_artifact(self._places.get(name, Path(name))), **self._engine)
            except ResourceError:
                raise  # there may be room the next time
            except PolytritonError as error:
                self._failed[name] = error
                raise
            while len(self._open) > OPEN_NETWORKS:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name]

    def keep(self, name: str, verifier: Verifier) -> None:
        """One that is no file: several networks, joined."""
        self._open[name] = verifier

    def close(self) -> None:
        self._open.clear()


@guard
def find_artifact(path: Path) -> Artifact:
    """An artifact, or an ONNX file compiled or found in the cache."""
    if path.is_dir() or path.suffix == ".poly":
        return read_artifact(path)
    if not path.exists():
        raise UsageError(f"there is no network {path}", "check the path; it is taken relative to the current folder")
    return cached_artifact(path)


@guard_class
@dataclass
class Asker:
    """`started`: when the clock of every timeout began; by default when its query is asked. `others` take a share of its search."""

    networks: Networks
    settings: Settings
    progress: Progress = _silent
    started: float | None = None
    others: Others | None = None

    def open(self, network: str) -> Opened:
        start = time.monotonic()
        verifier = self.networks(network)
        o, source = verifier.options, verifier.source
        sha, output = ("", "") if source is None else (source.sha256, source.output_name)
        method = "" if o.method == OWN else o.method
        return Opened(sha, output, o.semantics, o.dtype, o.candidates, _short(time.monotonic() - start), o.numerics, method)

    def answer(self, query: Query, blank: Record, begun: Begun | None = None) -> Answer:
        """Fills the record in; an error belongs to its query."""
        start = time.monotonic()
        try:
            verifier = self.networks(query.network)
            prepare = _short(time.monotonic() - start)
            return self._decide(verifier, query, begun or _begin(verifier, query), blank, prepare)
        except OutOfTime:
            return late_answer(query, blank, time.monotonic() - start)
        except Exception as error:
            return failed_answer(query, blank, error, time.monotonic() - start)

    def together(self, queries: Sequence[Query]) -> Iterator[tuple[int, Begun]]:
        """Balls of one network without a time limit, decided as one batch: place and result of each, as they are known.

        Where something fails the rest is asked alone, and meets the error again if it is its own.
        """
        try:
            verifier, s = self.networks(queries[0].network), self.settings
            begun = [_begin(verifier, q) for q in queries]
            left = [k for k, b in enumerate(begun) if b.result is None]
            yield from ((k, b) for k, b in enumerate(begun) if b.result is not None)
            props, labels = [begun[k].asked.prop for k in left], [begun[k].asked.label for k in left]
            for at, result in decide_together(verifier, props, labels, falsifier=s.falsify, progress=self.progress, seed=s.seed):
                yield left[at], replace(begun[left[at]], result=result)
        except Exception as error:
            note(SUMMARY, f"images are asked one by one: {explain(error).message}")

    def _decide(self, verifier: Verifier, query: Query, begun: Begun, blank: Record, prepare: float) -> Answer:
        start, asked, result, remark = time.monotonic(), begun.asked, begun.result, begun.remark
        s = self.settings
        trail = None if s.trail is None else _trail(Path(s.trail))
        if result is None or (result.verdict == "unknown" and s.search != "none"):  # a batch is decided without a search
            go_on()
            timeout = blank.timeout if self.started is None or blank.timeout is None else max(blank.timeout - (start - self.started), 0.0)
            result = verifier.verify_property(
                asked.prop, timeout=timeout, falsifier=s.falsify, progress=self.progress, label=asked.label, seed=s.seed,
                search=s.search, trail=trail, others=self.others,
            )  # fmt: skip
        ended = result.ended_by
        if ended == "query-time" and self.started is not None:
            ended = "process-time"  # what was left of it was not the query's alone: starting and opening the network took their share
        remark = "; ".join(filter(None, (remark, verifier.trusted_code)))
        record = fill_in(blank, replace(result, ended_by=ended), asked.label, remark)
        if isinstance(query.subject, Ball):
            record = with_image(record, query.subject, verifier, self.progress)
        return Answer(record, asked.prop, result, prepare=prepare, query=query, trail=trail if result.verdict == "unsat" else None)


@guard
def fill_in(blank: Record, result: Result, label: int | None, note: str) -> Record:
    """The record with what the result says."""
    found = result.counterexample
    return msgspec.structs.replace(
        blank, verdict=result.verdict, margin=_finite(result.margin), seconds=_short(result.seconds), label=label, note=note,
        margins=[_finite(m) for m in result.margins.tolist()], rivals=list(result.rivals),
        counterexample=None if found is None else Point(_flat(found.x), _flat(found.y)), statistics=result.statistics,
        ended_by=result.ended_by, search=result.search,
    )  # fmt: skip


def late_answer(query: Query, blank: Record, seconds: float = 0.0) -> Answer:
    """The time since the start of the program was over before the query was asked."""
    return Answer(msgspec.structs.replace(blank, verdict="timeout", seconds=_short(seconds), ended_by="process-time"), query=query)


def failed_answer(query: Query, blank: Record, error: BaseException, seconds: float = 0.0) -> Answer:
    told = explain(error)
    record = msgspec.structs.replace(blank, note=" ".join(told.message.split()), seconds=_short(seconds), ended_by=told.limit)
    return Answer(record, error=error, query=query)


def _begin(verifier: Verifier, query: Query) -> Begun:
    start = time.monotonic()
    asked = query.read(verifier)
    if asked.clean is None or asked.label is None:
        return Begun(asked)
    return Begun(asked, *_at_centre(verifier, asked, start))


def _at_centre(verifier: Verifier, asked: Asked, start: float) -> tuple[Result | None, str]:
    """The clean image first: where the network already errs there, the image itself is the counterexample."""
    assert asked.clean is not None
    prop, dtype = asked.prop, np.dtype(verifier.source.input_dtype if verifier.source else "float64")
    x = asked.clean.astype(dtype)
    y = verifier.predict(x)[0]
    answer = int(y.argmax())
    remark = f"misclassified as {answer}" if answer != asked.label else ""
    if remark and prop.disjuncts and prop.violated(x.ravel(), y) is None:  # rounding may have left the exact ball
        box = inner_box(prop.disjuncts[0], dtype)
        if box is not None:
            x = np.clip(x.ravel(), *box)
            y = verifier.predict(x)[0]
    if prop.violated(x.ravel(), y) is None:
        return None, remark
    shape = verifier.source.input_shape if verifier.source else verifier.input_shape
    rivals = tuple(i for d in prop.disjuncts for i, c in d.rows[0].y if c < 0)
    margins = np.full(len(prop.disjuncts), -np.inf)
    return Result(
        "sat", margins, time.monotonic() - start, Counterexample(x.reshape(shape), y), asked.label, rivals, verifier.options.semantics,
        numerics=verifier.options.numerics,
    ), remark  # fmt: skip


def _flat(values: Any) -> list[float]:
    return np.asarray(values, dtype=np.float64).ravel().tolist()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _trail(folder: Path) -> Trail:
    """Its notes lie in the folder of certificates, on the disk that must hold those too; where another machine has it, on this one's."""
    return Trail(folder if folder.is_dir() else Path(tempfile.gettempdir()))


def _short(seconds: float) -> float:
    return round(seconds, 6)
