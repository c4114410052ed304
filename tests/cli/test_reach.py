"""`polytriton reach`: the same pieces as in Python, by a property or a box."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

import polytriton
from tests.cli.conftest import Cli


def test_a_property_and_a_box_are_the_same(cli: Cli, here: Path) -> None:
    prop = polytriton.read_vnnlib("safe.vnnlib")
    box = prop.disjuncts[0]
    wanted = polytriton.reach(polytriton.compile("net.onnx"), prop, pieces=5)
    by_file = json.loads(cli("reach", "net.onnx", "safe.vnnlib", "--pieces", 5, "--json").out)
    ranges = [w for a, b in zip(box.exact_lo, box.exact_hi, strict=True) for w in ("--box", f"{a},{b}")]
    by_box = json.loads(cli("reach", "net.onnx", *ranges, "--pieces", "5", "--json").out)
    for said in (by_file, by_box):
        assert [p["least"] for p in said["pieces"]] == wanted.least.tolist() and said["lo"] == wanted.lo.tolist()
        assert said["network"] == "net"


def test_what_is_said_and_written(cli: Cli, here: Path) -> None:
    said = cli("reach", "net.onnx", "--box", "-1,1", "--plane", "0,2", "--plane", "1,2", "-o", "a.svg", "--samples", 9, "--pieces", 8)
    assert said.code == 0 and said.out.split()[:3] == ["output", "least", "greatest"] and "piece" in said.err.splitlines()[-1]
    net = polytriton.compile("net.onnx")
    found = polytriton.reach(net, (-1, 1), planes=[(0, 2), (1, 2)], samples=9, pieces=8)
    assert [float(line.split()[1]) for line in said.out.splitlines() if line[-1:].isdigit()] == [float(f"{v:.9g}") for v in found.lo]
    assert (here / "a.svg").read_text().count("<circle") == 18
    assert cli("reach", "net.onnx", "--box", "-1,1", "-o", "a.svg", "--pieces", 1).code == 2
    assert cli("reach", "net.onnx", "--box", "-1,1", "-o", "a.svg", "--overwrite", "--pieces", 1).code == 0


def test_ends_are_rounded_outward(cli: Cli) -> None:
    (piece,) = json.loads(cli("reach", "net.onnx", "--box", "0.1,1/3", "--pieces", "1", "--json").out)["pieces"]
    assert all(Fraction(v) < Fraction(1, 10) and np.nextafter(v, 1) > 0.1 - 1e-16 for v in piece["input_lo"])
    assert all(Fraction(v) > Fraction(1, 3) for v in piece["input_hi"])


def test_mistakes(cli: Cli) -> None:
    for words, line in {
        "from a property or from --box": ["reach", "net.onnx"],
        "is no pair of outputs": ["reach", "net.onnx", "--box", "0,1", "--plane", "0"],
        "is no range": ["reach", "net.onnx", "--box", "0,1,2"],
        "2 ranges for 4 inputs": ["reach", "net.onnx", "--box", "0,1", "--box", "0,1"],
        "no reachable set is written": ["reach", "net.onnx", "--box", "0,1", "-o", "a.png"],
    }.items():
        said = cli(*line)
        assert said.code == 2 and words in said.err and not said.out, said
