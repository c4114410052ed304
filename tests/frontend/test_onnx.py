"""Every supported ONNX operator, in every form it may take, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx, operators
from tests.frontend.onnx_models import holds, ints, model, node, ops, rand

F32 = np.float32
IMAGE = [1, 3, 6, 5]


def case(id: str, nodes: Any, shape: list[Any], weights: dict[str, np.ndarray] | None = None, **options: Any) -> Any:
    return pytest.param(nodes, shape, weights, options, id=id)


W43, B4 = rand(4, 3), rand(4)
MATRICES = [
    case("gemm", node("Gemm", "x w b", transB=1), [1, 3], {"w": W43, "b": B4}),
    case("gemm-no-bias", node("Gemm", "x w"), [1, 3], {"w": W43.T}),
    case("gemm-alpha-beta", node("Gemm", "x w b", alpha=0.3, beta=-1.7, transB=1), [1, 3], {"w": W43, "b": B4}, opset=7),
    case("gemm-beta-zero", node("Gemm", "x w b", beta=0.0, transB=1), [1, 3], {"w": W43, "b": B4}),
    case("gemm-scalar-c", node("Gemm", "x w b", transB=1), [1, 3], {"w": W43, "b": rand(1, 1)}),
    case("gemm-transA", node("Gemm", "x w b", transA=1, transB=1), [3, 1], {"w": W43, "b": B4}),
    case("gemm-rows", node("Gemm", "x w b", transA=1, transB=1, beta=0.5), [3, 5], {"w": W43, "b": B4}),
    case("gemm-left", node("Gemm", "w x b", beta=2.0), [3, 1], {"w": W43, "b": rand(4, 1)}),
    case("gemm-left-cols", node("Gemm", "w x b", alpha=0.5), [3, 5], {"w": W43, "b": rand(4, 1)}),
    case("gemm-act-c", [node("Gemm", "x w x", beta=0.5)], [1, 3], {"w": rand(3, 3)}),
    case("matmul", node("MatMul", "x w"), [1, 3], {"w": W43.T}),
    case("matmul-vector-x", node("MatMul", "x w"), [3], {"w": W43.T}),
    case("matmul-vector-w", node("MatMul", "x w"), [1, 3], {"w": rand(3)}),
    case("matmul-dot", node("MatMul", "x w"), [3], {"w": rand(3)}),
    case("matmul-left", node("MatMul", "w x"), [3, 1], {"w": W43}),
    case("matmul-left-vector", node("MatMul", "w x"), [3, 2], {"w": rand(3)}),
    case("matmul-left-x-vector", node("MatMul", "w x"), [3], {"w": W43}),
    case("matmul-rows", node("MatMul", "x w"), [1, 5, 3], {"w": W43.T}),
    case("matmul-rows-4d", node("MatMul", "x w"), [1, 2, 5, 3], {"w": W43.T}),
    case("matmul-left-rows", node("MatMul", "w x"), [1, 2, 3, 5], {"w": W43}),
    case("matmul-batched", node("MatMul", "x w"), [1, 2, 5, 3], {"w": rand(2, 3, 4)}),
    case("matmul-left-batched", node("MatMul", "w x"), [1, 2, 3, 5], {"w": rand(2, 4, 3)}),
    case("matmul-broadcast", node("MatMul", "x w"), [1, 1, 5, 3], {"w": rand(2, 3, 4)}),
    case("matmul-left-broadcast", node("MatMul", "w x"), [1, 3, 5], {"w": rand(2, 4, 3)}),
    case("matmul-large", node("MatMul", "x w"), [1, 600, 12], {"w": rand(12, 9)}),
    case("matmul-large-batch", node("MatMul", "x w"), [1, 3, 250, 10], {"w": rand(10, 8)}),
    case("matmul-left-large", node("MatMul", "w x"), [1, 12, 600], {"w": rand(9, 12)}),
    case("matmul-left-large-batch", node("MatMul", "w x"), [1, 3, 10, 250], {"w": rand(8, 10)}),
    case("matmul-then-add", [node("MatMul", "x w", "h"), node("Add", "b h")], [1, 3], {"w": W43.T, "b": B4}),
]

WINDOWS = [
    case("conv", node("Conv", "x w b"), IMAGE, {"w": rand(4, 3, 3, 2), "b": B4}),
    case("conv-no-bias", node("Conv", "x w"), IMAGE, {"w": rand(4, 3, 3, 3)}),
    case("conv-asymmetric", node("Conv", "x w b", pads=[1, 0, 2, 3], strides=[2, 1]), IMAGE, {"w": rand(4, 3, 3, 2), "b": B4}),
    case("conv-dilated", node("Conv", "x w b", pads=[2, 2, 2, 2], dilations=[2, 3]), IMAGE, {"w": rand(4, 3, 3, 2), "b": B4}),
    case("conv-groups", node("Conv", "x w b", group=3), IMAGE, {"w": rand(6, 1, 3, 3), "b": rand(6)}),
    case("conv-same-upper", node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2]), IMAGE, {"w": rand(4, 3, 4, 3)}),
    case("conv-same-lower", node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 2]), IMAGE, {"w": rand(4, 3, 4, 3)}),
    case("conv-valid", node("Conv", "x w", auto_pad="VALID", kernel_shape=[2, 3]), IMAGE, {"w": rand(4, 3, 2, 3)}),
    case("conv-1d", node("Conv", "x w b", pads=[2, 1], strides=[2]), [1, 3, 9], {"w": rand(4, 3, 3), "b": B4}),
    case("conv-1d-same", node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2]), [1, 3, 9], {"w": rand(4, 3, 4)}),
    case("conv-1d-groups", node("Conv", "x w", group=3, dilations=[2]), [1, 3, 9], {"w": rand(3, 1, 3)}),
    case("maxpool", node("MaxPool", kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 2]), IMAGE, opset=7),
    case("maxpool-ceil", node("MaxPool", kernel_shape=[2, 2], strides=[3, 2], ceil_mode=1), IMAGE),
    case("maxpool-ceil-pad", node("MaxPool", kernel_shape=[2, 3], strides=[3, 2], pads=[0, 1, 1, 1], ceil_mode=1), IMAGE, opset=10),
    case("maxpool-dilated", node("MaxPool", kernel_shape=[2, 2], dilations=[2, 3], pads=[1, 1, 1, 1]), IMAGE),
    case("maxpool-same", node("MaxPool", kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"), IMAGE),
    case("maxpool-same-lower", node("MaxPool", kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER", ceil_mode=1), IMAGE),
    case("maxpool-1d", node("MaxPool", kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1), [1, 3, 8]),
    case("avgpool", node("AveragePool", kernel_shape=[2, 3], strides=[2, 1]), IMAGE, opset=7),
    case("avgpool-power", node("AveragePool", kernel_shape=[2, 2]), IMAGE),
    case("avgpool-pad", node("AveragePool", kernel_shape=[3, 2], pads=[1, 1, 2, 0]), IMAGE),
    case("avgpool-include", node("AveragePool", kernel_shape=[3, 2], pads=[1, 1, 2, 0], count_include_pad=1), IMAGE),
    case("avgpool-ceil", node("AveragePool", kernel_shape=[2, 2], strides=[3, 2], ceil_mode=1), IMAGE, opset=10),
    case(
        "avgpool-ceil-include",
        node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1),
        [1, 2, 6, 6],
    ),
    case("avgpool-dilated", node("AveragePool", kernel_shape=[2, 2], dilations=[2, 3], pads=[1, 1, 1, 1]), IMAGE, opset=19),
    case("avgpool-same", node("AveragePool", kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER", count_include_pad=1), IMAGE),
    case("avgpool-1d", node("AveragePool", kernel_shape=[3], strides=[2], pads=[1, 1]), [1, 3, 8]),
    case("global-avg", node("GlobalAveragePool"), IMAGE),
    case("global-avg-1d", node("GlobalAveragePool"), [1, 3, 8]),
    case("global-avg-3d", node("GlobalAveragePool"), [1, 2, 3, 4, 2]),
    case("global-max", node("GlobalMaxPool"), IMAGE),
    case("mean-space", node("ReduceMean", axes=[2, 3]), IMAGE),
    case("mean-space-flat", node("ReduceMean", axes=[-1, -2], keepdims=0), IMAGE, opset=11),
    case("mean-all", node("ReduceMean", keepdims=0), IMAGE),
    case("mean-input", node("ReduceMean", "x axes", keepdims=0), IMAGE, {"axes": ints(2, 3)}, opset=18),
    case("mean-noop", [node("ReduceMean", "x", "h", noop_with_empty_axes=1), node("Relu", "h")], IMAGE, opset=18),
    case("mean-channels", node("ReduceMean", axes=[1], keepdims=1), IMAGE),
    case("mean-middle", node("ReduceMean", axes=[1, 3], keepdims=0), IMAGE),
    case("mean-features", node("ReduceMean", axes=[1]), [1, 7]),
    case("sum-space", node("ReduceSum", "x axes"), IMAGE, {"axes": ints(2, 3)}),
]

C3 = rand(3, 1, 1)
ELEMENTWISE = [
    case("relu", node("Relu"), IMAGE),
    case("leaky", node("LeakyRelu"), IMAGE),
    case("leaky-alpha", node("LeakyRelu", alpha=-1.3), [1, 5]),
    case("leaky-big", node("LeakyRelu", alpha=2.5), [1, 5]),
    case(
        "batchnorm",
        node("BatchNormalization", "x s b m v", epsilon=1e-3),
        IMAGE,
        {"s": rand(3), "b": rand(3), "m": rand(3), "v": rand(3) ** 2},
    ),
    case(
        "batchnorm-7",
        node("BatchNormalization", "x s b m v"),
        [1, 4],
        {"s": rand(4), "b": rand(4), "m": rand(4), "v": rand(4) ** 2},
        opset=7,
    ),
    case(
        "batchnorm-15",
        node("BatchNormalization", "x s b m v"),
        [1, 4, 5],
        {"s": rand(4), "b": rand(4), "m": rand(4), "v": rand(4) ** 2},
        opset=15,
    ),
    *(
        case(f"{op}-{k}", node(op, "x c"), IMAGE, {"c": c})
        for op in ("Add", "Sub", "Mul")
        for k, c in (("chan", C3), ("scalar", F32(2.5)), ("row", rand(5)), ("full", rand(*IMAGE)))
    ),
    case("const-minus-x", node("Sub", "c x"), IMAGE, {"c": C3}),
    case("const-times-x", node("Mul", "c x"), IMAGE, {"c": C3}),
    case("add-grows", node("Add", "x c"), [1, 5], {"c": rand(3, 5)}),
    case("mul-grows-rank", node("Mul", "x c"), [5], {"c": rand(2, 1, 1)}),
    case("div", node("Div", "x c"), IMAGE, {"c": C3}),
    case("div-two", node("Div", "x c"), IMAGE, {"c": F32(4)}),
    case("neg", node("Neg"), IMAGE),
    case("add-acts", [node("Relu", "x", "h"), node("Add", "x h")], IMAGE),
    case("add-self", node("Add", "x x"), IMAGE),
    case("sub-acts", [node("Relu", "x", "h"), node("Sub", "h x")], IMAGE),
    case("add-acts-broadcast", [node("GlobalAveragePool", "x", "h"), node("Add", "h x")], IMAGE),
    case("sub-acts-broadcast", [node("ReduceMean", "x", "h", axes=[1], keepdims=1), node("Sub", "x h")], [1, 7]),
    case(
        "add-acts-both-broadcast",
        [node("ReduceMean", "x", "h", axes=[2]), node("ReduceMean", "x", "k", axes=[3]), node("Add", "h k")],
        IMAGE,
    ),
    case(
        "add-acts-other-view",
        [node("Flatten", "x", "f"), node("Relu", "f", "h"), node("Reshape", "h s", "r"), node("Add", "x r")],
        IMAGE,
        {"s": ints(*IMAGE)},
    ),
    case("dropout", [node("Dropout", "x", "h"), node("Relu", "h")], [1, 5], opset=7),
    case("dropout-13", [node("Dropout", "x r t", "h -"), node("Relu", "h")], [1, 5], {"r": F32(0.5), "t": np.array(False)}),
    case("cast", [node("Cast", "x", "h", to=TensorProto.DOUBLE), node("Cast", "h", "k", to=TensorProto.FLOAT), node("Relu", "k")], [1, 5]),
]

LAYOUT = [
    case("flatten", [node("Flatten", "x", "h"), node("MatMul", "h w")], IMAGE, {"w": rand(90, 2)}),
    case("flatten-0", [node("Flatten", "x", "h", axis=0), node("MatMul", "h w")], IMAGE, {"w": rand(90, 2)}),
    case("flatten-neg", [node("Flatten", "x", "h", axis=-2), node("MatMul", "h w")], [1, 2, 3], {"w": rand(6, 2)}),
    case("reshape", [node("Reshape", "x s", "h"), node("Transpose", "h", perm=[0, 2, 1])], IMAGE, {"s": ints(0, -1, 5)}),
    case("reshape-allowzero", [node("Reshape", "x s", "h", allowzero=1), node("Relu", "h")], [1, 6], {"s": ints(2, 3)}, opset=14),
    case("reshape-image", [node("Reshape", "x s", "h"), node("Conv", "h w")], [1, 24], {"s": ints(1, 2, 3, 4), "w": rand(2, 2, 2, 2)}),
    case("transpose-nhwc", [node("Transpose", "x", "h", perm=[0, 3, 1, 2]), node("Conv", "h w")], [1, 6, 5, 3], {"w": rand(2, 3, 2, 2)}),
    case("transpose-default", node("Transpose"), IMAGE),
    case("transpose-batch", [node("Transpose", "x", "h", perm=[2, 0, 1, 3]), node("Relu", "h")], IMAGE),
    case("transpose-free", [node("Transpose", "x", "h", perm=[0, 2, 3, 1]), node("Relu", "h")], [1, 1, 6, 5]),
    case("squeeze", [node("Squeeze", "x", "h", axes=[0, 2]), node("Relu", "h")], [1, 3, 1, 5], opset=11),
    case("squeeze-13", [node("Squeeze", "x a", "h"), node("Relu", "h")], [1, 3, 1, 5], {"a": ints(-2)}),
    case("squeeze-all", [node("Squeeze", "x", "h"), node("Relu", "h")], [1, 3, 1, 5]),
    case("unsqueeze", [node("Unsqueeze", "x", "h", axes=[1, -1]), node("Relu", "h")], [1, 3], opset=11),
    case("unsqueeze-13", [node("Unsqueeze", "x a", "h"), node("Conv", "h w")], [1, 3, 9], {"a": ints(2), "w": rand(2, 3, 1, 2)}),
    case("gather", node("Gather", "x i", axis=1), [1, 5], {"i": ints(3, -5, 3)}),
    case("gather-scalar", node("Gather", "x i", axis=2), IMAGE, {"i": np.array(-2)}),
    case("gather-2d", node("Gather", "x i", axis=1), IMAGE, {"i": np.array([[0, 2], [1, 1]])}),
    case("gather-run", node("Gather", "x i", axis=3), IMAGE, {"i": np.array([4, 2, 0], np.int32)}),
    case("gather-batch", [node("Gather", "x i", "h", axis=0), node("Relu", "h")], IMAGE, {"i": ints(0, 0)}),
    case("slice-attr", node("Slice", starts=[1, -3], ends=[2, 2**31 - 1], axes=[2, 3]), IMAGE, opset=9),
    case("slice-attr-no-axes", node("Slice", starts=[0, 1], ends=[1, 3]), IMAGE, opset=7),
    case("slice", node("Slice", "x s e a t"), IMAGE, {"s": ints(5, 0), "e": ints(-(2**63), 9), "a": ints(2, -1), "t": ints(-2, 2)}),
    case("slice-no-steps", node("Slice", "x s e"), IMAGE, {"s": ints(0, -2), "e": ints(1, 99)}),
    case("split", [node("Split", "x", "a b c", axis=1), node("Sub", "c a")], IMAGE, opset=11),
    case("split-attr", [node("Split", "x", "a b", axis=2, split=[2, 4]), node("Relu", "b")], IMAGE, opset=11),
    case("split-input", [node("Split", "x p", "a b", axis=2), node("Relu", "a")], IMAGE, {"p": ints(1, 5)}),
    case("split-num", [node("Split", "x", "a b c d", axis=3, num_outputs=4), node("Relu", "c")], [1, 2, 3, 7], opset=18),
    case("pad", node("Pad", pads=[0, 0, 1, 2, 0, 1, 0, 3]), IMAGE, opset=9),
    case("pad-13", node("Pad", "x p"), IMAGE, {"p": ints(0, 0, 1, 2, 0, 1, 0, 3)}),
    case("pad-axes", node("Pad", "x p - a"), IMAGE, {"p": ints(1, 2), "a": ints(-1)}, opset=18),
    case("pad-batch", node("Pad", "x p z"), [1, 3], {"p": ints(1, 0, 1, 2), "z": F32(0)}),
    case("concat", [node("Relu", "x", "h"), node("Concat", "x h x", axis=1)], IMAGE),
    case("concat-neg-axis", [node("Relu", "x", "h"), node("Concat", "x h", axis=-1)], IMAGE),
    case("concat-batch", [node("Relu", "x", "h"), node("Concat", "x h", axis=0)], IMAGE),
    case("concat-views", [node("Flatten", "x", "f"), node("Relu", "f", "h"), node("Concat", "f h", axis=1)], IMAGE),
    case("concat-consts", [node("Relu", "x", "h"), node("Concat", "a x h b", axis=2)], [1, 3, 2], {"a": rand(1, 3, 1), "b": rand(1, 3, 2)}),
    case("concat-const-batch", node("Concat", "x a", axis=0), [1, 3], {"a": rand(2, 3)}),
    case("expand", node("Expand", "x s"), [1, 3, 1], {"s": ints(2, 1, 4)}),
    case("expand-free", [node("Expand", "x s", "h"), node("Relu", "h")], [1, 3], {"s": ints(1, 1, 1)}),
    case("tile", node("Tile", "x r"), [1, 3, 2], {"r": ints(1, 2, 3)}),
    case("identity", [node("Identity", "x", "h"), node("Relu", "h")], IMAGE),
]


@pytest.mark.parametrize("nodes,shape,weights,options", MATRICES + WINDOWS + ELEMENTWISE + LAYOUT)
def test_operator(nodes: Any, shape: list[Any], weights: Any, options: Any) -> None:
    holds(model(nodes, shape, weights, **options))


def test_every_operator_of_the_table_has_a_test() -> None:
    used = {"Size", "Range", "Where", "NonZero", "Constant", "ConstantOfShape", "Shape"}
    for p in MATRICES + WINDOWS + ELEMENTWISE + LAYOUT:
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


# ---- constants ------------------------------------------------------------------------------------------------

A, B = rand(2, 3), np.abs(rand(2, 3)) + F32(0.5)
INTS = {"a": ints(7, -7, 9, 2), "b": ints(2, 2, -4, 2)}
FOLDED = [
    *(pytest.param(op, {"a": A, "b": B}, {}, id=op) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")),
    *(pytest.param(op, {"b": B}, {}, id=op) for op in ("Neg", "Abs", "Sqrt", "Reciprocal")),
    *(pytest.param(op, INTS, {}, id=f"int-{op}") for op in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")),
    *(pytest.param(op, INTS, {}, id=op) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *(pytest.param(op, {"a": np.array([True, False]), "b": np.array([True, True])}, {}, id=op) for op in ("And", "Or")),
    pytest.param("Not", {"a": np.array([True, False])}, {}, id="Not"),
    *(pytest.param(op, {"a": ints(3, 4, 5)}, {"keepdims": 0}, id=op) for op in ("ReduceProd", "ReduceMax", "ReduceMin")),
    pytest.param("ReduceSum", {"a": ints(3, 4, 5)}, {}, id="ReduceSum"),
    pytest.param("Concat", {"a": A, "b": B}, {"axis": 1}, id="Concat"),
    pytest.param("Transpose", {"a": A}, {}, id="Transpose"),
    pytest.param("Gather", {"a": A, "b": ints(1, -2)}, {"axis": 1}, id="Gather"),
    pytest.param("Slice", {"a": A, "s": ints(2), "e": ints(-9), "i": ints(1), "t": ints(-1)}, {}, id="Slice"),
    pytest.param("Pad", {"a": A, "p": ints(1, 0, 0, 2)}, {}, id="Pad"),
    pytest.param("Tile", {"a": A, "r": ints(2, 2)}, {}, id="Tile"),
    pytest.param("Expand", {"a": A[:, :1], "s": ints(2, 2, 3)}, {}, id="Expand"),
    pytest.param("NonZero", {"a": np.array([[1, 0], [1, 1]])}, {}, id="NonZero"),
    pytest.param("Size", {"a": A}, {}, id="Size"),
    pytest.param("Range", {"a": np.array(2), "b": np.array(11), "s": np.array(3)}, {}, id="Range"),
    pytest.param("Where", {"t": np.array([[True, False, True]]), "a": A, "b": B}, {}, id="Where"),
    pytest.param("Flatten", {"a": A}, {}, id="Flatten"),
    pytest.param("Cast", {"a": ints(3, 4)}, {"to": TensorProto.FLOAT}, id="Cast"),
    pytest.param("Identity", {"a": A}, {}, id="Identity"),
]  # fmt: skip


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
    from polytriton.frontend.onnx import cross_check

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
    assert cross_check(half) < 2e-2
    widened = holds(
        model([node("Cast", "w", "v", to=TensorProto.FLOAT), node("MatMul", "x v")], [1, 3], {"w": rand(3, 2, dtype=np.float16)})
    )
    assert "slack" not in widened.net.nodes[-1].attrs
    narrowed = model([node("Cast", "x", "h", to=TensorProto.FLOAT), node("Relu", "h")], [1, 3], dtype=np.float64)
    narrowed.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert load_onnx(narrowed).net.nodes[1].attrs["ops"] == 1


# ---- generated windows ----------------------------------------------------------------------------------------

SMALL = st.integers(1, 3)


@settings(max_examples=200, deadline=None, derandomize=True)
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
        reasons = ("larger than the padded axis", "wholly in the padding", "different runtimes", "onnxruntime refuses")
        assert any(r in e.message for r in reasons)  # noqa: PT017


def test_names_from_anywhere() -> None:
    """Tensor names may be paths or any script; IR names are plain and distinct."""
    m = model([node("Relu", "x", "a/b"), node("Relu", "a/b", "a.b"), node("Relu", "a.b", "é²"), node("Relu", "é²", "y")], [1, 3])
    names = [n.name for n in holds(m, name="new net").net]
    assert len(set(names)) == 5
    assert all(n.isascii() for n in names)
    assert holds(m, name="new net").net.name == "new_net"
    assert isinstance(m, onnx.ModelProto)
