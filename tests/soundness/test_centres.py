"""Products centred on a point of the operand's box: a row holds exactly, and owes what its box is wide."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import centres
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.lines import input_lines
from polytriton.runtime.results import Forms, Results
from polytriton.runtime.soundness import U64

WIDE = 64


def active(rng: np.random.Generator, kind: str) -> Net:
    """Layers whose neurons are all far above zero: ReLUs are the identity, and the network is linear. Every layer of a `residual` one is
    the sum of two, so that products meet in what they read.
    """
    b = Builder("active")
    if kind != "conv":
        x = b.input((WIDE,))
        for bias in (3e4, 3e5):
            made = []
            for share in (bias, 0.5 * bias)[: 2 if kind == "residual" else 1]:
                w, c = (rng.standard_normal((WIDE, WIDE)) / WIDE**0.5).astype(np.float32), np.full(WIDE, share, np.float32)
                made.append(b.add("linear", (x,), w=b.constant(w), b=b.constant(c)))
            x = b.add("relu", (b.add("add", tuple(made)) if len(made) == 2 else made[0],))
    else:
        x = b.input((8, 5, 4))
        for stride, bias in ((2, 3e4), (1, 3e5)):
            w, c = (rng.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32), np.full(8, bias, np.float32)
            made = b.add("conv", (x,), w=b.constant(w), b=b.constant(c), k=(3, 3), s=(stride, stride), p=(1, 1, 1, 1))
            x = b.add("relu", (made,))
        x = b.add("reshape", (x,), to=(48,))
    last = rng.standard_normal((3, 48 if kind == "conv" else WIDE)).astype(np.float32)
    return b.build(b.add("linear", (x,), w=b.constant(last), b=b.constant(np.zeros(3, np.float32))))


def exact_line(net: Net, form: int) -> tuple[list[Fraction], Fraction]:
    """An output as an exact linear form of its input."""
    rows = {net.output: np.array([Fraction(int(k == form)) for k in range(net.node(net.output).size)])}
    constant = Fraction(0)
    for n in reversed(net.nodes[1:]):
        row = rows.pop(n.name)
        if n.op in ("linear", "conv"):
            w, b = net.weight(n, "w"), net.weight(n, "b")
            assert w is not None and b is not None
            if n.op == "conv":
                w, b = dense(w, net.node(n.inputs[0]).shape, n.shape, n.ints("s")[0]), np.repeat(b, n.shape[1] * n.shape[2])
            constant += row @ np.array([Fraction(float(v)) for v in b])
            row = row @ np.array([[Fraction(float(v)) for v in line] for line in w])
        for i in n.inputs:
            rows[i] = rows[i] + row if i in rows else row
    return list(rows[net.input.name]), constant


def dense(w: np.ndarray, into: tuple[int, ...], out: tuple[int, ...], stride: int) -> np.ndarray:
    found = np.zeros((*out, *into), w.dtype)
    for y in range(out[1]):
        for x in range(out[2]):
            for i in range(3):
                for j in range(3):
                    r, q = y * stride + i - 1, x * stride + j - 1
                    if 0 <= r < into[1] and 0 <= q < into[2]:
                        found[:, y, x, :, r, q] = w[:, :, i, j]
    return found.reshape(int(np.prod(out)), -1)


@pytest.mark.parametrize("kind", ["dense", "conv", "residual"])
def test_a_row_is_exact_at_the_centre_and_owes_what_the_box_is_wide(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values near 10^5 in boxes a billionth as wide: what float32 products round is far more than a row owes, but for its correction."""
    rng = np.random.default_rng(4)
    net = active(rng, kind)
    size = net.input.size
    at = rng.uniform(50, 60, size)
    lo, hi = torch.from_numpy(at)[None], torch.from_numpy(at + 1e-5)[None]
    forms = Forms(torch.zeros(3, dtype=torch.int64), torch.eye(3, dtype=torch.float64))
    slack, lines = {}, [exact_line(net, form) for form in range(3)]
    for few in (1, 10**6):
        monkeypatch.setattr(centres, "FEW", few)
        engine = Engine(compile_net(net), dtype="float32", semantics="real")
        with torch.no_grad():
            boxes = engine.refine(lo, hi)
            found, bounds = input_lines(engine, boxes, forms), engine.query(boxes, forms).best
        slack[few] = found.slack
        order = torch.arange(size).reshape(net.input.shape).permute(1, 2, 0).flatten() if kind == "conv" else torch.arange(size)
        for form in range(3):
            slopes, constant = lines[form]
            for corner in (lo[0], hi[0], torch.where(torch.arange(size) % 2 == 0, lo[0], hi[0])):
                point = [Fraction(v) for v in corner.tolist()]
                true = sum((s * v for s, v in zip(slopes, point, strict=True)), constant)
                row = [Fraction(v) for v in found.slopes[form].tolist()]
                line = sum((s * point[k] for s, k in zip(row, order.tolist(), strict=True)), Fraction(float(found.constant[form])))
                off = abs(true - line)
                assert off <= Fraction(float(found.slack[form])), (few, form, float(off), float(found.slack[form]))
            ends = [Fraction(v) for v in lo[0].tolist()], [Fraction(v) for v in hi[0].tolist()]
            least = sum((s * (a if s > 0 else b) for s, a, b in zip(slopes, *ends, strict=True)), constant)
            loss = least - Fraction(float(bounds[form]))
            assert 0 <= loss <= 3 * Fraction(float(found.slack[form])), (few, form, float(loss), float(found.slack[form]))
    assert (slack[1] < slack[10**6] / 4).all(), slack


