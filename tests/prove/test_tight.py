"""Bounds with chosen slopes: true whatever is chosen, and better where the ascent chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.api import Verifier
from polytriton.arithmetic import LIBRARY
from polytriton.ir.net import Builder, Net, Node
from polytriton.ir.plan import extent
from polytriton.passes.pipeline import compile_net
from polytriton.passes.windows import whole
from polytriton.prove import tight
from polytriton.prove.attempt import Answers
from polytriton.prove.decider import Try
from polytriton.prove.questions import Questions
from polytriton.prove.tight import Tight, tighten
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent, AscentRows
from polytriton.runtime.ascent_lines import Found, ReluLines
from polytriton.runtime.chain import ChainAscent
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Rows
from polytriton.runtime.soundness import SEMANTICS
from polytriton.runtime.tables import Tables
from tests.oracle.exact import attack_points, exact, exact_forms, float32_points, float32_runs
from tests.oracle.nets import random_box, random_net
from tests.oracle.small import dense

DTYPES = ("float32", "float64")


def forms(net: Net, rng: np.random.Generator, rows: int = 3) -> np.ndarray:
    return rng.standard_normal((rows, net.node(net.output).size))


def asked(net: Net, lo: np.ndarray, hi: np.ndarray, C: np.ndarray, dtype: str = "float32", semantics: str = "real") -> tuple[Tight, Forms]:
    decider = Verifier.from_net(net, semantics=semantics, dtype=dtype)._decider
    q = Questions(lo, hi, np.zeros(len(C), dtype=np.int64), C, np.zeros(len(C)), np.arange(len(C)))
    return Tight(decider, Try(dtype, "all")), decider.forms(q, np.arange(len(C)), q.image)


def hostile(shape: torch.Size, rng: np.random.Generator) -> Tensor:
    """Slopes that nobody should choose among those that one might."""
    values = torch.from_numpy(rng.uniform(-0.5, 1.5, shape).astype(np.float32))
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -3.0, 7.0, 1.0 + 2.0**-20, -1e-30, 1e-38])
    pick = torch.from_numpy(rng.integers(0, 400, shape))  # few: one enormous slope leaves a row without a bound
    return torch.where(pick < len(odd), odd[pick.clamp(max=len(odd) - 1)], values)


def any_slopes(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def improve(self: Ascent, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        found = {}
        for name in self.relaxed_before(rows.target):
            node = self.net.node(name)
            lo, _ = rows.operands[node.inputs[0]]
            found[name] = Found(hostile(lo.shape, rng), None, lo, hostile(lo.shape, rng) if node.op == "mul" else None)
        return found

    def of_chain(self: ChainAscent, target: Node, boxes: Boxes, image: int, start: Tensor, *rest: object) -> Chosen:
        before = (self.relus[n.name] for n in self.layers[: self.depth[target.name]])
        return Chosen({r.name: hostile(torch.Size([len(start), *extent(r)]), rng) for r in before})

    monkeypatch.setattr(Ascent, "improve", improve)
    monkeypatch.setattr(ChainAscent, "improve", of_chain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0, 1.5, -0.25])
def test_lines_of_any_chosen_slope_enclose_the_function(slope: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    n = 2000
    lo, hi = -rng.random(n) * 10.0 ** rng.integers(-12, 8, n), rng.random(n) * 10.0 ** rng.integers(-12, 8, n)
    lo[:100], hi[100:200] = -lo[:100] * 1e-3, -hi[100:200] * 1e-3
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    m = torch.from_numpy(rng.choice([-1.0, 1.0], n)).to(dtype)
    out, total = relaxed(slope, lo, hi, m, Chosen({"f": hostile(torch.Size([n, 1, 1, 1]), rng)}))
    for i, (c, line, cut) in enumerate(zip(m.tolist(), out.tolist(), total.tolist(), strict=True)):
        for y in (Fraction(lo[i]), Fraction(hi[i]), *([Fraction(0)] if lo[i] < 0 < hi[i] else [])):
            f = max(y, Fraction(0)) + Fraction(slope) * min(y, Fraction(0))
            assert Fraction(line) * y + Fraction(cut) <= Fraction(c) * f, (lo[i], hi[i])


def relaxed(
    slope: float, lo: np.ndarray, hi: np.ndarray, m: Tensor, chosen: Chosen, error: float = 0.0, signed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rows m f(y), each over a box [lo, hi] of its own: their coefficients over y, and their constants. With an `error` f's own, in a
    deployed semantics.
    """
    low, high = (torch.from_numpy(v).view(-1, 1, 1, 1) for v in (lo, hi))
    b = Builder("one")
    x = b.input((1,))
    net = b.build(b.add("relu", (x,), hint="f", slope=slope))
    forward = Forward(net, SEMANTICS["float32" if error else "real"], torch.device("cpu"))
    coefficients = LIBRARY["float32"] if m.dtype == torch.float32 else LIBRARY["float64"]
    kit = Kit(net, compile_net(net).plan, forward, coefficients)
    at, zero = torch.arange(len(m)), torch.zeros(len(m), dtype=torch.int64)
    rows = Rows(at, zero, zero, zero.double(), zero.double(), at)
    signs = {r: v != 0 if signed is None else signed for r, v in chosen.multipliers.items()}
    tables = Tables(kit, Boxes({"x": low}, {"x": high}, error={"f": torch.full_like(low, error)}, signed=signs))
    out, total = chosen.relax(TorchBackend(torch.device("cpu")), tables, rows, net.node("f"), whole(1, 1), m.view(-1, 1, 1, 1))
    return out.flatten(), total


