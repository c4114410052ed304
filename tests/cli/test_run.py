"""`run` and `verify`: verdicts, results files, and what survives an interruption."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

import polytriton
from polytriton.runs.records import COLUMNS
from tests.cli import tiny
from tests.cli.conftest import Cli, Said
from tests.processes import plain_environment

ROOT = str(Path(__file__).parents[2])


def records(path: Path | str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def misbehaves(model: str, x: list[float], y: list[float]) -> bool:
    """The counterexample on the original model, and its label is not 0."""
    (out,) = onnxruntime.InferenceSession(model).run(None, {"x": np.array(x, np.float32).reshape(1, 1, 2, 2)})
    return bool(np.allclose(out.ravel(), y) and out.ravel().argmax() != 0)


# ---- verify -----------------------------------------------------------------------------------------------------


def test_verify_proves(cli: Cli, here: Path) -> None:
    for _ in range(2):  # compiled, then from the cache
        said = cli("verify", "net.onnx", "safe.vnnlib")
        assert (said.code, said.out) == (0, "unsat\n")
        assert "worst margin 0.499" in said.err
    assert len(list((here / "cache").glob("*.poly"))) == 1


def test_verify_refutes(cli: Cli) -> None:
    said = cli("verify", "net.onnx", "unsafe.vnnlib", "--json", "r.jsonl")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "sat"
    assert lines[1].startswith("((X_0 ")
    assert lines[-1].startswith("(Y_2 ")
    assert lines[-1].endswith("))")
    point = records("r.jsonl")[0]["counterexample"]
    assert misbehaves("net.onnx", point["x"], point["y"])
    assert [float(v.strip("()").split()[1]) for v in lines[1:]] == point["x"] + point["y"]


def test_verify_other_verdicts(cli: Cli, here: Path) -> None:
    assert cli("verify", "net.onnx", "unsafe.vnnlib", "--no-falsify", "--search", "none").out == "unknown\n"
    assert cli("verify", "net.onnx", "unsafe.vnnlib", "--timeout", "1e-9").out == "timeout\n"
    assert cli("verify", "net.onnx", "safe.vnnlib", "--semantics", "real", "--dtype", "float64", "--candidates", "input").out == "unsat\n"


def ended(said: Said) -> tuple[str, str]:
    (record,) = [json.loads(line) for line in said.out.splitlines()]
    return record["verdict"], record["ended_by"]


def test_a_record_says_which_limit_ended_its_query(cli: Cli, poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs may disagree on what a limit ended, and on nothing else: a verdict that is no proof says why there is none."""
    verify, run = ("verify", "net.onnx"), ("run", poly, "--vnnlib")
    assert ended(cli(*verify, "unsafe.vnnlib", "--json", "-")) == ("sat", "")
    assert ended(cli(*run, "safe.vnnlib", "--json", "-")) == ("unsat", "")
    assert ended(cli(*verify, "unsafe.vnnlib", "--no-falsify", "--search", "none", "--json", "-")) == ("unknown", "method")
    assert ended(cli(*verify, "unsafe.vnnlib", "--timeout", "1e-9", "--json", "-")) == ("timeout", "process-time")
    assert ended(cli(*run, "unsafe.vnnlib", "--timeout", "1e-9", "--json", "-")) == ("timeout", "query-time")
    for error, limit in ((MemoryError(), "memory"), (OSError(28, "full"), ""), (RuntimeError("boom"), "")):
        monkeypatch.setattr(polytriton.Verifier, "verify_property", Mock(side_effect=error))
        assert ended(cli(*run, "safe.vnnlib", "--json", "-")) == ("error", limit)


def test_verify_json_on_stdout(cli: Cli) -> None:
    said = cli("verify", "net.onnx", "unsafe.vnnlib", "--json", "-")
    (record,) = [json.loads(line) for line in said.out.splitlines()]
    assert record["verdict"] == "sat"
    assert record["network"] == "net.onnx"


def test_verify_resumes(cli: Cli) -> None:
    for extra in ([], ["--resume"], ["--resume"]):
        said = cli("verify", "net.onnx", "safe.vnnlib", "--json", "r.jsonl", *extra)
        assert said.out == "unsat\n"
        assert len(records("r.jsonl")) == 1
    assert "earlier run" in said.err


# ---- run --------------------------------------------------------------------------------------------------------


