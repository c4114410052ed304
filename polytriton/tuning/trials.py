"""The session's end of a worker: a process that may crash, hang or answer nonsense, at the cost of one trial."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polytriton.errors import PolytritonError
from polytriton.tuning.worker import TrialAnswer, TrialJob
from polytriton.workers.process import JobFailed, Process, WorkerLost


class TrialFailed(Exception):
    """The trial gave no answer; says why."""


class TrialProcess(Process):
    """One process at a time, made when first needed and after every failure."""

    def __init__(self, module: str = "polytriton.tuning.worker", arguments: Sequence[str] = ()) -> None:
        super().__init__(module, arguments)

    def ask(self, job: TrialJob, timeout: float) -> TrialAnswer:
        """The worker's answer. TrialFailed where there is none in time or the worker dies; the next job gets a fresh one."""
        if not self.alive():
            try:
                self.start()
            except WorkerLost as lost:
                raise PolytritonError(f"the worker that runs trials cannot start: it {lost}", "see what it printed above") from None
        try:
            return msgspec.msgpack.decode(self.exchange(msgspec.msgpack.encode(job), timeout), type=TrialAnswer)
        except WorkerLost as lost:
            said = f"timeout: no answer in {timeout:.0f} s" if lost.late else f"crash: the worker {lost}"
        except JobFailed as failed:
            first = failed.said.partition("\n")[0]
            said = f"failed: {failed.kind}: {first}"
        except msgspec.MsgspecError as error:
            self.end()
            said = f"crash: its answer cannot be read ({error})"
        raise TrialFailed(said)
