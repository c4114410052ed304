"""Small ReLU networks as what they are: piecewise linear functions, cut into simplices in exact rationals, and float32 executions of them.

Nothing here knows the verifier. On a simplex where no neuron changes its sign the network is affine, so its least value lies at a vertex:
exact minima over boxes, of one form or of the greatest of several, for networks of any few inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

import numpy as np
import onnx
from onnx import helper, numpy_helper

Numbers = tuple[Fraction, ...]
Vertex = tuple[Numbers, Numbers]  # an input, and the values behind it
Simplex = tuple[Vertex, ...]


def exact(values: Iterable[float]) -> Numbers:
    return tuple(Fraction(float(v)) for v in values)


@dataclass(frozen=True)
class Form:
    """c . y + d . x - k: an unsafe input has it at or below zero."""

    c: Numbers
    d: Numbers
    k: Fraction

    def at(self, x: Numbers, y: Numbers) -> Fraction:
        return (
            sum((a * b for a, b in zip(self.c, y, strict=True)), Fraction(0)) + sum(a * b for a, b in zip(self.d, x, strict=True)) - self.k
        )

    def raised(self, t: Fraction) -> Form:
        """The same with `t` taken from its values."""
        return Form(self.c, self.d, self.k + t)


@dataclass(frozen=True)
class Small:
    """Dense layers with ReLUs between them. `reads`: which inputs the first layer reads, in its order; `gate`: a ReLU reads the input."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    inputs: int
    reads: tuple[int, ...] | None = None
    gate: bool = False

    @property
    def outputs(self) -> int:
        return len(self.layers[-1][1]) if self.layers else len(self.read(range(self.inputs)))

    def read(self, x: Sequence) -> tuple:  # type: ignore[type-arg]
        return tuple(x) if self.reads is None else tuple(x[i] for i in self.reads)

    def value(self, x: Numbers) -> Numbers:
        h = self.read(x)
        if self.gate:
            h = tuple(max(v, Fraction(0)) for v in h)
        for k, (w, b) in enumerate(self.layers):
            h = _affine(w, b, h)
            if k + 1 < len(self.layers):
                h = tuple(max(v, Fraction(0)) for v in h)
        return h

    def model(self, first: str = "Gather") -> onnx.ModelProto:
        """`first`: the operator that moves inputs before the first layer."""
        nodes, held, x = [], [], "x"
        if self.reads is not None and first == "Gather":
            held.append(numpy_helper.from_array(np.array(self.reads, np.int64), "reads"))
            nodes.append(helper.make_node("Gather", ["x", "reads"], ["g"], axis=1))
            x = "g"
        elif self.reads is not None and first == "Slice":
            step = self.reads[1] - self.reads[0] if len(self.reads) > 1 else 1
            end = self.reads[-1] + step if self.reads[-1] + step >= 0 else -(2**31)
            for name, v in (("from", self.reads[0]), ("to", end), ("axis", 1), ("step", step)):
                held.append(numpy_helper.from_array(np.array([v], np.int64), name))
            nodes.append(helper.make_node("Slice", ["x", "from", "to", "axis", "step"], ["g"]))
            x = "g"
        elif self.reads is not None and first == "Transpose":  # [1, 2, n] to [1, n, 2], flat
            held.append(numpy_helper.from_array(np.array([1, 2, -1], np.int64), "as"))
            held.append(numpy_helper.from_array(np.array([1, -1], np.int64), "flat"))
            nodes.append(helper.make_node("Reshape", ["x", "as"], ["s"]))
            nodes.append(helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1]))
            nodes.append(helper.make_node("Reshape", ["t", "flat"], ["g"]))
            x = "g"
        if self.gate:
            nodes.append(helper.make_node("Relu", [x], ["gate"]))
            x = "gate"
        for k, (w, b) in enumerate(self.layers):
            held += [
                numpy_helper.from_array(np.asarray(w, np.float32), f"w{k}"),
                numpy_helper.from_array(np.asarray(b, np.float32), f"b{k}"),
            ]
            nodes.append(helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], [f"h{k}"], transB=1))
            x = f"h{k}"
            if k + 1 < len(self.layers):
                nodes.append(helper.make_node("Relu", [x], [f"r{k}"]))
                x = f"r{k}"
        ends = [helper.make_tensor_value_info(n, 1, [1, s]) for n, s in (("x", self.inputs), (x, self.outputs))]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)

    def execute(
        self, x: Sequence[float], rng: np.random.Generator, half: int = 0, seen: list[list[Fraction]] | None = None
    ) -> Numbers:
        """One float32 execution: every layer's summands in an order of their own, each operation rounded and perhaps fused or flushed.

        `half`: bits that operands are rounded to first (8: bf16, 11: tf32). `seen` takes what ReLUs between layers are handed.
        """
        mode, flush, fused = int(rng.integers(5)), bool(rng.integers(2)), bool(rng.integers(2))

        def done(v: Fraction) -> Fraction:
            return rounded(v, int(rng.integers(4)) if mode == 4 else mode, flush)

        def operand(v: Fraction) -> Fraction:
            v = Fraction(0) if flush and abs(v) < TINIEST else v
            return rounded(v, int(rng.integers(4)), flush, half) if half else v

        h = tuple(Fraction(float(np.float32(v))) for v in self.read(x))
        assert exact(self.read(x)) == h
        if self.gate:
            h = tuple(max(operand(v) if not half else v, Fraction(0)) for v in h)
        for k, (w, b) in enumerate(self.layers):
            now = []
            for row, bias in zip(w, b, strict=True):
                terms = [(operand(Fraction(float(a))), operand(v)) for a, v in zip(row, h, strict=True)]
                terms.append((Fraction(1), Fraction(float(bias))))
                total = Fraction(0)
                for i in rng.permutation(len(terms)):
                    a, v = terms[i]
                    total = done(total + (a * v if fused or a in (0, 1) else done(a * v)))
                now.append(total)
            if seen is not None and k + 1 < len(self.layers):
                seen.append(now)
            h = tuple(now) if k + 1 == len(self.layers) else tuple(max(v, Fraction(0)) for v in now)
        return h


