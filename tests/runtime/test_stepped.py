"""Lines beside functions that jump, in fractions: at both sides of jumps, and where an operand may be flushed to zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.ir.curves import CURVES
from polytriton.ir.net import Node
from polytriton.runtime.curves import curve_cuts, curve_lines, curve_range

ALPHA = {"thresholded": 0.5}
EXACT: dict[str, Callable[[Fraction], int | Fraction]] = {
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "thresholded": lambda x: x if x > Fraction(1, 2) else 0,
}
STAIRS = [name for name in EXACT if name not in ALPHA]
SMALLEST = 2.0**-126


def boxes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Around jumps and far from them, of all widths, with ends at jumps and beside them, and about zero of any size."""
    rng = np.random.default_rng(seed)
    spread = rng.standard_normal(count) * rng.choice([0, 1e-40, 1e-9, 1.0, 30.0], count)
    middle = rng.choice([0.0, 0.5, 1.0, -2.0, 7.5, 1e6], count) + spread
    width = np.abs(rng.standard_normal(count)) * rng.choice([0, 1e-39, 1e-15, 1e-3, 0.7, 3.0, 40.0], count)
    lo, hi = middle - width * rng.choice([0, 0.2, 1], count), middle + width
    return np.where(rng.random(count) < 0.15, np.round(lo), lo), np.maximum(hi, np.where(rng.random(count) < 0.15, np.round(hi), hi))


def points(lo: float, hi: float) -> list[float]:
    jumps = [k / 2 for k in range(math.ceil(2 * lo), min(math.floor(2 * hi), math.ceil(2 * lo) + 8) + 1)]
    last = [k / 2 for k in range(max(math.floor(2 * hi) - 3, math.ceil(2 * lo)), math.floor(2 * hi) + 1)]
    near = [float(np.nextafter(j, d)) for j in (*jumps, *last) for d in (-np.inf, np.inf)]
    tiny = [s * SMALLEST * t for s in (-1, 1) for t in (1e-10, 0.5, 0.999, 1.0, 1.5)]
    return [x for x in (lo, hi, *jumps, *last, *near, *tiny, *np.linspace(lo, hi, 9).tolist()) if lo <= x <= hi]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_stored_lines_and_boxes_hold(name: str, dtype: torch.dtype) -> None:
    lo, hi = boxes(1, 160)
    hi = np.maximum(lo, hi)
    node = Node("y", name, ("x",), (len(lo),), {"alpha": ALPHA[name]} if name in ALPHA else {})
    lines = curve_lines(node, torch.tensor(lo), torch.tensor(hi), dtype, None)
    least, most = curve_range(node, torch.tensor(lo), torch.tensor(hi))
    assert lines.lower_cut is not None
    for i, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
        low, cut_low, up, cut_up = (Fraction(v[i].item()) for v in (lines.lower_slope, lines.lower_cut, lines.upper_slope, lines.upper_cut))
        for x in points(a, b):
            for seen in {x, 0.0} if abs(x) < SMALLEST else {x}:
                f = EXACT[name](Fraction(seen))
                assert low * Fraction(x) + cut_low <= f <= up * Fraction(x) + cut_up, (name, a, b, x, seen)
                assert Fraction(least[i].item()) <= f <= Fraction(most[i].item()), (name, a, b, x)


@pytest.mark.parametrize("name", STAIRS)
def test_lines_are_near(name: str) -> None:
    """A box between two jumps has one value; one with jumps no more than the band or the span allows at the middle."""
    lo, hi = torch.tensor([0.6, 0.1, -0.2, -30.0, -4.0]).double(), torch.tensor([0.9, 0.4, 5.0, 2.0, 30.0]).double()
    node = Node("y", name, ("x",), (5,), {})
    lines = curve_lines(node, lo, hi, torch.float64, None)
    least, most = curve_range(node, lo, hi)
    assert lines.lower_cut is not None
    assert (most - least < 1e-9)[:2].all() and (most - least - 1e-9 <= torch.tensor([0, 0, 7, 34, 36])).all()
    middle = 0.5 * lo + 0.5 * hi
    gap = (lines.upper_slope - lines.lower_slope) * middle + lines.upper_cut - lines.lower_cut
    assert (gap[:2] < 1e-9).all() and (gap <= 2.001).all() and (name == "sign" or (gap <= 1.001).all())
    if name == "sign":  # from (-30, -1) to (0, 1): below 1 left of the jump
        assert lines.upper_slope[3] == 2 / 30 and lines.lower_slope[2] == 2 / 5 and lines.upper_slope[2] == 0


