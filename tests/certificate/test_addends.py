"""Certificates of float32 executions as runtimes make them: sums inside layers, weights that merges multiply."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polytriton import checker
from polytriton.certificate.write import certify
from polytriton.checker_files import Refused
from tests.certificate.models import NODE, bounded, model
from tests.soundness.inserted import CASES, Graph, Inserted
from tests.soundness.test_addends import residual


def spec(folder: Path, text: str, inputs: int, outputs: int) -> Path:
    names = [f"(declare-const {v}_{i} Real)" for v, n in (("X", inputs), ("Y", outputs)) for i in range(n)]
    (folder / "p.vnnlib").write_text("\n".join([*names, text]))
    return folder / "p.vnnlib"


@pytest.mark.parametrize("gap", [2.0**-16, 2.0**-10])
def test_a_residual_is_rounded_as_often_as_a_product(tmp_path: Path, gap: float) -> None:
    """relu(a + W a), a = 1, W a = 2^-23: a runtime that starts at `a` may come down to 1 - n 2^-23, though the sum exceeds 1.

    The box is that one input: there is nothing to divide before the answer is no.
    """
    terms = 512
    (tmp_path / "n.onnx").write_bytes(residual("dense", terms))
    box = "(assert (>= X_0 1))(assert (<= X_0 1))"
    prop = spec(tmp_path, f"{box}(assert (<= Y_0 {1 - gap:.30f}))", 1, terms)
    if gap < 1e-4:
        with pytest.raises(Refused):
            certify(tmp_path / "n.onnx", prop, "float32")
        return
    (tmp_path / "c.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "float32"))
    checker.check(tmp_path / "n.onnx", prop, tmp_path / "c.cert")


def test_weights_that_merges_multiply_beyond_float32_are_not_described(tmp_path: Path) -> None:
    """Three factors of 2^50: merged they are infinite, and so is every execution that merges them."""
    scales = [numpy_helper.from_array(np.array([2.0**50], np.float32), f"w{k}") for k in range(3)]
    nodes = [helper.make_node("Mul", [f"v{k}" if k else "x", f"w{k}"], ["y" if k == 2 else f"v{k + 1}"]) for k in range(3)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1]) for n in "xy")
    graph = helper.make_graph(nodes, "factors", [x], [y], scales)
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (tmp_path / "n.onnx").write_bytes(model.SerializeToString())
    tiny = f"{2.0**-120:.130f}"
    prop = spec(tmp_path, f"(assert (>= X_0 0))(assert (<= X_0 {tiny}))(assert (>= Y_0 2000000000.0))", 1, 1)
    (tmp_path / "real.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "real"))
    with pytest.raises(Refused, match="weights that grow"):
        certify(tmp_path / "n.onnx", prop, "float32")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_addends_in_layers_before_them(tmp_path: Path, case: Inserted) -> None:
    """What an execution reaches is not certified; what lies a few times as far away is."""
    (tmp_path / "n.onnx").write_bytes(case.model())
    box = "(assert (>= X_0 1))(assert (<= X_0 1))"
    outputs = int(np.prod([d.dim_value for d in onnx.load(tmp_path / "n.onnx").graph.output[0].type.tensor_type.shape.dim]))
    prop = spec(tmp_path, f"{box}(assert (<= Y_{case.at} {case.reached():.40f}))", 1, outputs)
    with pytest.raises(Refused):
        certify(tmp_path / "n.onnx", prop, "float32")
    prop = spec(tmp_path, f"{box}(assert (<= Y_{case.at} {1 - 8 * case.roundings * 2.0**-23:.40f}))", 1, outputs)
    (tmp_path / "c.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "float32"))
    checker.check(tmp_path / "n.onnx", prop, tmp_path / "c.cert")


def test_doublings_grow_as_weights_do(tmp_path: Path) -> None:
    g = Graph()
    v = g.hidden(terms=1)
    for _ in range(70):
        v = g.add("Add", v, v)
    (tmp_path / "n.onnx").write_bytes(g.model([1, 1]))
    prop = spec(tmp_path, "(assert (>= X_0 0))(assert (<= X_0 0))(assert (>= Y_0 1))", 1, 1)
    (tmp_path / "real.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "real"))
    with pytest.raises(Refused, match="weights that grow"):
        certify(tmp_path / "n.onnx", prop, "float32")


LOST = 1000
SWALLOWED = np.array([2.0**24, *np.ones(LOST), -(2.0**24)], np.float32)  # added up in this order the ones are lost


def least(path: Path, inputs: int) -> Fraction:
    """Below which no float32 execution comes where every input is 1."""
    net, one = checker.Network(path.read_bytes()), np.ones((inputs, 1))
    boxes = bounded(checker.Boxes(net, one, one, "float32"))
    return boxes.margins(net, [({~0: Fraction(1)}, Fraction(0))], np.zeros(1, np.int64), 0)[0][0]


def convolutions(path: Path, *weights: np.ndarray, relu: bool = False) -> Path:
    """One after the other, over an image of one cell."""
    names = ["x", *(f"v{k}" for k in range(1, len(weights))), "z" if relu else "y"]
    nodes = [NODE("Conv", [names[k], f"w{k}"], [names[k + 1]]) for k in range(len(weights))] + [NODE("Relu", ["z"], ["y"])] * relu
    return model(path, nodes, [1, weights[0].shape[1], 1, 1], {f"w{k}": w[..., None, None] for k, w in enumerate(weights)})


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
def test_what_each_of_two_convolutions_rounds_is_paid(tmp_path: Path, layer: int, relu: bool) -> None:
    """What goes from one to the other is a tensor in memory, and off by what the first rounded."""
    assert np.add.accumulate(SWALLOWED)[-1] == 0 < float(SWALLOWED.astype(np.float64).sum()) == LOST
    weights = (SWALLOWED[None], np.ones((1, 1))) if layer == 0 else (SWALLOWED[:, None], np.ones((1, len(SWALLOWED))))
    path = convolutions(tmp_path / "n.onnx", *weights, relu=relu)
    assert checker.Network(path.read_bytes()).stored == {1} and least(path, weights[0].shape[1]) <= 0


def test_what_cancels_before_a_convolution_is_not_charged_in_it(tmp_path: Path) -> None:
    """2^24 - 2^24, then a thousand products with what is left: nearly zero."""
    first, second = np.tile([[2.0**24, -(2.0**24)]], (LOST, 1)), np.ones((1, LOST))
    assert -3 * 2.0 * LOST * 4 < least(convolutions(tmp_path / "n.onnx", first, second), 2) < 0


def test_dense_layers_may_be_one(tmp_path: Path) -> None:
    """Both inputs' weights are the same but for their sign; multiplied into one layer, in another order each, they are not."""
    nodes = [NODE("Gemm", ["x", "a"], ["h"], transB=1), NODE("Gemm", ["h", "b"], ["y"], transB=1)]
    weights = {"a": np.stack([SWALLOWED, -SWALLOWED], 1), "b": np.ones((1, len(SWALLOWED)))}
    path = model(tmp_path / "n.onnx", nodes, [1, 2], weights)
    assert least(path, 2) <= np.add.accumulate(SWALLOWED)[-1] - np.add.accumulate(SWALLOWED[[0, -1, *range(1, LOST + 1)]])[-1] == -LOST


