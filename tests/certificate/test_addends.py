"""Certificates of float32 executions as runtimes make them: sums inside layers, weights that merges multiply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polytriton import checker
from polytriton.certificate.write import certify
from polytriton.checker_files import Refused
from tests.soundness.inserted import CASES, Graph, Inserted
from tests.soundness.test_addends import residual


def spec(folder: Path, text: str, inputs: int, outputs: int) -> Path:
    names = [f"(declare-const {v}_{i} Real)" for v, n in (("X", inputs), ("Y", outputs)) for i in range(n)]
    (folder / "p.vnnlib").write_text("\n".join([*names, text]))
    return folder / "p.vnnlib"


@pytest.mark.parametrize("gap", [2.0**-16, 2.0**-10])
def test_a_residual_is_rounded_as_often_as_a_product(tmp_path: Path, gap: float) -> None:
    """relu(a + W a), a = 1, W a = 2^-23: a runtime that starts at `a` may come down to 1 - n 2^-23, though the sum exceeds 1."""
    terms = 512
    (tmp_path / "n.onnx").write_bytes(residual("dense", terms))
    box = "(assert (>= X_0 1))(assert (<= X_0 1.00000011920928955078125))"
    prop = spec(tmp_path, f"{box}(assert (<= Y_0 {1 - gap:.30f}))", 1, terms)
    if gap < 1e-4:
        with pytest.raises(Refused):
            certify(tmp_path / "n.onnx", prop, "float32")
        return
    (tmp_path / "c.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "float32"))
    checker.check(tmp_path / "n.onnx", prop, tmp_path / "c.cert")


def test_weights_that_merges_multiply_beyond_float32_are_not_described(tmp_path: Path) -> None:
    """Three factors of 2^50: merged they are infinite, and so is every execution that merges them."""
    scales = [numpy_helper.from_array(np.array([2.0**50], np.float32), f"w{k}") for k in range(3)]
    nodes = [helper.make_node("Mul", [f"v{k}" if k else "x", f"w{k}"], ["y" if k == 2 else f"v{k + 1}"]) for k in range(3)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1]) for n in "xy")
    graph = helper.make_graph(nodes, "factors", [x], [y], scales)
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (tmp_path / "n.onnx").write_bytes(model.SerializeToString())
    tiny = f"{2.0**-120:.130f}"
    prop = spec(tmp_path, f"(assert (>= X_0 0))(assert (<= X_0 {tiny}))(assert (>= Y_0 2000000000.0))", 1, 1)
    (tmp_path / "real.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "real"))
    with pytest.raises(Refused, match="weights that grow"):
        certify(tmp_path / "n.onnx", prop, "float32")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_addends_in_layers_before_them(tmp_path: Path, case: Inserted) -> None:
    """What an execution reaches is not certified; what lies a few times as far away is."""
    (tmp_path / "n.onnx").write_bytes(case.model())
    box = "(assert (>= X_0 1))(assert (<= X_0 1))"
    outputs = int(np.prod([d.dim_value for d in onnx.load(tmp_path / "n.onnx").graph.output[0].type.tensor_type.shape.dim]))
    prop = spec(tmp_path, f"{box}(assert (<= Y_{case.at} {case.reached():.40f}))", 1, outputs)
    with pytest.raises(Refused):
        certify(tmp_path / "n.onnx", prop, "float32")
    prop = spec(tmp_path, f"{box}(assert (<= Y_{case.at} {1 - 8 * case.roundings * 2.0**-23:.40f}))", 1, outputs)
    (tmp_path / "c.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "float32"))
    checker.check(tmp_path / "n.onnx", prop, tmp_path / "c.cert")


def test_doublings_grow_as_weights_do(tmp_path: Path) -> None:
    g = Graph()
    v = g.hidden(terms=1)
    for _ in range(70):
        v = g.add("Add", v, v)
    (tmp_path / "n.onnx").write_bytes(g.model([1, 1]))
    prop = spec(tmp_path, "(assert (>= X_0 0))(assert (<= X_0 0))(assert (>= Y_0 1))", 1, 1)
    (tmp_path / "real.cert").write_bytes(certify(tmp_path / "n.onnx", prop, "real"))
    with pytest.raises(Refused, match="weights that grow"):
        certify(tmp_path / "n.onnx", prop, "float32")
