"""Loops compiled ahead: Numba makes their machine code once a machine, every later process loads it without Numba.

Importing Numba and having it find its own compiled functions again costs more than a small query; loading an object file costs
a hundredth. A loop says its arguments' types as a form, so that all are compiled together, before any query is timed. The object
file lies beside this module, or in the cache folder where nobody may write there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from polytriton import knobs

Tell = Callable[[str], None]
Text = Callable[[str, str], "tuple[str, str, str]"]
AVAILABLE = find_spec("numba") is not None and find_spec("llvmlite") is not None
FAILED = -(1 << 63)  # what a compiled loop returns for arrays of other types or layouts
DTYPES = tuple(np.dtype(t) for t in ("float32", "float64", "int64", "bool"))  # in the order of a call's first slots
COEFFICIENTS = ("float32", "float64")
KEPT = 40  # object files beside one another: of other releases, or of other processors that share the folder
_LOCK = RLock()
_known: list[Loop] = []
_held: list[Any] = []  # what owns the machine code


class Loop:
    """One loop. `form` names the type of each argument: T an array of coefficients, F, I, D and B one of float32, int64, float64 and
    bool, a digit its axes where they are not one; i, d and b are scalars. Arrays are C-contiguous; for others Numba compiles a version of
    its own.
    `text` writes the machine's code where Numba's would be slow: given a name and a version, LLVM's text, what is to be called and its
    parameters;
    `parts` are the modules beside the loop's own that it takes code from; `beside`, given a name, write LLVM's text of the routines that
    it calls (outside.py).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        form: str,
        flags: set[str],
        text: Text | None = None,
        parts: tuple[str, ...] = (),
        beside: Sequence[Callable[[str], str]] = (),
    ) -> None:
        self.function, self.form, self.flags, self.text, self.parts, self.beside = function, form.split(), flags, text, parts, beside
        self.name = f"{function.__module__}.{function.__qualname__}".replace(".", "_")
        self._arrays = tuple(k for k, kind in enumerate(self.form) if kind[0].isupper())
        self._typed = next((k for k, kind in enumerate(self.form) if kind[0] == "T"), None)
        self._slots = struct.Struct("4q" + "".join("d" if kind == "d" else "q" for kind in self.form))
        self._found: dict[Any, Any] | None = None
        self._slow: Any = None
        _known.append(self)

    @property
    def versions(self) -> tuple[str, ...]:
        """The types of coefficients it is compiled for."""
        return COEFFICIENTS if self._typed is not None else ("",)

    def __call__(self, *args: Any) -> Any:
        if self._found is None:
            prepare()
            assert self._found is not None
        compiled = self._found.get(None if self._typed is None else args[self._typed].dtype)
        if compiled is not None:
            given = list(args)
            for k in self._arrays:
                given[k] = id(args[k])
            made = compiled(self._slots.pack(*_IDS, *given))
            if made != FAILED:
                return made
        return self.slow()(*args)

    def slow(self) -> Any:
        """Numba's own version, for arguments of any type and layout."""
        if self._slow is None:
            import numba

            from polytriton.runtime.cpu.loops_build import known_to_numba

            how: dict[str, Any] = {"nogil": True, "fastmath": self.flags, "error_model": "numpy"}
            function = known_to_numba(self.function, self.flags, linked=False)
            try:
                alone = self.text is not None or not self.parts  # Numba's cache looks at the loop's own module
                self._slow = numba.njit(cache=alone, **how)(function)
            except RuntimeError:  # no writable place for the cache: compile anew in every process
                self._slow = numba.njit(**how)(function)
        return self._slow


_IDS = tuple(map(id, DTYPES))


