"""Which checks of a Plan do nothing: what every check of the bound programs found in one run of the workload.

Far from the neuron a program's early candidates are almost never the best ones, and then the pass over all coefficients that each
takes is for nothing. Which they are depends on weights and boxes, so a run has to tell. A check is idle where no row was decided
and no row's best bound was found; leaving those out repeats the run's bounds exactly. It stays a guess about other queries: there
a skipped check loses a candidate, which is sound and may be looser, and the verifier asks again with every check before it gives
up (prove/decider.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Step
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Results

Skips = dict[str, list[str]]
RARE = 0.01  # the share of its rows that a check may decide, or find the best bound of, to be left out of a bolder choice


@dataclass
class Check:
    """Rows that came to it, that it decided, whose best bound it found; coefficients that it read; how often it ran."""

    rows: int = 0
    decided: int = 0
    best: int = 0
    values: int = 0
    calls: int = 0


@dataclass
class Seen:
    """Every check of the bound programs by target and node; rows of every convolution by (kind, target, node)."""

    checks: dict[tuple[str, str], Check] = field(default_factory=dict)
    convs: dict[tuple[str, str, str], int] = field(default_factory=dict)
    runs: list[tuple[Results, Tensor, list[Check]]] = field(default_factory=list)  # by row, the last check that improved its bound

    def settle(self) -> None:
        """Once the run is over: who found the bounds that lasted."""
        for _, last, checks in self.runs:
            for k, count in enumerate(torch.bincount(last + 1, minlength=len(checks) + 1)[1:].tolist()):
                checks[k].best += count
        self.runs.clear()

    def idle(self, share: float = 0.0) -> Skips:
        """Checks that decided at most this share of their rows, and found at most this share of the best bounds."""
        found: Skips = {}
        for (target, node), c in self.checks.items():
            if max(c.decided, c.best) <= share * c.rows:
                found.setdefault(target, []).append(node)
        return found

    def choices(self) -> tuple[Skips, ...]:
        """For a session: no check is skipped, the idle ones are, and those as well that hardly ever find anything."""
        made: list[Skips] = [{}]
        for skips in (self.idle(), self.idle(RARE)):
            if skips not in made:
                made.append(skips)
        return tuple(made)

    def savings(self, skips: Skips) -> tuple[int, int]:
        """Coefficients that are not read, and passes that are not made, where these are skipped."""
        gone = [c for (target, node), c in self.checks.items() if node in skips.get(target, ())]
        return sum(c.values for c in gone), sum(c.calls for c in gone)


class Watching(Walk):
    """A walk that notes what its checks find."""

    plays = False
    def __init__(self, seen: Seen, *given: Any) -> None:
        super().__init__(*given)
        self.seen, self.taken = seen, 0
        nodes = [s.node for s in self.program.steps if s.check]
        bound = self.program.kind == "bound"
        # the last check is always taken: it is counted, and never offered
        self.checks = [seen.checks.setdefault((self.program.target, n), Check()) if bound else Check() for n in nodes[:-1]] + [Check()]

    def _check(self, last: bool) -> bool:
        index, check = self.rows.index, self.checks[self.taken]
        before = self.results.best[index]
        check.rows += len(index)
        check.calls += len(self.frontier)
        check.values += sum(m.numel() for m, _ in self.frontier.values() if isinstance(m, Tensor))
        on = super()._check(last)
        after = self.results.best[index]
        self._last()[index[after > before]] = self.taken
        if self.results.group is not None:
            check.decided += int((self.results.decide(after) & ~self.results.decide(before)).sum())
        self.taken += 1
        return on

    def _last(self) -> Tensor:
        for results, last, _ in self.seen.runs:
            if results is self.results:
                return last
        last = torch.full_like(self.results.best, -1, dtype=torch.int64)
        self.seen.runs.append((self.results, last, self.checks))
        return last

    def _conv(self, node: Node, step: Step) -> None:
        key = self.program.kind, self.program.target, node.name
        self.seen.convs[key] = self.seen.convs.get(key, 0) + len(self.rows)
        super()._conv(node, step)


@contextmanager
def watch_checks(engine: Engine) -> Iterator[Seen]:
    """What the checks of this engine find while it runs, on the CPU."""
    seen, plain = Seen(), engine.walker.walk
    engine.walker.walk = lambda *given: Watching(seen, *given)
    try:
        yield seen
    finally:
        engine.walker.walk = plain
        seen.settle()
