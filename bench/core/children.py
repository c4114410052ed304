"""Processes that measure: each is asked over a pipe, one JSON line a question and one an answer, and is kept warm between questions.

A child answers by `serve`. Whatever its libraries print goes to stderr: standard output belongs to the answers.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from bench.core.machine import ROOT
from bench.core.serve import Message

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
GRACE = 5.0  # seconds that a child has to end by itself


class Gone(Exception):
    """A child that answers no more, and why; `late`: it was stopped for taking too long."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class MeasuringChild:
    """One process running `python -m MODULE ARGUMENTS`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        python: str = sys.executable,
        path: Sequence[str] = (),
        threads: int = 0,
    ) -> None:
        paths = [str(ROOT), *path, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if threads:
            env |= dict.fromkeys(THREADS, str(threads))
        self.process = subprocess.Popen(
            [python, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT, bufsize=0
        )
        self._read = b""

    def ask(self, question: Message, seconds: float) -> Message:
        """The answer, or Gone: the process died, or took longer and was stopped."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        line = self._line(time.monotonic() + seconds)
        answer: Message = json.loads(line)
        return answer

    def _line(self, end: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.process.kill()
                self.process.wait()
                raise Gone("stopped: over its time", late=True)
            some = os.read(self.process.stdout.fileno(), 1 << 16)
            if not some:
                raise self._ended()
            self._read += some
        line, self._read = self._read.split(b"\n", 1)
        return line

    def _ended(self) -> Gone:
        return Gone(f"its process ended with code {self.process.wait()}")

    def close(self) -> None:
        """Ends it: politely, then not."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> MeasuringChild:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
