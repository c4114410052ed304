"""Worker processes that compile: what crashes, hangs or floods stdout there costs one kernel, and its name is known.

A worker (`python -m polytriton.kernels.worker`) imports Triton once and takes one job at a time. Each leads a process group of
its own, so that ptxas ends with it, works in a folder that is removed at the end, and sees an environment in which nothing
changes the machine code but what the cubin cache's key knows.
"""

from __future__ import annotations

import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import msgspec

from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel
from polytriton.kernels.worker import READY, BuildJob, BuildReply

START = 120.0  # seconds a worker has to import Triton
TOOLS = ("TRITON_PTXAS_PATH", "TRITON_CUOBJDUMP_PATH", "TRITON_LIBDEVICE_PATH")
STEERING = ("TRITON_", "MLIR_", "LLVM_", "PTXAS_", "NVPTX_", "DISABLE_PTXAS_", "DISABLE_LLVM_", "USE_IR_LOC")
TELLING = re.compile(r"error:|LLVM ERROR|Assertion|[Ff]atal|what\(\)|Error\b")
LOG_READ = 1 << 20


def tools(env: Mapping[str, str]) -> dict[str, str]:
    """The compilers a user put in the place of those in Triton's wheel."""
    return {name: env[name] for name in TOOLS if env.get(name)}


def environment(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a worker sees of `env`: no TRITON_INTERPRET nor anything else that steers the compiler, and the same import path.

    Line information holds the path of the source, a temporary file: without it the same kernel gives the same bytes.
    """
    kept = {k: v for k, v in env.items() if not k.startswith(STEERING)}
    return {
        **kept,
        **tools(env),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_HOME": str(folder),
        "TRITON_DISABLE_LINE_INFO": "1",
        "TMPDIR": str(folder),
    }


class _Worker:
    """One process: not ready, idle (task -1) or at a task; `late` once it was stopped for taking too long."""

    def __init__(self, folder: Path, inbox: queue.SimpleQueue[tuple[_Worker, bytes]]) -> None:
        self.ready, self.late, self.task, self.mark = False, False, -1, 0
        self.allowed, self.deadline = START, time.monotonic() + START
        self.log = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by end()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "polytriton.kernels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=folder,
            env=environment(os.environ, folder),
            start_new_session=True,
        )
        self.listener = Thread(target=self._listen, args=(inbox,), daemon=True)
        self.listener.start()

    def _listen(self, inbox: queue.SimpleQueue[tuple[_Worker, bytes]]) -> None:
        """Passes on whole lines, then an empty one: the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                inbox.put((self, line))
        inbox.put((self, b""))

    def give(self, task: int, job: BuildJob, timeout: float) -> None:
        assert self.process.stdin is not None
        self.task, self.mark = task, os.fstat(self.log.fileno()).st_size
        self.allowed, self.deadline = timeout, time.monotonic() + timeout
        with suppress(OSError):  # one that has just died is heard of by its end
            self.process.stdin.write(msgspec.json.encode(job) + b"\n")
            self.process.stdin.flush()

    def rest(self) -> None:
        self.task = -1
        if not self.late:
            self.deadline = math.inf

    def stop(self) -> None:
        """It is too late: its end will be heard of."""
        self.late, self.deadline = True, time.monotonic() + START
        self._kill()

    def end(self) -> str:
        """Waits for the end of the process and of what it started, and says why it ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self._kill()
        code = self.process.wait()
        self.listener.join()
        said = self.said()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()
        if self.late:
            return f"it took longer than {self.allowed:g} s"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the compiler {how}" + (f": {said}" if said else "")

    def _kill(self) -> None:
        """With what it started, where there are groups of processes; Windows has none."""
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def said(self) -> str:
        """The most telling line on stderr since the task was given: LLVM prints pages."""
        if not hasattr(os, "pread"):  # Windows: the file is the compiler's, and reading moves its place
            return ""
        lines = os.pread(self.log.fileno(), LOG_READ, self.mark).decode(errors="replace").split("\n")
        return next((s for s in lines if TELLING.search(s)), next((s for s in reversed(lines) if s.strip()), "")).strip()[:500]


def work(kernels: Sequence[Kernel], target: str, *, jobs: int, timeout: float) -> Generator[tuple[int, BuildReply], None, None]:
    """The answers as they come, each with the index of its kernel; however this ends, no process is left."""
    waiting = deque(range(len(kernels)))
    most = min(max(jobs, 1), len(kernels))
    inbox: queue.SimpleQueue[tuple[_Worker, bytes]] = queue.SimpleQueue()
    workers: set[_Worker] = set()
    with tempfile.TemporaryDirectory(prefix="polytriton-", ignore_cleanup_errors=True) as folder:
        try:
            while waiting or any(w.task >= 0 for w in workers):
                while waiting and len(workers) < most:
                    workers.add(_Worker(Path(folder), inbox))
                worker, line = _hear(inbox, workers)
                if not line:
                    workers.remove(worker)
                    reason = worker.end()
                    if not worker.ready:
                        raise KernelError(f"no kernel can be compiled: {reason}", "see what `python -m polytriton.kernels.worker` says")
                    if worker.task >= 0:
                        yield worker.task, BuildReply(error=reason)
                    continue
                if worker.ready:
                    yield worker.task, _explained(msgspec.json.decode(line, type=BuildReply), worker)
                elif line != READY:  # what site-packages print before the worker's own first line
                    continue
                worker.ready = True
                worker.rest()
                if waiting and not worker.late:
                    task = waiting.popleft()
                    worker.give(task, BuildJob(kernels[task], target, task), timeout)
        finally:
            for worker in workers:
                worker.end()


def _explained(reply: BuildReply, worker: _Worker) -> BuildReply:
    """LLVM's exceptions say little: what went wrong is on stderr."""
    said = worker.said() if reply.error else ""
    return BuildReply(error=f"{reply.error} ({said})") if TELLING.search(said) and said not in reply.error else reply


def _hear(inbox: queue.SimpleQueue[tuple[_Worker, bytes]], workers: set[_Worker]) -> tuple[_Worker, bytes]:
    """The next line of any worker; those whose time is over are stopped meanwhile."""
    while True:
        try:
            return inbox.get(timeout=max(0.0, min(w.deadline for w in workers) - time.monotonic()))
        except queue.Empty:
            for worker in workers:
                if worker.deadline <= time.monotonic():
                    worker.stop()
