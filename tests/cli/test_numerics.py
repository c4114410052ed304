"""`--numerics interval` from the command line: a verdict says under which arithmetic it was proved, mistakes meet a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.cli.conftest import Cli
from tests.cli.tiny import save

pytest.importorskip("triton", reason="Triton is not installed")
INTERVAL = ("--numerics", "interval", "--device", "interpret")


def test_a_verdict_names_its_arithmetic(cli: Cli, here: Path) -> None:
    said = cli("verify", "net.onnx", "safe.vnnlib", *INTERVAL, "--json", "-")
    record = json.loads(said.out)
    assert said.code == 0 and record["verdict"] == "unsat" and record["numerics"] == "interval"
    assert "unsat" in said.err and "interval arithmetic" in said.err
    folded = json.loads(cli("verify", "net.onnx", "safe.vnnlib", "--json", "-").out)
    assert folded["numerics"] == "folded" and folded["key"] != record["key"]
    assert abs(folded["margin"] - record["margin"]) < 1e-5


def test_a_certificate_does_not_depend_on_it(cli: Cli, here: Path) -> None:
    said = cli("verify", "net.onnx", "safe.vnnlib", *INTERVAL, "--semantics", "real", "--certificate", "c.cert")
    assert said.code == 0 and said.out == "unsat\n"
    assert cli("check", "net.onnx", "safe.vnnlib", "c.cert").out == "unsat\n"


def test_results_of_the_two_are_not_taken_for_each_other(cli: Cli, here: Path) -> None:
    assert cli("run", "net.onnx", "--vnnlib", "safe.vnnlib", "--csv", "r.csv", "--json", "r.jsonl").code == 0
    assert cli("run", "net.onnx", "--vnnlib", "safe.vnnlib", "--csv", "r.csv", "--json", "r.jsonl", "--resume", *INTERVAL).code == 0
    found = [json.loads(line)["numerics"] for line in Path("r.jsonl").read_text().splitlines()]
    assert found == ["folded", "interval"]
    assert "numerics" in Path("r.csv").read_text().splitlines()[0].split(",")


def test_mistakes(cli: Cli, here: Path) -> None:
    query = ("verify", "net.onnx", "safe.vnnlib")
    for options, code, words in (
        (("--numerics", "interval"), 2, "--device interpret"),
        (("--numerics", "intervals", "--device", "interpret"), 2, "folded, interval"),
        ((*INTERVAL, "--dtype", "tf32x3"), 2, "float32 or float64"),
    ):
        said = cli(*query, *options)
        assert said.code == code and words in said.err and not said.out
    assert cli("compile", "net.onnx", "-o", "net.poly").code == 0
    said = cli("tune", "net.poly", *INTERVAL)
    assert said.code == 2 and "not timed" in said.err and "--target" in said.err


def test_operators_without_a_kernel_are_named(cli: Cli, here: Path) -> None:
    for op, more in (("MaxPool", {"kernel_shape": [2, 2]}), ("Tanh", {})):
        nodes = [
            helper.make_node(op, ["x"], ["p"], name="first", **more),
            helper.make_node("Flatten", ["p"], ["f"], name="flat"),
            helper.make_node("Gemm", ["f", "w", "b"], ["y"], name="last", transB=1),
        ]
        save(here / f"{op}.onnx", nodes, [1, 1, 2, 2], 3, {"w": np.ones((3, 4 if op == "Tanh" else 1)), "b": np.arange(3.0)})
    assert cli("verify", "MaxPool.onnx", "safe.vnnlib", *INTERVAL).code == 0
    said = cli("verify", "Tanh.onnx", "safe.vnnlib", *INTERVAL)
    assert said.code == 3 and "tanh" in said.err and "--device cpu" in said.err
