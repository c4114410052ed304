"""Worker processes: the same answers, whoever is killed, and nobody left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from polytriton.cli import main
from polytriton.errors import ResourceError
from polytriton.frontend.instances import read_instances
from polytriton.runs.asker import Answer, Settings
from polytriton.runs.processes import ProcessWorker
from polytriton.runs.queries import instance_queries
from polytriton.runs.runner import Run
from polytriton.runs.spread import SpreadEngine
from polytriton.runs.task import Reply, Task
from polytriton.runs.worker import Hello
from polytriton.workers.far import receive, send
from tests.cli import tiny
from tests.processes import quick_environment
from tests.runs.conftest import NAMES, QUERIES, VERDICTS, children, eventually, running

posix = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs signals and /proc")
HELLO = Hello(Settings({"device": "cpu", "memory": 1 << 30}), threads=1)


def records(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


class Doomed(ProcessWorker):
    """Killed with the job in its hands, as often as `deaths` says for a query."""

    def __init__(self, hello: Hello, deaths: Counter[str]) -> None:
        super().__init__(hello)
        self.deaths = deaths

    def ask(self, task: Task) -> Reply:
        job = task.job
        if job.query is not None and self.deaths[job.query.name]:
            self.deaths[job.query.name] -= 1
            assert self.pid is not None
            os.kill(self.pid, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (self.pid, signal.SIGKILL)).start()
        return super().ask(task)


@posix
@pytest.mark.slow
def test_killing_workers_loses_nothing(here: Path) -> None:
    """One query loses its worker once, another every time."""
    workers = [Doomed(HELLO, Counter(hard1=1, hard4=2)) for _ in range(2)]
    workers[1].deaths = workers[0].deaths
    pool = SpreadEngine(workers)
    run = Run(pool, HELLO.settings)
    told: list[Answer] = []
    began: list[str] = []
    run.listeners.append(told.append)
    run.began = lambda query, more: began.append(query.name)
    troubles: list[str] = []
    run.troubled = troubles.append
    try:
        answers = run.ask(instance_queries(read_instances("list.csv")))
    finally:
        pool.close()
    assert [a.record.property for a in answers] == NAMES
    assert sorted(a.record.property for a in told) == sorted(NAMES)
    assert {a.record.property: a.record.verdict for a in answers} == {**dict(zip(NAMES, VERDICTS, strict=True)), "hard4": "error"}
    error = next(a.error for a in answers if a.record.property == "hard4")
    assert isinstance(error, ResourceError)
    assert "killed by SIGKILL" in error.message
    assert Counter(began) == Counter(NAMES) + Counter(hard1=1, hard4=1)
    assert not any(w.alive() for w in workers)
    assert sorted(t.rpartition("; ")[2] for t in troubles) == ["hard1 is tried again", "hard4 is tried again"]


@pytest.mark.slow
def test_the_same_answers_as_alone(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also the same keys: what one engine answered, the other need not ask again."""
    command = ["run", "--instances", "list.csv", "--json", "r.jsonl", "--workers"]
    assert main([*command, "2", "--memory", "512M"]) == 0
    out = capfd.readouterr().out
    assert [line.split()[1:3] for line in out.splitlines()[1:-1]] == [list(pair) for pair in zip(NAMES, VERDICTS, strict=True)]
    spread = records("r.jsonl")
    assert sorted(r["property"] for r in spread) == sorted(NAMES)
    assert main([*command, "1", "--resume"]) == 0
    assert f"{QUERIES} from an earlier run" in capfd.readouterr().out
    assert len(records("r.jsonl")) == QUERIES
    assert main(["run", "--instances", "list.csv", "--json", "alone.jsonl", "--workers", "1"]) == 0
    alone = {r["property"]: r for r in records("alone.jsonl")}
    for record in spread:
        other = alone[record["property"]]
        for name in ("key", "verdict", "margins", "counterexample", "semantics", "dtype", "sha256", "timeout"):
            assert record[name] == other[name], name


def test_errors_come_back_whole(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.unsupported(here / "cosh.onnx")
    tiny.vnnlib(here / "wrong.vnnlib", [(0, 1)] * 5, "(<= Y_0 Y_1)")
    (here / "list.csv").write_text("cosh.onnx,safe.vnnlib\nnet.onnx,wrong.vnnlib\nnet.onnx,safe.vnnlib\ncosh.onnx,unsafe.vnnlib\n")
    assert main(["run", "--instances", "list.csv", "--json", "r.jsonl", "--engine", "processes", "--workers", "1"]) == 3
    said = capfd.readouterr()
    assert "1 unsat, 3 error" in said.out
    assert "Cosh" in said.err
    assert "another network" in said.err
    assert said.err.count("remedy: ") == 3
    assert "Traceback" not in said.err
    assert {r["property"]: r["verdict"] for r in records("r.jsonl") if "net.onnx" in r["network"]} == {"wrong": "error", "safe": "unsat"}


def started(here: Path, *extra: str) -> subprocess.Popen[str]:
    """A run by two processes that has answered two queries."""
    command = [sys.executable, "-m", "polytriton.cli", "run", "--instances", "list.csv", "--workers", "2", "--json", "r.jsonl", *extra]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quick_environment(),
        preexec_fn=None if sys.platform == "win32" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    results = here / "r.jsonl"
    eventually(lambda: process.poll() is not None or (results.exists() and len(results.read_text().splitlines()) > 1))
    assert process.poll() is None, process.communicate()
    return process


@posix
@pytest.mark.slow
def test_a_worker_killed_from_outside(here: Path) -> None:
    process = started(here)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    got = records("r.jsonl")
    assert sorted(r["property"] for r in got) == sorted(NAMES)
    assert {r["property"]: r["verdict"] for r in got} == dict(zip(NAMES, VERDICTS, strict=True))
    assert f"{QUERIES} queries" in out


@posix
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_run(here: Path, sign: signal.Signals) -> None:
    process = started(here)
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(sign)
    out, err = process.communicate(timeout=60)
    eventually(lambda: not any(map(running, workers)))
    assert "Traceback" not in err
    done = len(records("r.jsonl"))
    assert 2 <= done < QUERIES
    if sign == signal.SIGINT:
        assert process.returncode == 130
        assert f"interrupted after {done} of {QUERIES} queries" in err
        assert out.splitlines()[-1].startswith(f"{done} queries")


@pytest.mark.parametrize(
    "args, word",
    [
        (["--workers", "0"], "out of range"),
        (["--engine", "threads"], "one of: auto, local"),
        (["--engine", "local", "--workers", "2"], "one worker"),
        (["--address", "auto"], "--engine ray"),
        (["--category", "x"], "--vnncomp-csv"),
    ],
)
def test_mistakes(here: Path, capfd: pytest.CaptureFixture[str], args: list[str], word: str) -> None:
    assert main(["run", "--instances", "list.csv", *args]) == 2
    said = capfd.readouterr()
    assert word in said.err
    assert "remedy: " in said.err
    assert not said.out


def test_frames_are_whole_or_none() -> None:
    file = io.BytesIO()
    for data in (b"", b"abc", bytes(100_000)):
        send(file, data)
    whole = file.getvalue()
    file.seek(0)
    assert [receive(file) for _ in range(4)] == [b"", b"abc", bytes(100_000), None]
    assert receive(io.BytesIO(whole[:5])) is None
    assert receive(io.BytesIO(send_one(b"abc")[:-1])) is None


def send_one(data: bytes) -> bytes:
    file = io.BytesIO()
    send(file, data)
    return file.getvalue()
