"""Single-operator models with attributes drawn at random, beyond what exporters write: what may differ between two readings of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.frontend.onnx_models import model, node

F32 = np.float32


class Draw:
    """Random small choices; weights are small integers, so that most results are exact in any order of summation."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        return [self.int(low, high) for _ in range(count)]

    def one(self, *of: Any) -> Any:
        return of[self.int(0, len(of) - 1)]

    def weight(self, *shape: int) -> np.ndarray:
        return self.rng.integers(-4, 5, shape).astype(F32)

    def shape(self, low: int = 1, high: int = 4, size: int = 4) -> list[int]:
        """Often with a batch axis in front, sometimes without."""
        return [*([1] if self.one(0, 1, 1) else []), *self.ints(self.int(low, high - 1), 1, size)]

    def broadcasts(self, shape: list[int], grow: bool) -> list[int]:
        """A shape that broadcasts with this one: axes of 1, axes left out, and where it may grow, axes more."""
        found = [d if self.int(0, 2) else 1 for d in shape][self.int(0, len(shape)) :]
        if grow and self.int(0, 5) == 0:
            found = [self.int(1, 3) if d == 1 else d for d in shape]
        return [self.int(1, 2), *shape] if grow and self.int(0, 9) == 0 else found


def window(d: Draw) -> onnx.ModelProto:
    """Convolutions and pools; pads beyond the kernel, strides beyond it, windows that hang over."""
    op = d.one("Conv", "MaxPool", "AveragePool", "AveragePool")
    rank = d.int(1, 2)
    dims, kernel = d.ints(rank, 1, 8), d.ints(rank, 1, 4)
    attrs: dict[str, Any] = {}
    if d.int(0, 4):
        attrs["strides"] = d.ints(rank, 1, 5)
    how = d.one("pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none")
    if how == "pads":
        attrs["pads"] = [d.int(0, k + d.one(-1, -1, 0, 1)) for k in kernel * 2]
    elif how != "none":
        attrs["auto_pad"] = how
    opset = d.one(7, 8, 10, 11, 13, 18, 19, 19, 21, 22)
    dilated = {"Conv": 7, "MaxPool": 10, "AveragePool": 19}[op]
    if d.int(0, 2) == 0 and opset >= dilated:
        attrs["dilations"] = d.ints(rank, 1, 3)
    if op == "Conv":
        groups, per, outs = d.int(1, 3), d.int(1, 2), d.int(1, 2)
        weights = {"w": d.weight(groups * outs, per, *kernel), "b": d.weight(groups * outs)}
        if groups > 1 or d.int(0, 1):
            attrs["group"] = groups
        return model(node(op, d.one("x w", "x w b"), **attrs), [1, groups * per, *dims], weights, opset=opset)
    attrs["kernel_shape"] = kernel
    dtype = d.one(F32, F32, np.float64) if op == "MaxPool" else F32  # in onnxruntime a kernel of its own
    if opset >= 10 and d.int(0, 1):
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and d.int(0, 1):
        attrs["count_include_pad"] = 1
    return model(node(op, **attrs), [1, d.int(1, 2), *dims], opset=opset, dtype=dtype)


def whole(d: Draw) -> onnx.ModelProto:
    return model(node(d.one("GlobalAveragePool", "GlobalMaxPool")), [1, *d.ints(d.int(2, 4), 1, 4)], opset=d.one(7, 13, 22))


def reduction(d: Draw) -> onnx.ModelProto:
    op, shape, opset = d.one("ReduceMean", "ReduceSum"), d.shape(1, 5), d.one(7, 11, 12, 13, 17, 18, 20)
    by_input = opset >= (13 if op == "ReduceSum" else 18)
    rank = len(shape)
    axes = sorted({int(a) for a in d.rng.choice(rank, d.int(1, rank), replace=False)})
    axes = [a - rank if opset >= 11 and d.int(0, 1) else a for a in axes]
    attrs: dict[str, Any] = {"keepdims": d.int(0, 1)} if d.int(0, 1) else {}
    given = d.one("yes", "yes", "no", "empty")
    if by_input:
        if d.int(0, 1):
            attrs["noop_with_empty_axes"] = d.int(0, 1)
        weights = {"a": np.array(axes if given == "yes" else [], np.int64)}
        return model(node(op, "x" if given == "no" else "x a", **attrs), shape, weights, opset=opset)
    if given == "yes":
        attrs["axes"] = axes
    return model(node(op, **attrs), shape, opset=opset)


