"""Workers that are processes of this machine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polytriton.runs.task import Failure, Reply, Task
from polytriton.runs.worker import Hello, Host
from polytriton.workers.process import Process, environment


class ProcessWorker(Process):
    """The near end."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(__name__, env=environment(hello.threads))
        self._hello = hello
        self._encode, self._replies = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Reply)

    def start(self) -> None:
        super().start()
        failure = self._replies.decode(self.exchange(self._encode.encode(self._hello))).failure
        if failure is not None:
            raise failure.error()

    def ask(self, task: Task) -> Reply:
        return self._replies.decode(self.exchange(self._encode.encode(task.job)))


def handler() -> Callable[[bytes], bytes]:
    """The first frame makes the host; one that cannot be made is told."""
    hosts: list[Host] = []

    def answer(data: bytes) -> bytes:
        if hosts:
            return hosts[0].work(data)
        try:
            hosts.append(Host(data))
        except Exception as error:
            return msgspec.msgpack.encode(Reply(failure=Failure.from_error(error)))
        return msgspec.msgpack.encode(Reply())

    return answer
