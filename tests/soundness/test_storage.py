"""What a deployed network stores or flushes beyond float32's own roundings: float16 numbers, subnormal constants, extreme factors."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

import polytriton
from polytriton.errors import UnsupportedModel
from polytriton.ir.net import Node
from polytriton.runtime.soundness import SEMANTICS, elementwise_error
from tests.soundness.test_deployed_sums import graph

F16, F32 = np.float16, np.float32


def half(nodes: list[onnx.NodeProto], inputs: list[int], outputs: list[int], **weights: np.ndarray) -> onnx.ModelProto:
    model = graph(nodes, inputs, outputs, **weights)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def weighed() -> onnx.ModelProto:
    """y = 0.0004 x0 + x1."""
    return half([helper.make_node("MatMul", ["x", "w"], ["y"])], [1, 2], [1, 1], w=np.array([[0.0004], [1]], F16))


def test_a_float16_network_stores_what_no_deployed_semantics_covers() -> None:
    """onnxruntime gives 1.0 at (1, 1); bounds that read the storage as float32 were [1.0003997, 1.0004004]."""
    model, x = weighed(), np.ones(2)
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x.astype(F16)[None]})
    assert y.item() == 1.0
    for semantics in ("float32", "tf32", "bf16", "float16"):
        with pytest.raises(UnsupportedModel, match="stores numbers in float16") as e:
            polytriton.compile(model, semantics=semantics).bounds(x, x)
        assert "--semantics real" in str(e.value)
    exact = polytriton.compile(model, semantics="real").bounds(x, x)
    assert exact.lo.item() <= 1 + float(F16(0.0004)) <= exact.hi.item()


def test_an_artifact_remembers_float16(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = polytriton.compile(weighed()).save(tmp_path / "n.poly")
    with pytest.raises(UnsupportedModel, match="float16"):
        polytriton.load(path).bounds(np.ones(2), np.ones(2))


def test_float16_constants_multiplied_before_a_cast() -> None:
    """(a b) in float16 and then a cast: one float16 rounding where a runtime stores it so, not one of float32."""
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "d"], ["y"]),
    ]
    a, b = np.array([1.001], F16), np.array([1.003], F16)
    model, x = graph(nodes, [1, 1], [1, 1], a=a, b=b), np.ones(1)
    assert float((a * b)[0]) != float(a[0]) * float(b[0])
    with pytest.raises(UnsupportedModel, match="float16"):
        polytriton.compile(model).bounds(x, x)


def test_a_float16_network_that_only_moves_what_it_is_given_is_accepted() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["f"]),
        helper.make_node("Cast", ["f"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    model = graph(nodes, [1, 2], [2], s=np.array([2]))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert polytriton.compile(model).bounds(np.ones(2), np.ones(2)).hi.tolist() == [[1, 1]]


def test_a_subnormal_constant_is_no_operand_of_constants() -> None:
    """2^-130 * 2^100 is 2^-30, and zero where subnormal operands are flushed."""
    nodes = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Mul", ["x", "c"], ["y"])]
    with pytest.raises(UnsupportedModel, match="below the normal range"):
        polytriton.compile(graph(nodes, [1, 1], [1, 1], a=np.array([2.0**-130], F32), b=np.array([2.0**100], F32)))
    with pytest.raises(UnsupportedModel, match="below the normal range"):
        polytriton.compile(graph([helper.make_node("Div", ["x", "a"], ["y"])], [1, 1], [1, 1], a=np.array([2.0**-127], F32)))


@pytest.mark.parametrize(("alpha", "w"), [(2.0**-100, 2.0**120), (2.0**-130, 2.0**100), (0.0, 1.0)])
def test_an_extreme_alpha_hides_no_overflow(alpha: float, w: float) -> None:
    """alpha * (x w) overflows, or flushes alpha, where (alpha w) x does neither."""
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], alpha=alpha)
    with pytest.raises(UnsupportedModel, match="alpha is"):
        polytriton.compile(graph([gemm], [1, 1], [1, 1], w=np.array([[w]], F32)))


def test_a_moderate_alpha_counts_as_a_factor_of_the_merged_layer() -> None:
    gemm = helper.make_node("Gemm", ["x", "w", "c"], ["y"], alpha=2.0**-20, beta=8.0)
    model = graph([gemm], [1, 1], [1, 1], w=np.array([[3]], F32), c=np.ones((1, 1), F32))
    assert polytriton.compile(model).net.nodes[-1].integer("gain") == 20
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.3)
    assert polytriton.compile(graph([gemm], [1, 1], [1, 1], w=np.array([[3]], F32))).net.nodes[-1].integer("gain") == 2


def test_a_leaky_slope_enlarges_what_a_flushed_operand_loses() -> None:
    """x = -2^-127 through a slope of 2^40 is -2^-87, and zero where x is flushed."""
    model = graph([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=2.0**40)], [1, 1], [1, 1])
    x = np.array([-(2.0**-127)])
    for kind in ("float32", "tf32"):
        bounds = polytriton.compile(model, semantics=kind).bounds(x, x)
        assert bounds.lo.item() <= -(2.0**-87) <= 0 <= bounds.hi.item()
    with pytest.raises(UnsupportedModel, match="below the normal range"):
        polytriton.compile(graph([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=2.0**-130)], [1, 1], [1, 1]))


@pytest.mark.parametrize("slope", [0.25, -3.0, 2.0**40])
def test_the_flush_of_an_operand_is_charged_with_its_factor(slope: float) -> None:
    """Boxes cover it wherever a value may be flushed when it is made; forms that hold operand and result rest on the error."""
    error = elementwise_error(SEMANTICS["float32"], 1, torch.zeros(1, dtype=torch.float64), slope).item()
    assert error >= (1 + max(1.0, abs(slope))) * 2.0**-126
    pytest.importorskip("triton", reason="Triton is not installed")
    from polytriton.kernels.cell_kernels import elementwise_error as kernel_error

    constants = kernel_error(Node("r", "relu", ("x",), (1,), {"slope": slope}), 1)
    assert constants["LOST"] == 4 * max(1.0, abs(slope)) * 2.0**-126


def test_a_batch_norm_whose_variance_vanishes_is_refused() -> None:
    weights = {k: np.ones(1, F32) for k in "gbm"} | {"v": np.array([2.0**-127], F32)}
    norm = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], epsilon=0.0)
    with pytest.raises(UnsupportedModel, match="next to zero"):
        polytriton.compile(graph([norm], [1, 1, 1], [1, 1, 1], **weights))


def test_weights_out_of_sight_still_amplify_what_is_flushed() -> None:
    """A subnormal constant beside the input meets a weight of 2^100: 2^-30, or nothing where it is flushed."""
    nodes = [helper.make_node("Concat", ["x", "c"], ["j"], axis=1), helper.make_node("MatMul", ["j", "w"], ["y"])]
    model = graph(nodes, [1, 1], [1, 1], c=np.array([[2.0**-130]], F32), w=np.array([[1], [2.0**100]], F32))
    bounds = polytriton.compile(model).bounds(np.zeros(1), np.zeros(1))
    assert bounds.lo.item() <= 0 <= 2.0**-30 <= bounds.hi.item()


