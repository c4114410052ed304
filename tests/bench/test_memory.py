"""The memory of a command is that of all its processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.memory import family, watch

MIB = 1 << 20
CHILD = "import time; held = bytearray(b'x') * (60 << 20); time.sleep(0.6)"
PARENT = f"""import subprocess, sys
print("said")
held = bytearray(b"x") * (30 << 20)
subprocess.run([sys.executable, "-c", {CHILD!r}])"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="memory is read from /proc")


def test_what_a_command_starts_counts() -> None:
    alone = watch([sys.executable, "-c", CHILD])
    assert alone[0] == "" and alone[2] == 1 and 60 * MIB < alone[1] < 100 * MIB
    both = watch([sys.executable, "-c", PARENT])
    assert both[0] == "said" and both[2] == 2 and alone[1] + 30 * MIB < both[1] < alone[1] + 70 * MIB


def test_whoever_is_gone_holds_nothing() -> None:
    assert list(family(1 << 30)) == [1 << 30]
