"""Emitted kernels become callable: written to a folder and imported, since Triton reads a kernel's source from its file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from polytriton.errors import UnsupportedModel, UsageError
from polytriton.ir.launches import Kernel, MachineCode
from polytriton.knobs import interpret_triton, triton_interpreted

_MAKING = Lock()  # every device has a thread: none may write a file that another is reading


def prepare(interpret: bool) -> None:
    """Imports Triton in the mode asked for. Its own library is decorated on import, so the mode is one for the whole process."""
    if "triton" not in sys.modules:
        interpret_triton(interpret)
    elif triton_interpreted() != interpret:
        have, want = ("for a GPU", "interpreter") if interpret else ("for its interpreter", "GPU")
        raise UsageError(
            f"Triton was imported {have} in this process already",
            f"use the {want} in a process of its own, with TRITON_INTERPRET={int(interpret)} in its environment",
        )
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise UnsupportedModel("this device needs Triton, which is not installed", "pip install triton, or use --device cpu") from error


def makes_room() -> bool:
    """Whether this Triton passes options on to ptxas (spec.room); older ones do not."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "ptx_options" in {f.name for f in fields(CUDAOptions)}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="polytriton-kernels-")


class Launchable(Protocol):
    """What runs a kernel on a grid of programs: itself[grid](tensors..., options...)."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


def function(kernel: Kernel) -> Launchable:
    """The kernel as Triton's runtime launches it: function(kernel)[grid](tensors...)."""
    with _MAKING:
        return _made(kernel)


class LoadedCode:
    """Machine code that was filed, as Triton launches what it has compiled itself: same grid, same tensors, the same bytes.

    It was compiled for tensors that begin at multiples of 16 bytes. Others are left to the kernel itself, which Triton compiles anew.
    """

    def __init__(self, kernel: Kernel, code: MachineCode) -> None:
        self.kernel, self.code = kernel, code
        self._compiled: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        if self._compiled is None:
            with _MAKING:
                self._compiled = self._compiled or _revive(self.kernel, self.code)
        run = self._compiled[(*grid, 1, 1)[:3]]

        def launch(*tensors: Any, **options: Any) -> object:
            if any(t.data_ptr() % 16 for t in tensors):
                return function(self.kernel)[grid](*tensors, **options)
            return run(*tensors)

        return launch


def _revive(kernel: Kernel, code: MachineCode) -> Any:
    """Triton's own compiled kernel, from the files that it would have written."""
    from triton.compiler import CompiledKernel

    stem = Path(_folder().name, f"{kernel.name}_{hashlib.sha256(code.cubin + code.launch.encode()).hexdigest()[:16]}")
    files = {f"{kernel.name}.json": stem.with_suffix(".json"), f"{kernel.name}.cubin": stem.with_suffix(".cubin")}
    stem.with_suffix(".json").write_text(code.launch)
    stem.with_suffix(".cubin").write_bytes(code.cubin)
    return CompiledKernel(triton_source(kernel, _made(kernel)), files, hashlib.sha256(code.cubin).hexdigest())


def triton_source(kernel: Kernel, function: Any) -> Any:
    """The kernel, read as `function`, as Triton's compiler takes it and as its launcher knows it again."""
    from triton.compiler import ASTSource

    return ASTSource(
        function,
        signature=dict(zip(kernel.parameters, kernel.types, strict=True)),
        constexprs={},
        attrs={(k,): [["tt.divisibility", 16]] for k, name in enumerate(kernel.parameters) if name in kernel.divisible},
    )


def version() -> str:
    """Of the Triton that launches; its launcher knows what its own compiler wrote."""
    import triton

    return str(triton.__version__)


@cache
def _made(kernel: Kernel) -> Any:
    digest = hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    path = Path(_folder().name, f"{kernel.name}_{digest}.py")
    path.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location(f"polytriton_emitted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kernel.name)
