"""Slopes chosen beside smooth functions and products: true whatever is chosen, better where the ascent chooses, and its gradient is one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from flint import arb, ctx
from onnx import helper, numpy_helper
from torch import Tensor

import polytriton
from polytriton.ir.net import Node
from polytriton.prove.questions import Questions
from polytriton.prove.tight import Tight, tighten
from polytriton.runtime import settings
from polytriton.runtime.ascent_lines import CurveLines, Moved, ProductPlanes
from polytriton.runtime.layers import from_physical
from tests.oracle.graphs.draw import draw as draw_graph
from tests.oracle.graphs.keep import attempt
from tests.prove.test_neurons import fresh
from tests.prove.test_tight import any_slopes
from tests.soundness.test_curves import _image_model, draw, points


def model(op: str, sizes: tuple[int, ...], seed: int, gain: float = 1.5) -> bytes:
    """Dense layers with one function between them, or the product of a sigmoid and a tanh."""
    rng, nodes, held, at = np.random.default_rng(seed), [], [], "x"
    for k, (n, m) in enumerate(pairwise(sizes)):
        w, b = rng.standard_normal((m, n)) * gain / np.sqrt(n), 0.3 * rng.standard_normal(m)
        held += [numpy_helper.from_array(w.astype(np.float32), f"w{k}"), numpy_helper.from_array(b.astype(np.float32), f"b{k}")]
        nodes.append(helper.make_node("Gemm", [at, f"w{k}", f"b{k}"], [f"h{k}"], transB=1))
        at = f"h{k}"
        if k + 2 < len(sizes) and op == "gate":
            nodes += [helper.make_node(f, [at], [f"{f}{k}"]) for f in ("Sigmoid", "Tanh")]
            nodes.append(helper.make_node("Mul", [f"Sigmoid{k}", f"Tanh{k}"], [f"f{k}"]))
        elif k + 2 < len(sizes):
            nodes.append(helper.make_node(op, [at], [f"f{k}"]))
        at = f"f{k}" if k + 2 < len(sizes) else at
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, s]) for n, s in (("x", sizes[0]), (at, sizes[-1]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def query(net: polytriton.Verifier, lo: np.ndarray, hi: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Lower bounds of the forms, with slopes of their own, of inner neurons too."""
    decider = net._decider
    q = Questions(lo, hi, np.zeros(len(rows), dtype=np.int64), rows, np.zeros(len(rows)), np.arange(len(rows)))
    tight = Tight(decider, decider.tries(patient=False)[0])
    with settings.pin_settings(decider.device):
        box = torch.from_numpy(lo), torch.from_numpy(hi)
        boxes = tight.refine(*box, None, lambda *_: None)
        return tight.query(boxes, decider.forms(q, np.arange(len(rows)), q.image), box, None, goal=float("inf")).best.numpy()


