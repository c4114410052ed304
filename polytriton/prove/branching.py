"""Which neuron divides a part: a few are tried, both signs bounded, and the one that raises the children's bounds most is taken.

What earlier tries gained tells which few. None of this need be sound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.prove.parts import Parts

TRIED = 4  # neurons of a part
RELIABLE = 4  # tries after which a neuron's gains are believed
LOWER = 0.8  # the weight of the child that gains less
EXPLORE = 1e30  # the hope of a layer that was never tried: above any loss
NARROW = 1e-5  # boxes of a smooth function's operand, relative to their ends: their lines are as good as the function
ENOUGH = 0.1  # a bound this far above zero gains nothing more


class Gains:
    """What dividing by each neuron gained so far, tree by tree; `layer`: each neuron's operator, by number. `smooth`: neurons that a smooth
    function reads, which are divided in the middle of their boxes, again and again; a ReLU's at 0, once.
    """

    def __init__(self, trees: int, layer: Tensor, smooth: Tensor | None = None) -> None:
        self.smooth = torch.zeros(len(layer), dtype=torch.bool) if smooth is None else smooth
        self.layer, self.layers = layer, int(layer.max()) + 1 if len(layer) else 0
        self.gain, self.tried = torch.zeros(trees, len(layer)), torch.zeros(trees, len(layer))
        self.of_layer, self.lost = torch.zeros(trees, self.layers), torch.zeros(trees, self.layers)

    def candidates(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Pairs of a part and a neuron worth trying there. A part without any has no undecided neuron left."""
        undecided = torch.where(self.smooth, _wide(parts), (parts.lo < 0) & (parts.hi > 0) & (parts.signs == 0))
        if not bool(undecided.any()):
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        every, tree = _loss(parts), parts.tree
        loss = every.masked_fill(~undecided, -torch.inf)
        untried = (self.lost == 0)[tree]
        ratio = torch.where(untried, 1.0, self.of_layer[tree] / self.lost[tree].clamp(min=1e-30))[:, self.layer]
        hoped = torch.where(self.tried[tree] > 0, self.gain[tree] / self.tried[tree].clamp(min=1), ratio * every)
        room = torch.where(self.smooth, parts.hi - parts.lo, torch.minimum(parts.hi, -parts.lo))
        hoped = (hoped + 1e-9 * room).masked_fill(~undecided, -torch.inf)
        first = hoped.argmax(1, keepdim=True)
        by_layer = torch.stack([torch.where(self.layer == k, loss, -torch.inf) for k in range(self.layers)], 1)
        most, costliest = by_layer.max(2)
        neurons = torch.cat([first, costliest], 1)
        worth = hoped.gather(1, neurons)
        worth[:, 1:][most == -torch.inf] = -torch.inf
        worth[:, 1:] += torch.where(untried, EXPLORE, 0.0)  # a layer whose losses say little of its gains is tried at least once
        worth[:, 1:][neurons[:, 1:] == first] = -torch.inf
        worth[:, 1:][self.tried[tree].gather(1, first).squeeze(1) >= RELIABLE] = -torch.inf
        worth[:, 0] += torch.finfo(torch.float32).max  # first of all, where it is one at all
        best = worth.topk(min(TRIED, worth.shape[1]), 1)
        part, place = torch.nonzero(best.values > -torch.inf).T
        return part, neurons.gather(1, best.indices)[part, place]

    def cuts(self, parts: Parts, part: Tensor, neuron: Tensor) -> Tensor:
        """Where these neurons are divided, float32."""
        middle = 0.5 * parts.lo[part, neuron] + 0.5 * parts.hi[part, neuron]
        return torch.where(self.smooth[neuron], middle, torch.zeros_like(middle))

    def best(self, parts: Parts, part: Tensor, neuron: Tensor, children: Parts) -> Tensor:
        """Learns from these tries, and returns which of them is the best of its part. The children are in the order of `Parts.divided`."""
        raised = (_height(children.bound, parts.open[part.repeat(2)]) - _height(parts.bound, parts.open)[part.repeat(2)]).view(2, -1)
        gain = LOWER * raised.amin(0) + (1 - LOWER) * raised.amax(0)
        tree, layer = parts.tree[part], self.layer[neuron]
        one, loss = torch.ones(len(part)), _loss(parts)[part, neuron].clamp(min=1e-6)
        for table, column, value in (
            (self.gain, neuron, gain), (self.tried, neuron, one), (self.of_layer, layer, gain), (self.lost, layer, loss)
        ):  # fmt: skip
            table.index_put_((tree, column), value, accumulate=True)
        score = torch.full((len(parts),), -torch.inf).scatter_reduce_(0, part, gain, "amax")
        place = torch.where(gain >= score[part], torch.arange(len(part)), len(part))
        first = torch.full((len(parts),), len(part)).scatter_reduce_(0, part, place, "amin")
        return first[first < len(part)]


def _wide(parts: Parts) -> Tensor:
    """Boxes that halving makes narrower by more than their ends' last places."""
    return parts.hi - parts.lo > NARROW * (1 + parts.lo.abs() + parts.hi.abs())


def _loss(parts: Parts) -> Tensor:
    """What every neuron costs the open forms together."""
    return (parts.loss.float() * parts.open[:, :, None]).sum(1)


def _height(bound: Tensor, counted: Tensor) -> Tensor:
    """The sum of these forms' bounds; what lies above zero by more than a little counts no more."""
    return torch.where(counted, bound.clamp(max=ENOUGH), 0.0).sum(1).float().nan_to_num(-1e30, ENOUGH, -1e30)
