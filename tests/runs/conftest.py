"""A folder with two small networks and a list of queries, some of which take a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import tiny

QUERIES = 8


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`list.csv`: one query that is proved, one that is refuted, six that nobody decides and that take a moment each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYTRITON_DEBUG", raising=False)
    tiny.brightest(tmp_path / "net.onnx")
    tiny.zero(tmp_path / "zero.onnx")
    tiny.robust(tmp_path / "safe.vnnlib", 0.1)
    tiny.robust(tmp_path / "unsafe.vnnlib", 0.5)
    lines = ["net.onnx,safe.vnnlib", "net.onnx,unsafe.vnnlib"]
    for k in range(QUERIES - 2):
        tiny.hard(tmp_path / f"hard{k}.vnnlib", 1 + k)
        lines.append(f"zero.onnx,hard{k}.vnnlib,60")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


NAMES = ["safe", "unsafe", *(f"hard{k}" for k in range(QUERIES - 2))]
VERDICTS = ["unsat", "sat", *["unknown"] * (QUERIES - 2)]


def eventually(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Processes that a process started and that run still."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
