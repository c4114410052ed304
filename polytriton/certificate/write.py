"""Writes certificates. The checker's own analysis makes the bounds it will check, so what is written follows by its arithmetic.

The engine decides that there is something to certify; its bounds are not used: they cover folded networks, in other arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from polytriton import checker
from polytriton.checker import Array, Atom, Box, Boxes, Network, Refused
from polytriton.guard import guarded

SLACK = 1e-8  # of a bound's width: another processor's sums differ in their last digits, and must reach the claim too
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


@dataclass
class Attempt:
    """Claims for each ReLU, and for each piece the row that is proved and its margin."""

    claims: list[dict[str, Array]]
    rows: list[tuple[int, float]]


def lines(lo: Array, hi: Array) -> tuple[Array, Array, Array]:
    """Slope below, slope and intercept above a ReLU over lo < 0 < hi: the smaller area below, the chord above.

    m >= max(-t lo, hi (1 - t)): three roundings at most, each 2^-53 relative.
    """
    t = hi / (hi - lo)
    m = np.maximum(-t * lo, hi * (1 - t)) * (1 + 2.0**-50)
    return np.where(hi > -lo, 1.0, 0.0), t, m


def claim(boxes: Boxes, relu: int, refine: bool) -> dict[str, Array]:
    """Bounds and lines of the values that the interval pass leaves with both signs.

    The likelier sign goes first; where its row settles the value, the other is not asked.
    """
    i = boxes.net.ops[relu].inputs[0]
    at = np.flatnonzero((boxes.lo[i] < 0) & (boxes.hi[i] > 0))
    bounds = [boxes.lo[i][at], -boxes.hi[i][at]]  # of x and of -x
    if refine:
        slack = SLACK * (boxes.hi[i][at] - boxes.lo[i][at])
        first = (bounds[1] > bounds[0]).astype(int)
        open_ = np.arange(len(at))
        for side in (first, 1 - first):
            sign = np.where(side[open_] == 0, 1.0, -1.0)
            found = boxes.neurons(i, at[open_], sign, slack[open_])
            for k in (0, 1):
                mine = side[open_] == k
                rows = open_[mine]
                bounds[k][rows] = np.maximum(bounds[k][rows], found[mine] - slack[rows])
            open_ = np.flatnonzero((bounds[0] < 0) & (bounds[1] < 0))
    lo, hi = bounds[0], -bounds[1]
    made = {"index": at.astype(np.int32), "lo": lo, "hi": hi, **{name: np.zeros(len(at)) for name in ("low", "up", "cut")}}
    mixed = (lo < 0) & (hi > 0)
    made["low"][mixed], made["up"][mixed], made["cut"][mixed] = lines(lo[mixed], hi[mixed])
    return made


def attempt(net: Network, box: Box, pieces: list[list[Atom]], refine: bool, progress: Progress) -> Attempt | None:
    """Claims over one box and, for each of its pieces, a row that they prove; None where they prove too little."""
    boxes, claims = Boxes(net, box), list[dict[str, Array]]()
    relus = sum(op.kind == "relu" for op in net.ops)
    for k in range(1, len(net.ops)):
        if net.ops[k].kind == "relu":
            progress("certificate", len(claims), relus)
            claims.append(claim(boxes, k, refine))
            boxes.accept(k, claims[-1], trust=True)
        boxes.interval(k)
    proved = []
    for rows in pieces:
        margins = [(margin, r) for r, row in enumerate(rows) if (margin := boxes.margin(row)) is not None]
        best, row = max(margins, default=(Fraction(0), 0))
        if best <= 0:
            return None
        proved.append((row, float(best) * (1 - SLACK)))
    return Attempt(claims, proved)


@guarded
@np.errstate(all="ignore")
def certify(onnx_file: Path, vnnlib_file: Path, progress: Progress = silent) -> bytes:
    """A certificate that the property holds for the network in exact arithmetic, or Refused where its relaxations do not prove that."""
    net, pieces, hashes = checker.load(onnx_file, vnnlib_file)
    tensors: dict[str, Array] = {}
    rows = []
    for b, (box, group) in enumerate(pieces.items()):
        made = attempt(net, box, group, False, progress) or attempt(net, box, group, True, progress)
        if made is None:
            raise Refused("the relaxations of a certificate do not prove this property")
        rows.append(made.rows)
        for r, arrays in enumerate(made.claims):
            tensors |= {f"{b}.{r}.{name}": array for name, array in arrays.items()}
    return pack(tensors, rows, hashes)


@guarded
def pack(tensors: dict[str, Array], rows: list[list[tuple[int, float]]], hashes: dict[str, str]) -> bytes:
    """A safetensors file. Its own library orders a header differently every time; a certificate is the same bytes again."""
    header: dict[str, object] = {}
    parts, end = [], 0
    for name in sorted(tensors, key=lambda n: -tensors[n].itemsize):  # aligned
        parts.append(tensors[name].tobytes())
        start, end = end, end + len(parts[-1])
        kind = "I32" if tensors[name].dtype == np.int32 else "F64"
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    body = b"".join(parts)
    header["__metadata__"] = {**checker.FORMAT, **hashes, "rows": json.dumps(rows), "data": hashlib.sha256(body).hexdigest()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


@guarded
def write(onnx_file: Path, vnnlib_file: Path, target: Path, progress: Progress = silent) -> int:
    """Writes the certificate, whole or not at all; returns its size."""
    data = certify(onnx_file, vnnlib_file, progress)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return len(data)
