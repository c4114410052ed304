"""Products of activations: exact values in fractions, and hostile float32 executions, stay within their bounds.

Executions are this file's own. A product that a sum reads may be rounded, or taken in as it is (FMA), reader by reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from flint import arb, ctx
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.errors import PolytritonError

Matrix = np.ndarray  # of Fractions, of float32 numbers, or of balls


def finish(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], inputs: list[int], outputs: list[int], opset: int = 17) -> bytes:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", inputs), ("y", outputs))]
    held = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    made = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", opset)], ir_version=9
    )
    onnx.checker.check_model(made)
    return made.SerializeToString()


@dataclass
class Gated:
    """y = W (a * b) + V (a * b) - U a, with a = A x + c, b = B x + d: two readers of one product, and one of its factors."""

    weights: dict[str, np.ndarray]

    @staticmethod
    def draw(rng: np.random.Generator) -> Gated:
        n, h, o = int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
        shapes = {"A": (h, n), "B": (h, n), "W": (o, h), "U": (o, h), "V": (o, h)}
        found = {k: (rng.standard_normal(s) * rng.choice([0.3, 1.0, 4.0])).astype(np.float32) for k, s in shapes.items()}
        if rng.random() < 0.5:  # what one reader's rounding makes, the other takes away
            found["V"] = -found["W"]
        found |= {k: rng.standard_normal(s).astype(np.float32) for k, s in (("c", h), ("d", h), ("e", o), ("f", o))}
        return Gated(found)

    def model(self) -> bytes:
        gemm = [("x", "A", "c", "a"), ("x", "B", "d", "b"), ("p", "W", "e", "q"), ("p", "V", "f", "r")]
        nodes = [helper.make_node("Gemm", [x, w, c], [y], transB=1) for x, w, c, y in gemm]
        nodes.insert(2, helper.make_node("Mul", ["a", "b"], ["p"]))
        last = (("Add", ["q", "r"], "s"), ("MatMul", ["a", "Ut"], "t"), ("Sub", ["s", "t"], "y"))
        nodes += [helper.make_node(op, read, [made]) for op, read, made in last]
        held = {k: v for k, v in self.weights.items() if k != "U"} | {"Ut": np.ascontiguousarray(self.weights["U"].T)}
        return finish(nodes, held, [1, self.weights["A"].shape[1]], [1, len(self.weights["W"])])

    def exact(self, x: np.ndarray) -> list[Fraction]:
        w = {k: np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(v) for k, v in self.weights.items()}
        xs = np.array([Fraction(float(v)) for v in x], dtype=object)
        a, b = w["A"].dot(xs) + w["c"], w["B"].dot(xs) + w["d"]
        return list(w["W"].dot(a * b) + w["e"] + w["V"].dot(a * b) + w["f"] - w["U"].dot(a))

    def execute(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        w, one = self.weights, np.float32
        a, b = (total(w[m], x, w[c], rng) for m, c in (("A", "c"), ("B", "d")))
        product = a.astype(np.float64) * b  # exact: 48 bits
        outs = []
        for m, c in (("W", "e"), ("V", "f")):
            taken = np.where(rng.random(len(product)) < 0.5, product, product.astype(one))
            outs.append(np.array([ordered(w[m][i].astype(np.float64) * taken, w[c][i], rng) for i in range(len(w[m]))], one))
        t = total(w["U"], a, np.zeros(len(w["U"]), one), rng)
        return ((outs[0] + outs[1]).astype(one) - t).astype(one)


def ordered(terms: np.ndarray, more: float, rng: np.random.Generator) -> np.float32:
    """A float32 sum in any order; each term is rounded first, or by the addition alone."""
    found = np.float32(0)
    for term in rng.permutation(np.append(terms, more)):
        found = np.float32(float(found) + float(term)) if rng.random() < 0.5 else np.float32(found + np.float32(term))
    return found


def total(w: np.ndarray, x: np.ndarray, c: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array([ordered(w[i].astype(np.float64) * x, c[i], rng) for i in range(len(w))], np.float32)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(k, marks=pytest.mark.slow) for k in range(12, 160))])
def test_nothing_leaves_the_bounds_of_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = Gated.draw(rng)
    n = drawn.weights["A"].shape[1]
    middle, radius = rng.standard_normal(n).astype(np.float32), np.float32(rng.choice([0.0, 1e-6, 1e-2, 1.0]))
    lo, hi = middle - radius, middle + radius
    for semantics in ("real", "float32"):
        net = polytriton.compile(drawn.model(), semantics=semantics)
        for effort in ("quick", "best"):
            found = net.bounds(lo[None], hi[None], effort=effort)
            low, high = (np.asarray(v, np.float64).reshape(-1) for v in (found.lo, found.hi))
            assert np.isfinite(low).all() and np.isfinite(high).all()
            for _ in range(15):
                share = rng.integers(0, 2, n) if rng.random() < 0.6 else rng.random(n)
                x = np.clip((lo + (hi - lo) * share).astype(np.float32), lo, hi)
                if semantics == "real":
                    for y, a, b in zip(drawn.exact(x), low.tolist(), high.tolist(), strict=True):
                        assert Fraction(a) <= y <= Fraction(b), (seed, x)
                else:
                    y = drawn.execute(x, rng).astype(np.float64)
                    assert (low <= y).all() and (y <= high).all(), (seed, x, y, low, high)


# ---- attention ----------------------------------------------------------------------------------------------


def attention(rng: np.random.Generator, heads: int, tokens: int, width: int, axis: int) -> tuple[bytes, dict[str, np.ndarray]]:
    """softmax(Q K^T / 2) V of three layers over the tokens' inputs, without sums over heads."""
    inputs = 3
    held = {k: (rng.standard_normal((inputs, heads * width)) * 0.7).astype(np.float32) for k in "QKV"}
    nodes = []
    for k, perm in (("Q", [0, 2, 1, 3]), ("K", [0, 2, 3, 1]), ("V", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["x", k], [f"{k}1"]), helper.make_node("Reshape", [f"{k}1", "split"], [f"{k}2"]),
            helper.make_node("Transpose", [f"{k}2"], [f"{k}3"], perm=perm),
        ]  # fmt: skip
    nodes += [
        helper.make_node("MatMul", ["Q3", "K3"], ["s1"]), helper.make_node("Div", ["s1", "two"], ["s2"]),
        helper.make_node("Softmax", ["s2"], ["s3"], axis=axis), helper.make_node("MatMul", ["s3", "V3"], ["y"]),
    ]  # fmt: skip
    constants = {**held, "split": np.array([1, tokens, heads, width], np.int64), "two": np.array(2.0, np.float32)}
    return finish(nodes, constants, [1, tokens, inputs], [1, heads, tokens, width]), held


