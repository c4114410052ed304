"""Reading ONNX files: real networks, odd ones, data beside them, refusals in words; and the cross-check's own sharpness."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polytriton.errors import PolytritonError, UnsupportedModel, UsageError
from polytriton.frontend.onnx import cross_check, load_onnx
from polytriton.ir.interp import run
from tests.frontend.onnx_models import holds, ints, model, node, rand, small

DATA = Path(os.environ.get("POLYTRITON_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
NETS = sorted((DATA / "nets").rglob("*.onnx"))
F32 = np.float32


# ---- real networks --------------------------------------------------------------------------------------------


def test_the_data_are_there() -> None:
    if not NETS:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no networks in {DATA}; set POLYTRITON_DATA")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("path", NETS, ids=lambda p: p.stem)
def test_real_network(path: Path) -> None:
    made = load_onnx(path)
    assert made.source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert cross_check(made, samples=2) <= 0.51
    again = load_onnx(made.model, name=made.net.name)
    assert again.net == made.net
    assert again.model == made.model


# ---- inputs, outputs, sources ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["N", None, 0, -1, 1])
def test_batch_axis(batch: Any) -> None:
    made = holds(model(node("Gemm", "x w"), [batch, 3], {"w": rand(3, 2)}))
    assert (made.source.input_shape, made.source.output_shape, made.source.has_batch) == ((1, 3), (1, 2), True)
    assert made.net.input.shape == (3,)


@pytest.mark.parametrize("shape", [[5], [1], [4, 5]])
def test_no_batch_axis(shape: list[int]) -> None:
    made = holds(model([node("Add", "x b", "h"), node("Relu", "h")], shape, {"b": rand(shape[-1])}))
    assert made.source.input_shape == tuple(shape)
    assert not made.source.has_batch


def test_input_shapes() -> None:
    assert holds(model(node("Relu"), ["N", 3, 4, 5])).net.input.shape == (3, 4, 5)
    assert holds(model(node("Relu"), [1, 784, 1])).net.input.shape == (784,)
    assert holds(model([node("Identity")], [1, 3])).net.output == "x"


def test_sources_of_a_model(tmp_path: Path) -> None:
    m = small()
    path = tmp_path / "my net.onnx"
    onnx.save(m, path)
    for given_as in (path, str(path), path.read_bytes(), m):
        made = load_onnx(given_as)
        assert np.array_equal(run(made.net, np.ones((1, 3))), run(load_onnx(m).net, np.ones((1, 3))))
    assert load_onnx(path).net.name == "my_net"
    assert load_onnx(path, name="other").net.name == "other"
    with pytest.raises(UsageError, match="list"):
        load_onnx([m])


def test_outputs() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Softmax", "a", "dead"), node("Add", "x x2", "other")]
    m = model(nodes, [1, 3], outputs=("a", "b"))
    m.graph.input.append(helper.make_tensor_value_info("x2", TensorProto.INT64, [3]))
    assert [n.op for n in holds(m).net] == ["input", "relu"]
    chosen = holds(m, output="b")
    assert chosen.source.output_name == "b"
    assert [n.op_type for n in onnx.ModelProto.FromString(chosen.model).graph.node] == ["Neg"]
    with pytest.raises(UsageError, match="'z'") as e:
        load_onnx(m, output="z")
    assert "'a', 'b'" in e.value.remedy


def test_unsorted_and_listed_initialisers() -> None:
    m = small(listed=True)
    nodes = list(m.graph.node)[::-1]
    del m.graph.node[:]
    m.graph.node.extend(nodes)
    made = load_onnx(m)
    assert [n.op for n in made.net] == ["input", "linear", "relu", "linear"]
    assert cross_check(made) <= 0.51


# ---- external data --------------------------------------------------------------------------------------------


def external(folder: Path, location: str, **keys: str) -> Path:
    m = small()
    for t in m.graph.initializer:
        if t.name == "w":
            (folder / "w.bin").write_bytes(b"pad!" + t.raw_data)
            del t.external_data[:]
            for k, v in {"location": location, **keys}.items():
                t.external_data.add(key=k, value=v)
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
    (folder / "net.onnx").write_bytes(m.SerializeToString())
    return folder / "net.onnx"


def test_external_data(tmp_path: Path) -> None:
    made = holds(external(tmp_path, "w.bin", offset="4", length="48"))
    assert not any(t.data_location == TensorProto.EXTERNAL for t in onnx.ModelProto.FromString(made.model).graph.initializer)
    assert load_onnx(made.model, name=made.net.name).net == made.net
    assert made.source.sha256 == hashlib.sha256(made.model).hexdigest()
    path = external(tmp_path, "w.bin", offset="4")
    assert load_onnx(path).net == made.net
    with pytest.raises(UsageError, match="not given as a path"):
        load_onnx(path.read_bytes())


@pytest.mark.parametrize("location", ["../outside.bin", "sub/../../outside.bin", "{abs}", "link", "", "missing.bin", ".", "sub"])
def test_external_data_outside(tmp_path: Path, location: str) -> None:
    (tmp_path / "outside.bin").write_bytes(bytes(48))
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(UsageError, match="'w'"):
        load_onnx(external(tmp_path / "in", location.format(abs=tmp_path / "outside.bin")))


@pytest.mark.parametrize(
    "keys", [{"offset": "8"}, {"length": "9999999999999"}, {"offset": "-4"}, {"length": "-1"}, {"offset": "x"}, {"offset": "0"}]
)
def test_external_data_of_the_wrong_size(tmp_path: Path, keys: dict[str, str]) -> None:
    with pytest.raises(PolytritonError):
        load_onnx(external(tmp_path, "w.bin", **keys))


# ---- messages -------------------------------------------------------------------------------------------------

IMAGE = [1, 3, 6, 5]
SEQUENCE = helper.make_graph([node("Relu")], "b", [], [helper.make_tensor_value_info("y", 1, None)])
REFUSED = [
    (node("LogSoftmax"), [1, 3], {}, "not supported"),
    (node("Cosh"), [1, 3], {}, "not supported"),
    (node("MatMul", "x x"), [3], {}, "one of them a vector"),
    (node("MatMul", "x x"), [2, 3], {}, "do not multiply"),
    (node("Gemm", "x x"), [3, 3], {}, "exactly one"),
    (node("Conv", "x x"), [1, 1, 3, 3], {}, "weight depends on the network's input"),
    (node("Conv", "x w"), [1, 3, 4, 4, 4], {"w": rand(2, 3, 2, 2, 2)}, "1, channels"),
    (node("Conv", "x w"), [2, 3, 4, 4], {"w": rand(2, 3, 2, 2)}, "batch of 2"),
    (node("Conv", "x w", group=2), IMAGE, {"w": rand(2, 3, 2, 2)}, "2 groups"),
    (node("Conv", "x w"), IMAGE, {"w": rand(2, 3, 7, 2)}, "larger than"),
    (node("Conv", "x w", auto_pad="SAME_UPPER", dilations=[2, 2]), IMAGE, {"w": rand(2, 3, 2, 2)}, "different runtimes"),
    (node("Pow", "x c"), [1, 3], {"c": F32([2, 3, 2])}, "from cell to cell"),
    (node("Pow", "x c"), [1, 3], {"c": F32(2.5)}, "exponent 2.5"),
    (node("Elu", alpha=-1.0), [1, 3], {}, "no positive number"),
    (node("Div", "x c"), [1, 3], {"c": F32([1, 0, 1])}, "divisor is zero"),
    (node("Add", "x c"), [1, 3], {"c": F32([1, np.inf, 1])}, "NaN or infinity"),
    (node("Add", "x c"), [1, 3], {"c": F32([1, np.nan, 1])}, "NaN or infinity"),
    (node("Add", "x c"), [1, 3], {"c": ints(1, 2, 3)}, "type"),
    (node("Add", "x c"), [1, 3], {"c": rand(4)}, "do not broadcast"),
    (node("LeakyRelu", alpha=float("inf")), [1, 3], {}, "alpha is not finite"),
    (node("LeakyRelu", alpha=float("nan")), [1, 3], {}, "alpha is not finite"),
    (node("Gemm", "x w", alpha=float("nan")), [1, 3], {"w": rand(3, 3)}, "not finite"),
    (node("Cast", to=TensorProto.INT64), [1, 3], {}, "int64"),
    (node("Cast", to=TensorProto.FLOAT16), [1, 3], {}, "float16"),
    (node("Cast", to=TensorProto.BFLOAT16), [1, 3], {}, "BFLOAT16"),
    (node("Dropout", "x r t"), [1, 3], {"r": F32(0.5), "t": np.array(True)}, "training"),
    ([node("Dropout", "x", "h m"), node("Cast", "m", "k", to=1), node("Add", "h k")], [1, 3], {}, "mask"),
    (node("BatchNormalization", "x s s s s", training_mode=1), IMAGE, {"s": rand(3) ** 2}, "Unrecognized attribute"),
    (node("BatchNormalization", "x s s s v"), IMAGE, {"s": rand(3), "v": F32([1, -2, 1])}, "variance"),
    ([node("MaxPool", "x", "h i", kernel_shape=[2, 2]), node("Cast", "i", "j", to=1), node("Add", "h j")], IMAGE, {}, "indices"),
    (node("AveragePool", kernel_shape=[2, 2], ceil_mode=2), IMAGE, {}, "neither 0 nor 1"),
    (node("Pad", "x p", mode="reflect"), [1, 3], {"p": ints(0, 1, 0, 1)}, "reflect"),
    (node("Pad", "x p v"), [1, 3], {"p": ints(0, 1, 0, 1), "v": F32(2)}, "only zeros"),
    (node("Pad", "x p"), [1, 3], {"p": ints(0, -1, 0, 1)}, "count >= 0"),
    (node("Gather", "x i", axis=1), [1, 3], {"i": ints(3)}, "outside axis"),
    (node("Reshape", "x s"), [1, 3], {"s": ints(2, -1)}, "cannot become"),
    (node("Reshape", "x s"), [1, 3], {"s": ints(-1, -1)}, "not a shape"),
    (node("Squeeze", "x a"), [1, 3], {"a": ints(1)}, "not all 1"),
    (node("Slice", "x s e"), [1, 3], {"s": ints(0, 2), "e": ints(1, 1)}, "selects nothing"),
    (node("Concat", "x a x", axis=1), [1, 3], {"a": rand(1, 3)}, "between activations"),
    (node("Equal", "x x"), [1, 3], {}, "constants only"),
    (node("Relu", "x", "y", alpha=1.0), [1, 3], {}, "Unrecognized attribute"),
    (node("Nothing"), [1, 3], {}, "No Op registered"),
    (node("Relu", domain="com.example"), [1, 3], {}, "domain 'com.example'"),
    (node("QLinearConv", "x s z w s z s z"), IMAGE, {"s": F32(1), "z": np.uint8(0), "w": rand(2, 3, 2, 2)}, "not supported"),
    ([node("Relu", "c", "k"), node("Add", "x k")], [1, 3], {"c": rand(3)}, "fold"),
    ([node("Mul", "c c", "l"), node("Sub", "l c", "m"), node("Add", "x m")], [1, 3], {"c": F32([1, 2, 3])}, "subtracts constants"),
    ([node("Mul", "c c", "k"), node("Add", "x k")], [1, 3], {"c": F32([1e30, 1, 1])}, "overflows"),
    ([node("Mul", "c c", "k"), node("Add", "x k")], [1, 3], {"c": F32([1e-30, 1, 1])}, "underflows"),
    ([node("Div", "c d", "k"), node("Add", "x k")], [1, 3], {"c": F32([1]), "d": F32([0])}, "division by zero"),
    ([node("Relu", "z", "a"), node("Add", "a x", "z"), node("Relu", "z")], [1, 3], {}, "depends on itself"),
    (node("Add", "x lost"), [1, 3], {}, "'lost', which nothing defines"),
]  # fmt: skip


@pytest.mark.parametrize("nodes,shape,weights,text", REFUSED, ids=[r[3].replace(" ", "-") + f"-{i}" for i, r in enumerate(REFUSED)])
def test_refusal(nodes: Any, shape: list[int], weights: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(UnsupportedModel) as e:
        load_onnx(model(nodes, shape, weights))
    assert text in e.value.message
    assert e.value.remedy
    if text != "NaN or infinity":
        guilty = [n for n in ([nodes] if isinstance(nodes, onnx.NodeProto) else nodes) if f"node {n.name!r} (" in e.value.message]
        assert guilty
        assert guilty[0].op_type in e.value.message
    if text in ("not supported", "training", "batch of 2"):
        assert "polytriton inspect --operators" in e.value.remedy


def test_refusals_of_whole_models() -> None:
    flow = helper.make_node("If", ["k"], ["y"], name="branch", then_branch=SEQUENCE, else_branch=SEQUENCE)
    with pytest.raises(UnsupportedModel, match=r"'branch' \(If\): control flow"):
        load_onnx(model([flow, node("Add", "x y", "z")], [1, 3], {"k": np.array(True)}, outputs=("z",)))
    two = model(node("Add", "x x2"), [1, 3])
    two.graph.input.append(helper.make_tensor_value_info("x2", 1, [1, 3]))
    with pytest.raises(UnsupportedModel, match=r"2 inputs \('x', 'x2'\)"):
        load_onnx(two)
    for dims, text in ((["N", 3, "H", 4], "symbolic"), ([1, 0], "symbolic"), ([], "no shape")):
        with pytest.raises(UnsupportedModel, match=text):
            load_onnx(model(node("Relu"), dims))
    with pytest.raises(UnsupportedModel, match="float16, float32 or float64"):
        load_onnx(model(node("Relu"), [1, 3], dtype=np.int64))
    twice = model(node("Relu"), [1, 3])
    twice.opset_import.add(domain="", version=twice.opset_import[0].version)
    assert load_onnx(twice).source.opset == twice.opset_import[0].version, "cut by onnx.utils.extract_model, say"
    twice.opset_import.add(domain="ai.onnx", version=7)
    with pytest.raises(UnsupportedModel, match="uses opsets 7 and"):
        load_onnx(twice)
    for opset in (6, 99):
        with pytest.raises(UnsupportedModel, match=f"opset {opset}"):
            load_onnx(model(node("Relu"), [1, 3], opset=opset))
    with pytest.raises(UnsupportedModel, match="0 inputs"):
        load_onnx(model(node("Neg", "c"), [1, 3], {"c": rand(3)}))
    with pytest.raises(UnsupportedModel, match="does not depend on the input"):
        load_onnx(model([node("Shape", "x", "s"), node("Cast", "s", "y", to=1)], [1, 3]))
    twice = model([node("Relu"), node("Neg")], [1, 3])
    with pytest.raises(UnsupportedModel, match="two nodes"):
        load_onnx(twice)


# ---- the cross-check itself -----------------------------------------------------------------------------------


def test_a_wrong_net_is_caught_and_named() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f u", "y"),
    ]
    good = load_onnx(model(nodes, IMAGE, {"w": rand(4, 3, 3, 3), "b": rand(4), "u": rand(24, 3)}))
    assert cross_check(good) <= 0.51
    for key, guilty in (("c_w", "n_Conv_c"), ("c_b", "n_Conv_c"), ("y_w", "n_Gemm_y")):
        wrong = np.array(good.net.weights[key])
        wrong.reshape(-1)[0] += 0.5
        net = replace(good.net, weights={**good.net.weights, key: wrong})
        with pytest.raises(UnsupportedModel, match=guilty):
            cross_check(replace(good, net=net))
    for at, change, guilty in ((2, {"slope": 0.2}, "n_Relu_r"), (3, {"p": (1, 0, -1, 0)}, "n_MaxPool_p")):
        changed = list(good.net.nodes)
        changed[at] = changed[at].with_attrs(**change)
        with pytest.raises(UnsupportedModel, match=guilty):
            cross_check(replace(good, net=good.net.rebuild(changed)))


def test_cross_check_in_a_box() -> None:
    made = load_onnx(small())
    assert cross_check(made, box=(np.zeros(3), np.ones((1, 3)))) <= 0.51
    with pytest.raises(UsageError, match="2 and 3"):
        cross_check(made, box=(np.zeros(2), np.zeros(3)))
    huge = F32(3e38)
    overflows = load_onnx(model([node("Mul", "x c", "h"), node("Mul", "h c")], [1, 3], {"c": huge}))
    with pytest.raises(UnsupportedModel, match="not finite"):
        cross_check(overflows, box=(np.ones(3), np.ones(3)))