def gemm(d: Draw) -> onnx.ModelProto:
    rows, inner, cols, opset = d.int(1, 3), d.int(1, 4), d.int(1, 3), d.one(7, 9, 11, 13)
    ta, tb, left = d.int(0, 1), d.int(0, 1), d.int(0, 1)
    attrs: dict[str, Any] = {k: 1 for k, on in (("transA", ta), ("transB", tb)) if on}
    for key in ("alpha", "beta"):
        if d.int(0, 2) == 0:
            attrs[key] = d.one(0.5, -2.0, 0.0, 1.0)
    a, b = ([inner, rows] if ta else [rows, inner]), ([cols, inner] if tb else [inner, cols])
    c = d.one([], [1], [cols], [1, cols], [rows, 1], [1, 1], [rows, cols], [rows])
    weights = {"w": d.weight(*(b if left else a)), "c": d.weight(*c)}
    third = " c" if opset < 11 or d.int(0, 3) else ""
    return model(node("Gemm", ("x w" if left else "w x") + third, **attrs), a if left else b, weights, opset=opset)


def matmul(d: Draw) -> onnx.ModelProto:
    inner, batch = d.int(1, 4), d.ints(d.int(0, 2), 1, 3)
    a = [inner] if d.int(0, 4) == 0 else [*d.broadcasts(batch, False), d.int(1, 3), inner]
    b = [inner] if d.int(0, 4) == 0 else [*batch, inner, d.int(1, 3)]
    left = d.int(0, 1)
    return model(node("MatMul", "x w" if left else "w x"), a if left else b, {"w": d.weight(*(b if left else a))}, opset=d.one(7, 9, 13))


def batchnorm(d: Draw) -> onnx.ModelProto:
    opset, n = d.one(7, 8, 9, 13, 14, 15, 22), d.int(1, 4)
    attrs: dict[str, Any] = {"epsilon": d.one(1e-3, 0.25, 0.0)} if d.int(0, 2) else {}
    if d.int(0, 2) == 0:
        attrs["momentum"] = 0.5
    if opset < 9 and d.int(0, 1):
        attrs["spatial"] = d.int(0, 1)
    if opset >= 14 and d.int(0, 1):
        attrs["training_mode"] = 0
    weights = {k: d.weight(n) for k in "sbm"} | {"v": d.rng.integers(1, 9, n).astype(F32)}
    outputs = d.one("y", "y", "y", "y mean var") if opset < 14 else "y"
    return model(node("BatchNormalization", "x s b m v", outputs, **attrs), [1, n, *d.ints(d.int(0, 2), 1, 3)], weights, opset=opset)


def elementwise(d: Draw) -> onnx.ModelProto:
    op, shape = d.one("Add", "Sub", "Mul", "Div"), d.shape(1, 4)
    c = d.weight(*d.broadcasts(shape, True))
    c = np.where(c == 0, F32(2), c) if op == "Div" else c
    return model(node(op, "x c" if op == "Div" or d.int(0, 1) else "c x"), shape, {"c": c}, opset=d.one(7, 13, 14))


def two(d: Draw) -> onnx.ModelProto:
    """Two activations of different shapes that broadcast."""
    shape = d.shape(1, 4, 3)
    axes = [i for i in range(len(shape)) if d.int(0, 1)] or [0]
    keep = 1 if d.int(0, 3) else 0
    nodes = [node("ReduceSum", "x", "h", axes=axes, keepdims=keep), node(d.one("Add", "Sub"), d.one("x h", "h x"))]
    return model(nodes, shape, opset=11)


