"""What a proof says about itself, against counts made from its bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import polytriton
from polytriton.api import Verifier
from polytriton.frontend.query import Property
from polytriton.results import LayerStats
from polytriton.runtime.config import Config
from tests.oracle.nets import toy_dense

DIGITS = np.load("examples/digits.npz")


def asked(verifier: Verifier, epsilon: str) -> tuple[LayerStats, ...]:
    label = int(DIGITS["labels"][0])
    prop = verifier.ball_property(DIGITS["images"][0], Fraction(epsilon), label, clip=(0, 1))
    return verifier.verify_property(prop, falsifier=False).statistics


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return polytriton.compile("examples/digits_conv_normal.onnx", check=False)


def test_a_proof_on_interval_bounds_refines_no_layer() -> None:
    stats = asked(polytriton.compile("examples/digits_conv_ibp.onnx", check=False), "0.001")
    assert [s.stage for s in stats] == ["interval"]
    assert stats[0].rows == 9


def test_widths_and_undecided_neurons_are_those_of_the_bounds() -> None:
    one_way = polytriton.compile("examples/digits_conv_normal.onnx", check=False, dtype="float64", semantics="real")
    stats = asked(one_way, "0.1")
    x = DIGITS["images"][0].astype(np.float64)
    eps = 0.1 + 1e-15
    bounds = one_way.bounds(np.clip(x - eps, 0, 1), np.clip(x + eps, 0, 1), effort="quick")
    layers = [s for s in stats if s.stage == "bound"]
    assert [s.name for s in layers] == list(bounds.layers)
    for s in layers:
        lo, hi = bounds.layers[s.name].lo, bounds.layers[s.name].hi
        assert s.neurons == lo.size
        assert s.unstable is not None
        assert s.unstable[1] == int(((lo < 0) & (hi > 0)).sum())
        width = float((hi - lo).mean())  # of what nobody asks for a verdict, the other end of rows tells enough
        assert 0.5 * width < s.width[1] < 1.0001 * width


def test_rows_only_become_fewer(verifier: Verifier) -> None:
    for epsilon in ("0.07", "0.1"):
        stats = asked(verifier, epsilon)
        assert stats[0].stage == "interval" and stats[-1].stage == "query"
        for s in stats:
            counts = (s.rows, *s.left)
            assert list(counts) == sorted(counts, reverse=True)
            assert s.seconds >= 0
            if s.unstable is not None and s.width[0] is not None and s.width[1] is not None:
                assert s.unstable[1] <= s.unstable[0] <= s.neurons
                assert s.width[1] <= s.width[0]
                assert s.rows == 0 or s.unstable[0] <= s.rows <= 2 * s.unstable[0]
        assert len({len(s.left) for s in stats if s.stage != "bound"}) == 1


def test_blocks_of_rows_are_added_up(verifier: Verifier) -> None:
    whole = asked(verifier, "0.1")
    small = replace(verifier.options, config=Config(block=1))
    parts = asked(Verifier(verifier.compiled, small, verifier.imported), "0.1")
    assert [(s.name, s.rows, s.unstable) for s in whole] == [(s.name, s.rows, s.unstable) for s in parts]
    assert [s.left for s in whole] == [s.left for s in parts]


def test_a_deadline_keeps_what_was_done_until_then(verifier: Verifier) -> None:
    prop = verifier.ball_property(DIGITS["images"][0], Fraction("0.1"), int(DIGITS["labels"][0]))
    result = verifier.verify_property(prop, timeout=1e-9, falsifier=False)
    assert result.verdict == "timeout"
    assert result.statistics == ()  # stopped before anything ended


def test_kernels_count_as_the_interpreter_of_plans_does() -> None:
    stats = []
    for device in ("cpu", "interpret"):
        v = Verifier.from_net(toy_dense(), device=device, dtype="float64")
        lo = np.full(v.inputs, -1.0)
        prop = Property.from_box(lo, lo + 2, 1, v.outputs)
        stats.append(v.verify_property(prop, falsifier=False, search="none").statistics)
    cpu, kernels = stats
    assert [(s.name, s.stage, s.unstable, s.rows, s.left) for s in cpu] == [(s.name, s.stage, s.unstable, s.rows, s.left) for s in kernels]
    assert any(s.stage == "bound" and s.rows for s in cpu)
    for a, b in zip(cpu, kernels, strict=True):
        assert [v is None for v in a.width] == [v is None for v in b.width]
        assert [v for v in a.width if v is not None] == pytest.approx([v for v in b.width if v is not None], rel=1e-5)
