"""The import check's own sharpness: what it must see beside anything else, and what it must not take for a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from polytriton.errors import ResourceError, UnsupportedModel
from polytriton.frontend import onnx_compare
from polytriton.frontend.onnx import Imported, cross_check, load_onnx
from polytriton.frontend.onnx_compare import Held, OnnxStep
from polytriton.frontend.onnx_enclosure import ARITHMETIC, EnclosedArithmetic, Numbers, enclose, gamma
from polytriton.ir.interp import evaluate
from polytriton.ir.net import Builder, Net
from tests.frontend.onnx_cases import LIVE
from tests.frontend.onnx_drawn import DRAWN, Draw
from tests.frontend.onnx_models import ints, model, node, rand, small

F32 = np.float32
HALF = 0.51  # the enclosure's unit is twice the nearest rounding's
MILLION = np.array([1e6, 1, 1, 1], F32)
SINGLE = ARITHMETIC["float32"]


def weights(made: Imported, **changed: np.ndarray) -> Imported:
    return replace(made, net=replace(made.net, weights={**made.net.weights, **changed}))


def attrs(made: Imported, name: str, **changed: Any) -> Imported:
    return replace(made, net=made.net.rebuild([n.with_attrs(**changed) if n.name == name else n for n in made.net]))


# ---- planted wrong translations -------------------------------------------------------------------------------


def convolution(**more: Any) -> Imported:
    """Of its four output channels one is a million times the others."""
    w = {"w": rand(4, 2, 3, 3) * MILLION[:, None, None, None], "b": rand(4) * F32(0.1), "c": rand(4, 1, 1)}
    nodes = [node("Conv", "x w b", "h", **more), node("Relu", "h", "r"), node("Add", "r c", "y")]
    return load_onnx(model(nodes, [1, 2 * more.get("group", 1), 5, 6], w))


def shifted_pads() -> Imported:
    made = convolution(pads=[1, 1, 1, 1])
    return attrs(made, "h", p=(2, 1, 0, 1))


def swapped_axes() -> Imported:
    made = convolution(pads=[1, 1, 1, 1])
    w = np.array(made.net.weights["h_w"])
    w[1] = w[1].swapaxes(1, 2)
    return weights(made, h_w=w)


def dropped_bias() -> Imported:
    made = convolution()
    return weights(made, h_b=made.net.weights["h_b"] * np.array([1, 1, 0, 1], F32))


def wrong_group() -> Imported:
    """Two groups whose operands are exchanged, seen in the small channels alone."""
    made = convolution(group=2)
    b = Builder("g")
    for n in made.net:
        if n.op == "input":
            b.input(n.shape, n.name)
        elif n.name == "h":
            kept = made.net.weights["h_w"]
            turned = b.add("slice", (n.inputs[0],), "turned", axis=0, start=3, step=-1, size=4)
            b.add("conv", (turned,), "h", **{**n.attrs, "w": b.constant(kept, "h_w"), "b": b.constant(made.net.weights["h_b"], "h_b")})
        else:
            again = {k: b.constant(made.net.weights[v.name], v.name) if hasattr(v, "name") else v for k, v in n.attrs.items()}
            b.add(n.op, n.inputs, n.name, **again)
    steps = tuple(replace(s, nodes=("turned", *s.nodes)) if s.nodes == ("h",) else s for s in made.steps)
    return replace(made, net=b.build(made.net.output), steps=steps)


def lost_slope() -> Imported:
    made = load_onnx(model([node("Mul", "x c", "h"), node("LeakyRelu", "h", "y", alpha=0.01)], [1, 4], {"c": MILLION}))
    return attrs(made, "y", slope=0.011)


def turned_slice() -> Imported:
    steps = {"s": ints(1), "e": ints(4), "a": ints(2), "c": rand(1, 2, 1) * np.array([1e6, 1], F32).reshape(1, 2, 1)}
    made = load_onnx(model([node("Mul", "x c", "h"), node("Slice", "h s e a", "y")], [1, 2, 5], steps))
    return attrs(made, "y", start=3, step=-1)


def wrong_average() -> Imported:
    made = load_onnx(model(node("AveragePool", kernel_shape=[2, 2]), [1, 1, 4, 4]))
    return weights(made, y_w=np.full((1, 1, 2, 2), 0.250001, np.float64))


def lost_constant() -> Imported:
    """A constant of 1e-3 beside one of 1e6, through a fold of the importer's own."""
    nodes = [node("Mul", "a two", "c"), node("Add", "x c", "y")]
    made = load_onnx(model(nodes, [1, 3], {"a": np.array([1e6, 1e-3, 1], F32), "two": F32(2)}))
    return weights(made, y_c=made.net.weights["y_c"] * np.array([1, 0, 1]))


