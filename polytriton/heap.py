"""How memory that this process frees is treated, by the C library and by Python."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT, ALONE = 1 << 30, 256 << 20  # bytes that are kept; from which on a block is the system's own
_keeps = False


def keep_memory() -> None:
    """Asks the C library to keep what is freed, for the next row block needs as much again.

    By default glibc gives large blocks back to the system and takes new pages for the next ones, each cleared and mapped anew: up to
    a fifth of a run with large blocks. The setting can be neither read nor undone, so polytriton's own programs make it, and whoever
    calls this; `import polytriton` alone never does.
    """
    global _keeps
    if _keeps or not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    _keeps = bool(mallopt(M_MMAP_THRESHOLD, ALONE)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))


def keeps_memory() -> bool:
    """Whether `keep_memory` was called, and heard."""
    return _keeps


@contextmanager
def pause_collection() -> Iterator[None]:
    """Looks for no cycles meanwhile: of a text's hundred thousand parts none is garbage, and going through all objects of the process
    time and again takes a third of its reading."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
