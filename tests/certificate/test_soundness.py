"""Bounds of the checker against exact rationals: whatever lines it accepts, no point of the box gets below them."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polytriton import checker, checker_exact
from polytriton.certificate.write import pack
from tests.certificate.models import NODE, bounded, certify, dense, exact_dense, model, prop, random_tree, refused
from tests.certificate.nodes import Node
from tests.hostile import STATES
from tests.prove.piecewise import Form, Small, drawn, least

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # `check` runs with numpy's errors ignored
Layers = list[tuple[np.ndarray, np.ndarray]]


def hurtful(rng: np.random.Generator, sizes: list[int], dtype: type) -> Layers:
    """Weights of any magnitude, many of them zero, opposite or tied."""
    made = []
    for n, m in pairwise(sizes):
        w = rng.normal(size=(m, n)) * 2.0 ** rng.integers(-30, 30, (m, n)) if rng.random() < 0.5 else rng.integers(-2, 3, (m, n))
        if m > 1 and rng.random() < 0.5:
            w[1] = -w[0]
        made.append((np.asarray(w, dtype), np.asarray(rng.normal(size=m) * 2.0 ** rng.integers(-20, 20), dtype)))
    return made


def random_choice(rng: np.random.Generator, boxes: checker.Boxes, rows: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Slopes and multipliers of every kind, most of them none."""
    found = {}
    for k in boxes.lines:
        s, b = rng.uniform(-0.2, 1.2, (boxes.net.sizes[k], rows)), rng.normal(size=(boxes.net.sizes[k], rows)) * 4.0 ** rng.integers(-3, 3)
        for v in (s, b):
            v[rng.random(v.shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, 1e300, 0.0])
        found[k] = s, b
    return found


def prepared(rng: np.random.Generator, path: Path, layers: Layers, lo: list[Fraction], hi: list[Fraction], semantics: str) -> Any:
    """Boxes of a random part of the executions, bounded as a certificate may ask; and the signs assumed."""
    prover = checker.Prover(path.read_bytes(), semantics)
    part = prover.root((tuple(lo), tuple(hi)), [0])
    for neuron in rng.permutation(prover.first[-1])[: rng.integers(0, 4)].tolist():
        part = prover.divide(part, len(lo) + neuron, 0.0)[int(rng.integers(2))]
        if rng.random() < 0.5:
            part = prover.bound([part], int(rng.integers(-1, 4)))[1][0]
    other = prover.root((tuple(lo), tuple(hi)), [0])
    boxes, _ = prover.bound([part, other] if rng.random() < 0.5 else [part], int(rng.integers(-1, 4)))
    return prover, boxes, part


def holds(part: checker.Part, hidden: list[list[Fraction]]) -> bool:
    """Whether an execution has the signs assumed."""
    values = [v for layer in hidden for v in layer]
    return all(s * v >= 0 for s, v in zip(part.signs.tolist(), values, strict=True))


def check_cuts(boxes: checker.Boxes, forms: list[dict[int, Fraction]], x: list[Any], y: list[Fraction], steps: int) -> None:
    """What reaches a row, exactly, is not cut away."""
    rows = [(form, value(form, x, y)) for form in forms]
    for low, high in boxes.margins(boxes.net, rows, np.zeros(len(rows), dtype=np.int64), steps)[1]:
        for a, v, b in zip(low.tolist(), x, high.tolist(), strict=True):
            assert Fraction(a) <= Fraction(v) <= Fraction(b)


def random_forms(rng: np.random.Generator, outputs: int, inputs: int, count: int) -> list[dict[int, Fraction]]:
    some = zip(rng.integers(-2, 3, (count, outputs)).tolist(), rng.integers(-1, 2, (count, inputs)).tolist(), strict=True)
    return [{~j: Fraction(c) for j, c in enumerate(y) if c} | {i: Fraction(c) for i, c in enumerate(x) if c} for y, x in some]