@pytest.mark.parametrize(
    "plant,guilty",
    [
        (shifted_pads, "n_Conv_h"),
        (swapped_axes, "n_Conv_h"),
        (dropped_bias, "n_Conv_h"),
        (wrong_group, "n_Conv_h"),
        (lost_slope, "n_LeakyRelu_y"),
        (turned_slice, "n_Slice_y"),
        (wrong_average, "n_AveragePool_y"),
        (lost_constant, "n_Add_y"),
    ],
)
def test_an_error_beside_numbers_a_million_times_larger(plant: Callable[[], Imported], guilty: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{guilty}.*differs from onnxruntime") as e:
        cross_check(plant())
    assert "report" in e.value.remedy


@pytest.mark.parametrize("at", range(6))
def test_an_error_that_only_a_single_input_shows(at: int) -> None:
    """A weight of 1e-3 that is lost among others of 1e6: any other input is rounded by more."""
    w = np.full((2, 6), 1e6, F32)
    w[:, at] = 1e-3
    made = load_onnx(model(node("Gemm", "x w", transB=1), [1, 6], {"w": w}))
    assert cross_check(made) <= HALF
    wrong = np.array(w)
    wrong[1, at] = 0
    with pytest.raises(UnsupportedModel, match=r"at \[0, 1\]: 0 instead of 0.001"):
        cross_check(weights(made, y_w=wrong))


def test_every_one_of_a_few_inputs_is_lit_alone_and_many_are_sampled() -> None:
    few = onnx_compare._inputs(load_onnx(small()).source, 24, 0, None)[0].reshape(24, -1)
    assert all((few == np.eye(3, dtype=F32)[i]).all(1).any() for i in range(3))
    assert all((few == v).all(1).any() for v in (0, 1, -1))
    many = onnx_compare._inputs(load_onnx(model(node("Relu"), [1, 100])).source, 24, 0, None)[0].reshape(24, -1)
    lit = {int(r.argmax()) for r in many if (r != 0).sum() == 1}
    assert len(lit) == 10
    assert {0, 99} < lit
    sizes = np.abs(many[2])
    assert sizes.max() / sizes.min() > 2**30
    assert (many[2] < 0).any()


def test_messages_say_where_and_how_much() -> None:
    made = load_onnx(small())
    b = np.array(made.net.weights["h_b"])
    b[2] += 8
    with pytest.raises(UnsupportedModel) as e:
        cross_check(weights(made, h_b=b))
    assert e.value.message.startswith("node 'n_Gemm_h' (Gemm), IR node %h: the translation differs from onnxruntime at [0, 2]: ")
    assert "where rounding explains" in e.value.message


# ---- wiring ---------------------------------------------------------------------------------------------------


def test_a_node_that_reads_another_tensor() -> None:
    made = load_onnx(model([node("Relu", "x", "h"), node("Relu", "h", "g"), node("Add", "h g", "y")], [1, 3]))
    assert cross_check(made) <= HALF
    for inputs in (("x", "g"), ("h", "x")):
        nodes = [replace(n, inputs=inputs) if n.name == "y" else n for n in made.net]
        with pytest.raises(UnsupportedModel, match=r"n_Add_y.*reads %x, which holds none of its operands"):
            cross_check(replace(made, net=made.net.rebuild(nodes)))
    with pytest.raises(UnsupportedModel, match=r"output 'y'.*reads %g"):
        cross_check(replace(made, net=made.net.rebuild(made.net.nodes, output="g")))
    with pytest.raises(UnsupportedModel, match="lacks %z"):
        cross_check(replace(made, steps=tuple(replace(s, nodes=("z",)) for s in made.steps)))


def test_shapes_are_compared() -> None:
    made = load_onnx(model(node("Relu"), [1, 2, 3]))
    read, written = made.steps[0].operands, (Held("y", "y", (1, 3, 2), "float32"),)
    with pytest.raises(UnsupportedModel, match=r"tensor 'y' has shape \[1, 3, 2\] in the translation and \[1, 2, 3\] in onnxruntime"):
        cross_check(replace(made, steps=(OnnxStep("node 'n' (Relu)", read, ("y",), written),)))


def test_a_net_without_its_steps_is_translated_again() -> None:
    """As an artifact holds it."""
    made = load_onnx(small())
    assert made.steps
    assert cross_check(replace(made, steps=())) == cross_check(made)


def test_a_view_made_for_an_earlier_reader() -> None:
    """Two convolutions share the reshape of one operand; the second finds it among the first one's nodes."""
    w = {"s": ints(1, 2, 2, 3), "w": rand(2, 2, 2, 2)}
    nodes = [node("Reshape", "x s", "h"), node("Conv", "h w", "a"), node("Conv", "h w", "b"), node("Add", "a b", "y")]
    made = load_onnx(model(nodes, [1, 12], w))
    assert [len(s.nodes) for s in made.steps] == [0, 2, 1, 1]
    assert cross_check(made) <= HALF


# ---- rounding is no difference --------------------------------------------------------------------------------


def test_weights_that_cancel_are_accepted() -> None:
    """Found by an audit: in a sum with 2^24 x a rounding is about x, and x1 is all that is left of it."""
    b = F32(2**24 + 2)
    w = {"w": np.array([[b, 0, 0], [0, 1, 0], [b, 0, 0]], F32), "v": np.array([[1, 1, -1], [0, 0.25, 0]], F32)}
    made = load_onnx(model([node("Gemm", "x w", "h", transB=1), node("Relu", "h", "r"), node("Gemm", "r v", "y", transB=1)], [1, 3], w))
    assert cross_check(made) <= HALF
    for at in ((0, 1), (1, 1)):  # seen where the large terms are zero
        v = np.array(made.net.weights["y_w"])
        v[at] *= F32(1.001)
        with pytest.raises(UnsupportedModel, match="n_Gemm_y"):
            cross_check(weights(made, y_w=v))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_number_types(dtype: str) -> None:
    """A long sum of each type is accepted; an error of a few thousand roundings is seen."""
    w = {"w": rand(300, 4, dtype=dtype), "b": rand(4, dtype=dtype)}
    nodes = [node("Relu", "x", "h"), node("Gemm", "h w b", "g"), node("Relu", "g", "y")]
    made = load_onnx(model(nodes, [1, 300], w, dtype=dtype))
    assert cross_check(made) <= HALF
    wrong = np.array(made.net.weights["g_b"], np.float64)
    wrong[2] += 10 ** {"float16": 0.0, "float32": -3.0, "float64": -12.0}[dtype]
    with pytest.raises(UnsupportedModel, match="n_Gemm_g"):
        cross_check(weights(made, g_b=wrong))


def test_a_cast_between_types() -> None:
    up, down = node("Cast", "x", "d", to=TensorProto.DOUBLE), node("Cast", "e", "y", to=TensorProto.FLOAT)
    made = load_onnx(model([up, node("Div", "d c", "e"), down], [1, 4], {"c": np.array(3.0)}))
    assert cross_check(made) <= HALF


def test_numbers_that_underflow_are_accepted() -> None:
    """2^-20 * 1e-30 * 1e-10 is below every float32."""
    w = {"a": F32(1e-30), "b": F32(1e-10), "c": F32(1e30)}
    assert cross_check(load_onnx(model([node("Mul", "x a", "h"), node("Mul", "h b", "g"), node("Mul", "g c")], [1, 3], w))) <= HALF


def test_overflow_is_an_error_on_usual_inputs_only() -> None:
    """2^20 * 1e34 is beyond float32, a random number times 1e34 is not; what follows infinity is without a statement."""
    nodes = [node("Mul", "x c", "h"), node("Relu", "h", "r"), node("Gemm", "r w", "y")]
    made = load_onnx(model(nodes, [1, 3], {"c": F32(1e34), "w": rand(3, 2)}))
    assert cross_check(made) <= HALF
    w = np.array(made.net.weights["y_w"])
    w[0, 0] += 1
    with pytest.raises(UnsupportedModel, match="n_Gemm_y"):
        cross_check(weights(made, y_w=w))
    with pytest.raises(UnsupportedModel, match="onnxruntime's result is not finite"):
        cross_check(made, box=(np.full(3, 1e10), np.full(3, 1e10)))


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_the_input_are_compared_where_they_are_defined(op: str) -> None:
    """Among what is compared are numbers at which there is no result."""
    made = load_onnx(model(node(op), [1, 4]))
    assert 0 < cross_check(made) <= 1
    shifted = attrs(load_onnx(model([node("Add", "x c", "h"), node(op, "h")], [1, 4], {"c": F32(0.25)})), "h")
    with pytest.raises(UnsupportedModel, match="differs from onnxruntime"):
        cross_check(weights(shifted, **{k: v + F32(0.01) for k, v in shifted.net.weights.items() if k.endswith("_c")}))


def test_a_network_that_is_defined_nowhere_is_told_so() -> None:
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "n"), node("Sub", "n c", "h"), node("Log", "h")]
    with pytest.raises(UnsupportedModel, match=r"a number at none of the 4 ordinary inputs tried: it takes log of") as told:
        cross_check(load_onnx(model(nodes, [1, 4], {"c": F32(1)})))
    assert "check=False" in told.value.remedy
    box = np.full((1, 4), -3.0), np.full((1, 4), -2.0)
    with pytest.raises(UnsupportedModel, match="a number at none"):
        cross_check(load_onnx(model(node("Sqrt"), [1, 4])), box=box)


