"""Methods to compare with prove what their definitions prove, written out in numpy, and nothing false."""

from __future__ import annotations

import numpy as np
import pytest

import polytriton
from polytriton.api import Verifier
from polytriton.errors import UsageError
from polytriton.frontend.query import Property
from polytriton.prove.options import METHODS, OWN
from polytriton.prove.together import decide_together
from tests.oracle.crown import Box, Crown, Drawn
from tests.oracle.exact import attack_points, exact, exact_forms, float32_points, float32_runs
from tests.oracle.nets import random_box, random_net
from tests.prove.test_effort import KINDS, drawn

OTHERS = [m for m in METHODS if m != OWN]


def intervals(net: Drawn, lo: np.ndarray, hi: np.ndarray) -> dict[int, Box]:
    """Every value's box by interval arithmetic."""
    found: dict[int, Box] = {0: (lo, hi)}
    for k, s in enumerate(net.steps, 1):
        found[k] = Crown._interval(s, [found[i] for i in s.of])
    return found


def defined(method: str, net: Drawn, lo: np.ndarray, hi: np.ndarray, C: np.ndarray) -> np.ndarray:
    """The forms' bounds, from the method's definition."""
    boxes, plain, last = intervals(net, lo, hi), Crown(net.steps), len(net.steps)
    if method == "ibp":
        return np.maximum(C, 0) @ boxes[last][0] + np.minimum(C, 0) @ boxes[last][1]
    return plain.least(C, last, boxes if method == "crown-ibp" else plain.bounds(lo, hi), (lo, hi))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", OTHERS)
def test_bounds_are_those_of_the_definition(method: str, kind: str) -> None:
    """DeepPoly's neurons that intervals have decided keep their signs, where its own rows may lose one again: it may be tighter there."""
    equal = 0
    for seed in range(4):
        net, lo, hi, C = drawn(kind, seed)
        verifier = Verifier.from_net(net.net, semantics="real", dtype="float64", method=method)
        got, want = verifier.margins(lo, hi, C)[0], defined(method, net, lo, hi, C)
        room = 1e-8 * (1 + np.abs(want))
        assert (got >= want - room).all()
        assert method == "deeppoly" or (got <= want + room).all()
        equal += int((got <= want + room).sum())
        assert verifier.margins(lo, hi, C, effort="best")[0].tolist() == got.tolist(), "no effort makes it another method"
        bounds, eye = verifier.bounds(lo, hi), np.eye(3)
        sides = defined(method, net, lo, hi, np.concatenate([eye, -eye]))
        assert (np.concatenate([bounds.lo[0], -bounds.hi[0]]) >= sides - 1e-8 * (1 + np.abs(sides))).all()
    assert equal >= 12, "of 24"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("method", OTHERS)
def test_margins_are_no_larger_than_executions(method: str, semantics: str) -> None:
    near = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        net = random_net(seed, steps=5, scale="normal", limit=60)
        lo, hi = random_box(rng, net, "ordinary" if seed % 2 else "zero", 2)
        C = rng.standard_normal((2, net.node(net.output).size))
        margins = Verifier.from_net(net, semantics=semantics, method=method).margins(lo, hi, C)
        for k in range(2):
            points = attack_points(net, lo[k], hi[k], C, rng)
            if semantics == "real":
                values = exact_forms(exact(net, points)[net.output], C).down()
            else:
                runs = float32_runs(net, float32_points(points, lo[k], hi[k]), rng, 4)
                y = np.concatenate([r[net.output].reshape(len(points), -1) for r in runs])
                values = y @ C.T + 1e-9 * (1 + np.abs(y) @ np.abs(C.T))
            assert (values >= margins[k]).all()
            near += int((values.min(0) - margins[k] <= 1e-2 * (1 + np.abs(margins[k]))).sum())
    assert near, "a box of one point leaves little room"


def prop(net: Drawn, lo: np.ndarray, hi: np.ndarray, label: int) -> Property:
    return Property.from_box(lo, hi, label, 3)


@pytest.mark.parametrize("method", OTHERS)
def test_verdicts_alone_and_together(method: str) -> None:
    """What a method proves its margins say; a batch says the same, and polytriton proves it too."""
    seen = set()
    for seed in range(6):
        net, lo, hi, _ = drawn("dense", seed)
        verifier = Verifier.from_net(net.net, method=method)
        middle, half = (lo + hi) / 2, (hi - lo) / 2
        label = int(verifier.predict(middle)[0].argmax())
        props = [prop(net, middle - r * half, middle + r * half, label) for r in (1e-4, 1e-2, 0.1, 1.0)]
        alone = [verifier.verify_property(p, falsifier=False) for p in props]
        together = dict(decide_together(verifier, props, [None] * 4, falsifier=False))
        own = Verifier.from_net(net.net)
        for k, (p, r) in enumerate(zip(props, alone, strict=True)):
            assert together[k].verdict == r.verdict and r.search is None
            assert (r.verdict == "unsat") == (r.margins > 0).all()
            assert r.verdict != "unsat" or own.verify_property(p).verdict == "unsat"
            seen.add(r.verdict)
    assert seen == {"unsat", "unknown"}


@pytest.mark.slow
def test_the_stronger_prove_more_on_deep_networks() -> None:
    proved = dict.fromkeys(METHODS, 0)
    for seed in range(8):
        net, lo, hi, _ = drawn("dense", seed, least=4)
        middle, half = (lo + hi) / 2, (hi - lo) / 2
        for r in (0.02, 0.05, 0.1):
            for method in METHODS:
                verifier = Verifier.from_net(net.net, method=method)
                label = int(verifier.predict(middle)[0].argmax())
                found = verifier.verify_property(prop(net, middle - r * half, middle + r * half, label), falsifier=False, search="none")
                proved[method] += found.verdict == "unsat"
    assert proved["ibp"] < proved["crown-ibp"] < proved["deeppoly"] <= proved[OWN], proved


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UsageError, match="method='deeppolly' is unknown"):
        Verifier.from_net(drawn("dense", 0)[0].net, method="deeppolly")
    with pytest.raises(UsageError, match="ibp, crown-ibp, deeppoly"):
        polytriton.compile(b"", method="crown")
