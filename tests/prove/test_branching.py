"""Which neurons are tried and taken: never a settled one, every layer once, and the pair of children that is higher."""

from __future__ import annotations

import torch

from polytriton.prove.branching import TRIED, Gains
from polytriton.prove.parts import Parts

LAYER = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5])


def parts(count: int, seed: int, forms: int = 2) -> Parts:
    """Parts of one tree; a third of the neurons are settled by their bounds or have a sign."""
    g = torch.Generator().manual_seed(seed)
    made = Parts.roots(torch.arange(forms)[None], len(LAYER)).pick(torch.zeros(count, dtype=torch.int64))
    size = (count, len(LAYER))
    made.lo, made.hi = -torch.rand(size, generator=g) - 0.1, torch.rand(size, generator=g) + 0.1
    made.lo[torch.rand(size, generator=g) < 0.15] = 0.0
    made.hi[torch.rand(size, generator=g) < 0.15] = 0.0
    made.signs[torch.rand(size, generator=g) < 0.15] = 1
    made.loss = torch.rand(count, forms, len(LAYER), generator=g).half()
    made.bound = -torch.rand(count, forms, generator=g).double() - 1.0
    return made


def undecided(some: Parts) -> torch.Tensor:
    return (some.lo < 0) & (some.hi > 0) & (some.signs == 0)


def test_candidates_are_undecided_different_and_few() -> None:
    for seed in range(20):
        some = parts(6, seed)
        part, neuron = Gains(1, LAYER).candidates(some)
        assert undecided(some)[part, neuron].all()
        pairs = list(zip(part.tolist(), neuron.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs) and set(part.tolist()) == set(range(6))
        assert max(part.tolist().count(k) for k in range(6)) == TRIED


def test_a_part_without_undecided_neurons_has_no_candidate() -> None:
    some = parts(3, 1)
    some.lo[1] = 0.0
    part, _ = Gains(1, LAYER).candidates(some)
    assert set(part.tolist()) == {0, 2}
    some.hi[:] = 0.0
    assert not len(Gains(1, LAYER).candidates(some)[0])


def children(some: Parts, part: torch.Tensor, neuron: torch.Tensor, raised: torch.Tensor) -> Parts:
    made = some.divide(part, neuron, LAYER[neuron], torch.zeros(len(part)))
    made.bound = made.bound + raised.repeat(2)[:, None]
    return made


def test_every_layer_is_tried_before_losses_are_believed() -> None:
    """Layer 0 loses a thousandth of what the others do, and gains most: an early layer often does."""
    gains, some = Gains(1, LAYER), parts(1, 2)
    some.lo[:], some.hi[:], some.signs[:] = -1.0, 1.0, 0
    some.loss[:, :, LAYER == 0] *= 1e-3
    seen: set[int] = set()
    for _ in range(3):
        part, neuron = gains.candidates(some)
        seen |= set(LAYER[neuron].tolist())
        gains.best(some, part, neuron, children(some, part, neuron, torch.where(LAYER[neuron] == 0, 0.4, 0.01)))
    assert seen == set(range(6))
    _, neuron = gains.candidates(some)
    assert int(LAYER[neuron[0]]) == 0, "what gained most is hoped to gain again"


def test_the_best_is_the_pair_whose_lower_child_gains_most() -> None:
    gains, some = Gains(1, LAYER), parts(4, 3)
    part, neuron = gains.candidates(some)
    raised = torch.rand(len(part), generator=torch.Generator().manual_seed(4)) / 2
    best = gains.best(some, part, neuron, children(some, part, neuron, raised))
    assert part[best].tolist() == [0, 1, 2, 3]
    for k, chosen in enumerate(best.tolist()):
        assert raised[chosen] == raised[part == k].max()
    assert int(gains.tried.sum()) == len(part)


def test_children_that_have_no_execution_gain_what_can_be_gained() -> None:
    gains, some = Gains(1, LAYER), parts(1, 5)
    part, neuron = gains.candidates(some)
    made = children(some, part, neuron, torch.zeros(len(part)))
    made.bound[1], made.bound[1 + len(part)] = torch.inf, torch.inf
    assert gains.best(some, part, neuron, made).tolist() == [1] and bool(gains.gain.isfinite().all())
