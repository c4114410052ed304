"""One worker: a fresh interpreter, never a fork, since torch's threads do not survive a fork.

What crashes, hangs or floods its output there costs one job, and how it ended is known. A worker whose parent is gone goes too.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Timer
from typing import IO

import polytriton
from polytriton.knobs import ASLEEP
from polytriton.workers import far

START = 180.0  # seconds until a worker has imported everything
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")  # read when libraries are loaded


class WorkerLost(Exception):
    """The worker is gone; the message says how, after "it". `late`: it was ended because its time was over."""

    def __init__(self, how: str, late: bool = False) -> None:
        super().__init__(how)
        self.late = late


class JobFailed(Exception):
    """The worker could not do it, and lives on: what was raised there."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"{kind}: {said}")
        self.kind, self.said = kind, said


def environment(threads: int = 0) -> dict[str, str]:
    """The user's, with this polytriton in front: a worker is of the same version, wherever it is started. `threads` 0: as the user says."""
    path = os.pathsep.join(filter(None, (str(Path(polytriton.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    return {**ASLEEP, **os.environ, **dict.fromkeys(POOLS if threads else (), str(threads)), "PYTHONPATH": path}


class Process:
    """The near end. Only `stop` may be called from another thread than the others."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        python: str = "",
        log: IO[bytes] | None = None,
    ) -> None:
        """`module` has a function `handler` (`far.py`); `log` takes what would go to standard error."""
        self._command = [python or sys.executable, far.__file__, module, *arguments]
        self._env, self._cwd, self._log = environment() if env is None else env, cwd, log
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._lock = False, Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """A new process, once it is ready; one that runs is ended."""
        self.end()
        windows = os.name == "nt"
        with self._lock:
            if self._stopped:
                raise WorkerLost("was ended by its parent")
            self._process = subprocess.Popen(  # apart: Ctrl-C at the terminal is for the parent alone, which then ends its workers
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=self._env, cwd=self._cwd,
                start_new_session=not windows, creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) if windows else 0,
            )  # fmt: skip
        self._talk(START, lambda source, sink: _greeting(source))

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exchange(self, data: bytes, seconds: float = math.inf) -> bytes:
        """The answer; JobFailed; or WorkerLost, be it that the time was over."""

        def ask(source: IO[bytes], sink: IO[bytes]) -> bytes | None:
            far.send(sink, data)
            return far.receive(source)

        back = self._talk(seconds, ask)
        if back[:1] == far.RAISED:
            raise JobFailed(*back[1:].decode(errors="replace").split("\n", 1))
        return back[1:]

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        if self._process is not None:
            _kill(self._process)
            self._process.wait()
            _close(self._process)

    def stop(self) -> None:
        """Ends the process for good. A thread that waits for its answer hears so."""
        with self._lock:
            self._stopped, process = True, self._process
        if process is not None:
            _kill(process)
            process.wait()

    def _talk(self, seconds: float, say: Callable[[IO[bytes], IO[bytes]], bytes | None]) -> bytes:
        process, late = self._process, Event()
        assert process is not None and process.stdin is not None and process.stdout is not None

        def expire() -> None:
            late.set()
            _kill(process)

        timer = Timer(seconds, expire) if seconds < math.inf else None
        try:
            if timer is not None:
                timer.daemon = True
                timer.start()
            back = say(process.stdout, process.stdin)
        except (OSError, ValueError):
            back = None
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
        if back is None or late.is_set():  # an answer that crosses the worker's end counts, and the worker is gone
            _kill(process)
            code = process.wait()
            _close(process)
            if back is None:
                raise WorkerLost(f"took longer than {seconds:g} s" if late.is_set() else _cause(code), late.is_set())
        return back


def _greeting(source: IO[bytes]) -> bytes | None:
    """The first line that is the worker's own: site-packages may print before."""
    while line := source.readline():
        if line.endswith(far.READY):
            return line
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it started, where there are groups of processes; Windows has none."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # what was still to be written
            assert stream is not None
            stream.close()


def _cause(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return f"was killed by {name}" + (" (was memory short?)" if name == "SIGKILL" else "")
    return f"ended with exit code {code}"
