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

import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.results import LayerStats
from polytriton.runtime.walk import Results

Mark: TypeAlias = "float | torch.cuda.Event"
SUMS = 4  # numbers a refined layer keeps: width, gain of width, undecided neurons, neurons decided


@dataclass(frozen=True)
class Entry:
    """One program run on one batch; `sums` are over all neurons of all boxes."""

    name: str
    stage: str
    begin: Mark
    end: Mark
    rows: int = 0
    left: list[list[int] | Tensor] = field(default_factory=list)
    neurons: int = 0
    pooled: bool = False
    sums: Tensor | None = None


class Trace:
    """Entries in the order in which programs ran; batches of one program are added up at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.entries: list[Entry] = []

    def mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @property
    def refined(self) -> bool:
        return any(e.stage == "bound" for e in self.entries)

    def asked(self, program: Program, begin: Mark, results: Results) -> None:
        """A query, on interval bounds until something has been refined."""
        stage = "query" if self.refined else "interval"
        self.entries.append(Entry(program.target, stage, begin, self.mark(), len(results.best), results.left))

    def bounded(
        self, name: str, begin: Mark, bounds: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor],
        results: Sequence[Results], pooled: bool,
    ) -> None:  # fmt: skip
        """A refined layer: its final lo and hi; `old` and `new` are bounds of +x and -x of the neurons that had rows."""
        lo, hi = bounds
        crossing, were, are = ((a < 0) & (b < 0) for a, b in ((lo, -hi), old, new))
        gain = (new[0] - old[0] + new[1] - old[1]).sum()
        decided = were.sum(dtype=torch.float64) - are.sum(dtype=torch.float64)
        sums = torch.stack(((hi - lo).sum(), gain, crossing.sum(dtype=torch.float64), decided))
        rows, left = sum(len(r.best) for r in results), [block for r in results for block in r.left]
        self.entries.append(Entry(name, "bound", begin, self.mark(), rows, left, lo.numel(), pooled, sums))

    def read(self) -> tuple[LayerStats, ...]:
        """Call this when the answers have been read: nothing is left to wait for then."""
        values = self._values()
        found: dict[tuple[str, str], list[tuple[Entry, list[float], list[list[float]]]]] = {}
        for e in self.entries:
            sums = [next(values) for _ in range(SUMS)] if e.sums is not None else []
            left = [[next(values) for _ in block] if isinstance(block, Tensor) else [float(v) for v in block] for block in e.left]
            found.setdefault((e.name, e.stage), []).append((e, sums, left))
        return tuple(
            _added(name, stage, [e for e, _, _ in parts], [s for _, s, _ in parts], [b for _, _, left in parts for b in left])
            for (name, stage), parts in found.items()
        )

    def _values(self) -> Iterator[float]:
        """Every number on the device, in the order of the entries."""
        tensors = [t for e in self.entries for t in (*([] if e.sums is None else [e.sums]), *e.left) if isinstance(t, Tensor)]
        return iter(torch.cat(tensors).tolist() if tensors else ())


def _added(name: str, stage: str, entries: list[Entry], sums: list[list[float]], blocks: list[list[float]]) -> LayerStats:
    rows, seconds = sum(e.rows for e in entries), round(sum(_seconds(e.begin, e.end) for e in entries), 6)
    left = tuple(int(sum(b[k] for b in blocks if k < len(b))) for k in range(max(map(len, blocks), default=0)))  # blocks may end early
    if stage != "bound":
        return LayerStats(name, stage, rows=rows, left=left, seconds=seconds)
    if left and isinstance(entries[0].left[0], Tensor):
        rows, left = left[0], left[1:]  # a kernel's rows of the second sign leave before the first step where the first has settled them
    neurons = sum(e.neurons for e in entries)
    width, gain, crossing, decided = (sum(column) for column in zip(*sums, strict=True))
    unstable = None if entries[0].pooled else (int(crossing + decided), int(crossing))
    widths = (_mean(width + gain, neurons), _mean(width, neurons))
    return LayerStats(name, stage, neurons, unstable, widths, rows, left, seconds)


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    return float(begin.elapsed_time(end)) / 1000


def _mean(total: float, count: int) -> float | None:
    return float(f"{total / count:.6g}") if count and math.isfinite(total) else None
