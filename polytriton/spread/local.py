"""The engine that is this process: one task after another, in order."""

from __future__ import annotations

from collections.abc import Iterator

from polytriton.runs.asker import Asker
from polytriton.spread.task import Backlog, Began, Done, Event, Outcome, Task


class Local:
    def __init__(self, asker: Asker) -> None:
        self._asker, self._backlog = asker, Backlog()

    def submit(self, task: Task) -> None:
        self._backlog.put(task)

    def events(self) -> Iterator[Event]:
        while self._backlog:
            task = self._backlog.take()
            yield Began(task)
            yield Done(task, self._work(task))

    def close(self) -> None:
        self._asker.networks.close()

    def _work(self, task: Task) -> Outcome:
        job = task.job
        if job.query is None:
            try:
                return self._asker.open(job.network)
            except Exception as error:
                return error
        assert job.blank is not None
        return self._asker.answer(job.query, job.blank)
