"""Networks of smooth functions: exact values in ball arithmetic and hostile float32 executions stay within their bounds.

Executions are this file's own: sums in any order, every function moved by as much as the semantics allows, either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from flint import arb, arb_mat, ctx
from onnx import TensorProto, helper, numpy_helper

import polytriton
from tests.ir.test_curves import exact, piece_of

NAMES = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Softsign": "softsign", "Softplus": "softplus", "HardSwish": "hardswish",
    "Gelu": "gelu", "GeluTanh": "gelu_tanh", "Mish": "mish", "Sin": "sin", "Cos": "cos",
    "Exp": "exp", "Elu": "elu", "Swish": "silu", "Square": "square",
}  # fmt: skip


@dataclass
class Drawn:
    """Dense layers with functions between them; where `skip`, the second function's result adds to the first's."""

    weights: list[tuple[np.ndarray, np.ndarray]]
    functions: list[str]
    skip: bool

    def model(self) -> bytes:
        nodes, constants, at = [], [], "x"
        for k, (w, b) in enumerate(self.weights):
            constants += [numpy_helper.from_array(w, f"w{k}"), numpy_helper.from_array(b, f"b{k}")]
            nodes.append(helper.make_node("Gemm", [at, f"w{k}", f"b{k}"], [f"h{k}"], transB=1))
            at = f"h{k}"
            if k < len(self.functions):
                op = self.functions[k]
                if op == "Swish":
                    nodes += [helper.make_node("Sigmoid", [at], [f"s{k}"]), helper.make_node("Mul", [at, f"s{k}"], [f"f{k}"])]
                elif op == "GeluTanh":
                    nodes.append(helper.make_node("Gelu", [at], [f"f{k}"], approximate="tanh"))
                elif op == "Square":
                    nodes.append(helper.make_node("Mul", [at, at], [f"f{k}"]))
                else:
                    nodes.append(helper.make_node(op, [at], [f"f{k}"]))
                at = f"f{k}"
                if self.skip and k == 1:
                    nodes.append(helper.make_node("Add", ["f0", "f1"], ["sum"]))
                    at = "sum"
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", self.inputs), (at, self.outputs))]
        graph = helper.make_graph(nodes, "drawn", ends[:1], ends[1:], constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(made)
        return made.SerializeToString()

    @property
    def inputs(self) -> int:
        return self.weights[0][0].shape[1]

    @property
    def outputs(self) -> int:
        return len(self.weights[-1][0])

    def exact(self, x: np.ndarray) -> list[arb]:
        """In 300 bits."""
        values, first = [arb(float(v)) for v in x], None
        for k, (w, b) in enumerate(self.weights):
            found = arb_mat(w.astype(float).tolist()) * arb_mat([[v] for v in values])
            values = [found[i, 0] + arb(float(b[i])) for i in range(len(b))]
            if k < len(self.functions):
                name = NAMES[self.functions[k]]
                values = [exact(name, v, piece_of(name, float(v)))[0] for v in values]
                if k == 0:
                    first = values
                elif self.skip and k == 1 and first is not None:
                    values = [p + q for p, q in zip(first, values, strict=True)]
        return values

    def execute(self, x: np.ndarray, rng: np.random.Generator, ulps: float, seen: list[np.ndarray] | None = None) -> np.ndarray:
        """In float32, each sum in an order of its own; every function off by up to `ulps` units, most often by all of them. `seen` takes
        what functions are handed.
        """
        values, first = x.astype(np.float32), x
        for k, (w, b) in enumerate(self.weights):
            out = np.empty(len(b), np.float32)
            for i in range(len(b)):
                terms = np.append(w[i] * values, b[i]).astype(np.float32)
                total = np.float32(0)
                for t in rng.permutation(terms):
                    total = np.float32(total + t)
                out[i] = total
            values = out
            if k < len(self.functions):
                if seen is not None:
                    seen.append(values)
                name = NAMES[self.functions[k]]
                with ctx.workprec(80):
                    f = np.array([float(exact(name, float(v), piece_of(name, float(v)))[0]) for v in values])
                operand = np.abs(values) if name in ("silu", "gelu", "gelu_tanh", "mish") else 0
                size = np.abs(f) if name == "square" else np.maximum(1, np.maximum(np.abs(f), operand))
                moved = f + ulps * 2.0**-23 * size * rng.choice([-1, 0, 1], len(f), p=[0.45, 0.1, 0.45])
                values = (moved - np.sign(moved - f) * 2.0**-24 * np.abs(moved)).astype(np.float32)  # rounded, and within what is allowed
                if k == 0:
                    first = values
                elif self.skip and k == 1:
                    values = (first + values).astype(np.float32)
        return values


def draw(seed: int) -> tuple[Drawn, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    skip = bool(rng.random() < 0.4)
    sizes = [int(rng.integers(1, 5))] + [int(rng.integers(2, 7))] * 2 + [int(rng.integers(1, 4))]
    scale = rng.choice([0.5, 1.0, 3.0])
    weights = [
        ((rng.standard_normal((o, i)) * scale).astype(np.float32), rng.standard_normal(o).astype(np.float32)) for i, o in pairwise(sizes)
    ]
    functions = [str(rng.choice(list(NAMES))) for _ in range(2)]
    if functions[0] in ("Square", "Exp") and functions[1] == "Exp":
        functions[1] = "Sin"  # else ordinary inputs overflow, which is refused
    middle = rng.standard_normal(sizes[0]).astype(np.float32)
    radius = np.abs(rng.standard_normal(sizes[0])).astype(np.float32) * rng.choice([1e-6, 1e-3, 0.1, 1.0])
    return Drawn(weights, functions, skip), middle - radius, middle + radius


def points(lo: np.ndarray, hi: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Corners, most of them, and points inside; float32 numbers."""
    corner = rng.random((count, 1)) < 0.6
    share = np.where(corner, rng.integers(0, 2, (count, len(lo))), rng.random((count, len(lo))))
    return np.clip((lo + (hi - lo) * share).astype(np.float32), lo, hi)


