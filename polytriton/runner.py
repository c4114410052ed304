"""The loop over queries: opens networks, asks, streams records. It knows no terminal; `polytriton run` and tests drive it."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import polytriton
from polytriton.api import Verifier
from polytriton.artifact import read_artifact
from polytriton.cache import cached_artifact
from polytriton.errors import PolytritonError, UsageError
from polytriton.explain import explain
from polytriton.frontend.images import load_images
from polytriton.frontend.instances import Instance
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.records import Point, Record, Sink
from polytriton.results import Counterexample, Result
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


@dataclass(frozen=True)
class Query:
    """`identity` is read only when the query's turn comes: what the property is, apart from its name."""

    network: Path
    name: str
    identity: Callable[[], str]
    prepare: Callable[[Verifier], Asked]
    timeout: float | None = None
    epsilon: str | None = None


@dataclass(frozen=True)
class Asked:
    """A property, and for a ball the clean input at its centre."""

    prop: Property
    label: int | None = None
    clean: np.ndarray | None = None


@dataclass(frozen=True)
class Answer:
    """A record and, where there is one, the property it answers, for those who print a counterexample."""

    record: Record
    prop: Property | None = None
    result: Result | None = None
    error: BaseException | None = None
    resumed: bool = False


# ---- queries ----------------------------------------------------------------------------------------------------


def vnnlib_query(network: Path, path: Path, timeout: float | None = None) -> Query:
    def prepare(verifier: Verifier) -> Asked:
        return Asked(read_vnnlib(path, n_in=verifier.inputs, n_out=verifier.outputs))

    def identity() -> str:
        try:
            return "vnnlib " + hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return f"vnnlib {path}"  # reading it will say what is wrong

    name = path.name.removesuffix(".gz").removesuffix(".vnnlib")
    return Query(network, name, identity, prepare, timeout)


def instance_queries(instances: Iterable[Instance], network: Path | None = None) -> list[Query]:
    return [vnnlib_query(network or i.onnx, i.vnnlib, i.timeout) for i in instances]


@dataclass(frozen=True)
class Balls:
    """L-infinity balls around the images of a file."""

    images: Path
    epsilon: Fraction
    mean: tuple[Fraction, ...] = (Fraction(0),)
    std: tuple[Fraction, ...] = (Fraction(1),)
    clip: tuple[Fraction, Fraction] | None = None
    start: int = 0
    end: int | None = None
    label: int | None = None
    targets: tuple[int, ...] | None = None
    scale: Fraction | None = None
    layout: str = "chw"

    def queries(self, network: Path, verifier: Verifier) -> list[Query]:
        """One query an image. Labels come from `label`, else the file, else the network's own answer."""
        held = load_images(
            self.images, self.start, self.end, verifier.input_shape, scale=self.scale, layout=self.layout,
            n_out=verifier.outputs if self.label is None else None,
        )  # fmt: skip
        if self.label is not None and not 0 <= self.label < verifier.outputs:
            raise UsageError(
                f"label {self.label} is out of range: the network has {verifier.outputs} outputs",
                f"labels run from 0 to {verifier.outputs - 1}",
            )
        if (bad := [t for t in self.targets or () if not 0 <= t < verifier.outputs]) != []:
            raise UsageError(
                f"target {bad[0]} is out of range: the network has {verifier.outputs} outputs",
                f"targets run from 0 to {verifier.outputs - 1}",
            )
        self._property(verifier, held.source[0], 0, None)  # a wrong mean, clip or radius is said before anything runs
        made = []
        for k, pixels in enumerate(held.source):
            label = self.label if self.label is not None else None if held.labels is None else int(held.labels[k])
            made.append(self._query(network, self.start + k, pixels, label))
        return made

    def _property(self, verifier: Verifier, pixels: np.ndarray, label: int, targets: tuple[int, ...] | None, name: str = "") -> Property:
        return verifier.ball_property(
            pixels, self.epsilon, label, clip=self.clip, mean=self.mean, std=self.std, targets=targets, name=name  # type: ignore[arg-type]
        )  # fmt: skip

    def _query(self, network: Path, index: int, pixels: np.ndarray, given: int | None) -> Query:
        def prepare(verifier: Verifier) -> Asked:
            clean = self._normalised(pixels)
            label = int(verifier.predict(clean)[0].argmax()) if given is None else given
            targets = None if self.targets is None else tuple(t for t in self.targets if t != label)
            return Asked(self._property(verifier, pixels, label, targets, name), label, clean)

        def identity() -> str:
            rest = (self.epsilon, self.mean, self.std, self.clip, given, self.targets, str(pixels.dtype), pixels.shape)
            return f"ball {hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()} {rest}"

        name = f"{self.images.stem}[{index}]"
        return Query(network, name, identity, prepare, epsilon=str(self.epsilon))

    def _normalised(self, pixels: np.ndarray) -> np.ndarray:
        x = pixels / 255.0 if pixels.dtype.kind in "ui" else pixels.astype(np.float64)
        spread = (-1, *[1] * (x.ndim - 1)) if len(self.mean) > 1 else (-1,)
        mean, std = (np.array([float(v) for v in values]).reshape(spread) for values in (self.mean, self.std))
        return (x - mean) / std


# ---- networks ---------------------------------------------------------------------------------------------------


