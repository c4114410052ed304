"""Compiles a network's kernels on all cores before it is timed: Triton's own cache then has them when they are launched."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from bench.core.table import first_line, say
from bench.gpu.setting import Setting
from polytriton.ir.launches import Kernel
from polytriton.kernels.load import function
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import FUSION
from polytriton.passes.pipeline import Compiled
from polytriton.runtime.engine import Engine

FEW = 8  # kernels that are not worth starting processes for


def _compile(kernel: Kernel) -> str:
    """As a launch would, where every tensor begins at a multiple of 16 bytes; and what launches it, which a C compiler makes.

    "" or what went wrong.
    """
    import torch

    kinds = {"*fp64": torch.float64, "*fp32": torch.float32, "*i64": torch.int64, "*i8": torch.int8}
    try:
        given = [torch.empty(16, dtype=kinds[kind], device="cuda") for kind in kernel.types]
        made = function(kernel).warmup(*given, grid=(1,), **kernel.options, **FUSION)
        _ = made.run
    except Exception as error:  # whoever launches it will hear about it
        return first_line(error)
    return ""


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
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        for done in as_completed([pool.submit(_compile, k) for k in kernels], timeout=max(1.0, setting.left)):
            if done.result():
                say(f"   cannot compile ahead: {done.result()}")
        pool.shutdown()
    except Exception as error:
        say(f"   compiling ahead stopped: {first_line(error)}")
        pool.shutdown(wait=False, cancel_futures=True)
