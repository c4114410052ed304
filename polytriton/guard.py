"""Every public function computes in the arithmetic of a fresh process, whatever its caller has set, and puts the caller's back.

Two sets of settings reach a bound. The processor's are a thread's own: rounding to nearest, subnormal numbers kept, no traps. Those of
numpy join them as soon as it is loaded, and torch's as soon as there is who uses it (runtime/settings.py): nothing here loads them.
`guard` wraps a function, a generator, or every public member of a class. Whoever comes in again pays a few additions.
"""

from __future__ import annotations

import ctypes
import inspect
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from polytriton.errors import Spoiled

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=type)

# as bits: arithmetic that is being tried does not make them
FACTOR, *TRIED = struct.unpack("<5d", bytes.fromhex("010000000000f03f 0000004000000000 000000000000fc3f 010000000000f03f 000000000000fcbf"))
RIGHT = bytes.fromhex("0000004000000000 020000000000fc3f 020000000000f03f 020000000000fcbf")  # a subnormal number, 1.75, 1 + 2^-52, -1.75
OWN = ("__init__", "_repr_html_")  # of a class, besides its public members
REMEDY = "call polytriton from a thread or a process of its own, before other libraries change how the processor rounds"


class _Here(threading.local):
    """What this thread has entered: how often, and which libraries' settings are among it."""

    depth = 0
    libraries = frozenset[str]()


_HERE = _Here()
_SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {"numpy": lambda: sys.modules["numpy"].errstate(all="ignore")}


def hold_too(library: str, settings: Callable[[], AbstractContextManager[object]]) -> None:
    """Every guarded function is to hold these settings of the library's too, from now on, once it is loaded."""
    _SETTINGS[library] = settings


def _exact() -> bool:
    """Whether this thread rounds to nearest and keeps subnormal numbers; as bits, since flushed numbers are equal to zero."""
    a, b, c, d = TRIED
    return struct.pack("<4d", a * FACTOR, b * FACTOR, c * FACTOR, d * FACTOR) == RIGHT


@cache
def _environment() -> tuple[Any, Any, Any] | None:
    """The C library's fegetenv, fesetenv and default environment; None where they are not to be had."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.PyDLL(None)  # a call keeps the interpreter's lock: it is over sooner than the lock is handed on
    try:
        return library.fegetenv, library.fesetenv, ctypes.c_void_p(-1)
    except AttributeError:
        return None


@contextmanager
def arithmetic() -> Iterator[None]:
    """This thread rounds to nearest, keeps subnormal numbers and traps nothing; refused where that cannot be had."""
    found = _environment()
    if found is None:
        with _without_environment():
            yield
        return
    get, put, default = found
    old = ctypes.create_string_buffer(512)
    get(old)
    try:
        put(default)
        _need("this thread rounds in another direction than to nearest, or flushes subnormal numbers to zero, for good")
        yield
    finally:
        put(old)


@contextmanager
def _without_environment() -> Iterator[None]:
    """The same where the C library has no environments: only flushing can be switched, by torch where that is loaded."""
    torch = None if _exact() else sys.modules.get("torch")
    if torch is not None:
        torch.set_flush_denormal(False)
    try:
        _need("this thread rounds in another direction than to nearest, or flushes subnormal numbers to zero")
        yield
    finally:
        if torch is not None:
            torch.set_flush_denormal(True)


def _need(message: str) -> None:
    if not _exact():
        raise Spoiled(f"{message}: no bound could be trusted", REMEDY)


def _libraries(stack: ExitStack, entered: frozenset[str]) -> None:
    """The libraries' settings, where they are loaded by now and not held by this thread yet."""
    for name, settings in [*_SETTINGS.items()]:
        if name not in entered and name in sys.modules:
            stack.enter_context(settings())
            _HERE.libraries |= {name}


def _is_nested() -> bool:
    """Whether this thread is inside already, with every library that is loaded, and nobody has changed its arithmetic since."""
    if not _HERE.depth or not _exact():
        return False
    return len(_HERE.libraries) == len(_SETTINGS) or not any(name in sys.modules for name in _SETTINGS.keys() - _HERE.libraries)


@contextmanager
def plain() -> Iterator[None]:
    """The arithmetic and the settings of a fresh process, for this thread and whom it starts."""
    if _is_nested():
        yield
        return
    before = _HERE.libraries
    with arithmetic(), ExitStack() as stack:
        _HERE.depth += 1
        try:
            _libraries(stack, before)
            yield
            _need("a function that was called meanwhile has changed how this thread rounds")
        finally:
            _HERE.depth -= 1
            _HERE.libraries = before


def guard(function: Callable[P, R]) -> Callable[P, R]:
    """The function in plain arithmetic. A generator gets it for each of its steps: between them its caller's own are in force."""
    if inspect.isgeneratorfunction(function):
        wrapper: Any = _stepwise(function)
    else:

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if _is_nested():
                return function(*args, **kwargs)
            with plain():
                return function(*args, **kwargs)

    wrapper.guarded = True
    return cast("Callable[P, R]", wrapper)


def _stepwise(function: Callable[P, Any]) -> Callable[P, Iterator[Any]]:
    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        steps = function(*args, **kwargs)
        try:
            while True:
                with plain():
                    try:
                        step = next(steps)
                    except StopIteration:
                        return
                yield step
        finally:
            with plain():
                steps.close()

    return wrapper


def guard_class(kind: K) -> K:
    """Every public function, property and static method of the class, and what makes and shows it."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in OWN:
            continue
        if isinstance(member, staticmethod | classmethod):
            setattr(kind, name, type(member)(guard(member.__func__)))
        elif isinstance(member, property):
            setattr(kind, name, property(guard(member.fget) if member.fget else None, member.fset, member.fdel, member.__doc__))
        elif inspect.isfunction(member):
            setattr(kind, name, guard(member))
    return kind
