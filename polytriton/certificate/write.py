"""Writes certificates: one file, whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from polytriton import checker
from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import Guide, complete, silent
from polytriton.certificate.trees import trees
from polytriton.checker_files import Array, Network, Pieces, Refused, need
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.guard import guarded
from polytriton.prove.trail import Trail

SECONDS = 600.0  # for finding a tree where no search has left one, unless another limit is set


Read = tuple[Network, Pieces, dict[str, str]]  # both files as `checker.load` reads them


@guarded
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
    net, pieces, hashes = read or checker.load(onnx_file, vnnlib_file)
    if trail is None:
        prover = checker.Prover(net.data, semantics == "float32")
        made = seek(prover, pieces, time.monotonic() + seconds, progress)
    else:
        need(not trail.lost, "the search took more steps than memory keeps for a certificate; give more --memory", Refused)
        asked = prop or read_vnnlib(vnnlib_file, n_in=net.sizes[0], n_out=net.sizes[net.output])
        made = trees(asked, pieces, net, trail, semantics == "float32")
    return pack([draft.arrays() for draft in made], semantics, hashes)


@guarded
def seek(prover: checker.Prover, pieces: Pieces, deadline: float, progress: checker.Progress) -> list[Draft]:
    """A tree for each box, from nothing."""
    made = []
    for b, (box, group) in enumerate(pieces.items()):
        root, guide = checker.Tree(Draft(b, list(range(len(group)))).arrays()), Guide(checker.NODES // 2, deadline, progress)
        complete(prover, box, group, root, guide)
        made.append(guide.completed(root))
    return made


@guarded
def pack(trees: list[dict[str, Array]], semantics: str, hashes: dict[str, str]) -> bytes:
    """A safetensors file. Its own library orders a header differently every time; a certificate is the same bytes again."""
    tensors = {f"{t}.{name}": array for t, tree in enumerate(trees) for name, array in tree.items()}
    header: dict[str, object] = {}
    parts, end = [], 0
    for name in sorted(tensors, key=lambda n: -tensors[n].itemsize):  # aligned
        parts.append(tensors[name].tobytes())
        start, end = end, end + len(parts[-1])
        kind = "I32" if tensors[name].dtype == np.int32 else "F64"
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    body = b"".join(parts)
    header["__metadata__"] = meta = {**checker.FORMAT, "semantics": semantics, **hashes, "trees": str(len(trees))}
    meta["data"] = checker.digest(meta, body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


@guarded
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
    data = certify(onnx_file, vnnlib_file, semantics, progress, seconds, trail, prop, read)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return len(data)
