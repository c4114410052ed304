"""Writes ONNX models node by node, with weights that sit where one forgotten rounding shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

ULP = 2.0**-23


@dataclass(frozen=True)
class Tensor:
    """A value under construction: its name and its shape, the batch axis of one included."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class Builder:
    """A model under construction, and the random numbers it is drawn from."""

    def __init__(self, rng: np.random.Generator, dtype: str = "float32", opset: int = 17) -> None:
        self.rng, self.dtype, self.opset = rng, np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.source: Tensor | None = None

    # ---- drawing ----------------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """Both included."""
        return int(self.rng.integers(low, high + 1))

    # ---- writing ----------------------------------------------------------------------------------------------------

    def input(self, *shape: int) -> Tensor:
        self.source = Tensor("x", tuple(shape))
        return self.source

    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """An initializer, sometimes a Constant node."""
        name = f"c{len(self.constants) + len(self.nodes)}_"
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(np.asarray(value).astype(dtype or self.dtype))
        array = array.reshape(np.shape(value))
        if array.dtype.kind == "f" and self.chance(0.1):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        else:
            self.constants.append(numpy_helper.from_array(array, name))
        return Tensor(name, array.shape)

    def integers(self, *values: int) -> Tensor:
        return self.constant(np.array(values), np.int64)

    def emit(self, op: str, inputs: list[Tensor | None], shape: tuple[int, ...], **attrs: Any) -> Tensor:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, ["" if i is None else i.name for i in inputs], [out], **attrs))
        return Tensor(out, tuple(int(s) for s in shape))

    def pair(self, op: str, x: Tensor, y: Tensor) -> Tensor:
        return self.emit(op, [x, y], np.broadcast_shapes(x.shape, y.shape))

    def model(self, output: Tensor) -> onnx.ModelProto:
        assert self.source is not None
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        ends = [[helper.make_tensor_value_info(t.name, kind, t.shape)] for t in (self.source, output)]
        graph = helper.make_graph(self.nodes, "g", *ends, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        return self.emit("Reshape", [x, self.integers(*shape)], shape)

    def flat(self, x: Tensor) -> Tensor:
        """As [1, n]."""
        if len(x.shape) == 2:
            return x
        return self.emit("Flatten", [x], (1, x.size)) if self.chance(0.5) else self.reshape(x, 1, x.size)

    def image(self, x: Tensor) -> Tensor:
        """As [1, channels, height, width], not too thin where the size allows."""
        if len(x.shape) == 4:
            return x
        n = x.size
        height = next((h for h in (4, 3, 5, 2) if n % h == 0), 1)
        rest = n // height
        width = next((w for w in (4, 3, 5, 6, 2, 7) if rest % w == 0), 1)
        return self.reshape(x, 1, rest // width, height, width)

    # ---- numbers ----------------------------------------------------------------------------------------------------

    def weights(self, terms: int, outputs: int) -> np.ndarray:
        """[terms, outputs], a kind a column, mostly one kind for all."""
        kind = self.pick("tail", "tail", "tail", "tail", "tail", "half", "equal", "cancel", "normal", "near", "range", "subnormal", "far")
        columns = []
        for _ in range(outputs):
            kind = kind if self.chance(0.8) else self.pick("tail", "equal", "cancel", "normal", "zeros")
            columns.append(self.column(kind, terms))
        return np.stack(columns, 1)

    def column(self, kind: str, terms: int) -> np.ndarray:
        rng, sign = self.rng, self.pick(1.0, -1.0)
        lead = int(rng.integers(terms))
        if kind == "tail":
            w = np.full(terms, self.pick(0.6, 0.6, 0.51, 2.0**-5, 2.0**-5) * ULP)
            w[lead] = 1
            return w * sign * self.pick(1.0, 1.0, 2.0**-3, 2.0**10)
        if kind == "half":  # one number and halves of its last place, and a little more
            w = np.full(terms, 0.5 * ULP * (1 + self.pick(ULP, 2.0**-12, 2.0**-7)))
            w[lead] = 1 + self.between(0, 3) * ULP
            return w * sign
        if kind == "equal":
            return np.full(terms, sign * self.pick(1 / 3, 0.1, 1.0, 1 + ULP, 2.0**-20 / 3))
        if kind == "cancel":
            w = np.where(np.arange(terms) % 2, -1.0, 1.0) * self.pick(2.0**12, 1.0, 2.0**24) * (1 + rng.integers(0, 4) * ULP)
            w[lead] += self.pick(1.0, 1 / 3)
            return w
        if kind == "near":  # 1 and its neighbours, bits that conversions drop
            return rng.choice([1.0, -1.0], terms) * (1 + rng.integers(-3, 4, terms) * 2.0 ** -self.pick(8, 11, 12, 23))
        if kind == "range":
            return rng.standard_normal(terms) * 2.0 ** rng.integers(-30, 20, terms)
        if kind == "far":  # what a flushed operand or result meets later
            return rng.standard_normal(terms) * 2.0 ** self.pick(-60, -40, 40, 58)
        if kind == "subnormal":
            return rng.standard_normal(terms) * 2.0 ** self.pick(-140, -127, -124)
        if kind == "zeros":
            return np.where(rng.random(terms) < 0.6, 0.0, rng.standard_normal(terms))
        return rng.standard_normal(terms)

    def factors(self, *shape: int) -> np.ndarray:
        """Of a scale: never zero."""
        rng = self.rng
        kind = self.pick("ulp", "third", "normal", "power", "tiny") if self.chance(0.93) else "far"
        if kind == "far":
            return np.full(shape, self.pick(1.0, 1 / 3) * 2.0 ** self.pick(-55, -40, 40, 55))
        if kind == "ulp":
            return 1 + rng.integers(-3, 4, shape) * ULP
        if kind == "third":
            return np.full(shape, self.pick(1 / 3, 1 / 7, -1 / 3, 1.7))
        if kind == "power":
            return self.pick(1.0, -1.0) * 2.0 ** rng.integers(-6, 7, shape)
        if kind == "tiny":
            return np.full(shape, self.pick(2.0**-20 / 3, 0.6 * ULP))
        return rng.uniform(0.3, 3, shape) * rng.choice([1.0, -1.0], shape)

    def shifts(self, *shape: int) -> np.ndarray:
        """Of a scale, or a bias."""
        kind = self.pick("one", "one", "zero", "normal", "tail", "large", "some")
        if kind == "one":
            return np.full(shape, self.pick(1.0, -1.0, 1 / 3, 0.1))
        if kind == "zero":
            return np.zeros(shape)
        if kind == "normal":
            return self.rng.standard_normal(shape)
        if kind == "tail":
            return np.full(shape, 0.6 * ULP)
        if kind == "large":
            return self.rng.standard_normal(shape) * 2.0**12
        return np.where(self.rng.random(shape) < 0.5, 0.0, 1.0)

    # ---- layers that many rules need --------------------------------------------------------------------------------

    def linear(self, x: Tensor, outputs: int | None = None, w: np.ndarray | None = None) -> Tensor:
        """MatMul, with or without Add, or Gemm."""
        x = self.flat(x)
        outputs = outputs or self.between(1, 4)
        w = self.weights(x.size, outputs) if w is None else w
        outputs = w.shape[1]
        how = self.pick(0, 0, 1, 2, 3)
        bias = self.shifts(outputs)
        if how == 0:
            return self.emit("MatMul", [x, self.constant(w)], (1, outputs))
        if how == 1:
            y = self.emit("MatMul", [x, self.constant(w)], (1, outputs))
            return self.pair("Add", y, self.constant(bias if self.chance(0.5) else bias[None]))
        if how == 2:
            return self.emit("Gemm", [x, self.constant(w.T), self.constant(bias)], (1, outputs), transB=1)
        return self.emit("Gemm", [x, self.constant(w)], (1, outputs))

    def conv(self, x: Tensor, padding: bool | None = None, one: bool = False) -> Tensor:
        """A convolution, 2-D or over one axis only; `padding` None: either."""
        x = self.image(x)
        _, channels, height, width = x.shape
        groups = self.pick(1, 1, 1, channels)
        out = groups * self.between(1, 2 if channels > 1 else 3)
        kernel = (1, 1) if one else (min(height, self.between(1, 3)), min(width, self.between(1, 3)))
        fits = [k == 1 or (k - 1) * 2 + 1 <= s for k, s in zip(kernel, (height, width), strict=True)]
        dilation = [2 if f and self.chance(0.15) else 1 for f in fits]
        stride = [self.pick(1, 1, 2), self.pick(1, 1, 2)]
        padded = self.chance(0.4) if padding is None else padding
        pads = [self.between(0, k - 1) for k in (*kernel, *kernel)] if padded else [0] * 4
        span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        size = [(s + pads[i] + pads[2 + i] - span[i]) // stride[i] + 1 for i, s in enumerate((height, width))]
        terms = channels // groups * kernel[0] * kernel[1]
        w = self.weights(terms, out).T.reshape(out, channels // groups, *kernel)
        bias = [self.constant(self.shifts(out))] if self.chance(0.6) else []
        attrs = {"kernel_shape": kernel, "strides": stride, "pads": pads, "dilations": dilation, "group": groups}
        return self.emit("Conv", [x, self.constant(w), *bias], (1, out, *size), **attrs)

    def scale(self, x: Tensor, only: str | None = None, spread: bool | None = None) -> Tensor:
        """One elementwise operation with a constant: a number, one a channel or (spread) one a cell."""
        op = only or self.pick("Add", "Add", "Sub", "Mul", "Div", "BatchNormalization", "Neg", "from")
        if op == "Neg":
            return self.emit("Neg", [x], x.shape)
        if op == "BatchNormalization":
            return self.batchnorm(x)
        spread = self.chance(0.3) if spread is None else spread
        if spread:
            shape = x.shape[1:]
        else:
            shape = (x.shape[1], *[1] * (len(x.shape) - 2)) if self.chance(0.7) else ()
        values = self.factors(*shape) if op in ("Mul", "Div") else self.shifts(*shape)
        held = self.constant(values)
        if op == "from":  # constant minus x
            return self.pair("Sub", held, x)
        return self.pair(op, held, x) if op in ("Add", "Mul") and self.chance(0.3) else self.pair(op, x, held)

    def batchnorm(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        var = self.pick(np.ones(channels), np.full(channels, 1 / 3), self.rng.uniform(0.01, 4, channels), np.full(channels, 2.0**-10))
        parts = [self.factors(channels), self.shifts(channels), self.shifts(channels), var]
        return self.emit("BatchNormalization", [x, *(self.constant(p) for p in parts)], x.shape, epsilon=self.pick(1e-5, 1e-3))

    def gather(self, x: Tensor, index: np.ndarray, axis: int = 1) -> Tensor:
        shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
        return self.emit("Gather", [x, self.constant(index, np.int64)], shape, axis=axis)

    def pad(self, x: Tensor, before: list[int], after: list[int]) -> Tensor:
        shape = tuple(a + s + b for a, s, b in zip(before, x.shape, after, strict=True))
        value = [self.constant(np.array(0.0))] if self.chance(0.3) else []
        return self.emit("Pad", [x, self.integers(*before, *after), *value], shape)

    def concat(self, parts: list[Tensor], axis: int = 1) -> Tensor:
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.emit("Concat", list(parts), tuple(shape), axis=axis)

    def relu(self, x: Tensor) -> Tensor:
        return self.emit("Relu", [x], x.shape)
