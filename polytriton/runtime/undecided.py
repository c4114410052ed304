"""The neurons of a node that get rows: where they are, and what is known of both their sides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polytriton.runtime.cpu import cells


@dataclass(frozen=True)
class Undecided:
    """`at`: their cells among all of the node's boxes; `where`: image, line, column and channel; `bounds`: lower ones of +x and of -x."""

    at: Tensor
    where: tuple[Tensor, ...]
    bounds: tuple[Tensor, Tensor]

    def __len__(self) -> int:
        return self.at.shape[0]

    def pick(self, rows: Tensor) -> Undecided:
        return Undecided(self.at[rows], tuple(v[rows] for v in self.where), (self.bounds[0][rows], self.bounds[1][rows]))

    def write(self, lo: Tensor, hi: Tensor) -> None:
        """The bounds become the boxes'."""
        lo.view(-1)[self.at], hi.view(-1)[self.at] = self.bounds[0], -self.bounds[1]


def find_undecided(lo: Tensor, hi: Tensor, *, every: bool = False, settled: bool = False, images: Tensor | None = None) -> Undecided:
    """Neurons whose sign the boxes [batch, h, w, c] leave open; with those that are on, where the `settled` count; or `every` one. Of these
    `images` alone, flags [batch].
    """
    if cells.serves(lo):
        places, bounds = (torch.from_numpy(v) for v in cells.note_undecided(lo, hi, every, settled))
        at, *where = places.unbind()
        found = Undecided(at, tuple(where), (bounds[0], bounds[1]))
    else:
        live = torch.ones_like(lo, dtype=torch.bool) if every else (hi > 0) if settled else (lo < 0) & (hi > 0)
        at = torch.nonzero(live.flatten()).flatten()
        found = Undecided(at, indices(at, lo.shape), (lo.flatten()[at], -hi.flatten()[at]))
    return found if images is None or bool(images.all()) else found.pick(torch.nonzero(images[found.where[0]]).flatten())


def indices(at: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """The indices of these cells on every axis. Torch's own unravel_index imports sympy: half of what a small query costs."""
    found = []
    for size in reversed(shape):
        found.append(at % size)
        at = at // size
    return tuple(reversed(found))
