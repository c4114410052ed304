"""How the C library treats memory that this process frees."""

from __future__ import annotations

import ctypes
import sys

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
