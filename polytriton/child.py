"""Processes of this machine that work for this one: fresh interpreters, never forks, since torch's threads do not survive a fork.

Frames of a length and that many bytes go in by the child's standard input and come out by what was its standard output. A child
whose input ends goes too, so none outlives its parent.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO

import polytriton
from polytriton.knobs import ASLEEP

HEAD = struct.Struct("<Q")
START = "import sys; sys.path[:] = filter(None, sys.path); from {} import main; main()"  # not the current folder
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")  # read when libraries are loaded


class ChildLost(Exception):
    """The process is gone; the message says how."""


class Child:
    """The near end: starts the process and speaks with it. Only `stop` may be called from another thread than the others."""

    def __init__(self, module: str, threads: int) -> None:
        """`module` has a function `main` that calls `serve`."""
        self._module, self._threads = module, threads
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._lock = False, Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """A new process; one that runs is ended."""
        self._end()
        root = str(Path(polytriton.__file__).parents[1])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        env = {**ASLEEP, **os.environ, **dict.fromkeys(POOLS, str(self._threads)), "PYTHONPATH": path}
        windows = os.name == "nt"
        with self._lock:
            if self._stopped:
                raise ChildLost("ended by its parent")
            self._process = subprocess.Popen(  # apart: Ctrl-C at the terminal is for the parent alone, which then ends its children
                [sys.executable, "-c", START.format(self._module)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
                start_new_session=not windows, creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) if windows else 0,
            )  # fmt: skip

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exchange(self, data: bytes) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, data)
            back = receive(process.stdout)
        except (OSError, ValueError):
            back = None
        if back is None:
            process.kill()
            raise ChildLost(_cause(process.wait()))
        return back

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


def _cause(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (was memory short?)" if name == "SIGKILL" else "")
    return f"ended with exit code {code}"


def send(file: IO[bytes], data: bytes) -> None:
    file.write(HEAD.pack(len(data)))
    file.write(data)
    file.flush()


def receive(file: IO[bytes]) -> bytes | None:
    """The next frame, or None where the other end is gone; a torn frame counts as none."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    data = file.read(size)
    return data if len(data) == size else None


def serve(answer: Callable[[bytes], bytes]) -> None:
    """The far end: a reply for every frame. What libraries print goes to standard error: standard output carries replies alone."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    frames: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (data := receive(source)) is not None:
            frames.put(data)
        os._exit(0)  # the parent is gone, or wants no more, be it in the middle of an answer

    Thread(target=listen, daemon=True).start()
    while True:
        send(sink, answer(frames.get()))
