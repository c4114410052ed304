"""Parts of executions that a search by neurons' signs has still to refute."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor


@dataclass
class Parts:
    """Each belongs to one `tree` [n], and has some `forms` [n, forms of a tree], those asked by their places, of which some are `open`.

    Of the neurons that the whole box leaves undecided, [n, neurons]: `signs`, 1 where an operand is assumed to be at least a cut, -1 where
    at most, by the last assumption; the cut of a ReLU is 0. `lo` and `hi`, bounds of the operands that hold for these executions, float32
    rounded outward. `behind` [n]: the last operator, counted from 0, whose operand's bounds know of every cut assumed before it. For each
    form [n, forms of a tree, neurons]: `below` and `multipliers`, where the ascent begins, and `loss`, what each neuron's relaxation costs
    the `bound` [n, forms of a tree]. `name`: its number in the trail.
    """

    tree: Tensor
    forms: Tensor
    open: Tensor
    signs: Tensor
    lo: Tensor
    hi: Tensor
    behind: Tensor
    below: Tensor
    multipliers: Tensor
    loss: Tensor
    bound: Tensor
    depth: Tensor
    name: Tensor

    @staticmethod
    def roots(forms: Tensor, neurons: int, names: Tensor | None = None) -> Parts:
        """All executions, for every tree of `forms` [trees, forms of a tree]; nothing is known of their neurons."""
        trees = len(forms)
        zeros, half = torch.zeros(trees, neurons), torch.zeros(*forms.shape, neurons, dtype=torch.float16)
        return Parts(
            torch.arange(trees), forms, torch.ones_like(forms, dtype=torch.bool), zeros.to(torch.int8), zeros - torch.inf,
            zeros + torch.inf, torch.full((trees,), 1 << 30), half, half.clone(), half.clone(),
            torch.full(forms.shape, -torch.inf, dtype=torch.float64), torch.zeros(trees, dtype=torch.int32),
            torch.zeros(trees, dtype=torch.int64) if names is None else names,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.tree)

    def __getstate__(self) -> dict[str, np.ndarray]:
        """As arrays: a pickled tensor is a small archive."""
        return {f.name: getattr(self, f.name).numpy() for f in fields(self)}

    def __setstate__(self, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            setattr(self, name, torch.from_numpy(array))

    def pick(self, which: Tensor) -> Parts:
        return Parts(*(getattr(self, f.name)[which] for f in fields(self)))

    @staticmethod
    def join(*parts: Parts) -> Parts:
        return Parts(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Parts)))

    @property
    def each(self) -> int:
        """Bytes that one takes."""
        return (9 + 6 * self.forms.shape[1]) * self.signs.shape[1] + 17 * self.forms.shape[1] + 28

    @property
    def worst(self) -> Tensor:
        """The least bound of an open form."""
        return torch.where(self.open, self.bound, torch.inf).amin(1)

    def divide(self, which: Tensor, neuron: Tensor, layer: Tensor, cut: Tensor) -> Parts:
        """Both sides of a neuron of some parts, first every part with it at least `cut`, then with it at most that. An executed operand
        that is the cut itself is in both. `layer`: its operator's number.
        """
        on, off, at = self.pick(which), self.pick(which), torch.arange(len(which))
        on.signs[at, neuron], off.signs[at, neuron] = 1, -1
        on.lo[at, neuron], off.hi[at, neuron] = torch.maximum(on.lo[at, neuron], cut), torch.minimum(off.hi[at, neuron], cut)
        both = Parts.join(on, off)
        both.depth, both.behind = both.depth + 1, layer.repeat(2)
        return both
