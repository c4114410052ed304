"""Workers that are processes of this machine: fresh interpreters, never forks, since torch's threads do not survive a fork.

Frames of a length and that many bytes go in by the worker's standard input and come out by what was its standard output. A
worker whose input ends goes too, so none outlives the run.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO, Any

import msgspec

import polytriton
from polytriton.knobs import ASLEEP
from polytriton.spread.pool import WorkerLost
from polytriton.spread.task import Failure, Job, Reply
from polytriton.spread.worker import Hello, Host

HEAD = struct.Struct("<Q")
START = "import sys; sys.path[:] = filter(None, sys.path); from polytriton.spread.processes import main; main()"  # not the current folder
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")  # read when libraries are loaded


class ProcessWorker:
    """The near end: starts the process and speaks with it."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._lock = False, Lock()
        self._encode, self._replies = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Reply)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._end()
        root = str(Path(polytriton.__file__).parents[1])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        env = {**os.environ, **dict.fromkeys(POOLS, str(self._hello.threads)), "PYTHONPATH": path}
        env = {**ASLEEP, **env}
        apart: dict[str, Any] = {"start_new_session": True}
        if os.name == "nt":
            apart = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        with self._lock:
            if self._stopped:
                raise WorkerLost("the run is over")
            self._process = subprocess.Popen(  # apart: Ctrl-C at the terminal is for the run alone, which then ends its workers
                [sys.executable, "-c", START],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, **apart,
            )  # fmt: skip
        failure = self._exchange(self._encode.encode(self._hello)).failure
        if failure is not None:
            raise failure.error()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, job: Job) -> Reply:
        return self._exchange(self._encode.encode(job))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        self._end(close=False)

    def _end(self, close: bool = True) -> None:
        """`close` False: another thread may be reading, and closes when it sees the end."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        if close and process.stdin and process.stdout:
            with suppress(OSError):  # what was still to be written
                process.stdin.close()
            process.stdout.close()

    def _exchange(self, data: bytes) -> Reply:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, data)
            back = receive(process.stdout)
        except (OSError, ValueError):
            back = None
        if back is None:
            process.kill()
            raise WorkerLost(_cause(process.wait()))
        return self._replies.decode(back)


def _cause(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (was memory short?)" if name == "SIGKILL" else "")
    return f"ended with exit code {code}"


def send(file: IO[bytes], data: bytes) -> None:
    file.write(HEAD.pack(len(data)) + data)
    file.flush()


def receive(file: IO[bytes]) -> bytes | None:
    """The next frame, or None where the other end is gone; a torn frame counts as none."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    data = file.read(size)
    return data if len(data) == size else None


def main() -> None:
    """The far end. What libraries print goes to standard error: standard output carries replies alone."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    frames: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (data := receive(source)) is not None:
            frames.put(data)
        os._exit(0)  # the run is over, also when it was killed in the middle of a query

    Thread(target=listen, daemon=True).start()
    try:
        host = Host(frames.get())
    except Exception as error:
        send(sink, msgspec.msgpack.encode(Reply(failure=Failure.of(error))))
        return
    send(sink, msgspec.msgpack.encode(Reply()))
    while True:
        send(sink, host.work(frames.get()))
