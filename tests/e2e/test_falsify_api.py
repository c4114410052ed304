"""Falsification through the public interface: batches, timeouts, the command."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove import prover
from polytriton.prove.decider import Decider

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_conv_normal.onnx", check=False)


def test_a_batch_is_falsified_in_one_search(net: polytriton.Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = np.load(EXAMPLES / "digits.npz")
    x, labels = shown["images"][20:24].astype(np.float64), shown["labels"][20:24]
    alone = [net.verify(i, epsilon="0.1", label=int(k), clip=(0, 1)) for i, k in zip(x, labels, strict=True)]
    searches = []
    real = prover.falsify_all
    monkeypatch.setattr(prover, "falsify_all", lambda n, aims, *a, **k: searches.append(len(aims)) or real(n, aims, *a, **k))
    together = net.verify(x, epsilon="0.1", label=labels, clip=(0, 1))
    assert [r.verdict for r in together] == [r.verdict for r in alone]
    assert [r.verdict for r in together].count("sat") >= 1
    assert searches[0] >= 1
    for image, r, k in zip(x, together, labels, strict=True):
        if r.verdict == "sat":
            assert r.counterexample is not None
            prop = net.ball_property(image.reshape(net.input_shape), Fraction(1, 10), int(k), clip=(0, 1))
            assert prop.violated(r.counterexample.x, r.counterexample.y) is not None
            np.testing.assert_array_equal(net.predict(r.counterexample.x)[0], r.counterexample.y)
    without = net.verify(x, epsilon="0.1", label=labels, clip=(0, 1), falsifier=False)
    assert "sat" not in [r.verdict for r in without]


def test_a_proof_that_runs_out_of_time_leaves_some_for_the_search(net: polytriton.Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = Decider.prove
    monkeypatch.setattr(Decider, "prove", lambda self, q, *a, **k: replace(prove(self, q, *a, **k), expired=True))
    prop = read_vnnlib(EXAMPLES / "specs" / "digits_conv_normal_21_0.05.vnnlib")
    got = net.verify_property(prop, timeout=30)
    assert got.verdict == "sat"
    assert net.verify_property(prop, timeout=30, falsifier=False).verdict == "timeout"


@pytest.mark.slow
def test_the_command_writes_decimals_that_lie_in_the_box(tmp_path: Path) -> None:
    """An input fixed at a decimal: under `real` the counterexample repeats the decimal as the property has it."""
    spec = (EXAMPLES / "specs" / "digits_conv_normal_21_0.05.vnnlib").read_text()
    prop = read_vnnlib(EXAMPLES / "specs" / "digits_conv_normal_21_0.05.vnnlib")
    fixed = next(i for i in range(prop.n_in) if prop.disjuncts[0].exact_lo[i] < Fraction(1, 10) < prop.disjuncts[0].exact_hi[i])
    path = tmp_path / "fixed.vnnlib"
    path.write_text(f"{spec}\n(assert (>= X_{fixed} 0.1))\n(assert (<= X_{fixed} 0.1))\n")
    model = str(EXAMPLES / "digits_conv_normal.onnx")
    command = [sys.executable, "-m", "polytriton.cli", "verify", model, str(path), "--semantics", "real"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "sat"
    assert any(line.strip("()") == f"X_{fixed} 0.1" for line in lines)