class Networks:
    """Verifiers by path, the last few kept. An artifact is read, an ONNX file compiled or taken from the cache."""

    def __init__(self, engine: dict[str, Any]) -> None:
        self._engine, self._open, self._sha = engine, OrderedDict[Path, Verifier](), dict[Path, str]()
        self._failed: dict[Path, PolytritonError] = {}

    def __call__(self, path: Path) -> Verifier:
        if path in self._failed:
            raise self._failed[path]
        if path not in self._open:
            try:
                self._open[path] = open_network(path, self._engine)
            except PolytritonError as error:
                self._failed[path] = error
                raise
            self._sha[path] = self._source(self._open[path])
            while len(self._open) > OPEN_NETWORKS:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]

    def sha256(self, path: Path) -> str:
        if path not in self._sha:
            self(path)
        return self._sha[path]

    @staticmethod
    def _source(verifier: Verifier) -> str:
        return "" if verifier.source is None else f"{verifier.source.sha256} {verifier.source.output_name}"


def open_network(path: Path, engine: dict[str, Any]) -> Verifier:
    """An artifact or an ONNX file as a verifier."""
    if not path.is_dir() and path.suffix != ".poly":
        if not path.exists():
            raise UsageError(f"there is no network {path}", "check the path; it is taken relative to the current folder")
        return Verifier.from_artifact(cached_artifact(path), **engine)
    return Verifier.from_artifact(read_artifact(path), **engine)


# ---- the loop ---------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """Asks every query once, in order. `answered` is called as each ends, after its record is on disk."""

    networks: Networks
    settings: Settings
    sinks: Sequence[Sink] = ()
    answered: Callable[[Answer], None] = lambda answer: None
    began: Callable[[Query], None] = lambda query: None
    progress: Progress = _silent
    answers: list[Answer] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)

    def ask(self, queries: Iterable[Query]) -> list[Answer]:
        for query in queries:
            self.began(query)
            answer = self._one(query)
            for sink in self.sinks:
                held = sink.held.get(answer.record.key)
                if held is None or not held.final(answer.record.timeout):
                    sink.write(answer.record)
            self.answers.append(answer)
            self.answered(answer)
        return self.answers

    def exit_code(self) -> int:
        """0, or that of the gravest error met."""
        codes = [explain(a.error).exit_code for a in self.answers if a.error is not None]
        return max(codes, default=0)

    def _one(self, query: Query) -> Answer:
        """An error belongs to its query: the others are still asked."""
        timeout = self.settings.timeout if self.settings.timeout is not None else query.timeout
        blank = Record(
            network=str(query.network),
            property=query.name,
            verdict="error",
            epsilon=query.epsilon,
            timeout=timeout,
            version=polytriton.__version__,
        )
        start = time.monotonic()
        try:
            verifier = self.networks(query.network)
            blank = self._keyed(query, verifier, blank)
            old = self._held(blank.key, timeout)
            if old is not None:
                return Answer(old, resumed=True)
            asked = query.prepare(verifier)
            return self._decide(verifier, asked, blank, timeout)
        except Exception as error:
            return self._failed(blank, error, start)

    def _failed(self, blank: Record, error: Exception, start: float) -> Answer:
        note = " ".join(explain(error).message.split())
        return Answer(msgspec.structs.replace(blank, note=note, seconds=_short(time.monotonic() - start)), error=error)

    def _keyed(self, query: Query, verifier: Verifier, blank: Record) -> Record:
        o, s = verifier.options, self.settings
        sha = self.networks.sha256(query.network)
        base = repr((sha, query.identity(), o.semantics, o.dtype, o.candidates, s.falsify, s.seed, polytriton.__version__))
        self._seen[base] += 1  # the same question twice in one list is two lines of results
        key = hashlib.sha256(f"{base} {self._seen[base]}".encode()).hexdigest()[:24]
        return msgspec.structs.replace(
            blank, sha256=sha.partition(" ")[0], semantics=o.semantics, dtype=o.dtype, candidates=o.candidates, key=key
        )

    def _held(self, key: str, timeout: float | None) -> Record | None:
        """The final record of this query in the first results file; JSON comes first and holds the most."""
        files = [sink for sink in self.sinks if sink.resumable]
        old = files[0].held.get(key) if files else None
        return old if old is not None and old.final(timeout) else None

    def _decide(self, verifier: Verifier, asked: Asked, blank: Record, timeout: float | None) -> Answer:
        start = time.monotonic()
        result, remark = None, ""
        if asked.clean is not None and asked.label is not None:
            result, remark = _at_centre(verifier, asked, start)
        if result is None:
            s = self.settings
            result = verifier.verify_property(
                asked.prop, timeout=timeout, falsifier=s.falsify, progress=self.progress, label=asked.label, seed=s.seed
            )  # fmt: skip
        found = result.counterexample
        record = msgspec.structs.replace(
            blank, verdict=result.verdict, margin=_finite(result.margin), seconds=_short(result.seconds), label=asked.label, note=remark,
            margins=[_finite(m) for m in result.margins.tolist()], rivals=list(result.rivals),
            counterexample=None if found is None else Point(_flat(found.x), _flat(found.y)),
        )  # fmt: skip
        return Answer(record, asked.prop, result)


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
        "sat", margins, time.monotonic() - start, Counterexample(x.reshape(shape), y), asked.label, rivals, verifier.options.semantics
    ), remark


def _flat(values: Any) -> list[float]:
    return np.asarray(values, dtype=np.float64).ravel().tolist()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(seconds: float) -> float:
    return round(seconds, 6)
