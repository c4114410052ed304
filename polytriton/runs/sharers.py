"""Who takes a share of one query's search: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import polytriton
from polytriton.errors import ResourceError
from polytriton.prove.crew import Others, handler, processes
from polytriton.runs.cluster import START_SECONDS, RayActor, connect, find_ray
from polytriton.workers.process import JobFailed, WorkerLost
from polytriton.workers.processors import processors


class Sharer:
    """The far end, made by Ray; Ray gives it one thread, with its one CPU."""

    def ready(self) -> str:
        import torch

        torch.set_num_threads(1)
        self._answer = handler()
        return polytriton.__version__

    def pid(self) -> int:
        return os.getpid()

    def answer(self, data: bytes) -> bytes:
        return self._answer(data)


class RaySharer(RayActor):
    """The near end."""

    def start(self) -> None:
        version = self._get(self._begin(Sharer, num_cpus=1, scheduling_strategy="SPREAD").ready.remote(), START_SECONDS)
        if version != polytriton.__version__:
            raise WorkerLost(f"has polytriton {version}, the search is by {polytriton.__version__}")

    def exchange(self, data: bytes) -> bytes:
        actor = self._actor
        if actor is None:
            raise WorkerLost("was ended by its run")
        try:
            return bytes(self._get(actor.answer.remote(data)))
        except WorkerLost:
            raise
        except Exception as error:
            raise JobFailed(type(error).__name__, str(error)) from None


@contextmanager
def sharers(engine: str, workers: int | None, address: str | None) -> Iterator[Others | None]:
    """`auto`: as the search itself finds processors idle. One worker for each CPU where their number is not given."""
    if engine == "ray":
        ray = find_ray()
        mine = connect(ray, address)
        try:
            count = workers or int(ray.cluster_resources().get("CPU", 0))
            if not count:
                raise ResourceError("no machine of the Ray cluster has a CPU", "add machines to the cluster")
            yield Others(count, lambda: [RaySharer(ray) for _ in range(count)])
        finally:
            if mine:
                ray.shutdown()
    elif engine == "processes" or (engine == "auto" and workers is not None):
        count = max(1, processors() - 1) if workers is None else workers
        yield Others(count, lambda: processes(count))
    else:
        yield Others(0, list) if engine == "local" else None
