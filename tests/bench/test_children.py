"""Processes asked over a pipe: answers, noise, errors, deaths, and those that take too long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.core.children import Gone, MeasuringChild

SCRIPT = """
import os, sys, time
from bench.core.serve import speak_json

def answer(question):
    print("noise on standard output", flush=True)
    os.system("echo more noise")
    if "die" in question:
        os._exit(question["die"])
    if "sleep" in question:
        time.sleep(question["sleep"])
    if "raise" in question:
        raise ValueError("first line\\nlast line")
    return {"got": question, "threads": os.environ.get("OMP_NUM_THREADS"), "arguments": sys.argv[1:]}

def handler():
    return speak_json(answer)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "bench_answers.py").write_text(SCRIPT)
    return tmp_path


def child(module: Path, *arguments: str, threads: int = 0) -> MeasuringChild:
    return MeasuringChild("bench_answers", arguments, path=[str(module)], threads=threads)


def test_questions_and_answers(module: Path) -> None:
    with child(module, "a", "b", threads=3) as c:
        for number in (1, float("inf"), "x" * 200_000):
            assert c.ask({"number": number}, 30) == {"got": {"number": number}, "threads": "3", "arguments": ["a", "b"]}
    assert not c.alive()


def test_an_exception_is_an_answer_and_the_child_lives_on(module: Path) -> None:
    with child(module) as c:
        assert c.ask({"raise": True}, 30) == {"error": "ValueError: last line"}
        assert c.ask({}, 30)["got"] == {}


def test_a_child_that_dies(module: Path) -> None:
    with child(module) as c:
        with pytest.raises(Gone, match="code 7") as gone:
            c.ask({"die": 7}, 30)
        assert not gone.value.late
        with pytest.raises(Gone, match="code 7"):
            c.ask({}, 30)


def test_a_child_that_takes_too_long_is_stopped(module: Path) -> None:
    with child(module) as c:
        assert c.ask({}, 30)["got"] == {}
        start = time.monotonic()
        with pytest.raises(Gone, match="over its time") as gone:
            c.ask({"sleep": 60}, 0.2)
        assert gone.value.late and time.monotonic() - start < 10
    assert not c.alive()
