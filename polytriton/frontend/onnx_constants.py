"""ONNX operators that compute shapes and other constants, as exporters write them.

Arithmetic on floats is done in float64 and its rounding recorded in the Const; what would lose track of the rounding is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx_layout import axes_of
from polytriton.frontend.onnx_values import FLOATS, Const, Result, Site, cells, widen

F16 = FLOATS[0]
CASTS: dict[int, np.dtype] = {
    int(TensorProto.FLOAT16): F16,
    int(TensorProto.FLOAT): np.dtype(np.float32),
    int(TensorProto.DOUBLE): np.dtype(np.float64),
    int(TensorProto.BOOL): np.dtype(bool),
    **{
        int(TensorProto.DataType.Value(n.upper())): np.dtype(n)
        for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}
DAMAGED = "the file is damaged: export the model again"


def type_name(element: int) -> str:
    return str(TensorProto.DataType.Name(element)) if element in TensorProto.DataType.values() else str(element)


def constant(s: Site) -> Result:
    s.need(len(s.attrs) == 1, "a constant has one value")
    ((key, value),) = s.attrs.items()
    if key == "value":
        return widen(tensor(value, s.label))
    if key == "sparse_value":
        return widen(sparse(s, value))
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if key not in types:
        raise s.fail(f"attribute {key!r}; supported: value, sparse_value, value_float(s), value_int(s)")
    return widen(finite(np.asarray(value, dtype=types[key]), s.label))


def tensor(proto: onnx.TensorProto, label: str) -> np.ndarray:
    """The array of a TensorProto whose declared size is what it holds."""
    name = proto.name or label
    if proto.data_type not in CASTS:
        remedy = "supported element types are float16, float32, float64, bool and integers"
        raise UnsupportedModel(f"tensor {name!r} has element type {type_name(proto.data_type)}", remedy)
    if proto.HasField("raw_data"):
        held = len(proto.raw_data) // CASTS[proto.data_type].itemsize
    else:
        held = max(len(f) for f in (proto.float_data, proto.double_data, proto.int32_data, proto.int64_data, proto.uint64_data))
    if min(proto.dims, default=0) < 0 or held != cells(proto.dims):
        raise UnsupportedModel(f"tensor {name!r} declares shape {list(proto.dims)} but holds {held} values", DAMAGED)
    return finite(np.asarray(onnx.numpy_helper.to_array(proto)), name)


def finite(array: np.ndarray, label: str) -> np.ndarray:
    if array.dtype in FLOATS and not np.isfinite(array).all():
        raise UnsupportedModel(f"tensor {label!r} holds NaN or infinity", "no bound can be certified; repair or retrain the network")
    return array


def sparse(s: Site, proto: onnx.SparseTensorProto) -> np.ndarray:
    values, index, dims = tensor(proto.values, s.label), tensor(proto.indices, s.label), tuple(proto.dims)
    s.need(bool(dims) and min(dims) >= 0 and values.ndim == 1, "a malformed sparse tensor")
    s.check_const(dims, values.itemsize)
    if index.ndim == 2:
        s.need(
            index.shape == (len(values), len(dims)) and bool((index >= 0).all() and (index < np.array(dims)).all()),
            "a malformed sparse tensor",
        )
        index = np.ravel_multi_index(tuple(index.T), dims)
    s.need(
        index.shape == values.shape and (index.size == 0 or (index.min() >= 0 and index.max() < cells(dims))), "a malformed sparse tensor"
    )
    dense = np.zeros(cells(dims), values.dtype)
    dense[index] = values
    return dense.reshape(dims)


def shape_of(s: Site) -> Result:
    v = s.value(0)
    return widen(np.array(v.shape[slice(s.get("start", 0), s.get("end", None))], dtype=np.int64))


def size_of(s: Site) -> Result:
    return widen(np.array(cells(s.value(0).shape), dtype=np.int64))


def constant_of_shape(s: Site) -> Result:
    dims = s.ints(0, "shape")
    fill = tensor(s.attrs["value"], s.label) if "value" in s.attrs else np.zeros(1, np.float32)
    s.need(min(dims, default=0) >= 0 and fill.size == 1, f"shape {dims} is not a shape")
    s.check_const(dims)
    return widen(np.full(dims, fill.reshape(-1)[0]))


def range_(s: Site) -> Result:
    start, stop, step = (s.const(i, "limits") for i in range(3))
    s.need(not start.floating, "only an integer range is supported")
    first, last, by = (int(c.value.reshape(-1)[0]) for c in (start, stop, step))
    s.need(by != 0, "the step is zero")
    s.check_const((len(range(first, last, by)),))
    return widen(np.arange(first, last, by, dtype=start.dtype))


def cast_const(s: Site, v: Const, dtype: np.dtype) -> Const:
    s.check_const(v.shape)
    if dtype in FLOATS:
        small = v.floating or bool(((v.value <= 2**53) & (v.value >= -(2**53))).all())
        s.need(small, "an integer too large for the type")
        wide = v.value.astype(np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(dtype)
        if not v.floating:
            s.need(bool((narrow == wide).all()), "an integer too large for the type")
        if v.exact and bool((narrow == wide).all()):
            return widen(narrow)
        s.need(dtype != F16 or v.dtype == F16, "a cast to float16 that rounds")
        # the real-valued reading keeps the number; a deployed network rounds it once
        return check(s, replace(v, value=wide, dtype=dtype, ops=v.ops + int(dtype != v.dtype)))
    s.need(v.exact and (not v.floating or bool((np.abs(v.value) < 2.0**31).all())), "a rounded or large number becomes an integer")
    return widen(v.value.astype(dtype))


def check(s: Site, v: Const) -> Const:
    """A computed float constant that left the normal range of its type has lost the relative error claimed for it."""
    limit, size = np.finfo(v.dtype), np.abs(v.value)
    s.need(bool((size <= float(limit.max)).all()), f"it computes a constant that overflows {v.dtype}")
    s.need(bool(((size == 0) | (size >= float(limit.tiny))).all()), f"it computes a constant that underflows {v.dtype}")
    return v


def need_normal(s: Site, v: Const) -> None:
    """A subnormal operand may be flushed to zero, which is no relative error: what is computed of it could be off by all of it."""
    size = np.abs(v.value)
    tiny = float(np.finfo(np.float64 if v.dtype == np.float64 else np.float32).tiny)
    s.need(bool(((size == 0) | (size >= tiny)).all()), f"it computes with a constant below the normal range of {v.dtype}")


def _truncate(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.abs(a) // np.abs(b)) * (np.sign(a) * np.sign(b)).astype(a.dtype)


INTEGERS: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _truncate, "Neg": np.negative, "Abs": np.abs, "Mod": np.mod,
    "Min": np.minimum, "Max": np.maximum, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
}  # fmt: skip
REALS: dict[str, Callable[..., np.ndarray]] = {k: INTEGERS[k] for k in ("Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max")} | {
    "Div": np.divide,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
}
EXACT = ("Neg", "Abs", "Min", "Max", "Where")
COMPARE = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def arithmetic(s: Site) -> Result:
    """Elementwise arithmetic on constants."""
    known = [s.const(i, "operands") for i in range(len(s.inputs))]
    s.need(len({k.dtype for k in known}) == 1, "operands differ in type")
    s.need(len(known) <= 2, "more than two operands")
    shape, dtype = s.broadcast(*(k.shape for k in known)), known[0].dtype
    s.check_const(shape)
    values = [k.value for k in known]
    s.need(s.op not in ("Div", "Reciprocal", "Mod") or bool((values[-1] != 0).all()), "a division by zero")
    if dtype not in FLOATS or s.op in COMPARE:
        s.need(s.op in INTEGERS and not s.flag("fmod", 0), f"on constants of type {dtype} it is not supported")
        s.need(all(k.exact for k in known), "a rounded constant is compared")
        with np.errstate(all="ignore"):  # integers wrap, as they do in a runtime
            return widen(np.asarray(INTEGERS[s.op](*values)))
    if s.op not in REALS:
        raise s.fail(f"on constants of type {dtype} it is not supported")
    s.need(s.op != "Sqrt" or bool((values[0] >= 0).all()), "the square root of a negative number")
    with np.errstate(all="ignore"):
        out = np.asarray(REALS[s.op](*(v.astype(np.float64) for v in values)))
    s.need(
        s.op not in ("Mul", "Div") or not ((out == 0) & (values[0] != 0) & (values[1] != 0)).any(), "it computes a constant that underflows"
    )
    slack, ops = _count_roundings(s, known, values)
    if s.op in EXACT and all(k.exact for k in known):
        return widen(out.astype(dtype))
    if s.op not in EXACT:
        for k in known:
            need_normal(s, k)
    return check(s, Const(out, dtype, slack, ops))


def _count_roundings(s: Site, known: Sequence[Const], values: Sequence[np.ndarray]) -> tuple[int, int]:
    """How many factors (1+-u)^+-1 lie on the result: products add them up, sums of one sign keep the largest."""
    slacks, opses = [k.slack for k in known], [k.ops for k in known]
    if s.op in EXACT:
        return max(slacks), max(opses)
    if s.op in ("Mul", "Div", "Sqrt", "Reciprocal"):
        return sum(slacks) + 1, sum(opses) + 1
    sign = -1 if s.op == "Sub" else 1
    alike = all(k.exact for k in known) or bool((np.sign(values[0]) * np.sign(values[1]) * sign >= 0).all())
    s.need(alike, "it subtracts constants that are rounded already: how much is left of them is unknown")
    return max(slacks) + 1, max(opses) + 1


def where(s: Site) -> Result:
    test, yes, no = (s.const(i, "operands") for i in range(3))
    s.need(yes.dtype == no.dtype and test.dtype == bool, "operands differ in type")
    s.check_const(s.broadcast(test.shape, yes.shape, no.shape))
    return Const(np.where(test.value, yes.value, no.value), yes.dtype, max(yes.slack, no.slack), max(yes.ops, no.ops))


def nonzero(s: Site) -> Result:
    v = s.const(0, "operand")
    s.need(v.exact, "a rounded constant is compared with zero")
    s.check_const((max(1, len(v.shape)), v.value.size))
    return widen(np.array(np.nonzero(np.atleast_1d(v.value)), dtype=np.int64))


def reduce_const(s: Site) -> Result:
    """ReduceProd, ReduceSum, ReduceMin, ReduceMax of integers, as shape computations use them."""
    v, axes = s.const(0, "operand"), axes_of(s, 1)
    s.need(np.issubdtype(v.dtype, np.integer), "on constants it is supported for integers only")
    if axes is None or not axes:
        if s.flag("noop_with_empty_axes", 0):
            return v
        axes = list(range(len(v.shape)))
    s.need(v.value.size > 0, "an empty constant")
    folds: dict[str, Callable[..., Any]] = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMin": np.min, "ReduceMax": np.max}
    return widen(np.asarray(folds[s.op](v.value, axis=tuple(s.axes(axes, len(v.shape))), keepdims=s.flag("keepdims", 1))).astype(v.dtype))
