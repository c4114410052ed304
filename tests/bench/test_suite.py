"""The suites' command and their parts, on small sizes."""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import polytriton
from bench import cpu, instances
from bench.core.command import FAILED
from bench.core.measure import Case, PartJob, measure_runs, repeat
from bench.core.table import read_rows
from bench.nets import goals
from bench.report.runs import read_run
from bench.suite import __main__ as suite
from bench.suite import growth
from polytriton.api import Verifier
from tests.processes import plain_environment

ROOT = Path(__file__).parents[2]
JOB = PartJob("cpu", 1, True, 3, 0.5)


def tiny(path: Path, shape: tuple[int, ...]) -> None:
    """Two dense layers on an input of that shape."""
    rng = np.random.default_rng(0)
    sizes = ((16, int(np.prod(shape))), (10, 16))
    held = [numpy_helper.from_array((rng.standard_normal(s) * (2 / s[1]) ** 0.5).astype(np.float32), f"w{k}") for k, s in enumerate(sizes)]
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "w0"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w1"], ["y"], transB=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, *s]) for n, s in (("x", shape), ("y", (10,)))]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.fixture(scope="session")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as bench.cpu wants it, with networks that take no time."""
    folder = tmp_path_factory.mktemp("nets")
    for name, (image, _) in cpu.NETS.items():
        shape = (1, 6, 6) if image == "mnist_x" else (3, 4, 4)
        tiny(folder / f"{name}.onnx", shape)
        np.save(folder / f"{image}.npy", np.random.default_rng(1).random((1, *shape)))
    return folder


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = plain_environment(**environment)
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_goals_from_the_command_line(nets: Path, tmp_path: Path) -> None:
    done = command("bench.cpu", "--nets", str(nets), "--quick", "--only", "fc6x500", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "goals.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [(r["network"], r["batch"]) for r in rows] == [("fc6x500", "1"), ("fc6x500", "8")]
    assert all(r["part"] == "goals" and r["threads"] == "1" and r["machine"] and r["commit"] and float(r["conv_gflops"]) > 0 for r in rows)
    assert float(rows[0]["of_goal"]) == pytest.approx(float(rows[0]["seconds"]) / 0.06)
    assert float(rows[1]["worst"]) <= float(rows[0]["worst"]), "the batch holds the first image"
    assert [r["network"] for r in read_run(tmp_path / "out").timed_rows("goals")] == [r["network"] for r in rows]


def test_the_networks_of_goals_come_from_the_repository(tmp_path: Path) -> None:
    """A fresh clone measures what every other one does: nothing outside it is needed, and no seed moves."""
    goals.write(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*(f"{n}.onnx" for n in cpu.NETS), *(f"{n}.npy" for n, _ in cpu.NETS.values())}
    kept = {"fc6x500": "1c87a2f86371a2d5", "resnet_small": "4ecbf6c8ab2cce12", "convbig": "acefeb59d1812528"}  # of the weights
    graphs = {n: onnx.load(tmp_path / f"{n}.onnx").graph for n in kept}
    assert {n: hashlib.sha256(b"".join(t.raw_data for t in g.initializer)).hexdigest()[:16] for n, g in graphs.items()} == kept
    assert cpu.folder(tmp_path) == tmp_path


def test_no_cold_run_is_a_result(tmp_path: Path, nets: Path) -> None:
    """The first run compiles and fills caches, and a busy machine makes it longer than any quick budget."""
    net = polytriton.compile(nets / "fc6x500.onnx", check=False)
    first = [True]

    def run() -> float:
        if first.pop() if first else False:
            time.sleep(0.3)
        return 0.0

    row = measure_runs(net, run, 1, PartJob("cpu", 1, True, 2, 0.1))
    assert row["first"] >= 0.3 and row["seconds"] < 0.1 and "note" not in row


@pytest.mark.slow
def test_a_row_over_its_limit_ends_its_group_and_says_so(nets: Path, tmp_path: Path) -> None:
    assert suite.run_part("goals", ["fc6x500"], PartJob("cpu", 1, True, 1, 0.1, nets=nets), 0.05, tmp_path / "goals.csv", {}) == 0
    (row,) = read_rows(tmp_path / "goals.csv")
    assert {k: v for k, v in row.items() if v} == {"network": "fc6x500", "note": "stopped: over its time", "part": "goals"}


def test_a_group_that_fails_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in cpu.NETS:
        (tmp_path / f"{name}.onnx").write_bytes(b"no network")
    job = PartJob("cpu", 1, True, 1, 0.1, nets=tmp_path)
    assert suite.run_part("goals", ["fc6x500"], job, 60, tmp_path / "goals.csv", {}) == FAILED
    assert "fc6x500" in (tmp_path / "goals.csv").read_text() and "Error" in capsys.readouterr().out


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["goal"], "no part 'goal'"),
        (["goals", "--threads", "0"], "are 1 or more"),
        (["goals", "--device", "gpu"], "choose cpu, cuda"),
        (["goals", "--device", "cuda", "--cpu"], "says nothing of --device cuda" if torch.cuda.is_available() else "needs an NVIDIA GPU"),
        (["goals", "--only", "nothing"], "no group 'nothing'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            suite.main(arguments)
        assert stopped.value.code == 2 and words in capsys.readouterr().err


def test_groups_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["zoo", "growth", "--list"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out[0].split(", ")) == 24 and out[1] == f"growth: {', '.join(growth.SIZES)}"


def test_rows_grow_linearly_in_operations() -> None:
    rows = list(growth.work("rows", JOB))
    assert [r["value"] for r in rows] == [1, 4, 16] and [r["rows"] for r in rows] == [1, 4, 16]
    assert rows[2]["gflop"] == pytest.approx(16 * rows[0]["gflop"])
    assert all(r["seconds"] > 0 and r["runs"] >= 1 for r in rows)


@pytest.mark.parametrize("axis", [a for a in growth.SIZES if a != "rows"])
def test_networks_grow_along_one_size(axis: str) -> None:
    small, large = (growth.network(axis, v) for v in growth.SIZES[axis][:2])
    if axis == "batch":
        assert small.nodes == large.nodes
        return
    sizes = [(len(n.nodes), sum(x.size for x in n.nodes)) for n in (small, large)]
    assert sizes[0] != sizes[1]


def test_margins_are_those_of_the_public_interface(nets: Path) -> None:
    net = Verifier.from_net(growth.dense(16), **JOB.options())
    case = Case(net, np.random.default_rng(0).random((3, net.inputs)), 0.01)
    row = case.measure(3, JOB)
    each = [float(net.margins(case.lo[k], case.hi[k], case.forms[k]).min()) for k in range(3)]
    assert row["worst"] == pytest.approx(min(each), rel=1e-6) and row["batch"] == 3
    assert row["gflop"] > 0 and row["rows"] >= 27
    y = net.predict(case.x)
    assert row["worst"] <= min((f @ v).min() for f, v in zip(case.forms, y, strict=True))


def test_repetitions_stop_at_the_budget() -> None:
    made: list[int] = []
    times = repeat(lambda: made.append(1), PartJob("cpu", 1, False, 7, 60.0))
    assert len(times) == 7 and len(made) > 7 * 50, "quick runs are averaged over many"
    assert len(repeat(lambda: time.sleep(0.05), PartJob("cpu", 1, False, 100, 0.3))) < 10


def test_processor_time_leaves_out_what_others_do() -> None:
    """Sleep stands for a turn of somebody else's; the row is of the work alone, and its budget too."""

    def run() -> None:
        begin = time.process_time()
        while time.process_time() - begin < 0.03:
            pass
        time.sleep(0.3)

    job = PartJob("cpu", 1, False, 3, 60.0, clock="processor")
    assert all(0.03 <= t < 0.2 for t in repeat(run, job))
    assert len(repeat(run, replace(job, budget=0.2))) == 3, "a budget of the clock would have ended with the first"
    assert min(repeat(run, replace(job, clock="wall", budget=0.2))) > 0.3


@pytest.mark.slow
def test_the_data_part(data: Path, tmp_path: Path) -> None:
    done = command("bench.suite", "data", "distribution", "--quick", "--out", str(tmp_path), "--only", "mnist_fc", "mnist-6x500-robust")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path)
    assert len(run.timed_rows("data")) == instances.QUICK and {r["benchmark"] for r in run.timed_rows("data")} == {"mnist_fc"}
    assert all(r["note"] != "CONTRADICTS" for r in run.timed_rows("data"))
    assert {r["network"] for r in run.timed_rows("distribution")} == {"mnist-6x500"}
