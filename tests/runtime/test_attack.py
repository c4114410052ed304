"""The falsifier and its executor."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx
from polytriton.frontend.query import Disjunct, Property, Row, float_bounds
from polytriton.ir import interp
from polytriton.ir.curves import CURVES
from polytriton.ir.net import Builder, Net
from polytriton.ir.ops import OPS
from polytriton.runtime.attack import Attack, falsify, inner_box, replayer
from polytriton.runtime.executor import RUN, torch_forward
from tests.oracle.nets import random_net

EXAMPLES = Path(__file__).parents[2] / "examples"


def replay_of(net: Net, dtype: str = "float32", calls: list[np.ndarray] | None = None):
    """Stands in for onnxruntime: the interpreter, its output rounded to the model's type."""

    def replay(x: np.ndarray) -> np.ndarray:
        assert x.dtype == np.dtype(dtype)
        assert x.shape == interp.user_shape(net)
        if calls is not None:
            calls.append(x)
        return interp.run(net, x[None])[0].astype(dtype)

    return replay


def disjunct(lo: list[Fraction], hi: list[Fraction], *rows: Row) -> Disjunct:
    return Disjunct(np.array([float_bounds(v)[0] for v in lo]), np.array([float_bounds(v)[1] for v in hi]), tuple(lo), tuple(hi), rows)


def row(y: dict[int, float], const: float, x: dict[int, float] | None = None, strict: bool = False) -> Row:
    def terms(t: dict[int, float]) -> tuple[tuple[int, Fraction], ...]:
        return tuple((i, Fraction(c)) for i, c in t.items())

    return Row(terms(y), terms(x or {}), Fraction(const), strict)


def dense(rng: np.random.Generator, *sizes: int) -> Net:
    b = Builder("dense")
    x = b.input((sizes[0],))
    for k, (n, m) in enumerate(pairwise(sizes)):
        w, c = rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal(m).astype(np.float32)
        x = b.add("linear", (x,), w=b.constant(w), b=b.constant(c))
        if k < len(sizes) - 2:
            x = b.add("relu", (x,))
    return b.build(x)


def total(n: int) -> Net:
    """y = the sum of the inputs: its extreme lies in one corner."""
    b = Builder("total")
    x = b.input((n,))
    return b.build(b.add("linear", (x,), w=b.constant(np.ones((1, n), np.float32)), b=b.constant(np.zeros(1, np.float32))))


# ---- executor ----


def test_executor_has_every_operator() -> None:
    assert set(RUN) == set(OPS)


def test_executor_equals_the_interpreter_on_every_operator() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        net = random_net(seed)
        seen.update(n.op for n in net)
        x = np.random.default_rng(seed).standard_normal((3, *interp.user_shape(net)))
        want = interp.run(net, x)
        got = torch_forward(net, torch.float64)(torch.tensor(x, dtype=torch.float64)).numpy()
        size = max(np.abs(v).max(initial=0) for v in interp.evaluate(net, x).values())
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11 * size, err_msg=f"seed {seed}")
    assert set(seen) == set(OPS) - {*CURVES, "mul"}  # those: tests/ir/test_operators.py


def test_executor_crops_where_padding_is_negative_and_differentiates() -> None:
    b = Builder("crop")
    x = b.input((1, 5, 6))
    w = np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3)
    y = b.add("conv", (x,), w=b.constant(w), b=b.constant(np.ones(2, np.float32)), k=(2, 3), s=(2, 1), p=(-1, 2, 1, -2), d=(1, 1))
    y = b.add("maxpool", (y,), k=(2, 2), p=(1, 0, 0, -1))
    net = b.build(y)
    point = np.random.default_rng(0).standard_normal((2, 1, 5, 6))
    t = torch.tensor(point, requires_grad=True)
    out = torch_forward(net, torch.float64)(t)
    np.testing.assert_allclose(out.detach().numpy(), interp.run(net, point), rtol=1e-12)
    (slope,) = torch.autograd.grad(out.sum(), t)
    assert slope[:, :, 0].abs().sum() == 0  # the first row is cropped away
    assert slope.abs().sum() > 0


# ---- finding ----


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["float32", "float64", "float16"]))
def test_planted_violations_are_found_and_are_real(seed: int, kind: str) -> None:
    """The unsafe set is what some point of the box reaches, give or take a fifth of the output's range."""
    rng = np.random.default_rng(seed)
    net = dense(rng, 6, 12, 4)
    lo = rng.standard_normal(6)
    hi = lo + rng.random(6)
    seen = interp.run(net, lo + (hi - lo) * rng.random((500, 6)))
    reach = np.sort(seen[:, 1] - seen[:, 0])
    const = float(reach[400] if len(reach) > 400 else reach[-1])
    box = [Fraction(v) for v in lo], [Fraction(v) for v in hi]
    prop = Property.from_disjuncts("planted", 6, 4, (disjunct(*box, row({0: 1.0}, -1e6)), disjunct(*box, row({0: 1.0, 1: -1.0}, -const))))
    calls: list[np.ndarray] = []
    got = falsify(net, prop, replay_of(net, kind, calls), input_dtype=kind)
    assert got is not None
    assert got.disjunct == 1
    assert got.x.dtype == np.dtype(kind)
    assert prop.violated(got.x.ravel(), replay_of(net, kind)(got.x)) == 1
    assert all(prop.disjuncts[1].contains(x) for x in calls)


