"""The table of a competition's benchmarks: kinds of networks, what is refused, what is absent."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import competition

UNSAFE = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)\n" + "".join(
    f"(assert (>= X_{i} 0))(assert (<= X_{i} 1))\n" for i in range(2)
)


def network(*ops: str) -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h0"])]
    nodes += [helper.make_node(op, [f"h{k}"], [f"h{k + 1}"]) for k, op in enumerate(ops)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2]), (f"h{len(ops)}", [1, 1]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.ones((2, 1), np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "good/onnx/a.onnx": network("Relu"), "good/onnx/b.onnx.gz": gzip.compress(network("Relu")), "good/onnx/c.onnx": network("Tanh"),
        "odd/onnx/d.onnx": network("Tan"), "gone/onnx/e.onnx": b"version https://git-lfs.github.com/spec/v1\n",
        "good/p.vnnlib": (UNSAFE + "(assert (>= Y_0 3))\n").encode(),
    }  # fmt: skip
    files["good/onnx/z.onnx.gz"] = gzip.compress(network("Sigmoid"))  # the list names it so
    files["good/instances.csv"] = b"onnx/a.onnx,p.vnnlib,9\nonnx/b.onnx,p.vnnlib,9\nonnx/z.onnx.gz,p.vnnlib,9\nonnx/c.onnx,p.vnnlib,9\n"
    files["odd/odd_instances.csv"] = b"onnx/d.onnx,../good/p.vnnlib,9\n"
    files["gone/instances.csv"] = b"onnx/e.onnx,../good/p.vnnlib,9\nonnx/f.onnx,../good/p.vnnlib,9\n"
    for name, data in files.items():
        (tmp_path / "year" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "year" / name).write_bytes(data)
    return tmp_path / "year"


@pytest.mark.slow
def test_a_line_a_kind_and_a_benchmark(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(folder), "--scratch", str(tmp_path / "s"), "--csv", str(tmp_path / "out.csv"), "--timeout", "90"]  # of a busy machine
    given += ["--one-bound"]
    assert competition.main(given) == 1, "one of two benchmarks whose files are there"
    said = capsys.readouterr().out
    assert "good: 3 of 3 kinds load, 3 bounded\n" in said and "gone: files absent" in said and "odd: 0 of 1 kinds load" in said
    assert "50% of the benchmarks" in said
    with (tmp_path / "out.csv").open(newline="") as f:
        rows = {(r["benchmark"], r["operators"]): r for r in csv.DictReader(f)}
    assert rows["good", "MatMul:1 Relu:1"]["networks"] == "2" and rows["good", "MatMul:1 Relu:1"]["verdict"] == "unsat"
    assert {r["asked"] for r in rows.values()} == {"one bound"}
    assert rows["odd", "MatMul:1 Tan:1"]["loads"] == "False" and "Tan" in rows["odd", "MatMul:1 Tan:1"]["message"]


def test_a_folder_of_no_benchmarks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert competition.main([str(tmp_path)]) == 2
    assert "instances.csv" in capsys.readouterr().err
