"""Writes certificates: one file, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np

from polytriton import checker
from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import Guide, complete, silent
from polytriton.certificate.trees import trees
from polytriton.checker_files import Array, Network, Pieces, Refused, need
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.guard import guard
from polytriton.prove.trail import Trail
from polytriton.whole import write_whole

SECONDS = 600.0  # for finding a tree where no search has left one, unless another limit is set


Read = tuple[Network, Pieces, dict[str, str]]  # both files as `checker.load` reads them


@guard
@np.errstate(all="ignore")
def certify(
    onnx_file: Path,
    vnnlib_file: Path,
    semantics: str = "real",
    progress: checker.Progress = silent,
    seconds: float = SECONDS,
    trail: Trail | None = None,
    prop: Property | None = None,
    read: Read | None = None,
) -> bytes:
    """A certificate of what the engine proved, as its `trail` has it: nobody has followed it yet.

    Without one, a tree that the checker's own arithmetic finds, or Refused where its bounds do not prove the property.
    """
    return b"".join(_parts(onnx_file, vnnlib_file, semantics, progress, seconds, trail, prop, read))


def _parts(
    onnx_file: Path, vnnlib_file: Path, semantics: str, progress: checker.Progress, seconds: float, trail: Trail | None,
    prop: Property | None, read: Read | None,
) -> list[bytes | memoryview]:  # fmt: skip
    net, pieces, hashes = read or checker.load(onnx_file, vnnlib_file)
    if trail is None:
        prover = checker.Prover(net.data, semantics == "float32")
        made = seek(prover, pieces, time.monotonic() + seconds, progress)
    else:
        asked = prop or read_vnnlib(vnnlib_file, n_in=net.sizes[0], n_out=net.sizes[net.output])
        made = trees(asked, pieces, net, trail, semantics == "float32")
        need(not trail.lost, trail.lost, Refused)
    return _pack([draft.arrays() for draft in made], semantics, hashes)


@guard
def seek(prover: checker.Prover, pieces: Pieces, deadline: float, progress: checker.Progress) -> list[Draft]:
    """A tree for each box, from nothing."""
    made = []
    for b, (box, group) in enumerate(pieces.items()):
        root, guide = checker.Tree(Draft(b, list(range(len(group)))).arrays()), Guide(checker.NODES // 2, deadline, progress)
        complete(prover, box, group, root, guide)
        made.append(guide.complete(root))
    return made


@guard
def pack(trees: list[dict[str, Array]], semantics: str, hashes: dict[str, str]) -> bytes:
    """A safetensors file. Its own library orders a header differently every time; a certificate is the same bytes again."""
    return b"".join(_pack(trees, semantics, hashes))


def _pack(trees: list[dict[str, Array]], semantics: str, hashes: dict[str, str]) -> list[bytes | memoryview]:
    """Its parts: numbers stay where they are."""
    tensors = {f"{t}.{name}": np.ascontiguousarray(array) for t, tree in enumerate(trees) for name, array in tree.items()}
    header: dict[str, object] = {}
    parts, end = list[bytes | memoryview](), 0
    for name in sorted(tensors, key=lambda n: -tensors[n].itemsize):  # aligned
        parts.append(tensors[name].data.cast("B") if tensors[name].size else b"")
        start, end = end, end + tensors[name].nbytes
        kind = "I32" if tensors[name].dtype == np.int32 else "F64"
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    header["__metadata__"] = meta = {**checker.FORMAT, "semantics": semantics, **hashes, "trees": str(len(trees))}
    digest = hashlib.sha256(json.dumps([semantics, hashes["onnx"], hashes["vnnlib"], meta["trees"]]).encode())  # the checker's, no copy
    for part in parts:
        digest.update(part)
    meta["data"] = digest.hexdigest()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *parts]


@guard
def write(
    onnx_file: Path,
    vnnlib_file: Path,
    target: Path,
    semantics: str,
    progress: checker.Progress = silent,
    seconds: float = SECONDS,
    trail: Trail | None = None,
    prop: Property | None = None,
    read: Read | None = None,
) -> int:
    """Writes the certificate, whole or not at all; returns its size."""
    with np.errstate(all="ignore"):
        parts = _parts(onnx_file, vnnlib_file, semantics, progress, seconds, trail, prop, read)
    write_whole(target, *parts)
    return sum(len(part) for part in parts)
