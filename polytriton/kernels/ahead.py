"""Compiles kernels for the GPU that is here before they are first launched, all processors at once.

Triton compiles a kernel when it is first launched, one after another: a network's hundred take minutes, and a query's clock runs. Here
processes of their own compile them as a launch would, into Triton's own cache, where the launch finds them. What cannot be compiled is
left to its launch, which says why. Beside Triton's entries a mark for each kernel tells later runs that it is there, and goes with them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from polytriton.ir.launches import Kernel
from polytriton.kernels.identity import identity, tools
from polytriton.kernels.load import function
from polytriton.kernels.spec import FUSION, room
from polytriton.knobs import tell
from polytriton.workers.pool import Missing, Pool, Taken
from polytriton.workers.process import Process
from polytriton.workers.processors import processors

FEW = 8  # kernels that are not worth starting processes for
MOST = 16  # processes; each holds a context on the GPU, some hundred MiB
TOLD = 10.0  # seconds between two lines of progress
FOLDER = "polytriton"  # of marks, in Triton's cache


class AheadJob(NamedTuple):
    """`blocks`: for how many an SM the compiler is to make room, 0 for its own choice."""

    kernel: Kernel
    device: str
    blocks: int

    def encode(self) -> bytes:
        """By the standard library: msgspec is not on every machine that has a GPU."""
        return json.dumps([*asdict(self.kernel).values(), self.device, self.blocks]).encode()

    @staticmethod
    def decode(data: bytes) -> AheadJob:
        name, family, constants, parameters, types, *rest, device, blocks = json.loads(data)
        return AheadJob(Kernel(name, family, tuple(map(tuple, constants)), tuple(parameters), tuple(types), *rest), device, blocks)


class _Marked(NamedTuple):
    job: AheadJob
    mark: Path


class _Warmer(Process):
    """A process that compiles one kernel after another."""

    def __init__(self) -> None:
        super().__init__(__name__)

    def ask(self, wanted: _Marked) -> None:
        self.exchange(wanted.job.encode())


def handler() -> Callable[[bytes], bytes]:
    def answer(data: bytes) -> bytes:
        _compile(AheadJob.decode(data))
        return b""

    return answer


def _compile(job: AheadJob) -> None:
    """As a launch would on tensors that begin at multiples of 16 bytes; and what launches it, which a C compiler makes."""
    kinds = {"*fp64": torch.float64, "*fp32": torch.float32, "*i64": torch.int64, "*i8": torch.int8}
    with torch.cuda.device(job.device):
        given = [torch.empty(16, dtype=kinds[kind], device=job.device) for kind in job.kernel.types]
        made = function(job.kernel).compile(*given, **job.kernel.options, **FUSION, **room(job.blocks))
        _ = made.run


def compile_ahead(kernels: Sequence[Kernel], device: torch.device, blocks: Mapping[str, int], seconds: float = math.inf) -> int:
    """Compiles those that Triton's cache lacks, until time is up; how many are there now that were not. `blocks`: by kernel, where the
    compiler does not choose.
    """
    from triton import knobs

    target = "cuda:{}{}".format(*torch.cuda.get_device_capability(device))
    folder = Path(knobs.cache.dir, FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            jobs = [AheadJob(k, str(device), blocks.get(k.name, 0)) for k in kernels]
            missing = [m for job in jobs if not (m := _Marked(job, folder / _mark(job, target))).mark.exists()]
            return _share_out(missing, target, time.monotonic() + seconds) if len(missing) > FEW else 0
    except OSError as error:
        tell(f"kernels are compiled as they are first launched, in every run anew: {folder}: {error.strerror or error}")
        return 0


def _share_out(wanted: Sequence[_Marked], target: str, end: float) -> int:
    jobs = min(len(wanted), max(1, processors() - 1), MOST)
    tell(f"compiling {len(wanted)} kernels for {target}, once, {jobs} at a time; Triton keeps them")
    begin = told = time.monotonic()
    pool: Pool[_Marked, None] = Pool([_Warmer() for _ in range(jobs)])
    for one in wanted:
        pool.submit(one)
    pool.begin()
    done, left = 0, len(wanted)
    try:
        while left:
            event = pool.hear(end - time.monotonic())
            if event is None:
                tell(f"compiling ahead stopped: the time is up, {left} kernels are left")
                return done
            if isinstance(event, Missing):
                tell(f"compiling ahead goes on with {event.left} processes: {_first_line(event.why)}")
                if not event.left:
                    return done
            elif not isinstance(event, Taken):
                left -= 1
                if event.error is not None:
                    tell(f"{event.job.job.kernel.name} cannot be compiled ahead: {_first_line(event.error)}")
                    continue
                done += 1
                with suppress(OSError):
                    event.job.mark.touch()
            if time.monotonic() - told > TOLD:
                told = time.monotonic()
                tell(f"kernels for {target}: {len(wanted) - left}/{len(wanted)}")
    finally:
        pool.close()
    tell(f"compiled {done} kernels in {time.monotonic() - begin:.1f} s")
    return done


def _mark(job: AheadJob, target: str) -> str:
    """Its name tells everything that decides what Triton's cache is asked for."""
    import triton

    asked = identity(job.kernel, target, str(triton.__version__), tools(os.environ)) + f"{job.blocks} {sys.version}".encode()
    return hashlib.sha256(asked).hexdigest()[:40]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: others wait, and then find what they want."""
    import fcntl  # where there is none, there is no Triton either

    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