def loop(
    form: str,
    flags: set[str],
    text: Text | None = None,
    parts: tuple[str, ...] = (),
    beside: Sequence[Callable[[str], str]] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """A loop of this form; the function itself where Numba is not installed."""

    def wrap(function: Callable[..., Any]) -> Any:
        return Loop(function, form, flags, text, parts, beside) if AVAILABLE else function

    return wrap


def fields(axes: int) -> list[tuple[str, str]]:
    """An array among parameters, as Numba passes it."""
    named = [("ptr", "owner"), ("ptr", "parent"), ("i64", "items"), ("i64", "size"), ("ptr", "data")]
    return named + [("i64", f"{what}{k}") for what in ("shape", "stride") for k in range(axes)]


def prepare(tell: Tell = knobs.tell) -> float:
    """Loads every loop; where this machine has none of this release yet, compiles them, and says so. Returns the seconds that took."""
    if not AVAILABLE:
        return 0.0
    from polytriton.runtime.cpu import (  # noqa: F401  those that are to be known
        affine_cells,
        ascent_loops,
        blocks,
        box_convs,
        cells,
        convs,
        fused,
        play_loop,
        recipe_loop,
        scalars,
        sums,
        vectors,
    )

    with _LOCK:
        left = [one for one in _known if one._found is None]
        if not left:
            return 0.0
        begin, compiled = time.monotonic(), list[str]()

        def report(message: str) -> None:
            compiled.append(message)
            tell(message)

        try:
            found = _addresses(report)
        except Exception as error:  # another release of Numba or LLVM: its own dispatcher serves, slower to start
            knobs.note(knobs.SUMMARY, f"loops are compiled when first used: {error}")
            found = {}
        for one in left:
            one._found = {
                None if not version else np.dtype(version): found[f"{one.name}_{version}"]
                for version in one.versions
                if f"{one.name}_{version}" in found
            }
        return time.monotonic() - begin if compiled else 0.0


@dataclass
class Inside:
    """How many compiled calls there were, and the seconds they took."""

    calls: int = 0
    seconds: float = 0.0


@contextmanager
def watch_calls() -> Iterator[Inside]:
    """Counts and times every compiled call of this process until the end, which itself takes a microsecond a call."""
    prepare()
    inside, kept = Inside(), [(one, one._found) for one in _known]

    def watch(compiled: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def call(slots: bytes) -> int:
            begin = time.perf_counter()
            made = compiled(slots)
            inside.seconds += time.perf_counter() - begin
            inside.calls += 1
            return made

        return call

    try:
        for one, found in kept:
            one._found = None if found is None else {version: watch(compiled) for version, compiled in found.items()}
        yield inside
    finally:
        for one, found in kept:
            one._found = found


def _addresses(tell: Tell) -> dict[str, Any]:
    """Every version's machine code as a function of one call's slots."""
    import llvmlite.binding as llvm

    for begin in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
        with suppress(RuntimeError):  # newer releases begin by themselves
            getattr(llvm, begin)()
    if not _layout_is_known():
        raise RuntimeError("this NumPy keeps its arrays another way")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine(llvm))
    for source in dict.fromkeys(one.function.__module__ for one in _known):
        engine.add_object_file(llvm.ObjectFileRef.from_data(_object(llvm, source, tell)))
    engine.finalize_object()
    _held.append(engine)
    of = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
    names = [f"{one.name}_{version}" for one in _known for version in one.versions]
    return {name: of(place) for name in names if (place := engine.get_function_address(name))}


def _object(llvm: Any, source: str, tell: Tell) -> bytes:
    """The machine code of a module's loops, made where there is none of it."""
    key = _key(llvm, source)
    data = _read(key)
    if data is None:
        from polytriton.runtime.cpu.loops_build import build

        def report(done: int, total: int) -> None:
            tell(f"compiling loops of {source.rpartition('.')[2]} for this machine, once: {done}/{total}")

        data = build([one for one in _known if one.function.__module__ == source], machine(llvm), report)
        _keep(key, data)
    return data


def machine(llvm: Any) -> Any:
    """This processor, as Numba asks for it."""
    target = llvm.Target.from_default_triple()
    how = {"opt": 3, "reloc": "default", "codemodel": "jitdefault", "jit": True}
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features(), **how)


def features() -> str:
    """What this processor has, as LLVM lists it."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_features().flatten())


def _layout_is_known() -> bool:
    """Whether arrays lie in memory as NumPy's C interface has had them since 1.0: compiled loops read their places and sizes there."""
    probe = np.zeros((3, 5), dtype=np.float32)
    raw = (ctypes.c_int64 * 7).from_address(id(probe) + object.__basicsize__)
    flags = probe.flags
    shape = (ctypes.c_int64 * 2).from_address(raw[2])
    wanted = 1 * flags.c_contiguous + 0x100 * flags.aligned
    return (
        raw[0] == probe.ctypes.data and raw[1] & 0xFFFFFFFF == 2 and tuple(shape) == (3, 5)
        and raw[5] == id(DTYPES[0]) and raw[6] & 0x101 == wanted == 0x101
    )  # fmt: skip


# ---- the object file --------------------------------------------------------------------------------------------


def _key(llvm: Any, source: str) -> str:
    """What the machine code depends on: the loops' source, their compiler, the processor."""
    digest = hashlib.sha256()
    room, spec = Path(__file__).parent, find_spec("numba")
    assert spec is not None and spec.origin is not None
    parts = sorted({part for one in _known if one.function.__module__ == source for part in one.parts})
    own = [room / f"{name}.py" for name in (source.rpartition(".")[2], *parts, "loops", "loops_build")]
    for path in (*own, room.parents[1] / "rounding.py", Path(spec.origin).parent / "_version.py"):  # loops hold its constants as numbers
        digest.update(path.read_bytes())
    here = llvm.llvm_version_info, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), object.__basicsize__
    digest.update(repr(here).encode())
    return digest.hexdigest()[:24]


def _folders() -> Sequence[Path]:
    kept = knobs.knobs().cache
    return [Path(__file__).parent / "__pycache__", *([] if kept is None else [kept])]


def _read(key: str) -> bytes | None:
    for folder in _folders():
        with suppress(OSError):
            data = (folder / f"loops-{key}.o").read_bytes()
            if hashlib.sha256(data[32:]).digest() == data[:32]:
                return data[32:]
    return None


def _keep(key: str, data: bytes) -> None:
    """In the first folder that can be written; nowhere is no error."""
    for folder in _folders():
        made = folder / f".loops-{key}.{os.getpid()}-{secrets.token_hex(4)}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.write_bytes(hashlib.sha256(data).digest() + data)
            os.replace(made, folder / f"loops-{key}.o")
            for old in sorted(folder.glob("loops-*.o"), key=lambda p: -p.stat().st_mtime)[KEPT:]:
                old.unlink()
            return
        except OSError as error:
            knobs.note(knobs.SUMMARY, f"compiled loops are not kept in {folder}: {error.strerror or error}")
            with suppress(OSError):
                made.unlink()


if __name__ == "__main__":  # `make` compiles ahead
    from polytriton.runtime.cpu import loops

    loops.prepare(lambda message: print(f"polytriton: {message}", flush=True))