def value(form: dict[int, Fraction], x: list[Fraction], y: list[Fraction]) -> Fraction:
    return sum((c * (x[v] if v >= 0 else y[~v]) for v, c in form.items()), Fraction(0))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(120))
def test_no_point_lies_below_a_bound(tmp_path: Path, seed: int) -> None:
    """In exact rationals: of the whole box or of a part with signs, with lines and multipliers of anyone's choice."""
    rng = np.random.default_rng(seed)
    dtype = np.float64 if seed % 2 else np.float32
    sizes = [int(n) for n in rng.integers(1, 6, rng.integers(3, 6))]
    layers = hurtful(rng, sizes, dtype)
    path = dense(tmp_path / "n.onnx", layers, dtype)
    centre, width = rng.normal(size=sizes[0]), rng.choice([0.0, 2.0**-52, 1e-3, 1.0, 1e6])
    lo, hi = ([Fraction(v) for v in c.tolist()] for c in (centre - width, centre + width * rng.random(sizes[0])))
    prover, boxes, part = prepared(rng, path, layers, lo, hi, "real")
    net = prover.net
    forms = random_forms(rng, sizes[-1], sizes[0], 4)
    start, c = boxes.start([(form, Fraction(0)) for form in forms], at := np.zeros(4, dtype=np.int64))
    chosen = random_choice(rng, boxes, 4)
    bounds = boxes.lower(start, c, np.full(4, np.inf), at, chosen)[0].tolist()
    ends = [(a, b) if rng.random() < 0.8 else (a, (a + b) / 2) for a, b in zip(lo, hi, strict=True)]
    for _ in range(20):
        x = [a + (b - a) * int(rng.integers(5)) / 4 for a, b in ends]
        *hidden, y = exact_dense(layers, x)
        if not holds(part, hidden):
            continue
        assert not boxes.empty[0]
        for here, values in zip(range(1, len(net.ops), 2), [*hidden, y], strict=True):  # affine operators alternate with ReLUs
            for a, v, b in zip(boxes.lo[here][:, 0].tolist(), values, boxes.hi[here][:, 0].tolist(), strict=True):
                assert Fraction(a) <= v <= Fraction(b)
        check_cuts(boxes, forms, x, y, seed % 3)
        for form, bound in zip(forms, bounds, strict=True):
            assert bound == -np.inf or Fraction(bound) <= value(form, x, y)


def test_a_row_with_a_limit_beyond_floats_cuts_nothing(tmp_path: Path) -> None:
    path = dense(tmp_path / "n.onnx", [(np.ones((1, 2)), np.zeros(1))], np.float64)
    part = checker.Prover(path.read_bytes(), "real").root(((Fraction(0), Fraction(0)), (Fraction(5), Fraction(5))), [0])
    boxes = checker.Boxes(checker.Network(path.read_bytes()), part.lo[:, None], part.hi[:, None])
    boxes.interval(1)
    steep = {0: Fraction(10**100), 1: Fraction(10**100)}
    for limit, reached in ((5 * 10**99, 0.5), (10**101, 5.0), (10**400, 5.0)):
        ((_, high),) = boxes.margins(boxes.net, [(steep, Fraction(limit))], np.zeros(1, dtype=np.int64), 0)[1]
        assert high.tolist() == pytest.approx([reached] * 2)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(60))
