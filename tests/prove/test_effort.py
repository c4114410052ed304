"""The more effort, the tighter: never looser than plain CROWN by default, never looser than with less effort, and always true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polytriton.api import Verifier
from polytriton.errors import UsageError
from polytriton.prove.decider import Decider
from polytriton.prove.effort import EFFORTS
from polytriton.results import Bounds
from tests.oracle.crown import Crown, Drawn, draw
from tests.oracle.exact import attack_points, exact, exact_forms, float32_points, float32_runs
from tests.oracle.nets import random_box, random_net

KINDS = ("dense", "conv", "residual")


def drawn(kind: str, seed: int, least: int = 2) -> tuple[Drawn, np.ndarray, np.ndarray, np.ndarray]:
    """A network, one box and some forms."""
    rng = np.random.default_rng(seed)
    net = draw(rng, kind, int(rng.integers(least, 6)), int(rng.choice([8, 12, 20])), float(rng.choice([0.7, 1.0, 1.5])))
    x, radius = rng.standard_normal(net.inputs), float(rng.choice([0.05, 0.3, 1.0, 3.0]))
    return net, x - radius, x + radius, rng.standard_normal((6, 3))


def sides(b: Bounds) -> list[np.ndarray]:
    """Everything it says, as lower bounds."""
    return [b.lo, -b.hi, *(v for side in b.layers.values() for v in (side.lo, -side.hi))]


def asked(net: Drawn, lo: np.ndarray, hi: np.ndarray, C: np.ndarray, **how: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    effort = {k: how.pop(k) for k in ("effort",) if k in how}
    verifier = Verifier.from_net(net.net, semantics="real", **how)
    return verifier.margins(lo, hi, C, **effort)[0], sides(verifier.bounds(lo, hi, **effort))


def crown(net: Drawn, lo: np.ndarray, hi: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    plain = Crown(net.steps)
    boxes = plain.bounds(lo, hi)
    last = boxes.pop(len(net.steps))
    return plain.least(C, len(net.steps), boxes, (lo, hi)), [v for box in (last, *boxes.values()) for v in (box[0], -box[1])]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_looser_than_crown_by_default(kind: str) -> None:
    compared = 0
    for seed in range(8):
        net, *box, C = drawn(kind, seed)
        margins, layers = crown(net, *box, C)
        got, every = asked(net, *box, C, dtype="float64", candidates=("all", "input")[seed % 2])
        assert (got >= margins - 1e-7 * (1 + np.abs(margins))).all()
        assert len(every) == len(layers)
        for k in range(0, len(every), 2):
            # a neuron that intervals settle gets no rows: it keeps their box
            open_ = (every[k] < 0) & (every[k + 1] < 0) | (k == 0)
            for ours, theirs in zip(every[k : k + 2], layers[k : k + 2], strict=True):
                assert ((ours.ravel() >= theirs - 1e-7 * (1 + np.abs(theirs))) | ~open_.ravel()).all()
                compared += int(open_.sum())
    assert compared > 100


@pytest.mark.parametrize("kind", KINDS)
def test_float32_coefficients_lose_to_crown_by_their_rounding_alone(kind: str) -> None:
    for seed in range(20, 26):
        net, *box, C = drawn(kind, seed)
        margins, _ = crown(net, *box, C)
        got, _ = asked(net, *box, C, dtype="float32")
        assert (got >= margins - 1e-4 * (1 + np.abs(margins).max())).all()


def test_one_pass_is_looser_than_crown_now_and_then() -> None:
    """Else the tests above would hold of anything: this is why the default makes two."""
    looser = 0
    for seed in range(100, 125):
        if looser:
            break
        net, *box, C = drawn("dense", seed, least=4)
        margins, _ = crown(net, *box, C)
        looser += bool((asked(net, *box, C, dtype="float64", effort="quick")[0] < margins - 0.01 * np.abs(margins)).any())
    assert looser >= 1


LARGER = [pytest.param(kind, 3, marks=pytest.mark.slow) for kind in KINDS[1:]]


@pytest.mark.parametrize(("kind", "nets"), [("dense", 3), ("residual", 1), *LARGER])
def test_more_effort_is_never_looser(kind: str, nets: int) -> None:
    gained = 0
    for seed in range(40, 40 + nets):
        net, *box, C = drawn(kind, seed)
        (quick, quick_sides), (tight, tight_sides), (best, best_sides) = (asked(net, *box, C, effort=e) for e in EFFORTS)
        assert (tight >= quick).all() and (best >= tight).all()
        for a, b, c in zip(quick_sides, tight_sides, best_sides, strict=True):
            assert (b >= a).all() and (c >= b).all()
        gained += bool((best > tight + 1e-3 * np.abs(tight)).any())
    assert gained


MORE = [pytest.param(effort, nets, marks=pytest.mark.slow) for effort, nets in (("tight", 12), ("best", 6))]


@pytest.mark.parametrize(("effort", "nets"), [("tight", 6), ("best", 4), *MORE])
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_bounds_enclose_executions(effort: str, nets: int, semantics: str) -> None:
    finite = 0
    for seed in range(nets):
        rng = np.random.default_rng(seed)
        net = random_net(seed, steps=5, scale="normal", limit=60)
        lo, hi = random_box(rng, net, "ordinary", 2)
        C = rng.standard_normal((2, net.node(net.output).size))
        verifier = Verifier.from_net(net, semantics=semantics)
        found, margins = verifier.bounds(lo, hi, effort=effort), verifier.margins(lo, hi, C, effort=effort)
        assert found.lo.shape == (2, net.node(net.output).size)
        for k in range(2):
            points = attack_points(net, lo[k], hi[k], C, rng)
            if semantics == "real":
                nodes = exact(net, points)
                values = exact_forms(nodes[net.output], C).down()
                runs = [{name: v.nearest() for name, v in nodes.items()}]
            else:
                runs = float32_runs(net, float32_points(points, lo[k], hi[k]), rng, 4)
                y = np.concatenate([r[net.output].reshape(len(points), -1) for r in runs])
                values = y @ C.T + 1e-9 * (1 + np.abs(y) @ np.abs(C.T))
            assert (values >= margins[k]).all()
            for run in runs:
                for name, low, high in (
                    (net.output, found.lo[k], found.hi[k]), *((n, s.lo[k], s.hi[k]) for n, s in found.layers.items())
                ):  # fmt: skip
                    y = run[name].reshape(len(points), -1)
                    rest = 1e-12 * np.abs(y) if semantics == "real" else 0.0  # exact values are told as the nearest floats
                    assert (y >= low.ravel() - rest).all() and (y <= high.ravel() + rest).all()
                    finite += int(np.isfinite(low).sum())
    assert finite > 200


def test_batches_of_any_size_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, *_ = drawn("dense", 7)
    rng = np.random.default_rng(0)
    x, C = rng.random((2, net.inputs)), rng.standard_normal((1, 3))
    told = []
    for each in (1, 2):
        monkeypatch.setattr(Decider, "batches", lambda self, n, engine, each=each: (slice(k, min(n, k + each)) for k in range(0, n, each)))
        v = Verifier.from_net(net.net, semantics="real", dtype="float64")
        told.append([v.margins(x - 0.1, x + 0.1, C, effort="best"), *sides(v.bounds(x - 0.1, x + 0.1, effort="best"))])
    for others in told[1:]:
        for a, b in zip(told[0], others, strict=True):
            assert a.shape == b.shape and np.allclose(a, b, atol=1e-3)


def test_an_effort_that_there_is_not() -> None:
    verifier = Verifier.from_net(draw(np.random.default_rng(0), "dense").net)
    for ask in (
        lambda: verifier.bounds(np.zeros(6), np.ones(6), effort="more"),
        lambda: verifier.margins([0] * 6, [1] * 6, np.eye(3), effort=""),
    ):
        with pytest.raises(UsageError, match="quick, tight, best"):
            ask()