@pytest.mark.parametrize("alpha", [2.0**-126, 0.1, 1.0, 3e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lines_beside_a_threshold(alpha: float, dtype: torch.dtype) -> None:
    """Any slope's line holds at both pieces' ends, the threshold being one of either; the chosen ones touch the hull in the middle."""
    rng = np.random.default_rng(3)
    count = 200
    lo = alpha * (1 - rng.choice([0, 1e-9, 0.1, 1, 3, 50], count) * rng.random(count))
    hi = alpha * (1 + rng.choice([-1e-9, 0, 1e-9, 0.1, 1, 3, 50], count) * rng.random(count))
    lo, hi = np.where(rng.random(count) < 0.15, alpha, lo), np.where(rng.random(count) < 0.15, alpha, hi)
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    node, low, high = Node("y", "thresholded", ("x",), (count,), {"alpha": alpha}), torch.tensor(lo), torch.tensor(hi)
    lines = curve_lines(node, low, high, dtype, None)
    assert lines.lower_cut is not None
    least, most = curve_range(node, low, high)
    for side, slopes, cuts, ends in ((-1, lines.lower_slope, lines.lower_cut, least), (1, lines.upper_slope, lines.upper_cut, most)):
        any_slope = torch.tensor(rng.standard_normal(count) * rng.choice([0, 1, 1e6], count)).to(dtype)
        other = curve_cuts(node, low, high, any_slope, torch.full((count,), side > 0), None)
        for i, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            t, f = Fraction(alpha), list[tuple[Fraction, Fraction]]()
            if a <= alpha:
                f += [(Fraction(a), Fraction(0)), (min(t, Fraction(b)), Fraction(0))]
            if b > alpha:
                f += [(max(t, Fraction(a)),) * 2, (Fraction(b),) * 2]
            for x, y in f:
                for k, c in ((slopes[i], cuts[i]), (any_slope[i], other[i])):
                    assert side * (Fraction(k.item()) * x + Fraction(c.item()) - y) >= 0, (alpha, a, b, side)
                assert side * (Fraction(ends[i].item()) - y) >= 0
            assert float(abs(Fraction(ends[i].item()) - side * max(side * y for _, y in f))) <= 1e-12 * (b + alpha)
            middle = Fraction(a) / 2 + Fraction(b) / 2
            found = float(Fraction(slopes[i].item()) * middle + Fraction(cuts[i].item()))
            assert side * (found - _hull(f, middle, side)) <= 1e-5 * (abs(a) + b) + alpha * (b - a < alpha / 100), (alpha, a, b, side)


def _hull(points: list[tuple[Fraction, Fraction]], at: Fraction, side: int) -> float:
    """Of the hull of these points its upper (side 1) or lower end there: by every pair around it."""
    pairs = [(p, q) for p in points for q in points if p[0] <= at <= q[0]]
    heights = [
        max(p[1], q[1], key=lambda y: side * y) if p[0] == q[0] else p[1] + (q[1] - p[1]) * (at - p[0]) / (q[0] - p[0]) for p, q in pairs
    ]
    return float(side * max(side * y for y in heights))


def test_every_function_that_jumps_is_here() -> None:
    assert {name for name, curve in CURVES.items() if curve.jumps} == EXACT.keys()


# ---- networks --------------------------------------------------------------------------------------------------


def network(op: str, seed: int) -> tuple[bytes, list[np.ndarray]]:
    """Two layers with a function that jumps behind each, and a third."""
    rng = np.random.default_rng(seed)
    sizes = [2, 5, 4, 2]
    weights = [np.round(rng.standard_normal((o, i)) * 8).astype(np.float32) / 8 for i, o in pairwise(sizes)]
    nodes, at = [], "x"
    for k in range(3):
        nodes.append(helper.make_node("Gemm", [at, f"w{k}"], [f"h{k}"], transB=1))
        at = f"h{k}"
        if k < 2:
            nodes.append(helper.make_node(op, [at], [f"s{k}"]))
            at = f"s{k}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in ("x", at)]
    graph = helper.make_graph(nodes, "jumps", ends[:1], ends[1:], [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString(), weights


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("op", "seed"), list(product(("Sign", "Floor", "Ceil", "Round", "ThresholdedRelu"), range(3))))
def test_no_execution_leaves_the_bounds(op: str, seed: int) -> None:
    """Weights are eighths, so that numbers at jumps are met exactly; executed in float32, and by onnxruntime."""
    model, weights = network(op, seed)
    rng = np.random.default_rng([9, seed])
    session = ort.InferenceSession(model)
    functions = {"Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}
    function = functions.get(op, lambda v: np.where(v > 1, v, 0))
    for semantics in ("real", "float32"):
        net = polytriton.compile(model, semantics=semantics)
        for radius in (0.0, 0.25, 1.0):
            middle = np.round(rng.standard_normal(2) * 4).astype(np.float32) / 4
            lo, hi = middle - np.float32(radius), middle + np.float32(radius)
            found = net.bounds(lo[None], hi[None])
            for _ in range(60):
                x = np.clip((lo + (hi - lo) * np.round(rng.random(2) * 8) / 8).astype(np.float32), lo, hi)
                y = x
                for k, w in enumerate(weights):
                    y = (w @ y).astype(np.float32)
                    y = function(y) if k < 2 else y
                for out in (y, np.asarray(session.run(None, {"x": x[None]})[0])[0]):
                    assert (np.asarray(found.lo)[0] <= out).all() and (out <= np.asarray(found.hi)[0]).all(), (op, semantics, x)


def test_the_sign_of_a_sum_that_rounding_turns_is_open() -> None:
    """1e8 x - 1e8 x + x, 0 or x in float32: deployed the sign may be 0, as a real number it is 1."""
    w = np.array([[1e8, -1e8, 1.0]], np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"], transB=1), helper.make_node("Sign", ["h"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 3), ("y", 1))]
    graph = helper.make_graph(nodes, "turned", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    x = np.full((1, 3), 0.75, np.float32)
    real, deployed = (polytriton.compile(model, semantics=s, check=False).bounds(x, x) for s in ("real", "float32"))
    assert np.asarray(real.lo).item() > 0.999 and np.asarray(deployed.lo).item() <= 0


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_finds_the_greatest_sum_of_thresholded_functions(seed: int, semantics: str) -> None:
    """The sum is linear between its jumps: its least upper bound is that of the ends and of both sides of every jump."""
    rng = np.random.default_rng([4, seed])
    w, b, u = (np.round(rng.standard_normal(6) * 64).astype(np.float32) / 64 for _ in range(3))
    alpha = np.float32(0.375)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("ThresholdedRelu", ["h"], ["t"], alpha=float(alpha)),
        helper.make_node("Gemm", ["t", "u"], ["y"], transB=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1]) for n in "xy"]
    weights = [numpy_helper.from_array(v, n) for v, n in ((w[:, None], "w"), (b, "b"), (u[None], "u"))]
    graph = helper.make_graph(nodes, "sum", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    exact = [[Fraction(float(v)) for v in some] for some in (w, b, u)]
    jumps = [(Fraction(float(alpha)) - c) / a for a, c in zip(exact[0], exact[1], strict=True) if a]

    def total(x: Fraction, way: int) -> Fraction:
        """Just left of x (way -1), right of it (1), or there (0)."""
        cells = [(a * x + c, way * a) for a, c in zip(exact[0], exact[1], strict=True)]
        return sum((k * z for k, (z, turn) in zip(exact[2], cells, strict=True) if z > 0.375 or (z == 0.375 and turn > 0)), Fraction(0))

    most = max(total(x, way) for x in {Fraction(-2), Fraction(2), *(x for x in jumps if -2 < x < 2)} for way in (-1, 0, 1))
    net = polytriton.compile(model, semantics=semantics)
    _, y = net.variables()
    for by, verdict in ((Fraction(1, 64), "unsat"), (Fraction(-1, 64), "sat")):
        found = net.verify(polytriton.Property(([-2], [2]), unsafe=y[0] >= most + by), timeout=60)
        assert found.verdict == verdict, (seed, float(most))


def test_an_operand_that_is_flushed_has_the_sign_of_zero() -> None:
    x = np.full((1, 1), 1e-40, np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Sign", ["x"], ["y"])], "flushed", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    found = polytriton.compile(model).bounds(x, x)
    assert np.asarray(found.lo).item() <= 0 and np.asarray(found.hi).item() >= 1