def test_no_float32_execution_lies_below_a_bound(tmp_path: Path, seed: int) -> None:
    """Executed term by term in rationals: orders, rounding modes, fused or not, flushed or not (tests/prove/piecewise.py)."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 5, rng.integers(3, 5))]
    layers = [(w.clip(-32.0, 32.0), b.clip(-(2.0**20), 2.0**20)) for w, b in hurtful(rng, sizes, np.float32)]
    if seed % 5 == 0:
        layers[0] = layers[0][0] * np.float32(2.0**-120), layers[0][1] * np.float32(2.0**-130)
        layers[1] = layers[1][0] * np.float32(2.0**20), layers[1][1] * np.float32(2.0**-140)
    path = dense(tmp_path / "n.onnx", layers)
    point = rng.normal(size=sizes[0]).astype(np.float32)
    wide = [Fraction(v) + d * int(rng.integers(2)) / 2**30 for v in point.tolist() for d in (-1, 1)]
    lo, hi = wide[::2], wide[1::2]
    _, boxes, part = prepared(rng, path, layers, lo, hi, "float32")
    forms = random_forms(rng, sizes[-1], sizes[0], 4)
    start, c = boxes.start([(form, Fraction(0)) for form in forms], at := np.zeros(4, dtype=np.int64))
    bounds = boxes.lower(start, c, np.full(4, np.inf), at, random_choice(rng, boxes, 4))[0].tolist()
    net, seen = Small(tuple(layers), sizes[0]), 0
    for _ in range(40):
        hidden: list[list[Fraction]] = []
        y = list(net.execute(point.tolist(), rng, seen=hidden))
        if holds(part, hidden):
            seen += 1
            assert not boxes.empty[0]
            check_cuts(boxes, forms, point.tolist(), y, seed % 3)
            for form, bound in zip(forms, bounds, strict=True):
                assert bound == -np.inf or Fraction(bound) <= value(form, [Fraction(v) for v in point.tolist()], y)
            for values, (low, high, _) in zip(hidden, boxes.z.values(), strict=True):
                for a, v, b in zip(low[:, 0].tolist(), values, high[:, 0].tolist(), strict=True):
                    assert Fraction(a) <= v <= Fraction(b)
    assert seen or part.signs.any()


def test_what_float32_executions_round_is_needed(tmp_path: Path) -> None:
    """A margin that some order of summation breaks is proved in exact arithmetic and in no other."""
    layers: Layers = [(np.array([[2.0**27, 0], [0, 1], [2.0**27, 0]]), np.array([0, 0.5, 0])), (np.array([[1.0, 1.0, -1.0]]), np.zeros(1))]
    files = dense(tmp_path / "n.onnx", layers), prop(tmp_path / "p.vnnlib", [(0.5, 1), (0.25, 0.75)], 1, "(<= Y_0 0.25)")
    assert refused(files, certify(*files), tmp_path) is None
    with pytest.raises(checker.Refused):
        certify(*files, semantics="float32")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(20))
def test_a_false_property_of_a_small_network_is_never_certified(tmp_path: Path, seed: int) -> None:
    """Exact minima from a cut into simplices: just below one the writer succeeds, at it and above nobody can, whatever tree is forged."""
    rng = np.random.default_rng(seed)
    net = drawn(rng, 2, [int(n) for n in rng.integers(2, 5, rng.integers(1, 3))])
    onnx.save(net.model(), path := tmp_path / "n.onnx")
    lo, hi = [Fraction(-1), Fraction(-1, 2)], [Fraction(1), Fraction(3, 2)]
    best, _ = least(net, [Form((Fraction(1),), (Fraction(0),) * 2, Fraction(0))], lo, hi)
    box = [(float(a), float(b)) for a, b in zip(lo, hi, strict=True)]
    semantics = ("real", "float32")[seed % 2]
    true = path, prop(tmp_path / "t.vnnlib", box, 1, f"(<= Y_0 {float(best) - 0.125})")
    assert refused(true, certify(*true, semantics=semantics), tmp_path) is None
    false = path, prop(tmp_path / "f.vnnlib", box, 1, f"(<= Y_0 {float(best)})")
    hashes = checker.load(*false)[2]
    neurons = int(checker.Prover(path.read_bytes(), "real").first[-1])
    for _ in range(20):
        tree = random_tree(rng, 2, neurons, 1)
        assert refused(false, pack([tree.arrays()], semantics, hashes), tmp_path) is not None


@pytest.mark.parametrize(("dtype", "power"), [(np.float32, 27), (np.float64, 56), (np.float64, 80)])
def test_cancellations_are_not_lost(tmp_path: Path, dtype: type, power: int) -> None:
    """B + x - B + 2 reaches 3 at x = 1; arithmetic to nearest finds 2 or 2.5 its maximum. Behind a ReLU and in a sum of two paths too."""
    big = 2.0**power
    first = np.array([[big, 1.0, -big]]), np.array([2.0])
    layers: Layers = [first, (np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))]
    path = dense(tmp_path / "c.onnx", layers, dtype)
    files = path, prop(tmp_path / "p.vnnlib", [(1, 1), (0, 1), (1, 1)], 1, "(>= Y_0 3)")
    with pytest.raises(checker.Refused):
        certify(*files, seconds=0.15)  # a bound that lost one proves at once
    both = model(
        tmp_path / "r.onnx",
        [NODE("Gemm", ["x", "w"], ["a"]), NODE("Gemm", ["x", "v"], ["b"]), NODE("Relu", ["a"], ["c"]), NODE("Add", ["c", "b"], ["y"])],
        [1, 2], {"w": [[big], [1]], "v": [[-big], [0]]}, dtype,
    )  # fmt: skip
    files = both, prop(tmp_path / "q.vnnlib", [(1, 1), (0, 1)], 1, "(>= Y_0 1)")
    with pytest.raises(checker.Refused):
        certify(*files, seconds=0.15)
    biases = model(
        tmp_path / "b.onnx", [NODE("Gemm", ["x", "w", "b"], ["a"]), NODE("MatMul", ["a", "v"], ["y"])],
        [1, 1], {"w": [[2.0**-20] * 3], "b": [big, 1, -big], "v": np.ones((3, 1))}, dtype,
    )  # fmt: skip
    files = biases, prop(tmp_path / "s.vnnlib", [(0, 1)], 1, "(>= Y_0 1)")
    with pytest.raises(checker.Refused):
        certify(*files, seconds=0.15)


def test_sums_of_coefficients_and_of_inputs_are_charged(tmp_path: Path) -> None:
    """B x + x - B x is x, whatever order sums it: once in the product of two layers, once in a row over the inputs alone."""
    big = 2**56
    weights = {"w": [[big, 1.0, -big]], "v": np.ones((3, 1))}
    path = model(tmp_path / "s.onnx", [NODE("MatMul", ["x", "w"], ["h"]), NODE("MatMul", ["h", "v"], ["y"])], [1, 1], weights)
    files = path, prop(tmp_path / "p.vnnlib", [(1, 2)], 1, "(>= Y_0 1)")
    with pytest.raises(checker.Refused):
        certify(*files)
    flat = model(tmp_path / "f.onnx", [NODE("MatMul", ["x", "w"], ["y"])], [1, 3], {"w": np.zeros((3, 1))})
    row = f"(>= (+ (* {big} X_0) X_1 (* -{big} X_2)) 1)"
    with pytest.raises(checker.Refused):
        certify(flat, prop(tmp_path / "q.vnnlib", [(1, 1), (0, 1), (1, 1)], 1, row))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("slope", [-2.0, -0.2, 0.0, 0.3, 1.0, 1.2, 5.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("multiplier", [0.0, 0.7, -0.7, np.nan, -np.inf])
@pytest.mark.parametrize("sigma", [0, 1, -1])
def test_no_line_cuts_a_relu(tmp_path: Path, slope: float, multiplier: float, sigma: int) -> None:
    """relu(x) - q x over [-1, 1], or the half of one sign, for many q, against its values at the ends and the kink."""
    path = model(tmp_path / "r.onnx", [NODE("Relu", ["x"], ["y"])], [1, 1], {})
    prover = checker.Prover(path.read_bytes(), "real")
    part = prover.root(((Fraction(-1),), (Fraction(1),)), [0])
    part = part if sigma == 0 else prover.divide(part, 1, 0.0)[0 if sigma > 0 else 1]
    boxes, _ = prover.bound([part], 0)
    for sign in (1, -1):
        for q in [Fraction(k, 10) for k in range(-30, 31)]:
            start, c = boxes.start([({~0: Fraction(sign), 0: -q} if q else {~0: Fraction(sign)}, Fraction(0))], np.zeros(1, np.int64))
            chosen = {1: (np.full((1, 1), slope), np.full((1, 1), multiplier))}
            (found,) = boxes.lower(start, c, np.full(1, np.inf), np.zeros(1, np.int64), chosen)[0].tolist()
            true = min(sign * max(x, 0) - q * x for x in (-1, 0, 1) if sigma * x >= 0)
            assert Fraction(found) <= true


def test_a_bound_over_a_box_pays_for_its_sum(tmp_path: Path) -> None:
    """B + x - B over a box that is a point but for x: sums to nearest find x = 0."""
    path = dense(tmp_path / "n.onnx", [(np.zeros((1, 3)), np.zeros(1))])
    net, big = checker.Network(path.read_bytes()), 2.0**56
    boxes = checker.Boxes(net, np.array([[1.0], [-1.0], [1.0]]), np.array([[1.0], [-1.0], [1.0]]))
    for order in ([big, 1.0, -big], [1.0, big, -big], [big, -big, 1.0]):
        at = {big: 1.0, -big: 1.0}
        ends = np.array([[at.get(v, -1.0)] for v in order])
        boxes.put(0, ends, ends)
        (found,) = boxes.lower({0: np.array(order)[:, None]}, np.zeros(1), np.full(1, np.inf), np.zeros(1, np.int64), {})[0].tolist()
        assert found <= -1


def test_sums_of_coefficients_cost_what_they_round(tmp_path: Path) -> None:
    """1 + 3 2^-54 is stored as 1 + 2^-52: over [-2^20, 2^20] that is 2^-34 too much."""
    path = dense(tmp_path / "n.onnx", [(np.eye(1), np.zeros(1))])
    boxes = bounded(checker.Boxes(checker.Network(path.read_bytes()), np.full((1, 1), -(2.0**20)), np.full((1, 1), 2.0**20)))
    frontier = {1: np.ones((1, 1))}
    c = boxes._give(frontier, 1, np.full((1, 1), 3 * 2.0**-54), np.zeros(1), np.zeros(1, dtype=np.int64))
    assert frontier[1][0, 0] == 1 + 2.0**-52
    assert c[0] <= -(2.0**-54) * 2.0**20


def test_both_sides_of_a_difference_go_back(tmp_path: Path) -> None:
    """relu(x) - x over [-1, 1] is at most 1; the interval pass says 2, and the wrong sign on the way back too."""
    path = model(tmp_path / "d.onnx", [NODE("Relu", ["x"], ["r"]), NODE("Sub", ["r", "x"], ["y"])], [1, 1], {})
    for bound, proved in (("1.001", True), ("1", False)):
        files = path, prop(tmp_path / "p.vnnlib", [(-1, 1)], 1, f"(or (>= Y_0 {bound}) (<= Y_0 -1.001))")
        if proved:
            assert refused(files, certify(*files), tmp_path) is None
        else:
            with pytest.raises(checker.Refused):
                certify(*files)


def test_a_bound_that_is_attained_is_not_beaten_and_one_beside_it_is_proved(tmp_path: Path) -> None:
    layers: Layers = [(np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))]
    path = dense(tmp_path / "n.onnx", layers)
    for bound, proved in (("4", False), ("4.0000000001", True), ("3.9999999999", False)):
        files = path, prop(tmp_path / "p.vnnlib", [(1, 2), (0, 1)], 1, f"(>= Y_0 {bound})")
        if proved:
            assert refused(files, certify(*files), tmp_path) is None
        else:
            with pytest.raises(checker.Refused):
                certify(*files)


def test_box_bounds_are_rounded_outward() -> None:
    """0.1 lies below its float64: a box taken at the float would miss the exact one."""
    lo, hi = checker.outward(((Fraction("0.1"),), (Fraction("0.3"),)))
    assert Fraction(lo[0].item()) <= Fraction("0.1") < Fraction(np.nextafter(lo[0], 1).item())
    assert Fraction(np.nextafter(hi[0], 0).item()) < Fraction("0.3") <= Fraction(hi[0].item())
    exact = checker.outward(((Fraction(1, 4),), (Fraction(1, 2),)))
    assert (exact[0][0], exact[1][0]) == (0.25, 0.5)


def test_huge_numbers_are_no_bounds(tmp_path: Path) -> None:
    """Overflow on the way must never look like a bound."""
    rng = np.random.default_rng(5)
    for power in (20, 60, 90, 99):
        layers: Layers = [(10.0**power * rng.random(s), np.zeros(s[0])) for s in ((3, 2), (3, 3), (1, 3))]
        files = dense(tmp_path / "h.onnx", layers, np.float64), prop(tmp_path / "p.vnnlib", [(-1, 1), (-1, 1)], 1, "(>= Y_0 1e-5)")
        assert max(exact_dense(layers, [Fraction(a), Fraction(b)])[-1][0] for a in (-1, 1) for b in (-1, 1)) > 1
        with pytest.raises(checker.Refused):
            certify(*files)


@pytest.mark.parametrize(("weight", "end", "says"), [(1e51, 1e51, "too large"), (1e-51, 2e101, "input bound"), (1.0, 1.0, "")])
def test_numbers_beyond_the_proofs_range_are_refused(tmp_path: Path, weight: float, end: float, says: str) -> None:
    """Bounds and weights below 1e100 are what keeps all underflow below FLOOR."""
    path = model(tmp_path / "l.onnx", [NODE("MatMul", ["x", "w"], ["y"])], [1, 1], {"w": [[weight]]}, np.float64)
    files = path, prop(tmp_path / "p.vnnlib", [(0, repr(end))], 1, "(<= Y_0 -1)")
    if not says:
        assert refused(files, certify(*files), tmp_path) is None
        return
    with pytest.raises(checker.Refused, match=says):
        certify(*files)


def test_bounds_of_a_whole_box_that_cross_are_refused(tmp_path: Path) -> None:
    """They show that a part has no execution; of a box of inputs, which has, they show a fault or a machine that errs."""
    path = dense(tmp_path / "n.onnx", [(np.eye(1), np.zeros(1))])
    boxes = checker.Boxes(checker.Network(path.read_bytes()), np.zeros((1, 1)), np.ones((1, 1)))
    with pytest.raises(checker.Refused, match="cross"):
        boxes.check_ends(np.ones((1, 1)), np.zeros((1, 1)), "two bounds")
    assert not boxes.empty.any()


@pytest.mark.parametrize("state", ["flush", "upward", "downward", "to zero"])
def test_a_machine_that_rounds_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Where the processor can be told nothing, the probe sees flushed subnormal numbers and every directed rounding."""
    files: Any = (tmp_path / "a", tmp_path / "b", tmp_path / "c")
    monkeypatch.setattr(checker.sys, "platform", "elsewhere")
    with STATES[state](), pytest.raises(checker.Unsupported, match="subnormal"):
        checker.check(*files)