def attend(x: np.ndarray, held: dict[str, np.ndarray], heads: int, width: int, axis: int) -> list[arb]:
    """The same in balls."""
    tokens, ball = len(x), np.vectorize(lambda v: arb(float(v)), otypes=[object])
    q, k, v = (ball(x).dot(ball(held[n])).reshape(tokens, heads, width).transpose(1, 0, 2) for n in "QKV")
    found = []
    for h in range(heads):
        powers = np.vectorize(lambda t: (t / 2).exp(), otypes=[object])(q[h].dot(k[h].T))
        shares = powers / powers.sum(axis=1 if axis == -1 else 0, keepdims=True)
        found += list(shares.dot(v[h]).reshape(-1))
    return found


@pytest.mark.parametrize(("heads", "tokens", "axis"), [(1, 3, -1), (2, 2, -1), (2, 3, 2)])
def test_attention(heads: int, tokens: int, axis: int) -> None:
    rng = np.random.default_rng([heads, tokens])
    model, held = attention(rng, heads, tokens, 2, axis)
    net = polytriton.compile(model, semantics="real")
    deployed = polytriton.compile(model, semantics="float32")
    assert deployed.options.semantics == "float32,softmax=8"
    for radius in (0.0, 1e-3, 0.2):
        x = rng.standard_normal((tokens, 3)).astype(np.float32)
        lo, hi = x - np.float32(radius), x + np.float32(radius)
        found, wide = (n.bounds(lo[None], hi[None]) for n in (net, deployed))
        low, high = (np.asarray(v).reshape(-1).tolist() for v in (found.lo, found.hi))
        assert max(b - a for a, b in zip(low, high, strict=True)) < 1e-9 + 60 * radius
        for _ in range(12):
            point = np.clip((lo + (hi - lo) * rng.integers(0, 2, lo.shape)).astype(np.float32), lo, hi)
            with ctx.workprec(200):
                for y, a, b in zip(attend(point, held, heads, 2, axis), low, high, strict=True):
                    assert arb(a) <= y <= arb(b), (radius, point)
            y = deployed.predict(point[None]).reshape(-1)  # one execution
            assert (np.asarray(wide.lo).reshape(-1) <= y).all() and (y <= np.asarray(wide.hi).reshape(-1)).all()


