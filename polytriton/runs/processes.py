"""Workers that are processes of this machine (`polytriton/child.py`)."""

from __future__ import annotations

import msgspec

from polytriton.child import Child, ChildLost, serve
from polytriton.runs.pool import WorkerLost
from polytriton.runs.task import Failure, Job, Reply
from polytriton.runs.worker import Hello, Host


class ProcessWorker:
    """The near end."""

    def __init__(self, hello: Hello) -> None:
        self._hello, self._child = hello, Child(__name__, hello.threads)
        self._encode, self._replies = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Reply)

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        try:
            self._child.start()
        except ChildLost as lost:
            raise WorkerLost(str(lost)) from None
        failure = self._exchange(self._encode.encode(self._hello)).failure
        if failure is not None:
            raise failure.error()

    def alive(self) -> bool:
        return self._child.alive()

    def ask(self, job: Job) -> Reply:
        return self._exchange(self._encode.encode(job))

    def stop(self) -> None:
        self._child.stop()

    def _exchange(self, data: bytes) -> Reply:
        try:
            return self._replies.decode(self._child.exchange(data))
        except ChildLost as lost:
            raise WorkerLost(str(lost)) from None


def main() -> None:
    """The far end. The first frame makes the host; one that cannot be made is told with every answer."""
    hosts: list[Host] = []

    def answer(data: bytes) -> bytes:
        if hosts:
            return hosts[0].work(data)
        try:
            hosts.append(Host(data))
        except Exception as error:
            return msgspec.msgpack.encode(Reply(failure=Failure.from_error(error)))
        return msgspec.msgpack.encode(Reply())

    serve(answer)