@pytest.mark.parametrize("seed", [pytest.param(k, marks=() if k in (0, 1, 2, 3, 5) else pytest.mark.slow) for k in range(32)])
def test_nothing_leaves_the_bounds(seed: int) -> None:
    drawn, lo, hi = draw(seed)
    rng = np.random.default_rng([7, seed])
    model = drawn.model()
    loose = ",".join(["float32", *(f"{name}=90" for name in ("silu", "tanh", "exp", "sigmoid", "erf", "gelu", "sin", "cos", "mish"))])
    for semantics, ulps in (("real", 0.0), ("float32", 4.0), (loose, 4.0)):
        net = polytriton.compile(model, semantics=semantics)
        for effort in ("quick", "best"):
            found = net.bounds(lo[None], hi[None], effort=effort)
            low, high = (np.asarray(v, np.float64).reshape(-1) for v in (found.lo, found.hi))
            for x in points(lo, hi, rng, 12):
                if semantics == "real":
                    with ctx.workprec(300):
                        for v, a, b in zip(drawn.exact(x), low, high, strict=True):
                            assert arb(a) <= v <= arb(b), (seed, semantics, x)
                else:
                    y = drawn.execute(x, rng, ulps).astype(np.float64)
                    assert (low <= y).all() and (y <= high).all(), (seed, semantics, x, y, low, high)


def test_a_stated_error_counts() -> None:
    """Bounds widen with it, by what it is at least, and the result names it."""
    drawn, lo, hi = draw(3)
    drawn = Drawn(drawn.weights, ["Tanh", "Tanh"], False)
    assert polytriton.compile(drawn.model()).options.semantics == "float32,tanh=4"
    widths = []
    for ulps in (1, 4, 1000):
        net = polytriton.compile(drawn.model(), semantics=f"float32,tanh={ulps}")
        assert net.options.semantics == f"float32,tanh={ulps}"
        found = net.bounds(lo[None], hi[None])
        widths.append(float((np.asarray(found.hi) - np.asarray(found.lo)).min()))
    last = np.abs(drawn.weights[-1][0]).sum(1).min()
    assert widths[0] < widths[1] < widths[2] and widths[2] - widths[0] >= 2 * 999 * 2.0**-23 * last * 0.99


def test_a_property_of_a_sigmoid_network_is_decided_both_ways(tmp_path: Path) -> None:
    drawn, lo, hi = draw(11)
    drawn = Drawn(drawn.weights, ["Sigmoid", "Gelu"], True)
    net = polytriton.compile(drawn.model(), semantics="real")
    found = net.bounds(lo[None], hi[None], effort="best")
    top, mid = float(np.asarray(found.hi).reshape(-1)[0]), float(net.predict(((lo + hi) / 2)[None]).reshape(-1)[0])
    lines = [f"(declare-const X_{i} Real)" for i in range(drawn.inputs)] + [f"(declare-const Y_{i} Real)" for i in range(drawn.outputs)]
    for i in range(drawn.inputs):
        lines += [f"(assert (>= X_{i} {float(lo[i])!r}))", f"(assert (<= X_{i} {float(hi[i])!r}))"]
    for threshold, verdict in ((top + 1e-3, "unsat"), (mid - 1e-3, "sat")):
        path = tmp_path / f"{verdict}.vnnlib"
        path.write_text("\n".join([*lines, f"(assert (>= Y_0 {threshold!r}))"]))
        assert net.verify(path).verdict == verdict


