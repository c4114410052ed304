"""Texts and options that ended in a trace, or never: one message each, at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.certificate.models import change
from tests.cli.conftest import Cli

IMAGES = ("run", "net.onnx", "--images", "x.npy", "--epsilon")


@pytest.mark.parametrize("number", ['"1/0"', '"1e999999999"', '"1e-99999999"', "NaN", "9" * 100_000, "[" * 100_000])
def test_odd_numbers_in_a_certificate(cli: Cli, here: Path, number: str) -> None:
    cli("verify", "net.onnx", "safe.vnnlib", "--semantics", "real", "--certificate", "a.cert")
    data = (here / "a.cert").read_bytes()
    (here / "a.cert").write_bytes(change(data, meta=lambda m: m.update(trees=number)))
    began = time.process_time()
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert")
    assert (said.code, said.out) == (2, "refused\n") and said.err.count("polytriton: ") == 1 and len(said.err) < 1000
    assert json.loads(cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--json").out)["verdict"] == "refused"
    assert time.process_time() - began < 5


@pytest.mark.parametrize("command", ["verify", "run"])
def test_types_that_the_interpreter_lacks(cli: Cli, here: Path, command: str) -> None:
    files = ("net.onnx", "safe.vnnlib") if command == "verify" else ("net.onnx", "--vnnlib", "safe.vnnlib")
    said = cli(command, *files, "--device", "interpret", "--dtype", "bf16x6")
    assert said.code == 2 and said.out == ""
    assert "bf16x6" in said.err and "tf32x3" in said.err and "internal" not in said.err


def test_types_that_the_interpreter_has(cli: Cli, here: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    said = cli("verify", "net.onnx", "safe.vnnlib", "--device", "interpret", "--dtype", "tf32x3")
    assert (said.code, said.out) == (0, "unsat\n")


@pytest.mark.parametrize("number", ["1e999999999", "1/0", "9" * 100_000, "1e-99999999", "nan", "inf"])
def test_odd_numbers_of_options(cli: Cli, here: Path, number: str) -> None:
    assert cli("verify", "net.onnx", "safe.vnnlib").code == 0
    began = time.process_time()
    for options in (
        (*IMAGES, number), (*IMAGES, "0.1", "--clip", f"0,{number}"), (*IMAGES, "0.1", "--mean", number), (*IMAGES, "0.1", "--std", number),
        (*IMAGES, "0.1", "--scale", number), (*IMAGES, "0.1", "--label", number), (*IMAGES, "0.1", "--targets", number),
        (*IMAGES, "0.1", "--certify-radius", "--radius-tolerance", number), ("verify", "net.onnx", "safe.vnnlib", "--memory", number),
    ):  # fmt: skip
        said = cli(*options)
        assert said.code == 2 and said.err.count("polytriton: ") == 1
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text",
    ["(assert (<= X_0 1e999999999))", f"(assert (<= X_0 {'9' * 1_000_000}))", "(assert (<= X_" + "9" * 5000 + " 1))", "(" * 1_000_000,
     "(assert (<= X_0 1/0))", "(assert (<= X_0 (* " + "9e300 " * 50_000 + ")))"],
    ids=lambda t: t[:24],
)  # fmt: skip
def test_odd_numbers_of_properties(cli: Cli, here: Path, text: str) -> None:
    declared = "".join(f"(declare-const X_{i} Real)" for i in range(4)) + "".join(f"(declare-const Y_{i} Real)" for i in range(3))
    (here / "odd.vnnlib").write_text(declared + text)
    assert cli("verify", "net.onnx", "safe.vnnlib").code == 0  # libraries are loaded, the network is in the cache
    began = time.process_time()
    said = cli("verify", "net.onnx", "odd.vnnlib")
    assert said.code in (2, 3) and len(said.err) < 2000
    assert time.process_time() - began < 10
