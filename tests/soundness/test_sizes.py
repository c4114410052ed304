"""Sums of several operands, images of other sizes and normalised layers: what is charged, held against executions written here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import polytriton
from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.addends import find_addends
from polytriton.ir.deployed import broken_law
from polytriton.ir.net import Builder
from polytriton.ir.text import parse_net, print_net
from polytriton.passes import fold
from tests.frontend.onnx_models import model, node, rand

F32 = np.float32
TINY = 2.0**-60


# ---- sums ------------------------------------------------------------------------------------------------------------


def rounded(x: F, up: bool) -> F:
    """A float32 at or above x, or at or below it, the nearest such."""
    y = F32(float(x))
    while (F(float(y)) < x) if up else (F(float(y)) > x):
        y = np.nextafter(y, F32(np.inf if up else -np.inf))
    return F(float(y))


def added(numbers: tuple[F, ...], up: bool) -> F:
    total = numbers[0]
    for v in numbers[1:]:
        total = rounded(total + v, up)
    return total


POINTS: dict[str, list[float]] = {
    "small ones first": [TINY, TINY, 1.0],
    "more of them": [TINY, TINY, TINY, -TINY, 1.0],
    "they cancel": [1.0, -1.0, TINY, 2.0**-30],
    "they cancel, and small ones": [1.0, -1.0, TINY, TINY, TINY],
    "in thirds": [1 / 3, -1 / 3, 1 / 7, 2 / 3],
}


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize("name", POINTS)
def test_operands_may_be_added_in_any_order(name: str, op: str) -> None:
    at = [float(F32(v)) for v in POINTS[name]]
    parts = " ".join(f"p{k}" for k in range(len(at)))
    m = model([node("Split", "x", parts, axis=1), node(op, parts)], [1, len(at)], opset=11)
    x = np.array([at])
    found = polytriton.compile(m, semantics="float32", check=False).bounds(x, x)
    lo, hi = F(found.lo.item()), F(found.hi.item())
    for order in permutations(map(F, at)):
        for up in (False, True):
            y = added(order, up)
            assert lo <= (y if op == "Sum" else rounded(y / len(at), up)) <= hi, (order, up)
    exact = polytriton.compile(m, semantics="real", check=False).bounds(x, x)
    true = sum(map(F, at)) / (1 if op == "Sum" else len(at))
    assert F(exact.lo.item()) <= true <= F(exact.hi.item()) and exact.hi.item() - exact.lo.item() < 1e-12
    assert hi - lo < F(2, 10**5)


def test_constants_may_be_added_last() -> None:
    """x + (tiny + 1), or (tiny + x) + 1, each rounded up."""
    m = model(node("Sum", "x c d"), [1, 1], {"c": F32([[TINY]]), "d": F32([[TINY]])})
    x = np.ones((1, 1))
    found = polytriton.compile(m, semantics="float32", check=False).bounds(x, x)
    y = added((F(1), F(TINY), F(TINY)), True)
    assert y == 1 + F(2) ** -22 and y <= F(found.hi.item())
    assert [n.integer("ops") for n in load_onnx(m).net if n.op == "scale"] == [1, 1]


def test_a_mean_of_three_is_no_float64() -> None:
    made = load_onnx(model([node("Neg", "x", "h"), node("Abs", "x", "g"), node("Mean", "x h g")], [1, 2]))
    assert made.net.node("y").integer("slack") == 1 and made.net.node("y").integer("ops") == 1


def test_a_cell_that_is_repeated_may_have_been_added_to_another_first() -> None:
    """1 + c, and then -1, for each cell on its own: in the order (1 - 1) + c that would be one number for both."""
    m = model([node("Split", "x", "a b c", axis=1, split=[1, 1, 2]), node("Sum", "a b c", "s"), node("MatMul", "s w")], [1, 4],
              {"w": F32([[1], [-1]])}, opset=11)  # fmt: skip
    x = np.array([[1.0, -1.0, TINY, 0.0]])
    found = polytriton.compile(m, semantics="float32", check=False).bounds(x, x)
    one, other = rounded(rounded(F(1) + F(TINY), True) - 1, True), F(0)
    assert one == F(2) ** -23 and F(found.lo.item()) <= one - other <= F(found.hi.item())


def test_a_sum_of_several_is_more_roundings_to_what_passes_it() -> None:
    b = Builder("sums")
    x = b.input((2,))
    w, zero = b.constant(rand(2, 2), "w"), b.constant(np.zeros(2, F32), "zero")
    left, right = (b.add("linear", (x,), name, w=w, b=zero) for name in ("left", "right"))
    for ops in (0, 3):
        more = {"ops": ops} if ops else {}
        total = b.add("add", (left, right), f"sum{ops}", **more)
        b.add("sub", (total, b.add("linear", (x,), f"third{ops}", w=w, b=zero)), f"end{ops}")
    net = b.build("end3")
    found = find_addends(net).sums
    changed = net.rebuild([n.drop("ops") if n.name == "sum3" else n for n in net])
    assert "roundings" in str(broken_law(net, changed))
    assert found["sum3"] == found["sum0"] + 3 and found["end3"] >= found["end0"] + 3


# ---- other sizes -----------------------------------------------------------------------------------------------------


def divided(i: np.ndarray, size: int, out: int, how: str) -> np.ndarray:
    """Coordinates as the specification writes them, each operation in float32."""
    scale = F32(out) / F32(size)
    if how == "align_corners":
        return np.asarray(i * F32(size - 1) / F32(max(1, out - 1)))
    return np.asarray(i / scale if how == "asymmetric" else (i + F32(0.5)) / scale - F32(0.5))


def multiplied(i: np.ndarray, size: int, out: int, how: str) -> np.ndarray:
    """By a rounded inverse, as runtimes do that divide once."""
    inverse = F32(1) / (F32(out) / F32(size))
    if how == "align_corners":
        return np.asarray(i * (F32(size - 1) / F32(max(1, out - 1))))
    return np.asarray(i * inverse if how == "asymmetric" else (i + F32(0.5)) * inverse - F32(0.5))


def weights(size: int, out: int, how: str, places: Callable[..., np.ndarray]) -> np.ndarray:
    """[out, size] of a deployed kernel, which trusts its coordinates."""
    p = np.clip(places(np.arange(out, dtype=F32), size, out, how), F32(0), F32(size - 1)).astype(F32)
    below = np.floor(p).astype(int)
    share = (p - below.astype(F32)).astype(F32)
    w = np.zeros((out, size))
    for i in range(out):
        w[i, below[i]] += F32(1) - share[i]
        w[i, min(below[i] + 1, size - 1)] += share[i]
    return w


def place(i: int, size: int, out: int, how: str) -> F:
    if how == "align_corners":
        return F(i * (size - 1), max(1, out - 1))
    return F(i * size, out) if how == "asymmetric" else F(2 * i + 1, 2) * F(size, out) - F(1, 2)


def exactly(size: int, out: int, how: str) -> list[list[F]]:
    rows = [[F(0)] * size for _ in range(out)]
    for i in range(out):
        p = min(max(place(i, size, out, how), F(0)), F(size - 1))
        b = p.numerator // p.denominator
        rows[i][b] += 1 - (p - b)
        rows[i][min(b + 1, size - 1)] += p - b
    return rows


SIZES = [(3, 9), (7, 10), (10, 7), (3, 13), (6, 26), (3, 42), (4, 8), (8, 4), (6, 1), (1, 3)]


@pytest.mark.parametrize("how", ["half_pixel", "asymmetric", "align_corners"])
def test_weights_of_deployed_coordinates_are_covered(how: str) -> None:
    """A cell of one among zeros makes a result of its weight: also beside a coordinate that float32 rounds to a cell's other side."""
    crossed = 0
    for size, out in SIZES:
        m = model(node("Resize", "x - - z", mode="linear", coordinate_transformation_mode=how), [1, 1, 1, size],
                  {"z": np.array([1, 1, 1, out])}, opset=13)  # fmt: skip
        x = np.eye(size).reshape(size, 1, 1, size)
        true = exactly(size, out, how)
        for semantics in ("float32", "real"):
            found = polytriton.compile(m, semantics=semantics, check=False).bounds(x, x)
            lo, hi = (np.asarray(v).reshape(size, out) for v in (found.lo, found.hi))
            for i in range(out):
                for j in range(size):
                    assert F(float(lo[j, i])) <= true[i][j] <= F(float(hi[j, i])), (size, out, i, j)
            assert (hi - lo).max() < (1e-12 if semantics == "real" else 1e-3)
            if semantics == "real":
                continue
            for places in (divided, multiplied):
                w = weights(size, out, how, places)
                assert (lo <= w.T).all() and (w.T <= hi).all(), (size, out, places)
                crossed += sum(w[i, j] != 0 and true[i][j] == 0 for i in range(out) for j in range(size))
    assert crossed > 0, "no coordinate met the other side of a cell"


