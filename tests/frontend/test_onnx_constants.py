"""Constants of an ONNX model: folded as onnxruntime folds them, their rounding recorded and within its slack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import cross_check, load_onnx
from tests.frontend.onnx_cases import B4, F32, FOLDED, IMAGE, W43
from tests.frontend.onnx_models import holds, ints, model, node, ops, rand

# ---- folding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op,operands,attrs", FOLDED)
def test_folding(op: str, operands: dict[str, np.ndarray], attrs: dict[str, Any]) -> None:
    """The folded constant, added to the input, gives onnxruntime's sum."""
    nodes = [node(op, " ".join(operands), "k", **attrs), node("Cast", "k", "c", to=TensorProto.FLOAT), node("Add", "x c")]
    holds(model(nodes, [1], operands))


def test_constant_forms() -> None:
    dense = numpy_helper.from_array(rand(2, 3))
    values = numpy_helper.from_array(F32([1.5, -2]), "v")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(ints(1, 5), "i"), [2, 3])
    pairs = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([[0, 1], [1, 2]]), "i"), [2, 3])
    forms: list[dict[str, Any]] = [{"value": dense}, {"value_float": 1.5}, {"value_floats": [1.0, 2.0, 3.0]}, {"sparse_value": sparse}]
    for form in forms:
        holds(model([node("Constant", "", "c", **form), node("Add", "x c")], [1, 3]))
    flat, paired = (load_onnx(model([node("Constant", "", "c", sparse_value=s), node("Add", "x c")], [1, 3])) for s in (sparse, pairs))
    assert np.array_equal(flat.net.weights["y_c"], paired.net.weights["y_c"])
    holds(model([node("Constant", "", "c", value_ints=[3, 1]), node("Reshape", "x c")], [1, 3]))
    holds(model([node("Constant", "", "c", value_int=1), node("Gather", "x c", axis=1)], [1, 3]))
    fill = helper.make_tensor("f", TensorProto.FLOAT, [1], [2.5])
    holds(model([node("ConstantOfShape", "s", "c", value=fill), node("Add", "x c")], [1, 3], {"s": ints(2, 3)}))
    with pytest.raises(UnsupportedModel, match="value_string"):
        load_onnx(model([node("Constant", "", "c", value_string="no"), node("Add", "x c")], [1, 3]))


def test_shape_arithmetic_as_exporters_write_it() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Slice", "s a b", "n"), node("Slice", "s b c", "hw"), node("ReduceProd", "hw", "p", keepdims=1),
        node("Mul", "p one", "q"), node("Concat", "n q", "to", axis=0), node("Reshape", "x to", "r"), node("Gemm", "r w", "y"),
    ]  # fmt: skip
    weights = {"a": ints(0), "b": ints(1), "c": ints(4), "one": ints(1), "w": rand(90, 2)}
    assert ops(holds(model(nodes, ["N", 3, 6, 5], weights))) == ["input", "linear"]
    start = [
        node("Shape", "x", "s", start=1, end=-1),
        node("ReduceProd", "s", "p"),
        node("Concat", "p m", "to", axis=0),
        node("Reshape", "x to"),
    ]
    assert holds(model(start, IMAGE, {"m": ints(-1)}, opset=18)).source.output_shape == (18, 5)


# ---- rounding -------------------------------------------------------------------------------------------------


def test_weights_stay_as_stored() -> None:
    made = load_onnx(
        model(
            [node("Conv", "x w b", "h"), node("Flatten", "h", "f"), node("Gemm", "f u v", transB=1)],
            IMAGE,
            {"w": rand(4, 3, 6, 5), "b": B4, "u": W43[:, [0, 1, 2, 0]], "v": B4},
        )
    )
    assert all(w.dtype == F32 for w in made.net.weights.values())
    assert not any(k in n.attrs for n in made.net for k in ("slack", "ops", "babs", "wabs"))


@pytest.mark.parametrize(
    "nodes,weights,want",
    [
        (node("Div", "x c"), {"c": F32([2, 4, -0.5])}, {"ops": 1}),
        (node("Div", "x c"), {"c": F32([2, 3, 4])}, {"ops": 1, "slack": 1}),
        (node("Gemm", "x w b", alpha=0.5), {"w": rand(3, 2), "b": rand(2)}, {"ops": 2, "slack": 1}),
        (node("Gemm", "x w b", beta=0.5), {"w": rand(3, 2), "b": rand(2)}, {"ops": 2, "slack": 1}),
        (node("Mul", "x c"), {"c": rand(3)}, {}),
        (node("ReduceMean", axes=[1]), {}, {"ops": 1, "slack": 1}),
        ([node("Mul", "c c", "d"), node("Mul", "x d")], {"c": rand(3)}, {"ops": 1, "slack": 1}),
        ([node("Mul", "c c", "d"), node("Div", "x d")], {"c": rand(3)}, {"ops": 2, "slack": 2}),
        ([node("Neg", "c", "d"), node("Add", "x d")], {"c": rand(3)}, {}),
        ([node("Mul", "c c", "d"), node("Sqrt", "d", "e"), node("Add", "x e")], {"c": rand(3)}, {"ops": 2, "slack": 2}),
        ([node("Cast", "c", "d", to=TensorProto.FLOAT), node("Add", "x d")], {"c": rand(3).astype(np.float64)}, {}),
        ([node("Cast", "c", "d", to=TensorProto.FLOAT), node("Add", "x d")], {"c": rand(3) / np.float64(3)}, {"ops": 1}),
    ],
)
def test_rounding_is_recorded(nodes: Any, weights: dict[str, np.ndarray], want: dict[str, int]) -> None:
    last = holds(model(nodes, [1, 3], weights)).net.nodes[-1]
    assert {k: v for k, v in last.attrs.items() if k in ("slack", "ops")} == want


