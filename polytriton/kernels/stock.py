"""Where a run's kernels and launches come from: the library's families under constants; launches and machine code as compiling filed them.

A kernel's name tells all that its machine code depends on, so what is filed under a name is of that very kernel. The rest that decides
a program's launches is the library they are of (`library_digest`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from polytriton.ir.launch_text import parse_launches
from polytriton.ir.launches import Constant, Filed, Kernel, Launches, MachineCode
from polytriton.ir.plan import Plan, Program
from polytriton.ir.script import RunScript
from polytriton.ir.script_text import parse_script
from polytriton.kernels import load
from polytriton.kernels.ahead import compile_ahead
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.load import Launchable
from polytriton.knobs import tell

if TYPE_CHECKING:
    from importlib.abc import Traversable  # by its other name it is of Python 3.11

ROOMS = ("ir", "kernels", "passes")  # kernels, and what their constants and launches are read from
ALONE = ("rounding.py", "arithmetic.py")


def program_key(numerics: str, emulate: bool, program: Program) -> str:
    """What a program's launches are filed under: they differ by arithmetic, and in Triton's interpreter by their tiles."""
    return f"{numerics} {'interpreter' if emulate else 'gpu'} {program.kind} %{program.target}"


def script_key(numerics: str, emulate: bool, deployment: str) -> str:
    """What the script of a run is filed under; `deployment` is one of kernels.script's."""
    return f"{numerics} {'interpreter' if emulate else 'gpu'} run {deployment}"


@cache
def library_digest() -> str:
    """Of everything that decides what kernels there are, and what a program's launches are."""
    own = hashlib.sha256(b"".join(resources.files("polytriton").joinpath(name).read_bytes() for name in ALONE))
    for name, text in sorted(s for room in ROOMS for s in _sources(resources.files("polytriton").joinpath(room), f"{room}/")):
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
    if filed is not None and filed.serves(target, load.version()):
        return held[target]
    made = f"it holds code for {', '.join(held)} by Triton {filed.triton}" if filed is not None and held else "none is filed"
    tell(f"kernels are compiled for {target} here, once, and kept: {made}")
    return {}


COMPILED: dict[str, dict[str, MachineCode]] = {}  # by target and kernel, what this process has of code that was compiled on this machine


class Stock:
    """Of one engine. `plan`: the one it runs, whose launches alone are taken; `target`: the GPU, "" for none."""

    def __init__(self, filed: Filed | None = None, plan: Plan | None = None, target: str = "") -> None:
        self.filed = filed
        self.programs = filed is not None and filed.plan is not None and filed.plan == plan
        self.target, self._code = target, _code_for(filed, target) if target else {}
        self._loaded: dict[str, Launchable] = {}

    def kernel(self, function: str, constants: Mapping[str, Constant], numerics: str, warps: int, stages: int) -> Kernel:
        return make_kernel(function, tuple(sorted(constants.items())), numerics, warps, stages)

    def function(self, kernel: Kernel) -> Launchable:
        """The kernel as it is launched: function(kernel)[grid](tensors...); by machine code for this GPU where there is some."""
        code = self._code_of(kernel)
        if code is None:
            return load.function(kernel)
        if kernel.name not in self._loaded:
            self._loaded[kernel.name] = load.LoadedCode(kernel, code)
        return self._loaded[kernel.name]

    def has_code(self, kernel: Kernel) -> bool:
        """Whether machine code for this GPU is there, so that nobody compiles."""
        return self._code_of(kernel) is not None

    def compile_ahead(self, kernels: Iterable[Kernel], seconds: float = math.inf) -> None:
        """Those without machine code for this GPU, before one of them is launched."""
        missing = [k for k in kernels if not self.has_code(k)]
        if self.target and missing:
            COMPILED.setdefault(self.target, {}).update(compile_ahead(missing, self.target, seconds))

    def _code_of(self, kernel: Kernel) -> MachineCode | None:
        """What is filed of it, else what was compiled here."""
        if kernel.name in self._code and self.filed is not None and self.filed.kernels.get(kernel.name) == kernel:
            return self._code[kernel.name]
        return COMPILED.get(self.target, {}).get(kernel.name)

    def launches(self, key: str, program: Program) -> Launches | None:
        """Those filed under the key, if they are of the plan that is run: another's checks and charges differ under the same key."""
        if self.filed is None or not self.programs or key not in self.filed.programs:
            return None
        return parse_launches(self.filed.programs[key], program, self.filed.kernels)

    def script(self, key: str) -> RunScript | None:
        """The run's, under the same condition."""
        if self.filed is None or not self.programs or key not in self.filed.programs:
            return None
        return parse_script(self.filed.programs[key], self.filed.kernels)
