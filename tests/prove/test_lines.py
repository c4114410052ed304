"""Lower lines over the input, against exact rationals and float32 executions of this directory's own."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from polytriton.prove.questions import questions
from polytriton.runtime.lines import input_lines
from tests.prove.piecewise import TINIEST, Form, Small, drawn, exact, pieces, uneven
from tests.prove.watched import asked, compiled


def lines_of(
    net: Small, forms: Sequence[Form], lo: Any, hi: Any, semantics: str, way: int = 0, first: str = "Gather", refined: bool = True
) -> list[Any]:
    """Per form slopes over the user's inputs, constant and slack, in exact rationals."""
    decider = compiled(net, semantics, first)._decider
    q = questions(asked([(lo, hi)], [(0, tuple(forms))], net.outputs))
    assert q is not None
    with polytriton.runtime.settings.pin_settings(decider.device):
        engine = decider.engine(decider.tries(patient=False)[way])
        ends = torch.from_numpy(q.lo), torch.from_numpy(q.hi)
        boxes = engine.refine(*ends) if refined else engine.interval(*ends)
        found = input_lines(engine, boxes, decider.forms(q, np.arange(len(forms)), q.image))
        slopes = decider.user_columns(found.slopes)
    assert all(v.dtype == torch.float64 for v in (slopes, found.constant, found.slack)) and (found.slack >= 0).all()
    return [
        (exact(s.tolist()), Fraction(c), Fraction(e)) for s, c, e in zip(slopes, found.constant.tolist(), found.slack.tolist(), strict=True)
    ]


def below(line: Any, x: Sequence[Fraction], value: Fraction, read: Sequence[Fraction] | None = None) -> bool:
    """Whether the line stays at or below this value; at the input, or at what may be read of it."""
    slopes, constant, slack = line
    at = [sum((a * b for a, b in zip(slopes, p, strict=True)), constant - slack) for p in ((x,) if read is None else (x, read))]
    return min(at) <= value


def form(rng: np.random.Generator, net: Small, mixed: bool, k: float = 0.0) -> Form:
    c = exact(rng.normal(size=net.outputs).astype(np.float32) if rng.random() < 0.5 else rng.normal(size=net.outputs))
    return Form(c, exact(rng.normal(size=net.inputs)) if mixed else (Fraction(0),) * net.inputs, Fraction(k))