def test_a_matrix_product_whose_operands_are_converted_has_no_bound() -> None:
    model, _ = attention(np.random.default_rng(0), 1, 2, 2, -1)
    x = np.zeros((1, 2, 3), np.float32)
    for semantics, bounded in (("float32", True), ("tf32", False), ("bf16", False)):
        found = polytriton.compile(model, semantics=semantics).bounds(x, x)
        assert bool(np.isfinite(np.asarray(found.lo)).all()) == bounded


def test_quotients() -> None:
    """By an activation above 0 there are bounds, by another none."""
    held = {"A": np.array([[1.0], [2.0]], np.float32), "two": np.array([2.5, 0.75], np.float32)}
    steps = (("Exp", ["a"], "b"), ("Div", ["a", "b"], "c"), ("Div", ["two", "b"], "d"), ("Sub", ["c", "d"], "y"))
    nodes = [helper.make_node("Gemm", ["x", "A"], ["a"], transB=1), *(helper.make_node(op, read, [made]) for op, read, made in steps)]
    model = finish(nodes, held, [1, 1], [1, 2])
    lo, hi = np.array([[-0.5]], np.float32), np.array([[0.25]], np.float32)
    found = polytriton.compile(model, semantics="real").bounds(lo, hi)
    low, high = (np.asarray(v).reshape(-1).tolist() for v in (found.lo, found.hi))
    for t in np.linspace(-0.5, 0.25, 40):
        with ctx.workprec(120):
            x = arb(float(t))
            for k, (scale, dividend) in enumerate(((1, 2.5), (2, 0.75))):
                y = (scale * x - arb(dividend)) / (scale * x).exp()
                assert arb(low[k]) <= y <= arb(high[k])
    nodes[1] = helper.make_node("Tanh", ["a"], ["b"])
    found = polytriton.compile(finish(nodes, held, [1, 1], [1, 2]), semantics="real", check=False).bounds(lo, hi)
    assert not np.isfinite(np.asarray(found.lo)).any()


def test_shapes_that_do_not_multiply_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("MatMul", ["x", "a"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3]), ("y", [1, 3]))]
    made = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(PolytritonError, match="do not multiply"):
        polytriton.compile(made.SerializeToString())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_rounds_once(dtype: str) -> None:
    """Of two inputs, either way: nothing else rounds."""
    held = {"cut": np.array([1, 1], np.int64)}
    nodes = [helper.make_node("Split", ["x", "cut"], ["a", "b"], axis=1), helper.make_node("Mul", ["a", "b"], ["y"])]
    net = polytriton.compile(finish(nodes, held, [1, 2], [1, 1]), dtype=dtype)
    x = np.random.default_rng(8).standard_normal((50, 2)).astype(np.float32)
    found = net.bounds(x, x)
    exact = x[:, 0].astype(np.float64) * x[:, 1]
    near = exact.astype(np.float32)
    for y in (np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)), near):
        rounded = np.abs(y - exact) <= np.spacing(np.abs(near))  # one of both neighbours, or the number itself
        inside = (np.asarray(found.lo)[:, 0] <= y) & (y <= np.asarray(found.hi)[:, 0])
        assert inside[rounded].all() and rounded.any()


