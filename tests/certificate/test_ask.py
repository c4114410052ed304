"""A certificate by one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import checker
from polytriton.certificate.ask import certifiable, check_covered
from polytriton.cli import main
from polytriton.errors import UnsupportedModel, UsageError
from polytriton.prove.trail import Trail
from tests.certificate.models import NODE, dense, model, prop

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
        with pytest.raises(UsageError, match="float8"):
            check_covered("float8", path)
    monkeypatch.setattr("polytriton.certificate.ask.Trail", lambda folder: Trail(folder, lost="no room"))
    with pytest.raises(UnsupportedModel, match="could not be written: no room"):
        net.certify(asked, target)
    assert not target.exists()


def smooth(path: Path) -> Path:
    """Two inputs, a tanh."""
    nodes = [NODE("Gemm", ["x", "w", "b"], ["h"]), NODE("Tanh", ["h"], ["t"]), NODE("Gemm", ["t", "v", "c"], ["y"])]
    model(path, nodes, [1, 2], {"w": np.eye(2), "b": np.zeros(2), "v": np.ones((2, 1)), "c": np.zeros(1)})
    return path


@pytest.mark.parametrize("stated", ["float32", "float32,tanh=2", "real"])
def test_smooth_functions_are_refused_by_name(tmp_path: Path, stated: str) -> None:
    """Whatever error is stated of them: a remedy that says what was said already leads in a circle."""
    net = polytriton.compile(smooth(tmp_path / "n.onnx"), semantics=stated)
    asked = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(>= Y_0 2.2)")
    assert net.options.semantics.startswith(stated.partition(",")[0])
    with pytest.raises(UnsupportedModel, match="Tanh") as refused:
        net.certify(asked, tmp_path / "a.cert")
    assert "without a certificate" in refused.value.remedy and not (tmp_path / "a.cert").exists()


def test_errors_of_functions_that_a_network_does_not_have_keep_no_certificate_away(tmp_path: Path) -> None:
    path, asked = dense(tmp_path / "n.onnx", LAYERS), prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(>= Y_0 2.2)")
    words = ["verify", str(path), str(asked), "--semantics", "float32,tanh=2", "--certificate", str(tmp_path / "a.cert")]
    assert main(words) == 0 and main([*words[:3], "--function-error", "tanh=2", *words[5:]]) == 0
    assert checker.check(path, asked, tmp_path / "a.cert").semantics == "float32"


def test_a_network_that_is_no_file_has_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Behind an input map the property speaks of other inputs than the file's."""
    path, asked = dense(tmp_path / "n.onnx", LAYERS), prop(tmp_path / "p.vnnlib", [(-1, 1)], 1, "(>= Y_0 9)")
    mapped = polytriton.compile(path).map_input(polytriton.InputMap(np.array([[1.0], [0.5]])))
    assert mapped.verify_property(asked).verdict == "unsat"
    with pytest.raises(UnsupportedModel, match="behind an input map"):
        mapped.certify(asked, tmp_path / "a.cert")
    mapped.save(tmp_path / "n.poly")
    words = ["verify", str(tmp_path / "n.poly"), str(asked)]
    assert main(words) == 0 and main([*words, "--certificate", str(tmp_path / "a.cert")]) == 2
    assert "behind an input map there is none" in capfd.readouterr().err and not (tmp_path / "a.cert").exists()


def test_a_property_that_divides_has_none(tmp_path: Path) -> None:
    """Whose remedy is its own; of another term that is not read it is not."""
    path, said = dense(tmp_path / "n.onnx", LAYERS), dict[str, UnsupportedModel]()
    for op in "/^":
        asked = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, f"(>= Y_0 ({op} 9.0 2.0))")
        with pytest.raises(UnsupportedModel) as refused:
            certifiable(path, asked, tmp_path / "a.cert", "real")
        said[op] = refused.value
    assert "the property divides" in said["/"].message and "multiply its inequalities" in said["/"].remedy
    assert "the term" in said["^"].message and "without a certificate" in said["^"].remedy


def test_magnitudes_beyond_the_checkers_are_said_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dense(tmp_path / "n.onnx", [(2.0**40 * np.eye(1), np.zeros(1)), (np.eye(1), np.zeros(1))])
    asked, target = prop(tmp_path / "p.vnnlib", [(0, 1)], 1, "(<= Y_0 -1)"), tmp_path / "a.cert"
    with monkeypatch.context() as patch:
        patch.setattr("polytriton.prove.prover.Decision", None)
        with pytest.raises(UnsupportedModel, match="Gemm h0 may exceed") as said:
            polytriton.compile(path).certify(asked, target)
        assert said.value.remedy == "add --semantics real"
        with pytest.raises(UnsupportedModel, match="Gemm h0 may exceed") as said:
            polytriton.compile(path, semantics="float16").certify(asked, target)
        assert "tf32, bf16, float32 or real" in said.value.remedy
    assert polytriton.compile(path, semantics="real").certify(asked, target).verdict == "unsat"
    assert min(checker.check(path, asked, target).margins) > 0.9
