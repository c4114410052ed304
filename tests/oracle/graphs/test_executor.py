"""The executor against onnxruntime for every operator, against rational arithmetic, and alone: it must not know polytriton."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tests.oracle.graphs.draw import RULES, draw
from tests.oracle.graphs.execute import NEUTRAL, Choice, rational
from tests.oracle.graphs.tape import Forms, NotCovered
from tests.oracle.graphs.trace import OPERATORS, program

HERE = Path(__file__).parent
ASKS = ("judge.py", "keep.py", "shards.py", "__main__.py")  # these may; what executes and what draws may not
RNG = np.random.default_rng(7)


def model(nodes: list[Any], shape: tuple[int, ...], constants: dict[str, np.ndarray], opset: int = 17, kind: type = np.float32) -> bytes:
    """x -> y."""
    held = [numpy_helper.from_array(np.ascontiguousarray(v).reshape(np.shape(v)), k) for k, v in constants.items()]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = [helper.make_tensor_value_info("x", number, shape)], [helper.make_tensor_value_info("y", number, None)]
    graph = helper.make_graph(nodes, "g", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9).SerializeToString()


def node(op: str, *inputs: str, out: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), out.split(","), **attrs)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 2, shape).astype(np.float32) * RNG.choice([-1, 1], shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE, FLAT = (1, 4, 5, 6), (1, 6)
LINE = (1, 4, 9)
BN = dict(zip("sbmv", (f(4), f(4), f(4), np.abs(f(4))), strict=True))
half = np.array([[1.5, -0.25, 3.0, 0.1, 2.0, 7.0]], np.float16)
CASES: dict[str, tuple[list[Any], tuple[int, ...], dict[str, np.ndarray], int]] = {
    "gemm": ([node("Gemm", "x", "w", "b", alpha=0.3, beta=1.7, transB=1)], FLAT, {"w": f(3, 6), "b": f(3)}, 13),
    "gemm, constant A": ([node("Gemm", "w", "x", "b", transA=1)], (6, 1), {"w": f(6, 3), "b": f(3, 1)}, 13),
    "gemm, A turned": ([node("Gemm", "x", "w", transA=1)], (6, 2), {"w": f(6, 3)}, 13),
    "matmul": ([node("MatMul", "x", "w")], FLAT, {"w": f(6, 3)}, 17),
    "matmul of a stack": ([node("MatMul", "x", "w")], IMAGE, {"w": f(6, 3)}, 17),
    "matmul, a matrix each": ([node("MatMul", "x", "w")], IMAGE, {"w": f(4, 6, 2)}, 17),
    "matmul from the left": ([node("MatMul", "w", "x")], IMAGE, {"w": f(2, 5)}, 17),
    "matmul with a vector": ([node("MatMul", "x", "w")], FLAT, {"w": f(6)}, 17),
    "conv": ([node("Conv", "x", "w", "b", pads=[1, 0, 2, 1], strides=[2, 1])], IMAGE, {"w": f(3, 4, 3, 2), "b": f(3)}, 13),
    "conv in groups": ([node("Conv", "x", "w", group=2, dilations=[2, 1])], IMAGE, {"w": f(6, 2, 2, 3)}, 13),
    "conv, same upper": ([node("Conv", "x", "w", auto_pad="SAME_UPPER", strides=[2, 2])], IMAGE, {"w": f(2, 4, 3, 3)}, 13),
    "conv, same lower": ([node("Conv", "x", "w", auto_pad="SAME_LOWER")], IMAGE, {"w": f(2, 4, 2, 3)}, 13),
    "conv, valid": ([node("Conv", "x", "w", auto_pad="VALID")], IMAGE, {"w": f(2, 4, 2, 3)}, 13),
    "conv of a line": ([node("Conv", "x", "w", pads=[1, 2], dilations=[2])], LINE, {"w": f(3, 4, 3)}, 13),
    "batch norm": ([node("BatchNormalization", "x", "s", "b", "m", "v", epsilon=1e-3)], IMAGE, BN, 15),
    "relu": ([node("Relu", "x")], IMAGE, {}, 17),
    "leaky relu": ([node("LeakyRelu", "x", alpha=0.3)], IMAGE, {}, 17),
    "leaky relu as it is": ([node("LeakyRelu", "x")], IMAGE, {}, 17),
    **{op: ([node(op, "x", "c")], IMAGE, {"c": f(4, 1, 1)}, 17) for op in ("Add", "Sub", "Mul", "Div")},
    **{f"{op} from the left": ([node(op, "c", "x")], IMAGE, {"c": f(5, 1)}, 17) for op in ("Add", "Sub", "Mul")},
    "neg": ([node("Neg", "x")], FLAT, {}, 17),
    "max pool": ([node("MaxPool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 2])], IMAGE, {}, 12),
    "max pool, ceil": ([node("MaxPool", "x", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)], IMAGE, {}, 12),
    "max pool, dilated": ([node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 3])], IMAGE, {}, 12),
    "max pool, same": ([node("MaxPool", "x", kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2])], IMAGE, {}, 12),
    "max pool of a line": ([node("MaxPool", "x", kernel_shape=[3], strides=[2])], LINE, {}, 12),
    "average pool": ([node("AveragePool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1])], IMAGE, {}, 19),
    "average pool with padding": ([node("AveragePool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1)], IMAGE, {}, 19),
    "average pool, ceil": ([node("AveragePool", "x", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)], IMAGE, {}, 19),
    "average pool of a line": ([node("AveragePool", "x", kernel_shape=[3], strides=[2])], LINE, {}, 19),
    "global max pool": ([node("GlobalMaxPool", "x")], IMAGE, {}, 17),
    "global average pool": ([node("GlobalAveragePool", "x")], IMAGE, {}, 17),
    "mean": ([node("ReduceMean", "x", axes=[-1, 1], keepdims=0)], IMAGE, {}, 13),
    "mean of all": ([node("ReduceMean", "x", keepdims=1)], IMAGE, {}, 13),
    "mean, axes given": ([node("ReduceMean", "x", "a")], IMAGE, {"a": i(2, 3)}, 18),
    "sum": ([node("ReduceSum", "x", "a", keepdims=0)], IMAGE, {"a": i(2)}, 13),
    "sum of nothing": ([node("ReduceSum", "x", noop_with_empty_axes=1)], IMAGE, {}, 13),
    "identity": ([node("Identity", "x")], FLAT, {}, 17),
    "dropout": ([node("Dropout", "x")], FLAT, {}, 17),
    "cast there and back": ([node("Cast", "x", out="d", to=11), node("Cast", "d", to=1)], FLAT, {}, 17),
    "flatten": ([node("Flatten", "x", axis=2)], IMAGE, {}, 17),
    "flatten, negative": ([node("Flatten", "x", axis=-1)], IMAGE, {}, 17),
    "reshape": ([node("Reshape", "x", "s")], IMAGE, {"s": i(0, -1, 6)}, 17),
    "squeeze": ([node("Squeeze", "x", "a")], (1, 4, 1, 5), {"a": i(-2)}, 17),
    "squeeze all": ([node("Squeeze", "x")], (1, 4, 1, 5), {}, 17),
    "squeeze, old": ([node("Squeeze", "x", axes=[2])], (1, 4, 1, 5), {}, 11),
    "unsqueeze": ([node("Unsqueeze", "x", "a")], FLAT, {"a": i(0, -1)}, 17),
    "unsqueeze, old": ([node("Unsqueeze", "x", axes=[1])], FLAT, {}, 11),
    "transpose": ([node("Transpose", "x", perm=[0, 2, 3, 1])], IMAGE, {}, 17),
    "transpose all": ([node("Transpose", "x")], IMAGE, {}, 17),
    "gather": ([node("Gather", "x", "k", axis=1)], IMAGE, {"k": i(3, 0, 0, -1)}, 17),
    "gather one": ([node("Gather", "x", "k", axis=2)], IMAGE, {"k": np.array(2)}, 17),
    "gather a table": ([node("Gather", "x", "k", axis=1)], FLAT, {"k": np.array([[0, 5], [2, 2]])}, 17),
    "slice": ([node("Slice", "x", "a", "b", "c", "d")], IMAGE, {"a": i(1, -1), "b": i(99, -99), "c": i(3, 2), "d": i(2, -2)}, 17),
    "slice, old": ([node("Slice", "x", starts=[1], ends=[-1], axes=[2])], IMAGE, {}, 9),
    "slice without axes": ([node("Slice", "x", "a", "b")], IMAGE, {"a": i(0, 1), "b": i(1, 3)}, 17),
    "split": ([node("Split", "x", "p", out="a,y", axis=1)], IMAGE, {"p": i(1, 3)}, 17),
    "split evenly": ([node("Split", "x", out="y,a", axis=-1)], IMAGE, {}, 13),
    "split unevenly": ([node("Split", "x", out="y,a", axis=2, num_outputs=2)], IMAGE, {}, 18),
    "pad": ([node("Pad", "x", "p")], IMAGE, {"p": i(0, 1, 0, 2, 0, 0, 3, 1)}, 17),
    "pad with a value": ([node("Pad", "x", "p", "v")], FLAT, {"p": i(0, 1, 0, 2), "v": np.float32(0.5)}, 17),
    "pad some axes": ([node("Pad", "x", "p", "", "a")], IMAGE, {"p": i(1, 2), "a": i(-1)}, 18),
    "pad, old": ([node("Pad", "x", pads=[0, 1, 0, 2])], FLAT, {}, 10),
    "concat": ([node("Concat", "c", "x", "d", axis=1)], IMAGE, {"c": f(1, 2, 5, 6), "d": f(1, 1, 5, 6)}, 17),
    "clip": ([node("Clip", "x", "a", "b")], IMAGE, {"a": np.float32(-0.3), "b": np.float32(0.7)}, 17),
    "clip, inverted": ([node("Clip", "x", "a", "b")], FLAT, {"a": np.float32(0.3), "b": np.float32(-0.7)}, 17),
    "clip above": ([node("Clip", "x", "", "b")], FLAT, {"b": np.float32(0.7)}, 17),
    "clip without bounds": ([node("Clip", "x")], FLAT, {}, 17),
    "clip, old": ([node("Clip", "x", min=-0.5)], FLAT, {}, 10),
    "prelu": ([node("PRelu", "x", "s")], IMAGE, {"s": f(4, 1, 1)}, 17),
    "hard sigmoid": ([node("HardSigmoid", "x")], IMAGE, {}, 17),
    "hard sigmoid, steep": ([node("HardSigmoid", "x", alpha=1.3, beta=-0.2)], IMAGE, {}, 17),
    "depth to space": ([node("DepthToSpace", "x", blocksize=2)], (1, 8, 2, 3), {}, 17),
    "depth to space, crd": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], (1, 8, 2, 3), {}, 17),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=2)], (1, 2, 4, 6), {}, 17),
    "gather points": ([node("GatherND", "x", "k")], IMAGE, {"k": np.array([[0, 3, -1], [0, 0, 2]])}, 17),
    "gather points of a batch": ([node("GatherND", "x", "k", batch_dims=1)], (2, 3, 4), {"k": np.array([[2], [0]])}, 17),
    "resize": ([node("Resize", "x", "", "s")], IMAGE, {"s": np.array([1, 1, 2, 3], np.float32)}, 17),
    "resize to sizes": ([node("Resize", "x", "", "", "z", nearest_mode="ceil")], IMAGE, {"z": i(1, 4, 10, 12)}, 17),
    "resize, pytorch": (
        [node("Resize", "x", "", "s", coordinate_transformation_mode="pytorch_half_pixel", nearest_mode="floor")],
        IMAGE, {"s": np.array([1, 1, 3, 2], np.float32)}, 17,
    ),
    "resize, tensorflow": (
        [node("Resize", "x", "r", "s", coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor")],
        IMAGE, {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 3, 2], np.float32)}, 11,
    ),
    "resize, old": ([node("Resize", "x", "s")], IMAGE, {"s": np.array([1, 1, 2, 3], np.float32)}, 10),
    "upsample": ([node("Upsample", "x", "s")], IMAGE, {"s": np.array([1, 1, 2, 3], np.float32)}, 9),
    "upsample, old": ([node("Upsample", "x", scales=[1.0, 1.0, 2.0, 3.0])], IMAGE, {}, 7),
    "transposed conv": (
        [node("ConvTranspose", "x", "w", "b", strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 0])],
        IMAGE, {"w": f(4, 3, 3, 2), "b": f(3)}, 17,
    ),
    "transposed conv, groups": ([node("ConvTranspose", "x", "w", group=2, dilations=[1, 2])], IMAGE, {"w": f(4, 3, 2, 2)}, 17),
    "transposed conv of a line": ([node("ConvTranspose", "x", "w", strides=[2], pads=[1, 1])], LINE, {"w": f(4, 2, 3)}, 17),
    **{f"{op} of a number": ([node(op, "x")], IMAGE, {}, 17) for op in ("Abs",)},
    **{f"{op} of numbers": ([node("Neg", "x", out="h"), node(op, "x", "c", "h")], IMAGE, {"c": f(6)}, 17) for op in ("Max", "Min")},
    **{f"{op} over axes": ([node(op, "x", axes=[1, -1], keepdims=0)], IMAGE, {}, 13) for op in ("ReduceMax", "ReduceMin")},
    "where of numbers": ([node("Neg", "x", out="h"), node("Where", "m", "x", "h")], IMAGE, {"m": np.arange(6) % 2 == 0}, 17),
    "expand": ([node("Expand", "x", "s")], (1, 1, 6), {"s": i(2, 3, 1)}, 17),
    "tile": ([node("Tile", "x", "s")], FLAT, {"s": i(2, 3)}, 17),
    "constant": ([node("Constant", out="c", value_floats=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), node("Add", "x", "c")], FLAT, {}, 17),
    "constant of shape": ([node("ConstantOfShape", "s", out="c"), node("Add", "x", "c")], FLAT, {"s": i(1, 6)}, 17),
    "shape, size": (
        [node("Shape", "x", out="s"), node("Size", "x", out="n"), node("Add", "s", "n", out="t"), node("Cast", "t", out="c", to=1),
         node("Mul", "x", "c")],
        (1, 2), {}, 17,
    ),
    "range": ([node("Range", "a", "b", "c", out="r"), node("Gather", "x", "r", axis=1)], FLAT,
              {"a": np.int64(5), "b": np.int64(0), "c": np.int64(-2)}, 17),
    "where": ([node("Where", "m", "a", "b", out="c"), node("Mul", "x", "c")], FLAT, {"m": np.arange(6) % 2 == 0, "a": f(6), "b": f(1)}, 17),
    "nonzero": (
        [node("NonZero", "m", out="n"), node("Squeeze", "n", "o", out="k"), node("Gather", "x", "k", axis=1)],
        FLAT, {"m": i(0, 1, 1, 0, 1, 0), "o": i(0)}, 17,
    ),
    **{
        f"{op} of constants": ([node(op, "a", "b", out="m"), node("Where", "m", "a", "b", out="c"), node("Mul", "x", "c")], FLAT,
                               {"a": f(6), "b": f(6)}, 17)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    **{
        f"{op} of constants": ([node(op, "m", "n", out="k"), node("Where", "k", "a", "b", out="c"), node("Mul", "x", "c")], FLAT,
                               {"a": f(6), "b": f(6), "m": np.arange(6) > 2, "n": np.arange(6) % 2 == 0}, 17)
        for op in ("And", "Or")
    },
    "not": ([node("Not", "m", out="k"), node("Where", "k", "a", "b", out="c"), node("Mul", "x", "c")], FLAT,
            {"a": f(6), "b": f(6), "m": np.arange(6) > 2}, 17),
    **{f"{op} of constants": ([node(op, "a", "b", out="c"), node("Mul", "x", "c")], FLAT, {"a": f(6), "b": f(6)}, 17)
       for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    **{f"{op} of a constant": ([node(op, "a", out="c"), node("Mul", "x", "c")], FLAT, {"a": np.abs(f(6))}, 17)
       for op in ("Abs", "Sqrt", "Reciprocal", "Neg")},
    "mod of integers": ([node("Mod", "a", "b", out="c"), node("Gather", "x", "c", axis=1)], FLAT, {"a": i(7, 8, 11), "b": i(5)}, 17),
    "division of integers": ([node("Div", "a", "b", out="c"), node("Gather", "x", "c", axis=1)], FLAT, {"a": i(-7, 8, 11), "b": i(5)}, 17),
    **{f"{op} of integers": ([node(op, "a", out="c", keepdims=1), node("Gather", "x", "c", axis=1)], FLAT, {"a": i(1, 2, 2)}, 13)
       for op in ("ReduceMax", "ReduceMin", "ReduceProd")},
    **{op.lower(): ([node(op, "x")], FLAT, {}, 20) for op in (
        "Sigmoid", "Tanh", "Erf", "Softsign", "Softplus", "Exp", "Sin", "Cos", "Elu", "Selu", "Celu", "HardSwish", "Mish", "Gelu", "Sign",
        "Floor", "Ceil", "Round",
    )},
    **{f"{op} of a square": ([node("Mul", "x", "x", out="s"), node(op, "s")], FLAT, {}, 17) for op in ("Log", "Sqrt", "Reciprocal")},
    **{f"thresholded, alpha {a:g}": ([node("ThresholdedRelu", "x", alpha=a)], FLAT, {}, 17) for a in (0.0, 0.25, 1.0)},
    **{f"{op}, alpha 2": ([node(op, "x", alpha=2.0)], FLAT, {}, 17) for op in ("Elu", "Selu", "Celu")},
    "gelu by tanh": ([node("Gelu", "x", approximate="tanh")], FLAT, {}, 20),
    **{f"power {k:g}": ([node("Mul", "x", "x", out="s"), node("Pow", "s", "k")], FLAT, {"k": np.float32(k)}, 17)
       for k in (2, 3, 4, 0.5, 1.5, -1)},
    "sum of several": ([node("Neg", "x", out="h"), node("Sum", "x", "c", "h", "x")], IMAGE, {"c": f(6)}, 17),
    "mean of several": ([node("Abs", "x", out="h"), node("Mean", "x", "c", "h")], IMAGE, {"c": f(5, 1)}, 17),
    "layer norm": ([node("LayerNormalization", "x", "g", "b")], FLAT, {"g": f(6), "b": f(6)}, 17),
    "layer norm over axes": ([node("LayerNormalization", "x", "g", axis=1, epsilon=0.1)], (2, 2, 2), {"g": f(2, 2)}, 17),
    **{
        f"resize linearly, {how}": (
            [node("Resize", "x", "", "", "z", mode="linear", coordinate_transformation_mode=how)], (1, 1, 3, 5), {"z": i(1, 1, *to)}, 19,
        )
        for how, to in (("half_pixel", (6, 5)), ("half_pixel_symmetric", (6, 10)), ("pytorch_half_pixel", (1, 10)),
                        ("asymmetric", (6, 20)), ("align_corners", (5, 9)))
    },
    **{f"softmax over {k}": ([node("Softmax", "x", axis=k)], IMAGE, {}, 17) for k in (-1, 1, 2)},
    "softmax, old": ([node("Softmax", "x", axis=2)], IMAGE, {}, 11),
    "product of activations": ([node("Neg", "x", out="h"), node("Mul", "x", "h")], IMAGE, {}, 17),
    "quotient of activations": ([node("Exp", "x", out="h"), node("Div", "x", "h")], IMAGE, {}, 17),
    "matrices": ([node("Transpose", "x", out="h", perm=[0, 1, 3, 2]), node("MatMul", "x", "h")], IMAGE, {}, 17),
    "half constants": ([node("Cast", "h", out="c", to=1), node("Mul", "x", "c")], FLAT, {"h": half}, 17),
}  # fmt: skip


def run(made: bytes, x: np.ndarray) -> np.ndarray:
    """In onnxruntime, as the file gives it."""
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 1
    options.log_severity_level = 4
    return np.asarray(ort.InferenceSession(made, options).run(None, {"x": x})[0])


FORMS = {"a": Forms(), "b": Forms(1, 1, 1, 1, 1, 1), "c": Forms(0, 2, 2, 0, 0), "d": Forms(0, 0, 3, 0, 0)}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("forms", [pytest.param(f, id=i, marks=() if i in "ab" else pytest.mark.slow) for i, f in FORMS.items()])
def test_operators_agree_with_onnxruntime(name: str, forms: Forms) -> None:
    nodes, shape, constants, opset = CASES[name]
    made = model(nodes, shape, constants, opset)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted = run(made, x)
    p = program(made, forms)
    assert p.tape.values["y"].shape == wanted.shape
    flat = x.reshape(1, -1).astype(np.float64)
    found = p.run(flat, np.zeros((1, p.tape.cells)), NEUTRAL, np.ones(1, np.uint64))[0, p.output]
    scale = np.abs(wanted).max(initial=1.0)
    assert np.abs(found - wanted.reshape(-1)).max() <= 8e-7 * scale
    near = p.near(flat)[0, p.output]
    assert np.abs(near - wanted.reshape(-1)).max() <= 8e-7 * scale
    exact = np.array([float(int(v.p) / int(v.q)) if hasattr(v, "p") else float(v) for v in (p.exact(flat)[0][c] for c in p.output)])
    assert np.abs(exact - near).max() <= 1e-12 * scale
    if forms == Forms():
        assert np.array_equal(found, found.astype(np.float32)), "every cell is a float32 number"


SMOOTH = {"Swish"}  # no runtime has it yet: x sigmoid(x) by the executor's silu


def test_every_operator_that_polytriton_supports_is_here() -> None:
    from polytriton.frontend.onnx_ops import operators

    names = {row[0] for row in operators()} - SMOOTH
    assert names <= OPERATORS.keys()
    tested = {n.op_type for case in CASES.values() for n in case[0]}
    assert names <= tested


def test_what_is_not_covered_says_so() -> None:
    with pytest.raises(NotCovered):
        program(model([node("LpNormalization", "x")], FLAT, {}))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("rule", RULES)
def test_drawn_graphs_are_valid_repeat_themselves_and_agree_with_onnxruntime(rule: str) -> None:
    for seed in range(8):
        g = draw(rule, seed)
        again = draw(rule, seed)
        assert again.model == g.model and np.array_equal(again.lo, g.lo) and np.array_equal(again.forms, g.forms)
        onnx.checker.check_model(g.proto, full_check=True)
        assert (g.lo <= g.hi).all() and np.array_equal(g.lo, g.lo.astype(g.dtype))
        p = program(g.model)
        held = g.proto.graph.input[0].type.tensor_type.shape
        try:
            wanted = run(g.model, g.lo[:1].astype(g.dtype).reshape([d.dim_value for d in held.dim])).reshape(-1)
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise
            continue
        if g.dtype != "float32" or not np.isfinite(wanted).all():
            continue
        v = p.run(g.lo[:1], np.zeros((1, p.tape.cells)), NEUTRAL, np.ones(1, np.uint64))[0]
        near, size = v[p.output], np.abs(v[np.isfinite(v)]).max()
        loose = 2e-3 if rule == "half_arithmetic" else 1e-4  # onnxruntime computes in float32 there and skips a rounding between
        assert np.abs(near - wanted).max() <= loose * max(1.0, float(size)), (rule, seed)


@pytest.mark.parametrize("seed", range(6))
def test_the_goal_is_served(seed: int) -> None:
    """Executions toward a goal enclose the neutral one, whatever the order."""
    g = draw("chain", 50 + seed)
    p = program(g.model)
    x = g.lo[:1]
    wanted = p.derivatives(p.near(x), p.goals([(p.output[:1], np.ones(1))]))
    state = np.ones(1, np.uint64)
    low, high = (p.run(x, sign * wanted, Choice(), state)[0, p.output[0]] for sign in (-1, 1))
    neutral = p.run(x, wanted, NEUTRAL, state)[0, p.output[0]]
    if np.isfinite([low, neutral, high]).all():
        assert low <= neutral <= high


def test_the_executor_and_the_generators_do_not_import_polytriton() -> None:
    names = []
    for path in HERE.glob("*.py"):
        if path.name in ASKS or path.name.startswith("test_"):
            continue
        names.append(f"tests.oracle.graphs.{path.stem}")
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Import):
                assert not any(a.name.startswith("polytriton") for a in part.names), path.name
            if isinstance(part, ast.ImportFrom):
                assert not (part.module or "").startswith("polytriton"), path.name
    code = f"import sys, {', '.join(names)}; sys.exit(any(m.split('.')[0] in ('polytriton', 'torch') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[2]).returncode == 0


def test_rationals_are_exact() -> None:
    p = program(model([node("Mul", "x", "c", out="t"), node("Sub", "t", "d")], (1, 1), {"c": np.float32([0.1]), "d": np.float32([0.3])}))
    (row,) = p.exact(np.array([[3.0]]))
    assert row[p.output[0]] == rational(3.0) * rational(float(np.float32(0.1))) - rational(float(np.float32(0.3)))