def test_infinity_where_nothing_overflows_is_a_difference() -> None:
    numbers, flat = Numbers(np.array([[1.0, 2.0]]), None, 3), np.array([[np.inf, 2.0]])
    with pytest.raises(UnsupportedModel, match=r"at \[0\]: 1 instead of inf"):
        onnx_compare._share("here", numbers.value, flat, numbers.allowance(SINGLE))


def test_no_memory_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(onnx_compare, "enclose", full)
    with pytest.raises(ResourceError, match="comparison"):
        cross_check(load_onnx(small()))


def test_large_networks_are_given_as_many_inputs_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kept = onnx_compare._inputs
    monkeypatch.setattr(onnx_compare, "_inputs", lambda s, most, *r, **named: asked.append(most) or kept(s, most, *r, **named))
    cross_check(load_onnx(small()))
    monkeypatch.setattr(onnx_compare, "WORK", 1)
    cross_check(load_onnx(small()))
    cross_check(load_onnx(small()), samples=7)
    monkeypatch.setattr(onnx_compare, "ROWS", 1)  # one at a time, with the same result
    assert cross_check(load_onnx(small())) <= HALF
    assert asked == [24, 4, 7, 4]


# ---- the enclosure --------------------------------------------------------------------------------------------


def chained(net: Net, x: np.ndarray, a: EnclosedArithmetic) -> dict[str, Numbers]:
    """Every node's enclosure, from exact inputs on."""
    found = {net.input.name: Numbers(x.reshape(len(x), *net.input.shape))}
    for n in net.nodes[1:]:
        found[n.name] = enclose(n, net, [found[i] for i in n.inputs], a)
    return found


