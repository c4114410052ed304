"""The engine that is this process: one task after another, in order, or a batch of images after another."""

from __future__ import annotations

from collections.abc import Iterator

from polytriton.limit import OutOfTime
from polytriton.runs.asker import Asker, Begun
from polytriton.runs.task import Backlog, Began, Done, Event, Outcome, Task


class Local:
    def __init__(self, asker: Asker, batch: int = 1) -> None:
        """`batch`: how many balls around images without a time limit are proved together."""
        self._asker, self._backlog, self._batch = asker, Backlog(), batch

    def submit(self, task: Task) -> None:
        self._backlog.put(task)

    def events(self) -> Iterator[Event]:
        while self._backlog:
            left = dict(enumerate(self._backlog.take_batch(self._batch)))
            if len(left) > 1:
                yield Began(left[0], len(left) - 1)
                for k, begun in self._asker.together([task.job.query for task in left.values() if task.job.query is not None]):
                    task = left.pop(k)
                    yield Done(task, self._work(task, begun))
            for task in left.values():
                yield Began(task)
                yield Done(task, self._work(task))

    def close(self) -> None:
        self._asker.networks.close()

    def _work(self, task: Task, begun: Begun | None = None) -> Outcome:
        job = task.job
        if job.query is None:
            try:
                return self._asker.open(job.network)
            except (Exception, OutOfTime) as error:
                return error
        assert job.blank is not None
        return self._asker.answer(job.query, job.blank, begun)
