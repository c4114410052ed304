"""The engine a run was asked for."""

from __future__ import annotations

from polytriton.runs.asker import Asker
from polytriton.runs.local import Local
from polytriton.runs.processes import ProcessWorker
from polytriton.runs.share import divide
from polytriton.runs.spread import SpreadEngine
from polytriton.runs.task import TaskEngine
from polytriton.runs.worker import Hello
from polytriton.workers.processors import processors

GPU_BATCH = 100  # images that a GPU is given together: one image leaves most of it idle


def make_engine(
    kind: str, asker: Asker, *, queries: int, workers: int | None = None, threads: int | None = None, address: str | None = None,
    batch: int | None = None,
) -> TaskEngine:  # fmt: skip
    """`auto` is this process where one worker suffices, else processes. Only `local` uses the asker itself, and takes batches."""
    settings = asker.settings
    device, memory = settings.engine["device"], settings.engine["memory"]
    if kind == "ray":
        from polytriton.runs.cluster import Cluster

        return Cluster(settings, queries=queries, workers=workers, threads=threads, address=address)
    gpus = len(device.split(",")) if device.startswith("cuda") else 0
    share = divide(cpus=processors(), memory=memory, queries=queries, workers=workers, threads=threads, gpus=gpus)
    if kind == "local" or (kind == "auto" and share.workers == 1):
        return Local(asker, batch or (GPU_BATCH if gpus else 1))
    return SpreadEngine([ProcessWorker(Hello(share.settings(settings, k, device), share.threads)) for k in range(share.workers)])