TINIEST = Fraction(1, 2**126)


def rounded(v: Fraction, mode: int, flush: bool = False, bits: int = 24) -> Fraction:
    """To so many bits with float32's exponents: 0 to nearest, 1 down, 2 up, 3 toward zero."""
    if v == 0:
        return v
    n, d = abs(v.numerator), v.denominator
    e = n.bit_length() - d.bit_length()
    if Fraction(n, d) < Fraction(2) ** e:
        e -= 1
    ulp = Fraction(2) ** (max(e, -126) - bits + 1)
    q = v / ulp
    whole = q.numerator // q.denominator
    if mode == 0:
        whole = round(q)
    elif mode == 2 or (mode == 3 and v < 0):
        whole = -((-q.numerator) // q.denominator)
    made = whole * ulp
    return Fraction(0) if flush and abs(made) < TINIEST else made


def _affine(w: np.ndarray, b: np.ndarray, h: Numbers) -> Numbers:
    return tuple(
        sum((Fraction(float(a)) * v for a, v in zip(row, h, strict=True) if a), Fraction(float(bias)))
        for row, bias in zip(w, b, strict=True)
    )


# ---- simplices ------------------------------------------------------------------------------------------------------


def boxed(lo: Numbers, hi: Numbers) -> list[tuple[Numbers, ...]]:
    """Simplices that together are the box: one for every order in which its free inputs rise."""
    free = [i for i in range(len(lo)) if lo[i] < hi[i]]
    found = []
    for order in permutations(free):
        point, corners = list(lo), [tuple(lo)]
        for i in order:
            point[i] = hi[i]
            corners.append(tuple(point))
        found.append(tuple(corners))
    return found


def _between(a: Vertex, b: Vertex, s: Fraction) -> Vertex:
    return tuple(u + s * (v - u) for u, v in zip(a[0], b[0], strict=True)), tuple(u + s * (v - u) for u, v in zip(a[1], b[1], strict=True))


def parted(simplices: Iterable[Simplex], g: Callable[[Vertex], Fraction]) -> list[Simplex]:
    """Cut until `g`, affine on each, has one sign on each: an edge that crosses zero is divided there."""
    found, waiting = [], list(simplices)
    while waiting:
        s = waiting.pop()
        values = [g(v) for v in s]
        below, above = min(range(len(s)), key=values.__getitem__), max(range(len(s)), key=values.__getitem__)
        if values[below] >= 0 or values[above] <= 0:
            found.append(s)
            continue
        cut = _between(s[below], s[above], values[below] / (values[below] - values[above]))
        waiting += [tuple(cut if i == k else v for i, v in enumerate(s)) for k in (below, above)]
    return found


def pieces(net: Small, lo: Iterable[float | Fraction], hi: Iterable[float | Fraction]) -> list[Simplex]:
    """Simplices on each of which the network is affine; their vertices hold its outputs."""
    low, high = tuple(map(Fraction, lo)), tuple(map(Fraction, hi))
    some: list[Simplex] = [tuple((x, net.read(x)) for x in corners) for corners in boxed(low, high)]
    if net.gate:
        some = _clamped(some)
    for k, (w, b) in enumerate(net.layers):
        some = [tuple((x, _affine(w, b, h)) for x, h in s) for s in some]
        if k + 1 < len(net.layers):
            some = _clamped(some)
    return some


def _clamped(some: list[Simplex]) -> list[Simplex]:
    for j in range(len(some[0][0][1])):
        some = parted(some, lambda v, j=j: v[1][j])  # type: ignore[misc]
    return [tuple((x, tuple(max(v, Fraction(0)) for v in h)) for x, h in s) for s in some]


def worst(forms: Sequence[Form], v: Vertex) -> Fraction:
    """The greatest form: positive where the input is safe."""
    return max(f.at(*v) for f in forms)


def ordered(some: list[Simplex], forms: Sequence[Form]) -> list[Simplex]:
    """Cut where one form passes another, so that the greatest of them is affine too."""
    for i in range(len(forms)):
        for j in range(i):
            some = parted(some, lambda v, i=i, j=j: forms[i].at(*v) - forms[j].at(*v))  # type: ignore[misc]
    return some


def least(net: Small, forms: Sequence[Form], lo: Iterable[float | Fraction], hi: Iterable[float | Fraction]) -> tuple[Fraction, Numbers]:
    """The least value over the box of the greatest form, and where."""
    return min((worst(forms, v), v[0]) for s in ordered(pieces(net, lo, hi), forms) for v in s)


def unsafe(net: Small, forms: Sequence[Form], lo: Iterable[float | Fraction], hi: Iterable[float | Fraction]) -> list[Numbers]:
    """Points whose hulls, a simplex at a time, are all unsafe inputs of the box: every box that holds them holds those."""
    some = parted(ordered(pieces(net, lo, hi), forms), lambda v: worst(forms, v))
    return [x for s in some for x, y in s if worst(forms, (x, y)) <= 0]


# ---- drawing --------------------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, inputs: int, widths: Sequence[int], outputs: int = 1, scale: float = 1.0) -> Small:
    """Small integers and halves as weights: minima of little size."""
    layers, fan = [], inputs
    for n in (*widths, outputs):
        layers.append((rng.integers(-4, 5, (n, fan)) / 2 * scale, rng.integers(-6, 7, n) / 2 * scale))
        fan = n
    return Small(tuple(layers), inputs)


def uneven(rng: np.random.Generator, inputs: int, widths: Sequence[int], outputs: int = 1) -> Small:
    """Weights of 24 bits."""
    layers, fan = [], inputs
    for n in (*widths, outputs):
        layers.append((rng.normal(size=(n, fan)).astype(np.float32), rng.normal(size=n).astype(np.float32)))
        fan = n
    return Small(tuple(layers), inputs)
