"""bench.gpu without a GPU: every part in the interpreter, files, and processes that die."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.core.children import Gone
from bench.core.command import FAILED
from bench.core.table import Table, slug
from bench.gpu import __main__ as gpu
from bench.gpu import finished, first
from bench.gpu import kernels as gpu_kernels
from bench.gpu import setting as gpu_report
from bench.gpu.setting import Setting, ceiling
from bench.nets.grow import NETWORKS
from polytriton.arithmetic import ARITHMETICS
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from tests.bench import dying
from tests.processes import quick_environment

ROOT = Path(__file__).parents[2]
ABSENT = ("msgspec", "safetensors", "typer", "numba", "hypothesis")  # what a bare machine may lack
HIDE = f"""
import importlib.util, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
_find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in {ABSENT} else _find(name, package)
import quick_interpreter
"""


def command(*arguments: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = quick_environment(*filter(None, [path]), **environment)
    return subprocess.run([sys.executable, "-m", "bench.gpu", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


def needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")


def test_every_arithmetic_of_a_real_run_has_an_engine() -> None:
    """A dry run takes two of them only."""
    needs_triton()
    for setting in (Setting(True, 0.0), Setting(False, 0.0)):
        for numerics in gpu_kernels.arithmetics(setting):
            assert Engine(compile_net(NETWORKS["tiny"]()), dtype=numerics, kernels="interpret").coefficients is ARITHMETICS[numerics]


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in gpu.no_compiler() and "C compiler" in gpu.no_compiler()
    monkeypatch.setenv("CC", sys.executable)  # something that exists
    monkeypatch.setattr(gpu.sysconfig, "get_paths", lambda: {"include": "/no/such/folder"})
    assert "Python.h" in gpu.no_compiler()


@pytest.mark.slow
def test_every_part_runs_dry_on_a_bare_machine(tmp_path: Path) -> None:
    needs_triton()
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    bare = subprocess.run([sys.executable, "-c", "import msgspec"], env=quick_environment(tmp_path), capture_output=True)
    assert bare.returncode == 1, "the modules are hidden"
    done = command("--dry", "--out", str(tmp_path / "out"), path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out").exists(), "times of a dry run are no results"
    parts = dict(part.split(" on interpreter, a dry run: times mean nothing\n") for part in done.stdout.strip().split("\n\n"))
    assert tuple(parts) == gpu.PARTS
    steps = {line.split()[-4] for line in parts["kernels"].splitlines()[1:]}
    assert steps >= {"dense_step", "conv_step", "relax_rows", "concretize_rows", "join_rows", "start_rows", "move_rows", "count_staying"}
    assert all(line.endswith("pass") for line in parts["kernels"].splitlines()[1:])
    for word in ("copy", "conv_step", "dense_step", "join_rows", "start_rows", "concretize_rows", "fused", "apart", "64x16x16 w4 s2"):
        assert word in parts["micro"]
    assert {tuple(line.split()[2:4]) for line in parts["zoo"].splitlines()[1:]} >= {("kernels", "float64"), ("torch", "float64")}
    assert len(parts["interval"].splitlines()) == 5
    assert {line.split()[0] for line in parts["first"].splitlines()[1:]} == set(first.groups(True))
    assert all(" pass" in line for line in parts["first"].splitlines()[1:])
    assert [line.split()[2] for line in parts["ascent"].splitlines()[1:]] == ["slopes", "signs", "turn"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    needs_triton()
    done = command("micro")
    assert (done.returncode, done.stdout) == (gpu.NO_DEVICE, "")
    assert "needs an NVIDIA GPU" in done.stderr and "--dry" in done.stderr and "Traceback" not in done.stderr


def test_a_part_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "kernel"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "no part 'kernel'" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_makefile_runs_it_without_an_environment_of_its_own() -> None:
    done = subprocess.run(["make", "-n", "bench-gpu", "PARTS=kernels micro", "PYTHON=python9"], cwd=ROOT, capture_output=True, text=True)
    assert "-m bench.gpu kernels micro" in done.stdout
    assert ("python9" in done.stdout) != (ROOT / ".venv" / "bin" / "python").exists()


# ---- files, devices, processes ---------------------------------------------------------------------------------------


def test_rows_are_on_disk_as_soon_as_they_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out" / "x.csv"
    table = Table(("case", "seconds"), path, {"device": "D"})
    table.add({"case": "a", "seconds": 0.123456})
    with path.open(newline="") as f:  # the table is still open
        assert list(csv.DictReader(f)) == [{"case": "a", "seconds": "0.123456", "device": "D"}]
    assert "0.1235" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no such columns: speed"):
        table.add({"speed": 1})
    table.close()


@pytest.mark.parametrize(
    "name, memory",
    [
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA H200", 4.8),
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA A100 80GB PCIe", 1.935),
        ("NVIDIA A100-SXM4-40GB", 1.555),
    ],
)
def test_devices_have_their_own_ceilings(name: str, memory: float) -> None:
    found = ceiling(name)
    assert found is not None and found.memory == memory
    assert found.flops("tf32x3") * 3 == pytest.approx(found.tf32 * 1e12)


def test_a_device_nobody_knows_has_no_ceiling() -> None:
    assert ceiling("Some GPU 100") is None


def test_a_device_names_its_files() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


@pytest.mark.slow
def test_a_process_that_dies_leaves_a_row_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "part_module", lambda part: dying)
    assert gpu.run_part("interval", [], 60, Setting(False, 0.0), tmp_path, "Device 1", {}) == FAILED
    with (tmp_path / "device-1_interval.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [r["layer"] for r in rows] == ["a", "layers", "a", "networks"]
    assert all("ended with exit code 9" in rows[k]["note"] for k in (1, 3))
    assert "exit code 9" in capsys.readouterr().out


def test_a_process_over_its_time_is_stopped_and_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "part_module", lambda part: dying)
    monkeypatch.setattr(gpu, "GRACE", 0.2)
    start = time.monotonic()
    assert gpu.run_part("interval", ["sleep"], 0.5, Setting(True, 0.0), tmp_path, "D", {}) == 0
    assert time.monotonic() - start < 20


def finishing(monkeypatch: pytest.MonkeyPatch, dies: set[str], rows: dict[str, list[dict[str, Any]]] | None = None) -> list[str]:
    """A part of three groups, those named die after a row; the groups that are asked for, in order."""
    columns, asked = ("network", "verdict", "note"), list[str]()
    part = SimpleNamespace(COLUMNS=columns, SHOWN=columns, groups=lambda dry: ["a", "b", "c"], work=None)

    def rows_of(make: Any, work: Any, some: list[str], setting: Any, seconds: Any) -> Any:
        asked.extend(some)
        yield from (rows or {}).get(some[0], [{"network": some[0], "verdict": "pass"}])
        if some[0] in dies:
            raise Gone("its process died")

    monkeypatch.setattr(gpu, "part_module", lambda name: part)
    monkeypatch.setattr(gpu, "rows_of", rows_of)
    return asked


def kept(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="") as f:
        return [(row["network"], row["note"]) for row in csv.DictReader(f)]


def test_a_run_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Groups that came to their end are kept; of one that died its rows go, and it is done again."""
    dies = {"b"}
    asked, path = finishing(monkeypatch, dies), tmp_path / "device-1_micro.csv"

    def run(*only: str, anew: bool = False) -> int:
        asked.clear()
        return gpu.run_part("micro", list(only), 60, Setting(False, 0.0), tmp_path, "Device 1", {"commit": "c0"}, anew=anew)

    assert run() == FAILED and asked == ["a", "b", "c"]
    assert kept(path) == [("a", ""), ("b", ""), ("b", "its process died"), ("c", "")]
    dies.clear()
    assert run() == 0 and asked == ["b"]
    assert sorted(kept(path)) == [("a", ""), ("b", ""), ("c", "")]
    assert run() == 0 and asked == []
    assert run("a", anew=True) == 0 and asked == ["a"] and len(kept(path)) == 3
    monkeypatch.setattr(finished, "code_digest", lambda: "of other code")
    assert run("c") == 0 and asked == ["c"]
    assert kept(path) == [("c", "")] and len(kept(tmp_path / "device-1_micro.c0.csv")) == 3, "what other code has measured is set aside"