def unary(d: Draw) -> onnx.ModelProto:
    op = d.one("Relu", "LeakyRelu", "Neg", "Identity", "Dropout", "Flatten", "Transpose")
    shape, opset, attrs = d.shape(1, 5), d.one(7, 9, 11, 13, 14, 16, 21), dict[str, Any]()
    if op == "LeakyRelu" and d.int(0, 1):
        attrs["alpha"] = d.one(0.5, -0.25, 0.0, 2.0)
    if op == "Flatten" and d.int(0, 3):
        attrs["axis"] = d.int(-len(shape) if opset >= 11 else 0, len(shape))
    if op == "Transpose" and d.int(0, 3):
        attrs["perm"] = [int(i) for i in d.rng.permutation(len(shape))]
    return model(node(op, **attrs), shape, opset=opset)


def reshape(d: Draw) -> onnx.ModelProto:
    op, shape = d.one("Reshape", "Reshape", "Squeeze", "Unsqueeze"), d.shape(1, 5)
    if op == "Reshape":
        cells = int(np.prod(shape))
        to = d.one([-1], [0, -1], [1, -1], [cells], [0, 0, -1], [-1, *shape[1:]], [*shape, 1], [*shape[::-1]], [0] * len(shape), [-1, 1, 1])
        attrs = {"allowzero": d.int(0, 1)} if d.int(0, 2) == 0 else {}
        return model(node(op, "x s", **attrs), shape, {"s": np.array(to, np.int64)}, opset=d.one(7, 13) if not attrs else d.one(14, 21))
    opset, rank = d.one(7, 11, 13, 21), len(shape)
    if op == "Squeeze":
        ones = [i for i, n in enumerate(shape) if n == 1] or [0]
        axes = sorted({int(i) for i in d.rng.choice(ones, d.int(1, len(ones)))})
    else:
        rank += d.int(1, 2)
        axes = [int(i) for i in d.rng.choice(rank, rank - len(shape), replace=False)]
    axes = [a - rank if opset >= 11 and d.int(0, 1) else a for a in axes]
    bare = op == "Squeeze" and d.int(0, 2) == 0
    if opset >= 13:
        return model(node(op, "x" if bare else "x a"), shape, {"a": np.array(axes, np.int64)}, opset=opset)
    return model(node(op, **({} if bare else {"axes": axes})), shape, opset=opset)


def gather(d: Draw) -> onnx.ModelProto:
    shape, opset = d.shape(1, 4), d.one(7, 11, 13)
    axis = d.int(0, len(shape) - 1)
    n, low = shape[axis], 0 if opset < 11 else -shape[axis]
    index = np.array(d.rng.integers(low, n, d.one((), (1,), (3,), (2, 2))), d.one(np.int64, np.int32))
    axis = axis - len(shape) if d.int(0, 1) else axis
    return model(node("Gather", "x i", **({"axis": axis} if axis or d.int(0, 1) else {})), shape, {"i": index}, opset=opset)


def slice_(d: Draw) -> onnx.ModelProto:
    shape, opset = d.shape(1, 4, 6), d.one(7, 9, 10, 11, 13)
    rank = len(shape)
    axes = [int(a) for a in d.rng.choice(rank, d.int(1, rank), replace=False)]
    far = [-(2**31), 2**31 - 1, -99, 99]
    starts, ends = ([d.one(d.int(-7, 7), d.int(-7, 7), d.one(*far)) for _ in axes] for _ in range(2))
    if d.int(0, 5):  # mostly something remains
        starts, ends = [0 if d.int(0, 1) else -d.int(1, shape[a]) for a in axes], [d.one(99, shape[a]) for a in axes]
    axes = [a - rank if opset >= 10 and d.int(0, 1) else a for a in axes]
    given = d.int(0, 2)
    if opset < 10:
        return model(node("Slice", starts=starts, ends=ends, **({"axes": axes} if given else {})), shape, opset=opset)
    steps = [d.one(1, 2, 3, -1, -2) for _ in axes]
    if d.int(0, 5):
        starts, ends = zip(
            *[(e, s - 99 if d.int(0, 1) else s) if t < 0 else (s, e) for s, e, t in zip(starts, ends, steps, strict=True)], strict=True
        )
    of = d.one(np.int64, np.int32)
    weights = {k: np.array(v).clip(-(2**31), 2**31 - 1).astype(of) for k, v in (("s", starts), ("e", ends), ("a", axes), ("t", steps))}
    return model(node("Slice", "x s e" + d.one("", " - t", " a", " a t", " a t")), shape, weights, opset=opset)


