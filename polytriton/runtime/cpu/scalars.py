"""What a row carries beside its coefficients: how its constant and error grow, its candidate bounds, and whether it stays.

Few operations a row, so on the CPU one compiled loop each (Numba) saves the many small calls of the torch forms, which mean the
same: every operation is rounded to nearest as it is written, and charged as if it had been fused or not.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from polytriton.runtime.cpu import fused
from polytriton.runtime.results import Results, Rows
from polytriton.runtime.soundness import U64

TINY = 1e-300  # what underflow may take from a float64 sum
NONE = np.empty(0)


def _settle(least, weight, rel, floor, image, raw, slack, constant, additions, index, best, raw_best):  # type: ignore[no-untyped-def]
    for r in range(len(index)):
        size = slack[r] + weight[r] * rel + floor[image[r]]
        found = raw[r] + least[r]
        value = found - size
        value = value - additions * (abs(value) + size + abs(found) + abs(constant[r])) - TINY
        k = index[r]
        if abs(value) < np.inf and value > best[k]:
            best[k] = value
        if abs(found) < np.inf and found > raw_best[k]:
            raw_best[k] = found


def _leaving(index, group, best, strict, done, stay):  # type: ignore[no-untyped-def]
    for r in range(len(index)):
        bound = best[index[r]]
        if bound > 0 or (bound == 0 and not strict):
            done[group[index[r]]] = True
    count = 0
    for r in range(len(index)):
        if not done[group[index[r]]]:
            stay[count] = r
            count += 1
    return count


def _pay(constant, error, more, charge, floor, enlarge, scale, image):  # type: ignore[no-untyped-def]
    for r in range(len(constant)):
        if len(more):
            constant[r] += more[r] * enlarge
        extra = charge[r] * scale if len(charge) else 0.0
        if len(floor):
            extra += floor[image[r]]
        error[r] = (error[r] + extra) * (1 + 8 * U64) + 4 * U64 * abs(constant[r]) + TINY


def _exceed(excess, more, scale):  # type: ignore[no-untyped-def]
    for r in range(len(excess)):
        excess[r] = (excess[r] + more[r] * scale) * (1 + 8 * U64) + TINY


def is_kept(found, known, best):  # type: ignore[no-untyped-def]
    """Whether a bound takes the place of the one that was known."""
    return abs(found) < np.inf and not (best and found <= known)


def _keep(found, sign, at, up, down, best):  # type: ignore[no-untyped-def]
    for r in range(len(at)):
        kept = up if sign[r] > 0 else down
        if is_kept(found[r], kept[at[r]], best):
            kept[at[r]] = found[r]


settle_rows = fused.compile_loop("D D d D I D D D d I D D", fused.PLAIN)(_settle)
find_open = fused.compile_loop("I I D b B I", fused.PLAIN)(_leaving)
pay_rows = fused.compile_loop("D D D D D d d I", fused.PLAIN)(_pay)
exceed_rows = fused.compile_loop("D D d", fused.PLAIN)(_exceed)
keep_rows = fused.compile_loop("D I I D D b", fused.PLAIN)(_keep)


def addition_error(nodes: int) -> float:
    """What a candidate's own additions may round, relative to its parts: the sums of so many frontier nodes."""
    return (16 + 8 * nodes) * U64


class Scalars:
    """The part of a backend that works on rows' scalars."""

    fast: bool  # Numba's loops are there and the device is a CPU

    def settle(
        self, rows: Rows, results: Results, raw: Tensor, slack: Tensor, least: Tensor, weight: Tensor, rel: float, floor: Tensor, nodes: int
    ) -> None:
        """A candidate bound: `least` of the last of so many frontier nodes, off by rel * weight and a floor, joins the others' sum `raw`,
        which is off by `slack`. What is finite and better than the best bound so far replaces it.
        """
        additions = addition_error(nodes)
        if self.fast:
            settle_rows(
                least.numpy(), weight.numpy(), rel, floor.numpy(), rows.image.numpy(), raw.numpy(), slack.numpy(), rows.constant.numpy(),
                additions, rows.index.numpy(), results.best.numpy(), results.raw.numpy(),
            )  # fmt: skip
            return
        slack = torch.add(slack, weight, alpha=rel) + floor[rows.image]
        raw = raw + least
        value = raw - slack
        value = value - additions * (value.abs() + slack + raw.abs() + rows.constant.abs()) - TINY
        for kept, found in ((results.best, value), (results.raw, raw)):
            kept.scatter_reduce_(0, rows.index, torch.where(torch.isfinite(found), found, -math.inf), "amax")

    def open_rows(self, rows: Rows, results: Results) -> Tensor:
        """The rows whose groups no bound has decided, in their order; groups that one has are marked."""
        assert results.group is not None and results.done is not None
        if self.fast:
            stay = np.empty(len(rows), dtype=np.int64)
            count = find_open(rows.index.numpy(), results.group.numpy(), results.best.numpy(), results.strict, results.done.numpy(), stay)
            return torch.from_numpy(stay[:count])
        group = results.group[rows.index]
        results.done[group[results.decide(results.best[rows.index])]] = True
        return torch.nonzero(~results.done[group]).flatten()

    def pay(
        self, rows: Rows, more: Tensor | None, enlarge: float, charge: Tensor | None = None, scale: float = 1.0, floor: Tensor | None = None
    ) -> None:
        """more * enlarge joins the constants, charge * scale + floor the errors; the additions' own rounding is charged too."""
        if self.fast:
            given = (NONE if v is None else v.numpy() for v in (more, charge, floor))
            pay_rows(rows.constant.numpy(), rows.error.numpy(), *given, enlarge, scale, rows.image.numpy())
            return
        if more is not None:
            rows.constant = rows.constant + more * enlarge
        if charge is not None:
            rows.error = rows.error + charge * scale
        if floor is not None:
            rows.error = rows.error + floor[rows.image]
        rows.error = (rows.error * (1 + 8 * U64)).add_(rows.constant.abs(), alpha=4 * U64).add_(TINY)

    def exceed(self, rows: Rows, more: Tensor, scale: float) -> None:
        """more * scale, which is not negative, joins how far the targets may lie above their rows."""
        assert rows.excess is not None
        if self.fast:
            exceed_rows(rows.excess.numpy(), more.numpy(), scale)
        else:
            rows.excess = torch.add(rows.excess, more, alpha=scale).mul_(1 + 8 * U64).add_(TINY)

    def keep(self, found: Tensor, sign: Tensor, at: Tensor, bounds: tuple[Tensor, Tensor], best: bool) -> None:
        """Bounds of +x or of -x, as `sign` says, of the neurons at these places: what is finite and, where the `best` count, better than
        what is there replaces it.
        """
        if self.fast:
            keep_rows(found.numpy(), sign.numpy(), at.numpy(), bounds[0].numpy(), bounds[1].numpy(), best)
            return
        for kept, side in zip(bounds, (1, -1), strict=True):
            mine = sign == side
            to, value = at[mine], found[mine]
            better = torch.isfinite(value) & ~(best & (value <= kept[to]))
            kept[to] = torch.where(better, value, kept[to])
