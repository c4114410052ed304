"""The one table ONNX operator -> translation, and the operators that compute.

Weights taken over unchanged carry no rounding attribute; each place that computes one says how often it rounds
(`slack`, in float64 here) and what a deployed network may do on top of the layer's own sum (`ops`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from polytriton.frontend import onnx_constants as con
from polytriton.frontend import onnx_curves as cur
from polytriton.frontend import onnx_layout as lay
from polytriton.frontend import onnx_pieces as pie
from polytriton.frontend import onnx_products as pro
from polytriton.frontend import onnx_resize as siz
from polytriton.frontend import onnx_sums as sums
from polytriton.frontend.onnx_matrices import gemm, matmul, times
from polytriton.frontend.onnx_values import FLOATS, ONE, REMEDY, ZERO, Act, Const, Result, Site, Value, rounding
from polytriton.frontend.onnx_windows import avgpool, conv, global_pool, maxpool, reduce_mean


def relu(s: Site) -> Result:
    x, slope = s.act(0), 0.0
    if s.op == "LeakyRelu":
        slope = float(s.get("alpha", np.float32(0.01)))
        s.need(math.isfinite(slope), "alpha is not finite")
    return replace(x, node=s.emit("relu", [x.node], {"slope": slope} if slope else {}))


def add(s: Site) -> Result:
    """Add and Sub. With a constant nothing is rounded before the sum itself."""
    a, b = s.value(0), s.value(1)
    s.need(a.dtype == b.dtype, f"operands differ in type: {a.dtype} and {b.dtype}")
    if isinstance(a, Act) and isinstance(b, Act):
        shape = s.broadcast(a.shape, b.shape)
        x, y = s.expand(a, shape, "wide"), s.expand(b, shape, "wide")
        node = s.emit(s.op.lower(), [x.node, s.view(y, s.node_shape(x))])
        return s.result(node, shape, x.dtype)
    if isinstance(a, Act):
        c = s.weight(1, "second operand")
        return s.scale(a, ONE, c.value if s.op == "Add" else -c.value, rounding(c))
    c = s.weight(0, "first operand")
    return s.scale(s.act(1), ONE if s.op == "Add" else -ONE, c.value, rounding(c))


def mul(s: Site) -> Result:
    a, b = s.value(0), s.value(1)
    if isinstance(a, Act) and isinstance(b, Act):
        return pro.multiply(s, a, b)
    x, c = (s.act(0), s.weight(1, "factor")) if isinstance(s.value(0), Act) else (s.act(1), s.weight(0, "factor"))
    return s.scale(x, c.value, ZERO, rounding(c))


def div(s: Site) -> Result:
    """x / c as x * (1/c): the reciprocal rounds once here unless c is a power of two, and so may a runtime's (ops=1)."""
    if isinstance(s.value(1), Act):
        return pro.divide(s)
    c = s.weight(1, "divisor")
    s.need(bool((c.value != 0).all()), "the divisor is zero")
    con.need_normal(s, c)
    wide = c.value.astype(np.float64)
    with np.errstate(all="ignore"):
        a = 1.0 / wide
    s.need(bool((np.isfinite(a) & (np.abs(a) >= np.finfo(np.float64).tiny)).all()), "the divisor's reciprocal leaves the float64 range")
    exact = bool((np.abs(np.frexp(wide)[0]) == 0.5).all())
    return s.scale(s.act(0), a, ZERO, rounding(c, slack=0 if exact else 1, ops=1))


def neg(s: Site) -> Result:
    return s.scale(s.act(0), -ONE, ZERO, {})


def cast(s: Site) -> Result:
    v, to = s.value(0), s.get("to")
    if to not in con.CASTS:
        raise s.fail(f"a cast to {con.type_name(to)}")
    dtype = con.CASTS[to]
    if isinstance(v, Const):
        return con.cast_const(s, v, dtype)
    s.need(dtype in FLOATS, f"a cast of an activation to {dtype}; only float32 and float64 are supported")
    s.need(dtype != FLOATS[0] or v.dtype == dtype, "a cast of an activation to float16")
    if dtype.itemsize >= v.dtype.itemsize:
        return replace(v, dtype=dtype)
    return replace(s.scale(v, ONE, ZERO, {"ops": 1}), dtype=dtype)  # float64 -> float32: the deployed network rounds here


