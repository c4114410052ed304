"""Searches for deployed semantics, against executions of this directory's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from polytriton.prove import cuts
from tests.prove.audited import cube, hard, lowered, over, spread
from tests.prove.piecewise import TINIEST, Form, Numbers, Small, exact, least, uneven, worst
from tests.prove.watched import asked, compiled, inside, searched


def executed(
    net: Small, forms: Sequence[Form], points: Sequence[np.ndarray], rng: np.random.Generator, times: int, half: int = 0
) -> tuple[Fraction, Numbers]:
    """The least value of the greatest form over executions, and its input."""
    found = []
    for p in points:
        x = exact(p)
        found += [(worst(forms, (x, net.execute(p, rng, half))), x) for _ in range(times)]
    return min(found)


def cancelling(rng: np.random.Generator, inputs: int, big: float) -> Small:
    """What executions reach lies well beyond what exact arithmetic does."""
    w = np.float32(rng.normal(size=(3, inputs)) + np.array([[1.0], [-1.0], [0.5]]) * big)
    b = np.float32(np.array([3.0, 3.0, 2.0]) * big * inputs)
    last = np.array([[1.0, 1.0, -1.0], [0.5, -1.0, 0.25]])
    return Small(((w, b), (last, np.float32(rng.normal(size=2)))), inputs)


DEPLOYED = (("float32", 0, 2.0**12), ("tf32", 11, 4.0), ("bf16", 8, 1.0))


@pytest.mark.parametrize("semantics, half, big", DEPLOYED)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_executions_reach_is_never_proved_away(seed: int, semantics: str, half: int, big: float) -> None:
    rng = np.random.default_rng(seed)
    inputs = 1 + seed
    net = cancelling(rng, inputs, big) if seed % 2 == 0 else uneven(rng, inputs, [5, 4], 2)
    forms, box = [over(net, 1.0, 1.0)], ([-1.0] * inputs, [1.0] * inputs)
    true, at = least(net, forms, *box)
    near = np.clip(np.array([float(v) for v in at], dtype=np.float32), -1, 1).astype(np.float64)
    step = [np.clip(near + s, -1, 1).astype(np.float32).astype(np.float64) for s in (0.0, 2.0**-20, -(2.0**-20), 2.0**-8)]
    low, x = executed(net, forms, step, rng, 40, half)
    assert low < true, "no execution left exact arithmetic: nothing was tested"
    verifier = compiled(net, semantics)
    for value in (low, (low + true) / 2):  # both are reached, by an execution or by more
        group = tuple(f.raised(value) for f in forms)
        for first in (True, False):
            ended = searched(verifier, asked([box], [(0, group)], 2), 1.0, keep=[(x, 0)], rounds=6, first=first)
            assert not ended.unsat
    gap = spread(net, forms, box) / 2 + 4 * (true - low) + Fraction(big) / 100
    group, _ = lowered(net, forms, box, gap)
    ended = searched(verifier, asked([box], [(0, group)], 2), 5.0)
    for r in ended.search.refuted:
        inner = [np.float32(np.clip(r.lo + rng.random(inputs) * (r.hi - r.lo), -1, 1)).astype(np.float64) for _ in range(3)]
        inner = [p for p in inner if inside(p.tolist(), r.lo, r.hi)]
        assert not inner or executed(net, group, inner, rng, 3, half)[0] > 0


def test_subnormal_inputs_are_read_as_zero_or_not() -> None:
    """x - 2^-128 * 5/2 over subnormal x, amplified: flushed, an input of 3 * 2^-128 gives what no kept one of the box gives."""
    big, tiny = 2.0**59, 2.0**-128
    net = Small(((np.array([[big]]), np.zeros(1)),), 1)
    for box, x in ((([3 * tiny], [4 * tiny]), 3 * tiny), (([3 * tiny], [1.0]), 3 * tiny), (([-1.0], [-3 * tiny]), -3 * tiny)):
        sign = 1.0 if x > 0 else -1.0
        group = (over(net, sign, k=big * tiny * 2),)  # kept: at least 3 * tiny * big
        ended = searched(compiled(net, "float32"), asked([box], [(0, group)], 1), 1.0, keep=[((Fraction(x),), 0)], rounds=12)
        assert not ended.unsat
        assert Fraction(abs(x)) < TINIEST
        gated = Small((), 1, gate=True)
        if x > 0:
            ended = searched(
                compiled(gated, "float32"),
                asked([box], [(0, (over(gated, 1.0, k=2 * tiny),))], 1),
                1.0,
                keep=[((Fraction(x),), 0)],
                rounds=12,
            )
            assert not ended.unsat


@pytest.mark.parametrize("semantics", ["real", "float32", "tf32", "bf16"])
def test_clips_know_what_may_be_flushed(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, clip = [], cuts.clip

    def noted(*args: Any) -> Any:
        given.append(args[5])
        return clip(*args)

    monkeypatch.setattr(cuts, "clip", noted)
    net, groups, x = hard()
    searched(compiled(net, semantics), asked([cube(2)], groups, 1), keep=[(x, 0)], rounds=2, first=False)
    assert given and set(given) == {0.0 if semantics == "real" else 2.0**-126}


@pytest.mark.slow
@pytest.mark.parametrize("semantics, half, big", DEPLOYED)
def test_many_executions(semantics: str, half: int, big: float) -> None:
    begin, seed = time.monotonic(), 0
    while time.monotonic() < begin + 45 and seed < 20:
        rng = np.random.default_rng(3000 + seed)
        inputs = 1 + seed % 3
        net = cancelling(rng, inputs, big * 2.0 ** rng.integers(-3, 4)) if seed % 2 else uneven(rng, inputs, [4, 3], 2)
        forms = [over(net, *rng.normal(size=2).astype(np.float32)) for _ in range(1 + seed % 2)]
        points = [rng.uniform(-1, 1, inputs).astype(np.float32).astype(np.float64) for _ in range(6)]
        points += [np.where(rng.random(inputs) < 0.5, -1.0, 1.0) for _ in range(6)]
        low, x = executed(net, forms, points, rng, 8, half)
        group = tuple(f.raised(low) for f in forms)
        box = [-1.0] * inputs, [1.0] * inputs
        assert not searched(compiled(net, semantics), asked([box], [(0, group)], 2), 1.0, keep=[(x, 0)], rounds=6, first=seed % 4 > 0).unsat
        seed += 1
