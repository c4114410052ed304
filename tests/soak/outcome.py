"""What holding bounds against executions showed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Outcome:
    """What a case showed: comparisons made, bounds that said something, escapes; the nearest that an execution came to a bound."""

    compared: int = 0
    finite: int = 0
    escapes: list[str] = field(default_factory=list)
    ratio: float = 0.0  # of the room that rounding was given, how much a real execution used; 1 would touch the bound
    refused: bool = False

    def hold(self, what: str, lo: np.ndarray, hi: np.ndarray, down: np.ndarray, up: np.ndarray) -> None:
        """`down` and `up` enclose the true values; NaN there admits no finite bound."""
        lost = np.isnan(down)
        wrong = np.where(lost, ~(np.isneginf(lo) & np.isposinf(hi)), ~((lo <= down) & (up <= hi)))
        self.compared += wrong.size
        if wrong.any():
            at = tuple(int(v) for v in np.argwhere(wrong)[0])
            lo, hi = np.broadcast_to(lo, wrong.shape), np.broadcast_to(hi, wrong.shape)
            ends = f"{float(down[at])!r}..{float(up[at])!r} outside [{float(lo[at])!r}, {float(hi[at])!r}]"
            self.escapes.append(f"{what}: {int(wrong.sum())} wrong, first at {at}: {ends}")
