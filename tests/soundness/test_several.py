"""Several networks as one, against executions in fractions that share no code with the verifier: each network computes on its own input, in
its own order and with its own roundings; and against the exact extremes of small piecewise linear functions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import from_array, to_array

import polytriton
from polytriton import InputMap, Property
from tests.soundness.test_input_maps import BITS, fractions, rounded, total, two_layers

F = Fraction
Weights = tuple[np.ndarray, ...]
EXAMPLES = Path(__file__).parents[2] / "examples"


def drawn(rng: np.random.Generator, inputs: int, hidden: int = 5, outputs: int = 2) -> Weights:
    return tuple(rng.standard_normal(s).astype(np.float32) for s in ((hidden, inputs), (hidden,), (outputs, hidden)))


def execution(net: Weights, x: list[Fraction], semantics: str, rng: np.random.Generator) -> list[Fraction]:
    """Of one network: sums in a drawn order, every step rounded up or down, or exact."""
    bits, way, real = BITS.get(semantics, 24), int(rng.choice([-1, 1])), semantics == "real"

    def layer(w: np.ndarray, b: list[Fraction], x: list[Fraction]) -> list[Fraction]:
        rows = [list(zip(fractions(row), x, strict=True)) for row in w]
        if real:
            return [sum((a * v for a, v in row), start) for row, start in zip(rows, b, strict=True)]
        return [total(row, start, rng, way, bits) for row, start in zip(rows, b, strict=True)]

    h = layer(net[0], fractions(net[1]), x)
    return layer(net[2], [F(0)] * len(net[2]), [max(v, F(0)) for v in h])


@pytest.mark.parametrize("semantics", ["real", "float32", "bf16"])
@pytest.mark.parametrize("seed", range(2))
def test_no_pair_of_executions_leaves_the_bounds(seed: int, semantics: str) -> None:
    """A network, its twin and itself again, of one input: forms over all outputs, at corners and inside."""
    rng = np.random.default_rng([seed, 25])
    net = drawn(rng, 3)
    twin = tuple(v.astype(np.float16).astype(np.float32) for v in net)
    nets = [net, twin, net]
    joined = polytriton.join([polytriton.compile(two_layers(*n), semantics=semantics) for n in nets])
    forms = np.concatenate([rng.standard_normal((4, 6)), [[1, 0, -1, 0, 0, 0], [0, 1, 0, 0, 0, -1]]])
    forms = np.concatenate([forms, -forms])
    for radius in (0.0, 0.125):
        centre = rng.standard_normal(3).astype(np.float32).astype(np.float64)
        lo, hi = centre - radius, centre + radius
        least = joined.margins(lo, hi, forms)[0]
        points = [*rng.permutation(list(product(*zip(lo, hi, strict=True))))[:3], lo + (hi - lo) * rng.random(3)]
        for point in points:
            x = fractions(np.asarray(point))
            for _ in range(3):
                y = [v for n in nets for v in execution(n, x, semantics, rng)]
                for form, bound in zip(forms, least, strict=True):
                    assert F(float(bound)) <= sum(F(float(c)) * v for c, v in zip(form, y, strict=True))


def test_two_executions_of_one_network_may_round_apart() -> None:
    rng = np.random.default_rng(7)
    net = drawn(rng, 3, 8, 1)
    x = rng.standard_normal(3).astype(np.float32).astype(np.float64)
    apart = [execution(net, fractions(x), "float32", rng)[0] for _ in range(40)]
    for semantics, least in (("float32", min(apart) - max(apart)), ("real", F(0))):
        joined = polytriton.join([polytriton.compile(two_layers(*net), semantics=semantics)] * 2)
        (bound,) = joined.margins(x, x, [[1, -1]])[0]
        assert F(float(bound)) <= least and (least < 0 or bound > -1e-6)


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("seed", range(2))
def test_no_pair_behind_maps_leaves_the_bounds(seed: int, semantics: str) -> None:
    """Each network gets what its own map makes of z, exactly or rounded to float32."""
    rng = np.random.default_rng([seed, 26])
    f, g = drawn(rng, 2), drawn(rng, 3)
    maps = [(rng.standard_normal((n, 2)), rng.standard_normal(n)) for n in (2, 3)]
    joined = polytriton.join([polytriton.compile(two_layers(*n), semantics=semantics) for n in (f, g)], maps=[InputMap(*m) for m in maps])
    forms = rng.standard_normal((6, 4))
    lo, hi = np.array([-0.5, 0.25]), np.array([0.25, 0.5])
    least = joined.margins(lo, hi, forms)[0]
    for point in [*product(*zip(lo, hi, strict=True)), *(lo + (hi - lo) * rng.random((6, 2)))]:
        z = fractions(np.asarray(point))
        for _ in range(4):
            y: list[Fraction] = []
            for net, (a, b) in zip((f, g), maps, strict=True):
                x = [sum((u * v for u, v in zip(fractions(row), z, strict=True)), c) for row, c in zip(a, fractions(b), strict=True)]
                if semantics != "real":
                    x = [rounded(v, 24, int(rng.integers(-1, 2))) for v in x]
                y += execution(net, x, semantics, rng)
            for form, bound in zip(forms, least, strict=True):
                assert F(float(bound)) <= sum(F(float(c)) * v for c, v in zip(form, y, strict=True))


def test_networks_from_files_that_read_few_of_their_inputs(tmp_path: Path) -> None:
    """What is compiled has forgotten the cells that a Slice drops; the model has not."""
    rng = np.random.default_rng(6)
    net = drawn(rng, 2)
    model = onnx.ModelProto.FromString(two_layers(*net))
    graph = model.graph
    graph.initializer.extend([from_array(np.array([k], dtype=np.int64), name) for name, k in (("from", 1), ("to", 3), ("axis", 1))])
    graph.node[0].input[0] = "part"
    graph.node.insert(0, onnx.helper.make_node("Slice", ["x", "from", "to", "axis"], ["part"]))
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    plain = polytriton.compile(model)
    nets = [plain, polytriton.load(plain.save(tmp_path / "net.poly"))]
    x = rng.standard_normal((3, 5))
    for joined in (polytriton.join(nets), polytriton.join(nets[::-1]), polytriton.join(nets, maps=[InputMap(np.eye(5))] * 2)):
        assert np.array_equal(joined.predict(x), np.concatenate([plain.predict(x)] * 2, axis=1))
        found = joined.bounds(x, x)
        assert (np.asarray(found.lo) <= joined.predict(x)).all() and (joined.predict(x) <= np.asarray(found.hi)).all()


# ---- exact extremes of functions of one number -------------------------------------------------------------------


def value(net: Weights, x: Fraction) -> Fraction:
    return execution(net, [x], "real", np.random.default_rng(0))[0]


def kinks(net: Weights, lo: Fraction, hi: Fraction) -> list[Fraction]:
    """Where its slope may change, and both ends."""
    found = [-b / w for w, b in zip(fractions(net[0]), fractions(net[1]), strict=True) if w]
    return sorted({lo, hi, *(x for x in found if lo < x < hi)})


TIED = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,1]) (declare-output Y float32 [1,1]))
(declare-network g {like}(declare-input U float32 [1,1]) (declare-output V float32 [1,1]))
(assert (and (>= X[0,0] -1) (<= X[0,0] 1) (>= U[0,0] -1) (<= U[0,0] 1)))
(assert {tie})
(assert (>= Y[0,0] (+ V[0,0] {by})))
"""