# ---- whatever is chosen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 80))])
def test_any_slopes_give_true_bounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact values and hostile float32 executions; where the slopes are good as where they are nobody's choice."""
    drawn, lo, hi = draw(300 + seed)
    rng = np.random.default_rng([8, seed])
    any_slopes(monkeypatch, seed)
    for semantics in ("real", "float32"):
        net = polytriton.compile(drawn.model(), semantics=semantics, check=False)
        eye = np.concatenate([np.eye(drawn.outputs), -np.eye(drawn.outputs)])
        best = query(net, lo[None].astype(float), hi[None].astype(float), eye)
        low, high = best[: drawn.outputs], -best[drawn.outputs :]
        assert np.isfinite(best).any()
        for x in points(lo, hi, rng, 10):
            if semantics == "real":
                with ctx.workprec(300):
                    for v, a, b in zip(drawn.exact(x), low.tolist(), high.tolist(), strict=True):
                        assert arb(a) <= v <= arb(b), (seed, x)
            else:
                y = drawn.execute(x, rng, 4.0).astype(np.float64)
                assert (low <= y).all() and (y <= high).all(), (seed, x)


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus"])
def test_padding_has_no_cut(op: str) -> None:
    """Beside an image there is 0, not f(0): around a point, where the ascent's bounds are the values, a cut there would show at once."""
    rng = np.random.default_rng(4)
    held = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), k) for k, s in (("a", (2, 1, 2, 2)), ("b", (2, 2, 2, 2)))]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h0"]), helper.make_node(op, ["h0"], ["h1"]),
        helper.make_node("Conv", ["h1", "b"], ["h2"], pads=[1, 1, 1, 1]), helper.make_node(op, ["h2"], ["y"]),
    ]  # fmt: skip
    shapes = {"x": [1, 1, 5, 5], "y": [1, 2, 5, 5], "h2": [1, 2, 5, 5]}
    ends = {n: helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()}

    def made(*outputs: str) -> bytes:
        graph = helper.make_graph(nodes, "g", [ends["x"]], [ends[n] for n in outputs], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()  # type: ignore[no-any-return]

    x = rng.standard_normal((1, 1, 5, 5)).astype(np.float32)
    (inner,) = ort.InferenceSession(made("y", "h2"), providers=["CPUExecutionProvider"]).run(["h2"], {"x": x})
    net = polytriton.compile(made("y"), semantics="float32", check=False)
    lo, hi = (torch.from_numpy((x.reshape(1, -1) + d).astype(float)) for d in (-1e-3, 1e-3))
    tight = Tight(net._decider, net._decider.tries(patient=False)[0])
    with settings.pin_settings(net._decider.device):
        boxes = tight.refine(lo, hi, None, lambda *_: None)
    node = [n for n in net.net if n.op == "conv"][1]
    low, high = (from_physical(v[node.name], node.shape).numpy() for v in (boxes.lo, boxes.hi))
    assert (low <= inner).all() and (inner <= high).all() and (high - low < 0.1).all()


@pytest.mark.parametrize("op", ["Sigmoid", pytest.param("Softplus", marks=pytest.mark.slow)])
def test_padding_has_no_line(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an image there is 0, not f(0): no slope, and no cut."""
    any_slopes(monkeypatch, 5)
    made = _image_model(op)
    session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1, 1, 4, 3)).astype(np.float32)
    lo, hi = x - np.float32(0.05), x + np.float32(0.05)
    net = polytriton.compile(made, semantics="float32", check=False)
    best = query(net, *(v.reshape(1, -1).astype(float) for v in (lo, hi)), np.concatenate([np.eye(3), -np.eye(3)]))
    assert np.isfinite(best).all()
    for _ in range(60):
        point = np.clip((lo + (hi - lo) * rng.integers(0, 2, x.shape)).astype(np.float32), lo, hi)
        y = np.asarray(session.run(["y"], {"x": point})[0]).reshape(-1)
        assert (best[:3] <= y).all() and (y <= -best[3:]).all()


@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 2 else pytest.mark.slow) for s in range(30)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_planes_give_true_bounds(seed: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """x y and sigmoids' products, in fractions' stead float64 with room for its roundings; slopes near the others' values and far off."""
    rng = np.random.default_rng([9, seed])
    made = model("gate", (3, 5, 4, 2), seed, 2.0)
    any_slopes(monkeypatch, seed)
    net = polytriton.compile(made, semantics="real", dtype=dtype, check=False)
    middle, radius = rng.standard_normal(3), np.abs(rng.standard_normal(3)) * rng.choice([1e-3, 0.3])
    lo, hi = (middle - radius)[None], (middle + radius)[None]
    best = query(net, lo, hi, np.concatenate([np.eye(2), -np.eye(2)]))
    assert np.isfinite(best).all()
    weights = {t.name: numpy_helper.to_array(t).astype(float) for t in onnx.load_from_string(made).graph.initializer}
    h = lo + (hi - lo) * np.concatenate([rng.integers(0, 2, (60, 3)), rng.random((60, 3))])
    for k in range(3):
        h = h @ weights[f"w{k}"].T + weights[f"b{k}"]
        h = np.tanh(h) / (1 + np.exp(-h)) if k < 2 else h
    assert (best[:2] <= h + 1e-9).all() and (h - 1e-9 <= -best[2:]).all()


@pytest.mark.parametrize("op", ["Tanh", "Mul"])
def test_a_deployed_error_is_paid_whatever_the_slope(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a single point nothing else widens a function's box; a product errs by its last place, less a digit or two of float64."""
    any_slopes(monkeypatch, 7)
    size = 6
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, size]) for n in "xy"]
    held = [numpy_helper.from_array(np.float32(1.5) * np.eye(size, dtype=np.float32), "w")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Neg", ["h"], ["g"])]
    nodes += [helper.make_node("Tanh", ["h"], ["f"])] if op == "Tanh" else [helper.make_node("Mul", ["h", "g"], ["f"])]
    nodes.append(helper.make_node("MatMul", ["f", "w"], ["y"]))
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    x = np.linspace(-1, 3, size)[None].astype(np.float32).astype(float)
    widths = {}
    for semantics in ("real", "float32,tanh=1000" if op == "Tanh" else "float32"):
        net = polytriton.compile(made, semantics=semantics, dtype="float64", check=False)
        best = query(net, x, x, np.concatenate([np.eye(size), -np.eye(size)]))
        widths[semantics] = -(best[:size] + best[size:])
    real, deployed = widths.values()
    h = 1.5 * x[0]
    least = 1.5 * (2 * 1000 * 2.0**-23 * np.ones(size) if op == "Tanh" else 2.0**-23 * h * h)
    assert (real < 1e-9).all() and (deployed >= least).all()


@pytest.mark.parametrize("op", ["Tanh", "Mul"])
def test_each_cell_of_each_image_pays_its_own_error(op: str) -> None:
    """Errors are as unlike as they can be, from cell to cell and from image to image: every row is as wide as its own, no wider."""
    size = 5
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, size]) for n in "xy"]
    held = [numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Neg", ["h"], ["g"])]
    nodes.append(helper.make_node(op, ["h"] if op == "Tanh" else ["h", "g"], ["y"]))
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    net = polytriton.compile(made, semantics="float32", dtype="float64", check=False)
    decider, images = net._decider, 2
    name = next(n.name for n in net.net if n.op in ("tanh", "mul"))
    error = 4.0 ** torch.tensor([[0, 1, 2, 3, 4], [7, 5, 6, 9, 8]], dtype=torch.float64)
    tight = Tight(decider, decider.tries(patient=False)[0])
    eye = np.concatenate([np.eye(size), -np.eye(size)])
    q = Questions(
        np.zeros((images, size)), np.zeros((images, size)), np.repeat(np.arange(images), 2 * size), np.tile(eye, (images, 1)),
        np.zeros(2 * size * images), np.arange(2 * size * images),
    )  # fmt: skip
    with settings.pin_settings(decider.device):
        box = torch.from_numpy(q.lo), torch.from_numpy(q.hi)
        boxes = tight.refine(*box, None, lambda *_: None)
        boxes.error[name] = error.view(boxes.error[name].expand(images, *boxes.lo[name].shape[1:]).shape)
        boxes.lo[name], boxes.hi[name] = (torch.full_like(boxes.lo[name], end) for end in (-np.inf, np.inf))  # rows alone are asked
        boxes.tables = None
        best = tight.query(boxes, decider.forms(q, np.arange(len(q.image)), q.image), box, None, goal=float("inf")).best.numpy()
    up, down = best.reshape(images, 2, size).transpose(1, 0, 2)
    width = -(up + down) / 2
    assert (width >= error.numpy()).all() and (width <= error.numpy() * 1.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["gates", "curves", "matrices", "steps", "smooth_chain"])
def test_graphs_hold_with_slopes_of_their_own(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph oracle's executions, at the effort that chooses slopes."""
    monkeypatch.setattr("tests.oracle.graphs.judge.EFFORT", "best")
    finite = 0
    for seed in range(3000, 3003):
        outcome, found = attempt(draw_graph(rule, seed), ("float32", "real")[seed % 2])
        assert outcome is not None and not found, (rule, seed, found[0])
        finite += outcome.finite
    assert finite > 10


# ---- what the ascent chooses ----------------------------------------------------------------------------------------


def lines_of(name: str) -> tuple[Moved, tuple[Tensor, ...], Tensor]:
    """Lines over random boxes, points inside, coefficients."""
    g = torch.Generator().manual_seed(3)
    lo = torch.randn(6, 40, generator=g) * 2
    hi = lo + torch.rand(6, 40, generator=g) * 3
    low, high = torch.randn(6, 40, generator=g), torch.randn(6, 40, generator=g).abs()
    coefficients = torch.randn(6, 40, generator=g)
    if name == "mul":
        lo2, hi2 = low, low + high
        return ProductPlanes((lo, lo2), (hi, hi2)), (0.7 * lo + 0.3 * hi, 0.2 * lo2 + 0.8 * hi2), coefficients
    return CurveLines(Node("f", name, ("x",), (40,), {}), lo, hi, None), (0.7 * lo + 0.3 * hi,), coefficients


@pytest.mark.parametrize("name", ["sigmoid", "gelu", "sin", "exp", "mul"])
def test_steps_go_uphill(name: str) -> None:
    """What a row has at a point, L times the line's value, rises over the steps, never past L f(z)."""
    line, z, coefficients = lines_of(name)
    values = []
    for k in range(1, 60):
        line.back(coefficients)
        values.append((coefficients * line.forward(*z)).sum(1))
        line.step(z, 0.2 * 0.95**k, k)
    assert (values[-1] >= values[0] - 1e-3).all() and (values[-1] > values[0] + 1e-2).any()
    true = {"sigmoid": torch.sigmoid, "gelu": torch.nn.functional.gelu, "sin": torch.sin, "exp": torch.exp, "mul": torch.mul}[name](*z)
    bound = (coefficients * true).sum(1)
    assert (values[-1] <= bound + 1e-3 * (1 + bound.abs())).all(), "cuts are taken at a few points, and lowered by what lies between"


@pytest.mark.parametrize("op", ["Tanh", pytest.param("Gelu", marks=pytest.mark.slow), "gate"])
def test_chosen_slopes_prove_what_one_bound_leaves_open(op: str) -> None:
    """Many free inputs: a threshold between the plain bound and the one with slopes of the rows' own."""
    net = polytriton.compile(model(op, (80, 30, 30, 3), 1), semantics="float32", check=False)
    x = np.random.default_rng(2).random((1, 80))
    lo, hi, C = x - 0.05, x + 0.05, np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    plain, best = (np.asarray(net.margins(lo, hi, C, effort=e))[0] for e in ("tight", "best"))
    assert (best >= plain).all() and (best > plain + 1e-2).any()
    at = int(np.argmax(best - plain))
    zero, between = np.zeros(1, dtype=np.int64), np.array([0.5 * (plain[at] + best[at])])
    q = Questions(lo, hi, zero, C[at : at + 1], between, zero)
    answers = fresh(q)
    assert not net._decider.prove(q, answers=answers).settled.any()
    assert tighten(net._decider, q, answers, None, lambda *_: None).open == 0 and answers.settled.all()
