"""When a command began: a time limit counts from the start of the program, not from the end of its imports."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_LOADED = time.monotonic()
_began: float | None = None


def begin(whole: bool) -> None:
    """Starts the clock of a command. `whole`: it is all that this process does, which began a while ago."""
    global _began
    _began = process_start() if whole else time.monotonic()


def start_time() -> float:
    """By time.monotonic(); now where no command was begun."""
    return time.monotonic() if _began is None else _began


def process_start() -> float:
    """When this process began, by time.monotonic(): as Linux has it, elsewhere when this module was loaded."""
    with suppress(OSError, ValueError, AttributeError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if age >= 0:
            return min(time.monotonic() - age, _LOADED)
    return _LOADED
