"""Foreign files are read within bounds: a few kilobytes never become gigabytes."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from polytriton.errors import UsageError

FREE = 64 << 20  # bytes anything may unpack to
RATIO = 100  # beyond those: times its own size; published properties pack to a twentieth
CHUNK = 1 << 20
UNPACK = "unpack it first if you trust it"
POINTER = b"version https://git-lfs.github.com/"


def unpacked_limit(size: int) -> int:
    """What a packed file of `size` bytes may unpack to."""
    return max(FREE, RATIO * size)


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a file, unpacked where it is a .gz; reading stops once there are more than `limit`."""
    with open(path, "rb") as raw:
        packed = path.suffix == ".gz"
        most = min(limit, unpacked_limit(os.fstat(raw.fileno()).st_size)) if packed else limit
        chunks, total = list[bytes](), 0
        with gzip.open(raw, "rb") if packed else raw as file:
            while total <= most and (chunk := file.read(CHUNK)):
                chunks.append(chunk)
                total += len(chunk)
    if most < total <= limit:
        raise UsageError(f"{path} unpacks to more than {most >> 20} MiB, over {RATIO} times its size", UNPACK)
    data = b"".join(chunks)
    if data.startswith(POINTER):
        raise UsageError(f"{path} is a pointer of Git LFS, not the file itself", "fetch the file: run `git lfs pull` in its repository")
    return data


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """The array of a .npy file of `size` bytes, once its header agrees with them: numpy allocates what the header says."""
    form = np.lib.format
    version = form.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not read")
    shape, _, dtype = (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if min(shape, default=0) < 0 or not dtype.itemsize or math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError(f"its header declares {'x'.join(map(str, shape))[:60]} values of {dtype}, which it does not hold")
    file.seek(0)
    return form.read_array(file, allow_pickle=False)


def load_npy(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        return read_array(file, os.fstat(file.fileno()).st_size)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz by name. A member holds as many bytes as the table of contents says, never more."""
    with zipfile.ZipFile(path) as packed:
        found = [m for m in packed.infolist() if m.filename.endswith(".npy")]
        if sum(m.file_size for m in found) > unpacked_limit(path.stat().st_size):
            raise UsageError(f"{path} unpacks to {sum(m.file_size for m in found) >> 20} MiB, over {RATIO} times its size", UNPACK)
        held = {}
        for m in found:
            with packed.open(m) as file:
                held[m.filename.removesuffix(".npy")] = read_array(file, m.file_size)
        return held
