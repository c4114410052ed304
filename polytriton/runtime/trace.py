"""What a proof did, layer by layer, as plain numbers once the answer is known.

Until then sums stay small tensors where the bounds are, and times on a GPU are events of its stream: the host waits for
nothing that it did not wait for before, and reads all of it by one copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.results import LayerStats
from polytriton.runtime.cpu.walk import Results

Mark: TypeAlias = "float | torch.cuda.Event"
Told: TypeAlias = tuple[Tensor, Tensor]  # before and after refinement, each as `sums` or a kernel (`tell_boxes`) has it


def sums(lo: Tensor, hi: Tensor) -> Tensor:
    """The sum of hi - lo, and how many neurons are undecided; in one line."""
    return torch.stack(((hi - lo).sum(), ((lo < 0) & (hi > 0)).sum(dtype=torch.float64)))[None]


@dataclass(frozen=True)
class TraceEntry:
    """One program run on one batch; `told` is about all neurons of all boxes."""

    name: str
    stage: str
    begin: Mark
    end: Mark
    rows: int = 0
    left: list[list[int] | Tensor] = field(default_factory=list)
    neurons: int = 0
    unsettled: bool = False
    told: Told | None = None


class Trace:
    """Entries in the order in which programs ran; batches of one program are added up at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.entries: list[TraceEntry] = []

    def mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @property
    def refined(self) -> bool:
        return any(e.stage == "bound" for e in self.entries)

    def add_query(self, program: Program, begin: Mark, results: Results) -> None:
        """A query, on interval bounds until something has been refined."""
        stage = "query" if self.refined else "interval"
        self.entries.append(TraceEntry(program.target, stage, begin, self.mark(), len(results.best), results.left))

    def add_layer(self, name: str, marks: tuple[Mark, Mark], neurons: int, told: Told, results: Sequence[Results], unsettled: bool) -> None:
        """A refined layer with so many neurons in all boxes, or one whose interval bounds are exact."""
        rows, left = sum(len(r.best) for r in results), [block for r in results for block in r.left]
        self.entries.append(TraceEntry(name, "bound", *marks, rows, left, neurons, unsettled, told))

    def read(self) -> tuple[LayerStats, ...]:
        """Call this when the answers have been read: nothing is left to wait for then."""
        values = self._values()
        found: dict[tuple[str, str], list[tuple[TraceEntry, list[np.ndarray], list[list[float]]]]] = {}
        for e in self.entries:
            told = [next(values).reshape(t.shape).sum(0) for t in e.told or ()]
            left = [next(values).tolist() if isinstance(block, Tensor) else [float(v) for v in block] for block in e.left]
            found.setdefault((e.name, e.stage), []).append((e, told, left))
        return tuple(
            _sum_entries(name, stage, [e for e, _, _ in parts], [t for _, t, _ in parts], [b for _, _, left in parts for b in left])
            for (name, stage), parts in found.items()
        )

    def _values(self) -> Iterator[np.ndarray]:
        """What the entries' tensors hold, in their order; those on a device by one copy."""
        tensors = [t.flatten().double() for e in self.entries for t in (*(e.told or ()), *e.left) if isinstance(t, Tensor)]
        away = [t for t in tensors if t.device.type != "cpu"]
        copied = iter(torch.cat(away).cpu().split([len(t) for t in away]) if away else ())
        return iter([(t if t.device.type == "cpu" else next(copied)).numpy() for t in tensors])


def _sum_entries(name: str, stage: str, entries: list[TraceEntry], told: list[list[np.ndarray]], blocks: list[list[float]]) -> LayerStats:
    rows, seconds = sum(e.rows for e in entries), round(sum(_seconds(e.begin, e.end) for e in entries), 6)
    left = tuple(int(sum(b[k] for b in blocks if k < len(b))) for k in range(max(map(len, blocks), default=0)))  # blocks may end early
    if stage != "bound":
        return LayerStats(name, stage, rows=rows, left=left, seconds=seconds)
    if left and isinstance(entries[0].left[0], Tensor):
        rows, left = left[0], left[1:]  # a kernel's rows of the second sign leave before the first step where the first has settled them
    if 0 in left:
        left = left[: left.index(0) + 1]  # how far a device went on without rows says nothing
    neurons = sum(e.neurons for e in entries)
    (width, undecided), (narrowed, left_open) = (np.sum(side, 0) for side in zip(*told, strict=True))
    unstable = None if entries[0].unsettled else (int(undecided), int(left_open))
    return LayerStats(name, stage, neurons, unstable, (_mean(width, neurons), _mean(narrowed, neurons)), rows, left, seconds)


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    return float(begin.elapsed_time(end)) / 1000


def _mean(total: float, count: int) -> float | None:
    return float(f"{total / count:.6g}") if count and math.isfinite(total) else None
