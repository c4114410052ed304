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
        if cells.serves(lo):
            cells.write_bounds(self.at, *self.bounds, lo, hi)
        else:
            lo.view(-1)[self.at], hi.view(-1)[self.at] = self.bounds[0], -self.bounds[1]

    def first_signs(self, asked: bool) -> Tensor:
        """The side whose row goes first: the likelier one to be settled, where that is asked for; else +x."""
        if cells.serves(self.bounds[0]):
            return cells.first_signs(*self.bounds, asked)
        return torch.where(self.bounds[0] >= self.bounds[1], 1, -1) if asked else torch.ones_like(self.at)

    def open_sides(self, either: bool, first: Tensor) -> tuple[Tensor, Tensor]:
        """The neurons that get a row of their other side too, and its sign: not those that are off nor, where `either` sign settles, on."""
        up, down = self.bounds
        if cells.serves(up):
            return cells.open_sides(up, down, either, first)
        at = torch.nonzero((up < 0) & (down < 0) if either else down < 0).flatten()
        return at, -first[at]


def find_undecided(lo: Tensor, hi: Tensor, *, every: bool = False, settled: bool = False, images: Tensor | None = None) -> Undecided:
    """Neurons whose sign the boxes [batch, h, w, c] leave open; with those that are on, where the `settled` count; or `every` one. Of these
    `images` alone, flags [batch].
    """
    if cells.serves(lo):
        found = Undecided(*cells.undecided_cells(lo, hi, every, settled))
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