def batchnorm(s: Site) -> Result:
    """a*x + c with a = gamma / sqrt(var + eps) and c = beta - mean*a.

    Here that is at most five roundings an entry (add, root, quotient; product, difference); deployed, the same in
    the network's type and in either order, (x - mean)*a + beta included: eight covers both. The difference may
    cancel, so its error is held against |beta| + |mean*a|.
    """
    s.need(not s.flag("training_mode", 0) and not any(s.wanted[1:]), "training mode is not supported")
    s.need(s.opset >= 9 or s.get("spatial", 1) == 1, "spatial=0 is not supported")
    s.need(s.opset >= 14 or sum(bool(o) for o in s.outputs) == 1, "several outputs mean training mode, which is not supported")
    x, parts = s.act(0), [s.weight(i, n) for i, n in ((1, "scale"), (2, "bias"), (3, "mean"), (4, "variance"))]
    s.need(len(x.shape) >= 2 and all(p.shape == (x.shape[1],) for p in parts), f"its statistics do not fit {list(x.shape)}")
    gamma, beta, mean, var = (p.value.astype(np.float64).reshape(-1, *(1,) * (len(x.shape) - 2)) for p in parts)
    spread = var + float(s.get("epsilon", np.float32(1e-5)))
    # flushing a subnormal variance must be no more than a rounding of the sum
    s.need(bool((var >= 0).all() and (spread > pro.TINY_SPREAD).all()), "a variance is negative or next to zero")
    a = gamma / np.sqrt(spread)
    s.need(bool(((np.abs(a) >= np.finfo(np.float64).tiny) | (gamma == 0)).all()), "its weights leave the float64 range")
    shift = times(s, mean, a)
    largest = float(np.finfo(np.float32 if x.dtype == FLOATS[0] else x.dtype).max)
    s.need(bool((np.abs(a) <= largest).all() and (np.abs(shift) <= largest).all()), f"its weights overflow {x.dtype}")
    return s.scale(
        x, a, beta - shift, {"slack": 8 + sum(p.slack for p in parts), "ops": 8 + sum(p.ops for p in parts)}, np.abs(beta) + np.abs(shift)
    )


# ---- the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """`known` translates a node whose operands are all constants, `live` any other; `doc` is for the user."""

    name: str
    live: Callable[[Site], Result] | None
    known: Callable[[Site], Result] | None
    doc: str


def _move(name: str, fn: Callable[[Site], Result], doc: str) -> Op:
    return Op(name, fn, fn, doc)


def _fold_op(name: str, fn: Callable[[Site], Result], doc: str = "of constants only") -> Op:
    return Op(name, None, fn, doc)


LIVE = {"Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Reciprocal", "Sqrt", "Sub"}  # arithmetic on activations too
TABLE: dict[str, Op] = {
    op.name: op
    for op in (
        Op("Gemm", gemm, None, "A or B constant; alpha, beta, transA, transB; C constant, activation or missing"),
        Op("MatMul", matmul, None, "any rank; two activations, or one and a constant"),
        Op("Conv", conv, None, "1-D and 2-D; constant weights; strides, pads, auto_pad, dilations, groups; bias or none"),
        Op("ConvTranspose", pie.conv_transpose, None, "1-D and 2-D; constant weights; strides, pads, output_padding, dilations, groups"),
        Op("BatchNormalization", batchnorm, None, "inference mode"),
        Op("Relu", relu, None, ""),
        Op("LeakyRelu", relu, None, "any finite alpha"),
        Op("PRelu", pie.prelu, None, "constant slopes"),
        Op("Clip", pie.clip, None, "constant bounds, or none"),
        Op("HardSigmoid", pie.hard_sigmoid, None, ""),
        *(Op(name, cur.function, con.arithmetic if name in con.REALS else None, cur.LIMITS.get(name, "")) for name in cur.PLAIN),
        Op("ThresholdedRelu", cur.threshold, None, "alpha 0 or above"),
        Op("Gelu", cur.gelu, None, "both forms"),
        Op("Swish", cur.swish, None, "alpha 1"),
        Op("Elu", cur.elu, None, "alpha above 0"),
        Op("Selu", cur.selu, None, "alpha and gamma above 0"),
        Op("Celu", cur.celu, None, "alpha above 0"),
        Op("Softmax", pro.softmax, None, "any axis"),
        Op("LayerNormalization", pro.layer_norm, None, "any axis, constant scale and bias; under --semantics real"),
        Op("Pow", cur.power, None, "one constant exponent: 1, 2, 3, 4, 0.5, 1.5 or -1"),
        Op("Abs", pie.absolute_value, con.arithmetic, ""),
        Op("Max", pie.pick_extreme, con.arithmetic, "activations and constants; broadcasts"),
        Op("Min", pie.pick_extreme, con.arithmetic, "activations and constants; broadcasts"),
        Op("Add", add, con.arithmetic, "two activations, or one and a constant; broadcasts"),
        Op("Sum", sums.sum_of_several, None, "activations and constants; broadcasts"),
        Op("Mean", sums.sum_of_several, None, "activations and constants; broadcasts"),
        Op("Sub", add, con.arithmetic, "two activations, or one and a constant; broadcasts"),
        Op("Mul", mul, con.arithmetic, "two activations, or one and a constant; broadcasts"),
        Op("Div", div, con.arithmetic, "by a constant without zeros, or by an activation above 0; broadcasts"),
        Op("Neg", neg, con.arithmetic, ""),
        Op("MaxPool", maxpool, None, "1-D and 2-D; pads, auto_pad, strides, dilations, ceil_mode; no indices"),
        Op("AveragePool", avgpool, None, "1-D and 2-D; as MaxPool, and count_include_pad"),
        Op("GlobalMaxPool", global_pool, None, ""),
        Op("GlobalAveragePool", global_pool, None, ""),
        Op("ReduceMean", reduce_mean, None, "any axes; keepdims"),
        Op("ReduceSum", reduce_mean, con.reduce_const, "any axes; keepdims"),
        Op("ReduceMax", pie.reduce_extreme, con.reduce_const, "any axes; keepdims"),
        Op("ReduceMin", pie.reduce_extreme, con.reduce_const, "any axes; keepdims"),
        Op("Where", pie.where, con.where, "constant condition"),
        _move("Identity", lay.identity, ""),
        _move("Dropout", lay.dropout, "inference mode; no mask"),
        _move("Cast", cast, "activations to float32 and float64; constants to any plain type, exactly"),
        _move("Flatten", lay.flatten, ""),
        _move("Reshape", lay.reshape, "constant shape; 0, -1, allowzero"),
        _move("Squeeze", lay.squeeze, ""),
        _move("Unsqueeze", lay.unsqueeze, ""),
        _move("Transpose", lay.transpose, ""),
        _move("Gather", lay.gather, "constant index"),
        _move("GatherND", pie.gather_points, "constant index; batch_dims"),
        _move("Slice", lay.slice_, "constant bounds; any axes, negative steps"),
        _move("Split", lay.split, "constant parts"),
        _move("Pad", lay.pad, "mode constant with zeros, no cropping"),
        _move("Concat", lay.concat, "activations, with constants before or after them"),
        _move("Expand", lay.expand, "constant shape"),
        _move("Tile", lay.tile, "constant repeats"),
        _move("DepthToSpace", pie.depth_to_space, "both modes"),
        _move("SpaceToDepth", pie.space_to_depth, ""),
        _move("Resize", siz.resize, "mode nearest by whole factors, or linear; constant scales or sizes"),
        _move("Upsample", siz.resize, "mode nearest by whole factors, or linear; constant scales"),
        _move("Shape", con.shape_of, "of any tensor"),
        _move("Size", con.size_of, "of any tensor"),
        _fold_op("Constant", con.constant, "all but strings"),
        _fold_op("ConstantOfShape", con.constant_of_shape),
        _fold_op("Range", con.range_, "of constant integers"),
        _fold_op("NonZero", con.nonzero),
        *(_fold_op(name, con.arithmetic) for name in sorted({*con.INTEGERS, *con.REALS} - LIVE)),
        _fold_op("ReduceProd", con.reduce_const, "of constant integers only"),
    )
}


