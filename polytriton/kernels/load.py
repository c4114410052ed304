"""Kernels become callable: the library's function with the constants given, and what compiling filed."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from polytriton.errors import UnsupportedModel, UsageError
from polytriton.ir.launches import Constant, Kernel, MachineCode
from polytriton.kernels.catalogue import place
from polytriton.kernels.closure import read_function
from polytriton.kernels.spec import OLDEST
from polytriton.knobs import interpret_triton, triton_interpreted

_MAKING = Lock()  # every device has a thread: none may make what another is making


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
        import triton
    except ImportError as error:
        raise UnsupportedModel("this device needs Triton, which is not installed", "pip install triton, or use --device cpu") from error
    if too_old(triton.__version__):
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedModel(
            f"this device needs Triton {oldest} or newer, and {triton.__version__} is installed",
            f"pip install a torch that comes with Triton {oldest} or newer, or use --device cpu",
        )


def too_old(release: str) -> bool:
    """A release that says no number is given a try."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) < OLDEST


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


class GivenConstants:
    """A family's function under a kernel's constants, which Triton compiles or interprets; pointers that are not read are None."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.run = kernel, _named_function(kernel)
        self.pointers, self.constants = read_function(*place(kernel.family)).pointers, _constants(kernel)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        run = self.run[grid]

        def launch(*tensors: Any, **options: Any) -> object:
            return run(*self._arguments(tensors), **options)

        return launch

    def compile(self, *tensors: Any, **options: Any) -> Any:
        """What a launch on such tensors would run, compiled and not run."""
        return self.run.warmup(*self._arguments(tensors), grid=(1,), **options)

    def _arguments(self, tensors: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.kernel.parameters, tensors, strict=True))
        return [*(_map_nested(p, given.get) for p in self.pointers), *self.constants]


def function(kernel: Kernel) -> GivenConstants:
    """The kernel as Triton's runtime launches it: function(kernel)[grid](tensors...)."""
    with _MAKING:
        return _given(kernel)


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
    return CompiledKernel(_launcher_source(kernel), files, hashlib.sha256(code.cubin).hexdigest())


def _launcher_source(kernel: Kernel) -> Any:
    """What Triton's launcher wants to know of a compiled kernel: the types of the tensors that it is launched with."""
    from triton.compiler import ASTSource

    return ASTSource(_named_function(kernel), signature=dict(zip(kernel.parameters, kernel.types, strict=True)))


def triton_source(kernel: Kernel) -> Any:
    """The kernel as Triton's compiler takes it. ValueError where the function has no such parameters."""
    from triton.compiler import ASTSource

    types, taken = dict(zip(kernel.parameters, kernel.types, strict=True)), read_function(*place(kernel.family))
    if [p for p in taken.flat if p in types] != list(types):
        raise ValueError(f"{kernel.family} takes ({', '.join(taken.flat)}), not ({', '.join(types)})")
    made, constants, first = _named_function(kernel), _constants(kernel), len(taken.pointers)
    kinds = [*(_map_nested(p, lambda name: types.get(name, "constexpr")) for p in taken.pointers), *["constexpr"] * len(constants)]
    places: dict[str, tuple[int, ...]] = {}
    for k, pointer in enumerate(taken.pointers):
        places |= {pointer: (k,)} if isinstance(pointer, str) else {name: (k, j) for j, name in enumerate(pointer)}
    return ASTSource(
        made,
        signature=dict(zip(made.arg_names, kinds, strict=True)),
        constexprs={at: None for p, at in places.items() if p not in types} | {(k,): v for k, v in enumerate(constants, first)},
        attrs={at: [["tt.divisibility", 16]] for p, at in places.items() if p in types},
    )


def version() -> str:
    """Of the Triton that launches; its launcher knows what its own compiler wrote."""
    import triton

    return str(triton.__version__)


_given = cache(GivenConstants)


def _value(constant: Constant) -> Any:
    """A constant as Triton knows it."""
    import triton.language as tl

    return getattr(tl, constant.removeprefix("tl.")) if isinstance(constant, str) and constant.startswith("tl.") else constant


def _constants(kernel: Kernel) -> list[Any]:
    """What the family's function takes behind its pointers. ValueError where its constants are others."""
    taken, told = read_function(*place(kernel.family)), {name: _value(constant) for name, constant in kernel.constants}
    if told.keys() != set(taken.constants):
        raise ValueError(f"{kernel.family} is told ({', '.join(taken.constants)}), not ({', '.join(told)})")
    if not taken.record:
        return [told[name] for name in taken.constants]
    return [getattr(importlib.import_module(place(kernel.family)[0]), taken.record)(**{name: _field(v) for name, v in told.items()})]


def _field(value: Any) -> Any:
    """A field of a record. Triton before 3.7 hands a field on as it is, and takes a name for no constant unless it says that it is one."""
    if not isinstance(value, str) or triton_interpreted():
        return value
    import triton.language as tl

    return tl.constexpr(value)


def _map_nested(pointer: str | tuple[str, ...], given: Callable[[str], Any]) -> Any:
    """What is given for a pointer, or for each of a tuple."""
    return given(pointer) if isinstance(pointer, str) else tuple(map(given, pointer))


def library_function(family: str) -> Any:
    """As it stands in its module."""
    module, name = place(family)
    return getattr(importlib.import_module(module), name)


@cache
def _named_function(kernel: Kernel) -> Any:
    """The family's function; compiled, it is called as the kernel is, so that profiles tell kernels of a family apart."""
    found = library_function(kernel.family)
    if triton_interpreted():
        return found
    from triton.runtime.jit import JITFunction

    return JITFunction(found.fn, repr=lambda _: kernel.name)
