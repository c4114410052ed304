"""How a machine is divided among workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polytriton.errors import UsageError
from polytriton.runs.asker import Settings

LEAST_MEMORY = 1 << 30  # bytes of the budget for each worker, where their number is not given
LEAST_QUERIES = 4  # for each worker, likewise: starting one costs as much as some small queries
MOST = 1024


@dataclass(frozen=True)
class Share:
    """`workers` on one machine, each with so many threads and bytes."""

    workers: int
    threads: int
    memory: int

    def settings(self, settings: Settings, worker: int, devices: str) -> Settings:
        """Those of one worker: its part of the budget, and of the devices its own."""
        names = devices.split(",")
        mine = names[worker :: self.workers] or [names[worker % len(names)]]
        engine: dict[str, Any] = {**settings.engine, "memory": self.memory, "device": ",".join(mine)}
        return replace(settings, engine=engine)


def divide(*, cpus: int, memory: int, queries: int, workers: int | None = None, threads: int | None = None, gpus: int = 0) -> Share:
    """A worker a GPU, else one for every `threads` CPUs (by default one), as far as budget and queries reach."""
    if workers is None:
        most = gpus or cpus // (threads or 1)
        workers = max(1, min(most, memory // LEAST_MEMORY, queries // LEAST_QUERIES))
    return Share(workers, threads or max(1, cpus // workers), memory // workers)


def check_workers(workers: int | None) -> None:
    if workers is not None and not 1 <= workers <= MOST:
        raise UsageError(f"--workers {workers} is out of range", f"give 1 to {MOST}, or leave it out")

