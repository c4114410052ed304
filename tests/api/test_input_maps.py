"""Input maps as people make and give them: what they hold, files, the command line, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import InputMap, Property
from polytriton.cli import main
from polytriton.errors import PolytritonError, UsageError
from tests.cli import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"


def values(given: InputMap, z: list[float]) -> np.ndarray:
    return given.image(np.array(z))


def test_light_moves_and_stretches_pixels() -> None:
    image = np.array([[[0, 51], [255, 102]]], dtype=np.uint8)
    given = InputMap.light(image, mean="0.5", std="0.25")
    assert given.parameters == 2 and given.rounded  # 51/255 is no float64
    p = image.ravel() / 255
    for d, c in ((0, 0), (0.125, 0), (0, 0.5), (-0.25, 0.75)):
        assert np.allclose(values(given, [d, c]), (p * (1 + c) + d - 0.5) / 0.25, rtol=0, atol=1e-14)
    assert given.matrix[1, 1] == float(Fraction(4, 5)) and not InputMap.light(image / 255).rounded


def test_bias_fields_are_polynomials_over_the_image() -> None:
    image = np.random.default_rng(0).random((2, 3, 5))
    given = InputMap.bias_field(image, 2, mean=[0.5, 0.25], std=[1, 2])
    assert given.parameters == 6
    z = [0.5, -0.25, 0.125, 1, 2, -3]
    u, v = np.linspace(-1, 1, 3)[:, None], np.linspace(-1, 1, 5)[None]
    field = 0.5 - 0.25 * u + 0.125 * v + u**2 + 2 * u * v - 3 * v**2
    wanted = (image * (1 + field) - np.array([0.5, 0.25])[:, None, None]) / np.array([1, 2])[:, None, None]
    assert np.allclose(values(given, z), wanted.ravel(), rtol=0, atol=1e-13)
    assert InputMap.bias_field(image, 0).parameters == 1


def test_patches_leave_the_rest_alone() -> None:
    image = np.arange(2 * 4 * 5).reshape(2, 4, 5) / 64
    given = InputMap.patch(image, 1, 2, 2, 3, mean=0.5, std=0.5)
    assert given.parameters == 2 * 2 * 3
    z = np.arange(12) / 16
    wanted = image.copy()
    wanted[:, 1:3, 2:5] = z.reshape(2, 2, 3)
    assert np.array_equal(given.image(z), (wanted.ravel() - 0.5) / 0.5)


def test_files_keep_a_map(tmp_path: Path) -> None:
    for k, given in enumerate((InputMap([["0.1", 2]], ["1/3"]), InputMap(np.array([[0.25, 2.0]])))):
        again = InputMap.load(given.save(tmp_path / f"{k}.npz"))
        assert np.array_equal(again.matrix, given.matrix) and np.array_equal(again.shift, given.shift)
        assert again.rounded == given.rounded == (k == 0)
    np.savez(tmp_path / "own.npz", A=np.ones((3, 1), dtype=np.float32))
    assert InputMap.load(tmp_path / "own.npz").shift.tolist() == [0, 0, 0]


def digit(model: str, semantics: str = "float32") -> tuple[polytriton.Verifier, np.ndarray, int]:
    data = np.load(EXAMPLES / "digits.npz")
    return polytriton.compile(EXAMPLES / f"{model}.onnx", semantics=semantics), data["images"][0], int(data["labels"][0])


def test_light_of_a_digit(tmp_path: Path) -> None:
    """Proved under little light; under much more a counterexample, and the unlit model confirms it."""
    net, image, label = digit("digits_conv_ibp")
    lit = net.map_input(InputMap.light(image))
    assert lit.input_shape == (2,) and lit.inputs == 2
    _, y = lit.variables()
    safe = [y[label] > y[k] for k in range(10) if k != label]
    assert lit.verify(Property(([-0.05, -0.2], [0.05, 0.2]), safe=safe)).verdict == "unsat"
    far = lit.verify(Property(([-2, -1], [2, 1]), safe=safe))
    assert far.verdict == "sat"
    z = far.counterexample.x.reshape(-1)
    assert net.predict(InputMap.light(image).image(z).astype(np.float32).reshape(1, 1, 8, 8)).argmax() != label
    assert lit.verify(np.zeros(2), epsilon="0.05", label=label).verdict == "unsat"
    opened = polytriton.load(lit.save(tmp_path / "lit.poly"))
    assert opened.verify(Property(([-0.05, -0.2], [0.05, 0.2]), safe=safe)).verdict == "unsat"
    again = polytriton.load(net.save(tmp_path / "net.poly")).map_input(InputMap.light(image))
    assert np.array_equal(again.bounds([-0.05, 0], [0.05, 0]).lo, lit.bounds([-0.05, 0], [0.05, 0]).lo)
    with pytest.raises(UsageError, match="input map already"):
        opened.map_input(InputMap(np.ones((2, 1))))


def test_the_search_divides_the_parameters() -> None:
    """Of 64 pixels none would be divided: with two parameters boxes are."""
    net, image, label = digit("digits_conv_normal")
    lit = net.map_input(InputMap.light(image))
    _, y = lit.variables()
    prop = Property(([-0.2, -0.4], [0.2, 0.4]), safe=[y[label] > y[k] for k in range(10) if k != label])
    once, searched = (lit.verify(prop, search=how, falsifier=False) for how in ("none", "input"))
    assert (once.verdict, searched.verdict) == ("unknown", "unsat")
    assert searched.search is not None and searched.search.domains > 1


def test_the_command_line_compiles_behind_a_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.brightest(tmp_path / "net.onnx")
    InputMap(np.array([[1.0], [0.5], [0.25], [0.0]])).save(tmp_path / "map.npz")
    poly = tmp_path / "mapped.poly"
    assert main(["compile", str(model), "--input-map", str(tmp_path / "map.npz"), "-o", str(poly)]) == 0
    for text, verdict in (("0.51", "unsat"), ("0.49", "sat")):
        prop = tmp_path / "p.vnnlib"
        consts = "".join(f"(declare-const {v} Real)" for v in ("X_0", "Y_0", "Y_1", "Y_2"))
        prop.write_text(f"{consts}(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= Y_1 {text}))")
        capsys.readouterr()
        assert main(["verify", str(poly), str(prop)]) == 0
        assert capsys.readouterr().out.split()[0] == verdict
    assert main(["compile", str(model), "--input-map", str(tmp_path / "none.npz"), "-o", str(poly)]) == 2
    assert main(["compile", str(model), "--input-map", str(tmp_path / "map.npz"), "--dump-ir", "all", "-o", str(poly)]) == 2


MISTAKES = {
    "a vector": (lambda: InputMap([1, 2]), "one column a parameter"),
    "another shift": (lambda: InputMap([[1], [2]], [1]), "one number an input"),
    "NaN": (lambda: InputMap([[float("nan")]]), "finite"),
    "next to zero": (lambda: InputMap(np.array([[1e-40]])), "write 0"),
    "beyond": (lambda: InputMap(np.array([[1e30]])), "2\\^60"),
    "rows": (lambda: digit("digits_conv_ibp")[0].map_input(InputMap(np.ones((3, 1)))), "64, parameters"),
    "a patch outside": (lambda: InputMap.patch(np.zeros((4, 4)), 3, 0, 2, 2), "count from 0"),
    "an odd degree": (lambda: InputMap.bias_field(np.zeros((4, 4)), -1), "0 to 8"),
    "a flat image": (lambda: InputMap.light(np.zeros(16)), "height, width"),
    "no file": (lambda: InputMap.load("no-such.npz"), "check the path"),
    "of z": (lambda: InputMap(np.ones((2, 2))).image([1]), "2 parameters"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told(case: str) -> None:
    asked, remedy = MISTAKES[case]
    with pytest.raises(PolytritonError, match=remedy):
        asked()


def test_odd_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", B=np.ones(3))
    for name in ("text.npz", "other.npz"):
        with pytest.raises(UsageError, match="as InputMap"):
            InputMap.load(tmp_path / name)
    with pytest.raises(UsageError, match="no model"):
        polytriton.Verifier.from_net(digit("digits_conv_ibp")[0].net).map_input(InputMap(np.ones((64, 1))))
