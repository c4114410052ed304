"""Small networks whose linear regions are enumerated, and properties of them that are true or false by as little as one may wish.

Knows neither the engine nor the checker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.certificate import regions
from tests.prove.piecewise import Form, Numbers, Small, drawn, uneven, worst

Rng = np.random.Generator
Box = tuple[Numbers, Numbers]
GRID = 2**60


def pick(rng: Rng, values: Iterable[Any]) -> Any:
    some = list(values)
    return some[int(rng.integers(len(some)))]


@dataclass
class Piece:
    """Rows that an unsafe input of the box has at or below zero, all of them; and the least value of their greatest, where it lies."""

    box: Box
    forms: list[Form]
    least: Fraction
    at: Numbers

    def raised(self, t: Fraction) -> Piece:
        """Reached if t is not below `least`."""
        return replace(self, forms=[f.raised(t) for f in self.forms])


@dataclass
class Case:
    net: Small
    skip: np.ndarray | None  # what is added to the outputs, times the input
    form: str  # of the ONNX file
    pieces: list[Piece]  # the first is the one in question


def weights(rng: Rng, inputs: int, widths: Sequence[int], outputs: int) -> Small:
    """Small halves, 24 bits, or magnitudes far apart that cancel."""
    what = int(rng.integers(4))
    net = (uneven if what == 1 else drawn)(rng, inputs, widths, outputs)
    if what < 2:
        return net
    layers = []
    for w, b in net.layers:
        scale = 2.0 ** rng.integers(-24, 25, len(w)) if what == 2 else np.where(rng.random(len(w)) < 0.3, 2.0**26, 1.0)
        w, b = w * scale[:, None], b * scale
        if len(w) > 1 and rng.random() < 0.5:
            w[1], b[1] = -w[0], -b[0]
        layers.append((w, b))
    return Small(tuple(layers), inputs)


def changed(rng: Rng, net: Small) -> Small:
    """One weight moved: by its last bit, or by a half."""
    layers = [(np.array(w, np.float32), np.array(b, np.float32)) for w, b in net.layers]
    w = pick(rng, layers)[0]
    at = tuple(int(rng.integers(n)) for n in w.shape)
    w[at] = np.nextafter(w[at], np.float32(9)) if rng.random() < 0.5 and abs(w[at]) > 1e-3 else w[at] + np.float32(rng.choice([-0.5, 0.5]))
    return replace(net, layers=tuple(layers))


def pinned(rng: Rng, net: Small) -> Small:
    w = np.array(net.layers[0][0])
    w[:, 0] = 2.0 ** rng.integers(50, 60, len(w)) * rng.choice([-1, 0, 1], len(w))
    w[:, 2] = -w[:, 0]
    return replace(net, layers=((w, net.layers[0][1]), *net.layers[1:]))


def box(rng: Rng, inputs: int) -> Box:
    """Of every width, points among them; dyadic, or decimals that no float is."""
    unit = Fraction(1, 10) if rng.random() < 0.3 else Fraction(1, 8)
    width = pick(rng, [Fraction(1, 2**40), Fraction(1, 2**12), Fraction(1, 16), Fraction(1), Fraction(1), Fraction(2), Fraction(2)])
    lo = tuple(int(v) * unit for v in rng.integers(-10, 8, inputs))
    return lo, tuple(a + (width if rng.random() < 0.95 else 0) for a in lo)


def forms(rng: Rng, net: Small) -> list[Form]:
    made = []
    for _ in range(1 if rng.random() < 0.75 else 2):
        c = rng.integers(-2, 3, net.outputs)
        c[int(rng.integers(len(c)))] += 3 * int(rng.choice([-1, 1]))
        d = rng.integers(-1, 2, net.inputs) * (rng.random() < 0.3)
        made.append(Form(tuple(map(Fraction, c.tolist())), tuple(map(Fraction, d.tolist())), Fraction(int(rng.integers(-3, 4)), 2)))
    return made


def located(net: Small, where: Box, some: list[Form], skip: np.ndarray | None, known: dict[Any, Any]) -> Piece:
    """With the exact optimum. What a skip adds to the outputs is a row over the inputs."""
    key = id(net), where
    known[key] = known.get(key) or regions.cells(net, *where)
    seen = some if skip is None else [replace(f, d=tuple(a + b for a, b in zip(f.d, _pulled(skip, f.c), strict=True))) for f in some]
    least, at = regions.least(*known[key], seen)
    assert least == max(f.at(at, net.value(at)) for f in seen) and all(a <= x <= b for a, x, b in zip(where[0], at, where[1], strict=True))
    return Piece(where, some, least, at)


def _pulled(skip: np.ndarray, c: Numbers) -> list[Fraction]:
    return [sum((Fraction(float(v)) * q for v, q in zip(column, c, strict=True)), Fraction(0)) for column in skip.T.tolist()]


def draw(rng: Rng, semantics: str) -> Case:
    """Float32 executions are computed of Gemm and Relu alone, so that other forms are for exact arithmetic."""
    inputs = 2 if rng.random() < 0.75 else 3
    widths = [int(n) for n in rng.integers(2, 5 if inputs == 2 else 4, int(rng.integers(1, 3)))]
    net = weights(rng, inputs, widths, int(rng.integers(1, 3)))
    form = "gemm" if semantics == "float32" else pick(rng, ["gemm", "gemm", "matmul", "conv", "skip", "difference", "cancelling"])
    skip = rng.integers(-2, 3, (net.outputs, inputs)).astype(np.float64) if form in ("skip", "difference") else None
    places, known = [box(rng, inputs)], dict[Any, Any]()
    if semantics == "real" and inputs == 3 and rng.random() < 0.5:  # two inputs are one number, and vast weights cancel over them
        lo, hi = places[0]
        net, places = pinned(rng, net), [((lo[0], lo[1], lo[0]), (lo[0], hi[1], lo[0]))]
    places += [box(rng, inputs)] * (rng.random() < 0.2)
    some = [located(net, places[0], forms(rng, net), skip, known)]
    if len(places) > 1 or rng.random() < 0.2:
        some.append(located(net, places[-1], forms(rng, net), skip, known))
    return Case(net, skip, form, some)


def model(net: Small, form: str, skip: np.ndarray | None) -> bytes:
    """The ONNX file, in one of several forms."""
    if form == "gemm":
        return net.model().SerializeToString()  # type: ignore[no-any-return]
    nodes, held, x = list[Any](), list[Any](), "x"

    def add(op: str, *operands: Any, **attributes: Any) -> str:
        names = []
        for a in operands:
            names.append(a if isinstance(a, str) else f"c{len(held)}")
            if not isinstance(a, str):
                held.append(numpy_helper.from_array(np.ascontiguousarray(a), names[-1]))
        nodes.append(helper.make_node(op, names, [f"n{len(nodes)}"], **attributes))
        return f"n{len(nodes) - 1}"

    def linear(x: str, w: np.ndarray, b: np.ndarray) -> str:
        if form == "conv":
            return add("Conv", x, w[:, :, None, None], b)
        return add("Add", add("MatMul", x, w.T), b) if form == "matmul" else add("Gemm", x, w, b, transB=1)

    x = add("Reshape", x, np.array([1, net.inputs, 1, 1], np.int64)) if form == "conv" else x
    for k, (w, b) in enumerate(net.layers):
        w, b = np.asarray(w, np.float32), np.asarray(b, np.float32)
        if form == "cancelling":  # two rows more that take each other away again, in exact arithmetic
            for big in (2.0**60, 2.0**52):
                more = np.resize(np.array([1, -1, 0], np.float32), w.shape[1]) * np.float32(big), np.float32(big * (k % 2))
                w, b = np.concatenate([more[0][None], w, -more[0][None]]), np.concatenate([[more[1]], b, [-more[1]]]).astype(np.float32)
            n = len(w)
            back = np.concatenate([np.eye(n - 4, dtype=np.float32)] + [np.ones((n - 4, 2), np.float32)] * 2, 1)
            x = add("MatMul", linear(x, w, b), back[:, [n - 4, n - 3, *range(n - 4), n - 2, n - 1]].T)
        else:
            x = linear(x, w, b)
        x = add("Relu", x) if k + 1 < len(net.layers) else x
    x = add("Flatten", x) if form == "conv" else x
    if skip is not None:
        sign = np.float32(1 if form == "skip" else -1)
        x = add("Add" if form == "skip" else "Sub", x, add("MatMul", "x", sign * skip.T.astype(np.float32)))
    ends = [helper.make_tensor_value_info(n, 1, [1, s]) for n, s in (("x", net.inputs), (x, net.outputs))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)
    return made.SerializeToString()  # type: ignore[no-any-return]


# ---- properties as text ---------------------------------------------------------------------------------------------


def decimal(q: Fraction) -> str:
    """Exactly; only of tenths and halves of halves."""
    places = 0
    while q.denominator != 1 and (q * 10**places).denominator != 1:
        places += 1
    n = abs(int(q * 10**places))
    text = f"{n:0{places + 1}d}"
    return ("-" if q < 0 else "") + (f"{text[:-places]}.{text[-places:]}" if places else text)


def row(form: Form) -> str:
    """c y + d x <= k in integers."""
    by = math.lcm(*(v.denominator for v in (*form.c, *form.d, form.k)))
    some = [(v * by, f"Y_{i}") for i, v in enumerate(form.c)] + [(v * by, f"X_{i}") for i, v in enumerate(form.d)]
    return f"(<= (+ {' '.join(f'(* {decimal(v)} {name})' for v, name in some if v)} 0) {decimal(form.k * by)})"


def written(case: Case, some: Sequence[Piece]) -> bytes:
    n, m = case.net.inputs, case.net.outputs
    lines = [f"(declare-const X_{i} Real)" for i in range(n)] + [f"(declare-const Y_{j} Real)" for j in range(m)]
    parts = []
    for p in some:
        ends = [f"(>= X_{i} {decimal(a)}) (<= X_{i} {decimal(b)})" for i, (a, b) in enumerate(zip(*p.box, strict=True))]
        parts.append(f"(and {' '.join(ends)} {' '.join(map(row, p.forms))})")
    return "\n".join([*lines, f"(assert (or {' '.join(parts)}))", ""]).encode()


def coarse(t: Fraction) -> Fraction:
    """t, or a little above it where it has too many digits for a property."""
    return t if max(abs(t.numerator), t.denominator) < 2**250 else Fraction(-((-t * GRID).__floor__()), GRID)


def above(rng: Rng, t: Fraction) -> Fraction:
    """Exactly there, a unit in the last place above it, or more."""
    ulp = Fraction(math.ulp(float(t)))
    return coarse(t) + pick(rng, [0, 0, 0, 0, ulp, ulp * 2**9, ulp * 2**30, Fraction(1, 8)])


def execution(rng: Rng, net: Small, piece: Piece) -> tuple[Fraction, Numbers] | None:
    """The least value that some float32 executions reach near the optimum."""
    found = []
    for _ in range(12):
        x = np.array([float(v) for v in piece.at], np.float32)
        x = np.where(rng.random(len(x)) < 0.3, np.nextafter(x, np.float32(rng.choice([-99, 99]))), x).astype(np.float32)
        point = tuple(Fraction(float(v)) for v in x)
        if all(a <= v <= b for a, v, b in zip(piece.box[0], point, piece.box[1], strict=True)):
            found.append((worst(piece.forms, (point, net.execute(x.tolist(), rng))), point))
    return min(found, default=None)