def test_powers_of_two_are_charged_nothing_for_coordinates() -> None:
    attrs: dict[str, Any] = {"mode": "linear"}
    for scales, roundings in (((2, 2), 0), ((0.5, 2), 0), ((1.5, 2), 9), ((1.5, 1.5), 18)):
        made = load_onnx(model(node("Resize", "x - s", **attrs), [1, 2, 4, 4], {"s": F32([1, 1, *scales])})).net.node("y_shares")
        assert made.integer("ops") == roundings and ("wabs" in made.attrs) == (roundings > 0)


@pytest.mark.parametrize("source", ["linear", "scale"])
def test_uncertain_weights_are_merged_with_nothing_before_them(source: str) -> None:
    b = Builder("uncertain")
    x = b.input((2,))
    ones, zeros, wide = (b.constant(np.full(2, v, F32), k) for k, v in (("one", 1), ("zero", 0), ("wide", 5)))
    w = {"w": b.constant(rand(2, 2), "w"), "b": zeros} if source == "linear" else {"a": wide, "c": zeros}
    net = b.build(b.add("scale", (b.add(source, (x,), "h", **w),), "y", a=ones, c=zeros, wabs=wide))
    assert fold.run(net).node("y").attrs == net.node("y").attrs


@pytest.mark.parametrize("scale", [2.0, 1.5])
def test_weights_stay_apart_from_the_layers_around(scale: float) -> None:
    """Merged with a scale, or with a layer, what a weight may be off would be lost."""
    nodes = [node("Mul", "x c", "h"), node("Resize", "h - s", "r", mode="linear"), node("Mul", "r d", "t"), node("Conv", "t w")]
    weights = {"s": F32([1, 1, scale, scale]), "c": rand(2, 1, 1), "d": rand(2, 1, 1), "w": rand(2, 2, 1, 1)}
    net = polytriton.compile(model(nodes, [1, 2, 4, 4], weights), semantics="float32")
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 4))
    found = net.bounds(x, x)
    y = net.predict(x.astype(F32))
    assert (np.asarray(found.lo) <= y).all() and (y <= np.asarray(found.hi)).all()


