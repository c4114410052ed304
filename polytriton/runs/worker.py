"""What runs in a worker, whichever way it is reached: jobs come in as bytes, replies go out as bytes, MessagePack both."""

from __future__ import annotations

from pathlib import Path

import msgspec

import polytriton
from polytriton.errors import UsageError
from polytriton.guard import guard_class
from polytriton.heap import keep_memory
from polytriton.runs.asker import Asker, Networks, Settings
from polytriton.runs.task import Failure, Job, Reply


class Hello(msgspec.Struct, frozen=True):
    """The first message to a worker."""

    settings: Settings
    threads: int
    version: str = polytriton.__version__


@guard_class
class Host:
    """The worker itself."""

    def __init__(self, hello: bytes) -> None:
        import torch

        said = msgspec.msgpack.decode(hello, type=Hello)
        if said.version != polytriton.__version__:
            raise UsageError(
                f"this worker has polytriton {polytriton.__version__}, the run is by {said.version}", "install the same version everywhere"
            )
        torch.set_num_threads(said.threads)
        keep_memory()
        self.places: dict[str, Path] = {}
        self._asker = Asker(Networks(said.settings.engine, self.places), said.settings)
        self._jobs, self._replies = msgspec.msgpack.Decoder(Job), msgspec.msgpack.Encoder()

    def work(self, data: bytes) -> bytes:
        return self._replies.encode(self._reply(self._jobs.decode(data)))

    def _reply(self, job: Job) -> Reply:
        if job.query is None or job.blank is None:
            try:
                return Reply(opened=self._asker.open(job.network))
            except Exception as error:
                return Reply(failure=Failure.from_error(error))
        answer = self._asker.answer(job.query, job.blank)
        failure = None if answer.error is None else Failure.from_error(answer.error)
        trail = b"" if answer.trail is None else answer.trail.pack()
        return Reply(record=answer.record, failure=failure, prepare=answer.prepare, trail=trail)
