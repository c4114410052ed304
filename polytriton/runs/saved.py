"""Results from Python as the records of a run: what `polytriton report` and `run --resume` read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np

import polytriton
from polytriton.errors import UsageError
from polytriton.frontend.norm_balls import LINF
from polytriton.guard import guard
from polytriton.results import Origin, Picture, Result
from polytriton.runs.asker import Opened, Settings, fill_in
from polytriton.runs.image_record import plain
from polytriton.runs.keys import Keys
from polytriton.runs.queries import Ball
from polytriton.runs.records import Image, Record
from polytriton.show.pixels import pack
from polytriton.whole import save_whole


@guard
def save_results(results: Iterable[Result], path: Path, *, overwrite: bool = False) -> Path:
    """JSON Lines, whole or not at all. Files that hold something already are kept, unless they may be overwritten."""
    if path.suffix.lower() in (".csv", ".html"):
        raise UsageError(f"results are saved as JSON Lines, which {path} does not sound like", 'name the file like "results.jsonl"')
    data = b"".join(msgspec.json.encode(r) + b"\n" for r in records_of(results))
    return save_whole(path, data, "results", overwrite=overwrite)


@guard
def records_of(results: Iterable[Result]) -> list[Record]:
    keys = Keys()
    held = list(results)
    if strange := [type(r).__name__ for r in held if not isinstance(r, Result)]:
        raise UsageError(f"no record can be made of {strange[0]}", "give a list of what verify returned")
    return [_record(k, r, keys) for k, r in enumerate(held)]


def _record(k: int, r: Result, keys: Keys) -> Record:
    o = r.origin or Origin("unnamed", f"result[{k}]")
    ball = None if r.picture is None else _ball(o, r.picture)
    blank = Record(
        network=o.network, property=o.name, verdict=r.verdict, epsilon=None if ball is None else ball.epsilon, timeout=o.timeout,
        norm=r.picture.norm if r.picture is not None and r.picture.norm != LINF else "",
        semantics=r.semantics, numerics=r.numerics, dtype=o.dtype, candidates=o.candidates, method=o.method, sha256=o.sha256,
        version=polytriton.__version__, onnx=o.network, vnnlib=o.path, key=_key(r, o, ball, keys),
    )  # fmt: skip
    note = f"misclassified as {o.answer}" if o.answer is not None and o.answer != r.label else ""
    made = fill_in(blank, r, r.label, note)
    if ball is None:
        return made
    image = Image(ball.file, ball.index, list(ball.shape), ball.mean, ball.std, ball.clip, pack(ball.image))
    return msgspec.structs.replace(made, image=image, radius=None if r.radius is None else plain(r.radius))


def _key(r: Result, o: Origin, ball: Ball | None, keys: Keys) -> str:
    """As a run would make it; empty where nobody could ask the same question again: of a network or a property without a file."""
    identity = ball.identity() if ball is not None else f"vnnlib {o.digest}" if o.digest else ""
    if not identity or not o.sha256:
        return ""
    opened = Opened(o.sha256, o.output, r.semantics, o.dtype, o.candidates, numerics=r.numerics, method=o.method)
    return keys.key(identity, opened, Settings(falsify=o.falsifier, seed=o.seed, search=o.search))


def _ball(o: Origin, picture: Picture) -> Ball:
    """An image that came from no file is told from others by its pixels, whatever its place in its list was."""
    pixels = np.ascontiguousarray(picture.pixels)
    file = o.file or f"array {hashlib.sha256(pixels.tobytes()).hexdigest()[:12]}"
    return Ball(
        pixels.tobytes(), pixels.dtype.str, pixels.shape, str(picture.epsilon), _texts(picture.mean), _texts(picture.std),
        None if o.clip is None else (str(o.clip[0]), str(o.clip[1])), o.given, o.targets, file, o.index, norm=picture.norm,
    )  # fmt: skip


def _texts(values: Iterable[Fraction]) -> tuple[str, ...]:
    return tuple(map(str, values))