def box(rng: np.random.Generator, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    lo = rng.normal(size=inputs) * 2
    hi = lo + rng.exponential(size=inputs) * rng.choice([0.0, 1e-3, 1.0, 2.0], size=inputs, p=[0.1, 0.2, 0.4, 0.3])
    return lo, hi


def exactly_below(net: Small, forms: Sequence[Form], lo: Any, hi: Any, found: list[Any]) -> int:
    """At every vertex of every piece, so at every input; how many comparisons that were."""
    count = 0
    for simplex in pieces(net, lo, hi):
        for x, y in simplex:
            for f, line in zip(forms, found, strict=True):
                assert below(line, x, f.at(x, y)), f"the line passes the form at {[float(v) for v in x]}"
                count += 1
    return count


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_lines_are_below_the_form_everywhere(seed: int, way: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = int(rng.integers(1, 3))
    net = (uneven if seed % 2 else drawn)(rng, inputs, [4, 3][: int(rng.integers(1, 3))], 2)
    lo, hi = box(rng, inputs)
    forms = [form(rng, net, k % 2 == 1, float(rng.normal())) for k in range(4)]
    exactly_below(net, forms, lo, hi, lines_of(net, forms, lo, hi, "real", way, refined=seed % 3 > 0))


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_many_lines_are_below_the_form_everywhere(inputs: int) -> None:
    for seed in range(25):
        rng = np.random.default_rng(1000 + seed)
        net = (uneven if seed % 2 else drawn)(rng, inputs, [5, 3] if inputs < 3 else [3, 2], 2)
        lo, hi = box(rng, inputs)
        forms = [form(rng, net, k % 2 == 1, float(rng.normal())) for k in range(6)]
        exactly_below(net, forms, lo, hi, lines_of(net, forms, lo, hi, "real", seed % 2, refined=seed % 3 > 0))


@pytest.mark.parametrize("way", [0, 1])
def test_roundings_of_coefficients_are_paid(way: int) -> None:
    """No neuron is undecided: the line is the form itself but for what was rounded, so any rounding that is not paid shows."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        n = 2
        first = rng.normal(size=(5, n)).astype(np.float32), (20 + rng.random(5)).astype(np.float32)
        second = rng.normal(size=(4, 5)).astype(np.float32), (100 + rng.random(4)).astype(np.float32)
        last = rng.normal(size=(1, 4)).astype(np.float32), rng.normal(size=1).astype(np.float32)
        net = Small((first, second, last), n)
        lo, hi = np.array([-1.0, 0.5]), np.array([1.0, 0.75])
        over = np.vstack([np.zeros((4, n)), rng.normal(size=(4, n))])
        forms = [Form(exact([v]), exact(d), Fraction(0)) for v, d in zip(rng.normal(size=8), over, strict=True)]
        exactly_below(net, forms, lo, hi, lines_of(net, forms, lo, hi, "real", way))


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("size", [1.0, 2.0**-148])
def test_a_relu_at_the_input_is_paid_its_product(way: int, size: float) -> None:
    """Nothing but the product of coefficient and slope is rounded: relative to it, and where it underflows."""
    rng = np.random.default_rng(9)
    net = Small((), 1, gate=True)
    if way == 1 and size < 1:
        size = 2.0**-1073
    for _ in range(12):
        lo, hi = -rng.random(1) - 0.1, rng.random(1) + 0.1
        values = (-rng.integers(1, 8, 6) if size < 1 else -(1 + rng.random(6)).astype(np.float32).astype(np.float64)) * size
        forms = [Form(exact([v]), (Fraction(0),), Fraction(0)) for v in values]
        exactly_below(net, forms, lo, hi, lines_of(net, forms, lo, hi, "real", way))


def test_constants_are_subtracted() -> None:
    net = Small(((np.array([[2.0]]), np.array([1.0])),), 1)
    forms = [Form((Fraction(1),), (Fraction(0),), Fraction(k)) for k in (-3, 0, 5)]
    for (slopes, constant, slack), k in zip(lines_of(net, forms, [-1.0], [1.0], "real"), (-3, 0, 5), strict=True):
        assert slopes == (2,) and constant == 1 - k and 0 <= slack < Fraction(1, 10**5)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("first", ["Gather", "Slice", "Transpose"])
def test_lines_are_over_the_users_inputs(first: str, gate: bool) -> None:
    """Behind a ReLU at the input the cells are moved at the input itself, else within the first layer."""
    reads = {"Gather": (3, 0, 2), "Slice": (3, 1), "Transpose": (0, 2, 1, 3)}[first]
    rng = np.random.default_rng(3)
    w = rng.integers(1, 9, (2, len(reads))) * 1.0
    net = Small(((w, np.array([50.0, 60.0])), (np.array([[1.0, 2.0]]), np.array([0.0]))), 4, reads, gate)
    lo, hi = np.full(4, 0.5), np.full(4, 1.0)
    f = Form((Fraction(1),), (Fraction(0),) * 4, Fraction(0))
    (line,) = lines_of(net, [f], lo, hi, "real", first=first)
    wanted = [Fraction(0)] * 4
    for i, v in zip(reads, w[0] + 2 * w[1], strict=True):
        wanted[i] += Fraction(v)
    assert list(line[0]) == wanted
    exactly_below(net, [f], lo, hi, [line])


# ---- float32 executions --------------------------------------------------------------------------------------------


def places(
    rng: np.random.Generator, net: Small, forms: Sequence[Form], lo: np.ndarray, hi: np.ndarray, found: list[Any]
) -> list[np.ndarray]:
    """float32 inputs of the box: corners, samples, and where a form comes closest to its line."""
    low, high = (np.float32(v).astype(np.float64) for v in (lo, hi))
    assert (low == lo).all() and (high == hi).all()
    points = [np.where(rng.random(len(lo)) < 0.5, lo, hi) for _ in range(4)]
    points += [np.clip((lo + rng.random(len(lo)) * (hi - lo)).astype(np.float32), lo, hi) for _ in range(4)]
    vertices = [v for s in pieces(net, lo, hi) for v in s]
    for f, (slopes, constant, slack) in zip(forms, found, strict=True):
        gap = [f.at(x, y) - sum((a * b for a, b in zip(slopes, x, strict=True)), constant - slack) for x, y in vertices]
        x = vertices[int(np.argmin([float(g) for g in gap]))][0]
        points.append(np.clip(np.array([float(v) for v in x], dtype=np.float32), lo, hi))
    return [np.asarray(p, dtype=np.float32).astype(np.float64) for p in points]


def executed_below(
    rng: np.random.Generator, net: Small, forms: Sequence[Form], lo: Any, hi: Any, semantics: str, times: int, refined: bool = True
) -> float:
    """The least share of a line's slack that an execution left unused: below zero would be unsound."""
    found = lines_of(net, forms, lo, hi, semantics, refined=refined)
    half, used = {"float32": 0, "tf32": 11, "bf16": 8}[semantics], 1.0
    for p in places(rng, net, forms, np.asarray(lo), np.asarray(hi), found):
        x = exact(p)
        read = tuple(Fraction(0) if abs(v) < TINIEST else v for v in x)
        for _ in range(times):
            y = net.execute(p, rng, half)
            for f, line in zip(forms, found, strict=True):
                assert below(line, x, f.at(x, y), read), f"an execution at {p.tolist()} passes below the line"
                if line[2]:
                    at = sum((a * b for a, b in zip(line[0], x, strict=True)), line[1])
                    used = min(used, float((f.at(x, y) - at) / line[2]))
    return used


@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("seed", range(4))
def test_lines_are_below_executions(seed: int, semantics: str) -> None:
    rng = np.random.default_rng(seed)
    inputs = int(rng.integers(1, 3))
    net = uneven(rng, inputs, [5, 4], 2)
    lo, hi = (np.float32(v).astype(np.float64) for v in box(rng, inputs))
    forms = [form(rng, net, k == 1) for k in range(2)]
    executed_below(rng, net, forms, lo, hi, semantics, 4, refined=seed % 2 == 0)


@pytest.mark.parametrize("semantics", ["float32", "bf16"])
def test_executions_that_cancel(semantics: str) -> None:
    """Large summands meet in one sum: what an execution loses is far more than the coefficients' own roundings, and the slack holds it."""
    used = 1.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        big = 2.0 ** rng.integers(8, 16)
        w = np.array([[1.0], [-1.0], [0.5]]) * big + rng.normal(size=(3, 1))
        net = Small(((w, np.array([3.0, 3.0, 2.0]) * big), (np.array([[1.0, 1.0, -1.0]]), np.array([-5.0 * big]))), 1)
        forms = [Form((Fraction(s),), (Fraction(0),), Fraction(0)) for s in (1, -1)]
        used = min(used, executed_below(rng, net, forms, np.array([-1.0]), np.array([1.0]), semantics, 12))
    assert used < 0, "no execution needed its slack: nothing was tested"


def test_subnormal_inputs_are_kept_or_flushed() -> None:
    rng = np.random.default_rng(2)
    tiny = 2.0**-128
    for lo, hi in ((-tiny, tiny), (tiny, 3 * tiny), (tiny, tiny), (-tiny, 1.0), (0.0, 2.0**-149)):
        for net in (
            uneven(rng, 1, [3], 1),
            Small(((np.array([[2.0**50], [-1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))), 1),
            Small((), 1, gate=True),
        ):
            forms = [Form((Fraction(s),), (Fraction(d),), Fraction(0)) for s in (1, -1) for d in (0, 1)]
            executed_below(rng, net, forms, np.array([lo]), np.array([hi]), "float32", 5)


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["float32", "tf32", "bf16"])
def test_lines_are_below_many_executions(semantics: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(500 + seed)
        inputs = int(rng.integers(1, 4))
        net = uneven(rng, inputs, [6, 5] if inputs < 3 else [3, 2], 2)
        lo, hi = (np.float32(v).astype(np.float64) for v in box(rng, inputs))
        executed_below(rng, net, [form(rng, net, k == 1) for k in range(2)], lo, hi, semantics, 8, refined=seed % 2 == 0)