@pytest.mark.parametrize("nodes,shape,kept,options", LIVE)
def test_values_are_the_interpreters_and_magnitudes_are_above(nodes: Any, shape: list[int], kept: Any, options: Any) -> None:
    net = load_onnx(model(nodes, shape, kept, **options)).net
    x = np.random.default_rng(1).standard_normal((3, net.input.size))
    wanted = evaluate(net, x)
    for name, n in chained(net, x, SINGLE).items():
        np.testing.assert_allclose(n.value, wanted[name], rtol=1e-11, atol=1e-11)
        assert n.size is None or (n.size >= np.abs(n.value) * (1 - 1e-5)).all()


@pytest.mark.parametrize("chunk", [1, 40, 1 << 21])
def test_pieces_of_a_layer(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.frontend.onnx_enclosure.CHUNK", chunk)
    b = Builder("n")
    x = b.input((4, 7, 6))
    c = b.constant(rand(6, 2, 3, 2)), b.constant(rand(6))
    y = b.add("conv", (x,), "c", w=c[0], b=c[1], k=(3, 2), s=(2, 1), p=(1, -1, -2, 2), d=(1, 2), g=2)
    z = b.add("maxpool", (y,), "m", k=(1, 2), p=(0, 1, 0, 0), s=(1, 2))
    net = b.build(b.add("linear", (z,), "l", w=b.constant(rand(5, int(np.prod(b.shape(z))))), b=b.constant(rand(5))))
    data = np.random.default_rng(2).standard_normal((3, net.input.size))
    wanted = evaluate(net, data)
    for name, n in chained(net, data, SINGLE).items():
        np.testing.assert_allclose(n.value, wanted[name], rtol=1e-11, atol=1e-11)


def test_any_order_of_summation_stays_inside() -> None:
    """Float32 sums in random orders, of terms that cancel and of terms that all round one way."""
    rng = np.random.default_rng(5)
    b = Builder("n")
    same, wild = np.full(400, 1 + 2.0**-23, F32), (rng.standard_normal(400) * 10.0 ** rng.integers(-3, 6, 400)).astype(F32)
    w = np.stack([same, wild])
    net = b.build(b.add("linear", (b.input((400,)),), "y", w=b.constant(w), b=b.constant(np.zeros(2, F32))))
    for x in (np.ones(400, F32), rng.standard_normal(400).astype(F32)):
        y = chained(net, x[None].astype(np.float64), SINGLE)["y"]
        allowed, worst = y.allowance(SINGLE)[0], 0.0
        for _ in range(200):
            p = rng.permutation(400)
            sums = np.add.accumulate((w * x)[:, p], axis=1, dtype=F32)[:, -1]
            worst = max(worst, float((np.abs(sums - y.value[0]) / allowed).max()))
        assert 1e-4 < worst <= 0.5


def test_allowances() -> None:
    assert gamma(4, 0.25) == np.inf
    assert gamma(4, 2.0**-23) == pytest.approx(4 * 2.0**-23)
    value = np.array([[1.0, np.inf, 2.0**126]])
    assert Numbers(value).allowance(SINGLE).tolist() == [[0, np.inf, 0]]
    assert Numbers(value, np.array([[4.0, np.nan, 2.0**127]]), 2).allowance(SINGLE)[0] == pytest.approx([2**-20, np.inf, np.inf], rel=1e-3)
    long = Numbers(value, np.ones((1, 3)), 10**6).allowance(ARITHMETIC["float16"])
    assert (long < 0.05).all()
    assert Numbers(np.ones((1, 1)), np.ones((1, 1)), 10**6, 7).allowance(ARITHMETIC["float64"]) < 1e-9


def test_sums_of_magnitudes_behind_a_weight_count() -> None:
    """A bias that cancelled in the import is rounded like what it came from."""
    mean = np.linspace(1e6, 2e6, 40, dtype=F32)
    parts = {"s": np.full(40, 0.3, F32), "b": mean * F32(0.3), "m": mean, "v": np.ones(40, F32)}
    made = load_onnx(model(node("BatchNormalization", "x s b m v", epsilon=0.0), [1, 40], parts))
    assert cross_check(made) <= HALF
    assert np.abs(made.net.weights["y_c"]).max() < 1


# ---- drawn ----------------------------------------------------------------------------------------------------


def agree(m: onnx.ModelProto) -> None:
    try:
        made = load_onnx(m)
        assert cross_check(made) <= HALF
    except UnsupportedModel as e:
        assert "differs" not in e.message, onnx.printer.to_text(m)  # noqa: PT017


def test_drawn_operators_are_within_their_rounding() -> None:
    for make in dict.fromkeys(DRAWN):
        for seed in range(1000, 1012):
            agree(make(Draw(seed)))


@pytest.mark.slow
def test_many_drawn_operators_are_within_their_rounding() -> None:
    for make in dict.fromkeys(DRAWN):
        for seed in range(2000, 2200):
            agree(make(Draw(seed)))
