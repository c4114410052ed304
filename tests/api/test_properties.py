"""Properties in Python against a network at hand: the verdicts are those that can be seen by eye, and those of the saved file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import polytriton
from polytriton import Property
from polytriton.api import Verifier
from polytriton.cli import main
from polytriton.errors import UsageError
from tests.cli import tiny


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    """y[k] is pixel k of 2x2, for the first three, where pixels are not negative."""
    return polytriton.compile(tiny.brightest(tmp_path_factory.mktemp("net") / "net.onnx"))


def test_variables_have_the_networks_shapes(net: Verifier) -> None:
    x, y = net.variables()
    assert (x.shape, y.shape) == (net.input_shape, (3,)) == ((1, 2, 2), (3,))
    assert repr(y[0] - x[0, 1, 0]) == "y[0] - x[0,1,0]"


def test_shapes_of_outputs_are_kept(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "net.onnx")
    verifier = polytriton.compile(tmp_path / "net.onnx")
    x, y = verifier.variables()
    assert x.shape == y.shape == (2, 3)
    assert verifier.verify(Property((0, 1), [y[1, 0] > x[1, 0] + "0.001", y[0, 2] >= x[0, 2] + 1])).verdict == "unsat"
    assert verifier.verify(Property((0, 1), [y[1, 0] >= x[0, 1] + "0.001"])).verdict == "sat"
    own = Verifier.from_net(verifier.net).variables()
    assert (own[0].shape, own[1].shape) == ((6,), (6,))


def cases(net: Verifier) -> list[tuple[Property, str]]:
    x, y = net.variables()
    return [
        (Property((0, 1), [y[0] - y[1] >= 2, y[2] >= "1.001"]), "unsat"),
        (Property((0, 1), [(y[0] - y[1] >= 0.5) & (x[0, 0, 1] <= 0.25)]), "sat"),
        (Property((0, 1), [(y[0] - y[1] >= 0.5) & (x[0, 0, 1] >= "0.51")]), "unsat"),
        (Property((0, 1), [y[0] - x[0, 0, 0] >= 0.001, x[0, 0, 1] - y[1] > 0.001]), "unsat"),
        (Property((0, 1), safe=[y[0] <= "1.01", y.sum() <= x.sum() + "0.01", y[1] >= -1]), "unsat"),
        (Property((0, 1), safe=[(y[0] <= 0.9) | (y[1] >= y[0])]), "sat"),
        (Property((0, 1), [y[0] > 1]), "unknown"),  # proved for its closure, which the network reaches: neither holds
    ]


@pytest.mark.parametrize("case", range(7))
def test_verdicts(net: Verifier, case: int, tmp_path: Path) -> None:
    prop, verdict = cases(net)[case]
    result = net.verify(prop, search="none")
    assert result.verdict == verdict
    if verdict == "sat":
        assert prop.violated(result.counterexample.x, result.counterexample.y) is not None
    file = prop.save(tmp_path / "p.vnnlib")
    assert net.verify(file, search="none").verdict == net.verify_property(prop, search="none").verdict == verdict


def test_the_commands_read_what_was_saved(net: Verifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a certificate of it is confirmed by the checker, which reads the file by itself."""
    prop, _ = cases(net)[0]
    file, network = prop.save(tmp_path / "p.vnnlib"), tmp_path / "net.onnx"
    tiny.brightest(network)
    assert main(["verify", str(network), str(file), "--semantics", "real", "--certificate", str(tmp_path / "c")]) == 0
    assert main(["check", str(network), str(file), str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out.split()[0] == "unsat"


def test_balls_are_written_as_they_are(net: Verifier, tmp_path: Path) -> None:
    """Also normalised ones, whose bounds have no end as decimal numbers."""
    image = np.array([[[200, 10], [20, 30]]], np.uint8)
    ball = net.ball_property(image, Fraction(2, 255), 0, clip=(0, 1), mean=0.1307, std=0.3081)
    again = polytriton.read_vnnlib(ball.save(tmp_path / "ball.vnnlib"))
    for a, b in zip(again.disjuncts, ball.disjuncts, strict=True):
        assert (tuple(a.exact_lo), tuple(a.exact_hi), a.rows) == (tuple(b.exact_lo), tuple(b.exact_hi), b.rows)
    assert net.verify(again).verdict == net.verify(ball).verdict == "unsat"


@pytest.mark.parametrize(("shape", "outputs", "words"), [((2, 2), 4, "belongs|has 4 inputs and 4 outputs"), (5, 3, "has 5 inputs")])
def test_properties_of_other_networks_are_refused(net: Verifier, shape: Any, outputs: int, words: str) -> None:
    x, y = polytriton.variables(shape, outputs)
    with pytest.raises(UsageError, match=words):
        net.verify(Property((0, 1), [y[0] >= x.flat[0]]))


def test_properties_of_other_shapes_are_refused(net: Verifier, tmp_path: Path) -> None:
    """A count that agrees is not enough: the elements would be others. A file of version 1.0 has no shapes: it counts in flat order."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3]) for name in "xY"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["Y"])], "relu", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "net.onnx")
    verifier = polytriton.compile(tmp_path / "net.onnx")
    for shapes in (((3, 2), (2, 3)), ((2, 3), (3, 2))):
        x, y = polytriton.variables(*shapes)
        prop = Property((0, 1), [y[1, 1] >= x[1, 1] + 1])
        with pytest.raises(UsageError, match=r"declares [XY] of shape"):
            verifier.verify(prop)
        assert verifier.verify(prop.save(tmp_path / "p.vnnlib", overwrite=True)).verdict in ("sat", "unsat")
    x, y = polytriton.variables((1, 2, 3), 6)
    assert verifier.verify(Property((0, 1), [y[4] >= x[0, 1, 1] + 1])).verdict == "unsat"


def test_exactness_decides(net: Verifier) -> None:
    """An input fixed at a decimal is another than at the float beside it: a hair above the closed bound is proved away, at it is found."""
    x, y = net.variables()
    tenth = Fraction(*(0.1).as_integer_ratio())
    for bound, hit in ((tenth, True), ("0.1", True), (tenth + Fraction(1, 10**30), False), ("0.1" + "0" * 30 + "1", True)):
        prop = Property((0, 0.1), [x[0, 0, 0] >= bound])
        assert (prop.violated([0.1, 0, 0, 0], [0, 0, 0]) is not None) == hit, bound
    beyond = Property((0, "0.1"), [y[0] >= 0])
    assert beyond.violated([0.1, 0, 0, 0], [0, 0, 0]) is None  # 0.1 as a float lies above 1/10
    assert beyond.violated([0.1, 0, 0, 0], [0, 0, 0], rounded=True) == 0