def test_a_corner_of_many_inputs_is_found() -> None:
    n = 200
    box = [Fraction(-1)] * n, [Fraction(1)] * n
    net = total(n)
    got = falsify(net, Property.from_disjuncts("corner", n, 1, (disjunct(*box, row({0: -1.0}, -float(n))),)), replay_of(net))
    assert got is not None
    assert (got.x == 1).all()
    beyond = Property.from_disjuncts("beyond", n, 1, (disjunct(*box, row({0: -1.0}, -float(n), strict=True)),))
    assert falsify(net, beyond, replay_of(net), attack=Attack(restarts=3)) is None


def test_all_rows_of_a_disjunct_must_hold_and_inputs_may_stand_in_rows() -> None:
    net = total(20)
    box = [Fraction(0)] * 20, [Fraction(1)] * 20
    rows = row({0: 1.0}, 7.01), row({0: -1.0}, -7.0), row({0: 0.0}, -0.5, x={3: -1.0}), row({}, 0.25, x={4: 1.0})
    got = falsify(net, Property.from_disjuncts("slab", 20, 1, (disjunct(*box, *rows),)), replay_of(net))
    assert got is not None
    assert got.x[3] >= 0.5
    assert got.x[4] <= 0.25
    assert 7 <= float(got.x.astype(np.float64).sum()) <= 7.02


def test_what_the_original_denies_is_no_counterexample() -> None:
    net = total(3)
    prop = Property.from_disjuncts("denied", 3, 1, (disjunct([Fraction(0)] * 3, [Fraction(1)] * 3, row({0: -1.0}, 0.0)),))
    assert falsify(net, prop, lambda x: np.array([-1.0], np.float32)) is None
    assert falsify(net, prop, lambda x: np.array([np.nan], np.float32)) is None


def test_a_disjunct_without_rows_is_met_anywhere_and_none_at_all_never() -> None:
    net = total(2)
    got = falsify(net, Property.from_disjuncts("any", 2, 1, (disjunct([Fraction(0)] * 2, [Fraction(1)] * 2),)), replay_of(net))
    assert got is not None
    assert got.disjunct == 0
    assert falsify(net, Property.from_disjuncts("none", 2, 1, ()), replay_of(net)) is None


def test_starts_are_tried_first() -> None:
    net = total(30)
    prop = Property.from_disjuncts(
        "needle", 30, 1, (disjunct([Fraction(0)] * 30, [Fraction(1)] * 30, row({0: 1.0}, 3.0), row({0: -1.0}, -3.0)),)
    )
    needle = np.zeros(30)
    needle[[2, 5, 9]] = 1
    got = falsify(net, prop, replay_of(net), attack=Attack(restarts=0), starts=needle[None])
    assert got is not None
    np.testing.assert_array_equal(got.x, needle)


# ---- boxes in the model's own numbers ----


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_boxes_are_rounded_inward_exactly(kind: str) -> None:
    dtype = np.dtype(kind)
    rng = np.random.default_rng(1)
    top = Fraction(float(np.finfo(dtype).max))
    exact = [Fraction(int(rng.integers(-(10**6), 10**6)), int(rng.integers(1, 10**5))) for _ in range(200)]
    exact += [Fraction(0), Fraction(1, 10**60), -Fraction(1, 10**60), top, -top, Fraction(float(np.finfo(dtype).tiny)) / 3]
    exact += [Fraction(1) + Fraction(s, 2**k) for s in (-1, 1) for k in (10, 11, 12, 23, 24, 25, 52, 53, 54, 80)]
    exact = [v for v in exact if abs(v) <= top]
    wide = inner_box(disjunct(exact, [max(v + 1, v + abs(v)) if v < top / 4 else top for v in exact]), dtype)
    assert wide is not None
    for got, v in zip(wide[0], exact, strict=True):
        assert Fraction(float(got)) >= v
        assert v == -top or Fraction(float(np.nextafter(got, dtype.type(-np.inf)))) < v
    low = inner_box(disjunct([-top] * len(exact), exact), dtype)
    assert low is not None
    assert all(Fraction(float(g)) <= v for g, v in zip(low[1], exact, strict=True))