def test_where_the_box_has_no_end_there_is_no_bound() -> None:
    """The point is 0 there, and the radius infinite."""
    net = active(np.random.default_rng(5), "dense")
    engine = Engine(compile_net(net), dtype="float32", semantics="real")
    boxes = engine.interval(torch.zeros(1, WIDE, dtype=torch.float64), torch.ones(1, WIDE, dtype=torch.float64))
    first = next(n for n in engine.net if n.op == "linear")
    boxes.lo[engine.net.input.name][0, 0, 0, 3] = -float("inf")
    found = centres.find_centre(engine.forward, engine.forward.layers[first.name], boxes, torch.float32)
    assert found.point[0, 0, 0, 3] == 0 and found.radius[0, 0, 0, 3] == float("inf")
    assert torch.isfinite(found.image).all()


class _Errors(Walk):
    """What rows owe before the input's own candidate."""

    plays = False
    owed: torch.Tensor

    def _check(self, last: bool) -> bool:
        self.owed = self.rows.error.clone()
        return not last


@pytest.mark.parametrize("outputs, inputs, centred", [(4, 60, "on zero"), (200, 4, "far"), (4, 60, "farther")])
def test_a_row_owes_what_its_constants_round(outputs: int, inputs: int, centred: str) -> None:
    """At a point of small integers no product rounds: what is owed is the image's sum, that of M.(W p + b) and that of M'.p."""
    rng = np.random.default_rng(6)
    w, p = rng.integers(1, 9, (outputs, inputs)).astype(np.float32), rng.integers(1, 9, inputs).astype(np.float64)
    b = ({"on zero": -1, "far": 0, "farther": 1000}[centred] * (w @ p)).astype(np.float32)
    net = Builder("point")
    net = net.build(net.add("linear", (net.input((inputs,)),), w=net.constant(w), b=net.constant(b)))
    engine = Engine(compile_net(net), dtype="float32", semantics="real")
    box, m = torch.from_numpy(p)[None], np.ones(outputs)
    empty = torch.zeros(0, dtype=torch.float64)
    forms = Forms(torch.zeros(1, dtype=torch.int64), torch.from_numpy(m)[None])
    with torch.inference_mode():
        boxes = engine.refine(box, box)
        (walk,) = engine.walker.walks(_Errors, engine.tables(boxes), forms, Results(empty, empty), None)
    least = (inputs + 1) * (m @ (w @ p + np.abs(b))) + outputs * (m @ np.abs(w @ p + b)) + inputs * (m @ w @ p)
    assert float(walk.owed[0]) >= U64 * least