def test_a_check_that_failed_stays_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = finishing(monkeypatch, set(), {"b": [{"network": "b", "verdict": "FAIL"}]})
    for groups in (["a", "b", "c"], []):
        asked.clear()
        assert gpu.run_part("micro", [], 60, Setting(False, 0.0), tmp_path, "D", {}) == FAILED and asked == groups
    assert gpu.run_part("micro", ["a"], 60, Setting(False, 0.0), tmp_path, "D", {}) == 0


def test_a_group_out_of_time_is_not_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = finishing(monkeypatch, set())
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    own = gpu.rows_of

    def slowly(*given: Any, **options: Any) -> Any:
        yield from own(*given, **options)
        if given[2] == ["a"]:
            time.sleep(max(0.0, given[3].left) + 0.01)

    monkeypatch.setattr(gpu, "rows_of", slowly)
    gpu.run_part("micro", [], 0.2, Setting(False, 0.0), tmp_path, "D", {})
    assert "a" in asked and "a" not in (tmp_path / "d_micro.finished").read_text().split()


def test_a_part_that_breaks_takes_no_other_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    """But where not even the driver works, nothing else is tried."""
    done: list[str] = []

    def run(part: str) -> int:
        done.append(part)
        if part == "b":
            raise OSError("no space left on device")
        return {"c": FAILED, "x": gpu.NOTHING_RUNS}.get(part, 0)

    assert gpu.run_parts("abcd", run) == FAILED and done == list("abcd")
    assert "failed: b, c" in capsys.readouterr().err
    assert gpu.run_parts("xab", run) == FAILED and done == list("abcdx")
    assert "a, b left out" in capsys.readouterr().err
    assert gpu.run_parts("ad", run) == 0


