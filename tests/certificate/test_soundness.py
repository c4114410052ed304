"""Bounds of the checker against exact rationals: whatever lines it accepts, no point of the box gets below them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton import checker
from polytriton.certificate.write import certify, lines
from tests.certificate.models import NODE, dense, exact_dense, model, prop, refused
from tests.hostile import STATES

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


def random_claim(rng: np.random.Generator, boxes: checker.Boxes, i: int) -> dict[str, np.ndarray]:
    """Looser bounds than those at hand, and any lines that are valid over them."""
    at = np.flatnonzero((boxes.lo[i] < 0) & (boxes.hi[i] > 0)).astype(np.int32)
    lo, hi = boxes.lo[i][at] * (1 + rng.random(len(at)) / 8), boxes.hi[i][at] * (1 + rng.random(len(at)) / 8)
    _, up, cut = lines(lo, hi)
    steep = rng.random(len(at)) < 0.3
    return {
        "index": at, "lo": lo, "hi": hi, "low": rng.random(len(at)).round(rng.integers(0, 17)),
        "up": np.where(steep, 1.0, up), "cut": np.where(steep, -lo, cut),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_point_lies_below_a_bound(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = np.float64 if seed % 2 else np.float32
    sizes = [int(n) for n in rng.integers(1, 6, rng.integers(3, 6))]
    layers = hurtful(rng, sizes, dtype)
    net = checker.Network(dense(tmp_path / "n.onnx", layers, dtype).read_bytes())
    centre, width = rng.normal(size=sizes[0]), rng.choice([0.0, 2.0**-52, 1e-3, 1.0, 1e6])
    lo, hi = ([Fraction(v) for v in c.tolist()] for c in (centre - width, centre + width * rng.random(sizes[0])))
    boxes = checker.Boxes(net, (tuple(lo), tuple(hi)))
    for k in range(1, len(net.ops)):
        if net.ops[k].kind == "relu":
            boxes.accept(k, random_claim(rng, boxes, net.ops[k].inputs[0]))
        boxes.interval(k)
    forms = []
    for row, more in zip(rng.integers(-2, 3, (4, sizes[-1])).tolist(), rng.integers(-1, 2, (4, sizes[0])).tolist(), strict=True):
        forms.append({~j: Fraction(c) for j, c in enumerate(row) if c} | {i: Fraction(c) for i, c in enumerate(more) if c})
    bounds = [boxes.margin((form, Fraction(0))) for form in forms]
    ends = [(a, b) if rng.random() < 0.8 else (a, (a + b) / 2) for a, b in zip(lo, hi, strict=True)]
    for _ in range(20):
        x = [end[int(rng.integers(2))] for end in ends]
        *hidden, y = exact_dense(layers, x)
        for here, values in zip(range(1, len(net.ops), 2), [*hidden, y], strict=True):  # affine operators alternate with ReLUs
            for a, v, b in zip(boxes.lo[here].tolist(), values, boxes.hi[here].tolist(), strict=True):
                assert Fraction(a) <= v <= Fraction(b)
        for form, bound in zip(forms, bounds, strict=True):
            assert bound is not None
            assert bound <= sum((c * (x[v] if v >= 0 else y[~v]) for v, c in form.items()), Fraction(0))


@pytest.mark.parametrize(("dtype", "power"), [(np.float32, 27), (np.float64, 56), (np.float64, 80)])
def test_cancellations_are_not_lost(tmp_path: Path, dtype: type, power: int) -> None:
    """B + x - B + 2 reaches 3 at x = 1; arithmetic to nearest finds 2 or 2.5 its maximum. Behind a ReLU and in a sum of two paths too."""
    big = 2.0**power
    first = np.array([[big, 1.0, -big]]), np.array([2.0])
    layers: Layers = [first, (np.array([[1.0], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))]
    path = dense(tmp_path / "c.onnx", layers, dtype)
    files = path, prop(tmp_path / "p.vnnlib", [(1, 1), (0, 1), (1, 1)], 1, "(>= Y_0 3)")
    with pytest.raises(checker.Refused):
        certify(*files)
    both = model(
        tmp_path / "r.onnx",
        [NODE("Gemm", ["x", "w"], ["a"]), NODE("Gemm", ["x", "v"], ["b"]), NODE("Relu", ["a"], ["c"]), NODE("Add", ["c", "b"], ["y"])],
        [1, 2], {"w": [[big], [1]], "v": [[-big], [0]]}, dtype,
    )  # fmt: skip
    files = both, prop(tmp_path / "q.vnnlib", [(1, 1), (0, 1)], 1, "(>= Y_0 1)")
    with pytest.raises(checker.Refused):
        certify(*files)
    biases = model(
        tmp_path / "b.onnx", [NODE("Gemm", ["x", "w", "b"], ["a"]), NODE("MatMul", ["a", "v"], ["y"])],
        [1, 1], {"w": [[2.0**-20] * 3], "b": [big, 1, -big], "v": np.ones((3, 1))}, dtype,
    )  # fmt: skip
    files = biases, prop(tmp_path / "s.vnnlib", [(0, 1)], 1, "(>= Y_0 1)")
    with pytest.raises(checker.Refused):
        certify(*files)


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


def test_box_bounds_are_rounded_outward(tmp_path: Path) -> None:
    """0.1 lies below its float64: a box taken at the float would miss the exact one."""
    path = model(tmp_path / "i.onnx", [NODE("Mul", ["x", "one"], ["y"])], [1, 1], {"one": [1.0]})
    net = checker.Network(path.read_bytes())
    box = checker.Boxes(net, ((Fraction("0.1"),), (Fraction("0.3"),)))
    assert Fraction(box.lo[0][0].item()) <= Fraction("0.1") < Fraction(np.nextafter(box.lo[0][0], 1).item())
    assert Fraction(np.nextafter(box.hi[0][0], 0).item()) < Fraction("0.3") <= Fraction(box.hi[0][0].item())
    exact = checker.Boxes(net, ((Fraction(1, 4),), (Fraction(1, 2),)))
    assert (exact.lo[0][0], exact.hi[0][0]) == (0.25, 0.5)


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


@pytest.mark.parametrize("state", ["flush", "upward", "downward", "to zero"])
def test_a_machine_that_rounds_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Where the processor can be told nothing, the probe sees flushed subnormal numbers and every directed rounding."""
    files: Any = (tmp_path / "a", tmp_path / "b", tmp_path / "c")
    monkeypatch.setattr(checker.sys, "platform", "elsewhere")
    with STATES[state](), pytest.raises(checker.Unsupported, match="subnormal"):
        checker.check(*files)