@pytest.mark.parametrize(
    "tie, like", [("(== X[0,0] U[0,0])", ""), ("(<= X[0,0] U[0,0])", "(equal-to f) "), ("(<= (- X[0,0] U[0,0]) 0.25)", "")]
)
@pytest.mark.parametrize("seed", range(2))
def test_verdicts_on_both_sides_of_the_exact_extreme(seed: int, tie: str, like: str) -> None:
    """The greatest f(x) - g(u) over the tied pairs is at kinks, of x or of u, or where the tie or a box holds exactly."""
    rng = np.random.default_rng([seed, 27])
    f = drawn(rng, 1, 4, 1)
    g = f if like else tuple(np.asarray(v + rng.standard_normal(v.shape).astype(np.float32) / 8, np.float32) for v in f)
    off = F(1, 4) if "0.25" in tie else F(0)
    xs, us = kinks(f, F(-1), F(1)), kinks(g, F(-1), F(1))
    if "==" in tie:
        pairs = [(x, x) for x in {*xs, *us}]
    else:  # x <= u + off
        at = [(x, u) for x in xs for u in us if x <= u + off]
        pairs = [*at, *((x, x - off) for x in xs if -1 <= x - off <= 1), *((u + off, u) for u in us if -1 <= u + off <= 1)]
    most = max(value(f, x) - value(g, u) for x, u in pairs)
    nets = {"f": polytriton.compile(two_layers(*f), semantics="real"), "g": polytriton.compile(two_layers(*g), semantics="real")}
    if like:
        del nets["g"]
    for by, wanted in ((float(most) + 0.0625, "unsat"), (float(most) - 0.0625, "sat")):
        joined = polytriton.join(nets, TIED.format(tie=tie, like=like, by=by))
        assert joined.joint is not None
        result = joined.verify(joined.joint, timeout=60)
        assert result.verdict == wanted
        if result.counterexample is not None:
            told = joined.joint.assignment(result.counterexample.x, result.counterexample.y)
            x, u = (F(float(told[k].item())) for k in "XU")
            assert x == u if "==" in tie else x <= u + off
            assert abs(value(f, x) - value(g, u) - (F(float(told["Y"].item())) - F(float(told["V"].item())))) < F(1, 2**16)


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize(
    "fixed",
    [
        "(== X[0,0] 0.5) (== U[0,0] -0.25)",
        "(== X[0,0] 0.5) (== U[0,0] X[0,0])",
        "(== X[0,0] 0.5) (== U[0,0] (- X[0,0] 0.75))",
        "(== X[0,0] (+ U[0,0] 0.75)) (== U[0,0] -0.25)",
        "(<= X[0,0] U[0,0]) (>= X[0,0] 0.5) (<= U[0,0] 0.5)",
    ],
)
def test_inputs_that_are_all_fixed_are_one_point(fixed: str, semantics: str) -> None:
    """By numbers, by ties or by both: what is left is decided by the two values there."""
    rng = np.random.default_rng(29)
    f, g = (drawn(rng, 1, 4, 1) for _ in range(2))
    x, u = F(1, 2), F(1, 2) if "U[0,0] X" in fixed or "<=" in fixed else F(-1, 4)
    apart = value(f, x) - value(g, u)
    nets = {name: polytriton.compile(two_layers(*net), semantics=semantics) for name, net in (("f", f), ("g", g))}
    for by, wanted in ((float(apart) + 2.0**-10, "unsat"), (float(apart) - 2.0**-10, "sat")):
        joined = polytriton.join(nets, TIED.format(tie=f"(and {fixed})", like="", by=by))
        assert joined.joint is not None
        result = joined.verify(joined.joint, timeout=60)
        assert result.verdict == wanted
        if result.counterexample is not None:
            told = joined.joint.assignment(result.counterexample.x, result.counterexample.y)
            assert (F(float(told["X"].item())), F(float(told["U"].item()))) == (x, u)


