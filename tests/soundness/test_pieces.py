"""Operators taken apart at import: what they charge, what they are called, and that no search proves what an execution refutes."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

import polytriton
from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx
from polytriton.frontend.vnnlib import read_vnnlib
from tests.frontend.onnx_models import model, node
from tests.oracle.graphs.trace import program

F32 = np.float32
COPIES: dict[str, Any] = {
    "max of one": (node("Max"), [1, 2], {}),
    "min of one": (node("Min"), [1, 2], {}),
    "clip without bounds": (node("Clip"), [1, 2], {}),
    "reduced over one cell": (node("ReduceMax", axes=[2]), [1, 2, 1], {}),
    "summed over one cell": (node("ReduceMean", axes=[2]), [1, 2, 1], {}),
    "max with itself": (node("Max", "x x"), [1, 2], {}),
    "slopes of one": (node("PRelu", "x s"), [1, 2], {"s": F32([1, 1])}),
    "a clip": (node("Clip", "x a b"), [1, 2], {"a": F32(-0.5), "b": F32(0.5)}),
}


@pytest.mark.parametrize("behind", ["the input", "a product", "a ReLU"])
@pytest.mark.parametrize("name", COPIES)
def test_what_copies_may_flush(name: str, behind: str) -> None:
    """An operation under DAZ turns a subnormal operand into zero, and exact arithmetic does not."""
    nodes, shape, weights = COPIES[name]
    at = np.array([[2.0**-130, 2.0**-127]])
    if behind != "the input":
        first = node("Relu", "u", "x") if behind == "a ReLU" else node("Mul", "u k", "x")
        m = model([first, *([nodes] if isinstance(nodes, onnx.NodeProto) else nodes)], shape, {**weights, "k": F32(2.0**-100)})
        m.graph.input[0].name = "u"
    else:
        m = model(nodes, shape, weights)
    x = at * 2.0**100 if behind == "a product" else at
    found = polytriton.compile(m, semantics="float32", check=False).bounds(x, x)
    assert (found.lo <= 0).all() and (found.hi >= at).all() and (found.hi < 1e-5).all()
    exact = polytriton.compile(m, semantics="real", check=False).bounds(x, x)
    assert (exact.lo <= at).all() and (exact.hi >= at).all()


def layers(nodes: Any, weights: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    made = load_onnx(model(nodes, shape, {k: np.asarray(v) for k, v in weights.items()}))
    return {n.name: n.attrs for n in made.net}


@pytest.mark.parametrize("lo,hi,rounds", [(-1.0, 2.0, False), (1e-30, 1.0, True), (-(2.0**-40), 2.0**20, True), (2.0**-40, 3.0, False)])
def test_a_rounded_difference_of_bounds_is_charged(lo: float, hi: float, rounds: bool) -> None:
    lo, hi = float(F32(lo)), float(F32(hi))
    assert (F(hi) - F(lo) != F(hi - lo)) == rounds
    assert layers(node("Clip", "x a b"), {"a": F32(lo), "b": F32(hi)}, [1, 1])["y_high"].get("slack", 0) == rounds


@pytest.mark.parametrize("slope,rounds", [(0.25, False), (1e-20, True), (-3.0, False), (float(np.nextafter(F32(1), F32(2))), False)])
def test_a_rounded_slope_is_charged(slope: float, rounds: bool) -> None:
    held = layers(node("PRelu", "x s"), {"s": F32([slope, 0.5])}, [1, 2])
    assert held["y_bend"].get("slack", 0) == rounds
    assert "slack" not in held["y_line"]


def test_the_ends_of_float16_bound_what_is_larger() -> None:
    """A float16 network's exact reading passes 65504 easily, and Clip stops it there."""
    weights = {"w": np.array([[60000.0]], np.float16), "b": np.float16(65504.0)}
    m = model([node("MatMul", "x w", "h"), node("Clip", "h - b")], [1, 1], weights, dtype=np.float16)
    found = polytriton.compile(m, semantics="real", check=False).bounds(np.full((1, 1), 2.0), np.full((1, 1), 2.0))
    assert 65504 - 1e-3 < found.lo.item() <= 65504 <= found.hi.item() < 65504 + 1e-3


def test_computed_bounds_carry_their_rounding() -> None:
    nodes = [node("Mul", "a a", "c"), node("Clip", "x - c")]
    assert layers(nodes, {"a": F32(0.3)}, [1, 1])["y"]["slack"] == 1


def test_runtimes_that_disagree_are_refused() -> None:
    """The specification moves an axis of factor one by half a cell there; onnxruntime leaves it alone."""
    attrs = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "round_prefer_ceil"}
    m = model(node("Resize", "x - s", **attrs), [1, 1, 4, 3], {"s": F32([1, 1, 1, 2])}, opset=13)
    with pytest.raises(UnsupportedModel, match="different runtimes"):
        load_onnx(m)


