"""bench.gpu without a GPU: every part in the interpreter, the oracle against wrong kernels, files, and processes that die."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.core.children import Gone
from bench.core.command import FAILED
from bench.core.table import Table, slug
from bench.gpu import __main__ as gpu
from bench.gpu import ascent as gpu_ascent
from bench.gpu import finished, first
from bench.gpu import kernels as gpu_kernels
from bench.gpu import setting as gpu_report
from bench.gpu.reference import Oracle
from bench.gpu.setting import Setting, ceiling
from bench.nets.grow import NETWORKS
from polytriton.arithmetic import ARITHMETICS
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.player import Player, RunState
from polytriton.runtime.results import Results
from tests.bench import dying
from tests.kernels.fake_cuda import FakeCuda

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
"""


def command(*arguments: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(path or ""), str(ROOT)))), **environment}
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
    bare = subprocess.run([sys.executable, "-c", "import msgspec"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True)
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
    assert {line.split()[0] for line in parts["first"].splitlines()[1:]} == {"driver", "triton", "rows", "runs", "ascent"}
    assert all(" pass" in line for line in parts["first"].splitlines()[1:])
    assert [line.split()[2] for line in parts["ascent"].splitlines()[1:]] == ["slopes", "signs", "turn"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    needs_triton()
    done = command("micro")
    assert (done.returncode, done.stdout) == (gpu.NO_DEVICE, "")
    assert "needs an NVIDIA GPU" in done.stderr and "--dry" in done.stderr and "Traceback" not in done.stderr


def test_a_part_that_does_not_exist_is_refused() -> None:
    done = command("kernel")
    assert done.returncode == 2
    assert "no part 'kernel'" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_makefile_runs_it_without_an_environment_of_its_own() -> None:
    done = subprocess.run(["make", "-n", "bench-gpu", "PARTS=kernels micro", "PYTHON=python9"], cwd=ROOT, capture_output=True, text=True)
    assert "-m bench.gpu kernels micro" in done.stdout
    assert ("python9" in done.stdout) != (ROOT / ".venv" / "bin" / "python").exists()


# ---- checks that find something --------------------------------------------------------------------------------------

SIZE = 6


def relax(change: str = "", by: float = 0.0) -> dict[str, float]:
    """What the oracle says to a relax_rows made in plain torch, one of whose results is off."""
    g = torch.Generator().manual_seed(0)
    n = 5
    m, below, above, cut, t = (torch.randn(n if k == 0 else 1, SIZE, generator=g, dtype=torch.float64) for k in range(5))
    t = t.abs()
    constant, error = torch.randn(n, generator=g, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    was = {
        "m_ptr": m.flatten(), "image_ptr": torch.zeros(n, dtype=torch.int64), "below_ptr": below, "above_ptr": above, "cut_ptr": cut,
        "t_ptr": t, "floor_ptr": torch.zeros(1, dtype=torch.float64), "constant_ptr": constant, "error_ptr": error,
    }  # fmt: skip
    out = m * torch.where(m < 0, above, below)
    now = {
        "constant_ptr": constant + torch.where(m < 0, m * cut, 0.0).sum(1),
        "error_ptr": error + (out.abs() * t).sum(1),
        "out_ptr": out.flatten(),
    }
    if change:
        now[change][2] += by
    constants = {
        "RELU": True, "CHARGE": True, "SIZE": SIZE, "LINE": SIZE, "C": SIZE, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "BIAS": "none",
        "SUM_ERROR": 1.0, **{p + k: 0 if k == "START" else SIZE for p in ("", "T_") for k in ("START", "PLANE", "PITCH")},
    }  # fmt: skip
    return dict(Oracle(constants, was, now, n, ARITHMETICS["float64"]).check("relax_rows"))


def test_the_oracle_passes_what_is_right() -> None:
    assert max(relax().values()) <= 1


@pytest.mark.parametrize(
    "change, by, what",
    [
        ("constant_ptr", 1e-13, "constant"),
        ("error_ptr", 1e-12, "error"),
        ("error_ptr", -1e-13, "error paid"),
        ("out_ptr", 1e-15, "rows"),
        ("out_ptr", float("nan"), "rows"),
    ],
)
def test_the_oracle_finds_what_is_wrong(change: str, by: float, what: str) -> None:
    assert relax(change, by)[what] > 1


# a library kernel's line, the same line wrong, and the step and quantity that show it
WRONG = [
    ("conv", "y = y0 - tap_h * c.DH", "y = y0 + tap_h * c.DH", "conv_step", "product"),
    ("dense", "acc = multiply(x, w, acc, c.T, c.FORM)", "acc = multiply(x * 0.999, w, acc, c.T, c.FORM)", "dense_step", "product"),
    ("rows", "tl.where(x >= 0, 0.0, ", "tl.where(x < 0, 0.0, ", "relax_rows", "constant"),
    ("rows", "tl.sum(charged, 1) * c.SUM_ERROR + floor", "tl.sum(charged, 1) * 0.999 + floor", "dense_step", "error paid"),
    ("join", "c.A_OH - c.OH", "c.A_OH - c.OH + 1", "join_rows", "rows"),
    ("start", "- (row_h * c.GAP_RH + c.GAP_H)", "- (row_h * c.GAP_RH - c.GAP_H - 1)", "start_rows", "rows"),
    ("concretize", "tl.where(x < 0, hi, lo)", "tl.where(x < 0, lo, hi)", "concretize_rows", "sound"),
    ("concretize", "value - slack", "value - slack - 1", "concretize_rows", "bound"),
    ("compact", "before + tl.cumsum", "before + 1 + tl.cumsum", "move_rows", "rows"),
]
MUTATE = """
import sys, time
from bench.gpu.kernels import _steps
from bench.nets.grow import tiny
from bench.gpu.setting import Setting
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net
from tests.kernels.planted import planted
compiled = compile_net(tiny())
for module, right, wrong, step, what in {WRONG}:
    with planted(module, right, wrong):
        rows = list(_steps(compiled, "float64", Setting(True, time.time() + 300)))
    found = {{(row["step"], row["what"]) for row in rows if not row["fraction"] <= 1}}
    assert (step, what) in found, (wrong, found)
"""


@pytest.mark.slow
def test_a_wrong_kernel_fails() -> None:
    needs_triton()
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, "-c", MUTATE.format(WRONG=WRONG)]
    done = subprocess.run(script, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_replay_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's bounds that are not brought back where rows went ahead."""
    needs_triton()
    compiled, setting = compile_net(NETWORKS["tiny"]()), Setting(True, time.time() + 600)
    (row,) = gpu_kernels.replay(compiled, "float64", setting)
    assert row["fraction"] == 0.0 and row["note"].endswith("captured: no") and "again: 0" not in row["note"]
    finish = Player._finish

    def forgets(self: Player, run: RunState, *given: Any) -> Results:
        found = finish(self, run, *given)
        run.closing = None
        return found

    monkeypatch.setattr(Player, "_finish", forgets)
    (row,) = gpu_kernels.replay(compiled, "float64", setting)
    assert row["fraction"] == float("inf") and row["note"].startswith("refine of batch")


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


def test_a_process_that_dies_leaves_a_row_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "part_module", lambda part: dying)
    assert gpu.run_part("interval", [], 60, False, tmp_path, "Device 1", {}) == FAILED
    with (tmp_path / "device-1_interval.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [r["layer"] for r in rows] == ["a", "layers", "a", "networks"]
    assert all("ended with exit code 9" in rows[k]["note"] for k in (1, 3))
    assert "exit code 9" in capsys.readouterr().out


def test_a_process_over_its_time_is_stopped_and_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "part_module", lambda part: dying)
    monkeypatch.setattr(gpu, "GRACE", 0.2)
    start = time.monotonic()
    assert gpu.run_part("interval", ["sleep"], 0.5, True, tmp_path, "D", {}) == 0
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
        return gpu.run_part("micro", list(only), 60, False, tmp_path, "Device 1", {"commit": "c0"}, anew=anew)

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
        assert gpu.run_part("micro", [], 60, False, tmp_path, "D", {}) == FAILED and asked == groups
    assert gpu.run_part("micro", ["a"], 60, False, tmp_path, "D", {}) == 0


def test_a_group_out_of_time_is_not_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = finishing(monkeypatch, set())
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    own = gpu.rows_of

    def slowly(*given: Any, **options: Any) -> Any:
        yield from own(*given, **options)
        if given[2] == ["a"]:
            time.sleep(max(0.0, given[3].left) + 0.01)

    monkeypatch.setattr(gpu, "rows_of", slowly)
    gpu.run_part("micro", [], 0.2, False, tmp_path, "D", {})
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
    assert gpu.run_part("first", [], 60, False, tmp_path, "D", {}) == gpu.NOTHING_RUNS and asked == ["a"]


class OnFake(Setting):
    """A dry run on a GPU that is not there."""

    device, kernels = torch.device("cuda"), "interpret"  # type: ignore[assignment]


@contextmanager
def on_fake(patch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Settings are pinned beneath torch's own functions, where such a GPU is not seen."""
    patch.setattr(first, "plain_products", lambda device: True)
    for part in (gpu_kernels, gpu_ascent):
        patch.setattr(part, "pin_settings", nullcontext)
    with FakeCuda().present() as cuda:
        yield cuda


@pytest.mark.parametrize("group", ["driver", "triton", *(pytest.param(g, marks=pytest.mark.slow) for g in ("rows", "runs", "ascent"))])
def test_the_first_minute_is_clean_on_a_gpu_that_is_not_there(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    load.prepare(interpret=True)
    with on_fake(monkeypatch) as cuda:
        rows = list(first.work(group, OnFake(True, time.time() + 600)))
    assert rows and all(row["verdict"] == "pass" for row in rows), rows
    # the oracle copies what is yet to be written too
    assert not [f for f in cuda.faults if not f.text.startswith("aten::clone reads")]
    assert group in ("rows", "ascent") or cuda.graphs or group == "driver"


@pytest.mark.slow
@pytest.mark.parametrize("part", [gpu_kernels, gpu_ascent])
def test_parts_are_clean_on_a_gpu_that_is_not_there(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    load.prepare(interpret=True)
    with on_fake(monkeypatch) as cuda:
        rows = list(part.work("tiny", OnFake(True, time.time() + 600)))
    assert rows and all(row["verdict"] in ("pass", "") for row in rows), rows
    # the oracle copies what is yet to be written too
    assert not [f for f in cuda.faults if not f.text.startswith("aten::clone reads")]


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
    assert gpu.run_part("kernels", [], 60, True, tmp_path, "D", {}) == FAILED
    monkeypatch.setattr(gpu, "rows_of", lambda *_, **__: iter([{"network": "n", "verdict": "pass"}]))
    assert gpu.run_part("kernels", [], 60, True, tmp_path, "D", {}) == 0


def test_only_a_lost_device_ends_a_process() -> None:
    assert gpu_report.is_lost(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not gpu_report.is_lost(torch.OutOfMemoryError("CUDA out of memory"))
    assert not gpu_report.is_lost(ValueError("out of resource: shared memory"))