def test_inputs_fixed_at_a_decimal_are_run_beside_it() -> None:
    """As with one network: of 0.1 and of ties that add to it there is no float32 number, so only of real numbers one says sat."""
    rng = np.random.default_rng(30)
    f = drawn(rng, 1, 4, 1)
    for semantics, wanted in (("real", "sat"), ("float32", "unknown")):
        net = polytriton.compile(two_layers(*f), semantics=semantics)
        for tie in ("(== U[0,0] X[0,0])", "(== U[0,0] (+ X[0,0] 0.1))"):
            joined = polytriton.join({"f": net}, TIED.format(tie=f"(and (== X[0,0] 0.1) {tie})", like="(equal-to f) ", by=-9))
            assert joined.joint is not None and joined.verify(joined.joint, timeout=20).verdict == wanted


def test_a_classifier_and_its_rounded_twin(tmp_path: Path) -> None:
    """A convolutional network of an image of three axes, and a twin of weights rounded to float16: bounds hold what both answer."""
    model = onnx.load(EXAMPLES / "digits_conv_ibp.onnx")
    for t in model.graph.initializer:
        if (w := to_array(t)).dtype == np.float32:
            t.CopyFrom(from_array(w.astype(np.float16).astype(np.float32), t.name))
    onnx.save(model, tmp_path / "twin.onnx")
    joined = polytriton.join([polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx"), polytriton.compile(tmp_path / "twin.onnx")])
    image = np.load(EXAMPLES / "digits.npz")["images"][0].astype(np.float64)
    differences = np.concatenate([np.eye(10), -np.eye(10)], axis=1)
    least = joined.margins(image - 0.005, image + 0.005, np.concatenate([differences, -differences]), effort="quick")[0]
    rng = np.random.default_rng(0)
    y = joined.predict(image + 0.005 * rng.uniform(-1, 1, (20, *image.shape)))
    seen = (y[:, :10] - y[:, 10:]).T
    assert (least[:10] <= seen.min(1)).all() and (least[10:] <= -seen.max(1)).all()
    assert least.min() > -0.05 > -0.5 > joined.bounds(image - 0.005, image + 0.005, effort="quick").lo.min()


def test_a_file_holds_the_joined_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    nets = [polytriton.compile(two_layers(*drawn(rng, 2))) for _ in range(2)]
    joined = polytriton.join(nets)
    again = polytriton.load(joined.save(tmp_path / "pair.poly"))
    x = rng.standard_normal((3, 2))
    assert np.array_equal(again.predict(x), np.concatenate([n.predict(x) for n in nets], axis=1))
    assert np.array_equal(again.bounds(x, x).lo, joined.bounds(x, x).lo)
    _, y = joined.variables()
    same = Property(([0, 0], [1, 1]), unsafe=y[0] >= 1000)
    assert joined.verify(same).verdict == again.verify(same).verdict == "unsat"


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_no_pair_of_tied_inputs_leaves_the_bounds(semantics: str) -> None:
    """The first inputs equal, the second apart by d, the third free: variables X0, X1, X2, U1 - X1, U2."""
    rng = np.random.default_rng(28)
    f, g = drawn(rng, 3), drawn(rng, 3)
    text = TIED[: TIED.index("(assert")].format(like="").replace("[1,1]) (declare-out", "[3]) (declare-out").replace("[1,1]", "[2]")
    text += "".join(f"(assert (and (>= {v}[{k}] -1) (<= {v}[{k}] 1)))" for v in "XU" for k in range(3))
    text += "(assert (and (== X[0] U[0]) (<= X[1] U[1]) (<= U[1] (+ X[1] 0.5)) (<= Y[0] V[0])))"
    nets = {name: polytriton.compile(two_layers(*net), semantics=semantics) for name, net in (("f", f), ("g", g))}
    joined = polytriton.join(nets, text)
    assert joined.joint is not None
    names = [joined.joint.input.element(i, "2.0") for i in range(joined.inputs)]
    assert names == ["X[0]", "X[1]", "X[2]", "(U[1] - X[1])", "U[2]"]
    lo, hi = np.array([-0.5, -0.25, 0.0, 0.0, 0.25]), np.array([-0.25, 0.25, 0.5, 0.25, 0.5])
    forms = rng.standard_normal((6, 4))
    least = joined.margins(lo, hi, forms)[0]
    for point in [*rng.permutation(list(product(*zip(lo, hi, strict=True))))[:6], lo + (hi - lo) * np.round(rng.random(5) * 64) / 64]:
        z = fractions(np.asarray(point))
        for _ in range(3):
            y = execution(f, z[:3], semantics, rng) + execution(g, [z[0], z[1] + z[3], z[4]], semantics, rng)
            for form, bound in zip(forms, least, strict=True):
                assert F(float(bound)) <= sum(F(float(c)) * v for c, v in zip(form, y, strict=True))
