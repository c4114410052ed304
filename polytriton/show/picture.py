"""Images as PNG, written with the standard library alone, inline where HTML shows them."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import numpy as np

SIDE = 112  # pixels on screen
SMALLEST = 4  # an axis shorter than this makes no picture


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether an input of this shape can be looked at: one or three channels of a plane."""
    return len(shape) in (2, 3) and min(shape[-2:]) >= SMALLEST and (len(shape) == 2 or shape[0] in (1, 3))


def png(levels: np.ndarray) -> bytes:
    """A PNG file of uint8 levels, [height, width] or [height, width, 3]."""
    height, width = levels.shape[:2]
    colour = 2 if levels.ndim == 3 else 0
    lines = np.ascontiguousarray(levels).reshape(height, -1)
    data = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()  # each line begins with its filter: none

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def plane(pixels: np.ndarray) -> np.ndarray:
    """Values in [0, 1], [height, width] or [channels, height, width], as levels that `png` takes."""
    values = pixels if pixels.ndim == 2 else pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0)
    return np.rint(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)


def difference(pixels: np.ndarray, other: np.ndarray) -> np.ndarray:
    """other - pixels as levels: grey where nothing changed, the largest change at full scale."""
    change = other - pixels
    return plane(0.5 + 0.5 * change / max(float(np.abs(change).max(initial=0.0)), 1e-30))


def figure(levels: np.ndarray, title: str) -> str:
    data = base64.b64encode(png(levels)).decode("ascii")
    return (
        f'<figure style="display:inline-block;margin:0 8px 0 0"><img src="data:image/png;base64,{data}" alt="{escape(title, quote=True)}" '
        f'style="width:{SIDE}px;image-rendering:pixelated"><figcaption>{escape(title)}</figcaption></figure>'
    )
