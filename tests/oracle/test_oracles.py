"""The oracles against each other, against torch, against IEEE hardware, and against numbers worked by hand."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from polytriton.ir.curves import CURVES
from polytriton.ir.interp import evaluate
from polytriton.ir.net import Builder, Net
from polytriton.ir.ops import OPS
from tests.oracle.deeppoly import DeepPoly, jacobians
from tests.oracle.exact import FORMATS, Dyadic, Machine, attack_points, exact, exact_forms, float32_points, float32_runs, round_to, terms
from tests.oracle.nets import BOXES, nets, random_box, random_net, toy_conv, toy_dense, toy_residual

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)


def test_generator_reaches_every_operator_and_is_repeatable() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        net = random_net(seed)
        assert seed % 5 or net == random_net(seed)
        seen.update({n.op for n in net})
        seen.update(f"conv g{n.integer('g', 1) > 1} s>k{n.ints('s')[0] > n.ints('k')[0]}" for n in net if n.op == "conv")
        seen.update("asymmetric" for n in net if n.op == "conv" and n.ints("p")[:2] != n.ints("p")[2:])
        seen.update("take" for n in net if "take" in n.attrs)
        seen.update(f"output {n.op}" for n in net if n.name == net.output)
        seen.update("output read" for n in net if net.output in n.inputs)
    assert set(OPS) - {*CURVES, "mul"} <= set(seen)  # those are drawn in tests/soundness/test_curves.py and test_products.py
    wanted = ("conv gTrue s>kFalse", "conv gFalse s>kTrue", "asymmetric", "take", "output relu", "output add", "output read")
    assert all(seen[w] >= 3 for w in wanted), seen


@SETTINGS
@given(nets())
def test_layer_tables_are_the_interpreters_layers(net: Net) -> None:
    for node in net:
        if OPS[node.op].kind in ("affine", "layout"):
            t, (matrices, constant) = terms(net, node), jacobians(net, node)
            dense = np.zeros((node.size, sum(m.shape[1] for m in matrices)))
            at = np.nonzero(t.cell >= 0)
            np.add.at(dense, (at[0], t.cell[at]), t.weight[at])
            assert (dense == np.concatenate(matrices, axis=1)).all(), node
            assert (t.bias == constant).all(), node


@SETTINGS
@given(nets())
def test_exact_values_are_the_float64_ones_up_to_rounding(net: Net) -> None:
    lo, hi = random_box(np.random.default_rng(0), net, "ordinary", batch=2)
    near, true = evaluate(net, hi), exact(net, hi)
    poly = DeepPoly(net)
    for k in range(2):
        boxes = poly.bounds(lo[k], hi[k])
        for node in net:
            slack = 1e-12 * max(1.0, *(np.abs(b).max() for b in boxes.boxes[node.name]), boxes.mass.get(node.name, np.zeros(1)).max())
            if node.name in boxes.mass:  # elsewhere nothing says how much cancelled on the way
                assert np.abs(near[node.name][k] - true[node.name].nearest()[k]).max() <= slack * 100, node


def test_convolution_and_pool_are_torchs() -> None:
    rng = np.random.default_rng(3)
    b = Builder("n")
    x = b.input((4, 7, 6))
    w, c = rng.standard_normal((6, 2, 3, 2)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    y = b.add("conv", (x,), w=b.constant(w), b=b.constant(c), k=(3, 2), s=(2, 1), p=(1, 1, 1, 1), d=(2, 1), g=2)
    net = b.build(b.add("maxpool", (y,), k=(2, 3), s=(1, 2), p=(1, 1, 1, 1)))
    at = rng.standard_normal((2, 4, 7, 6))
    t = torch.nn.functional.conv2d(torch.tensor(at), torch.tensor(w).double(), torch.tensor(c).double(), (2, 1), (1, 1), (2, 1), 2)
    pooled = torch.nn.functional.max_pool2d(t, (2, 3), (1, 2), (1, 1))
    found = exact(net, at)[net.output].nearest()
    assert found.shape == pooled.shape and np.allclose(found, pooled.numpy(), rtol=1e-12, atol=1e-12)


def test_exact_values_in_fractions_with_directed_rounding() -> None:
    b = Builder("n")
    x = b.input((2,))
    first, bias = np.array([[0.1, 3e-45], [-7e30, 2]], np.float32), np.array([0.3, -0.0], np.float32)
    y = b.add("linear", (x,), w=b.constant(first), b=b.constant(bias))
    net = b.build(b.add("relu", (y,), slope=0.1))
    at = np.array([[0.7, -1e-300]])
    w, c = net.weights["w"].astype(float), net.weights["w_1"].astype(float)
    pre = [sum(Fraction(w[i, j]) * Fraction(at[0, j]) for j in range(2)) + Fraction(c[i]) for i in range(2)]
    want = [v if v >= 0 else Fraction(0.1) * v for v in pre]
    got = exact(net, at)[net.output]
    for i, value in enumerate(want):
        down, up = float(got.down()[0, i]), float(got.up()[0, i])
        assert got.fraction(0, i) == value
        assert Fraction(down) <= value <= Fraction(up) and up <= np.nextafter(down, np.inf)
    form = exact_forms(got, np.array([[1.0, -0.5]]))
    assert form.fraction(0, 0) == want[0] - want[1] / 2
    assert Dyadic.of(np.array([1e300, -5e-324])).fraction(1) == Fraction(-5e-324)


def test_machine_in_round_to_nearest_is_the_hardware() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(20000).astype(np.float32) * np.exp2(rng.integers(-140, 127, 20000)).astype(np.float32) for _ in range(3))
    m = Machine("nearest", True, False, rng)
    with np.errstate(all="ignore"):
        c[::2] = (a * b * rng.choice([-1, 1], 20000))[::2]  # cancelling sums
        for got, want in ((m.add(a.astype(float), c.astype(float)), a + c), (m.mul(a.astype(float), b.astype(float)), a * b)):
            assert np.array_equal(got, want.astype(float), equal_nan=True)
        half = rng.standard_normal(20000) * np.exp2(rng.integers(-30, 20, 20000))
        assert np.array_equal(round_to(half, FORMATS["float16"], "nearest", rng), half.astype(np.float16).astype(float))
        wide = np.concatenate([half * 2.0 ** rng.integers(-120, 100, 20000), a.astype(float)])
        narrow = torch.tensor(wide.astype(np.float32)).bfloat16().double().numpy()
        assert np.array_equal(round_to(wide.astype(np.float32).astype(float), FORMATS["bf16"], "nearest", rng), narrow)
        fused = m.mul_add(*(v.astype(float) for v in (a, b, c)))
    for i in range(0, 20000, 7):  # one rounding of the exact value, checked against rationals
        if np.isfinite(fused[i]) and np.isfinite(c[i]):
            gap = abs(Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])) - Fraction(fused[i]))
            unit = Fraction(float(np.spacing(np.float32(abs(fused[i])))))
            assert 2 * gap <= unit


def test_directed_modes_bracket_the_exact_value_tightly() -> None:
    rng = np.random.default_rng(6)
    a, b, c = (rng.standard_normal(500).astype(np.float32).astype(float) * 2.0 ** rng.integers(-20, 20, 500) for _ in range(3))
    down, up, zero = (Machine(mode, True, False, rng).mul_add(a, b, c) for mode in ("down", "up", "zero"))
    for i in range(500):
        true = Fraction(a[i]) * Fraction(b[i]) + Fraction(c[i])
        assert Fraction(down[i]) <= true <= Fraction(up[i]) and abs(Fraction(zero[i])) <= abs(true)
        assert np.float32(up[i]) <= np.nextafter(np.float32(down[i]), np.float32(np.inf))


@pytest.mark.slow
def test_float32_executions_differ_and_stay_near_the_exact_value() -> None:
    net, rng = toy_residual(), np.random.default_rng(7)
    x = float32_points(rng.standard_normal((2, 3, 8, 8)), np.full((3, 8, 8), -9.0), np.full((3, 8, 8), 9.0))
    true = exact(net, x)[net.output].nearest()
    outs = [run[net.output] for run in float32_runs(net, x, rng, 12)]
    assert max(np.abs(o - true).max() for o in outs) < 1e-4
    assert len({o.tobytes() for o in outs}) >= 6
    coarse = [run[net.output] for run in float32_runs(net, x, rng, 6, inputs="bf16")]
    assert 1e-4 < max(np.abs(o - true).max() for o in coarse) < 1


def test_deeppoly_on_the_papers_example() -> None:
    net = toy_dense()
    poly = DeepPoly(net)
    r = poly.bounds(np.array([-1.0, -1]), np.array([1.0, 1]))
    lo, hi = r.found[net.output]
    assert lo.tolist() == [1, 0] and hi.tolist() == [5.5, 2]
    margin, _ = poly.margins(r, np.array([[1.0, -1.0]]))
    assert margin.tolist() == [1.0]  # relu(x7) + 1 with x7 >= 0
    last = DeepPoly(net, candidates="input").bounds(np.array([-1.0, -1]), np.array([1.0, 1]))
    assert last.found[net.output][1][0] == 5.5
    assert last.found["linear_1"][0][0] == 0 and last.found["linear_1"][1][0] == 4  # settled by intervals, not substituted


def test_deeppoly_leaves_early_with_what_it_has() -> None:
    """x - x settles at nothing but the input; with an early candidate a neuron keeps a looser bound than without."""
    differs = 0
    for seed in range(60):
        net = random_net(seed, scale="normal", leaky=0.0)
        lo, hi = random_box(np.random.default_rng(seed), net, "ordinary")
        early, late = (DeepPoly(net, early=e).bounds(lo[0], hi[0]) for e in (True, False))
        out = net.output
        differs += any(not np.array_equal(early.found[n][0], late.found[n][0]) for n in early.found)
        if out in early.found:
            assert (late.found[out][0] >= early.found[out][0] - 1e-6 * (1 + early.mass[out])).mean() > 0.5
    assert differs >= 5


@settings(SETTINGS, max_examples=25)
@given(nets())
def test_deeppoly_contains_what_the_network_does(net: Net) -> None:
    rng = np.random.default_rng(1)
    for kind in ("ordinary", "touching", BOXES[rng.integers(len(BOXES))]):
        lo, hi = random_box(rng, net, kind)
        outputs = net.node(net.output).size
        C = rng.standard_normal((2, outputs))
        points = attack_points(net, lo[0], hi[0], C, rng)
        values = evaluate(net, points)
        for candidates in ("all", "input"):
            poly = DeepPoly(net, candidates)
            result = poly.bounds(lo[0], hi[0])
            for name, (low, high) in result.found.items():
                v, slack = values[name].reshape(len(points), -1), 1e-9 * result.mass[name] + 1e-300
                assert (v >= low - slack).all() and (v <= high + slack).all(), (name, candidates)
            margin, mass = poly.margins(result, C)
            assert (values[net.output].reshape(len(points), -1) @ C.T >= margin - 1e-9 * mass).all()


def test_attack_finds_the_worst_corner_of_a_linear_net_and_stays_inside() -> None:
    rng = np.random.default_rng(2)
    net = toy_conv()
    x = rng.standard_normal((3, 8, 8))
    C = np.eye(10)[1:2] - np.eye(10)[:1]
    points = attack_points(net, x - 0.01, x + 0.01, C, rng)
    assert (points >= x - 0.01).all() and (points <= x + 0.01).all()
    forms = evaluate(net, points)[net.output] @ C[0]
    chance = evaluate(net, x + rng.uniform(-0.01, 0.01, (500, 3, 8, 8)))[net.output] @ C[0]
    assert forms.min() < chance.min() - 0.5 * (chance.max() - chance.min())