@pytest.mark.parametrize(
    ("ops", "stored"),
    [
        ("Conv Conv", {1}), ("Conv Flatten Gemm", {1}), ("Gemm Reshape Conv", {1}), ("Gemm Gemm", set()), ("Conv Mul Conv", set()),
        ("Conv Add Conv", set()), ("Conv Sum Conv", set()), ("Conv Relu Conv", set()), ("Conv Both Conv", set()),
    ],
)  # fmt: skip
def test_which_values_are_stored(tmp_path: Path, ops: str, stored: set[int]) -> None:
    """Those alone that nothing else merges with: not what a scale or a sum reads, and not what a ReLU reads too."""
    made = {
        "Conv": ("Conv", ["w"], {}), "Gemm": ("Gemm", ["m"], {}), "Flatten": ("Flatten", [], {}), "Reshape": ("Reshape", ["shape"], {}),
        "Mul": ("Mul", ["c"], {}), "Add": ("Add", ["c"], {}), "Relu": ("Relu", [], {}), "Sum": ("Add", ["x"], {}),
    }  # fmt: skip
    nodes, name = [], "x"
    for k, op in enumerate(ops.split()):
        if op == "Both":
            nodes.append(NODE("Relu", [name], ["r"]))
            continue
        kind, more, attrs = made[op]
        nodes.append(NODE(kind, [name, *more], [f"v{k}"], **attrs))
        name = f"v{k}"
    nodes.append(NODE("Add", [name, "r"], ["y"]) if "Both" in ops else NODE("Flatten", [name], ["y"]))
    weights = {"w": np.ones((2, 2, 1, 1)), "m": np.ones((2, 2)), "c": np.ones((1, 2, 1, 1)), "shape": np.array([1, 2, 1, 1])}
    path = model(tmp_path / "n.onnx", nodes, [1, 2] if ops.startswith("Gemm") else [1, 2, 1, 1], weights)
    assert checker.Network(path.read_bytes()).stored == stored