def test_the_error_of_a_leaky_operator_is_paid_whatever_its_slope() -> None:
    one, slope = torch.ones(1), Chosen({"f": torch.full((1, 1, 1, 1), 0.5)})
    without, with_error = (relaxed(0.1, np.full(1, -1.0), np.full(1, 2.0), one, slope, e)[1].item() for e in (1e-30, 0.25))
    assert with_error <= -0.25 < without


def test_cells_that_multipliers_reach_are_live() -> None:
    """A ReLU that is off has no coefficient of its own; with a multiplier it may have one."""
    net = dense((np.eye(2), [-5.0, -5.0]), (np.eye(2), [0.0, 0.0]))
    t, _ = asked(net, np.full((1, 2), -1.0), np.full((1, 2), 1.0), np.eye(2))
    boxes = t.engine.interval(torch.full((1, 2), -1.0, dtype=torch.float64), torch.full((1, 2), 1.0, dtype=torch.float64))
    (relu,) = (n for n in net if n.op == "relu")
    assert not Tables(t.engine.kit, boxes).live(relu.inputs[0]).any()
    boxes.signed = {relu.name: torch.tensor([0, -1], dtype=torch.int8).view(1, 1, 1, 2)}
    assert Tables(t.engine.kit, boxes).live(relu.inputs[0]).flatten().tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multipliers_lower_what_they_multiply(dtype: torch.dtype) -> None:
    """Taken where the box shows the sign they stand for, and there whatever they are; nothing elsewhere."""
    rng = np.random.default_rng(3)
    n = 2000
    ends = np.sort(rng.standard_normal((2, n)) * 10.0 ** rng.integers(-6, 6, n), axis=0)
    side = rng.integers(0, 3, n)
    lo, hi = np.where(side == 1, 0.0, ends[0]), np.where(side == 2, 0.0, ends[1])
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    b = torch.from_numpy(rng.standard_normal(n) * 10.0 ** rng.integers(-12, 6, n)).view(-1, 1, 1, 1)
    b[::50] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).repeat(10).view(-1, 1, 1, 1)
    m = torch.from_numpy(rng.standard_normal(n) * 10.0 ** rng.integers(-12, 6, n)).to(dtype)
    out, total = relaxed(0.0, lo, hi, m, Chosen({"f": torch.zeros(n, 1, 1, 1)}, {"f": b}))
    plain, _ = relaxed(0.0, lo, hi, m, Chosen({"f": torch.zeros(n, 1, 1, 1)}))
    half = (torch.arange(n) % 2).view(-1, 1, 1, 1)
    some, _ = relaxed(0.0, lo, hi, m, Chosen({"f": torch.zeros(n, 1, 1, 1)}, {"f": b}), signed=half)
    assert torch.equal(some[::2], plain[::2]) and torch.equal(some[1::2], out[1::2])
    leaky = [relaxed(0.1, lo, hi, m, Chosen({"f": torch.zeros(n, 1, 1, 1)}, more))[0] for more in ({}, {"f": b})]
    assert torch.equal(*leaky)
    given = b.flatten().to(dtype).numpy()
    taken = np.isfinite(given) & (((given > 0) & (lo >= 0)) | ((given < 0) & (hi <= 0)))
    assert taken.sum() > 300 and (out != plain).numpy()[taken].sum() > 200 and torch.equal(out[~taken], plain[~taken])
    for i in range(n):
        for y in (Fraction(lo[i]), Fraction(hi[i])):
            f = Fraction(m[i].item()) * max(y, Fraction(0))
            slack = Fraction(0 if lo[i] >= 0 or hi[i] <= 0 else 2.0**-22) * abs(
                Fraction(out[i].item()) * y
            )  # the chord's product is rounded, and charged later
            assert Fraction(out[i].item()) * y + Fraction(total[i].item()) <= f + slack


