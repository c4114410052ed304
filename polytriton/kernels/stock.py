"""Where a run's kernels and launches come from: what compiling filed, else the library, specialised here and now.

An order is all that decides a kernel: the library function, its constants, the arithmetic, warps and stages. The same library answers
the same order with the same text, so an artifact names the orders of its kernels and the library they are of (`library_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from polytriton.ir.launch_text import parse_launches
from polytriton.ir.launches import Filed, Kernel, Launches, MachineCode
from polytriton.ir.plan import Plan, Program
from polytriton.kernels import load
from polytriton.kernels.emit import make_kernel
from polytriton.kernels.load import Launchable
from polytriton.kernels.specialise import Constant
from polytriton.knobs import tell

if TYPE_CHECKING:
    from importlib.abc import Traversable  # by its other name it is of Python 3.11

LIBRARY = ("ir", "kernels", "passes")  # kernels, and what their constants and launches are read from
Given = tuple[tuple[str, Constant], ...]


def order_digest(function: str, constants: Given, numerics: str, warps: int, stages: int) -> str:
    return hashlib.sha256(repr((function, constants, numerics, warps, stages)).encode()).hexdigest()


def program_key(numerics: str, emulate: bool, program: Program) -> str:
    """What a program's launches are filed under: they differ by arithmetic, and in Triton's interpreter by their tiles."""
    return f"{numerics} {'interpreter' if emulate else 'gpu'} {program.kind} %{program.target}"


@cache
def library_digest() -> str:
    """Of everything that decides what an order is answered with, and what a program's launches are."""
    own = hashlib.sha256(resources.files("polytriton").joinpath("rounding.py").read_bytes())
    for name, text in sorted(s for room in LIBRARY for s in _sources(resources.files("polytriton").joinpath(room), f"{room}/")):
        own.update(f"{name}\n{len(text)}\n".encode() + text)
    return own.hexdigest()


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    out = []
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith("_"):
            out += _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            out.append((prefix + entry.name, entry.read_bytes()))
    return out


def _code_for(filed: Filed | None, target: str) -> Mapping[str, MachineCode]:
    """The filed machine code that a GPU runs by the Triton that is here; none, and somebody is told, where there is none."""
    held = {} if filed is None else filed.code
    if filed is not None and target in held and filed.triton == load.version():
        return held[target]
    made = f"it holds code for {', '.join(held)} by Triton {filed.triton}" if filed is not None and held else "none is filed"
    tell(f"kernels are compiled for {target} as they are first launched, once, and kept by Triton: {made}")
    return {}


class Stock:
    """Of one engine. `plan`: the one it runs, whose launches alone are taken; `target`: the GPU, "" for none."""

    def __init__(self, filed: Filed | None = None, plan: Plan | None = None, target: str = "") -> None:
        self.filed = filed
        self.programs = filed is not None and filed.plan is not None and filed.plan == plan
        self._answers: dict[tuple[object, ...], Kernel] = {}
        self._code = _code_for(filed, target) if target else {}
        self._loaded: dict[str, Launchable] = {}

    def kernel(self, function: str, constants: Mapping[str, Constant], numerics: str, warps: int, stages: int) -> Kernel:
        given = tuple(sorted(constants.items()))
        key = (function, given, numerics, warps, stages)
        if key not in self._answers:
            name = None if self.filed is None else self.filed.orders.get(order_digest(*key))
            self._answers[key] = make_kernel(*key) if self.filed is None or name is None else self.filed.kernels[name]
        return self._answers[key]

    def function(self, kernel: Kernel) -> Launchable:
        """The kernel as it is launched: function(kernel)[grid](tensors...); by filed machine code where it is for this GPU."""
        code = self._code.get(kernel.name)
        if code is None or self.filed is None or self.filed.kernels[kernel.name] != kernel:
            return load.function(kernel)
        if kernel.name not in self._loaded:
            self._loaded[kernel.name] = load.LoadedCode(kernel, code)
        return self._loaded[kernel.name]

    def launches(self, key: str, program: Program) -> Launches | None:
        """Those filed under the key, if they are of the plan that is run: another's checks and charges differ under the same key."""
        if self.filed is None or not self.programs or key not in self.filed.programs:
            return None
        return parse_launches(self.filed.programs[key], program, self.filed.kernels)