def test_run_properties(cli: Cli, poly: Path, here: Path) -> None:
    said = cli("run", "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", poly, "--json", "r.jsonl", "--csv", "r.csv")
    assert said.code == 0
    head, first, second, total = said.out.splitlines()
    assert head.split() == ["property", "verdict", "margin", "seconds"]
    assert first.split()[:2] == ["safe", "unsat"]
    assert second.split()[:2] == ["unsafe", "sat"]
    assert total.startswith("2 queries: 1 unsat, 1 sat; ")
    assert "[1/2] safe: unsat" in said.err
    got = records("r.jsonl")
    assert [r["verdict"] for r in got] == ["unsat", "sat"]
    assert got[0]["margin"] == pytest.approx(0.5, abs=1e-5)
    assert got[0]["sha256"] == polytriton.load(poly).source.sha256  # type: ignore[union-attr]
    with open("r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS
    assert [r["key"] for r in rows] == [r["key"] for r in got]
    assert float(rows[0]["margin"]) == got[0]["margin"]


def test_run_instances(cli: Cli, poly: Path, here: Path) -> None:
    tiny.brightest(here / "other.onnx", 2.0)
    (here / "list.csv").write_text("net.onnx,safe.vnnlib,10\nother.onnx,unsafe.vnnlib,1e-9\nnet.onnx,safe.vnnlib,10\n")
    said = cli("run", "--instances", "list.csv", "--json", "r.jsonl")
    assert said.code == 0
    got = records("r.jsonl")
    assert [r["verdict"] for r in got] == ["unsat", "timeout", "unsat"]
    assert [r["timeout"] for r in got] == [10, 1e-9, 10]
    assert len({r["key"] for r in got}) == 3  # the same line twice is two results
    assert said.out.splitlines()[0].split()[0] == "network"
    own = cli("run", poly, "--instances", "list.csv", "--timeout", "5", "--json", "-")
    assert [json.loads(line)["timeout"] for line in own.out.splitlines()] == [5, 5]
    assert "1 of 3 lines name other networks" in own.err
    assert "2 queries" in own.err
    (here / "list.csv").write_text("other.onnx,unsafe.vnnlib,9\n")
    assert cli("run", poly, "--instances", "list.csv").code == 2


def images(here: Path, labels: bool = True) -> Path:
    pixels = np.array([[230, 26, 51, 128], [26, 230, 51, 0], [230, 26, 51, 128]], np.uint8).reshape(3, 1, 2, 2)
    held = {"images": pixels, "labels": np.array([0, 1, 2])} if labels else {"images": pixels}
    np.savez(here / "i.npz", **held)
    return here / "i.npz"


def test_run_images(cli: Cli, poly: Path, here: Path) -> None:
    said = cli("run", poly, "--images", images(here), "--epsilon", "8/255", "--clip", "0,1", "--json", "r.jsonl")
    assert said.code == 0
    got = records("r.jsonl")
    assert [(r["property"], r["label"], r["verdict"]) for r in got] == [("i[0]", 0, "unsat"), ("i[1]", 1, "unsat"), ("i[2]", 2, "sat")]
    assert got[0]["rivals"] == [1, 2]
    assert got[0]["margins"] == pytest.approx([(230 - 26 - 16) / 255, (230 - 51 - 16) / 255], abs=1e-5)
    assert got[0]["epsilon"] == "8/255"
    assert got[2]["note"] == "misclassified as 0"
    assert "1 misclassified" in said.out.splitlines()[-2]
    assert said.out.splitlines()[-1] == "accuracy 66.6 %, verified 66.6 %, falsified 0.0 %, open 0.0 %"
    np.testing.assert_allclose(got[2]["counterexample"]["x"], np.array([230, 26, 51, 128]) / 255, rtol=1e-6)
    part = cli("run", poly, "--images", here / "i.npz", "--epsilon", "0.5", "--start", "1", "--end", "2", "--json", "-")
    (record,) = [json.loads(line) for line in part.out.splitlines()]
    assert (record["property"], record["verdict"]) == ("i[1]", "sat")


def test_misclassified_images_need_no_search(cli: Cli, poly: Path, here: Path) -> None:
    """The clean image is tried first, also at the edge of the clip, where rounding may push it off the exact box."""
    for extra in (
        ["--epsilon", "1e-6"],
        ["--epsilon", "0.9", "--clip", "0,1"],
        ["--epsilon", "1/255", "--mean", "0.1307", "--std", "0.3081"],
    ):
        said = cli(
            "run", poly, "--images", images(here), *extra, "--label", "2", "--no-falsify", "--json", "-", "--start", "1", "--end", "2"
        )
        assert json.loads(said.out)["verdict"] == "sat"
        assert json.loads(said.out)["note"] == "misclassified as 1"


def test_labels_and_targets(cli: Cli, poly: Path, here: Path) -> None:
    path = images(here, labels=False)
    own = cli("run", poly, "--images", path, "--epsilon", "0.01", "--json", "-")
    assert [json.loads(line)["label"] for line in own.out.splitlines()] == [0, 1, 0]
    some = cli("run", poly, "--images", path, "--epsilon", "0.01", "--targets", "1,2", "--json", "-")
    assert [json.loads(line)["rivals"] for line in some.out.splitlines()] == [[1, 2], [2], [1, 2]]
    assert "error" not in some.out


def test_one_bad_query_does_not_stop_the_others(cli: Cli, poly: Path, here: Path) -> None:
    tiny.vnnlib(here / "bad.vnnlib", [(0, 1)] * 5, "(<= Y_0 Y_1)")
    said = cli("run", poly, "--vnnlib", "safe.vnnlib", "bad.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl")
    assert said.code == 3
    assert [r["verdict"] for r in records("r.jsonl")] == ["unsat", "error", "sat"]
    assert "another network" in records("r.jsonl")[1]["note"]
    assert "another network" in said.err
    tiny.robust(here / "bad.vnnlib", 0.1)
    again = cli("run", poly, "--vnnlib", "safe.vnnlib", "bad.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl", "--resume")
    assert again.code == 0
    assert "2 from an earlier run" in again.out


def test_an_unsupported_network_in_a_list(cli: Cli, here: Path) -> None:
    tiny.unsupported(here / "cosh.onnx")
    (here / "list.csv").write_text("cosh.onnx,safe.vnnlib\nnet.onnx,safe.vnnlib\n")
    said = cli("run", "--instances", "list.csv")
    assert said.code == 3
    assert "Cosh" in said.err
    assert "1 unsat, 1 error" in said.out


@pytest.mark.parametrize(
    "error, code, word", [(RuntimeError("boom"), 4, "boom"), (MemoryError(), 2, "memory"), (OSError(28, "full"), 2, "no space")]
)
def test_the_unexpected_is_one_message(
    cli: Cli, poly: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception, code: int, word: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(polytriton.Verifier, "verify_property", fail)
    for args in (("run", poly, "--vnnlib", "safe.vnnlib"), ("verify", poly, "safe.vnnlib")):
        said = cli(*args)
        assert said.code == code
        assert word in said.err
    if code == 4:
        from polytriton.cli import main

        monkeypatch.setenv("POLYTRITON_DEBUG", "1")
        assert main(["verify", str(poly), "safe.vnnlib"]) == 4
        assert "Traceback" in capfd.readouterr().err


# ---- results files ----------------------------------------------------------------------------------------------


def test_results_are_not_overwritten_by_accident(cli: Cli, poly: Path) -> None:
    args = ("run", poly, "--vnnlib", "safe.vnnlib", "--csv", "r.csv")
    assert cli(*args).code == 0
    said = cli(*args)
    assert said.code == 2
    assert "--resume" in said.err
    assert cli(*args, "--overwrite").code == 0
    assert len(Path("r.csv").read_text().splitlines()) == 2


def test_resume_asks_again_where_the_question_changed(cli: Cli, poly: Path, here: Path) -> None:
    args = ["run", poly, "--vnnlib", "safe.vnnlib", "--json", "r.jsonl", "--resume"]
    for extra, lines in (([], 1), (["--semantics", "real"], 2), (["--dtype", "float64"], 3), (["--seed", "1"], 4), ([], 4)):
        assert cli(*args, *extra).code == 0
        assert len(records("r.jsonl")) == lines
    tiny.robust(here / "safe.vnnlib", 0.2)
    cli(*args)
    assert len(records("r.jsonl")) == 5


def test_the_last_line_says_where_to_read_on(cli: Cli, poly: Path) -> None:
    run = ("run", poly, "--vnnlib", "unsafe.vnnlib", "--no-falsify", "--csv", "r.csv", "--overwrite")
    assert cli(*run).err.splitlines()[-1].endswith("open: --search auto, and docs/unknown.md")
    assert cli(*run, "--search", "input", "--timeout", "0.3").err.splitlines()[-1].endswith("open: docs/unknown.md")
    assert "docs/unknown.md" not in cli("run", poly, "--vnnlib", "safe.vnnlib").err


def test_resume_gives_timeouts_more_time(cli: Cli, poly: Path) -> None:
    args = ["run", poly, "--vnnlib", "unsafe.vnnlib", "--csv", "r.csv", "--resume", "--timeout"]
    verdicts = [cli(*args, t).out.splitlines()[1].split()[1] for t in ("2e-9", "1e-9", "20", "1e-9")]
    assert verdicts == ["timeout", "timeout", "sat", "sat"]
    assert len(Path("r.csv").read_text().splitlines()) == 3


def test_resume_repairs_torn_lines_in_both_files(cli: Cli, poly: Path) -> None:
    args = ["run", poly, "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl", "--csv", "r.csv"]
    assert cli(*args).code == 0
    whole = Path("r.jsonl").read_bytes(), Path("r.csv").read_bytes()
    for name, data, keep in (("r.jsonl", whole[0], 100), ("r.csv", whole[1], 10)):
        Path(name).write_bytes(data[: data.rstrip(b"\n").rfind(b"\n") + 1 + keep])
    said = cli(*args, "--resume")
    assert "1 from an earlier run" in said.out
    assert [r["verdict"] for r in records("r.jsonl")] == ["unsat", "sat"]
    rows = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    assert [r["verdict"] for r in rows] == ["unsat", "sat"]
    Path("r.csv").unlink()  # what one file holds need not be asked again for the other
    said = cli(*args, "--resume")
    assert "2 from an earlier run" in said.out
    assert len(Path("r.csv").read_text().splitlines()) == 3


def test_files_of_others_are_left_alone(cli: Cli, poly: Path) -> None:
    for option, name, text in (("--json", "a", "{}\n"), ("--json", "b", "text\n"), ("--csv", "c", "a,b\n1,2\n")):
        Path(name).write_text(text)
        said = cli("run", poly, "--vnnlib", "safe.vnnlib", option, name, "--resume")
        assert said.code == 2
        assert "not a result" in said.err
        assert Path(name).read_text() == text


def test_disk_full_while_writing(cli: Cli, poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a line fits: it is taken back, and the run can go on later."""
    args = ["run", poly, "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl"]
    write, left = os.write, [900]

    def scarce(fd: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(fd, data[: left[0]])
        left[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", scarce)
        said = cli(*args)
    assert said.code == 2
    assert said.err.count("polytriton: ") == 1
    assert "No space left" in said.err
    assert len(records("r.jsonl")) == 1
    assert "1 from an earlier run" in cli(*args, "--resume").out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_device(cli: Cli, poly: Path) -> None:
    assert cli("run", poly, "--vnnlib", "safe.vnnlib", "--json", "/dev/full").code == 2


# ---- interruption -----------------------------------------------------------------------------------------------


def long_run(here: Path, *extra: str) -> tuple[list[str], subprocess.Popen[str]]:
    """Two quick queries, then several that take about a second each, with two results on disk."""
    tiny.zero(here / "zero.onnx")
    lines = ["net.onnx,safe.vnnlib", "net.onnx,unsafe.vnnlib"]
    for k in range(6):
        tiny.hard(here / f"hard{k}.vnnlib", 1 + k)
        lines.append(f"zero.onnx,hard{k}.vnnlib")
    (here / "list.csv").write_text("\n".join(lines))
    args = ["run", "--instances", "list.csv", "--json", "r.jsonl", "--csv", "r.csv", *extra]
    process = subprocess.Popen(
        [sys.executable, "-m", "polytriton.cli", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain_environment(),
        preexec_fn=None if sys.platform == "win32" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    start = time.monotonic()
    while not (here / "r.csv").exists() or len((here / "r.csv").read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - start < 60
        time.sleep(0.01)
    return args, process


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_loses_nothing(cli: Cli, here: Path, workers: str) -> None:
    args, process = long_run(here, "--workers", workers)
    process.kill()
    process.communicate()
    held = (here / "r.jsonl").read_bytes()
    kept = held[: held.rfind(b"\n") + 1]
    done = len(kept.splitlines())
    assert 2 <= done < 8
    said = cli(*args[:-1], "1", "--resume")
    assert said.code == 0
    assert f"; {done} from an earlier run" in said.out
    assert (here / "r.jsonl").read_bytes().startswith(kept)
    got = records("r.jsonl")
    want = {"safe": "unsat", "unsafe": "sat", **{f"hard{k}": "unknown" for k in range(6)}}
    assert {r["property"]: r["verdict"] for r in got} == want
    assert len(got) == len(want)
    assert len((here / "r.csv").read_text().splitlines()) == 9


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT there")
def test_ctrl_c_ends_with_a_table(here: Path) -> None:
    _, process = long_run(here, "--workers", "1")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted after" in err
    assert "safe" in out.splitlines()[1]
    assert "unsat" in out.splitlines()[1]
    assert "queries: " in out.splitlines()[-1]
