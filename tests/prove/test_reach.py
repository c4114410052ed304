"""Reachable sets: no execution and no exact value leaves the piece of its input, and the pieces are tight where they can be."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import polytriton
from polytriton import Reach
from polytriton.errors import UsageError
from polytriton.prove.reach import FEW
from tests.prove.piecewise import Numbers, Small, drawn, pieces, uneven
from tests.prove.watched import compiled, inside


def bent(size: float = 1.0) -> Small:
    """y = (size x, |x|): the image of [-1, 1] is a corner."""
    return Small(((np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[size, -size], [1.0, 1.0]]), np.zeros(2))), 1)


def holds(found: Reach, x: Numbers, y: Numbers) -> bool:
    """Every piece whose inputs x is one of has every bound at or below the form of y, in rationals."""
    mine = [p for p in range(len(found.least)) if inside(x, found.input_lo[p], found.input_hi[p])]
    assert mine, "the pieces' inputs are the box"
    forms = [sum((Fraction(c) * v for c, v in zip(row, y, strict=True)), Fraction(0)) for row in found.directions.tolist()]
    return all(b <= form for p in mine for b, form in zip(found.least[p].tolist(), forms, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_exact_images_of_tiny_networks_stay_inside(seed: int) -> None:
    """All vertices of all linear regions, and the corners where pieces meet."""
    rng = np.random.default_rng(seed)
    inputs = 1 + seed % 2
    net = drawn(rng, inputs, [4, 3][: 1 + seed % 2], 2)
    lo, hi = np.full(inputs, -1.0), np.full(inputs, 0.75)
    for semantics in ("real", "float32"):
        found = polytriton.reach(compiled(net, semantics), (lo, hi), pieces=12, angles=8, samples=0)
        assert len(found.least) > 1 or not found.ended_by
        for x, y in {v for simplex in pieces(net, lo, hi) for v in simplex}:
            assert holds(found, x, y)
        ends = [sorted({*low, *high}) for low, high in zip(found.input_lo.T.tolist(), found.input_hi.T.tolist(), strict=True)]
        for corner in product(*ends):
            x = tuple(map(Fraction, corner))
            assert holds(found, x, net.value(x))


@pytest.mark.parametrize("seed", range(3))
def test_no_float32_execution_leaves(seed: int) -> None:
    """Shuffled, fused, flushed, rounded in any mode; and onnxruntime."""
    rng = np.random.default_rng(90 + seed)
    net = uneven(rng, 2, [6, 5], 3)
    verifier = compiled(net, "float32")
    lo, hi = np.array([-1.0, 0.1]), np.array([0.3, 0.1000001])
    found = polytriton.reach(verifier, (lo, hi), pieces=8, planes=[(0, 1), (1, 2)], angles=8, directions=[[1, 1, 1]])
    session = onnxruntime.InferenceSession(net.model().SerializeToString())
    low, high = np.float32(lo), np.float32(hi)
    low, high = np.where(low < lo, np.nextafter(low, np.float32(9)), low), np.where(high > hi, np.nextafter(high, np.float32(-9)), high)
    for _ in range(40):
        point = np.clip(np.float32(rng.uniform(lo, hi)), low, high)
        x = tuple(map(Fraction, point.tolist()))
        assert holds(found, x, net.execute(point.tolist(), rng))
        (y,) = session.run(None, {"x": point[None]})
        assert holds(found, x, tuple(map(Fraction, y[0].tolist()))) and found.contains(y)
    assert len(found.samples) == 400 and all(found.contains(y) for y in found.samples)
    assert len(found.directions) == 6 + 2 * 4 + 1


def test_pieces_close_in_on_the_exact_image() -> None:
    net = drawn(np.random.default_rng(11), 2, [5, 4], 2)
    lo, hi = [-1.0, -1.0], [1.0, 1.0]
    values = np.array([[float(v) for v in y] for simplex in pieces(net, lo, hi) for _, y in simplex])
    least, most = values.min(0), values.max(0)
    verifier, loose = compiled(net), []
    for count in (1, 16, 256):
        found = polytriton.reach(verifier, (-1, 1), pieces=count, samples=0)
        loose.append(float(((least - found.lo) + (found.hi - most)).max() / (most - least).max()))
    assert (found.lo <= least).all() and (found.hi >= most).all()
    assert loose[0] > loose[1] > loose[2] and loose[2] < 0.02


def test_one_cut_makes_a_bend_exact() -> None:
    """Two pieces, each a line: the hull of one box would be a triangle."""
    verifier = compiled(bent())
    one = polytriton.reach(verifier, (-1, 1), pieces=1)
    assert one.contains([0.0, 0.9]) and one.ended_by == "pieces"
    found = polytriton.reach(verifier, (-1, 1))
    assert len(found.least) == 2 and found.ended_by == "" and found.gap < 1e-3
    assert not found.contains([0.0, 0.5]) and not found.contains([0.5, -0.5])
    assert found.contains([0.0, 0.0]) and found.contains([1.0, 1.0]) and found.contains(np.array([[-0.5, 0.5]]))
    assert not found.contains([1.0, 1.0 + 1e-5]) and not found.contains([1.01, 1.0])
    corners = np.concatenate(found.polygons((0, 1)))
    assert np.allclose(corners[:, 1], np.abs(corners[:, 0]), atol=0.15) and np.isclose(corners.min(0), [-1, 0], atol=1e-6).all()


def test_membership_is_decided_in_rationals() -> None:
    """Half a unit in the last place decides, and a bound that is missing excludes nothing."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.1, 0.7]])
    y = np.array([0.3, 1 / 3])
    exact = Fraction(0.1) * Fraction(0.3) + Fraction(0.7) * Fraction(1 / 3)
    near = float(exact)
    below, above = (near, np.nextafter(near, 9)) if Fraction(near) <= exact else (np.nextafter(near, -9), near)
    for bound, said in ((below, True), (above, False), (-np.inf, True), (np.inf, False)):
        least = np.array([[0.3, -np.inf, -0.3, -1.0, bound]])
        found = Reach("n", "real", ((0, 1),), rows, least, np.zeros((1, 1)), np.ones((1, 1)), np.zeros((0, 2)), 0.0, "", 0.0)
        assert found.contains(y) is said, bound


