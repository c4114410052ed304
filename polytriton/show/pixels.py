"""Images small enough to travel in a record: levels 0..255 as they are, other pixels as float16, which is close enough to draw."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Sequence

import numpy as np

MOST = 8192  # characters; what is larger stays in its file


def pack(pixels: np.ndarray) -> str:
    """Kind and compressed values, "" where that would be too long."""
    kind = "u1" if pixels.dtype.kind in "ui" else "f2"
    packed = zlib.compress(np.ascontiguousarray(pixels.astype("<" + kind)).tobytes(), 9)
    text = f"{kind}:{base64.b64encode(packed).decode()}"
    return text if len(text) <= MOST else ""


def unpack(text: str, shape: Sequence[int]) -> np.ndarray | None:
    """Pixels in [0,1] as float64; None where the text holds no image of this shape. It may come from anywhere."""
    kind, _, packed = text.partition(":")
    size = math.prod(shape) * {"u1": 1, "f2": 2}.get(kind, 0)
    if not 0 < size <= 1 << 24 or len(text) > MOST:
        return None
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), size + 1)
    except (binascii.Error, zlib.error):
        return None
    if len(raw) != size:
        return None
    values = np.frombuffer(raw, "<" + kind).astype(np.float64).reshape(tuple(shape))
    return np.nan_to_num(values / 255 if kind == "u1" else values)
