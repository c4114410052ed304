"""Memory that runs out at the n-th call: of a torch operator, or of the allocator of numpy's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes."
SHORTAGES: dict[str, Callable[[], BaseException]] = {
    "cpu": lambda: RuntimeError(CPU),
    "gpu": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "python": lambda: MemoryError(),
}


class TorchFault(TorchDispatchMode):
    """Every operator may allocate: the `at`-th one fails. `calls` counts them; `at` below 0 never fails."""

    def __init__(self, at: int, make: Callable[[], BaseException]) -> None:
        super().__init__()
        self.calls, self.at, self.make = 0, at, make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise self.make()
        return func(*args, **(kwargs or {}))


# ---- numpy ------------------------------------------------------------------------------------------------------

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
SET_HANDLER = 304  # PyDataMem_SetHandler in numpy's table of C functions


class Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", MALLOC),
        ("calloc", CALLOC),
        ("realloc", REALLOC),
        ("free", FREE),
    ]


class NumpyFault:
    """While `on`, the `at`-th allocation of an array's data finds no memory. Arrays live on: so does this handler, forever."""

    kept: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.calls, self.at, self.on = 0, -1, False
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
        libc.malloc.argtypes, libc.calloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t, ctypes.c_size_t]
        libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

        def grant() -> bool:
            if not self.on:
                return True
            self.calls += 1
            return self.calls - 1 != self.at

        self.handler = Handler(
            b"polytriton test", 1, None,
            MALLOC(lambda ctx, size: libc.malloc(max(size, 1)) if grant() else None),
            CALLOC(lambda ctx, n, size: libc.calloc(max(n, 1), max(size, 1)) if grant() else None),
            REALLOC(lambda ctx, at, size: libc.realloc(at, max(size, 1)) if grant() else None),
            ctypes.cast(libc.getpid, FREE),  # nothing is freed: numpy calls it with an exception pending, which no Python code survives
        )  # fmt: skip
        NumpyFault.kept.append(self.handler)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = capsule(ctypes.addressof(self.handler), b"mem_handler", None)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        core = getattr(np, "_core", None) or np.core
        table = ctypes.cast(pointer(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        self.swap = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])

    @contextmanager
    def armed(self, at: int) -> Iterator[NumpyFault]:
        self.calls, self.at = 0, at
        old = self.swap(self.capsule)
        self.on = True
        try:
            yield self
        finally:
            self.on = False
            self.swap(old)