def split(d: Draw) -> onnx.ModelProto:
    """Some outputs are read, added up where they are alike, else one of them is the result."""
    shape, opset = d.shape(1, 4, 6), d.one(7, 11, 13, 18, 18)
    axis = d.int(0, len(shape) - 1)
    n, parts = shape[axis], d.int(1, min(4, shape[axis]))
    cuts = sorted(int(c) for c in d.rng.choice(np.arange(1, n), parts - 1, replace=False)) if n > 1 else []
    sizes = np.diff([0, *cuts, n])
    axis = axis - len(shape) if opset >= 11 and d.int(0, 1) else axis
    attrs: dict[str, Any] = {"axis": axis} if axis or d.int(0, 1) else {}
    weights, operands = {}, "x"
    if d.int(0, 1):
        if opset < 13:
            attrs["split"] = [int(s) for s in sizes]
        else:
            weights, operands = {"s": sizes.astype(np.int64)}, "x s"
    elif opset >= 18:
        attrs["num_outputs"] = parts
    outs = [f"p{i}" for i in range(parts)]
    return model([node("Split", operands, " ".join(outs), **attrs), node("Relu", d.one(*outs))], shape, weights, opset=opset)


def pad(d: Draw) -> onnx.ModelProto:
    shape, opset = d.shape(1, 4), d.one(7, 11, 13, 18, 19, 21)
    rank = len(shape)
    axes = [int(a) for a in d.rng.choice(rank, d.int(1, rank), replace=False)] if opset >= 18 and d.int(0, 1) else None
    pads = d.ints(2 * (rank if axes is None else len(axes)), 0, 2)
    if d.int(0, 5) == 0:
        pads[d.int(0, len(pads) - 1)] = -1
    mode = {"mode": d.one("constant", "constant", "edge", "reflect")} if d.int(0, 3) == 0 else {}
    if opset < 11:
        return model(node("Pad", pads=pads, **mode, **({"value": d.one(0.0, 0.0, 1.0)} if d.int(0, 1) else {})), shape, opset=opset)
    weights = {"p": np.array(pads, np.int64), "v": d.one(F32(0), F32(0), F32(2)) * np.ones(d.one((), ()), F32)}
    operands = "x p" + (d.one("", " v") if axes is None else d.one(" - a", " v a"))
    if axes is not None:
        weights["a"] = np.array([a - rank if d.int(0, 1) else a for a in axes], d.one(np.int64, np.int32))
    return model(node("Pad", operands, **mode), shape, weights, opset=opset)


def concat(d: Draw) -> onnx.ModelProto:
    shape, opset = d.shape(1, 4), d.one(7, 11, 13)
    axis, weights = d.int(0, len(shape) - 1), {}
    parts = ["x"]
    for i in range(d.int(0, 3)):
        name = d.one("x", f"c{i}", f"c{i}")
        parts.insert(d.int(0, len(parts)), name)
        if name != "x":
            weights[name] = d.weight(*[d.int(1, 3) if i == axis else n for i, n in enumerate(shape)])
    return model(
        node("Concat", " ".join(parts), axis=axis - len(shape) if opset >= 11 and d.int(0, 1) else axis), shape, weights, opset=opset
    )


def repeat(d: Draw) -> onnx.ModelProto:
    op, shape, opset = d.one("Expand", "Tile"), d.shape(1, 4), d.one(8, 13)
    to = d.broadcasts(shape, True) if op == "Expand" else d.ints(len(shape), 1, 3)
    return model(node(op, "x s"), shape, {"s": np.array(to, np.int64)}, opset=opset)