TWICE = {  # z = x0 x0 or x0 x1, in the ways that a sum may take it in without rounding it
    "a square": [("Gather", ["x", "0"], "a"), ("Mul", ["a", "a"], "z")],
    "a power": [("Gather", ["x", "0"], "a"), ("Pow", ["a", "two"], "z")],
    "a product": [("Gather", ["x", "0"], "a"), ("Gather", ["x", "1"], "b"), ("Mul", ["a", "b"], "z")],
    "a product that moved": [("Gather", ["x", "turned"], "b"), ("Mul", ["x", "b"], "p"), ("Gather", ["p", "0"], "z")],
}


@pytest.mark.parametrize("how", TWICE)
def test_one_reader_of_a_product_may_round_it_and_another_not(how: str) -> None:
    """z + c as one fused operation rounded down, and z rounded up: they differ by one unit more than the sum alone may round."""
    held = {"0": np.array([0], np.int64), "1": np.array([1], np.int64), "2": np.array([2], np.int64)}
    held |= {"turned": np.array([1, 0, 2], np.int64), "two": np.array(2, np.float32)}
    steps = [*TWICE[how], ("Gather", ["x", "2"], "c"), ("Add", ["z", "c"], "s")]
    nodes = [helper.make_node(op, read, [made], **({"axis": 1} if op == "Gather" else {})) for op, read, made in steps]
    nodes.append(helper.make_node("Concat", ["s", "z"], ["y"], axis=1))
    read = {name for node in nodes for name in node.input}
    net = polytriton.compile(finish(nodes, {k: v for k, v in held.items() if k in read}, [1, 3], [1, 2]))
    unit = 2.0**-23
    x, c = np.float32(1 + 3 * unit), np.float32(unit * (1 - 2.0**-19))
    exact, up, fused = Fraction(float(x)) ** 2, 1 + 7 * Fraction(unit), 1 + 6 * Fraction(unit)
    assert up - Fraction(unit) < exact < up and fused < exact + Fraction(float(c)) < fused + Fraction(unit)
    point = np.array([[x, x, c]])
    for effort in ("quick", "tight"):
        assert net.margins(point, point, np.array([[1.0, -1.0]]), effort=effort)[0, 0] <= fused - up


