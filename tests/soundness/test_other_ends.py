"""Rows read from both ends: no execution lies above a row's other end, whatever it rounds and whatever its ReLUs leave open."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.ir.net import Builder, Net, Ref
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import centres, relax
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.results import Results
from polytriton.runtime.trace import Trace
from polytriton.runtime.undecided import indices
from polytriton.runtime.walker import Walker
from tests.soundness.test_centres import active, exact_line

EDGE = 5  # points of an axis of the input's box
Layers = list[tuple[np.ndarray, np.ndarray]]


def eighths(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of few digits, whose products and sums are exact in float64."""
    return np.asarray(rng.integers(-12, 13, shape) / 8)


def dense(rng: np.random.Generator, sizes: tuple[int, ...], up: float) -> Layers:
    return [(eighths(rng, n, m), eighths(rng, n) + up) for m, n in pairwise(sizes)]


def chain(layers: Layers, skip: bool) -> Net:
    """Dense layers with ReLUs between; with `skip` every layer of the same width adds what it reads."""
    b = Builder("chain")
    x = b.input((layers[0][0].shape[1],))
    for k, (w, c) in enumerate(layers):
        y = b.add("linear", (x,), w=b.constant(w.astype(np.float32)), b=b.constant(c.astype(np.float32)))
        y = b.add("add", (y, x)) if skip and w.shape[0] == w.shape[1] else y
        x = y if k + 1 == len(layers) else b.add("relu", (y,))
    return b.build(x)


def run(layers: Layers, skip: bool, x: np.ndarray) -> Iterator[np.ndarray]:
    """What every layer makes of points [points, inputs], exactly: no number here needs more than 53 bits."""
    for w, c in layers:
        y = x @ w.T + c
        y = y + x if skip and w.shape[0] == w.shape[1] else y
        yield y
        x = np.maximum(y, 0)


def grid(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    axes = [a + (b - a) * np.arange(EDGE) / (EDGE - 1) for a, b in zip(lo, hi, strict=True)]
    return np.stack([v.ravel() for v in np.meshgrid(*axes)], 1)


def note_sides(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Tensor, Tensor, Results]]:
    """The cells, signs and results of rows that were asked for both ends from now on."""
    noted, side = list[tuple[str, Tensor, Tensor, Results]](), Walker.bound_side

    def note(self: Walker, program, tables, where, neurons, sign, *rest, ends):  # type: ignore[no-untyped-def]
        results = side(self, program, tables, where, neurons, sign, *rest, ends=ends)
        if ends:
            assert results.other is not None
            noted.append((program.target, where[3][neurons], sign, results))
        return results

    monkeypatch.setattr(Walker, "bound_side", note)
    return noted