def nets_with_slopes(seeds: range) -> Iterator[tuple[int, Net]]:
    for seed in seeds:
        net = random_net(seed, limit=60)
        if Ascent.serves(net):
            yield seed, net


def compared(seeds: range, semantics: str, dtype: str) -> tuple[int, int]:
    """Comparisons with finite bounds, and wrong ones."""
    finite = wrong = 0
    for seed, net in nets_with_slopes(seeds):
        rng = np.random.default_rng(seed)
        lo, hi = (v.astype(np.float32).astype(np.float64).reshape(1, -1) for v in random_box(rng, net, "ordinary"))
        C = forms(net, rng)
        t, f = asked(net, lo, hi, C, dtype, semantics)
        with settings.pin_settings(t.engine.device):
            box = torch.from_numpy(lo), torch.from_numpy(hi)
            boxes = t.refine(*box, None, lambda *_: None)
            best = t.query(boxes, f, box, None).best.numpy()
        points = attack_points(net, lo, hi, C, rng)
        if semantics == "real":
            values = exact_forms(exact(net, points)[net.output], C).down()
        else:
            shape = points.shape[1:]
            runs = float32_runs(net, float32_points(points, lo.reshape(shape), hi.reshape(shape)), rng, 6)
            outputs = np.concatenate([r[net.output].reshape(len(points), -1) for r in runs])
            values = outputs @ C.T + 1e-9 * (1 + np.abs(outputs) @ np.abs(C.T))
        told = np.isfinite(best)
        finite += int(told.sum()) * len(values)
        wrong += int((values < best[None])[:, told].sum())
    return finite, wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_slopes_give_true_bounds(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    any_slopes(monkeypatch, 1)
    finite, wrong = compared(range(40), "real", dtype)
    assert finite > 500 and wrong == 0


@pytest.mark.parametrize(("nets", "least"), [(5, 80), pytest.param(25, 500, marks=pytest.mark.slow)])
def test_chosen_slopes_cover_float32_executions(nets: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finite, wrong = compared(range(nets), "float32", "float32")
    any_slopes(monkeypatch, 2)
    more, also = compared(range(nets), "float32", "float32")
    assert min(finite, more) > least and wrong == also == 0


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_any_slopes_give_true_bounds_at_length(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    any_slopes(monkeypatch, 3)
    finite, wrong = compared(range(100, 220), semantics, "float32")
    assert finite > 2000 and wrong == 0


# ---- the ascent ---------------------------------------------------------------------------------------------------


def mlp(seed: int, sizes: tuple[int, ...] = (4, 12, 12, 3)) -> Net:
    rng = np.random.default_rng(seed)
    return dense(*((rng.standard_normal((m, n)) / np.sqrt(n), rng.standard_normal(m).tolist()) for n, m in pairwise(sizes)))


def bound_of(net: Net, rows: AscentRows, slopes: dict[str, Tensor]) -> Tensor:
    """The ascent's own value of the rows with these slopes, by its formula written out in float64 over the network's matrices."""
    m, constant = rows.start.double().flatten(1), torch.zeros(len(rows.start), dtype=torch.float64)
    for node in reversed(list(net)):
        if node.op == "relu":
            l, u = (v.double().flatten(1) for v in rows.operands[node.inputs[0]])
            a = slopes[node.name].double().flatten(1)
            open_ = (l < 0) & (u > 0)
            chord = torch.where(open_, u / (u - l), (l >= 0).double())
            constant = constant + (m.clamp(max=0) * torch.where(open_, -chord * l, torch.zeros_like(l))).sum(1)
            m = m.clamp(min=0) * torch.where(open_, a, (l >= 0).double()) + m.clamp(max=0) * chord
        elif node.op == "linear":
            w, b = (torch.from_numpy(np.array(net.weight(node, key), dtype=np.float64)) for key in ("w", "b"))
            constant, m = constant + m @ b, m @ w
    return constant + (m.clamp(min=0) * rows.lo + m.clamp(max=0) * rows.hi).sum(1)


def below(found: dict[str, Found]) -> dict[str, Tensor]:
    return {name: f.slopes for name, f in found.items()}


def the_rows(net: Net, seed: int, count: int = 5) -> AscentRows:
    """Rows over the output, with the boxes that plain refinement gives."""
    rng = np.random.default_rng(seed)
    lo, hi = np.full((1, 4), -0.7), np.full((1, 4), 0.9)
    C = forms(net, rng, count)
    t, _ = asked(net, lo, hi, C)
    boxes = t.engine.refine(torch.from_numpy(lo), torch.from_numpy(hi))
    read = [n.inputs[0] for n in net if n.op == "relu"]
    operands = {i: (boxes.lo[i].flatten(1).repeat(count, 1), boxes.hi[i].flatten(1).repeat(count, 1)) for i in read}
    sides = (torch.from_numpy(v).repeat(count, 1) for v in (lo, hi))
    return AscentRows(net.output, torch.from_numpy(C), *sides, operands)


@pytest.mark.parametrize("seed", range(3))
def test_a_small_step_raises_every_row_by_its_slope(seed: int) -> None:
    """One step of gradient ascent, by central differences of the bound written out over the matrices."""
    net = mlp(seed)
    rows, ascent = the_rows(net, seed), Ascent(net, torch.device("cpu"))
    noted: list[tuple[Tensor, Tensor]] = []

    def note(line: ReluLines, operands: tuple[Tensor], rate: float, k: int) -> None:
        (z,) = operands
        noted.append((line.below.clone(), torch.where(line.open, line.coefficient.clamp(min=0) * z, torch.zeros_like(z))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReluLines, "step", note)
        ascent.improve(rows, 1, 0.0)
    found = dict(zip(ascent.divided_before(net.output), noted, strict=True))
    start = {name: below for name, (below, _) in found.items()}
    checked = 0
    for name, (below, slope) in found.items():
        for cell in torch.nonzero(slope[0]).flatten().tolist():
            ends = []
            for h in (1e-5, -1e-5):
                moved = dict(start)
                moved[name] = below.double().clone()
                moved[name][:, cell] += h
                ends.append(bound_of(net, rows, moved))
            difference = (ends[0] - ends[1]) / 2e-5
            assert torch.allclose(difference, slope[:, cell].double(), rtol=1e-3, atol=1e-4)
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("seed", range(4))
def test_chosen_slopes_are_those_of_the_best_bound(seed: int) -> None:
    """The value by the formula rises, is never below the area rule's, and the charged walk comes to it within its rounding."""
    net = mlp(seed, (4, 20, 20, 20, 3))
    rows, ascent = the_rows(net, seed), Ascent(net, torch.device("cpu"))
    before = bound_of(net, rows, below(ascent.improve(rows, 0, 0.1)))
    after = bound_of(net, rows, below(ascent.improve(rows, 40, 0.1)))
    assert (after >= before - 1e-4).all() and (after > before + 1e-2).any()
    lo, hi = rows.lo[:1], rows.hi[:1]
    t, f = asked(net, lo.numpy(), hi.numpy(), rows.start.numpy(), "float64")
    t.inner = False
    with settings.pin_settings(t.engine.device):
        walked = t.query(t.refine(lo, hi, None, lambda *_: None), f, (lo, hi), None).best
    assert torch.allclose(walked, bound_of(net, rows, below(ascent.improve(rows, tight.QUERY, tight.RATE))), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_ascent_of_a_chain_is_the_ascent(seed: int) -> None:
    """Rows over an inner layer, by the form with a tape over all neurons and by the one without over those that are not off."""
    net = mlp(seed, (4, 20, 20, 20, 3))
    target = [n for n in net if n.op == "linear"][2]
    lo, hi = torch.full((1, 4), -0.7, dtype=torch.float64), torch.full((1, 4), 0.9, dtype=torch.float64)
    t, _ = asked(net, lo.numpy(), hi.numpy(), np.eye(3))
    assert t.chain is not None
    with settings.pin_settings(t.engine.device):
        boxes = t.engine.refine(lo, hi)
    rng = np.random.default_rng(seed)
    signs, some = {}, AscentRows(target.name, torch.eye(20).view(20, 1, 1, 20), lo.expand(20, -1), hi.expand(20, -1), {})
    for r in t.ascent.divided_before(target.name):  # signs that half of the undecided neurons take
        i = net.node(r).inputs[0]
        sign = torch.from_numpy(rng.choice([-1.0, 0.0, 0.0, 1.0], 20)).view(1, 1, 1, 20)
        boxes.lo[i], boxes.hi[i] = (
            torch.where(sign > 0, boxes.lo[i].clamp(min=0), boxes.lo[i]),
            torch.where(sign < 0, boxes.hi[i].clamp(max=0), boxes.hi[i]),
        )
        signs[r] = torch.where(boxes.lo[i] <= boxes.hi[i], sign, 0.0)
    image = torch.zeros(20, dtype=torch.int64)
    wide = {r: v.expand(20, -1, -1, -1) for r, v in signs.items()}
    taped = t.as_chosen(t.ascend(replace(some, signs=wide), boxes, image, 12))
    alone = t.chain.improve(target, boxes, 0, torch.eye(20), signs, 12, tight.RATE)
    compared = multiplied = 0
    for r, below in alone.slopes.items():
        i = net.node(r).inputs[0]
        open_ = ((boxes.lo[i] < 0) & (boxes.hi[i] > 0)).expand_as(below)
        assert torch.allclose(below[open_], taped.slopes[r][open_], atol=2e-2)
        compared += int(open_.sum())
        if r in alone.multipliers:
            assert torch.allclose(alone.multipliers[r], taped.multipliers[r], rtol=2e-2, atol=2e-2)
            multiplied += int((alone.multipliers[r] != 0).sum())
    assert compared > 100 and multiplied > 20


def test_inner_neurons_become_tighter() -> None:
    """A neuron that is settled early keeps a wide box, so those count that stay undecided."""
    gained = lost = 0
    for seed in range(4):
        net = mlp(seed, (4, 20, 20, 20, 3))
        lo, hi = torch.full((1, 4), -0.7, dtype=torch.float64), torch.full((1, 4), 0.9, dtype=torch.float64)
        t, _ = asked(net, lo.numpy(), hi.numpy(), np.eye(3))
        with settings.pin_settings(t.engine.device):
            plain, chosen = t.engine.refine(lo, hi), t.refine(lo, hi, None, lambda *_: None)
        for name in t.engine.programs:
            before, after = ((b.lo[name] < 0) & (b.hi[name] > 0) for b in (plain, chosen))
            assert not (after & ~before).any()
            share = ((chosen.hi[name] - chosen.lo[name]) / (plain.hi[name] - plain.lo[name]))[after]
            gained += int((share < 0.98).sum())
            lost += int((share > 1.001).sum())
    assert gained > 50 and lost == 0


def test_a_property_that_one_bound_leaves_open_is_proved() -> None:
    """The threshold lies between the plain bound and the tight one; `none` leaves it open, `auto` would divide the box."""
    net = mlp(1, (4, 20, 20, 20, 3))
    verifier = Verifier.from_net(net, semantics="real")
    lo, hi, C = np.full((1, 4), -0.7), np.full((1, 4), 0.9), np.array([[1.0, -1.0, 0.0]])
    plain = float(verifier.margins(lo, hi, C)[0, 0])
    q = Questions(lo, hi, np.zeros(1, dtype=np.int64), C, np.array([plain + 0.05]), np.zeros(1, dtype=np.int64))
    answers = Answers(np.full(1, -np.inf), np.full(1, -np.inf), np.zeros(1, dtype=bool))
    assert not verifier._decider.prove(q, answers=answers).settled.any()
    said = tighten(verifier._decider, q, answers, None, lambda *_: None)
    assert answers.settled.all() and answers.best[0] > 0
    assert (said.kind, said.open, said.ended, said.share) == ("slopes", 0, "", 1.0)


def test_what_no_slope_proves_stays_open() -> None:
    net = mlp(1, (4, 20, 20, 20, 3))
    low, high = np.full((1, 4), -0.7), np.full((1, 4), 0.9)
    q = Questions(low, high, np.zeros(2, dtype=np.int64), np.eye(3)[:2], np.array([-1e3, 1e3]), np.arange(2))
    answers = Answers(np.full(2, -np.inf), np.full(2, -np.inf), np.zeros(2, dtype=bool))
    said = tighten(Verifier.from_net(net)._decider, q, answers, None, lambda *_: None)
    assert answers.settled.tolist() == [True, False] and (said.ended, said.open, said.share) == ("steps", 1, 0.5)


def test_time_ends_it_and_proves_nothing() -> None:
    net = mlp(1, (4, 20, 20, 20, 3))
    q = Questions(
        np.full((1, 4), -0.7),
        np.full((1, 4), 0.9),
        np.zeros(1, dtype=np.int64),
        np.eye(3)[:1],
        np.array([1e3]),
        np.zeros(1, dtype=np.int64),
    )
    answers = Answers(np.full(1, -np.inf), np.full(1, -np.inf), np.zeros(1, dtype=bool))
    said = tighten(Verifier.from_net(net)._decider, q, answers, 0.0, lambda *_: None)
    assert (said.ended, said.open) == ("time", 1) and not answers.settled.any()


def test_networks_with_max_pools_have_no_slopes_to_choose() -> None:
    assert not any(Ascent.serves(net) for net in map(random_net, range(60)) if any(n.op == "maxpool" for n in net))
