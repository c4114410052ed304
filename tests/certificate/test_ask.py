"""A certificate by one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import checker
from polytriton.errors import UnsupportedModel, UsageError
from polytriton.prove.trail import Trail
from tests.certificate.models import dense, prop

LAYERS = [(np.array([[1.0, -1.0], [1.0, 1.0]]), np.zeros(2)), (np.array([[1.0, -1.0]]), np.zeros(1))]  # at most 2 over the unit box


def test_a_verifier_writes_the_certificate_of_what_it_proves(tmp_path: Path) -> None:
    net = polytriton.compile(path := dense(tmp_path / "n.onnx", LAYERS))
    safe, unsafe = (prop(tmp_path / f"{k}.vnnlib", [(-1, 1)] * 2, 1, f"(>= Y_0 {k})") for k in (2.2, 0.5))
    target = tmp_path / "a.cert"
    assert net.certify(unsafe, target).verdict == "sat" and not target.exists()
    assert net.certify(str(safe), str(target)).verdict == "unsat"
    found = checker.check(path, safe, target)
    assert found.semantics == "float32" and 0 < min(found.margins) < 0.3


def test_what_keeps_one_from_being_written_is_said_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = dense(tmp_path / "n.onnx", LAYERS), prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(>= Y_0 2.2)")
    net, target = polytriton.compile(path), tmp_path / "a.cert"
    with monkeypatch.context() as patch:
        patch.setattr("polytriton.prove.prover.Decision", None)
        with pytest.raises(UsageError, match="property file"):
            net.certify(tmp_path / "none.vnnlib", target)
        with pytest.raises(UsageError, match="cannot write"):
            net.certify(asked, tmp_path / "none" / "a.cert")
        with pytest.raises(UsageError, match="property file"):
            polytriton.compile(path.read_bytes()).certify(asked, target)
        with pytest.raises(UsageError, match="tf32"):
            polytriton.compile(path, semantics="tf32").certify(asked, target)
    monkeypatch.setattr(Trail, "within", classmethod(lambda cls, memory: cls(lost=True, most=0)))
    with pytest.raises(UnsupportedModel, match="unsat stands"):
        net.certify(asked, target)
    assert not target.exists()


def test_magnitudes_beyond_the_checkers_are_said_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dense(tmp_path / "n.onnx", [(2.0**40 * np.eye(1), np.zeros(1)), (np.eye(1), np.zeros(1))])
    asked, target = prop(tmp_path / "p.vnnlib", [(0, 1)], 1, "(<= Y_0 -1)"), tmp_path / "a.cert"
    with monkeypatch.context() as patch:
        patch.setattr("polytriton.prove.prover.Decision", None)
        with pytest.raises(UnsupportedModel, match="may exceed"):
            polytriton.compile(path).certify(asked, target)
    assert polytriton.compile(path, semantics="real").certify(asked, target).verdict == "unsat"
    assert min(checker.check(path, asked, target).margins) > 0.9
