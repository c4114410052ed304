"""Two sides asked alternately: with a stand-in for the peer, and with the peer where it is installed."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from bench.compare import __main__ as compare
from bench.compare.onnx_module import OnnxModule, UnsupportedNetwork

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NET = EXAMPLES / "digits_conv_normal.onnx"
# A peer of the same interface that answers the margins at the box's centre less one, and writes down when it was asked.
STAND_IN = """
import os, torch
__version__ = "9.9"
class PerturbationLpNorm:
    def __init__(self, norm, x_L, x_U): self.lo, self.hi = x_L, x_U
class BoundedTensor:
    def __init__(self, x, norm): self.norm = norm
class BoundedModule:
    def __init__(self, module, like, bound_opts, device): self.module = module
    def compute_bounds(self, x, C, method, bound_upper):
        print("chatter")
        if os.environ.get("STAND_IN") == "fails":
            raise RuntimeError("cannot bound this")
        box = x[0].norm
        y = self.module((box.lo + box.hi) / 2)
        return torch.einsum("nfo,no->nf", C, y) - 1, None
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    (tmp_path / "auto_LiRPA.py").write_text(STAND_IN)
    return tmp_path


def run(*arguments: str) -> int:
    return compare.main(["auto_lirpa", "--onnx", str(NET), *arguments])


@pytest.mark.slow
def test_a_pair(stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pair.csv"
    assert run("--peer-path", str(stand_in), "--rounds", "3", "--batch", "2", "--eps", "1/1000", "--out", str(out)) == 0
    with out.open(newline="") as f:
        ours, theirs = csv.DictReader(f)
    assert (ours["engine"], theirs["engine"]) == ("polytriton", "auto_LiRPA")
    assert ours["peer"].startswith("auto_LiRPA 9.9 (torch ") and ours["part"] == "peer" and ours["batch"] == "2"
    assert float(ours["ratio"]) == pytest.approx(float(theirs["seconds"]) / float(ours["seconds"]))
    assert float(ours["ratio_lo"]) <= float(ours["ratio_hi"]) and ours["runs"] == theirs["runs"] == "3"
    assert (ours["tighter"], ours["looser"]) == ("18", "0"), "a tiny box loses less than one"
    assert theirs["ratio"] == "" and "beside auto_LiRPA" in capsys.readouterr().err
    if sys.platform == "linux":
        assert all(0 < float(side["peak_mb"]) < 1000 for side in (ours, theirs)), "of one query, not of what was loaded"


@pytest.mark.slow
def test_a_peer_that_fails_is_a_row(stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STAND_IN", "fails")
    assert run("--peer-path", str(stand_in)) == compare.FAILED
    assert "auto_LiRPA: RuntimeError: cannot bound this" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("auto_LiRPA") is not None, reason="auto_LiRPA is installed")
def test_without_the_peer_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == compare.NO_PEER
    said = capsys.readouterr()
    assert said.out == "" and "install it there, or name an interpreter with --peer-python" in said.err


def test_mistakes_are_explained(stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--eps", "x"], "'x' is no radius"),
        (["--rounds", "0"], "are 1 or more"),
        (["--onnx", "absent.onnx"], "no file absent.onnx"),
        (["--zoo", "resnet99-normal"], "no network 'resnet99-normal'"),
        (["--peer-python", str(tmp_path / "python")], "No such file"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        assert stopped.value.code == 2 and words in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.zeros((2, 7)))
    with pytest.raises(SystemExit, match="no batch of"):
        run("--peer-path", str(stand_in), "--images", str(tmp_path / "x.npy"))


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_ratios_and_margins(rounds: int) -> None:
    mine, other = np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, 2.5, 2.0]])
    row = compare.compare([[1.0] * rounds, [2.0] * rounds], [mine, other])
    assert (row["ratio"], row["ratio_lo"], row["ratio_hi"]) == (2.0, 2.0, 2.0)
    assert (row["tighter"], row["looser"], row["gap"]) == (1, 1, 0.2)


# ---- the reader of networks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.onnx")), ids=lambda p: p.stem)
def test_the_peers_network_is_the_file(path: Path) -> None:
    module = OnnxModule(str(path)).double()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for seed in range(3):
        x = np.random.default_rng(seed).random((1, *module.shape), dtype=np.float32)
        (want,) = session.run(None, {session.get_inputs()[0].name: x})
        with torch.no_grad():
            got = module(torch.from_numpy(x).double())
        np.testing.assert_allclose(got.numpy().ravel(), np.asarray(want).ravel(), rtol=0, atol=1e-4)


def test_operators_it_does_not_know_are_refused(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Softsign", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "s.onnx")
    with pytest.raises(UnsupportedNetwork, match="Softsign"):
        OnnxModule(str(tmp_path / "s.onnx"))


@pytest.mark.slow
def test_beside_the_real_peer(tmp_path: Path) -> None:
    """On small boxes where no slope is in doubt both sides bound alike."""
    python = os.environ.get("POLYTRITON_PEER_PYTHON")
    if python is None and importlib.util.find_spec("auto_LiRPA") is None:
        pytest.skip("auto_LiRPA is not installed: set POLYTRITON_PEER_PYTHON to an interpreter that has it")
    if python and subprocess.run([python, "-c", "import auto_LiRPA"], capture_output=True).returncode:
        pytest.skip(f"{python} has no auto_LiRPA")
    out = tmp_path / "pair.csv"
    assert run("--eps", "1/500", "--rounds", "2", "--candidates", "input", "--out", str(out)) == 0
    with out.open(newline="") as f:
        ours, theirs = csv.DictReader(f)
    assert float(ours["worst"]) == pytest.approx(float(theirs["worst"]), rel=0.02)
