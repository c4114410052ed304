"""What rows start as, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Identity:
    """Rows +x or -x of single neurons, not yet multiplied by anything."""

    sign: Tensor
    channel: Tensor

    def keep(self, index: Tensor) -> Identity:
        return Identity(self.sign[index], self.channel[index])


@dataclass
class Results:
    """Best bound of every row of a program, and what it would be had no rounding been charged; rows of a group leave together."""

    best: Tensor
    raw: Tensor
    group: Tensor | None = None  # None: rows never leave
    done: Tensor | None = None
    ops: int = 0  # operations the plan counts for the rows that each step still had
    strict: bool = False  # a row is decided by best > 0, not by best >= 0
    left: list[list[int] | Tensor] = field(default_factory=list)  # a block: rows left after each check but the last, where rows leave

    def decided(self, best: Tensor) -> Tensor:
        return best > 0 if self.strict else best >= 0
