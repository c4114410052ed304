"""Workers that compile: what a kernel does to its compiler costs that kernel alone, and its name is known.

They work in a folder that is removed at the end, and see an environment in which nothing changes the machine code but what the
cubin cache's key knows.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel
from polytriton.kernels.identity import tools
from polytriton.kernels.worker import BuildJob, BuildReply
from polytriton.workers.pool import Missing, Pool, Taken
from polytriton.workers.process import JobFailed, Process, WorkerLost

STEERING = ("TRITON_", "MLIR_", "LLVM_", "PTXAS_", "NVPTX_", "DISABLE_PTXAS_", "DISABLE_LLVM_", "USE_IR_LOC")
TELLING = re.compile(r"error:|LLVM ERROR|Assertion|[Ff]atal|what\(\)|Error\b")
CUT = "\nRepro command:"  # of ptxas, on a file that is gone by then
LOG_READ = 1 << 20


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


class Compiler(Process):
    """One that takes so many seconds for a kernel at most. What goes wrong is explained by what it printed."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.log, self.mark, self._timeout = tempfile.TemporaryFile(dir=folder), 0, timeout  # noqa: SIM115  closed by work()
        super().__init__("polytriton.kernels.worker", env=environment(os.environ, folder), cwd=folder, log=self.log)

    def start(self) -> None:
        try:
            super().start()
        except WorkerLost as lost:
            raise self._explain(lost) from None

    def ask(self, job: BuildJob) -> BuildReply:
        self.mark = os.fstat(self.log.fileno()).st_size
        try:
            return BuildReply.decode(self.exchange(job.encode(), self._timeout))
        except JobFailed as failed:
            error = f"{failed.kind}: {failed.said.split(CUT)[0].strip()}"
            said = self.telling_line()  # LLVM's exceptions say little
            return BuildReply(error=f"{error} ({said})" if TELLING.search(said) and said not in error else error)
        except WorkerLost as lost:
            raise self._explain(lost) from None

    def _explain(self, lost: WorkerLost) -> WorkerLost:
        said = "" if lost.late else self.telling_line()
        return WorkerLost(f"{'it' if lost.late else 'the compiler'} {lost}" + (f": {said}" if said else ""), lost.late)

    def telling_line(self) -> str:
        """The most telling line on stderr since the job was given: LLVM prints pages."""
        if not hasattr(os, "pread"):  # Windows: the file is the compiler's, and reading moves its place
            return ""
        lines = os.pread(self.log.fileno(), LOG_READ, self.mark).decode(errors="replace").split("\n")
        return next((s for s in lines if TELLING.search(s)), next((s for s in reversed(lines) if s.strip()), "")).strip()[:500]


def work(kernels: Sequence[Kernel], target: str, *, jobs: int, timeout: float) -> Generator[tuple[int, BuildReply], None, None]:
    """The answers as they come, each with the index of its kernel; however this ends, no process is left."""
    with tempfile.TemporaryDirectory(prefix="polytriton-", ignore_cleanup_errors=True) as folder:
        compilers = [Compiler(Path(folder), timeout) for _ in range(min(max(jobs, 1), len(kernels)))]
        pool = Pool(compilers)
        for k, kernel in enumerate(kernels):
            pool.submit(BuildJob(kernel, target, k))
        try:
            for event in pool.events():
                if isinstance(event, Missing):
                    remedy = "see what `python -c 'import polytriton.kernels.worker, triton'` says"
                    raise KernelError(f"no kernel can be compiled: {event.why}", remedy)
                if not isinstance(event, Taken):
                    yield event.job.number, event.answer or BuildReply(error=str(event.error))
        finally:
            pool.close()
            for compiler in compilers:
                compiler.log.close()
