"""The law: exact values at any point of the box, and every execution the semantics covers, lie inside the bounds.

Random nets, boxes and settings; points from corners to gradient attacks; values in exact rationals; float32 executions in
adversarial orders and rounding modes. A bound may be infinite, never NaN; most bounds must be finite or a test says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polytriton.api import Verifier
from polytriton.ir.net import Net
from tests.oracle.exact import Dyadic, attack_points, exact, exact_forms, float32_points, float32_runs
from tests.oracle.nets import BOXES, nets, random_box, random_net, toy_conv, toy_residual

SEMANTICS = ("real", "float32", "tf32", "bf16", "float16")
BATCH = 2


@dataclass
class Tally:
    """How many bounds were compared and how many of them said something."""

    total: int = 0
    finite: int = 0
    failures: list[str] = field(default_factory=list)

    def compare(self, what: str, lo: np.ndarray, hi: np.ndarray, down: np.ndarray, up: np.ndarray) -> None:
        """`down` and `up` enclose the true values in neighbouring float64 numbers; NaN there admits no finite bound."""
        lo, hi = (np.broadcast_to(np.asarray(b, np.float64).reshape(1, -1), down.shape) for b in (lo, hi))
        self.total += 2 * lo.shape[-1]
        self.finite += int(np.isfinite(lo[0]).sum() + np.isfinite(hi[0]).sum())
        lost = np.isnan(down)
        wrong = np.where(lost, ~(np.isneginf(lo) & np.isposinf(hi)), ~((lo <= down) & (up <= hi)))
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            first = f"{float(down[at])!r}..{float(up[at])!r} outside [{float(lo[at])!r}, {float(hi[at])!r}]"
            self.failures.append(f"{what}: {wrong.sum()} wrong, first at (point, cell) {tuple(map(int, at))}: {first}")


def forms(rng: np.random.Generator, outputs: int) -> np.ndarray:
    """Two rows: a difference of outputs, as robustness asks, and an arbitrary one."""
    C = rng.standard_normal((2, outputs))
    C[0] = 0
    C[0, rng.integers(outputs)] += 1
    C[0, rng.integers(outputs)] -= 1
    return C


def thin(points: np.ndarray, most: int) -> np.ndarray:
    return points if len(points) <= most else points[np.linspace(0, len(points) - 1, most).astype(int)]


def check(net: Net, kind: str, seed: int, knobs: Mapping[str, Any], tally: Tally, points: int = 10, runs: int = 6) -> None:
    """One net, one batch of boxes, one setting of the verifier."""
    rng = np.random.default_rng(seed)
    lo, hi = random_box(rng, net, kind, BATCH)
    outputs = net.node(net.output).size
    C = np.stack([forms(rng, outputs) for _ in range(BATCH)])
    verifier = Verifier.from_net(net, **knobs)
    found = verifier.bounds(lo, hi, effort="quick")
    margins = np.asarray(verifier.margins(lo, hi, C, effort="quick"), np.float64)
    assert np.asarray(found.lo).shape == np.asarray(found.hi).shape == (BATCH, outputs)
    assert margins.shape == (BATCH, 2)
    assert not np.isnan(margins).any()
    # an input that took in a permutation keeps its name but not its cells; its box is the given one in any case
    boxes = {name: (np.asarray(b.lo), np.asarray(b.hi)) for name, b in found.layers.items() if name != net.input.name}
    boxes[net.output] = (np.asarray(found.lo), np.asarray(found.hi))
    shapes = {n.name: n.shape for n in net}
    for k in range(BATCH):
        at = thin(attack_points(net, lo[k], hi[k], C[k], rng, rounds=2), points)
        true = exact(net, at)
        for name, (low, high) in boxes.items():
            if name in true:
                assert low.shape == (BATCH, *shapes[name]) or name == net.output
                flat = Dyadic(true[name].num.reshape(len(at), -1), true[name].exp)
                tally.compare(f"%{name} exact", low[k], high[k], flat.down(), flat.up())
        y = Dyadic(true[net.output].num.reshape(len(at), -1), true[net.output].exp)
        top = np.full(2, np.inf)
        tally.compare("margin exact", margins[k], top, exact_forms(y, C[k]).down(), exact_forms(y, C[k]).down())
        if knobs["semantics"] == "real":
            continue
        at = float32_points(thin(at, 5), lo[k], hi[k])
        for r, run in enumerate(float32_runs(net, at, rng, runs, knobs["semantics"])):
            for name, (low, high) in boxes.items():
                if name in run:
                    v = run[name].reshape(len(at), -1)
                    tally.compare(f"%{name} run {r}", low[k], high[k], v, v)
            y_run = run[net.output].reshape(len(at), -1)
            good = np.isfinite(y_run).all(axis=1)
            if good.any():
                value = exact_forms(Dyadic.of(y_run[good]), C[k]).down()
                tally.compare(f"margin run {r}", margins[k], top, value, value)
    assert not tally.failures, "\n".join(tally.failures)


def settings_of(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "semantics": str(rng.choice(["real", *SEMANTICS])),
        "dtype": str(rng.choice(["float32", "float64", "auto"], p=[0.45, 0.45, 0.1])),
        "candidates": str(rng.choice(["all", "input"])),
        "early": bool(rng.random() < 0.7),
    }


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "semantics": draw(st.sampled_from(SEMANTICS)),
        "dtype": draw(st.sampled_from(("float64", "float32", "auto"))),
        "candidates": draw(st.sampled_from(("all", "input"))),
        "early": draw(st.booleans()),
    }


@pytest.mark.parametrize("examples", [25, pytest.param(120, marks=pytest.mark.slow)])
def test_random_nets_boxes_and_settings(examples: int) -> None:
    tally = Tally()

    @settings(derandomize=True, deadline=None, max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(nets(), st.sampled_from(BOXES), choices(), st.integers(0, 2**31 - 1))
    def search(net: Net, kind: str, knobs: dict[str, Any], seed: int) -> None:
        tally.failures.clear()  # an example that hypothesis replays starts afresh
        check(net, kind, seed, knobs, tally)

    search()
    assert tally.finite > 0.6 * tally.total, "most bounds said nothing"


# quick: every semantics once, both types; the others take the same code
QUICK = {("real", "float64"), ("float32", "float32"), ("tf32", "float64"), ("bf16", "float32"), ("float16", "float64")}
PAIRS = [pytest.param(s, d, range(1000, 1007), marks=pytest.mark.slow) for d in ("float32", "float64") for s in SEMANTICS]


@pytest.mark.parametrize("semantics, dtype, seeds", [*((*pair, range(1002, 1004)) for pair in sorted(QUICK)), *PAIRS])
def test_seeded_nets(semantics: str, dtype: str, seeds: range) -> None:
    """Longer nets than hypothesis draws, the same for every semantics and type."""
    tally = Tally()
    for seed in seeds:
        net = random_net(seed, steps=9)
        knobs = {"semantics": semantics, "dtype": dtype, "candidates": "all", "early": True}
        check(net, BOXES[seed % len(BOXES)], seed, knobs, tally, points=8)
    assert tally.finite > 0.5 * tally.total


@pytest.mark.parametrize("semantics, runs", [("float32", 1), *(pytest.param(s, 5, marks=pytest.mark.slow) for s in SEMANTICS)])
def test_toy_nets(semantics: str, runs: int) -> None:
    """Bounds of tame nets are finite and hold for tame boxes, in both coefficient types."""
    tally = Tally()
    for net in (toy_conv(), toy_residual()):
        for dtype in ("float32", "float64"):
            knobs = {"semantics": semantics, "dtype": dtype, "candidates": "all"}
            check(net, "ordinary", 5, knobs, tally, points=min(runs + 1, 4), runs=runs)
    assert tally.finite > 0.7 * tally.total  # margins have one side only


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_many_random_nets(block: int) -> None:
    """More of them: `make soak`."""
    tally = Tally()
    rng = np.random.default_rng(block)
    for i in range(25):
        seed = 10_000 + 100 * block + i
        net = random_net(seed, steps=int(rng.integers(2, 12)))
        knobs = settings_of(rng)
        try:
            check(net, str(rng.choice(BOXES)), seed, knobs, tally)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} {knobs}\n{error}") from None
    assert tally.finite > 0.5 * tally.total