def test_a_row_is_bounded_as_it_is_alone(tmp_path: Path) -> None:
    """Author and checker ask for other rows beside it; a row whose goal is reached must not go on because others do."""
    rng = np.random.default_rng(3)
    layers = [(rng.normal(size=(12, n)), rng.normal(size=12)) for n in (4, 12, 12)]
    boxes = bounded(checker.Boxes(checker.Network(dense(tmp_path / "n.onnx", layers).read_bytes()), -np.ones((4, 1)), np.ones((4, 1))))
    k, at = len(boxes.net.ops) - 1, np.arange(12)
    every, none = np.full(12, np.inf), np.zeros(12, dtype=np.int64)
    whole = boxes.neurons(boxes.net, k, at, none, np.ones(12), every, 0)
    first = boxes.neurons(boxes.net, k, at, none, np.ones(12), np.full(12, -1e9), 0)
    goal = np.where(at % 6 == 0, -1e9, np.inf)
    assert (first[at % 6 == 0] < whole[at % 6 == 0]).any()
    np.testing.assert_allclose(boxes.neurons(boxes.net, k, at, none, np.ones(12), goal, 0), np.where(at % 6 == 0, first, whole), rtol=1e-9)


@pytest.mark.parametrize(
    ("factors", "x", "lost"),
    [
        ((2.0**50, 2.0**-67, 2.0**-60), 2.0**-20, 2.0**-97),  # the last two are merged, and their product flushed
        ((2.0**-130,), 2.0**30, 2.0**-100),  # a weight below the normal range is flushed
        ((2.0**-100,), 2.0**-27, 2.0**-127),  # a product
    ],
)
def test_what_underflows_in_layers_is_paid(tmp_path: Path, factors: tuple[float, ...], x: float, lost: float) -> None:
    """An execution that gives zero where the exact value is `lost`."""
    nodes = [NODE("Gemm", ["x" if not k else f"h{k}", f"w{k}"], [f"h{k + 1}"]) for k in range(len(factors))]
    nodes[-1].output[0] = "y"
    weights = {f"w{k}": np.array([[w]]) for k, w in enumerate(factors)}
    net = checker.Network(model(tmp_path / "n.onnx", nodes, [1, 1], weights).read_bytes())
    boxes = checker.Boxes(net, np.array([[x / 2]]), np.array([[x]]), "float32")
    for k in range(1, len(net.ops)):
        boxes.interval(k)
    assert math.prod(factors) * x == lost <= boxes.execution_error(net.output).min()


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [1, 1], [0]])
def test_rows_over_several_boxes_are_bounded_over_their_own(tmp_path: Path, order: list[int]) -> None:
    """relu(x) over [10, 11] and over [-1, 1]."""
    files = dense(tmp_path / "n.onnx", [(np.eye(1), np.zeros(1)), (np.eye(1), np.zeros(1))])
    boxes = checker.Boxes(checker.Network(files.read_bytes()), np.array([[10.0, -1.0]]), np.array([[11.0, 1.0]]))
    bounded(boxes)
    rows = [({~0: Fraction(1)}, Fraction(0))] * len(order)
    found, _ = boxes.margins(checker.Network(files.read_bytes(), np.float32), rows, np.array(order), 0)
    assert all((9, -2)[k] <= m <= (10, 0)[k] for k, m in zip(order, found, strict=True))


def test_a_limit_beyond_any_float_is_read_and_compared_exactly(tmp_path: Path) -> None:
    """y >= 10^400 is not reached; y <= 10^400 always is."""
    path = dense(tmp_path / "n.onnx", [(np.eye(1), np.zeros(1))])
    for exact in (False, True):
        for text, right in (("(>= Y_0 1e400)", True), ("(<= Y_0 -1e400)", True), ("(<= Y_0 1e400)", False), ("(>= Y_0 -1e400)", False)):
            files = path, prop(tmp_path / "p.vnnlib", [(0, 1)], 1, text), tmp_path / "c"
            files[2].write_bytes(pack([Node(0, 0, [(0, 0)]).arrays()], "real", checker.load(*files[:2])[2]))
            if right:
                assert min((checker_exact if exact else checker).check(*files).margins) > 10
            else:
                with pytest.raises(checker.Refused, match="left open"):
                    (checker_exact if exact else checker).check(*files)
