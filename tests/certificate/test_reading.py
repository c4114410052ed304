"""What the checker reads: networks against onnxruntime and the engine's import, properties against the engine's reader."""

from __future__ import annotations

import ast
import gzip
import subprocess
import sys
import time
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from polytriton import checker, checker_boxes, checker_files, checker_slopes
from polytriton.frontend.vnnlib import read_vnnlib
from tests.certificate.models import NODE, ROOT, bounded, model

SOURCES = Path(checker.__file__), Path(checker_boxes.__file__), Path(checker_files.__file__)
SLOPES = Path(checker_slopes.__file__)
EXAMPLES = ROOT / "examples"


def outputs(path: Path, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The checker's interval of the output over the single point x; neurons of both signs get the interval's own lines."""
    net = checker.Network(path.read_bytes())
    point = tuple(map(Fraction, x.ravel().tolist()))
    boxes = checker.Boxes(net, *(side[:, None] for side in checker.outward((point, point))))
    bounded(boxes)
    return boxes.lo[net.output][:, 0], boxes.hi[net.output][:, 0]


def agrees(path: Path, x: np.ndarray, tolerance: float = 1e-4) -> None:
    """onnxruntime's answer, up to its rounding, and a narrow interval."""
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    y = session.run(None, {session.get_inputs()[0].name: x})[0].ravel()
    lo, hi = outputs(path, x)
    scale = 1 + np.abs(y).max()
    assert (hi - lo <= 1e-6 * scale).all()
    assert (np.abs(y - lo) <= tolerance * scale).all()


@pytest.mark.parametrize("name", ["digits_conv_ibp", "digits_resnet_normal"])
def test_the_examples(name: str) -> None:
    x = np.load(EXAMPLES / "digits.npz")["images"][3].astype(np.float32).reshape(1, 1, 8, 8)
    agrees(EXAMPLES / f"{name}.onnx", x)


@pytest.mark.parametrize(
    ("kernel", "groups", "extra"),
    [
        ((3, 3), 1, {}),
        ((2, 3), 1, {"strides": [2, 1], "pads": [0, 1, 2, 0]}),
        ((3, 2), 1, {"dilations": [2, 3], "pads": [1, 1, 1, 1], "strides": [1, 2]}),
        ((3, 3), 2, {"strides": [3, 3], "pads": [2, 2, 2, 2]}),
        ((1, 1), 4, {}),
    ],
)
def test_convolutions(tmp_path: Path, kernel: tuple[int, int], groups: int, extra: dict[str, Any]) -> None:
    """Forward against onnxruntime; backward as the transpose: <a, W x> = <W^T a, x>."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(8, 4 // groups, *kernel)), "b": rng.normal(size=8)}
    path = model(tmp_path / "c.onnx", [NODE("Conv", ["x", "w", "b"], ["y"], group=groups, **extra)], [1, 4, 7, 8], weights)
    agrees(path, rng.normal(size=(1, 4, 7, 8)).astype(np.float32))
    op = checker.Network(path.read_bytes()).ops[1]
    x, a = rng.normal(size=(4 * 7 * 8, 3)), rng.normal(size=(np.prod(op.shape), 2))
    for cut in (slice(None), slice(0, 5), slice(-3, None), slice(0, 0)):
        sparse = np.zeros_like(a)
        sparse[cut] = a[cut]
        np.testing.assert_allclose(sparse.T @ op.push(x, np.asarray), op.pull(sparse).T @ x, atol=1e-10)


def test_elementwise_operators(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nodes = [
        NODE("Sub", ["x", "c"], ["a"]), NODE("Div", ["a", "d"], ["b"]), NODE("Mul", ["e", "b"], ["m"]), NODE("Sub", ["c", "m"], ["s"]),
        NODE("Add", ["s", "one"], ["t"]), NODE("Sub", ["t", "x"], ["u"]), NODE("Add", ["u", "u"], ["v"]), NODE("Relu", ["v"], ["r"]),
        NODE("Flatten", ["r"], ["f"]), NODE("Reshape", ["f", "shape"], ["g"]), NODE("MatMul", ["g", "w"], ["y"]),
    ]  # fmt: skip
    weights = {
        "c": rng.normal(size=(3, 1, 1)), "d": np.array(0.3), "e": rng.normal(size=(1, 3, 1, 2)), "one": np.ones(1),
        "shape": np.array([0, -1]), "w": rng.normal(size=(12, 5)),
    }  # fmt: skip
    path = model(tmp_path / "e.onnx", nodes, [1, 3, 2, 2], weights)
    agrees(path, rng.normal(size=(1, 3, 2, 2)).astype(np.float32))


def shapes() -> dict[str, list[Any]]:
    """Ways in which exporters compute (1, 8) from what a convolution gives, [1, 2, 2, 2], or keep it."""
    size, first = NODE("Shape", ["r"], ["s"]), NODE("Gather", ["s", "zero"], ["b"], axis=0)
    joined = [NODE("Unsqueeze", ["b", "axes"], ["c"]), NODE("Concat", ["c", "rest"], ["t"], axis=0)]
    rest = [NODE("Slice", ["s", "one", "far"], ["o"]), NODE("Gather", ["o", "zero"], ["o0"]), NODE("Gather", ["o", "last"], ["o2"])]
    product = [NODE("Mul", ["o0", "o2"], ["p0"]), NODE("Add", ["p0", "p0"], ["p"]), NODE("Unsqueeze", ["p", "axes"], ["q"])]
    cast = [NODE("Cast", ["q"], ["i"], to=TensorProto.INT32), NODE("Cast", ["i"], ["j"], to=TensorProto.INT64)]
    return {
        "the batch": [size, first, *joined],
        "the end": [NODE("Shape", ["r"], ["b1"], start=0, end=1), NODE("Concat", ["b1", "rest"], ["t"], axis=0)],
        "a product": [size, first, *rest, *product, *cast, joined[0], NODE("Concat", ["c", "j"], ["t"], axis=0)],
        "squeezed": [size, NODE("Slice", ["s", "none", "one", "axes"], ["b1"]), NODE("Squeeze", ["b1", "axes"], ["b"]), *joined],
    }  # fmt: skip


@pytest.mark.parametrize("way", shapes())
def test_shapes_that_a_graph_computes(tmp_path: Path, way: str) -> None:
    rng = np.random.default_rng(6)
    nodes = [NODE("Conv", ["x", "w"], ["h"]), NODE("Relu", ["h"], ["r"]), *shapes()[way], NODE("Reshape", ["r", "t"], ["f"])]
    weights = {
        "w": rng.normal(size=(2, 2, 2, 2)), "v": rng.normal(size=(8, 3)), "zero": np.array(0), "last": np.array(-1), "axes": np.array([0]),
        "none": np.array([0]), "one": np.array([1]), "far": np.array([(1 << 63) - 1]), "rest": np.array([-1]),
    }  # fmt: skip
    path = model(tmp_path / "s.onnx", [*nodes, NODE("MatMul", ["f", "v"], ["y"])], [1, 2, 3, 3], weights)
    if way == "the end":
        read = onnx.load(path)
        read.opset_import[0].version = 15
        onnx.save(read, path)
    agrees(path, rng.normal(size=(1, 2, 3, 3)).astype(np.float32))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3, 0.1])
def test_batch_normalisation_holds_the_exact_value(tmp_path: Path, epsilon: float) -> None:
    """60 digits: gain (x - mean) / sqrt(var + epsilon) + beta lies in an interval of relative width 1e-11, in each of many channels."""
    getcontext().prec = 60
    rng = np.random.default_rng(3)
    n = 1000
    gain, beta, mean, var, x = (rng.normal(size=(5, n)) * 10.0 ** rng.integers(-6, 6, (5, n))).astype(np.float32)
    nodes = [NODE("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], epsilon=epsilon)]
    path = model(tmp_path / "n.onnx", nodes, [1, n, 1, 1], {"g": gain, "b": beta, "m": mean, "v": np.abs(var)})
    lo, hi = outputs(path, x)
    for k in range(n):
        g, b, m, v, at, e = (Decimal(float(w)) for w in (gain[k], beta[k], mean[k], abs(var[k]), x[k], np.float32(epsilon)))
        root = (v + e).sqrt()
        assert Decimal(lo[k]) <= g * (at - m) / root + b <= Decimal(hi[k])
        assert hi[k] - lo[k] <= 1e-11 * float(abs(g) * (abs(at) + abs(m)) / root + abs(b))


@pytest.mark.parametrize(
    ("nodes", "weights", "says"),
    [
        ([NODE("Tanh", ["x"], ["y"])], {}, "operator Tanh"),
        ([NODE("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])], {}, "operator MaxPool"),
        ([NODE("LeakyRelu", ["x"], ["y"])], {}, "operator LeakyRelu"),
        ([NODE("Relu", ["x"], ["y"], domain="com.microsoft")], {}, "com.microsoft"),
        ([NODE("Relu", ["x"], ["y"], slope=1.0)], {}, "slope"),
        ([NODE("Mul", ["x", "x"], ["y"])], {}, "Mul of activations"),
        ([NODE("Div", ["w", "x"], ["y"])], {"w": [1.0]}, "division"),
        ([NODE("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")], {"w": np.ones((1, 2, 1, 1))}, "automatic padding"),
        ([NODE("Conv", ["x", "w"], ["y"])], {"w": np.ones((1, 1, 1, 1))}, "groups"),
        ([NODE("Flatten", ["x"], ["f"]), NODE("Gemm", ["f", "w"], ["y"], alpha=2.0)], {"w": np.ones((8, 1))}, "alpha"),
        ([NODE("Flatten", ["x"], ["f"]), NODE("Gemm", ["f", "w"], ["y"])], {"w": np.ones((7, 1))}, "a product"),
        ([NODE("Flatten", ["x"], ["f"]), NODE("Gemm", ["f", "w", "b"], ["y"])], {"w": np.ones((8, 2)), "b": np.ones((2, 1))}, "read"),
        ([NODE("Flatten", ["x"], ["f"]), NODE("Gemm", ["f", "w"], ["y"])], {"w": np.full((8, 1), np.nan)}, "weights"),
        ([NODE("Relu", ["z"], ["y"])], {}, "z"),
        ([NODE("Gather", ["s", "i"], ["t"]), NODE("Reshape", ["x", "t"], ["y"])], {"s": [1, 8], "i": [2]}, "out of bounds"),
        ([NODE("Slice", ["s", "i", "i", "i", "k"], ["t"])], {"s": [1, 8, 1], "i": [0], "k": [2]}, "Slice of constants"),
        ([NODE("Mul", ["s", "s"], ["t"]), NODE("Reshape", ["x", "t"], ["y"])], {"s": [1 << 32, -1]}, "Mul of constants"),
        ([NODE("Mul", ["s", "s"], ["t"]), NODE("Add", ["t", "s"], ["u"])], {"s": [1 << 17]}, "Add of constants"),
        ([NODE("Cast", ["s"], ["t"], to=TensorProto.FLOAT)], {"s": [1]}, "Cast of constants"),
        ([NODE("Cast", ["s"], ["t"], to=TensorProto.INT64)], {"s": [1.5]}, "Cast of constants"),
        ([NODE("Add", ["s", "s"], ["t"])], {"s": [0.1]}, "Add of constants"),
        ([NODE("Gather", ["s", "s"], ["t"])], {"s": np.zeros(1 << 13, np.int64)}, "Gather of constants"),
        ([NODE("Relu", ["x"], ["y"]), NODE("Relu", ["x"], ["y"])], {}, "output y"),
        ([NODE("Relu", ["x"], ["z"])], {}, "y"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, nodes: list[Any], weights: dict[str, Any], says: str) -> None:
    path = model(tmp_path / "u.onnx", nodes, [1, 2, 2, 2], weights)
    (tmp_path / "p.vnnlib").write_text("")
    with pytest.raises(checker.Unsupported, match=says):
        checker.load(path, tmp_path / "p.vnnlib")


def test_weights_outside_the_file_are_refused(tmp_path: Path) -> None:
    """Their bytes are in no hash."""
    path = model(tmp_path / "e.onnx", [NODE("Add", ["x", "c"], ["y"])], [1, 4], {"c": np.ones((1, 4))})
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="e.data", size_threshold=0)
    with pytest.raises(checker.Unsupported, match="outside the file"):
        checker.load(path, path)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "specs").glob("*.vnnlib")), ids=lambda p: p.stem)
def test_properties_are_those_of_the_engines_reader(path: Path) -> None:
    same(path.read_text(), 64, 10)


@pytest.mark.slow
def test_properties_of_every_published_group(data: Path) -> None:
    seen = set()
    for path in sorted((data / "specs").glob("*/*.vnnlib")):
        if path.parent not in seen:
            seen.add(path.parent)
            engine = read_vnnlib(path)
            same(path.read_text(), engine.n_in, engine.n_out)
    assert len(seen) > 8


def same(text: str, n_in: int, n_out: int) -> None:
    """The same boxes with the same rows, exactly."""
    engine = read_vnnlib(text, name="p")
    mine = [((lo, hi), rows) for (lo, hi), group in checker.unsafe(text, n_in, n_out).items() for rows in group]
    theirs = [((d.exact_lo, d.exact_hi), d.rows) for d in engine.disjuncts]
    assert len(mine) == len(theirs)
    found = [(box, sorted((sorted(row.items()), k) for row, k in rows)) for box, rows in mine]
    for box, rows in theirs:
        expected = (box, sorted((sorted([(i, c) for i, c in r.x] + [(~i, c) for i, c in r.y]), r.const) for r in rows))
        found.remove(expected)


def test_terms_and_alternatives() -> None:
    text = """(declare-const X_0 Real) ; one input
        (declare-const Y_0 Real)(declare-const Y_1 Real)
        (assert (and (<= X_0 1.5e0) (>= (* 2 X_0) -.5)))
        (assert (or (and (<= (+ Y_0 (* -2.0 Y_1) 1) (- Y_1)) (>= Y_0 (- X_0 3))) (>= (- 1 Y_1 2) Y_0) (and (<= X_0 0) (<= Y_0 Y_1))))"""
    pieces = checker.unsafe(text, 1, 2)
    lo, wide, narrow = Fraction(-1, 4), Fraction(3, 2), Fraction(0)
    assert list(pieces) == [((lo,), (wide,)), ((lo,), (narrow,))]
    first, second = pieces[(lo,), (wide,)]
    assert first == [({~0: 1, ~1: -1}, -1), ({0: 1, ~0: -1}, 3)]
    assert second == [({~0: 1, ~1: 1}, -1)]
    assert pieces[(lo,), (narrow,)] == [[({~0: 1, ~1: -1}, 0)]]


@pytest.mark.parametrize(
    "text",
    [
        "(declare-const X_0 Real)",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (< X_0 1))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= (* X_0 Y_0) 1))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= Z 1))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 nan))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1)",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (not (<= X_0 1)))",
        "(declare-const X_0 Real)(declare-const X_0 Real)(declare-const Y_0 Real)",
        "(vnnlib-version <2.0>)",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 ]))",
        "((" * 5000,
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1e999999999))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 " + "9" * 1_000_000 + "))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 (* " + "9e999 " * 100_000 + ")))",
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 " + "(* 9e999 " * 200 + "1" + ")" * 200 + "))",
        "[" * 1_000_000,
        "(assert " + "(and " * 100000 + ")" * 100001,
    ],
)
def test_other_properties_are_refused(tmp_path: Path, text: str) -> None:
    path = model(tmp_path / "n.onnx", [NODE("Relu", ["x"], ["y"])], [1, 1], {})
    (tmp_path / "p.vnnlib").write_text(text)
    with pytest.raises(checker.Unsupported):
        checker.load(path, tmp_path / "p.vnnlib")


def test_a_vast_input_is_refused_before_it_is_named(tmp_path: Path) -> None:
    """Sixteen million inputs in a few bytes of ONNX: the property does not declare them."""
    path = model(tmp_path / "n.onnx", [NODE("Relu", ["x"], ["y"])], [1, 16_000_000], {})
    (tmp_path / "p.vnnlib").write_text("(declare-const X_0 Real)")
    began = time.process_time()
    with pytest.raises(checker.Unsupported, match="does not declare"):
        checker.load(path, tmp_path / "p.vnnlib")
    assert time.process_time() - began < 5
    with pytest.raises(checker.Unsupported, match="input shape"):
        checker.load(model(path, [NODE("Relu", ["x"], ["y"])], [1, 1 << 40], {}), tmp_path / "p.vnnlib")


def test_few_bytes_do_not_cost_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many values in all, nor a convolution over a vast padding, nor alternatives of alternatives, nor a packed property."""
    began = time.process_time()
    monkeypatch.setattr(checker_files, "MAX_ATOMS", checker_files.MAX_ATOMS // 64)
    monkeypatch.setattr(checker_files, "MAX_TEXT", checker_files.MAX_TEXT // 64)
    monkeypatch.setattr(checker, "MAX_TEXT", checker_files.MAX_TEXT)
    many = [NODE("Relu", [f"v{k}" if k else "x"], ["y" if k == 99 else f"v{k + 1}"]) for k in range(100)]
    wide = NODE("Conv", ["x", "w"], ["y"], pads=[999] * 4)
    some = " ".join("(and " + "(or (<= X_0 0) (>= X_0 0)) " * 9 + ")" for _ in range(200))
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    (tmp_path / "p.vnnlib").write_text(f"{declared}(assert (or {some}))")
    (tmp_path / "q.vnnlib.gz").write_bytes(gzip.compress(declared.encode() + b" " * (1 << 24)))
    small = model(tmp_path / "s.onnx", [NODE("Relu", ["x"], ["y"])], [1, 1], {})
    for path, prop, why in (
        (model(tmp_path / "m.onnx", many, [1, 1 << 20], {}), "p.vnnlib", "shape"),
        (model(tmp_path / "c.onnx", [wide], [1, 1, 4, 4], {"w": np.ones((40, 1, 1, 1))}), "p.vnnlib", "products"),
        (small, "p.vnnlib", "alternatives"),
        (small, "q.vnnlib.gz", "too long"),
    ):
        with pytest.raises(checker.Unsupported, match=why):
            checker.load(path, tmp_path / prop)
    assert time.process_time() - began < 5


KINDS = ("float32", "float64", "float16", "int32", "int64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 2, 1, 3)])
def test_numbers_are_those_of_onnxs_own_reader(kind: str, raw: bool, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-(1 << 14), 1 << 14, shape).astype(kind) / np.dtype(kind).type(4 if "float" in kind else 1)
    stored = np.asarray(values, dtype=kind)
    type_ = helper.np_dtype_to_tensor_dtype(stored.dtype)
    held = stored.tobytes() if raw else stored.ravel().tolist()
    tensor = helper.make_tensor("t", type_, shape, held, raw=raw)
    got = read_tensor(tensor)
    assert got.shape == shape and got.dtype == (np.float64 if "float" in kind else np.int64)
    assert np.array_equal(got, numpy_helper.to_array(tensor))


def read_tensor(tensor: onnx.TensorProto) -> np.ndarray:
    return checker.Network._array(object.__new__(checker.Network), tensor)


def test_tensors_that_are_not_whole_are_refused() -> None:
    whole = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    assert read_tensor(whole).tolist() == [1, 2]
    for spoil in (
        lambda t: setattr(t, "data_location", TensorProto.EXTERNAL),
        lambda t: setattr(t.segment, "end", 1),
        lambda t: setattr(t, "data_type", TensorProto.BFLOAT16),
        lambda t: setattr(t, "data_type", TensorProto.UINT64),
        lambda t: setattr(t, "data_type", TensorProto.UNDEFINED),
    ):
        odd = onnx.TensorProto.FromString(whole.SerializeToString())
        spoil(odd)
        with pytest.raises(checker.Unsupported):
            read_tensor(odd)
    short = onnx.TensorProto.FromString(whole.SerializeToString())
    short.dims[0] = 3
    with pytest.raises(ValueError, match="reshape"):  # `load` makes it a refusal
        read_tensor(short)


@pytest.mark.parametrize("value", [1.5, 2, b"x", [1.5, 2.5], [1, 2], [], "graph", "reference", "untyped"])
def test_attributes_are_those_of_onnxs_own_reader(value: object, tmp_path: Path) -> None:
    """What is not read as onnx reads it is refused: nothing has a value that the file does not give it."""
    seen: dict[str, Any] = {}

    class Watched(checker.Network):
        def _make(self, op: str, x: list[str], take: Any) -> Any:
            seen["alpha"] = take("alpha")
            return checker_files.Op("relu", (0,), (1, 2))

    strange = {"graph": helper.make_graph([], "g", [], []), "reference": 1.5, "untyped": 1.5}
    given = strange.get(value, value) if isinstance(value, str) else value
    attribute = helper.make_attribute("alpha", given, attr_type=onnx.AttributeProto.INTS if given == [] else None)
    if value == "reference":
        attribute.ref_attr_name = "beta"
    if value == "untyped":
        attribute.type = onnx.AttributeProto.UNDEFINED
    node = NODE("Gemm", ["x"], ["y"])
    node.attribute.append(attribute)
    path = model(tmp_path / "n.onnx", [node], [1, 2], {})
    if isinstance(value, str):
        with pytest.raises(KeyError):
            Watched(path.read_bytes())
    else:
        Watched(path.read_bytes())
        assert seen["alpha"] == helper.get_attribute_value(attribute) == value


@pytest.mark.parametrize("first", ["onnx", "polytriton.checker_files"])
def test_its_messages_and_onnxs_live_side_by_side(first: str) -> None:
    script = (
        f"import {first}, onnx; from polytriton import checker_files; data = open('{EXAMPLES}/digits_conv_ibp.onnx', 'rb').read(); "
        "print(checker_files.MODEL.FromString(data).SerializeToString() == onnx.ModelProto.FromString(data).SerializeToString())"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "True\n"


def test_it_is_three_small_files_that_need_nothing_of_the_engine(tmp_path: Path) -> None:
    """And a fourth, in which nothing is trusted."""
    texts = [source.read_text() for source in (*SOURCES, SLOPES)]
    assert sum(len(text.splitlines()) for text in texts[:3]) <= 730 > sum(len(text.splitlines()) for text in texts) - 120
    found = [n for text in texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom | ast.Import)]
    named = {n.module if isinstance(n, ast.ImportFrom) else a.name for n in found for a in n.names}
    assert {str(n).partition(".")[0] for n in named} - set(sys.stdlib_module_names) == {"numpy", "polytriton"}
    assert {n for n in named if str(n).startswith("polytriton")} == {f"polytriton.checker_{name}" for name in ("boxes", "files", "slopes")}
    for source, text in zip((*SOURCES, SLOPES), texts, strict=True):
        (tmp_path / source.name).write_text(text.replace("from polytriton.checker_", "from checker_"))
    others = "{'torch', 'polytriton', 'onnxruntime', 'onnx'}"
    script = f"import sys, checker; print(sorted({others} & {{m.partition('.')[0] for m in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env={"PATH": ""}, check=True)
    assert ran.stdout == "[]\n"
