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
from polytriton.frontend.onnx_values import FLOATS, ONE, REMEDY, ZERO, Act, Const, Result, Shape, Site, Value, cells, rounding
from polytriton.frontend.onnx_windows import avgpool, conv, global_pool, maxpool, reduce_mean
from polytriton.ir.deployed import REACH
from polytriton.ir.net import Attr

MAX_DENSE = 4 << 20  # entries of a block-diagonal matrix


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


def times(s: Site, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b in float64, refused where it leaves the range in which a rounding is a relative error."""
    with np.errstate(all="ignore"):
        out = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    size = np.abs(out)
    s.need(
        bool((np.isfinite(out) & ((size >= np.finfo(np.float64).tiny) | (a == 0) | (b == 0))).all()), "its weights leave the float64 range"
    )
    return out


# ---- matrices ---------------------------------------------------------------------------------------------


def linear(s: Site, x: Act, w: np.ndarray, b: np.ndarray | None, shape: Shape, made: dict[str, int], tag: str = "") -> Act:
    """w [out, in] @ flat(x) + b, in ONNX shape `shape`."""
    s.check_act(shape)
    bias = np.zeros(len(w), np.float32) if b is None else b
    return s.result(s.emit("linear", [x.node], {"w": s.ref(w, "w"), "b": s.ref(bias, "b"), **made}, tag), shape, x.dtype)


def matmul(s: Site) -> Result:
    a, b = s.value(0), s.value(1)
    s.need(a.dtype == b.dtype, f"operands differ in type: {a.dtype} and {b.dtype}")
    if isinstance(a, Act) and isinstance(b, Act):
        return pro.matrix_product(s, a, b)
    return product(s, a, b, rounding(s.weight(1, "operand") if isinstance(a, Act) else s.weight(0, "operand")))


def product(s: Site, a: Value, b: Value, made: dict[str, int], tag: str = "") -> Act:
    """numpy.matmul where exactly one operand is an activation."""
    s.need(min(len(a.shape), len(b.shape)) >= 1, "a scalar operand")
    drop_row, drop_col = len(a.shape) == 1, len(b.shape) == 1
    sa = (1, *a.shape) if drop_row else a.shape
    sb = (*b.shape, 1) if drop_col else b.shape
    rows, inner, cols = sa[-2], sa[-1], sb[-1]
    s.need(inner == sb[-2], f"{list(a.shape)} and {list(b.shape)} do not multiply")
    batch = s.broadcast(sa[:-2], sb[:-2])
    shape = (*batch, *(() if drop_row else (rows,)), *(() if drop_col else (cols,)))
    s.check_act((*shape, 1))
    times, na, nb = cells(batch), cells(sa[:-2]), cells(sb[:-2])
    if isinstance(a, Act):
        assert isinstance(b, Const)
        x, w, alone = a, b.value.reshape(nb, inner, cols).swapaxes(1, 2), times * rows == 1
    else:
        assert isinstance(b, Act)
        x, w, alone = b, a.value.reshape(na, rows, inner), times * cols == 1
    left = x is a
    if alone:
        return _reshape(linear(s, x, w[0], None, (*shape, 1), made, tag), shape)
    outs, ins = times * rows * cols, cells(x.shape)
    if outs * ins <= MAX_DENSE:
        s.spend(w.itemsize * outs * ins)
        which_x = np.broadcast_to(np.arange(na if left else nb).reshape((sa if left else sb)[:-2]), batch).reshape(-1, 1)
        which_w = np.broadcast_to(np.arange(nb if left else na).reshape((sb if left else sa)[:-2]), batch).reshape(-1)
        t, blocks = np.arange(times)[:, None], w[which_w][:, None]
        if left:
            m = np.arange(rows)[None]
            full = np.zeros((times, rows, cols, na, rows, inner), w.dtype)
            full[t, m, :, which_x, m, :] = blocks
        else:
            m = np.arange(cols)[None]
            full = np.zeros((times, rows, cols, nb, inner, cols), w.dtype)
            full[t, :, m, which_x, :, m] = blocks
        return _reshape(linear(s, x, full.reshape(outs, ins), None, (*shape, 1), made, tag), shape)
    s.need(len(w) == 1 and times == (na if left else nb), f"a batch of {len(w)} matrices on {ins} cells is too large to write as one")
    return _reshape(_pointwise(s, x, w[0], (times, rows, cols), left, made), shape)


def _reshape(x: Act, shape: Shape) -> Act:
    return replace(x, shape=shape)


def _pointwise(s: Site, x: Act, w: np.ndarray, dims: tuple[int, int, int], left: bool, made: dict[str, int]) -> Act:
    """One matrix on many rows: a 1x1 convolution over the rows, with the features as channels."""
    times, rows, cols = dims
    inner, outs = w.shape[1], w.shape[0]
    flat: Value = replace(x, shape=(times * rows, inner) if left else (times, inner, cols))
    flat = s.transpose(flat, (1, 0) if left else (1, 0, 2), "channels")
    assert isinstance(flat, Act)
    n = cells(x.shape) // inner
    weights: dict[str, Attr] = {"w": s.ref(w.reshape(outs, inner, 1, 1), "w"), "b": s.ref(np.zeros(outs, np.float32), "b")}
    node = s.emit("conv", [s.view(flat, (inner, 1, n))], {**weights, "k": (1, 1), **made}, "rows")
    y = s.transpose(Act(node, (outs, n) if left else (outs, times, cols), x.dtype), (1, 0) if left else (1, 0, 2))
    assert isinstance(y, Act)
    return y


def gemm(s: Site) -> Result:
    a, b, c = s.value(0), s.value(1), s.maybe(2)
    s.need(len(a.shape) == len(b.shape) == 2, "its operands are not matrices")
    s.need(all(v is None or v.dtype == a.dtype for v in (b, c)), "operands differ in type")
    alpha, beta = float(s.get("alpha", 1.0)), float(s.get("beta", 1.0))
    for name, factor in (("alpha", alpha), ("beta", beta if c is not None else 1.0)):
        apart = name == "beta" and (factor == 0 or isinstance(c, Act))
        fits = math.isfinite(factor) and (apart or 2.0**-REACH < abs(factor) < 2.0**REACH)
        s.need(fits, f"{name} is {factor}: not finite, zero or extreme")
    if isinstance(a, Act) == isinstance(b, Act):
        raise s.fail("exactly one of A and B must be an activation")
    known = s.weight(0, "A") if isinstance(b, Act) else s.weight(1, "B")
    a = s.transpose(a, (1, 0), "a") if s.flag("transA", 0) else a
    b = s.transpose(b, (1, 0), "b") if s.flag("transB", 0) else b
    made = rounding(known)
    if alpha != 1:
        # alpha * w rounds once here; deployed, the sum or the matrix is multiplied and rounded apart (ops=2), and the sum may
        # be larger or smaller than the layer shows by that factor (gain)
        made = rounding(known, slack=1, ops=2) | {"gain": reach(alpha)}
        a, b = (v if isinstance(v, Act) else replace(v, value=times(s, np.asarray(alpha), v.value)) for v in (a, b))
    rows, cols = a.shape[0], b.shape[1]
    s.need(c is None or s.broadcast(c.shape, (rows, cols)) == (rows, cols), f"C does not broadcast to {[rows, cols]}")
    if c is None or beta == 0:
        return product(s, a, b, made)
    if isinstance(c, Act):
        y, z = product(s, a, b, made, "ab"), s.expand(c, (rows, cols), "c_wide")
        if beta != 1:
            z = s.scale(z, np.full(1, beta), ZERO, {}, tag="c")
        return s.result(s.emit("add", [y.node, s.view(z, s.node_shape(y))]), (rows, cols), y.dtype)
    bias = s.weight(2, "C")
    both = rounding(known, bias, slack=int(alpha != 1 or beta != 1), ops=2 * int(alpha != 1 or beta != 1))  # beta * C: as alpha
    if alpha != 1 or beta not in (0, 1):
        both["gain"] = max(reach(alpha), reach(beta))
    value = bias.value if beta == 1 else times(s, np.asarray(beta), bias.value)
    if rows == 1 and isinstance(a, Act) and isinstance(b, Const):
        return linear(s, a, b.value.T, np.broadcast_to(value, (1, cols)).reshape(cols), (1, cols), both)
    if cols == 1 and isinstance(b, Act) and isinstance(a, Const):
        return linear(s, b, a.value, np.broadcast_to(value, (rows, 1)).reshape(rows), (rows, 1), both)
    return s.scale(product(s, a, b, made, "ab"), ONE, value, rounding(bias, slack=int(beta != 1), ops=2 * int(beta != 1)))


def reach(factor: float) -> int:
    """log2 of how far a factor moves a number, either way."""
    return math.ceil(abs(math.log2(abs(factor))))


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
JUMPS = ("ThresholdedRelu",)
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
CONTINUOUS = (
    "it jumps, and where a number may round to either side of a jump no bound follows: use a continuous function in its place; "
    "`polytriton inspect --operators` lists what is supported"
)


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
        remedies = ((ORDERLY, LOGITS), (CURVED, PIECEWISE), (JUMPS, CONTINUOUS))
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
