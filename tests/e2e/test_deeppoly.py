"""The engine's bounds are DeepPoly's: equal to the naive oracle's, layer by layer, in float64 and real semantics.

Each layer is compared given the engine's own boxes of the layers before it, so that a difference shows where it arises, and
a neuron whose being settled hangs on a rounding (it may leave early on one side only) is left out without losing the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partialmethod
from typing import Any
from unittest import mock

import numpy as np
import pytest

from polytriton.api import Verifier
from polytriton.ir.net import Net
from polytriton.passes.pipeline import fold_net
from polytriton.runtime.engine import Engine
from tests.oracle.deeppoly import Box, DeepPoly
from tests.oracle.nets import MOVES, SCALES, random_box, random_net, toy_conv, toy_dense, toy_residual

UNFOLDED: dict[str, Any] = {
    "moves": tuple(m for m in MOVES if m not in ("layout", "scale_cells", "linear")),
    "heads": ("linear", "relu", "join"),
    "image": True,
    "scale": "normal",
}
KINDS = ("ordinary", "ordinary", "tiny", "zero", "touching", "huge")


@dataclass
class Tally:
    """Bounds compared, bounds left out, and the worst differences."""

    compared: int = 0
    skipped: int = 0
    wrong: list[str] = field(default_factory=list)

    def compare(self, what: str, got: Box, want: Box, mass: np.ndarray, edge: np.ndarray, rel: float = 1e-6) -> None:
        got_lo, got_hi = (np.asarray(b, np.float64).reshape(-1) for b in got)
        width = float(np.max(want[1] - want[0], initial=0.0))
        for side, g, w in (("lo", got_lo, want[0]), ("hi", got_hi, want[1])):
            room = rel * np.maximum(np.abs(w), width) + 1e-10 * mass + 1e-250
            bad = ~(np.abs(g - w) <= room) & ~edge
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                pair = f"engine {float(g[i])!r}, oracle {float(w[i])!r}"
                self.wrong.append(f"{what}.{side}: {bad.sum()} of {bad.size} differ, first [{i}]: {pair}, width {width:.3g}")
        self.compared += 2 * int((~edge).sum())
        self.skipped += 2 * int(edge.sum())


def compare(net: Net, reference: Net, lo: np.ndarray, hi: np.ndarray, C: np.ndarray, candidates: str, early: bool, tally: Tally) -> None:
    """The engine on `net` against the oracle on `reference`, a network of the same values by the same names."""
    verifier = Verifier.from_net(net, semantics="real", dtype="float64", candidates=candidates, early=early)
    found = verifier.bounds(lo, hi, effort="quick")
    poly = DeepPoly(reference, candidates, early)
    margins = np.asarray(verifier.margins(lo, hi, C, effort="quick"))
    behind = found
    if early:  # margins have boxes of their own then: rows tell their other end
        with mock.patch.object(Engine, "refine", partialmethod(Engine.refine, every=False)):
            behind = verifier.bounds(lo, hi, effort="quick")
    for k in range(len(lo)):
        layers, inner = (
            {name: (np.asarray(b.lo)[k], np.asarray(b.hi)[k]) for name, b in some.layers.items()} for some in (found, behind)
        )
        r = poly.bounds(lo[k], hi[k], given=layers)
        for name in poly.bounded:
            if name in layers:
                tally.compare(f"%{name}", layers[name], r.found[name], r.mass[name], r.edge[name])
        out = reference.output
        got = np.asarray(found.lo)[k], np.asarray(found.hi)[k]
        if out in r.found:
            tally.compare("output", got, r.found[out], r.mass[out], np.zeros(len(got[0]), bool))
        else:  # of a nonlinear output the box is asked for; a verifier may also substitute it back
            eye = np.eye(len(got[0]))
            low, high = r.boxes[out]
            (tight_low, mass), (tight_high, _) = poly.margins(r, eye), poly.margins(r, -eye)
            between = np.clip(got[0], low, np.maximum(low, tight_low)), np.clip(got[1], np.minimum(high, -tight_high), high)
            tally.compare("output", got, between, mass, np.zeros(len(low), bool))
        want, mass = poly.margins(poly.bounds(lo[k], hi[k], given=inner) if early else r, C)
        tally.compare("margins", (margins[k], want), (want, want), mass, np.zeros(len(want), bool))


def rows(rng: np.random.Generator, net: Net) -> np.ndarray:
    n = net.node(net.output).size
    return rng.standard_normal((3, n)).astype(np.float32).astype(np.float64)


def sweep(seeds: Sequence[int], candidates: str, early: bool, folded: bool = True, **knobs: object) -> Tally:
    tally = Tally()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        net = random_net(seed, **knobs)  # type: ignore[arg-type]
        reference = fold_net(net) if folded else net
        lo, hi = random_box(rng, net, str(rng.choice(KINDS)), batch=2)
        before = len(tally.wrong)
        compare(net, reference, lo, hi, rows(rng, net), candidates, early, tally)
        tally.wrong[before:] = [f"seed {seed}: {w}" for w in tally.wrong[before:]]
    return tally


def settle(tally: Tally) -> None:
    assert not tally.wrong, "\n".join(tally.wrong[:20])
    assert tally.compared > 4 * tally.skipped


def modes(quick: tuple[str, bool]) -> pytest.MarkDecorator:
    """Each mode; one of them among the quick tests, of which a sweep is half a minute."""
    every = (("all", True), ("all", False), ("input", True))
    return pytest.mark.parametrize("candidates,early", [pytest.param(*m, marks=() if m == quick else pytest.mark.slow) for m in every])


@modes(quick=("all", True))
def test_every_oddity(candidates: str, early: bool) -> None:
    """Random nets of all operators and weight scales, against the oracle on the network as folded."""
    settle(sweep(range(60 if (candidates, early) == ("all", True) else 100), candidates, early))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scale", SCALES)
def test_weight_scales(scale: str) -> None:
    settle(sweep(range(200, 206), "all", True, scale=scale, steps=6))


@cache
def _unfolded_seeds() -> tuple[int, ...]:
    """Seeds of nets that the passes return node for node."""
    found = []
    for seed in range(300, 1000):
        net = random_net(seed, **UNFOLDED)
        if [(n.name, n.op, n.inputs) for n in net] == [(n.name, n.op, n.inputs) for n in fold_net(net)]:
            found.append(seed)
        if len(found) == 20:
            return tuple(found)
    raise AssertionError("too few nets are left alone")


@modes(quick=("input", True))
def test_nets_that_folding_leaves_alone(candidates: str, early: bool) -> None:
    """Against the oracle on the very network that was given: no pass can hide a difference."""
    settle(sweep(_unfolded_seeds(), candidates, early, folded=False, **UNFOLDED))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("make", [toy_dense, toy_conv, toy_residual])
def test_toys_without_help(make: object, candidates: str) -> None:
    """The oracle keeps its own boxes to the end."""
    net: Net = make()  # type: ignore[operator]
    rng = np.random.default_rng(4)
    lo, hi = random_box(rng, net, "ordinary", batch=3)
    found = Verifier.from_net(net, semantics="real", dtype="float64", candidates=candidates).bounds(lo, hi, effort="quick")
    poly, tally = DeepPoly(net, candidates), Tally()
    for k in range(3):
        r = poly.bounds(lo[k], hi[k])
        got = np.asarray(found.lo)[k], np.asarray(found.hi)[k]
        tally.compare("output", got, r.found[net.output], r.mass[net.output], np.zeros(len(got[0]), bool))
    settle(tally)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["all", "input"])
def test_float32_coefficients_stay_near(candidates: str) -> None:
    """Bounds from float32 coefficients meet the float64 ones within a few thousand float32 roundings of their mass."""
    tally = Tally()
    for seed in range(600, 640):
        rng = np.random.default_rng(seed)
        net = random_net(seed, scale="normal", leaky=0.0)
        lo, hi = random_box(rng, net, "ordinary", batch=1)
        options: dict[str, Any] = {"semantics": "real", "candidates": candidates, "early": False}
        wide, narrow = (Verifier.from_net(net, dtype=d, **options).bounds(lo, hi, effort="quick") for d in ("float64", "float32"))
        poly = DeepPoly(fold_net(net), candidates, early=False)
        given = {n: (np.asarray(b.lo)[0], np.asarray(b.hi)[0]) for n, b in wide.layers.items()}
        r = poly.bounds(lo[0], hi[0], given=given)
        for name, b in wide.layers.items():
            other = narrow.layers[name]
            low, high = (np.asarray(v)[0].reshape(-1) for v in (b.lo, b.hi))
            low32, high32 = (np.asarray(v)[0].reshape(-1) for v in (other.lo, other.hi))
            assert (low32 <= high).all(), (seed, name)
            assert (low <= high32).all(), (seed, name)
            if name in r.mass:
                tally.compare(f"seed {seed} %{name}", (low32, high32), (low, high), 1e6 * r.mass[name], r.edge[name], rel=1e-3)
    settle(tally)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("candidates,early", [("all", True), ("all", False), ("input", True)])
def test_many_nets(candidates: str, early: bool, block: int) -> None:
    settle(sweep(range(5000 + 100 * block, 5020 + 100 * block), candidates, early, steps=4 + block))
