"""Operators on single numbers and operators that move them, as the ONNX specification has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from onnx import helper

from tests.oracle.graphs.node import NodeView
from tests.oracle.graphs.tape import FORMATS, NotCovered, Tape, Value


def _known(array: Any) -> Value:
    array = np.asarray(array)
    return Value(None, array.dtype, array, True)


# ---- arithmetic --------------------------------------------------------------------------------------------------------

INTEGERS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Mod": np.mod, "Max": np.maximum, "Min": np.minimum, "And": np.logical_and,
    "Or": np.logical_or, "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal,
}  # fmt: skip


def binary(tape: Tape, n: NodeView) -> Value:
    x, y = n.inputs[0], n.inputs[1]
    if n.op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        return _known(INTEGERS[n.op](n.numbers(x), n.numbers(y)))
    if x.cells is None:
        if n.op == "Div":
            a, b = x.known, y.known
            quotient = np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)  # toward zero
            return _known(quotient.astype(x.dtype))
        return _known(np.asarray(INTEGERS[n.op](x.known, y.known)).astype(bool if n.op in ("And", "Or") else x.dtype))
    if n.op in ("Max", "Min"):
        made = x
        for other in n.inputs[1:]:
            a, b = np.broadcast_arrays(made.ids, other.ids)
            made = tape.most(n.op.lower(), np.stack([a.reshape(-1), b.reshape(-1)], 1), a.shape, x)
        return made
    if n.op not in ("Add", "Sub", "Mul", "Div"):
        raise NotCovered(f"{n.op} of numbers")
    if n.op == "Div" and tape.forms.division == 1 and y.constant:
        return tape.pair("mul", x, tape.single_over("div", y))
    return tape.pair(n.op.lower(), x, y)


def several(tape: Tape, n: NodeView) -> Value:
    """Sum and Mean of any number of operands: the specification names no order."""
    parts = np.broadcast_arrays(*(x.ids for x in n.inputs))
    rows = np.stack([p.reshape(-1) for p in parts], 1)
    fixed = all(x.constant for x in n.inputs)
    dtype = n.inputs[0].dtype
    total = tape.dots(rows, np.ones_like(rows), None, parts[0].shape, dtype, fixed, product=False)
    if n.op == "Sum":
        return total
    count = tape.constant(np.array(float(len(parts))), dtype)
    return tape.pair("mul", total, tape.single_over("div", count)) if tape.forms.division else tape.pair("div", total, count)


def unary(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    if x.cells is None:
        return _known({"Neg": np.negative, "Abs": np.abs, "Not": np.logical_not}[n.op](x.known))
    if n.op == "Reciprocal":
        return tape.single_over("div", x)
    if n.op == "LeakyRelu":
        return tape.single("leaky", x, number=n.number("alpha", 0.01))
    return tape.single(n.op.lower(), x)


def cast(tape: Tape, n: NodeView) -> Value:
    x, dtype = n.inputs[0], np.dtype(helper.tensor_dtype_to_np_dtype(n.integer("to", 1)))
    if dtype == x.dtype:
        return x
    if dtype not in FORMATS:
        return _known(n.numbers(x).astype(dtype))
    if x.cells is None:
        wide = tape.constant(np.asarray(x.known, np.float64))
        return wide if dtype == np.float64 else tape.single("cast", wide, dtype)
    if dtype.itemsize > x.dtype.itemsize:
        return Value(x.cells, dtype, None, x.constant)
    return tape.single("cast", x, dtype)


def identity(tape: Tape, n: NodeView) -> Value:
    if n.op == "Dropout":
        training = n.given(2)
        if training is not None and bool(training):
            raise NotCovered("dropout in training")
    found: Value = n.inputs[0]
    return found


# ---- moving cells ------------------------------------------------------------------------------------------------------


def _moved(x: Value, move: Any) -> Value:
    """The same move for cells and for known integers."""
    if x.cells is None:
        return _known(move(x.known))
    return Value(np.asarray(move(x.cells)), x.dtype, None, x.constant)


def flatten(tape: Tape, n: NodeView) -> Value:
    axis = n.integer("axis", 1)
    shape = n.inputs[0].shape
    axis = axis + len(shape) if axis < 0 else axis
    rows = int(np.prod(shape[:axis], dtype=np.int64))
    return _moved(n.inputs[0], lambda v: v.reshape(rows, -1))


def reshape(tape: Tape, n: NodeView) -> Value:
    wanted, shape = n.given(1), n.inputs[0].shape
    assert wanted is not None
    target = [int(v) for v in wanted]
    if not n.integer("allowzero", 0):
        target = [shape[k] if v == 0 else v for k, v in enumerate(target)]
    return _moved(n.inputs[0], lambda v: v.reshape(target))


def squeeze(tape: Tape, n: NodeView) -> Value:
    axes, rank = n.axes(), len(n.inputs[0].shape)
    gone = None if axes is None else tuple(a % rank for a in axes)
    return _moved(n.inputs[0], lambda v: np.squeeze(v, gone))


def unsqueeze(tape: Tape, n: NodeView) -> Value:
    axes = n.axes()
    assert axes is not None
    return _moved(n.inputs[0], lambda v: np.expand_dims(v, tuple(axes)))


def transpose(tape: Tape, n: NodeView) -> Value:
    rank = len(n.inputs[0].shape)
    return _moved(n.inputs[0], lambda v: v.transpose(n.integers("perm", list(range(rank))[::-1])))


def gather(tape: Tape, n: NodeView) -> Value:
    index, axis = n.given(1), n.integer("axis", 0)
    assert index is not None
    return _moved(n.inputs[0], lambda v: np.take(v, index.astype(np.int64), axis))


def slice_(tape: Tape, n: NodeView) -> Value:
    shape = n.inputs[0].shape
    if n.has("starts"):  # before version 10
        starts, ends = n.integers("starts", []), n.integers("ends", [])
        axes, steps = n.integers("axes", list(range(len(starts)))), [1] * len(starts)
    else:
        first, last, given, stride = (n.given(k) for k in (1, 2, 3, 4))
        assert first is not None and last is not None
        starts, ends = [int(v) for v in first], [int(v) for v in last]
        axes = list(range(len(starts))) if given is None else [int(v) for v in given]
        steps = [1] * len(starts) if stride is None else [int(v) for v in stride]
    where: list[Any] = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis]
        start, end = (v + size if v < 0 else v for v in (start, end))
        if step > 0:
            where[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
            where[axis] = slice(start, None if end < 0 else end, step)
    return _moved(n.inputs[0], lambda v: v[tuple(where)])


def split(tape: Tape, n: NodeView) -> list[Value]:
    x, axis, count = n.inputs[0], n.integer("axis", 0), len(n.outputs)
    size = x.shape[axis]
    given = n.given(1)
    if n.has("split"):
        parts = n.integers("split", [])
    elif given is not None:
        parts = [int(v) for v in given]
    else:
        most = -(-size // count)
        parts = [min(most, size - k * most) for k in range(count)]
    edges = np.cumsum([0, *parts])
    return [_moved(x, lambda v, a=a, b=b: np.take(v, np.arange(a, b), axis)) for a, b in pairwise(edges)]


def pad(tape: Tape, n: NodeView) -> Value:
    x = n.inputs[0]
    if n.text("mode", "constant") != "constant":
        raise NotCovered("padding other than with a constant")
    rank = len(x.shape)
    widths = n.integers("pads", []) if n.has("pads") else [int(v) for v in n.given(1)]  # type: ignore[union-attr]
    axes = n.given(3)
    order = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(order):
        before[axis], after[axis] = widths[k], widths[k + len(order)]
    cut = tuple(slice(max(0, -a), s - max(0, -b)) for a, b, s in zip(before, after, x.shape, strict=True))
    grown = [(max(0, a), max(0, b)) for a, b in zip(before, after, strict=True)]
    fill = int(n.inputs[2].ids.reshape(-1)[0]) if len(n.inputs) > 2 and n.inputs[2] is not None else 0
    if n.has("value") and n.number("value", 0.0) != 0:
        fill = int(tape.constant(np.array(n.number("value", 0.0), x.dtype)).ids)
    return _moved(x, lambda v: np.pad(v[cut], grown, constant_values=fill))


def concat(tape: Tape, n: NodeView) -> Value:
    axis, fixed = n.integer("axis", 1), all(v.constant for v in n.inputs)
    if n.inputs[0].cells is None:
        return _known(np.concatenate([v.known for v in n.inputs], axis))
    return Value(np.concatenate([v.ids for v in n.inputs], axis), n.inputs[0].dtype, None, fixed)


def expand(tape: Tape, n: NodeView) -> Value:
    shape = n.given(1)
    assert shape is not None
    wanted = np.broadcast_shapes(n.inputs[0].shape, tuple(int(v) for v in shape))
    return _moved(n.inputs[0], lambda v: np.broadcast_to(v, wanted))


def tile(tape: Tape, n: NodeView) -> Value:
    repeats = n.given(1)
    assert repeats is not None
    return _moved(n.inputs[0], lambda v: np.tile(v, tuple(int(r) for r in repeats)))


# ---- constants ---------------------------------------------------------------------------------------------------------


def constant(tape: Tape, n: NodeView) -> Value:
    if n.has("value"):
        found = n.tensor("value")
    elif n.has("value_float"):
        found = np.array(n.number("value_float", 0.0), np.float32)
    elif n.has("value_int"):
        found = np.array(n.integer("value_int", 0), np.int64)
    elif n.has("value_floats"):
        found = np.array(n.attributes["value_floats"].floats, np.float32)
    elif n.has("value_ints"):
        found = np.array(n.integers("value_ints", []), np.int64)
    else:
        raise NotCovered("a constant of another kind")
    assert found is not None
    return tape.constant(found)


def constant_of_shape(tape: Tape, n: NodeView) -> Value:
    value, shape = n.tensor("value"), n.given(0)
    assert shape is not None
    value = np.zeros(1, np.float32) if value is None else value
    return tape.constant(np.full(tuple(int(v) for v in shape), value.reshape(-1)[0], value.dtype))


def shape_of(tape: Tape, n: NodeView) -> Value:
    shape = n.inputs[0].shape
    if n.op == "Size":
        return _known(np.array(int(np.prod(shape)), np.int64))
    return _known(np.array(shape[n.integer("start", 0) : (n.integer("end", len(shape)))], np.int64))


def choose(tape: Tape, n: NodeView) -> Value:
    where = n.given(0)
    x, y = n.inputs[1], n.inputs[2]
    if x.cells is None:
        return _known(np.where(where, x.known, y.known))
    return Value(np.where(where, x.ids, y.ids), x.dtype, None, x.constant and y.constant)


def nonzero(tape: Tape, n: NodeView) -> Value:
    return _known(np.array(np.nonzero(n.given(0)), np.int64))


def span(tape: Tape, n: NodeView) -> Value:
    first, last, step = (n.given(k) for k in (0, 1, 2))
    assert first is not None and last is not None and step is not None
    return tape.constant(np.arange(first.item(), last.item(), step.item(), dtype=n.inputs[0].dtype))


CELLWISE: dict[str, Any] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "And", "Or", "Equal", "Greater", "GreaterOrEqual", "Less",
                     "LessOrEqual"), binary),
    **dict.fromkeys(("Relu", "LeakyRelu", "Neg", "Abs", "Sqrt", "Reciprocal", "Not"), unary),
    "Cast": cast, "Identity": identity, "Dropout": identity, "Flatten": flatten, "Reshape": reshape, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Transpose": transpose, "Gather": gather, "Slice": slice_, "Split": split, "Pad": pad, "Concat": concat,
    "Expand": expand, "Tile": tile, "Constant": constant, "ConstantOfShape": constant_of_shape, "Shape": shape_of, "Size": shape_of,
    "Sum": several, "Mean": several, "Where": choose, "NonZero": nonzero, "Range": span,
}  # fmt: skip