@pytest.mark.parametrize("plays", [True, False], ids=["played", "walked"])
@pytest.mark.parametrize("candidates", ["input", "all"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("skip", [False, True], ids=["chain", "skip"])
def test_no_execution_lies_above_the_other_end(
    skip: bool, dtype: str, candidates: str, plays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On networks of few digits, whose executions on a grid are exact."""
    monkeypatch.setattr(Walk, "plays", plays)
    monkeypatch.setattr(centres, "FEW", 3)
    noted, finite, near = note_sides(monkeypatch), 0, 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        layers = dense(rng, (2, 6, 6, 6, 2), float(rng.integers(0, 3)))
        net = chain(layers, skip)
        lo = eighths(rng, 2)
        hi = lo + rng.integers(1, 9, 2) / 4
        noted.clear()
        engine = Engine(compile_net(net, candidates), semantics="real", dtype=dtype)
        given = [torch.from_numpy(v)[None] for v in (lo, hi)]
        boxes, untraced = engine.refine(*given, trace=Trace(torch.device("cpu")), every=False), engine.refine(*given, every=False)
        values = dict(zip([n.inputs[0] for n in net if n.op == "relu"], run(layers, skip, grid(lo, hi)), strict=False))
        for name, found in values.items():
            assert torch.equal(boxes.lo[name], untraced.lo[name]) and torch.equal(boxes.hi[name], untraced.hi[name])
            assert (boxes.lo[name].flatten().numpy() <= found.min(0)).all() and (boxes.hi[name].flatten().numpy() >= found.max(0)).all()
        for name, cells, sign, results in noted:
            greatest = (values[name] * 1.0)[:, cells.numpy()] * sign.numpy()
            other = -results.other.best.numpy()  # type: ignore[union-attr]
            told = np.isfinite(other)
            assert (other >= greatest.max(0))[told].all()
            finite += int(told.sum())
            near += int((other - greatest.max(0) < 0.3 * np.ptp(greatest, axis=0) + 1e-9)[told].sum())
    assert finite > 80 and near > 0.2 * finite, (finite, near)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plays", [True, False], ids=["played", "walked"])
@pytest.mark.parametrize("kind", ["dense", "residual", "conv"])
def test_what_a_row_rounds_is_paid_at_both_ends(kind: str, plays: bool, dtype: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every ReLU is the identity both ends are those of an exact line, and little lies between."""
    monkeypatch.setattr(Walk, "plays", plays)
    rng = np.random.default_rng(6)
    net = active(rng, kind)
    engine = Engine(compile_net(net, "input"), semantics="real", dtype=dtype)
    name = list(engine.programs)[-1]
    lo = torch.from_numpy(rng.standard_normal((1, net.input.size)))
    hi = lo + 2.0**-6
    boxes = engine.refine(lo, hi)
    cells = torch.arange(0, boxes.lo[name].numel(), 29)
    results = engine.walker.bound_side(
        engine.programs[name], engine.tables(boxes), indices(cells, boxes.lo[name].shape), torch.arange(len(cells)),
        torch.full((len(cells),), sign), False, None, ends=True,
    )  # fmt: skip
    assert results.other is not None
    at = boxes.lo[name].shape
    for k, cell in enumerate(cells.tolist()):
        h, w, c = (int(v[0]) for v in indices(torch.tensor([cell]), at)[1:])
        form, constant = exact_line(head(net, name), (c * at[1] + h) * at[2] + w)
        ends = [[Fraction(float(v)) for v in box.flatten()] for box in (lo, hi)]
        least, most = (
            constant + sum((m * (a if (m > 0) == low else b) for m, a, b in zip(form, *ends, strict=True)), Fraction(0))
            for low in (True, False)
        )
        if sign < 0:
            least, most = -most, -least
        assert Fraction(float(results.best[k])) <= least and Fraction(-float(results.other.best[k])) >= most
        assert -float(results.other.best[k]) - float(most) < (2e-4 if dtype == "float32" else 1e-9) * abs(float(most))


def head(net: Net, name: str) -> Net:
    """The network up to a node."""
    b = Builder("head")
    for n in net.nodes:
        given = {key: b.constant(net.weights[value.name]) if isinstance(value, Ref) else value for key, value in n.attrs.items()}
        made = b.input(n.shape, n.name) if n.op == "input" else b.add(n.op, n.inputs, n.name, **given)
        assert made == n.name
        if n.name == name:
            break
    return b.build(name)


@pytest.mark.parametrize("looped", [True, False], ids=["loop", "tensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gap_is_what_a_relu_has_above_its_line(dtype: torch.dtype, looped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not looped:
        monkeypatch.setattr(relax.cells, "serves", lambda _: False)
    rng = np.random.default_rng(1)
    lo, hi = np.sort(rng.standard_normal((2, 4000)) * 10.0 ** rng.integers(-30, 30, (2, 4000)), axis=0)
    hi[:120] = abs(hi[:120])
    lo[:120] = -hi[:120]  # ties
    lo[:40], hi[40:80] = 0.0, 0.0
    lines = relax.relu_lines(torch.from_numpy(lo), torch.from_numpy(hi), 0.0, dtype)
    assert lines.gap is not None
    below, gap = lines.lower_slope.double().numpy(), lines.gap.double().numpy()
    want = np.maximum(np.maximum(lo, 0) - below * lo, np.maximum(hi, 0) - below * hi)
    assert (gap >= want).all() and (gap <= want * (1 + 2.0**-22) + 1e-44).all()
    wild = torch.tensor([-np.inf, -np.inf, -1.0, -1.0]).double(), torch.tensor([np.inf, 2.0, np.inf, np.nan]).double()
    told = relax.relu_lines(*wild, 0.0, dtype).gap
    assert told is not None and told[0] == np.inf and told[1] == 2.0 and told[2] == 1.0 and bool(told[3].isnan())
    assert relax.relu_lines(*wild, 0.1, dtype).gap is None and relax.relu_lines(*wild, 1.0, dtype).gap is None
    assert relax.relu_lines(*wild, 0.0, dtype, torch.ones(4).double()).gap is None


def other_operator(op: str) -> Net:
    b = Builder(op)
    x = b.input((4, 4, 4) if op == "maxpool" else (4,))
    if op == "maxpool":
        x = b.add("maxpool", (x,), k=(2, 2), s=(2, 2))
        x = b.add("reshape", (x,), to=(16,))
    else:
        x = b.add("relu", (x,), slope=0.1) if op == "leaky" else b.add(op, (x,))
    width = 16 if op == "maxpool" else 4
    x = b.add("relu", (b.add("linear", (x,), w=b.constant(np.ones((4, width), np.float32)), b=b.constant(np.zeros(4, np.float32))),))
    return b.build(b.add("linear", (x,), w=b.constant(np.ones((2, 4), np.float32)), b=b.constant(np.zeros(2, np.float32))))


@pytest.mark.parametrize("op", ["maxpool", "leaky", "tanh"])
def test_rows_through_other_operators_have_one_end(op: str) -> None:
    net = other_operator(op)
    engine = Engine(compile_net(net, "input"), semantics="real")
    box = torch.full((1, net.input.size), -1.0).double(), torch.full((1, net.input.size), 1.0).double()
    program, tables = list(engine.programs.values())[-1], engine.tables(engine.interval(*box))
    assert not engine.walker.has_ends(program, tables)


def test_rows_over_balls_have_one_end() -> None:
    """A ball says more than its box of the end that is asked for, and nothing of the other."""
    net = chain(dense(np.random.default_rng(0), (2, 6, 6, 2), 0.0), False)
    engine = Engine(compile_net(net, "input"), semantics="real")
    box = torch.zeros(1, 2).double(), torch.ones(1, 2).double()
    program = list(engine.programs.values())[-1]
    assert engine.walker.has_ends(program, engine.tables(engine.interval(*box)))
    ball = InputBalls(2.0, torch.full((1, 2), 0.5).double(), torch.ones(1, 2).double(), torch.tensor([0.25]).double())
    assert not engine.walker.has_ends(program, engine.tables(engine.interval(*box, ball)))
