"""A time limit on compiling: it is heard everywhere, and what it breaks off is not kept in halves."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from polytriton import limit
from polytriton.artifact import read_artifact
from polytriton.cache import cached_artifact
from polytriton.limit import OutOfTime, go_on, time_limit
from tests.cli import tiny
from tests.cli.conftest import Cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_resnet_ibp.onnx"


class Clock:
    """A clock that moves on by one each time it is looked at, and remembers who looked."""

    def __init__(self) -> None:
        self.now, self.seen = 0, list[str]()

    def monotonic(self) -> float:
        self.now += 1
        caller = sys._getframe(2).f_code
        self.seen.append(f"{Path(caller.co_filename).stem}.{caller.co_name}")
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    made = Clock()
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(limit, "time", made)
    return made


def test_a_limit_holds_inside_and_the_outer_one_again_behind_it() -> None:
    go_on()
    with time_limit(time.monotonic() + 60):
        go_on()
        with time_limit(time.monotonic() - 1), pytest.raises(OutOfTime):
            go_on()
        go_on()
        with time_limit(None):
            go_on()
    go_on()


def test_every_part_of_a_compilation_looks_at_the_clock(clock: Clock) -> None:
    with time_limit(1e9):
        cached_artifact(EXAMPLE)
    wanted = {
        "onnx._translate", "onnx._step", "onnx_compare._runner", "onnx_compare.answer", "onnx_compare.compare", "rewrite.rewrite",
        "deployed.broken_law", "check.check_net", "check.check_plan", "pipeline._guard", "lower.write_program", "schedule.run",
        "memory.run", "plan_text.print_plan", "artifact.pack", "artifact.write_artifact", "artifact._write",
    }  # fmt: skip
    assert wanted <= set(clock.seen)


def test_what_is_broken_off_anywhere_leaves_no_half_of_an_artifact(clock: Clock, tmp_path: Path) -> None:
    with time_limit(1e9):
        cached_artifact(EXAMPLE)
    total, seen = clock.now, list(clock.seen)
    (whole,) = (tmp_path / "cache").glob("*.poly")
    wanted = read_artifact(whole).manifest
    writing = [k for k, name in enumerate(seen, 1) if name.startswith("artifact.")]
    for end in {*range(1, total, 83), *writing}:
        for path in (tmp_path / "cache").glob("*"):
            path.rename(tmp_path / f"old-{end}")
        clock.now = 0
        with time_limit(end - 0.5), pytest.raises(OutOfTime):
            cached_artifact(EXAMPLE)
        kept = list((tmp_path / "cache").glob("*")) + list((tmp_path / "cache").glob(".*"))
        assert all(p.suffix == ".poly" and not p.name.startswith(".") for p in kept), kept
        assert [read_artifact(p).manifest for p in kept] in ([], [wanted])


def test_a_cold_verify_ends_with_its_time(cli: Cli, here: Path) -> None:
    said = cli("verify", "net.onnx", "safe.vnnlib", "--timeout", "1e-9", "--json", "r.jsonl")
    assert (said.code, said.out) == (0, "timeout\n")
    (record,) = map(json.loads, Path("r.jsonl").read_text().splitlines())
    assert (record["verdict"], record["ended_by"], record["timeout"]) == ("timeout", "process-time", 1e-9)
    assert not list((here / "cache").glob("*")), "nothing was compiled"
    assert cli("verify", "--network", "f=net.onnx", "safe.vnnlib", "--timeout", "1e-9").out == "timed-out\n"
    tiny.brightest(here / "other.onnx", 2.0)  # another query that is late is another line of the file
    cli("verify", "other.onnx", "safe.vnnlib", "--timeout", "1e-9", "--json", "r.jsonl", "--resume")
    assert [json.loads(line)["network"] for line in Path("r.jsonl").read_text().splitlines()] == ["net.onnx", "other.onnx"]
    assert cli("verify", "net.onnx", "safe.vnnlib", "--timeout", "1e-9", "--prepare").code == 0
    assert len(list((here / "cache").glob("*.poly"))) == 1, "preparing has no limit"
    assert cli("verify", "net.onnx", "safe.vnnlib", "--timeout", "60").out == "unsat\n"


def test_compiling_loops_is_no_part_of_a_query(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query after an installation waits for them: a minute of it must not be the query's minute."""
    from polytriton.commands import verify
    from polytriton.runtime.cpu import loops

    loops.prepare()
    assert loops.prepare() == 0.0, "nothing is compiled twice"
    began = time.monotonic() - 90
    monkeypatch.setattr(verify, "start_time", lambda: began)
    assert cli("verify", "net.onnx", "safe.vnnlib", "--timeout", 60).out.split()[0] == "timeout"
    monkeypatch.setattr(loops, "prepare", lambda *_: 80.0)
    assert cli("verify", "net.onnx", "safe.vnnlib", "--timeout", 60).out.split()[0] == "unsat"
