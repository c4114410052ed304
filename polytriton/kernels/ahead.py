"""Machine code for the GPU that is here, before its kernels are launched: as `compile --target` makes it, all processors at once.

Triton compiles a kernel when it is first launched, one after another: a network's hundred take minutes, and a query's clock runs; and
finding one again in Triton's cache takes it some 20 ms in every process. So what runs is what an artifact would hold: cubins, kept in the
same cache, loaded as they are. What cannot be compiled is left to its launch, which says why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel, MachineCode
from polytriton.kernels.build import Failed, compile_each
from polytriton.knobs import knobs, tell
from polytriton.workers.processors import processors

MOST = 16  # processes; each holds a compiler
TOLD = 10.0  # seconds between two lines of progress


def compile_ahead(kernels: Sequence[Kernel], target: str, seconds: float = math.inf) -> dict[str, MachineCode]:
    """By name, the code of those that are kept or could be compiled in time."""
    folder, bar = knobs().cubins, _Progress(target)
    try:
        with _alone(folder) if folder is not None else nullcontext():
            jobs = min(max(1, processors() - 1), MOST)
            made = compile_each(kernels, target, cache=folder, jobs=jobs, progress=bar.tell, begin=bar.begin, seconds=seconds)
    except (KernelError, OSError) as error:
        tell(f"kernels are compiled as they are first launched: {_first_line(str(error))}")
        return {}
    for failed in (m for m in made if isinstance(m, Failed)):
        tell(f"{failed.kernel.name} is not compiled ahead: {_first_line(failed.reason)}")
    bar.end()
    return {m.kernel.name: MachineCode(m.cubin, m.report.launch) for m in made if not isinstance(m, Failed)}


class _Progress:
    """A line when compiling begins, now and then, and at the end; none where all is there."""

    def __init__(self, target: str) -> None:
        self.target, self.began = target, 0.0  # 0: nothing is to be compiled
        self.told = 0.0

    def begin(self, missing: int) -> None:
        self.began = self.told = time.monotonic()
        tell(f"compiling {missing} kernels for {self.target}, once; they are kept")

    def tell(self, done: int, total: int, name: str) -> None:
        if self.began and time.monotonic() - self.told > TOLD:
            self.told = time.monotonic()
            tell(f"kernels for {self.target}: {done}/{total}")

    def end(self) -> None:
        if self.began:
            tell(f"compiled kernels for {self.target} in {time.monotonic() - self.began:.1f} s")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: others wait, and then find what they want."""
    import fcntl  # where there is none, there is no Triton either

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "it gives no reason")