REFUSED: dict[str, Any] = {
    "factors": (node("Resize", "x - s"), {"s": F32([1, 1, 1.5, 2])}, "only whole ones"),
    "sizes": (node("Resize", "x - - z"), {"z": np.array([1, 2, 4, 7])}, "only whole ones"),
    "smaller": (node("Resize", "x - s"), {"s": F32([1, 1, 0.5, 1])}, "only whole ones"),
    "mode": (node("Resize", "x - s", mode="cubic"), {"s": F32([1, 1, 2, 2])}, "only nearest"),
    "coordinates": (node("Resize", "x - s", coordinate_transformation_mode="align_corners"), {"s": F32([1, 1, 2, 2])}, "align_corners"),
    "a given shape": (node("ConvTranspose", "x w", output_shape=[9, 9]), {"w": np.ones((2, 1, 2, 2), F32)}, "output_shape"),
    "its own padding": (node("ConvTranspose", "x w", auto_pad="SAME_UPPER"), {"w": np.ones((2, 1, 2, 2), F32)}, "auto_pad"),
    "a bound that no sum holds": (node("Clip", "x a b"), {"a": F32(0), "b": np.finfo(F32).max}, "overflows"),
    "a low one": (node("Clip", "x a"), {"a": F32(-2e30)}, "overflows"),
    "a bound each": (node("Clip", "x a"), {"a": F32([0, 1, 2])}, "one number of the operand's type"),
    "a mask that is computed": ([node("Greater", "x c", "t"), node("Where", "t x c")], {"c": F32(0)}, "constants only"),
    "a slope too many": (node("PRelu", "x s"), {"s": np.ones((3, 1, 1, 1), F32)}, "slopes"),
    "an index outside": (node("GatherND", "x i"), {"i": np.array([[0, 2]])}, "outside"),
    "a threshold below zero": (node("ThresholdedRelu", alpha=-0.5), {}, "alpha is -0.5, neither 0"),
    "a threshold that is flushed": (node("ThresholdedRelu", alpha=1e-40), {}, "neither 0 nor a positive number"),
    "a threshold without end": (node("ThresholdedRelu", alpha=float("inf")), {}, "neither 0 nor a positive number"),
    "blocks": (node("SpaceToDepth", blocksize=3), {}, "blocks of 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_beyond_the_limits_is_refused(name: str) -> None:
    nodes, weights, why = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=why):
        load_onnx(model(nodes, [1, 2, 4, 3], weights))


def test_a_threshold_is_a_number_of_its_type() -> None:
    """A tenth of float32 is none of float16, where a kernel may compare with another; a quarter is one of both."""
    for alpha in (0.1, 0.25):
        m = model(node("ThresholdedRelu", alpha=alpha), [1, 4])
        for end in (*m.graph.input, *m.graph.output):
            end.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        if alpha == 0.25:
            assert [n.op for n in load_onnx(m).net] == ["input", "thresholded"]
            continue
        with pytest.raises(UnsupportedModel, match="no number of float16"):
            load_onnx(m)


# ---- searches --------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> onnx.ModelProto:
    """Two inputs, three layers with a piece behind each, one output."""
    rng = np.random.default_rng(seed)

    def w(*shape: int) -> np.ndarray:
        return (rng.integers(-8, 9, shape) / 8).astype(F32)

    behind = {
        "Clip": lambda i: node("Clip", f"m{i} lo hi", f"p{i}"),
        "PRelu": lambda i: node("PRelu", f"m{i} s", f"p{i}"),
        "Max": lambda i: node("Max", f"m{i} s c", f"p{i}"),
        "Min": lambda i: node("Min", f"m{i} n{i}", f"p{i}"),
        "Abs": lambda i: node("Abs", f"m{i}", f"p{i}"),
        "HardSigmoid": lambda i: node("HardSigmoid", f"m{i}", f"p{i}", alpha=0.75, beta=0.25),
        "Where": lambda i: node("Where", f"t m{i} n{i}", f"p{i}"),
    }
    nodes, last = [], "x"
    for i in range(3):
        nodes += [node("Gemm", f"{last} w{i} b{i}", f"m{i}"), node("Neg", f"m{i}", f"n{i}"), behind[str(rng.choice(list(behind)))](i)]
        last = f"p{i}"
    nodes.append(node("MatMul", f"{last} u"))
    weights: dict[str, np.ndarray] = {"lo": F32(-0.5), "hi": F32(0.75), "s": w(5), "c": w(1), "t": rng.random(5) < 0.5, "u": w(5, 1)}
    weights |= {f"w{i}": w(2 if i == 0 else 5, 5) for i in range(3)} | {f"b{i}": w(5) for i in range(3)}
    return model(nodes, [1, 2], weights)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_search_proves_what_holds_and_nothing_that_an_execution_refutes(seed: int) -> None:
    """Thresholds just below and well above the largest output on a grid, which the oracle's own executor evaluates."""
    m = drawn(seed)
    run = program(m.SerializeToString())
    grid = np.array(list(product(np.linspace(-1, 1, 65), repeat=2)))
    best = float(run.near(grid)[:, run.output].max())
    verifier = polytriton.compile(m, check=False)
    verdicts = []
    for threshold in (best - 2.0**-10, best + 0.25):
        inputs = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} -1.0))(assert (<= X_{i} 1.0))" for i in range(2))
        text = f"{inputs}(declare-const Y_0 Real)(assert (>= Y_0 {threshold:.30f}))"
        verdicts.append(str(verifier.verify_property(read_vnnlib(text), timeout=20).verdict))
    assert verdicts[0] != "unsat"
    assert verdicts == ["sat", "unsat"]