def test_a_box_between_two_floats_has_no_counterexample() -> None:
    tenth = Fraction(1, 10)
    near = Fraction(float(np.float32(0.1)))  # just above a tenth
    assert near > tenth
    between = disjunct([Fraction(0), tenth - Fraction(1, 10**10)], [Fraction(1), tenth + Fraction(1, 10**10)], row({0: -1.0}, 0.0))
    assert inner_box(between, np.dtype("float32")) is None
    assert inner_box(between, np.dtype("float64")) is not None
    net = total(2)
    assert falsify(net, Property.from_disjuncts("thin", 2, 1, (between,)), replay_of(net)) is None
    # beside a piece that does hold floats, only that one can be met
    wide = disjunct([Fraction(0)] * 2, [Fraction(1), near], row({0: -1.0}, -1.1))
    got = falsify(net, Property.from_disjuncts("two", 2, 1, (between, wide)), replay_of(net))
    assert got is not None
    assert got.disjunct == 1
    # one float inside: it is that one
    point = disjunct([Fraction(0), tenth], [Fraction(0), near], row({0: -1.0}, 0.0))
    got = falsify(net, Property.from_disjuncts("point", 2, 1, (point,)), replay_of(net))
    assert got is not None
    assert got.x.tolist() == [0, float(near)]


# ---- manners ----


def test_deadline_is_kept() -> None:
    net = dense(np.random.default_rng(0), 50, 300, 300, 5)
    box = [Fraction(-1)] * 50, [Fraction(1)] * 50
    prop = Property.from_disjuncts("long", 50, 5, tuple(disjunct(*box, row({k: 1.0}, -1e9)) for k in range(5)))
    calls: list[np.ndarray] = []
    assert falsify(net, prop, replay_of(net, calls=calls), deadline=time.monotonic() - 1) is None
    begin = time.monotonic()
    assert falsify(net, prop, replay_of(net, calls=calls), attack=Attack(restarts=10**5), deadline=begin + 0.5) is None
    assert time.monotonic() - begin < 10
    assert not calls


def test_same_seed_same_answer_and_the_users_torch_is_left_alone() -> None:
    net = dense(np.random.default_rng(3), 20, 30, 3)
    box = [Fraction(-1)] * 20, [Fraction(1)] * 20
    prop = Property.from_disjuncts("p", 20, 3, (disjunct(*box, row({0: 1.0, 1: -1.0}, 0.0), row({2: 1.0}, 5.0)),))
    plain = falsify(net, prop, replay_of(net))
    assert plain is not None

    def state() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("cpu"),
            torch.get_rng_state().tolist(),
        )

    threads = torch.get_num_threads()
    torch.manual_seed(17)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    try:
        for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)):
            with context:
                before = state()
                got = falsify(net, prop, replay_of(net))
                assert state() == before
                assert got is not None
                np.testing.assert_array_equal(got.x, plain.x)
        with pytest.raises(ZeroDivisionError):
            falsify(net, prop, lambda x: np.zeros(1) / (1 // 0))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)


def test_counterexamples_of_the_examples_replay_in_onnxruntime() -> None:
    imported = load_onnx(EXAMPLES / "digits_resnet_normal.onnx")
    replay = replayer(imported.model, imported.source)
    shown = np.load(EXAMPLES / "digits.npz")
    image, label = shown["images"][21].astype(np.float64).ravel(), int(shown["labels"][21])
    np.testing.assert_allclose(replay(image), interp.run(imported.net, image[None])[0], rtol=1e-4, atol=1e-4)
    wide = Property.from_box(np.clip(image - 0.1, 0, 1), np.clip(image + 0.1, 0, 1), label, 10)
    got = falsify(imported.net, wide, replay)
    assert got is not None
    assert got.x.shape == (1, 8, 8)
    assert wide.violated(got.x.ravel(), got.y) == got.disjunct
    assert got.y.argmax() != label or np.sum(got.y == got.y.max()) > 1
    still = Property.from_box(image, image, label, 10)
    assert falsify(imported.net, still, replay, attack=Attack(restarts=2)) is None


def test_a_model_that_onnxruntime_does_not_run_is_refused_in_a_line() -> None:
    """onnxruntime has no ThresholdedRelu of doubles; what is compiled without a comparison meets it here first."""
    w = numpy_helper.from_array(np.eye(2), "w")
    nodes = [helper.make_node("Gemm", ["x", "w"], ["a"]), helper.make_node("ThresholdedRelu", ["a"], ["y"], alpha=0.5)]
    ends = [[helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 2])] for name in ("x", "y")]
    proto = helper.make_model(helper.make_graph(nodes, "doubles", *ends, [w]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    net = polytriton.compile(proto, check=False)
    with pytest.raises(UnsupportedModel, match="onnxruntime has no ThresholdedRelu for the types of node") as refused:
        net.verify(np.array([[0.3, 0.4]]), epsilon=0.3, label=0)
    assert "float32" in refused.value.remedy and "--no-falsify" in refused.value.remedy