def test_a_resized_half_is_stored_as_one() -> None:
    for mode, half in (("linear", 1), ("nearest", 0)):
        m = model(node("Resize", "x - s", mode=mode), [1, 1, 2, 2], {"s": F32([1, 1, 2, 2])}, dtype=np.float16)
        assert load_onnx(m).net.input.integer("half") == half


REFUSED: dict[str, Any] = {
    "cubic": ({"mode": "cubic"}, [1, 1, 2, 2], "mode cubic"),
    "cropped": ({"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, [1, 1, 2, 2], "tf_crop_and_resize"),
    "for nearest": ({"mode": "linear", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}, [1, 1, 2, 2], "tf_half_pixel_for_nn"),
    "smoothed": ({"mode": "linear", "antialias": 1}, [1, 1, 0.5, 1], "antialias"),
    "a fraction of a cell": ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1, 1, 1.4], "different runtimes"),
    "a product that rounds up": ({"mode": "linear"}, [1, 1, 1, 0.7], "different runtimes"),
    "nothing left": ({"mode": "linear"}, [1, 1, 0.1, 1], "becomes one of 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_runtimes_read_otherwise_is_refused(name: str) -> None:
    attrs, scales, why = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=why):
        load_onnx(model(node("Resize", "x - s", **attrs), [1, 1, 3, 10], {"s": F32(scales)}, opset=18))


# ---- normalised layers -----------------------------------------------------------------------------------------------


def test_a_layer_norm_is_bounded_in_exact_arithmetic_and_refused_in_any_other() -> None:
    rng = np.random.default_rng(3)
    g, b, w = (rng.standard_normal(s).astype(F32) for s in ((5,), (5,), (4, 5)))
    m = model([node("Gemm", "x w", "h"), node("LayerNormalization", "h g b", epsilon=0.1)], [1, 4], {"g": g, "b": b, "w": w}, opset=17)
    for semantics in ("float32", "bf16"):
        with pytest.raises(UnsupportedModel, match="no deployed semantics states in what order") as told:
            polytriton.compile(m, semantics=semantics).bounds(np.zeros((1, 4)), np.ones((1, 4)))
        assert "--semantics real" in told.value.remedy and "opset 16" in told.value.remedy
    net = polytriton.compile(m, semantics="real")
    middle = rng.standard_normal((1, 4))
    for radius in (0.0, 1e-3, 0.1):
        lo, hi = middle - radius, middle + radius
        found = net.bounds(lo, hi)
        low, high = np.asarray(found.lo), np.asarray(found.hi)
        assert (high - low).max() < 1e-9 + 60 * radius
        for _ in range(50):
            h = (lo + (hi - lo) * rng.integers(0, 2, middle.shape)) @ w.astype(np.float64)
            gap = h - h.mean()
            y = gap / np.sqrt((gap * gap).mean() + float(F32(0.1))) * g + b
            assert (low <= y + 1e-12).all() and (y <= high + 1e-12).all()


def test_what_nothing_states_is_not_forgotten() -> None:
    net = load_onnx(model(node("LayerNormalization", "x g"), [1, 4], {"g": rand(4)}, opset=17)).net
    assert [n.integer("slack") for n in net if n.op == "conv"] == [3, 1]
    assert net.input.attrs["unstated"] == "LayerNormalization" and parse_net(print_net(net), net.weights) == net
    lost = net.rebuild([n.drop("unstated") if n.op == "input" else n for n in net])
    assert "unstated" in str(broken_law(net, lost))
    for options, why in (({"epsilon": 0.0}, "epsilon"), ({"axis": 3}, "axis")):
        with pytest.raises(UnsupportedModel, match=why):
            load_onnx(model(node("LayerNormalization", "x g", **options), [1, 4], {"g": rand(4)}, opset=17))
