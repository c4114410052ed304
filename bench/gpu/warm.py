"""Compiles a network's kernels on all cores before it is timed: Triton's own cache then has them when they are launched."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence

from bench.core.table import first_line, say
from bench.gpu.setting import Setting
from polytriton.ir.launches import Kernel
from polytriton.kernels.load import function
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import FUSION
from polytriton.passes.pipeline import Compiled
from polytriton.runtime.engine import Engine
from polytriton.workers.pool import Missing, Pool, Taken
from polytriton.workers.process import Process

FEW = 8  # kernels that are not worth starting processes for


class Warmer(Process):
    """A process that compiles one kernel after another."""

    def __init__(self) -> None:
        super().__init__(__name__)

    def ask(self, kernel: Kernel) -> None:
        self.exchange(pickle.dumps(kernel))


def handler() -> Callable[[bytes], bytes]:
    return lambda data: _compile(pickle.loads(data))


def _compile(kernel: Kernel) -> bytes:
    """As a launch would, where every tensor begins at a multiple of 16 bytes; and what launches it, which a C compiler makes."""
    import torch

    kinds = {"*fp64": torch.float64, "*fp32": torch.float32, "*i64": torch.int64, "*i8": torch.int8}
    given = [torch.empty(16, dtype=kinds[kind], device="cuda") for kind in kernel.types]
    made = function(kernel).compile(*given, **kernel.options, **FUSION)
    _ = made.run
    return b""


def warm(engines: Sequence[Engine], setting: Setting) -> int:
    """Lowers every program and compiles what is not in the cache yet, until time is up; how many kernels there are."""
    found: dict[str, Kernel] = {}
    for engine in engines:
        assert engine.kernels is not None
        for program in engine.plan:
            engine.kernels.ready(program)
        every = network_kernels(Compiled(engine.net, engine.plan), [engine.kernels.numerics.name])  # the interval pass and tables too
        found |= {kernel.name: kernel for kernel in every} | engine.kernels.emitter.kernels
    compile_ahead(list(found.values()), setting)
    return len(found)


def compile_ahead(kernels: Sequence[Kernel], setting: Setting) -> None:
    """Until time is up; whatever cannot be compiled fails where it is launched."""
    if setting.dry or len(kernels) <= FEW:
        return
    jobs = min(len(kernels), max(1, (os.cpu_count() or 2) - 2), 16)
    pool: Pool[Kernel, None] = Pool([Warmer() for _ in range(jobs)])
    for kernel in kernels:
        pool.submit(kernel)
    pool.begin()
    left = len(kernels)
    try:
        while left:
            event = pool.hear(max(0.0, setting.left))
            if event is None:
                say(f"   compiling ahead stopped: the time is up, {left} kernels are left")
                return
            if isinstance(event, Missing):
                say(f"   compiling ahead goes on with {event.left} processes: {first_line(event.why)}")
                if not event.left:
                    return
            elif not isinstance(event, Taken):
                left -= 1
                if event.error is not None:  # whoever launches it will hear about it
                    say(f"   cannot compile ahead: {first_line(event.error)}")
    finally:
        pool.close()
