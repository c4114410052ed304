"""The far end of a worker: `python far.py MODULE ARGUMENTS`. It needs the standard library alone, whatever interpreter it runs in.

Frames, a length and that many bytes, come in by standard input. Answers go out by what was standard output, after one line which says
that MODULE's `handler()` has made the function that answers. What that raises is an answer too.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
from queue import SimpleQueue
from threading import Thread
from typing import IO

READY = b"polytriton's worker is ready\n"
HEAD = struct.Struct("<Q")
DONE, RAISED = b"+", b"-"  # how an answer begins: by its bytes, or by the name of an error, a line and what the error says


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


def serve(module: str) -> None:
    """Both streams are this function's alone, and no child process inherits them: what libraries print goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    frames: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (data := receive(source)) is not None:
            frames.put(data)
        os._exit(0)  # the parent is gone, or wants no more, be it in the middle of an answer

    Thread(target=listen, daemon=True).start()
    answer = importlib.import_module(module).handler()
    sink.write(READY)
    sink.flush()
    while True:
        data = frames.get()
        try:
            made = DONE + answer(data)
        except Exception as error:
            made = RAISED + f"{type(error).__name__}\n{error}".encode(errors="replace")
        send(sink, made)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) != here]  # neither this folder nor the current one
    sys.argv[:] = sys.argv[1:]
    serve(sys.argv[0])
