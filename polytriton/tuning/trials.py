"""The session's end of a worker: a process that may crash, hang or answer nonsense, at the cost of one trial."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from polytriton.errors import PolytritonError
from polytriton.tuning.worker import READY, TrialAnswer, TrialJob, receive, send

COMMAND = (sys.executable, "-m", "polytriton.tuning.worker")
START = 120.0  # seconds until a worker must have imported everything


class TrialFailed(Exception):
    """The trial gave no answer; says why."""


class TrialProcess:
    """One process at a time, made when first needed and after every failure."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = tuple(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.replies: queue.Queue[bytes | None] = queue.Queue()

    def ask(self, job: TrialJob, timeout: float) -> TrialAnswer:
        """The worker's answer. TrialFailed where there is none in time or the worker dies; the next job gets a fresh one."""
        process = self._started()
        assert process.stdin is not None
        try:
            send(process.stdin, msgspec.msgpack.encode(job))
            data = self.replies.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise TrialFailed(f"timeout: no answer in {timeout:.0f} s") from None
        except (OSError, ValueError):
            data = None
        if data is None:
            raise TrialFailed(f"crash: {self._ended()}")
        try:
            answer = msgspec.msgpack.decode(data, type=TrialAnswer)
        except msgspec.MsgspecError as error:
            self.close()
            raise TrialFailed(f"crash: its answer cannot be read ({error})") from None
        if answer.error:
            raise TrialFailed(f"failed: {answer.error}")
        return answer

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.replies = queue.Queue()
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())
            threading.Thread(target=_read, args=(self.process, self.replies), daemon=True).start()
            try:
                first = self.replies.get(timeout=START)
            except queue.Empty:
                first = b""
            if first != READY:
                said = self._ended() if first is None else f"no answer in {START:.0f} s"
                self.close()
                raise PolytritonError(f"the worker that runs trials cannot start: {said}", "see what it printed above")
        return self.process

    def _ended(self) -> str:
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        self.close()
        return f"the worker was killed by signal {-code}" if code is not None and code < 0 else f"the worker ended with code {code}"


def _read(process: subprocess.Popen[bytes], replies: queue.Queue[bytes | None]) -> None:
    """Passes answers on until the stream ends."""
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        while (data := receive(process.stdout)) is not None:
            replies.put(data)
    replies.put(None)


def _environment() -> dict[str, str]:
    """The user's, with this polytriton in front: a worker must be of the same version, wherever it is started."""
    import polytriton

    root = os.path.dirname(os.path.dirname(os.path.abspath(polytriton.__file__)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}