def drawn_row(rng: np.random.Generator, path: Path) -> tuple[Path, list[float], list[float]]:
    """A layer whose products are tiny and negative, then sums, products with one, layers of one weight; its terms, what is added later."""
    terms, held, last = int(rng.integers(1, 24)), dict[str, Any](), "h0"
    tiny, biased = -(2.0**-45), bool(rng.integers(2))
    held["w"], held["b"] = np.full((terms, 1), tiny), np.full(1, tiny)
    nodes, late = [NODE("Gemm", ["x", "w", "b"], [last]) if biased else NODE("MatMul", ["x", "w"], [last])], list[float]()
    for k in range(1, int(rng.integers(2, 6))):
        c, kind = float(rng.choice([1 + 2.0**-10, 2 + 2.0**-9, -(2.0**-44)])), str(rng.choice(["Add", "Sub", "Residual", "Mul", "Gemm"]))
        held[f"c{k}"], second = np.array([1.0 if kind == "Mul" else -c if kind == "Sub" else c]), [f"c{k}"]
        if kind == "Residual":  # relu(c x): nobody computes it anew
            held[f"c{k}"] = np.array([[c]] + [[0.0]] * (terms - 1))
            nodes += [NODE("MatMul", ["x", f"c{k}"], [f"m{k}"]), NODE("Relu", [f"m{k}"], [f"r{k}"])]
            c, kind, second = max(c, 0.0), "Add", [f"r{k}"]
        if kind == "Gemm":
            held["one"], second = np.ones((1, 1)), ["one", f"c{k}"]
        nodes.append(NODE(kind, [last, *second], [last := f"h{k}"]))
        late += [] if kind == "Mul" else [c]
    return model(path, [*nodes, NODE("Flatten", [last], ["y"])], [1, terms], held), [tiny] * (terms + biased), late


def total_rounded_down(terms: list[float]) -> float:
    """One after the other, each sum the float32 number below."""
    total = terms[0]
    for v in terms[1:]:
        near = np.float32(total + v)
        total = float(np.nextafter(near, np.float32(-np.inf)) if float(near) > total + v else near)
    return total


def test_wherever_addends_are_put_they_pass_no_more_than_is_charged(tmp_path: Path) -> None:
    """Any of them may start the sum of the first layer, the largest before all: executions come near what is charged, and not below."""
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(150):
        path, terms, addends = drawn_row(rng, tmp_path / "n.onnx")
        net = checker.Network(path.read_bytes())
        one = np.ones((net.sizes[0], 1))
        boxes = bounded(checker.Boxes(net, one, one, "float32"))
        charge, exact = float(boxes.execution_error(net.output)[0, 0]), float(boxes.lo[net.output][0, 0])
        for _ in range(8):
            early = [a for a in addends if rng.random() < 0.7]
            late = addends.copy()
            for a in early:
                late.remove(a)
            reached = total_rounded_down([*sorted((a for a in early if a > 0), reverse=True), *terms, *(a for a in early if a <= 0), *late])
            assert reached >= exact - charge
            most = max(most, (exact - reached) / charge)
    assert most > 0.85
