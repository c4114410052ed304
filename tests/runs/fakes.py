"""Workers without processes: they answer at once, and die when told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from polytriton.runs.asker import Opened
from polytriton.runs.queries import Query, vnnlib_query
from polytriton.runs.records import Record
from polytriton.runs.task import Job, Reply, Task, Turn
from polytriton.workers.process import WorkerLost

Fate = Callable[[], str]  # "" to live, "asked" to die of the job, "idle" to be found dead before it, "start" to fail to start


class Fake:
    def __init__(self, fate: Fate) -> None:
        self.fate, self.up, self.starts, self.served = fate, False, 0, list[Job]()

    def start(self) -> None:
        self.starts += 1
        self.up = False
        if self.fate() == "start":
            raise WorkerLost("has no such machine")
        self.up = True

    def alive(self) -> bool:
        self.up = self.up and self.fate() != "idle"
        return self.up

    def ask(self, task: Task) -> Reply:
        job = task.job
        assert self.up
        if self.fate() == "asked":
            self.up = False
            raise WorkerLost("was killed by SIGKILL")
        self.served.append(job)
        if job.query is None:
            return Reply(opened=Opened(job.network, "y", "float32", "auto", "all"))
        assert job.blank is not None
        return Reply(record=msgspec.structs.replace(job.blank, verdict="unsat"))

    def stop(self) -> None:
        self.up = False


def tasks(queries: Sequence[Query]) -> list[Task]:
    return [
        Task(Turn(k, 1), Job(q.network, q, Record(network=q.network, property=q.name, verdict="error"))) for k, q in enumerate(queries)
    ]


def queries(networks: Sequence[str]) -> list[Query]:
    return [vnnlib_query(Path(net), Path(f"p{k}.vnnlib")) for k, net in enumerate(networks)]