def test_outputs_of_unlike_size_are_asked_at_angles_that_tell_them_apart() -> None:
    found = polytriton.reach(compiled(bent(1e-6)), (-1, 1), pieces=1)
    assert not found.contains([9e-7, 0.3]), "a corner of the box, far from the triangle"


def test_a_property_gives_its_boxes(tmp_path: Path) -> None:
    net = compiled(bent())
    x, y = net.variables()
    far = polytriton.Property((-1, 1), [(x[0] <= -0.5) & (y[0] >= 0), (x[0] >= 0.5) & (y[0] <= 0), (x[0] >= 0.5) & (y[1] <= 0)])
    found = polytriton.reach(net, far)
    assert len(found.least) == 2 and found.input_lo.tolist() == [[-1.0], [0.5]] and found.input_hi.tolist() == [[-0.5], [1.0]]
    assert found.contains([0.75, 0.75]) and not found.contains([0.0, 0.0])
    assert polytriton.reach(net, far, pieces=1, samples=0).least.shape == (2, 32), "as many pieces as boxes at least"


def test_what_ends_the_cutting() -> None:
    wide = Small(((np.ones((2, FEW + 1)), np.zeros(2)), (np.eye(2), np.zeros(2))), FEW + 1)
    assert len(polytriton.reach(compiled(wide), (-1, 1), samples=0).least) == 1, "one of very many inputs would gain nothing"
    assert len(polytriton.reach(compiled(wide), (-1, 1), pieces=3, samples=0).least) == 3
    net = compiled(drawn(np.random.default_rng(2), 3, [8, 8], 2))
    found = polytriton.reach(net, (-1, 1), pieces=10**6, timeout=0.3, samples=0)
    assert found.ended_by == "time" and found.seconds < 20
    point = polytriton.reach(net, (0.5, 0.5), samples=3)
    assert len(point.least) == 1 and point.ended_by == "" and len(point.samples) == 3


