"""One image at several radii: which is asked next, and what its answer tells of the others.

The balls around an image lie in one another, exactly: (p - e, p + e) cut to a range grows with e, and so does what normalising makes of
it. So what holds over a ball holds over every smaller one, and a counterexample in a ball lies in every larger one. `unknown` tells
nothing of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from polytriton.runs.queries import Ball, Query
from polytriton.runs.records import Record


class Ladder:
    """Queries that differ in their radius alone; `open` are those not yet answered, from the smallest on."""

    def __init__(self, rungs: Sequence[int]) -> None:
        self._height = {k: at for at, k in enumerate(rungs)}
        self.open = list(rungs)

    def next(self) -> int | None:
        """The middle one: whatever is decided there, half of the others need not be asked."""
        return self.open[(len(self.open) - 1) // 2] if self.open else None

    def close(self, k: int, verdict: str) -> list[int]:
        """The open queries that share this verdict, now that `k` has it; neither it nor they are open any more."""
        if k in self.open:
            self.open.remove(k)
        height = self._height[k]
        told = [
            j for j in self.open if (verdict == "unsat" and self._height[j] < height) or (verdict == "sat" and self._height[j] > height)
        ]
        self.open = [j for j in self.open if j not in told]
        return told


def ladders(queries: Sequence[Query]) -> list[Ladder]:
    """By query, the ladder it belongs to; most have one rung. A largest radius is searched for every ball that asks for it."""
    groups: dict[object, list[int]] = {}
    for k, query in enumerate(queries):
        ball = query.subject
        alone = not isinstance(ball, Ball) or ball.certify is not None
        same = (k,) if alone else (query.network, msgspec.structs.replace(ball, epsilon=""))
        groups.setdefault(same, []).append(k)
    found: dict[int, Ladder] = {}
    for rungs in groups.values():
        if len(rungs) > 1:
            rungs.sort(key=lambda k: Fraction(queries[k].epsilon or 0))
        found |= dict.fromkeys(rungs, Ladder(rungs))
    return [found[k] for k in range(len(queries))]


def imply(blank: Record, source: Record) -> Record:
    """The record of a query that another radius has decided. A margin proved over the larger ball holds over this one."""
    proved = source.verdict == "unsat"
    said = source.note or f"{'proved' if proved else 'falsified'} at epsilon {source.epsilon}"
    margins = (source.margin, source.margins) if proved else (None, [])
    return msgspec.structs.replace(
        blank, verdict=source.verdict, margin=margins[0], margins=margins[1], label=source.label, rivals=source.rivals, note=said,
        counterexample=source.counterexample, image=source.image, decided_at=source.decided_at or source.epsilon,
    )  # fmt: skip