def pieces(d: Draw) -> onnx.ModelProto:
    """What is linear in pieces, of one operand and constants."""
    op, shape = d.one("PRelu", "Clip", "HardSigmoid", "Abs"), d.shape(1, 4)
    dtype = d.one(F32, F32, np.float64)
    if op == "PRelu":
        slope = (d.weight(*d.broadcasts(shape, False)) / 2).astype(dtype)
        return model(node(op, "x s"), shape, {"s": slope}, opset=d.one(7, 9, 16), dtype=dtype)
    if op == "Clip":
        opset, (lo, hi) = d.one(7, 11, 12, 13), d.ints(2, -4, 4)
        if opset < 11:
            given: dict[str, Any] = {k: float(v) for k, v in (("min", lo), ("max", hi)) if d.int(0, 3)}
            return model(node(op, **given), shape, opset=opset)
        operands = d.one("x", "x a", "x a b", "x a b", "x - b")
        return model(node(op, operands), shape, {"a": np.array(lo, dtype), "b": np.array(hi, dtype)}, opset=opset, dtype=dtype)
    if op == "HardSigmoid":
        attrs = {k: d.one(0.5, 0.25, -1.0, 0.0) for k in ("alpha", "beta") if d.int(0, 2)}
        return model(node(op, **attrs), shape, opset=d.one(7, 22))
    return model(node(op), shape, opset=d.one(7, 13), dtype=dtype)


def extreme(d: Draw) -> onnx.ModelProto:
    """Max and Min of activations and constants; the other activation has another shape."""
    shape = d.shape(1, 4, 3)
    axes = [i for i in range(len(shape)) if d.int(0, 1)] or [0]
    names = [d.one("x", "h", "c", "k") for _ in range(d.int(0, 3))]
    names.insert(d.int(0, len(names)), d.one("x", "h"))
    weights = {name: d.weight(*d.broadcasts(shape, True)) for name in ("c", "k")}
    nodes = [node("ReduceSum", "x", "h", axes=axes, keepdims=1), node(d.one("Max", "Min"), " ".join(names))]
    return model(nodes, shape, weights, opset=d.one(8, 11, 12))


def least(d: Draw) -> onnx.ModelProto:
    op, shape, opset = d.one("ReduceMax", "ReduceMin"), d.shape(1, 5), d.one(7, 11, 13, 18, 20)
    rank = len(shape)
    axes = [int(a) for a in d.rng.choice(rank, d.int(1, rank), replace=False)]
    axes = [a - rank if opset >= 11 and d.int(0, 1) else a for a in axes]
    attrs: dict[str, Any] = {"keepdims": d.int(0, 1)} if d.int(0, 1) else {}
    given = d.int(0, 3)
    if opset < 18:
        return model(node(op, **attrs, **({"axes": axes} if given else {})), shape, opset=opset)
    if d.int(0, 1):
        attrs["noop_with_empty_axes"] = d.int(0, 1)
    return model(node(op, "x a" if given else "x", **attrs), shape, {"a": np.array(axes, np.int64)}, opset=opset)


def where(d: Draw) -> onnx.ModelProto:
    shape = d.shape(1, 4, 3)
    weights = {"t": d.rng.random(d.broadcasts(shape, True)) < 0.5, "c": d.weight(*d.broadcasts(shape, True))}
    operands = d.one("t x c", "t c x", "t x h", "t h x")
    nodes = [node("Neg", "x", "h"), node("Where", operands)]
    return model(nodes, shape, weights, opset=d.one(9, 16))


def gather_points(d: Draw) -> onnx.ModelProto:
    shape, opset = d.ints(d.int(1, 4), 1, 4), d.one(11, 12, 13)
    batch = d.int(0, len(shape) - 1) if opset >= 12 and d.int(0, 1) else 0
    depth = d.int(1, len(shape) - batch)
    rows = [*shape[:batch], *d.ints(d.int(0 if batch else 1, 2), 1, 3)]
    index = np.stack([d.rng.integers(-n, n, rows) for n in shape[batch : batch + depth]], axis=-1)
    return model(node("GatherND", "x i", **({"batch_dims": batch} if batch else {})), shape, {"i": index.astype(np.int64)}, opset=opset)


