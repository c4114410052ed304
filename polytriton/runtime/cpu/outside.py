"""What a compiled loop may call or read that Numba knows nothing of: numbers at an address, and machine code of text of our own.

Called from Python they do the same, so that a loop that uses them can be run by the interpreter and compared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HELD = 1 << 28  # values that an array made in Python spans at most: none is touched that the loop does not read


@dataclass(frozen=True)
class Addressed:
    """Numbers of a type as they lie in memory: `floats(address, count)` and its like; none at address 0."""

    kind: str

    def __call__(self, address: int, count: int) -> np.ndarray:
        if not address:
            return np.empty(0, self.kind)
        kind = np.dtype(self.kind)
        return np.frombuffer((ctypes.c_char * (min(int(count), HELD) * kind.itemsize)).from_address(int(address)), kind)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Routine:
    """A routine of `arguments` whole numbers under a name: LLVM's text of it is linked to the loop (`Loop.beside`)."""

    name: str
    arguments: int
    same: Callable[..., None]

    def __call__(self, *given: int) -> None:
        self.same(*map(int, given))


floats, doubles, integers = Addressed("float32"), Addressed("float64"), Addressed("int64")
