"""What the launches of a run add up to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

GRAPH_LAUNCH = 2e-6  # assumed, not measured: seconds of a launch inside a CUDA graph


@dataclass
class Sum:
    """What the launches of a run add up to; `binding`: seconds by what limits them."""

    launches: int = 0
    ops: float = 0.0
    tiles: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    rows: float = 0.0
    binding: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float, limit: str, times: int = 1, ops: float = 0.0, tiles: float = 0.0, moved: float = 0.0) -> None:
        slowest = max(seconds, GRAPH_LAUNCH)
        self.launches += times
        self.seconds += slowest * times
        self.binding["launch" if seconds < GRAPH_LAUNCH else limit] += slowest * times
        self.ops, self.tiles, self.bytes = self.ops + ops * times, self.tiles + tiles * times, self.bytes + moved * times

    @property
    def binds(self) -> str:
        total = sum(self.binding.values()) or 1.0
        ranked = sorted(self.binding.items(), key=lambda item: -item[1])
        return ", ".join(f"{limit} {share / total:.0%}" for limit, share in ranked if share / total >= 0.01)
