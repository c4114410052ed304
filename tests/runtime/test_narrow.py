"""Rows that leave out cells which are off, and neurons whose lower bound nobody sees: the same bounds as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import polytriton
from polytriton.ir.net import Builder, Net, Node
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import tables
from polytriton.runtime.cpu import vectors
from polytriton.runtime.cpu.torch_backend import Compact
from polytriton.runtime.engine import Engine
from polytriton.runtime.narrow import Narrow
from polytriton.runtime.results import Forms, Results
from polytriton.runtime.tables import Tables

WIDE = 160  # squared above kit.COMPACT


def deep() -> Net:
    rng, b = np.random.default_rng(3), Builder("deep")
    x, width = b.input((20,)), 20
    for size in (WIDE, WIDE, WIDE, WIDE, 3):
        w = (rng.standard_normal((size, width)) * np.sqrt(2 / width)).astype(np.float32)
        c = (rng.standard_normal(size) * 0.3 - 0.2).astype(np.float32)
        x, width = b.add("linear", (x,), w=b.constant(w), b=b.constant(c)), size
        x = b.add("relu", (x,)) if size == WIDE else x
    return b.build(x)


def ask(net: Net, dtype: str, candidates: str, every: bool = True) -> tuple[Engine, Results]:
    engine = Engine(compile_net(net, candidates), semantics="real", dtype=dtype)
    x = torch.from_numpy(np.random.default_rng(4).random((1, 20)))
    boxes = engine.refine(x - 0.01, x + 0.01, every=every)
    return engine, engine.query(boxes, Forms(torch.zeros(3, dtype=torch.int64), torch.eye(3, dtype=torch.float64)))


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("dtype, near", [("float64", 1e-12), ("float32", 1e-5)])
def test_rows_without_cells_that_are_off_have_the_same_bounds(
    monkeypatch: pytest.MonkeyPatch, dtype: str, near: float, candidates: str
) -> None:
    net, plain, made = deep(), tables.make_narrow, list[Narrow]()

    def note(of: Tables, relu: Node, image: int, part: Compact) -> Narrow:
        made.append(plain(of, relu, image, part))
        return made[-1]

    monkeypatch.setattr(tables, "make_narrow", note)
    _, narrow = ask(net, dtype, candidates)
    count = len(made)
    assert count >= 2 and all(len(held.cells) < WIDE for held in made)
    monkeypatch.setattr(tables, "SHARE", 0.0)  # no layer is multiplied in part
    _, whole = ask(net, dtype, candidates)
    assert len(made) == count
    scale = whole.best.abs().max()
    assert torch.isfinite(whole.best).all() and ((narrow.best - whole.best).abs() <= near * scale).all()
    paid, owed = narrow.raw - narrow.best, whole.raw - whole.best
    assert (paid > 0.99 * owed).all()
    assert (paid < 1.01 * owed).all()


def padded(rng: np.random.Generator) -> onnx.ModelProto:
    """A dense layer whose ReLU is an image of 4 x 4 with a margin, read by a padded convolution and, flat, by a dense layer."""
    held, nodes = list[Any](), list[Any]()

    def constant(value: Any) -> str:
        held.append(numpy_helper.from_array(np.asarray(value), f"k{len(held)}"))
        return held[-1].name

    def dense(x: str, size: int, width: int, y: str) -> None:
        w = (rng.standard_normal((size, width)) * np.sqrt(2 / width)).astype(np.float32)
        b = (rng.standard_normal(size) * 0.2 - 3 * (rng.random(size) < 0.6)).astype(np.float32)
        nodes.append(helper.make_node("Gemm", [x, constant(w), constant(b)], [y], transB=1))

    dense("x", WIDE, 16, "a")
    nodes.append(helper.make_node("Relu", ["a"], ["ra"]))
    dense("ra", 256, WIDE, "b")
    nodes.append(helper.make_node("Reshape", ["b", constant(np.array([1, 4, 4, 16]))], ["lines"]))
    nodes.append(helper.make_node("Transpose", ["lines"], ["image"], perm=[0, 3, 1, 2]))
    nodes.append(helper.make_node("Relu", ["image"], ["ri"]))
    nodes.append(helper.make_node("Flatten", ["ri"], ["flat"]))
    dense("flat", 256, 256, "c")
    nodes.append(helper.make_node("Relu", ["c"], ["rc"]))
    dense("rc", 3, 256, "d")
    kernel = (rng.standard_normal((2, 16, 3, 3)) * 0.2).astype(np.float32)
    nodes.append(helper.make_node("Conv", ["ri", constant(kernel)], ["e"], pads=[1] * 4))
    nodes.append(helper.make_node("Relu", ["e"], ["er"]))
    nodes.append(helper.make_node("Flatten", ["er"], ["re"]))
    dense("re", 3, 32, "f")
    nodes.append(helper.make_node("Add", ["d", "f"], ["y"]))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, size]) for n, size in (("x", 16), ("y", 3))]
    graph = helper.make_graph(nodes, "padded", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("seed", [0, 2])
def test_images_with_a_margin_keep_all_their_cells(seed: int, candidates: str) -> None:
    """Their tables count the margin. Held against the network's own runs: lines of other cells once proved what does not hold."""
    rng = np.random.default_rng(seed)
    model = padded(rng)
    x, eps = rng.standard_normal((1, 16)), 0.002
    net = polytriton.compile(model.SerializeToString(), semantics="real", dtype="float64", candidates=candidates)
    least = net.margins(x - eps, x + eps, np.vstack([np.eye(3), -np.eye(3)]), effort="quick")[0]
    layer = net.bounds(x - eps, x + eps, effort="quick").layers["c"]
    model.graph.output.append(helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [1, 256]))
    run = ReferenceEvaluator(model)
    points = np.vstack([x, x + eps * rng.choice([-1.0, 1.0], (40, 16))]).astype(np.float32)
    for p in points:
        y, c = run.run(None, {"x": p[None]})
        assert (least <= np.hstack([y, -y])[0] + 1e-4).all()
        assert (layer.lo[0] <= c[0] + 1e-4).all() and (layer.hi[0] >= c[0] - 1e-4).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_nobody_sees_below_zero_is_not_asked(dtype: str) -> None:
    net = deep()
    (full, every), (fewer, some) = (ask(net, dtype, "input", every) for every in (True, False))
    assert sum(fewer.tally.rows.values()) < 0.9 * sum(full.tally.rows.values())
    assert torch.allclose(every.best, some.best, rtol=1e-12 if dtype == "float64" else 1e-6, atol=0)


@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4, 7, vectors.FEW, vectors.FEW + 1])
def test_vectors_are_multiplied_by_weights_or_their_magnitudes(sizes: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them four at a time, or with blocks of weights of which the last is shorter."""
    monkeypatch.setattr(vectors, "BLOCK", 61 * 80)
    g = torch.Generator().manual_seed(5)
    w, x = torch.randint(-9, 9, (270, 61), generator=g).float(), torch.randint(-9, 9, (count, 61), generator=g).double()
    assert vectors.serves(w, x)
    want = x @ (w.abs() if sizes else w).double().T  # small integers: exact in any order
    assert torch.equal(vectors.multiply_vectors(w, x, sizes), want)
