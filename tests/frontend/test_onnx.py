"""Every supported ONNX operator, in every form it may take, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx, operators
from tests.frontend.onnx_cases import B4, FOLDED, LIVE
from tests.frontend.onnx_models import holds, ints, model, node, rand

SMALL = st.integers(1, 3)


@pytest.mark.parametrize("nodes,shape,weights,options", LIVE)
def test_operator(nodes: Any, shape: list[Any], weights: Any, options: Any) -> None:
    holds(model(nodes, shape, weights, **options))


@pytest.mark.parametrize("nodes,shape,weights,options", LIVE)
def test_a_layer_by_a_tensors_name_is_that_tensor(nodes: Any, shape: list[Any], weights: Any, options: Any) -> None:
    """Bounds are told by layer: steps on the way to an operator's result must not have the result's name."""
    made = load_onnx(model(nodes, shape, weights, **options))
    names = {n.name for n in made.net}
    for step in made.steps:
        for held in step.outputs:
            assert held.tensor not in names or held.node == held.tensor or held.node in {o.node for o in step.operands}


@pytest.mark.parametrize("last", ["Mul", "Add", "Sub", "Div", "Neg"])
def test_activations_without_an_axis(last: str) -> None:
    """A scalar stays one: constants of ours must not give it an axis that onnxruntime's has not."""
    end = node("Neg", "s", "y") if last == "Neg" else node(last, "s k", "y")
    made = holds(model([node("MatMul", "x w", "s"), end], [2], {"w": rand(2), "k": np.float32(1.5)}))
    assert made.source.output_shape == ()


def test_every_operator_of_the_table_has_a_test() -> None:
    used = {"Size", "Range", "Where", "NonZero", "Constant", "ConstantOfShape", "Shape"}
    for p in LIVE:
        nodes = p.values[0]
        used |= {n.op_type for n in (nodes if isinstance(nodes, list) else [nodes])}
    used |= {p.values[0] for p in FOLDED}
    assert {op for op, _ in operators()} <= used
    assert all(doc for _, doc in operators())


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17, 18, 19, 21, 22, 23, 24, 26])
def test_opsets(opset: int) -> None:
    shape = [node("Unsqueeze", "k", "ku", axes=[0])] if opset < 13 else [node("Unsqueeze", "k zero", "ku")]
    nodes = [
        node("Conv", "x w b", "c"), node("BatchNormalization", "c s t m v", "d"), node("Relu", "d", "e"),
        node("AveragePool", "e", "f", kernel_shape=[2, 2]), node("Shape", "f", "sh"), node("Gather", "sh one", "k"), *shape,
        node("Concat", "first ku rest", "to", axis=0), node("Reshape", "f to", "r"), node("Flatten", "r", "g"), node("Gemm", "g u", "y"),
    ]  # fmt: skip
    weights = {
        "w": rand(4, 3, 3, 3),
        "b": B4,
        "s": rand(4),
        "t": rand(4),
        "m": rand(4),
        "v": rand(4) ** 2,
        "one": np.array(1),
        "zero": ints(0),
    }
    weights |= {"first": ints(1), "rest": ints(-1), "u": rand(24, 5)} | ({} if opset > 10 else {"z": rand(5)})
    if opset < 11:
        nodes[-1] = node("Gemm", "g u z", "y")
    made = holds(model(nodes, ["N", 3, 6, 5], weights, opset=opset, listed=opset < 11))
    assert made.source.opset == opset
    assert made.source.input_shape == (1, 3, 6, 5)
    assert made.source.has_batch


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_generated_windows(data: st.DataObject) -> None:
    """Whatever onnxruntime accepts is computed alike, or refused."""
    op = data.draw(st.sampled_from(["Conv", "MaxPool", "AveragePool"]))
    rank = data.draw(st.integers(1, 2))
    dims = [data.draw(st.integers(3, 8)) for _ in range(rank)]
    kernel, strides = ([data.draw(SMALL) for _ in range(rank)] for _ in range(2))
    attrs: dict[str, Any] = {"strides": strides}
    if data.draw(st.booleans()):
        attrs["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attrs["pads"] = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    if data.draw(st.booleans()):
        attrs["dilations"] = [data.draw(SMALL) for _ in range(rank)]
    weights = {}
    if op == "Conv":
        weights, inputs = {"w": rand(2, 2, *kernel)}, "x w"
    else:
        inputs, attrs["kernel_shape"], attrs["ceil_mode"] = "x", kernel, data.draw(st.integers(0, 1))
        if op == "AveragePool":
            attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    m = model(node(op, inputs, **attrs), [1, 2, *dims], weights, opset=19)
    try:
        holds(m)
    except UnsupportedModel as e:
        reasons = ("larger than the padded axis", "wholly in the padding", "different runtimes", "runtimes crop it", "onnxruntime refuses")
        assert any(r in e.message for r in reasons)  # noqa: PT017


def test_names_from_anywhere() -> None:
    """Tensor names may be paths or any script; IR names are plain and distinct."""
    m = model([node("Relu", "x", "a/b"), node("Relu", "a/b", "a.b"), node("Relu", "a.b", "é²"), node("Relu", "é²", "y")], [1, 3])
    names = [n.name for n in holds(m, name="new net").net]
    assert len(set(names)) == 5
    assert all(n.isascii() for n in names)
    assert holds(m, name="new net").net.name == "new_net"
    assert isinstance(m, onnx.ModelProto)
