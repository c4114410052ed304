"""Networks behind input maps, against executions in fractions that share no code with the verifier: x is computed exactly or as float32
arithmetic might, and the network runs on it with operands converted as its semantics says. The map's own operands are never converted."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton import InputMap

BITS = {"float32": 24, "tf32": 11, "bf16": 8}
Round = Callable[[Fraction, int], Fraction]


def two_layers(w1: np.ndarray, b1: np.ndarray, w2: np.ndarray) -> bytes:
    given = {"w1": w1.T, "b1": b1, "w2": w2.T}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["a"]),
            helper.make_node("MatMul", ["a", "w2"], ["y"]),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, w1.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, w2.shape[0]])],
        [numpy_helper.from_array(np.ascontiguousarray(v.astype(np.float32)), k) for k, v in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()  # type: ignore[no-any-return]


def rounded(v: Fraction, bits: int, direction: int) -> Fraction:
    """To so many bits, up (1), down (-1) or toward zero (0)."""
    if v == 0:
        return v
    power, size = 0, abs(v)
    while size >= 2**bits:
        size, power = size / 2, power + 1
    while size < 2 ** (bits - 1):
        size, power = size * 2, power - 1
    whole = int(size)
    if size != whole and direction and (direction > 0) == (v > 0):
        whole += 1
    return (1 if v > 0 else -1) * whole * Fraction(2) ** power


def total(terms: list[tuple[Fraction, Fraction]], start: Fraction, rng: np.random.Generator, way: int, bits: int) -> Fraction:
    """A sum of products in a drawn order, each operand of `bits`, each step a float32 rounded up or down."""
    made = start
    for k in rng.permutation(len(terms)):
        a, b = (v if bits == 24 else rounded(v, bits, int(rng.integers(-1, 2))) for v in terms[k])
        made = rounded(made + rounded(a * b, 24, way), 24, way)
    return made


def fractions(values: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in values.ravel()]


def execution(
    net: tuple[np.ndarray, ...], given: tuple[np.ndarray, np.ndarray], z: list[Fraction], semantics: str, rng: np.random.Generator
) -> list[Fraction]:
    way, real = int(rng.choice([-1, 1])), semantics == "real"
    exact = real or rng.random() < 0.3

    def layer(w: np.ndarray, b: list[Fraction], x: list[Fraction], bits: int, exact: bool) -> list[Fraction]:
        rows = [list(zip(fractions(row), x, strict=True)) for row in w]
        if exact:
            return [sum((a * v for a, v in row), start) for row, start in zip(rows, b, strict=True)]
        return [total(row, start, rng, way, bits) for row, start in zip(rows, b, strict=True)]

    x = layer(given[0], fractions(given[1]), z, 24, exact)
    if not real and exact:
        x = [rounded(v, 24, int(rng.integers(-1, 2))) for v in x]
    bits = BITS.get(semantics, 24)
    h = layer(net[0], fractions(net[1]), x, bits, real)
    return layer(net[2], [Fraction(0)] * len(net[2]), [max(v, Fraction(0)) for v in h], bits, real)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("semantics", ["real", *BITS])
@pytest.mark.parametrize("seed", range(3))
def test_no_execution_leaves_the_bounds(seed: int, semantics: str) -> None:
    rng = np.random.default_rng([seed, 21])
    net = tuple(rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (5,), (3, 5)))
    given = rng.standard_normal((6, 2)) * 2.0 ** rng.integers(-3, 9, (6, 1)), rng.standard_normal(6)
    verifier = polytriton.compile(two_layers(*net), semantics=semantics).map_input(InputMap(*given))
    for centre, radius in ((rng.standard_normal(2), 0.0), (rng.standard_normal(2), 0.25)):
        lo, hi = centre - radius, centre + radius
        found = verifier.bounds(lo, hi)
        points = [*product(*zip(lo, hi, strict=True)), *(lo + (hi - lo) * rng.random((4, 2)))]
        for _ in range(4):
            for point in points:
                y = execution(net, given, fractions(np.asarray(point)), semantics, rng)
                assert all(float(a) <= v <= float(b) for a, v, b in zip(found.lo[0], y, found.hi[0], strict=True))


def cancelling(semantics: str, device: str = "cpu") -> tuple[polytriton.Verifier, np.ndarray]:
    """y = relu(1024.1 z0 - 1024.2 z1 + 1): rounding of the map alone decides how wide y is, and z is no float of few bits."""
    one = np.ones((1, 1))
    net = polytriton.compile(two_layers(one, np.zeros(1), one), semantics=semantics, device=device)
    return net.map_input(InputMap(np.array([[1024.1, -1024.2]]), np.ones(1))), np.array([1.0 + 2.0**-12, 1.0 + 2.0**-12])


def test_what_float32_makes_of_the_map_is_enclosed() -> None:
    verifier, z = cancelling("float32")
    found = verifier.bounds(z, z)
    exact = Fraction(1024.1) * Fraction(z[0]) - Fraction(1024.2) * Fraction(z[1]) + 1
    for way in (-1, 1):
        first, second = (rounded(Fraction(a) * Fraction(v), 24, way) for a, v in zip((1024.1, -1024.2), z, strict=True))
        y = rounded(rounded(first + 1, 24, way) + second, 24, way)
        assert abs(y - exact) > Fraction(1, 2**14)
        assert float(found.lo[0][0]) <= y <= float(found.hi[0][0])
    sharp, z = cancelling("real")
    near = sharp.bounds(z, z)
    assert float(near.lo[0][0]) <= exact <= float(near.hi[0][0])
    assert float(near.hi[0][0] - near.lo[0][0]) < 1e-9


@pytest.mark.parametrize("semantics", ["tf32", "bf16", "float16"])
def test_the_map_is_executed_by_nobodys_tensor_cores(semantics: str) -> None:
    """bf16 operands of the map would move y by 8: its own conversion of x, some 1, and of what follows by 2^-7 each."""
    verifier, z = cancelling(semantics)
    found = verifier.bounds(z, z)
    assert float(found.hi[0][0] - found.lo[0][0]) < 0.1


def test_the_network_converts_what_the_map_makes() -> None:
    """y = relu(x0 - x1 + 1) of x0 = x1 = z: bf16 may take 300.7 for 302 and for 300. Merged with the map, the layer would meet z alone."""
    net = polytriton.compile(two_layers(np.array([[1.0, -1.0]]), np.ones(1), np.ones((1, 1))), semantics="bf16")
    found = net.map_input(InputMap(np.ones((2, 1)))).bounds([300.7], [300.7])
    z = Fraction(300.7)
    up, down = rounded(z, 8, 1), rounded(z, 8, -1)
    assert (up, down) == (302, 300)
    assert float(found.lo[0][0]) <= max(Fraction(0), down - up + 1) and up - down + 1 <= float(found.hi[0][0])
    assert [n.op for n in net.map_input(InputMap(np.ones((2, 1)))).net] == ["input", "linear", "linear", "relu", "linear"]


def test_kernels_charge_the_map_as_the_cpu_does() -> None:
    (kernels, z), (plain, _) = cancelling("bf16", "interpret"), cancelling("bf16")
    found, wanted = kernels.bounds(z, z), plain.bounds(z, z)
    assert np.allclose(found.lo, wanted.lo, rtol=1e-3) and np.allclose(found.hi, wanted.hi, rtol=1e-3)


def test_a_counterexample_is_what_the_model_says() -> None:
    """Unsafe beyond 0.5: found at z, where the model itself, given the map's image, errs."""
    rng = np.random.default_rng(5)
    net = tuple(rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (5,), (3, 5)))
    given = InputMap(rng.standard_normal((6, 2)), rng.standard_normal(6))
    model = polytriton.compile(two_layers(*net))
    verifier = model.map_input(given)
    _, y = verifier.variables()
    top = float(verifier.predict(np.zeros(2))[0, 0])
    result = verifier.verify(polytriton.Property((-1, 1), [y[0] >= top + 0.01]))
    assert result.verdict == "sat"
    z = result.counterexample.x.reshape(-1)
    assert np.abs(z).max() <= 1
    said = model.predict(given.image(z).astype(np.float32).astype(np.float64))[0]
    assert np.array_equal(said.astype(np.float32), np.asarray(result.counterexample.y, dtype=np.float32).ravel())
    assert said[0] >= top + 0.01