@pytest.mark.parametrize("row", [{"network": "driver", "verdict": "FAIL"}, None])
def test_without_a_driver_nothing_is_tried(row: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = finishing(monkeypatch, {"a"} if row is None else set(), {"a": [row] if row else []})
    gpu.part_module("first").NEEDED = ("a",)  # type: ignore[attr-defined]
    assert gpu.run_part("first", [], 60, Setting(False, 0.0), tmp_path, "D", {}) == gpu.NOTHING_RUNS and asked == ["a"]


def test_the_first_minute_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plainly, and each check for itself."""
    needs_triton()
    load.prepare(interpret=True)

    def broken(kernel: Any) -> Any:
        raise RuntimeError("PTX was compiled with an unsupported toolchain")

    monkeypatch.setattr(load, "function", broken)
    rows = {row["what"]: row for row in first.work("triton", Setting(True, time.time() + 60))}
    assert rows["kernel"]["verdict"] == "FAIL" and rows["kernel"]["note"] == "RuntimeError: PTX was compiled with an unsupported toolchain"
    assert rows["version"]["verdict"] == rows["products"]["verdict"] == "pass"


def test_a_failed_check_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verdicts = iter(["pass", "FAIL", "pass"])
    monkeypatch.setattr(gpu, "rows_of", lambda *_, **__: iter([{"network": "n", "verdict": v} for v in verdicts]))
    assert gpu.run_part("kernels", [], 60, Setting(True, 0.0), tmp_path, "D", {}) == FAILED
    monkeypatch.setattr(gpu, "rows_of", lambda *_, **__: iter([{"network": "n", "verdict": "pass"}]))
    assert gpu.run_part("kernels", [], 60, Setting(True, 0.0), tmp_path, "D", {}) == 0


def test_only_a_lost_device_ends_a_process() -> None:
    assert gpu_report.is_lost(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not gpu_report.is_lost(torch.OutOfMemoryError("CUDA out of memory"))
    assert not gpu_report.is_lost(ValueError("out of resource: shared memory"))


@pytest.mark.slow
def test_code_made_before_is_what_a_network_runs(tmp_path: Path) -> None:
    """What bench.gpu.code writes of a network has code for every kernel that its engine asks for, and its Plan."""
    from bench.gpu.code import read_code, write_code
    from bench.gpu.zoo import Problem
    from polytriton.kernels.files import emit_files

    compiled = Problem("tiny", "normal", 1).compiled
    count = write_code(compiled, "cuda:90", ["float64"], tmp_path / "tiny-normal.zip")
    held = read_code(compiled, tmp_path / "tiny-normal.zip").filed
    assert held is not None and held.plan == compiled.plan
    names = {k.name for k in emit_files(compiled, ["cuda:90"], ["float64"]).machine}
    assert held.code["cuda:90"].keys() == names and len(names) == count > 10
