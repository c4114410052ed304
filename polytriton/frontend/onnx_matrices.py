"""Layers that multiply by a constant matrix: MatMul and Gemm, as dense layers or as 1x1 convolutions over many rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from polytriton.frontend import onnx_products as pro
from polytriton.frontend.onnx_values import ONE, ZERO, Act, Const, Result, Shape, Site, Value, cells, rounding
from polytriton.ir.deployed import REACH
from polytriton.ir.net import Attr

MAX_DENSE = 4 << 20  # entries of a block-diagonal matrix


def times(s: Site, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b in float64, refused where it leaves the range in which a rounding is a relative error."""
    with np.errstate(all="ignore"):
        out = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    size = np.abs(out)
    s.need(
        bool((np.isfinite(out) & ((size >= np.finfo(np.float64).tiny) | (a == 0) | (b == 0))).all()), "its weights leave the float64 range"
    )
    return out


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
