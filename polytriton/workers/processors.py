"""How many processes are worth starting."""

from __future__ import annotations

import os


def processors() -> int:
    """Returns how many this process may use: a container or `taskset` may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
