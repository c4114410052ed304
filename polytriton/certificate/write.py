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
from polytriton.certificate.grow import Grower, Progress
from polytriton.checker_files import Array
from polytriton.guard import guarded

SECONDS = 600.0  # for finding a tree, unless another limit is set


def silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


@guarded
@np.errstate(all="ignore")
def certify(onnx_file: Path, vnnlib_file: Path, semantics: str = "real", progress: Progress = silent, seconds: float = SECONDS) -> bytes:
    """A certificate that the property holds for the network's executions, or Refused where the checker's bounds do not prove that."""
    net, pieces, hashes = checker.load(onnx_file, vnnlib_file)
    prover = checker.Prover(net.data, semantics == "float32")
    deadline = time.monotonic() + seconds
    trees = [Grower(prover, box, group, deadline, progress).grow().arrays() for box, group in pieces.items()]
    return pack(trees, semantics, hashes)


@guarded
def pack(trees: list[dict[str, Array]], semantics: str, hashes: dict[str, str]) -> bytes:
    """A safetensors file. Its own library orders a header differently every time; a certificate is the same bytes again."""
    tensors = {f"{b}.{name}": array for b, tree in enumerate(trees) for name, array in tree.items()}
    header: dict[str, object] = {}
    parts, end = [], 0
    for name in sorted(tensors, key=lambda n: -tensors[n].itemsize):  # aligned
        parts.append(tensors[name].tobytes())
        start, end = end, end + len(parts[-1])
        kind = "I32" if tensors[name].dtype == np.int32 else "F64"
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    body = b"".join(parts)
    header["__metadata__"] = meta = {**checker.FORMAT, "semantics": semantics, **hashes, "boxes": str(len(trees))}
    meta["data"] = checker.digest(meta, body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


@guarded
def write(onnx_file: Path, vnnlib_file: Path, target: Path, semantics: str, progress: Progress = silent, seconds: float = SECONDS) -> int:
    """Writes the certificate, whole or not at all; returns its size."""
    data = certify(onnx_file, vnnlib_file, semantics, progress, seconds)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return len(data)