def blocks(d: Draw) -> onnx.ModelProto:
    op, b = d.one("DepthToSpace", "SpaceToDepth"), d.int(1, 3)
    if op == "SpaceToDepth":
        return model(node(op, blocksize=b), [1, d.int(1, 3), b * d.int(1, 3), b * d.int(1, 3)], opset=d.one(7, 13))
    opset = d.one(7, 11, 13)
    mode = {"mode": d.one("DCR", "CRD")} if opset >= 11 and d.int(0, 2) else {}
    return model(node(op, blocksize=b, **mode), [1, b * b * d.int(1, 2), *d.ints(2, 1, 3)], opset=opset)


def resize(d: Draw) -> onnx.ModelProto:
    opset = d.one(7, 9, 10, 11, 13, 18, 19)
    shape = [1, d.int(1, 2), *d.ints(2, 1, 4)]
    factors = [1, d.one(1, 1, 2), *d.ints(2, 1, 5)]
    if opset <= 10:
        op = "Resize" if opset == 10 else "Upsample"
        if opset == 7:
            return model(node(op, scales=[float(f) for f in factors]), shape, opset=opset)
        return model(node(op, "x s"), shape, {"s": np.array(factors, F32)}, opset=opset)
    attrs: dict[str, Any] = {}
    if d.int(0, 3):
        modes = ("half_pixel", "pytorch_half_pixel", "asymmetric", "asymmetric", "tf_half_pixel_for_nn")
        attrs["coordinate_transformation_mode"] = d.one(*modes)
    if d.int(0, 3):
        attrs["nearest_mode"] = d.one("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    axes = [2, 3] if opset >= 18 and d.int(0, 1) else [0, 1, 2, 3]
    if len(axes) == 2:
        attrs["axes"], factors = axes, [1, 1, *factors[2:]]
    wanted = [factors[a] for a in axes]
    sizes = np.array([f * shape[a] for f, a in zip(wanted, axes, strict=True)], np.int64)
    weights = {"r": np.zeros(0, F32), "s": np.array(wanted, F32), "e": np.zeros(0, F32), "z": sizes}
    operands = d.one("x r s", "x r e z") if opset < 13 else d.one("x r s", "x - s", "x - - z")
    return model(node("Resize", operands, **attrs), shape, weights, opset=opset)


def conv_transpose(d: Draw) -> onnx.ModelProto:
    rank = d.int(1, 2)
    dims, kernel, strides = d.ints(rank, 1, 5), d.ints(rank, 1, 4), d.ints(rank, 1, 4)
    groups, per, outs = d.int(1, 3), d.int(1, 2), d.int(1, 2)
    attrs: dict[str, Any] = {"strides": strides} if d.int(0, 4) else {}
    if d.int(0, 2):
        attrs["pads"] = [d.int(0, k) for k in kernel * 2]
    if d.int(0, 2) == 0:
        attrs["dilations"] = d.ints(rank, 1, 3)
    if d.int(0, 2) == 0:
        attrs["output_padding"] = [d.int(0, max(0, t - 1)) for t in attrs.get("strides", [1] * rank)]
    if groups > 1 or d.int(0, 1):
        attrs["group"] = groups
    weights = {"w": d.weight(groups * per, outs, *kernel), "b": d.weight(groups * outs)}
    return model(node("ConvTranspose", d.one("x w", "x w b"), **attrs), [1, groups * per, *dims], weights, opset=d.one(7, 11, 22))


DRAWN = (
    *(window, window, window, whole, reduction, gemm, matmul, batchnorm, elementwise, two),
    *(unary, reshape, gather, slice_, split, pad, concat, repeat),
    *(pieces, pieces, extreme, least, where, gather_points, blocks, resize, conv_transpose),
)
