"""Balls in l2 and l1 as users meet them: images, properties in Python, the command line, records, files, mistakes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import NormBall, Property
from polytriton.cli import main
from polytriton.errors import PolytritonError, UnsupportedProperty, UsageError
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove.questions import questions
from polytriton.runs.queries import Ball
from polytriton.tuning import work
from tests.soundness.test_balls import layers, model

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx")


@pytest.fixture(scope="module")
def digit() -> tuple[np.ndarray, int]:
    data = np.load(EXAMPLES / "digits.npz")
    return data["images"][0], int(data["labels"][0])


def test_images(net: polytriton.Verifier, digit: tuple[np.ndarray, int]) -> None:
    """What is proved in l2 is not over the box around it, and what is violated in l1 is so within the ball."""
    image, label = digit
    near = net.verify(image, "0.3", label, norm="l2", clip=(0, 1), search="none")
    assert isinstance(near, polytriton.Result) and near.verdict == "unsat"
    assert near.picture is not None and near.picture.norm == "l2" and "epsilon 3/10 in l2" in repr(near)
    box = net.verify(image, "0.3", label, clip=(0, 1), search="none", falsifier=False)
    assert isinstance(box, polytriton.Result) and box.margin < near.margin
    far = net.verify(image, 2, label, norm="l1", clip=(0, 1), search="none")
    assert isinstance(far, polytriton.Result) and far.verdict == "sat" and far.counterexample is not None
    moved = [abs(Fraction(a) - Fraction(b)) for a, b in zip(far.counterexample.x.ravel().tolist(), image.ravel().tolist(), strict=True)]
    assert sum(moved) <= 2 and far.counterexample.x.min() >= 0 and far.counterexample.x.max() <= 1
    frame = polytriton.to_pandas([near, box])
    assert frame["norm"].tolist() == ["l2", "linf"]


def test_pixels_are_measured_before_they_are_normalised(net: polytriton.Verifier, digit: tuple[np.ndarray, int]) -> None:
    image, label = digit
    levels = np.rint(image * 255).astype(np.uint8)
    prop = net.ball_property(levels, Fraction(1, 10), label, norm="l2", mean=("0.2",), std=("0.5",), clip=(0, 1))
    ball = prop.disjuncts[0].ball
    assert ball is not None
    exact = [Fraction(int(v), 255) for v in levels.ravel()]
    moved = [v + Fraction(1, 80) for v in exact]  # 64 pixels by an eightieth: a tenth in all
    point = [(v - Fraction(1, 5)) / Fraction(1, 2) for v in moved]
    assert ball.holds(point)
    point[0] += Fraction(1, 10**12)
    assert not ball.holds(point)


def test_several_at_once_and_radii(net: polytriton.Verifier, digit: tuple[np.ndarray, int]) -> None:
    data = np.load(EXAMPLES / "digits.npz")
    images, labels = data["images"][:3], data["labels"][:3]
    together = net.verify(images, "0.2", labels, norm="l2", clip=(0, 1))
    assert isinstance(together, polytriton.ResultList) and [r.verdict for r in together] == ["unsat"] * 3
    for r, image, label in zip(together, images, labels.tolist(), strict=True):
        alone = net.verify(image, "0.2", label, norm="l2", clip=(0, 1), search="none")
        assert isinstance(alone, polytriton.Result) and alone.margin == pytest.approx(r.margin, rel=1e-4, abs=1e-4)
    image, label = digit
    found = net.radius(image, label, norm="l2", epsilon="0.2", clip=(0, 1), tolerance="0.1")
    assert isinstance(found, polytriton.Radius) and found.proved is not None and found.proved >= Fraction(1, 5)


def test_properties_in_python(net: polytriton.Verifier, digit: tuple[np.ndarray, int]) -> None:
    image, label = digit
    _, y = net.variables()
    safe = [y[label] > y[k] for k in range(10) if k != label]
    ball = NormBall(image, "0.3", "l2")
    found = net.verify(Property((0, 1), safe=safe, ball=ball), search="none")
    assert found.verdict == "unsat"
    assert repr(ball) == "<NormBall: l2 around 64 inputs, radius 0.3>"
    alone = Property(safe=safe, ball=ball)  # no box: that around the ball
    low = [Fraction(v) - Fraction(3, 10) for v in image.ravel().tolist()]
    assert list(alone.disjuncts[0].exact_lo) == low
    stays = Property((image, image), safe=safe, ball=ball)
    assert net.verify(stays).verdict == "unsat"


def test_l1_is_written_and_l2_is_refused(tmp_path: Path) -> None:
    _, y = polytriton.variables(4, 2)
    ball = NormBall(["0.5", "1/3", 0, "1.9"], "0.25", "l1", weights=[1, 2, "0.5", 1])
    given = Property(([0, 0, -1, 2], [1, 1, 1, 2]), unsafe=[y[0] <= y[1], y[1] >= 3], ball=ball)
    given.save(tmp_path / "ball.vnnlib")
    assert "(/" not in (tmp_path / "ball.vnnlib").read_text(), "the checker of certificates reads decimals alone"
    read = read_vnnlib(tmp_path / "ball.vnnlib")
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = np.array([0.5, 1 / 3, 0, 2]) + rng.uniform(-0.3, 0.3, 4) * np.array([1, 0.3, 1, 0])
        assert (given.violated(x, [0, 1]) is None) == (read.violated(x, [0, 1]) is None)
    assert given.violated([0.5, 0.3125, 0, 2], [0, 1]) == 0
    with pytest.raises(UnsupportedProperty, match="l2 ball") as stop:
        Property(unsafe=[y[0] <= y[1]], ball=NormBall([0, 0, 0, 0], 1)).vnnlib()
    assert "box around it" in stop.value.remedy
    _, y = polytriton.variables(11, 2)
    with pytest.raises(UnsupportedProperty, match=r"2\^11"):
        Property(unsafe=[y[0] <= y[1]], ball=NormBall([0] * 11, 1, "l1")).vnnlib()


def test_an_l1_ball_of_thirds_has_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    m = model(layers(np.random.default_rng(0), 3, 4, 2))
    (tmp_path / "net.onnx").write_bytes(m)
    _, y = polytriton.variables(3, 2)
    Property(unsafe=[y[0] >= 1000], ball=NormBall(["1/3", "1/7", 0], "1/3", "l1")).save(tmp_path / "p.vnnlib")
    files = [str(tmp_path / name) for name in ("net.onnx", "p.vnnlib", "c.cert")]
    assert main(["verify", *files[:2], "--certificate", files[2]]) == 0
    assert main(["check", *files]) == 0
    text = (tmp_path / "p.vnnlib").read_text().replace("2.0))", "(/ 2.0 1.0)))", 1)
    (tmp_path / "p.vnnlib").write_text(text)
    capsys.readouterr()
    assert main(["verify", *files[:2], "--certificate", str(tmp_path / "d.cert")]) == 3
    assert "the property divides" in capsys.readouterr().err


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", str(EXAMPLES / "digits_conv_ibp.onnx"), "--images", str(EXAMPLES / "digits.npz"), "--end", "2", "--clip", "0,1"]
    results = tmp_path / "results.jsonl"
    assert main([*run, "--epsilon", "0.2,2.5", "--norm", "l2", "--json", str(results)]) == 0
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert {(r["epsilon"], r["norm"]) for r in records} == {("1/5", "l2"), ("5/2", "l2")}
    assert {r["verdict"] for r in records if r["epsilon"] == "1/5"} == {"unsat"}
    out = capsys.readouterr()
    assert "0.2 in l2" in out.out
    assert main([*run, "--epsilon", "0.2", "--norm", "linf", "--json", str(results), "--resume"]) == 0
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(records) == 6, "another norm is another question"
    assert main(["report", str(results), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "0.2 in l2" in page and "2.5 in l2" in page
    assert main([*run, "--epsilon", "0.2", "--norm", "l3"]) == 2
    assert "linf, l2, l1" in capsys.readouterr().err
    assert main([*run, "--epsilon", "0.2", "--norm", "l2", "--device", "interpret", "--json", str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err.count("no l2 balls") == 1, "once, and not once an image"
    assert not (tmp_path / "none.jsonl").exists()
    assert main([*run, "--epsilon", "2.5"]) == 2, "of l-infinity, this is more than the pixel range"


@pytest.mark.parametrize(("page", "section"), [("own-images.md", "Other norms"), ("properties.md", "Balls")])
def test_the_pages_examples_run(page: str, section: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES.parent / "docs" / page).read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    code = text.partition("```python\n")[2].partition("```")[0]
    assert code
    monkeypatch.chdir(EXAMPLES.parent)
    exec(compile(code, page, "exec"), {})
    told = [line.partition("# ")[2].partition(":")[0] for line in code.splitlines() if ".verdict)" in line]
    assert capsys.readouterr().out.splitlines()[: len(told)] == told


def test_a_record_is_of_its_norm() -> None:
    one, other = (Ball(b"\0" * 4, "|u1", (1, 2, 2), "1/10", norm=norm) for norm in ("linf", "l2"))
    assert one.identity() != other.identity()
    assert one.identity() == Ball(b"\0" * 4, "|u1", (1, 2, 2), "1/10").identity()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"norm": "linf"}, "l-infinity ball is a box"),
        ({"norm": "euclid"}, "unknown"),
        ({"radius": -1}, "negative radius"),
        ({"weights": 0}, "a weight of 0"),
        ({"weights": [1, 2]}, "2 weights for 3 inputs"),
        ({"centre": []}, "without inputs"),
        ({"centre": [1, np.nan, 2]}, "NaN"),
        ({"radius": "1e400"}, "beyond float64"),
    ],
)
def test_mistakes_are_told(given: dict[str, object], message: str) -> None:
    asked = {"centre": [0, 0, 0], "radius": 1, **given}
    with pytest.raises(PolytritonError, match=message) as stop:
        NormBall(**asked)  # type: ignore[arg-type]
    assert stop.value.remedy


def test_balls_of_another_size_or_kind_are_told(net: polytriton.Verifier) -> None:
    _, y = polytriton.variables(3, 2)
    with pytest.raises(UsageError, match="2 numbers, the network has 3 inputs"):
        Property(unsafe=[y[0] <= y[1]], ball=NormBall([0, 0], 1))
    with pytest.raises(UsageError, match="is no ball"):
        Property(unsafe=[y[0] <= y[1]], ball=1.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the norm"):
        net.verify(np.zeros((1, 8, 8)), "0.1", 0, norm="2")


def test_a_ball_beside_its_box(net: polytriton.Verifier) -> None:
    _, y = net.variables()
    box = (np.zeros(net.inputs), np.ones(net.inputs))
    with pytest.raises(UsageError, match=r"(?s)the ball misses the box at x\[.*no input lies in both"):
        Property(box, unsafe=[y[0] >= y[1]], ball=NormBall(np.full(net.inputs, 5.0), 1, "l2"))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_ball_that_misses_its_box_where_no_coordinate_tells(norm: str) -> None:
    """Beside a corner: around (-3/5, -4/5) the box [0, 1]^2 is 1 away in l2 and 7/5 in l1."""
    x, y = polytriton.variables(2, 2)
    centre, far, touch = ["-3/5", "-4/5"], {"l1": "27/20", "l2": "99/100"}[norm], {"l1": "7/5", "l2": 1}[norm]
    box = (np.zeros(2), np.ones(2))
    with pytest.raises(UsageError, match=r"(?s)the ball misses the box, whose nearest.*no input lies in both"):
        Property(box, unsafe=[y[0] >= y[1]], ball=NormBall(centre, far, norm))
    assert len(Property(box, unsafe=[y[0] >= y[1]], ball=NormBall(centre, touch, norm)).disjuncts) == 1
    wide = (np.full(2, -1.0), np.ones(2))
    pieces = [(x[0] >= 0) & (x[1] >= 0) & (y[0] >= y[1]), (x[0] <= 0) & (y[0] >= y[1])]
    for radius, left in ((far, 1), (touch, 2)):
        assert len(Property(wide, unsafe=pieces, ball=NormBall(centre, radius, norm)).disjuncts) == left


def test_a_session_times_questions_in_balls(net: polytriton.Verifier, digit: tuple[np.ndarray, int]) -> None:
    image, label = digit
    q = questions(net.ball_property(image, Fraction(1, 4), label, norm="l1"))
    assert q is not None and q.balls is not None
    back = work.unpack(work.pack(q))
    assert back.balls is not None and back.balls.norm == "l1"
    assert all(np.array_equal(getattr(back.balls, f), getattr(q.balls, f)) for f in ("centre", "scale", "radius"))
    assert np.array_equal(work.run(net, back), work.run(net, q))


def test_a_certificate_wants_a_file(net: polytriton.Verifier, digit: tuple[np.ndarray, int], tmp_path: Path) -> None:
    prop = net.ball_property(digit[0], Fraction(1, 100), digit[1])
    with pytest.raises(UsageError, match=r"(?s)about a property file.*prop\.save"):
        net.certify(prop, tmp_path / "c")  # type: ignore[arg-type]
