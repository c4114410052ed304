"""A session that is killed at any moment: the artifact stays readable and right, and no finished trial is repeated."""

from __future__ import annotations

import csv
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from polytriton.api import load
from polytriton.artifact import read_artifact
from polytriton.runtime.config import Config
from polytriton.tuning.store import TRIALS
from tests.processes import quick_environment

KILLS = 4
COMMAND = (sys.executable, "-m", "polytriton.cli", "tune")


def environment() -> dict[str, str]:
    return quick_environment(OMP_NUM_THREADS="1")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="folders change places in one step on Linux only")
def test_sigkill_at_many_moments(poly: Path, tmp_path: Path) -> None:
    rng, x = random.Random(0), np.full((1, load(poly).inputs), 0.4)
    want = load(poly).bounds(x - 0.01, x + 0.01, effort="quick")
    seen: list[list[str]] = []
    workers: set[str] = set()
    start = 60.0  # seconds until the first trial is done, once that is known
    for k in range(KILLS):
        command = [*COMMAND, str(poly), "--budget", "60s", "--trials", str(2 + k), "--runs", "2"]
        with open(tmp_path / "said.txt", "w+") as said:
            process = subprocess.Popen([*command, *(["--resume"] if k else [])], stdout=said, stderr=said, env=environment())
            began = time.monotonic()
            until = began + (start if not k else start * rng.uniform(0.3, 2.0))
            while process.poll() is None and time.monotonic() < until and (k or not finished(poly)):
                time.sleep(0.01)
            start = start if k else max(1.0, time.monotonic() - began)
            workers |= children(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()
            said.seek(0)
            assert process.returncode in (0, -signal.SIGKILL), said.read()
        held = read_artifact(poly)
        found = load(poly)
        if held.tuned is not None:
            assert found.options.config == Config.of(held.tuned.entries[0].config)
        got = found.bounds(x - 0.01, x + 0.01, effort="quick")
        assert np.allclose(got.lo, want.lo, atol=1e-3) and np.allclose(got.hi, want.hi, atol=1e-3)
        rows = finished(poly)
        assert rows[: len(seen)] == seen
        seen = rows
    ran = subprocess.run([*COMMAND, str(poly), "--resume", "--runs", "2", "--trials", str(len(seen) + 2)], env=environment(), check=False)
    assert ran.returncode == 0
    rows = finished(poly)
    assert rows[: len(seen)] == seen
    assert len({row[0] for row in rows}) == len(rows) == len(seen) + 2
    assert read_artifact(poly).tuned is not None
    assert not [pid for pid in workers if alive(pid)]
    left = [p.name for p in poly.parent.iterdir() if p.name.endswith((".tmp", ".old"))]
    for name in left:  # a killed writer's own folder: nothing else is touched by it
        shutil.rmtree(poly.parent / name)


def finished(poly: Path) -> list[list[str]]:
    """Whole lines of the list of trials."""
    path = poly.with_name(poly.name + ".tune") / TRIALS
    data = path.read_text() if path.exists() else ""
    return list(csv.reader(data[: data.rfind("\n") + 1].splitlines()))[1:]


def children(pid: int) -> set[str]:
    try:
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return set()


def alive(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z" and "tuning.worker" in Path(f"/proc/{pid}/cmdline").read_text()