def test_batchnorm_is_within_its_slack() -> None:
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    parts = {"s": rand(50), "b": rand(50), "m": 100 * rand(50), "v": rand(50) ** 2 * F32(1e-3)}
    net = load_onnx(model(node("BatchNormalization", "x s b m v"), [1, 50, 2, 1], parts)).net
    n = net.node("y")
    a, c, babs = (np.broadcast_to(net.weights[n.attrs[k].name], (50, 1, 1)).ravel() for k in ("a", "c", "babs"))
    gamma = Decimal(n.attrs["slack"]) * Decimal(2) ** -53 / (1 - Decimal(n.attrs["slack"]) * Decimal(2) ** -53)
    for i in range(50):
        s, b, m, v = (Decimal(float(parts[k][i])) for k in "sbmv")
        exact = s / (v + Decimal(float(F32(1e-5)))).sqrt()
        assert abs(Decimal(float(a[i])) - exact) <= gamma * abs(exact)
        assert abs(Decimal(float(c[i])) - (b - m * exact)) <= gamma * Decimal(float(babs[i]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["Mul", "Div", "Add", "Sqrt", "Reciprocal", "Max"]), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_folded_floats_are_within_their_slack(steps: list[tuple[str, int]], seed: int) -> None:
    """Against 60 digits; the operands are positive, as a sum of rounded numbers must be."""
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    leaves = (np.random.default_rng(seed).random((4, 3)) * 4 + 0.25).astype(F32)
    exact = [Decimal(float(v)) for v in leaves[0]]
    nodes, last = [], "c0"
    for i, (op, k) in enumerate(steps):
        other = [Decimal(float(v)) for v in leaves[k]]
        nodes.append(node(op, last if op in ("Sqrt", "Reciprocal") else f"{last} c{k}", f"t{i}"))
        last = f"t{i}"
        calc = {
            "Mul": lambda p, q: p * q,
            "Div": lambda p, q: p / q,
            "Add": lambda p, q: p + q,
            "Max": max,
            "Sqrt": lambda p, q: p.sqrt(),
            "Reciprocal": lambda p, q: 1 / p,
        }
        exact = [calc[op](p, q) for p, q in zip(exact, other, strict=True)]
    net = load_onnx(model([*nodes, node("Mul", f"x {last}")], [1, 3], {f"c{k}": leaves[k] for k in range(4)})).net
    n = net.nodes[-1]
    assume(n.op == "scale")
    slack = Decimal(int(n.attrs.get("slack", 0)))
    gamma = slack * Decimal(2) ** -53 / (1 - slack * Decimal(2) ** -53)
    for got, want in zip(net.weights[n.attrs["a"].name], exact, strict=True):
        assert abs(Decimal(float(got)) - want) <= gamma * abs(want)


def test_other_float_types() -> None:
    double = holds(
        model(
            [node("Gemm", "x w b", "h", transB=1), node("Relu", "h")],
            [1, 3],
            {"w": rand(4, 3, dtype=np.float64), "b": rand(4, dtype=np.float64)},
            dtype=np.float64,
        )
    )
    assert double.net.weights["h_w"].dtype == np.float64
    assert double.source.input_dtype == "float64"
    half = load_onnx(
        model(
            [node("Gemm", "x w b", "h", transB=1), node("Relu", "h")],
            [1, 3],
            {"w": rand(4, 3, dtype=np.float16), "b": rand(4, dtype=np.float16)},
            dtype=np.float16,
        )
    )
    assert half.net.weights["h_w"].dtype == F32
    assert half.source.input_dtype == "float16"
    assert cross_check(half) < 0.6
    widened = holds(
        model([node("Cast", "w", "v", to=TensorProto.FLOAT), node("MatMul", "x v")], [1, 3], {"w": rand(3, 2, dtype=np.float16)})
    )
    assert "slack" not in widened.net.nodes[-1].attrs
    narrowed = model([node("Cast", "x", "h", to=TensorProto.FLOAT), node("Relu", "h")], [1, 3], dtype=np.float64)
    narrowed.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert load_onnx(narrowed).net.nodes[1].attrs["ops"] == 1
