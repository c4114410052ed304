"""Typed settings from the environment; no other file reads it.

POLYTRITON_DEBUG, cumulative: 1 summary, cache hits and traces of errors, 2 time per pass, 3 IR after each pass,
4 kernel source, 5 cross-check against the interpreter. POLYTRITON_CACHE: where compiled networks are kept; `off` keeps none.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polytriton.errors import UsageError

_LOG = logging.getLogger(__name__)
SUMMARY, TIMES, IR, SOURCE, CROSS_CHECK = range(1, 6)


@dataclass(frozen=True)
class Knobs:
    """`cache` None: nothing is kept between runs."""

    debug: int = 0
    cache: Path | None = None

    @property
    def cubins(self) -> Path | None:
        """Where machine code of single kernels is kept."""
        return None if self.cache is None else self.cache / "cubins"


_scoped: ContextVar[Knobs | None] = ContextVar("polytriton_knobs", default=None)


def knobs() -> Knobs:
    """The settings in force: the innermost scope's, else the environment's."""
    return _scoped.get() or read(os.environ)


@contextmanager
def scope(**changes: Any) -> Iterator[Knobs]:
    """Other settings inside a `with`, for this thread or task alone."""
    changed = replace(knobs(), **changes)
    token = _scoped.set(changed)
    try:
        yield changed
    finally:
        _scoped.reset(token)


def read(env: Mapping[str, str]) -> Knobs:
    text = env.get("POLYTRITON_DEBUG", "").strip() or "0"
    if text not in ("0", "1", "2", "3", "4", "5"):
        raise UsageError(f"POLYTRITON_DEBUG={text[:20]!r} is no debug level", "set a number from 0 (quiet) to 5, or unset it")
    return Knobs(int(text), _cache(env))


def _cache(env: Mapping[str, str]) -> Path | None:
    named = env.get("POLYTRITON_CACHE", "").strip()
    if named.lower() in ("off", "0", "no", "none"):
        return None
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = os.path.join(env["HOME"], "Library", "Caches") if env.get("HOME") else ""
    else:
        base = env.get("XDG_CACHE_HOME", "") or (os.path.join(env["HOME"], ".cache") if env.get("HOME") else "")
    return Path(base, "polytriton") if os.path.isabs(base) else None  # a relative XDG_CACHE_HOME is to be ignored


def is_own(folder: Path) -> bool:
    """Whether it is a folder of this user's that nobody else may write to; systems without such modes are believed."""
    try:
        info = os.lstat(folder)
    except (OSError, ValueError):
        return False
    if not stat.S_ISDIR(info.st_mode):
        return False
    return os.name != "posix" or (info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def note(level: int, message: str) -> None:
    """A diagnostic for the log, and, from its debug level on, on stderr; sources are for stderr alone."""
    if level <= TIMES:
        _LOG.debug("%s", message)
    if knobs().debug >= level:
        print(f"polytriton: {message}", file=sys.stderr)


_watchers: list[Callable[[str], None]] = []


def watch(tell: Callable[[str], None]) -> None:
    """Whom this process tells of work that is done once a machine: the command line's own, which people wait for."""
    _watchers[:] = [tell]


def tell(message: str) -> None:
    _LOG.info("%s", message)
    for one in _watchers:
        one(message)


ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # of the two OpenMP libraries that torch may come with


def wait_asleep() -> None:
    """Threads without work are to sleep. By default they spin for a while, and beside another program, which needs their processor,
    a query then took up to ten times as long. The libraries read this when torch is loaded; what the user has set stays.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 cycles, its least; 2^26 otherwise, a tenth of a short command
    if "torch" not in sys.modules and not any(name in os.environ for name in ("GOMP_SPINCOUNT", *ASLEEP)):
        os.environ.update(ASLEEP)


def interpret_triton(on: bool) -> None:
    """Sets the mode in which Triton, not imported yet, will run kernels: it reads the environment when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1" if on else "0"


def triton_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