def _image_model(op: str) -> bytes:
    """Zeros around images, before a function and behind it, cells moved and left out on the way."""
    rng = np.random.default_rng(5)
    shapes = {"a": (2, 1, 3, 3), "b": (2, 2, 2, 2), "c": (3, 20), "d": (3, 3)}
    weights = {k: rng.standard_normal(shape) for k, shape in shapes.items()}
    pads = {"around": [0, 0, 1, 0, 0, 0, 0, 1], "start": [1], "stop": [4], "axis": [3]}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h0"], pads=[1, 1, 1, 1]),
        helper.make_node("Pad", ["h0", "around"], ["h1"]),
        helper.make_node(op, ["h1"], ["h2"]),
        helper.make_node("Conv", ["h2", "b"], ["h3"], pads=[0, 1, 1, 0], strides=[1, 1]),
        helper.make_node("Slice", ["h3", "start", "stop", "axis"], ["h4"]),
        helper.make_node(op, ["h4"], ["h5"]),
        helper.make_node("Transpose", ["h5"], ["h6"], perm=[0, 2, 3, 1]),
        helper.make_node("Flatten", ["h6"], ["h7"]),
        helper.make_node("Pad", ["h7", "wide"], ["h8"]),
        helper.make_node(op, ["h8"], ["h9"]),
        helper.make_node("Slice", ["h9", "from", "to"], ["h10"]),
        helper.make_node("Gemm", ["h10", "c"], ["h11"], transB=1),
        helper.make_node(op, ["h11"], ["h12"]),
        helper.make_node("Gemm", ["h12", "d"], ["y"]),
    ]
    pads |= {"wide": [0, 3, 0, 1], "from": [0, 1], "to": [1, 21]}
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    constants += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in pads.items()]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
    ]
    graph = helper.make_graph(nodes, "image", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", *(pytest.param(op, marks=pytest.mark.slow) for op in ("Gelu", "Tanh"))])
def test_padding_does_not_pass_through_a_function(op: str) -> None:
    """f(0) need not be 0; onnxruntime's own answers, and its tensors on the way, lie within their bounds."""
    model = _image_model(op)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(6)
    for radius in (0.0, 1e-3, 0.3):
        x = rng.standard_normal((1, 1, 4, 3)).astype(np.float32)
        lo, hi = x - np.float32(radius), x + np.float32(radius)
        found = polytriton.compile(model, semantics="float32").bounds(lo, hi)
        for _ in range(60):
            point = (lo + (hi - lo) * rng.integers(0, 2, x.shape)).astype(np.float32)
            y = np.asarray(session.run(["y"], {"x": np.clip(point, lo, hi)})[0])
            assert (np.asarray(found.lo) <= y).all() and (y <= np.asarray(found.hi)).all(), (op, radius)
        assert radius > 0 or float((np.asarray(found.hi) - np.asarray(found.lo)).max()) < 1e-3


@pytest.mark.parametrize("device", ["interpret"])
def test_kernels_refuse_smooth_functions_by_name(device: str, tmp_path: Path) -> None:
    with pytest.raises(polytriton.PolytritonError, match="no generated kernel for sigmoid") as said:
        polytriton.compile(_image_model("Sigmoid"), device=device)
    assert "--device cpu" in said.value.remedy


def _alone(op: str, size: int, **attrs: float | str) -> bytes:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attrs)], "alone", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def test_a_gelu_of_no_known_form_is_refused() -> None:
    with pytest.raises(polytriton.PolytritonError, match="neither none nor tanh"):
        polytriton.compile(_alone("Gelu", 3, approximate="sine"), check=False)


@pytest.mark.parametrize("alpha", [0.5, 10.0, 1000.0, 1e6])
def test_an_elu_that_cancels_near_zero(alpha: float) -> None:
    """alpha (exp(x) - 1) in float32, as libraries compute it, is off by alpha 2^-24 and more."""
    size = 64
    net = polytriton.compile(_alone("Elu", size, alpha=alpha))
    x = -np.random.default_rng(4).random((40, size)).astype(np.float32) * np.float32(1e-3)
    found = net.bounds(x, x)
    plain = np.float32(alpha) * (np.exp(x) - np.float32(1))
    for y in (net.predict(x), plain):
        assert (np.asarray(found.lo) <= y).all() and (y <= np.asarray(found.hi)).all()
