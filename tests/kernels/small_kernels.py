"""Small kernels to compile, each a library of one function in a module of its own, which workers import too."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel
from polytriton.kernels import build

HEAD = "import triton\nimport triton.language as tl\n\n\n"
POINTERS = ("a_ptr", "b_ptr", "out_ptr")

DOT = """@triton.jit
def dot(a_ptr, b_ptr, out_ptr, T: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.arange(0, 64)
    k = tl.arange(0, 32)
    acc = tl.full((64, 64), 0.0, T)
    for i in range(0, 256, 32):
        a = tl.load(a_ptr + m[:, None] * 256 + (i + k)[None, :])
        b = tl.load(b_ptr + (i + k)[:, None] * 64 + m[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=T)
    tl.store(out_ptr + m[:, None] * 64 + m[None, :], acc)
"""

# a tile of 256 numbers a thread, needed twice, where a thread has 255 registers; twice as many take ptxas a minute
SPILL = """@triton.jit
def spill(a_ptr, out_ptr):
    at = tl.arange(0, 64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    a = tl.load(a_ptr + at)
    s = tl.sum(a, 1)
    tl.store(out_ptr + at, a / s[:, None])
"""

COPY = """@triton.jit
def copy(a_ptr, out_ptr, C: tl.constexpr):
    at = tl.arange(0, 128)
    tl.store(out_ptr + at, tl.load(a_ptr + at) + C)
"""


def _missing() -> str:
    try:
        build.triton_version()
        return ""
    except KernelError as error:
        return error.message


compiles = pytest.mark.skipif(bool(_missing()), reason=_missing())


@cache
def library() -> Path:
    """A folder of modules, each a library of one function, which workers import too."""
    folder = tempfile.mkdtemp(prefix="polytriton-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, folder)
    return Path(folder)


def family(name: str, text: str) -> str:
    """Of a function that stands in a module of its own."""
    module = f"one_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    (library() / f"{module}.py").write_text(HEAD + text)
    return f"{module}.{name}"


def dot(name: str, dtype: str, precision: str = "ieee", instruction: str = "") -> Kernel:
    constants = (("PRECISION", precision), ("T", {"fp64": "tl.float64", "fp32": "tl.float32"}[dtype]))
    return Kernel(name, family("dot", DOT), constants, POINTERS, (f"*{dtype}",) * 3, instruction=instruction)


def spilling(name: str = "spill") -> Kernel:
    return Kernel(name, family("spill", SPILL), (), ("a_ptr", "out_ptr"), ("*fp32", "*fp32"), warps=1)


def copy(name: str = "copy", before: str = "", c: int = 1, text: str = COPY) -> Kernel:
    """A small kernel; `before` is run by whoever imports its module: the worker, at the moment of compiling."""
    made = family("copy", (f"{before}\n\n\n" if before else "") + text)
    return Kernel(name, made, (("C", c),), ("a_ptr", "out_ptr"), ("*fp32", "*fp32"), warps=1)


def each_choice(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The first of each family and choice of pointers."""
    found = dict[object, Kernel]()
    for kernel in kernels:
        found.setdefault((kernel.family, kernel.parameters, kernel.types), kernel)
    return list(found.values())
