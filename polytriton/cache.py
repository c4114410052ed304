"""Compiled networks kept between runs. A cache that cannot be read or written costs time, never an answer."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import onnx

import polytriton
from polytriton.artifact import MANIFEST, VERSION, Artifact, pack, read_artifact, write_artifact
from polytriton.errors import ArtifactError, PolytritonError
from polytriton.frontend.onnx import Imported, model_bytes
from polytriton.guard import guard
from polytriton.knobs import SUMMARY, knobs, note
from polytriton.limit import go_on, sha256
from polytriton.passes.pipeline import Compiled, Observer, _quiet

ABANDONED = 86_400.0  # seconds after which what a killed process was writing is removed
ENTRIES = 64  # the least recently used beyond these are dropped


@guard
def cached_artifact(
    model: str | os.PathLike[str], *, output: str | None = None, candidates: str = "all", check: bool = True, observe: Observer = _quiet
) -> Artifact:
    """The compiled network of an ONNX file: from the cache, or compiled and kept there.

    The file is read once. What is looked up, compiled and kept is what these bytes say, whoever replaces the file meanwhile.
    """
    from polytriton.api import compile, compile_bytes

    path = Path(model)
    data = _read(path)
    if data is None:
        verifier, entry = compile(model, output=output, candidates=candidates, check=check, observe=observe), None
    else:
        made_from = sha256(data)
        entry = _entry(made_from, path.stem, output, candidates, check)
        found = _find(entry, made_from, candidates, str(path))
        if found is not None:
            return found
        stem = Path(str(model).removesuffix(".gz")).stem
        verifier = compile_bytes(data, stem, output=output, candidates=candidates, check=check, observe=observe)
    assert verifier.imported is not None
    if entry is not None:
        _keep(verifier, entry)
    return Artifact(verifier.compiled, verifier.imported, pack(verifier.compiled, verifier.imported)[0])


@guard
def cached_joined(made_from: str, name: str, candidates: str, join: Callable[[], polytriton.Verifier]) -> tuple[Compiled, Imported]:
    """Several networks as one: from the cache, or joined and kept there.

    `made_from` is the hash of all that decides what `join` makes, and that of its source.
    """
    entry = None if knobs().cache is None else _entry(made_from, name, None, candidates, check=True)
    found = None if entry is None else _find(entry, made_from, candidates, name)
    if found is not None:
        return found.compiled, found.imported
    verifier = join()
    assert verifier.imported is not None
    if entry is not None:
        _keep(verifier, entry)
    return verifier.compiled, verifier.imported


def _find(entry: Path, made_from: str, candidates: str, model: str) -> Artifact | None:
    """What the cache holds of this source. The name of an entry is not believed: the artifact itself says what it was made from."""
    if not entry.is_dir():
        return None
    try:
        found = read_artifact(entry)
        source, made = found.imported.source.sha256, found.compiled.plan.candidates
        if (source, made) != (made_from, candidates):
            raise ArtifactError(f"{entry} was made from another file")
        with suppress(OSError):  # a cache that may only be read
            os.utime(entry)
        note(SUMMARY, f"cache hit for {model}: {entry}")
        return found
    except (PolytritonError, OSError) as error:
        note(SUMMARY, f"the cached {entry} is not used: {str(error).splitlines()[0]}")
        return None


def _keep(verifier: polytriton.Verifier, entry: Path) -> None:
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_artifact(verifier, entry)
        note(SUMMARY, f"cached as {entry}")
        kept = sorted(entry.parent.glob(f"*.poly/{MANIFEST}"), key=lambda p: p.parent.stat().st_mtime)
        killed = [p for p in entry.parent.glob(".*.poly.*") if time.time() - p.stat().st_mtime > ABANDONED]
        for old in (*(p.parent for p in kept[:-ENTRIES]), *killed):
            shutil.rmtree(old, ignore_errors=True)
    except (PolytritonError, OSError) as error:
        note(SUMMARY, f"not cached: {str(error).splitlines()[0]}")


def _read(model: Path) -> bytes | None:
    """The file's contents, unpacked; None where nothing can be kept, or where compiling the file itself says best what is wrong.

    A model with weights in other files is not kept: its own bytes do not say what they hold.
    """
    if knobs().cache is None:
        return None
    try:
        data = model_bytes(model)
        go_on()
        proto = onnx.ModelProto.FromString(data)
        graph = proto.graph
        tensors = [*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.HasField("t"))]
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors):
            note(SUMMARY, f"{model} keeps weights in other files: not cached")
            return None
        return data if graph.output and proto.opset_import else None
    except Exception:
        return None


def _entry(made_from: str, stem: str, output: str | None, candidates: str, check: bool) -> Path:
    """The folder that belongs to this source, these options and this compiler."""
    folder = knobs().cache
    assert folder is not None
    options = repr((VERSION, polytriton.__version__, _compiler(), stem, output, candidates, check))
    return folder / f"{hashlib.sha256(bytes.fromhex(made_from) + options.encode()).hexdigest()[:32]}.poly"


@cache
def _compiler() -> str:
    """The hash of the compiler's own source: a changed pass makes its old results stale."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for room in ("frontend", "ir", "passes") for p in (root / room).glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
