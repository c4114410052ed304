"""Processes that measure (`polytriton/workers`): each is asked in JSON, one question at a time, and is kept warm between questions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from bench.core.machine import ROOT
from bench.core.serve import Message
from polytriton.workers.process import POOLS, JobFailed, Process, WorkerLost


class Gone(Exception):
    """A child that answers no more, and why; `late`: it was stopped for taking too long."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class MeasuringChild(Process):
    """One process; `python` may be another interpreter, which needs nothing of polytriton."""

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
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **dict.fromkeys(POOLS if threads else (), str(threads))}
        super().__init__(module, arguments, python=python, env=env, cwd=ROOT)

    def ask(self, question: Message, seconds: float) -> Message:
        """The answer, {"error": ...}, or Gone: the process died, or took longer and was stopped."""
        try:
            if self.pid is None:
                self.start()
            answer: Message = json.loads(self.exchange(json.dumps(question).encode(), seconds))
        except JobFailed as failed:
            lines = [line for line in failed.said.splitlines() if line.strip()] or [""]
            return {"error": f"{failed.kind}: {lines[-1].strip()[:300]}"}
        except WorkerLost as lost:
            raise Gone("stopped: over its time" if lost.late else f"its process {lost}", lost.late) from None
        return answer

    def __enter__(self) -> MeasuringChild:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()