@pytest.mark.parametrize(("exponent", "reach"), [(60, -70), (30, -70), (60, -60), (-100, 50)])
def test_a_factor_that_onnxruntime_puts_behind_a_matrix_product(exponent: int, reach: int) -> None:
    """(2^e x) x^T is computed as 2^e (x x^T): products below the normal range are enlarged."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["q"]), helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])]
    nodes.append(helper.make_node("MatMul", ["q", "t"], ["y"]))
    net = polytriton.compile(finish(nodes, {"s": np.float32(2.0) ** np.float32(exponent)}, [1, 2, 3], [1, 2, 2]))
    rng = np.random.default_rng(abs(exponent))
    for _ in range(5):
        x = (rng.uniform(1, 2, (1, 2, 3)) * 2.0**reach).astype(np.float32)
        found, y = net.bounds(x, x, effort="quick"), net.predict(x).reshape(-1)
        assert (np.asarray(found.lo).reshape(-1) <= y).all() and (y <= np.asarray(found.hi).reshape(-1)).all()


@pytest.mark.parametrize("terms", [4, 24])
def test_the_sum_of_a_softmax_may_be_taken_in_any_order(terms: int) -> None:
    """One number of 1, and others that vanish beside it when they are added one at a time: far more than the stated error."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    net = polytriton.compile(finish(nodes, {}, [1, terms], [1, terms]))
    rng = np.random.default_rng(terms)
    for small in (-16.64, -16.7, -10.0, -3.0):
        x = np.full((1, terms), small, np.float32)
        x[0, rng.integers(terms)] = 0
        found = net.bounds(x, x, effort="quick")
        powers = np.exp(x[0])
        for order in (np.argsort(powers), np.argsort(-powers), rng.permutation(terms)):
            y = powers / np.add.accumulate(powers[order])[-1]
            assert (np.asarray(found.lo) <= y).all() and (y <= np.asarray(found.hi)).all()


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
def test_a_share_of_large_or_small_sums_keeps_its_digits(size: float) -> None:
    """x^3 / sum x^3: the inverse of a sum of a million errs by its own last places, not by those of 1."""
    nodes = [helper.make_node("Pow", ["x", "three"], ["p"]), helper.make_node("ReduceSum", ["p"], ["s"], keepdims=1)]
    nodes.append(helper.make_node("Div", ["p", "s"], ["y"]))
    net = polytriton.compile(finish(nodes, {"three": np.float32(3)}, [1, 5], [1, 5]))
    rng = np.random.default_rng(6)
    for _ in range(20):
        x = (rng.uniform(1, 2, (1, 5)) * size).astype(np.float32)
        found = net.bounds(x, x)
        low, high = np.asarray(found.lo, np.float64), np.asarray(found.hi, np.float64)
        assert (high - low < 1e-4).all()
        for order in (np.arange(5), np.arange(5)[::-1]):
            p = x * x * x
            total = np.float32(0)
            for k in order:
                total = np.float32(total + p[0, k])
            for y in (p / total, p * (np.float32(1) / total), net.predict(x)):
                assert (low <= y).all() and (y <= high).all()


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("gap", [29.0, 31.0, 80.0, 1e4])
def test_a_softmax_of_far_apart_logits_has_bounds(gap: float, semantics: str) -> None:
    """Its terms are capped: exp(gap) may be no float32, the share is at most 1."""
    terms = 9
    net = polytriton.compile(finish([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {}, [1, terms], [1, terms]), semantics=semantics)
    rng = np.random.default_rng(int(gap))
    middle = np.where(np.arange(terms) % 3 == 0, gap, 0.0).astype(np.float32)
    for radius in (1e-3, 1.0, gap):
        lo, hi = ((middle + s * radius).astype(np.float32)[None] for s in (-1, 1))
        found = net.bounds(lo, hi)
        low, high = (np.asarray(v, np.float64) for v in (found.lo, found.hi))
        assert (low >= -1e-4).all() and (high <= 1 + 1e-4).all() and (high - low >= 0).all()
        for _ in range(30):
            x = np.where(rng.random(terms) < 0.5, rng.choice([0, 1], terms), rng.random(terms)) * (hi - lo).astype(float) + lo
            x = np.clip(x.astype(np.float32), lo, hi).astype(float)
            y = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
            assert (low <= y + 1e-15).all() and (y - 1e-15 <= high).all()


def test_a_share_of_one_is_off_by_what_is_stated() -> None:
    """A library that is off by `softmax=1000` elsewhere need not return 1 here."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    net = polytriton.compile(finish(nodes, {}, [1, 1, 3], [1, 1, 3]), semantics="float32,softmax=1000")
    found = net.bounds(np.zeros((1, 1, 3)), np.ones((1, 1, 3)))
    off = 1000 * 2.0**-23
    low, high = np.asarray(found.lo), np.asarray(found.hi)
    assert (low <= 1 - off).all() and (high >= 1 + off).all() and (low >= 1 - 2 * off).all() and (high <= 1 + 2 * off).all()


def test_a_softmax_of_what_overflows_is_read_all_the_same() -> None:
    """On the extreme inputs of the comparison onnxruntime's answer is NaN: that says nothing."""
    nodes = [helper.make_node("Exp", ["x"], ["p"]), helper.make_node("Softmax", ["p"], ["q"]), helper.make_node("Sigmoid", ["q"], ["y"])]
    x = np.array([[0.5, -1.0, 2.0]], np.float32)
    net = polytriton.compile(finish(nodes, {}, [1, 3], [1, 3]))
    found, y = net.bounds(x, x), net.predict(x)
    assert (np.asarray(found.lo) <= y).all() and (y <= np.asarray(found.hi)).all() and (np.asarray(found.hi) - found.lo < 1e-4).all()
