"""Every supported ONNX operator, in every form it may take, as small models; and every operator that is folded, with its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.onnx_models import ints, node, rand

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