ORDERLY = ("LogSoftmax",)  # where one ends a classifier, the label is that of its operand
LOGITS = "export the model without it, up to the logits: it keeps their order; `polytriton inspect --operators` lists what is supported"

CURVED = ("Cosh", "GRU", "LSTM", "RNN", "Sinh", "Tan")
PIECEWISE = (
    "no simplification helps: train the network with another activation in its place, ReLU and GELU among them; "
    "`polytriton inspect --operators` lists what is supported"
)
BETWEEN = (
    "this operator is not supported: QuantizeLinear rounds and saturates, a step function, and DequantizeLinear scales what it leaves"
)
UNQUANTIZED = (
    "verify the float network that was quantised (no bound of it covers the quantised one); "
    "`polytriton inspect --operators` lists what is supported"
)
QUANTIZED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger",
)  # fmt: skip


def operators() -> list[tuple[str, str]]:
    """Every supported ONNX operator and its limits."""
    return [(op.name, op.doc or "all of it") for op in TABLE.values()]


def rounds_to_half(s: Site, value: Value) -> bool:
    """Whether the node stores a float16 number that it computed: what only moves numbers rounds nothing."""
    op = TABLE[s.op]
    computes = op.live is not op.known if isinstance(value, Act) else not value.exact
    return value.dtype == FLOATS[0] and computes


def translate(s: Site) -> list[Value | None]:
    """The values of a node's outputs."""
    op = TABLE.get(s.op)
    if op is None:
        why = "this operator is not supported"
        if s.op in QUANTIZED:
            raise s.fail(BETWEEN, UNQUANTIZED)
        remedies = ((ORDERLY, LOGITS), (CURVED, PIECEWISE))
        raise s.fail(why, next((remedy for names, remedy in remedies if s.op in names), REMEDY))
    constant = all(v is None or isinstance(v, Const) for v in s.inputs)
    handler = op.known if constant else op.live
    if handler is None:
        raise s.fail(
            "it is not supported on constants: fold the model's constants first"
            if constant
            else "it is supported on constants only, and here it depends on the network's input"
        )
    out = handler(s)
    return list(out) if isinstance(out, (list, tuple)) else [out]  # type: ignore[list-item]
