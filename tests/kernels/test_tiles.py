"""Kernels in other tiles than the default's say the same."""

from __future__ import annotations

import random

import pytest
import torch

from polytriton.api import Verifier
from polytriton.rounding import INNER
from polytriton.tuning import work
from polytriton.tuning.evidence import Reference, gather_evidence
from polytriton.tuning.space import gpu_space
from tests.oracle.nets import toy_conv


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_kernels_in_other_tiles_bound_the_same(numerics: str) -> None:
    """In Triton's interpreter, every kernel in sizes of the search space."""
    made = toy_conv()
    plain = Verifier.from_net(made, device="interpret", dtype=numerics, semantics="real")
    x = torch.linspace(0, 1, plain.inputs, dtype=torch.float64).numpy()[None]
    want = plain.bounds(x - 0.05, x + 0.05, effort="quick")
    engine = next(iter(plain._decider._engines.values()))
    assert engine.kernels is not None
    space = gpu_space(engine.kernels.emitter.asked, {"float32": INNER})
    rng = random.Random(1)
    point = {k: rng.choice(v[1:]) for k, v in space.choices.items()}
    assert point
    other = Verifier.from_net(made, device="interpret", dtype=numerics, semantics="real", config=space.config(point))
    got = other.bounds(x - 0.05, x + 0.05, effort="quick")
    asked = next(iter(other._decider._engines.values())).kernels.emitter.asked  # type: ignore[union-attr]
    assert any(asked[k.removeprefix("tile ")].constants != engine.kernels.emitter.asked[k.removeprefix("tile ")].constants for k in point)
    room = 1e-9 if numerics == "float64" else 1e-4
    assert abs(got.lo - want.lo).max() < room
    assert abs(got.hi - want.hi).max() < room


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_kernels_pass_the_check_of_a_session(numerics: str) -> None:
    """Their rounding term is what the reference charges for sums in blocks, up to a third more: kernels count a layer's outputs, the
    reference those that are live. One that is smaller is found out.
    """
    verifier = Verifier.from_net(toy_conv(), device="interpret", dtype=numerics)
    q = work.default_work(verifier, 1)
    reference = Reference(verifier, q, 1)
    found = gather_evidence(verifier, q, 1, work.run(verifier, q))
    assert reference.problem(found) == ""
    for program, rows in reference._rows[found.dtype].items():
        for mine, theirs in zip(found.rows[program], rows, strict=True):
            assert theirs[1] * (1 - 1e-6) <= mine[1] <= 4 / 3 * theirs[1]
            mine[1] = 0.99 * theirs[1]
    assert "rounding term" in reference.problem(found)
