"""A loop of a test's own, compiled by itself as all of them are together."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polytriton.runtime.cpu import loops

held: list[object] = []  # what owns the machine code


def link(one: loops.Loop, kind: np.dtype[Any] | None = None) -> loops.Loop:
    """The loop with its machine code, of the version for this type of coefficients; whatever that refuses is an error."""
    import llvmlite.binding as llvm

    from polytriton.runtime.cpu.loops_build import build

    loops._known.remove(one)
    machine = loops.machine(llvm)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(build([one], machine, lambda done, total: None)))
    engine.finalize_object()
    held.append(engine)
    place = engine.get_function_address(f"{one.name}_{'' if kind is None else kind.name}")
    one._found = {kind: ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(place)}
    one._slow = None

    def refuse() -> Any:
        raise AssertionError("the machine code refused its arguments")

    one.slow = refuse  # type: ignore[method-assign]
    return one