def test_decimals_that_float64_lacks_are_accounted_for() -> None:
    one = np.ones((1, 1))
    verifier = polytriton.compile(two_layers(one, np.zeros(1), one), semantics="real").map_input(InputMap([["0.1"]], ["1/3"]))
    node = verifier.net.node(verifier.net.nodes[1].name)
    assert (node.integer("outside"), node.integer("slack")) == (1, 1)
    found = verifier.bounds([3], [3])
    assert float(found.lo[0][0]) <= Fraction(3, 10) + Fraction(1, 3) <= float(found.hi[0][0])
    assert InputMap([[1]], ["1/3"]).rounded and InputMap([["0.1"], [1]]).rounded
    exact = polytriton.compile(two_layers(one, np.zeros(1), one)).map_input(InputMap([[0.1]], [0.5]))
    assert "slack" not in exact.net.nodes[1].attrs


def test_the_model_of_a_map_loads() -> None:
    """The joined model is an ONNX model of its own; read as one, the map is one of its layers, and no narrower."""
    rng = np.random.default_rng(6)
    net = tuple(rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (5,), (3, 5)))
    verifier = polytriton.compile(two_layers(*net)).map_input(InputMap(rng.standard_normal((6, 2))))
    assert verifier.imported is not None
    onnx.checker.check_model(verifier.imported.model)
    plain = polytriton.compile(verifier.imported.model).bounds([-1, -1], [1, 1])
    own = verifier.bounds([-1, -1], [1, 1])
    assert np.allclose(plain.lo, own.lo, atol=1e-4) and np.allclose(plain.hi, own.hi, atol=1e-4)
