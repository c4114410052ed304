"""SIGKILL at random moments, and several processes at once: every file is the old one or the new one, every reported result is kept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.processes import plain_environment

ROOT = str(Path(__file__).parents[2])
ENV = plain_environment(OMP_NUM_THREADS="1")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def zygote(what: str, folder: Path, rounds: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.faults.zygote", what, str(folder), str(rounds)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENV)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there two folders change places in one step")
def test_a_killed_writer_leaves_an_artifact(tmp_path: Path) -> None:
    found = zygote("compiling", tmp_path, 80)
    assert found["old"] + found["new"] == found["rounds"]
    assert min(found["old"], found["new"]) > 0 and found["good"]


@pytest.mark.slow
def test_a_killed_user_leaves_a_cache(tmp_path: Path) -> None:
    found = zygote("caching", tmp_path, 25)
    assert min(found["none"], found["whole"]) > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there two folders change places in one step")
def test_processes_share_an_artifact_and_a_cache(tmp_path: Path) -> None:
    assert zygote("sharing", tmp_path, 10) == {"processes": 6, "failed": 0, "left": 0}


@pytest.mark.slow
def test_a_run_killed_again_and_again_reaches_its_end(tmp_path: Path) -> None:
    """Each start goes on where the last was killed; what a line on stderr reported is in the file, with its verdict."""
    rng = random.Random(0)
    tiny.brightest(tmp_path / "net.onnx")
    wanted = {}
    for k in range(20):
        epsilon = 0.013 + k / 50
        tiny.robust(tmp_path / f"p{k}.vnnlib", epsilon)
        wanted[f"p{k}"] = "unsat" if epsilon < 0.35 else "sat"
    (tmp_path / "list.csv").write_text("\n".join(f"net.onnx,p{k}.vnnlib" for k in range(20)))
    command = [sys.executable, "-m", "polytriton.cli", "run", "--instances", "list.csv", "--json", "r.jsonl", "--csv", "r.csv"]
    reported: dict[str, str] = {}
    rounds, code = 0, -signal.SIGKILL
    while code:
        rounds += 1
        assert rounds < 40
        said = tmp_path / f"err{rounds}"
        with said.open("w") as err:
            ran = subprocess.Popen([*command, "--resume"], cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL, stderr=err)
            answers = rng.randrange(1, 6) if rounds < 4 else 10**9
            while ran.poll() is None and said.read_text().count("\n") < answers:
                time.sleep(0.001)
            ran.kill()
            code = ran.wait()
        for line in said.read_text().splitlines():
            if line.startswith("[") and "s)" in line:
                name, verdict = line.split("] ")[1].split(" (")[0].split(": ")
                reported[name] = verdict
        on_disk = [json.loads(line) for line in (tmp_path / "r.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()] if reported else []
        assert {r["property"] for r in on_disk} >= reported.keys()
    assert rounds >= 4
    assert {r["property"]: r["verdict"] for r in on_disk} == wanted
    assert len(on_disk) == 20 and len((tmp_path / "r.csv").read_text().splitlines()) == 21
    assert reported.items() <= wanted.items()
