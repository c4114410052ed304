"""Compiles networks' kernels on all cores before they are timed."""

from __future__ import annotations

from collections.abc import Sequence

from bench.gpu.setting import Setting
from polytriton.ir.launches import Kernel
from polytriton.kernels.stock import Stock
from polytriton.prove.options import capability
from polytriton.runtime.engine import Engine


def warm(engines: Sequence[Engine], setting: Setting) -> int:
    """Lowers every program and compiles what is not in the cache yet, until time is up; how many kernels there are."""
    found = {kernel.name: kernel for engine in engines if engine.kernels is not None for kernel in engine.kernels.kernels()}
    warm_kernels(list(found.values()), setting)
    return len(found)


def warm_kernels(kernels: Sequence[Kernel], setting: Setting) -> None:
    """Whatever cannot be compiled fails where it is launched."""
    if not setting.dry:
        Stock(target=capability("cuda")).compile_ahead(kernels, setting.left)