def test_the_same_question_has_the_same_answer() -> None:
    net = compiled(drawn(np.random.default_rng(2), 2, [6], 2))
    one, other = (polytriton.reach(net, (-1, 1), pieces=9, seed=4) for _ in range(2))
    assert (one.least == other.least).all() and (one.samples == other.samples).all() and one.svg() == other.svg()


def test_documents_and_pictures(tmp_path: Path) -> None:
    found = polytriton.reach(compiled(bent()), (-1, 1))
    document = json.loads(found.to_json())
    assert document["directions"] == found.directions.tolist() and [p["least"] for p in document["pieces"]] == found.least.tolist()
    assert document["lo"] == found.lo.tolist() and document["planes"] == [[0, 1]] and document["semantics"] == "real"
    assert json.loads(found.save(tmp_path / "a.json").read_text()) == document
    text = found.save(tmp_path / "a.svg").read_text()
    assert text.startswith("<svg xmlns=") and text.count("<polygon") == 2 and text.count("<circle") == 400
    assert "enclosed by 2 pieces" in text and found._repr_svg_() == text
    assert repr(found).startswith("<Reach: 2 outputs in [-1, 1], 2 pieces of 32 directions, gap ") and len(repr(found)) < 150
    assert found.svg([(0, 1), (1, 0)]).count("<polygon") == 4
    with pytest.raises(UsageError, match="is there already"):
        found.save(tmp_path / "a.svg")
    assert found.save(tmp_path / "a.svg", overwrite=True)


def test_a_plane_is_drawn_by_its_own_rows() -> None:
    """A direction that leaves the plane says nothing of it alone: x + y >= 10 by y of up to 20 leaves x anywhere."""
    rows = np.concatenate([np.eye(3), -np.eye(3), [[1.0, 0.0, 1.0]]])
    least = np.array([[0.0, 0, 0, -1, -1, -20, 10]])
    found = Reach("n", "real", ((0, 1),), rows, least, np.zeros((1, 1)), np.ones((1, 1)), np.zeros((0, 3)), 0.0, "", 0.0)
    (shape,) = found.polygons((0, 1))
    assert shape.min(0).tolist() == [0, 0] and shape.max(0).tolist() == [1, 1]


def test_what_has_no_picture() -> None:
    alone = polytriton.reach(compiled(drawn(np.random.default_rng(0), 2, [3])), (-1, 1), pieces=4)
    assert alone.planes == () and alone._repr_svg_() is None and alone.lo.shape == (1,)
    with pytest.raises(UsageError, match="two outputs"):
        alone.svg()
    infinite = Reach("n", "real", ((0, 1),), np.concatenate([np.eye(2), -np.eye(2)]), np.full((1, 4), -np.inf), *np.zeros((2, 1, 1)),
                     np.zeros((0, 2)), np.inf, "", 0.0)  # fmt: skip
    with pytest.raises(UsageError, match="nothing to draw"):
        infinite.svg()
    assert json.loads(infinite.to_json())["pieces"][0]["least"] == [None] * 4 and infinite.contains([1e300, 0.0])


def test_mistakes_are_told(tmp_path: Path) -> None:
    net = compiled(bent())
    for words, given in {
        "pair of its lower": {"box": [-1.0, 1.0]},
        "inverted box": {"box": (1, -1)},
        "no pair of two outputs": {"planes": [(0, 0)]},
        "output 2 is out of range": {"planes": [(0, 2)]},
        "do not fit 2 outputs": {"directions": [[1.0]]},
        "angles": {"angles": 3},
        "pieces are out of range": {"pieces": 0},
        "is no time": {"timeout": -1.0},
        "samples are out of range": {"samples": -1},
        "effort": {"effort": "hard"},
    }.items():
        with pytest.raises(UsageError, match=words):
            polytriton.reach(net, **{"box": (-1, 1), **given})  # type: ignore[arg-type]
    found = polytriton.reach(net, (-1, 1), samples=0)
    with pytest.raises(UsageError, match="no reachable set is written"):
        found.save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="is no output of 2"):
        found.contains([1.0])
