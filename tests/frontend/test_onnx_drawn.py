"""The importer against onnxruntime, number by number, on operators with attributes drawn at random: alike, or refused in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from polytriton.errors import UnsupportedModel
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.interp import run
from tests.frontend.onnx_drawn import DRAWN, Draw, window
from tests.frontend.onnx_models import model, node, rand

F32 = np.float32


def theirs(m: onnx.ModelProto, x: np.ndarray) -> np.ndarray | None:
    """onnxruntime's answer; None where it refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return np.asarray(ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])
    except Exception:  # onnxruntime's own classes are not public
        return None


def compare(m: onnx.ModelProto, draw: Draw) -> str:
    """`alike`, `refused` by us or `theirs` by onnxruntime; raises where the two differ."""
    kind = m.graph.input[0].type.tensor_type
    x = draw.rng.integers(-9, 10, [d.dim_value for d in kind.shape.dim])
    y = theirs(m, x.astype(np.float64 if kind.elem_type == onnx.TensorProto.DOUBLE else F32))
    try:
        made = load_onnx(m)
    except UnsupportedModel:
        return "refused"
    if y is None:
        return "theirs"
    ours = run(made.net, x.reshape(1, -1).astype(np.float64))
    assert made.source.output_shape == y.shape, onnx.printer.to_text(m)
    np.testing.assert_allclose(ours.reshape(-1), y.reshape(-1), rtol=1e-5, atol=1e-5, err_msg=onnx.printer.to_text(m))
    return "alike"


def share(makes: Any, seeds: range) -> None:
    for make in dict.fromkeys(makes):
        found = Counter(compare(make(d), d) for d in (Draw(3 * s + k) for s in seeds for k in range(makes.count(make))))
        assert found["alike"] >= 0.4 * found.total(), (make.__name__, found)


def test_drawn_operators() -> None:
    share(DRAWN, range(55))


@pytest.mark.slow
def test_many_drawn_operators() -> None:
    share(DRAWN, range(100, 500))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_a_stride_beyond_the_window_with_auto_pad(op: str, auto: str) -> None:
    """Where the formula of SAME gives less than no padding, onnxruntime crops the image's start, or refuses."""
    met = Counter[str]()
    for rank in (1, 2):
        for size in range(1, 10):
            for k in (1, 2, 3):
                for stride in (1, 2, 3, 5):
                    attrs: dict[str, Any] = {"auto_pad": auto, "strides": [1] * (rank - 1) + [stride]}  # of two axes, the other fits
                    shape, kernel = [1, 2, *[4] * (rank - 1), size], [2] * (rank - 1) + [k]
                    if op == "Conv":
                        m = model(node(op, "x w", **attrs), shape, {"w": rand(2, 2, *kernel)})
                    else:
                        m = model(node(op, kernel_shape=kernel, **attrs), shape)
                    total = (-(-size // stride) - 1) * stride + k - size
                    if total >= 0:
                        assert compare(m, Draw(0)) == "alike"
                        met["alike"] += 1
                        continue
                    with pytest.raises(UnsupportedModel, match="some runtimes crop it") as e:
                        load_onnx(m)
                    assert "`pads`" in e.value.remedy
                    met["refused"] += 1
    assert min(met.values()) > 20


def test_a_cropping_pool_beside_large_outputs() -> None:
    """Found by an audit: max over x[2:4] in onnxruntime, over x[0:2] in the net, and a sibling of 1e6 hid it."""
    nodes = [node("MaxPool", "x", "p", kernel_shape=[1, 2], strides=[1, 5], auto_pad="SAME_UPPER"), node("Mul", "p c")]
    with pytest.raises(UnsupportedModel, match="some runtimes crop it"):
        load_onnx(model(nodes, [1, 2, 1, 5], {"c": np.array([1, 1e6], F32).reshape(2, 1, 1)}))


def test_drawing_repeats_itself() -> None:
    assert window(Draw(3)) == window(Draw(3)) != window(Draw(4))
