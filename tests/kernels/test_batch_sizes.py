"""What is left of a batch after the interval pass is filled up to one of few sizes: stretches of a size then serve all of it."""

from __future__ import annotations

import numpy as np
import pytest

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.prove.attempt import batch_size
from polytriton.prove.decider import Decider, Try
from polytriton.prove.options import INTERPRET, Options
from polytriton.prove.questions import Questions
from polytriton.runtime.engine import Engine
from tests.kernels.plays import balls
from tests.kernels.test_neurons import settling

pytest.importorskip("triton", reason="Triton is not installed")
HOW = Try("float64", "all")


def test_sizes_are_few_and_hold_their_count() -> None:
    few = [batch_size(n) for n in range(1, 3000)]
    assert sorted(set(few))[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert all(n <= size < 1.5 * n for n, size in enumerate(few, 1))
    assert len(set(few)) < 25


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(settling(0), "all")


def questions(compiled: Compiled, seed: int, left: int, batch: int = 8) -> Questions:
    """One form a ball: `left` of them, which nothing proves, and others, which the interval pass does."""
    lo, hi = (v.numpy() for v in balls(compiled.net, seed, batch))
    outputs = compiled.net.node(compiled.net.output).size
    open_ones = np.random.default_rng(seed).permutation(batch)[:left]
    constant = np.full(batch, -1e6)
    constant[open_ones] = 1e6
    over = np.eye(outputs)[np.arange(batch) % outputs]
    return Questions(lo, hi, np.arange(batch), over, constant, np.arange(batch))


def sizes(decider: Decider) -> set[int]:
    """Of the batches that were played."""
    backend = decider.engine(HOW).kernels
    assert backend is not None
    return set(backend.player.places)


@pytest.mark.slow
def test_batches_of_many_counts_share_a_size(compiled: Compiled) -> None:
    ours, plain = (Decider(compiled, Options(device=INTERPRET, semantics="real", dtype="float64")) for _ in range(2))
    counts = (5, 6, 5, 6, 5)
    for seed, left in enumerate(counts):
        q = questions(compiled, seed, left)
        found = ours.prove(q, [HOW], statistics=False)
        told = plain.prove(q, [HOW])
        assert int((~found.settled).sum()) == left
        assert np.array_equal(found.best, told.best) and np.array_equal(found.raw, told.raw)
        assert found.statistics == () and told.statistics
        assert next(s.neurons for s in told.statistics if s.stage == "bound") % left == 0  # of the boxes that were asked about alone
    assert sizes(ours) == {6, 8} and sizes(plain) == {5, 6, 8}  # of the interval pass, and of what it left


def test_a_batch_is_never_filled_beyond_its_own_size(compiled: Compiled) -> None:
    ours = Decider(compiled, Options(device=INTERPRET, semantics="real", dtype="float64"))
    for seed in range(2):
        ours.prove(questions(compiled, seed, 5, batch=5), [HOW], statistics=False)
    assert sizes(ours) == {5}


def test_the_cpu_has_no_use_for_sizes(compiled: Compiled) -> None:
    ours, plain = (Decider(compiled, Options(semantics="real", dtype="float64")) for _ in range(2))
    refine, given = Engine.refine, list[int]()
    engine = ours.engine(HOW)

    def watched(lo, hi, *more, **named):  # type: ignore[no-untyped-def]
        given.append(len(lo))
        return refine(engine, lo, hi, *more, **named)

    engine.refine = watched  # type: ignore[method-assign]
    q = questions(compiled, 0, 5)
    assert np.array_equal(ours.prove(q, [HOW], statistics=False).best, plain.prove(q, [HOW]).best)
    assert given == [5]
