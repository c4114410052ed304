"""The competition's scripts and results file, and the command line of the VNN-LIB 2.0 standard."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array

from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.cli.test_run import misbehaves

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "vnncomp_scripts"
bash = pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for bash")


def vnnlib2(path: Path, epsilon: float, network: str = "f", dtype: str = "float32") -> Path:
    lines = [
        "(vnnlib-version <2.0>)",
        f"(declare-network {network} (declare-input A {dtype} [1,1,2,2]) (declare-output B {dtype} [1,3]))",
    ]
    for k, v in enumerate(tiny.BRIGHT):
        at = f"A[0,0,{k // 2},{k % 2}]"
        lines.append(f"(assert (and (>= {at} {v - epsilon!r}) (<= {at} {v + epsilon!r})))")
    path.write_text("\n".join([*lines, "(assert (or (<= B[0,0] B[0,1]) (<= B[0,0] B[0,2])))", ""]))
    return path


def script(name: str, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "POLYTRITON_PYTHON": sys.executable, "POLYTRITON_MEMORY": "512M", **env}
    return subprocess.run(["bash", str(SCRIPTS / name), *map(str, args)], capture_output=True, text=True, env=full, timeout=120)


# ---- the scripts ------------------------------------------------------------------------------------------------


@bash
@pytest.mark.slow
def test_an_instance_as_the_competition_runs_it(here: Path) -> None:
    """Relative paths with blanks, packed files; preparing compiles into the cache and answers nothing."""
    folder = here / "a folder"
    folder.mkdir()
    with gzip.open(folder / "my net.onnx.gz", "wb") as packed:
        packed.write((here / "net.onnx").read_bytes())
    with gzip.open(folder / "un safe.vnnlib.gz", "wb") as packed:
        packed.write((here / "unsafe.vnnlib").read_bytes())
    files = "a folder/my net.onnx", "a folder/un safe.vnnlib"
    said = script("prepare_instance.sh", "v1", "tiny", *files)
    assert (said.returncode, said.stdout) == (0, ""), said.stderr
    assert len(list((here / "cache").glob("*.poly"))) == 1
    (folder / "re sults.txt").write_text("what was there before\n")
    said = script("run_instance.sh", "v1", "tiny", *files, "a folder/re sults.txt", 60)
    assert said.returncode == 0, said.stderr
    verdict, *pairs = (folder / "re sults.txt").read_text().splitlines()
    assert verdict == "sat"
    assert [p.strip("()").split()[0] for p in pairs] == ["X_0", "X_1", "X_2", "X_3", "Y_0", "Y_1", "Y_2"]
    assert pairs[0].startswith("((X_0 ")
    assert pairs[-1].endswith("))")
    values = [float(p.strip("()").split()[1]) for p in pairs]
    assert misbehaves("net.onnx", values[:4], values[4:])
    assert sorted(p.name for p in folder.iterdir()) == ["my net.onnx.gz", "re sults.txt", "un safe.vnnlib.gz"]


@bash
@pytest.mark.parametrize(
    "prop, wrong, timeout, verdict",
    [
        ("safe.vnnlib", {}, 60, "unsat"),
        ("safe.vnnlib", {}, 0.5, "timeout"),
        pytest.param("bad.vnnlib", {}, 60, "error", marks=pytest.mark.slow),
        ("safe.vnnlib", {}, "soon", "error"),
        ("safe.vnnlib", {"POLYTRITON_PYTHON": "/no/python"}, 60, "error"),
    ],
)
def test_a_result_is_written_in_any_case(here: Path, prop: str, wrong: dict[str, str], timeout: object, verdict: str) -> None:
    (here / "bad.vnnlib").write_text("(declare-const X_0 Real")
    start = time.monotonic()
    said = script("run_instance.sh", "v1", "tiny", "net.onnx", prop, "out.txt", timeout, **wrong)
    assert said.returncode == 0
    assert (here / "out.txt").read_text() == f"{verdict}\n", said.stderr
    assert verdict != "timeout" or time.monotonic() - start < 5
    assert not list(here.glob(".polytriton*"))


@pytest.mark.slow
@bash
def test_the_scripts_refuse_what_they_do_not_know(here: Path) -> None:
    for name, args in (
        ("run_instance.sh", ("v2", "tiny", "net.onnx", "safe.vnnlib", "out.txt", 9)),
        ("run_instance.sh", ("v1", "tiny")),
        ("run_instance.sh", ("v1", "tiny", "net.onnx", "safe.vnnlib", "no/folder/out.txt", 9)),
        ("prepare_instance.sh", ("v2", "tiny", "net.onnx", "safe.vnnlib")),
        ("install_tool.sh", ("v2",)),
    ):
        said = script(name, *args)
        assert said.returncode == 2
        assert "polytriton: " in said.stderr
    assert not (here / "out.txt").exists()
    tiny.vnnlib(here / "other.vnnlib", [(0, 1)] * 5, "(<= Y_0 Y_1)")
    said = script("prepare_instance.sh", "v1", "tiny", "net.onnx", "other.vnnlib")
    assert said.returncode == 3
    assert "another network" in said.stderr


@bash
@pytest.mark.slow
def test_a_stopped_script_stops_its_own_verifier(here: Path) -> None:
    tiny.zero(here / "zero.onnx")
    (here / "slow.py").write_text("import sys, time, os\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    (here / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{here}/slow.py"\n')
    (here / "python").chmod(0o755)
    env = {**os.environ, "POLYTRITON_PYTHON": str(here / "python")}
    args = ["bash", str(SCRIPTS / "run_instance.sh"), "v1", "tiny", "zero.onnx", "safe.vnnlib", "out.txt"]
    running = subprocess.Popen([*args, "60"], env=env)
    end = time.monotonic() + 20
    while not (here / "pid").exists() or not (here / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=10) == 0
    assert (here / "out.txt").read_text() == "timeout\n"
    pid = int((here / "pid").read_text())
    while time.monotonic() < end and Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    start = time.monotonic()  # a verifier that hangs is ended within the timeout
    assert subprocess.run([*args, "3"], env=env, timeout=20).returncode == 0
    assert time.monotonic() - start <= 3
    assert (here / "out.txt").read_text() == "timeout\n"


@bash
def test_the_scripts_are_sound_bash_and_leave_others_alone() -> None:
    for path in SCRIPTS.glob("*.sh"):
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
        text = path.read_text()
        for word in ("pkill", "killall", "nvidia-smi", "sudo", "rm -rf"):
            assert word not in text, (path.name, word)


# ---- the standard's command line --------------------------------------------------------------------------------


def test_named_networks(cli: Cli, here: Path) -> None:
    vnnlib2(here / "p.vnnlib", 0.1)
    for args in (("--network", "f=net.onnx", "p.vnnlib"), ("p.vnnlib", "--network", "f=net.onnx")):
        assert cli("verify", *args).out == "unsat\n"
    assert cli("verify", "--network", "any=net.onnx", "safe.vnnlib").out == "unsat\n"
    assert cli("verify", "--network", "f=net.onnx", "p.vnnlib", "--timeout", "1e-9").out == "timed-out\n"
    vnnlib2(here / "real.vnnlib", 0.1, dtype="real")
    assert cli("verify", "--network", "f=net.onnx", "real.vnnlib").out == "unsat\n"


def test_counterexamples_of_version_two(cli: Cli, here: Path) -> None:
    vnnlib2(here / "p.vnnlib", 0.5)
    said = cli("verify", "--network", "f=net.onnx", "p.vnnlib")
    lines = said.out.splitlines()
    assert [lines[k] for k in (0, 1, 6)] == ["sat", "A float32 [1,1,2,2]", "B float32 [1,3]"]
    x, y = [float(v) for v in lines[2:6]], [float(v) for v in lines[7:]]
    assert misbehaves("net.onnx", x, y)
    said = cli("verify", "--network", "f=net.onnx", "p.vnnlib", "--serialise-assignments", "out/here")
    assert said.out == "sat\n"
    held = {p.name: to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in (here / "out" / "here").iterdir()}
    assert {k: (v.dtype, v.shape) for k, v in held.items()} == {"A.pb": (np.float32, (1, 1, 2, 2)), "B.pb": (np.float32, (1, 3))}
    assert misbehaves("net.onnx", held["A.pb"].ravel().tolist(), held["B.pb"].ravel().tolist())


@pytest.mark.parametrize(
    "args, code, word",
    [
        (["--network", "g=net.onnx", "p.vnnlib"], 2, "calls its network f, not g"),
        (["--network", "f=net.onnx", "double.vnnlib"], 3, "declared float64, the network computes in float32"),
        (["--network", "f=net.onnx", "--network", "g=net.onnx", "p.vnnlib"], 2, "needs the networks f, given are f, g"),
        (["--network", "net.onnx", "p.vnnlib"], 2, "not NAME=FILE"),
        (["--network", "f=net.onnx", "net.onnx", "p.vnnlib"], 2, "only the property"),
        (["--network", "f=none.onnx", "p.vnnlib"], 2, "no network none.onnx"),
        (["p.vnnlib"], 2, "a network and a property"),
        (["net.onnx", "none.vnnlib"], 2, "no property file"),
    ],
)
def test_mistakes(cli: Cli, here: Path, args: list[str], code: int, word: str) -> None:
    vnnlib2(here / "p.vnnlib", 0.1)
    vnnlib2(here / "double.vnnlib", 0.1, dtype="float64")
    said = cli("verify", *args)
    assert said.code == code
    assert word in said.err
    assert not said.out


def test_preparing_answers_nothing(cli: Cli, here: Path) -> None:
    said = cli("verify", "--prepare", "net.onnx", "unsafe.vnnlib", "--json", "r.jsonl")
    assert (said.code, said.out) == (0, "")
    assert not (here / "r.jsonl").exists()


def test_the_clock_of_verify_starts_with_the_command(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polytriton import Verifier

    given: list[float] = []
    ask = Verifier.verify_property

    def noted(self: Verifier, prop: object, **options: object) -> object:
        given.append(options["timeout"])  # type: ignore[arg-type]
        return ask(self, prop, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Verifier, "verify_property", noted)
    assert cli("verify", "net.onnx", "safe.vnnlib", "--timeout", "50", "--json", "r.jsonl").out == "unsat\n"
    assert 0 < given[0] < 50
    assert json.loads((here / "r.jsonl").read_text())["timeout"] == 50


def test_supports(cli: Cli) -> None:
    assert cli("supports", "--vnnlib-versions").out == "1.0\n2.0\n"
    assert {"Conv", "Gemm", "Relu"} <= set(cli("supports", "--onnx-operators").out.split())
    assert "float32" in json.loads(cli("supports", "--onnx-element-types", "--json").out)
    whole = json.loads(cli("supports", "--json").out)
    assert whole["vnnlib_versions"] == ["1.0", "2.0"]
    for name, lines in whole.items():
        assert cli("supports", "--" + name.replace("_", "-")).out.splitlines() == lines
    assert cli("supports").code == 2
    assert cli("supports", "--vnnlib-versions", "--onnx-operators").code == 2
    assert cli("--name").out == "polytriton\n"


# ---- the results file -------------------------------------------------------------------------------------------


def rows(path: str) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_the_official_results(cli: Cli, here: Path) -> None:
    folder = here / "tiny_2026"
    (folder / "onnx").mkdir(parents=True)
    tiny.brightest(folder / "onnx" / "net.onnx")
    tiny.robust(folder / "safe.vnnlib", 0.1)
    with gzip.open(folder / "unsafe.vnnlib.gz", "wt") as packed:
        packed.write((here / "unsafe.vnnlib").read_text())
    lines = ["./onnx/net.onnx,safe.vnnlib,60", "./onnx/net.onnx,unsafe.vnnlib,1e-9", "./onnx/net.onnx,safe.vnnlib,60"]
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")
    command = ("run", "--instances", "tiny_2026/instances.csv", "--json", "r.jsonl", "--vnncomp-csv", "v.csv")
    assert cli(*command).code == 0
    got = rows("v.csv")
    assert [r[:3] for r in got] == [["tiny_2026", *line.split(",")[:2]] for line in lines]
    assert [r[4] for r in got] == ["unsat", "timeout", "unsat"]
    assert float(got[0][3]) > 0  # the network was opened for the first
    assert float(got[2][3]) < 0.01
    assert all(float(r[5]) >= 0 for r in got)
    assert cli(*command).code == 2
    (here / "v.csv").write_text("\n".join(",".join(r) for r in got[:2]) + "\ntiny_2026,./onnx/ne")  # torn by a full disk
    assert cli(*command, "--resume", "--timeout", "60").code == 0
    again = rows("v.csv")
    assert [r[:3] for r in again] == [r[:3] for r in got]
    assert [r[4] for r in again] == ["unsat", "sat", "unsat"]
    assert again[0] == got[0]
    assert cli(*command, "--overwrite", "--category", "mine").code == 0
    assert {r[0] for r in rows("v.csv")} == {"mine"}
    assert len(rows("v.csv")) == 3
    assert cli("compile", "net.onnx", "-o", "net.poly").code == 0
    assert cli(*command[:3], "net.poly", "--vnncomp-csv", "w.csv").code == 0
    assert [r[1:3] for r in rows("w.csv")] == [r[1:3] for r in got]  # as the list has them
    assert cli(*command[:3], "--vnncomp-csv", os.devnull).code == 2


def test_an_official_file_of_others_is_left_alone(cli: Cli, here: Path) -> None:
    (here / "list.csv").write_text("net.onnx,safe.vnnlib\n")
    for text in ("a,b\n", "tiny,net.onnx,safe.vnnlib,0,maybe,1\n"):
        (here / "v.csv").write_text(text)
        said = cli("run", "--instances", "list.csv", "--json", "r.jsonl", "--resume", "--vnncomp-csv", "v.csv")
        assert said.code == 2
        assert "line 1" in said.err
        assert (here / "v.csv").read_text() == text
    assert cli("run", "net.onnx", "--vnnlib", "safe.vnnlib", "--vnncomp-csv", "w.csv").code == 2
    assert cli("run", "--instances", "list.csv", "--csv", "w.csv", "--vnncomp-csv", "./w.csv").code == 2
