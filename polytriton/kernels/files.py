"""The kernels of a compiled network as files: of every kernel what makes it, what launches it, and what became of it as machine code.

kernels/index.json     the library they are of, and of every kernel its family, constants, pointers, and the steps that launch it
kernels/launches.ptir  every program's launches and those of whole runs, by arithmetic and machine
kernels/report.json    for GPUs: registers, spills, instructions, and what a launcher is told
kernels/cuda_90.safetensors  the machine code for a GPU, by kernel
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launch_text import print_launches
from polytriton.ir.launches import Constant, Filed, Kernel, MachineCode
from polytriton.ir.script_text import print_script
from polytriton.kernels.catalogue import CATALOGUE, make_kernel
from polytriton.kernels.choose import GPU, INTERPRETER
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.header import header, source
from polytriton.kernels.network import network_kernels
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.spec import Report
from polytriton.kernels.stock import library_digest

if TYPE_CHECKING:
    from polytriton.passes.pipeline import Compiled

FOLDER, REPORT, INDEX, LAUNCHES = "kernels", "kernels/report.json", "kernels/index.json", "kernels/launches.ptir"
INTERPRET = "interpret"
TARGETS = (INTERPRET, *LIMITS)
_PROGRAM = re.compile(r"^launches (.*)\n", re.M)


class _Filed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What report.json holds: the compiler's version, and of every report all but how it was come by."""

    triton: str
    kernels: list[dict[str, Any]]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What index.json holds of a kernel. `parameters`: its pointers and their types; `machine`: it is compiled for the artifact's GPUs."""

    family: str
    constants: dict[str, Constant]
    parameters: dict[str, str]
    warps: int
    stages: int
    machine: bool
    numerics: tuple[str, ...]
    steps: tuple[str, ...]


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    library: str
    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    kernels: dict[str, _Entry]


class Stale(ValueError):
    """Kernels of another library than this one's."""


def code_path(target: str) -> str:
    """Where an artifact keeps a target's machine code."""
    return f"{FOLDER}/{target.replace(':', '_')}.safetensors"


def pack_code(cubins: Mapping[str, bytes]) -> bytes:
    return save({name: np.frombuffer(cubins[name], np.uint8) for name in sorted(cubins)})


def unpack_code(data: bytes) -> dict[str, bytes]:
    try:
        return {name: array.tobytes() for name, array in load(data).items()}
    except SafetensorError as error:
        raise ValueError(f"machine code cannot be read: {error}") from error


@dataclass(frozen=True)
class Kernels:
    """A network's kernels for some targets, and by kernel the arithmetics it is for and the steps that launch it."""

    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]
    used: dict[str, tuple[str, ...]]
    machine: tuple[Kernel, ...]  # those that are compiled for GPUs
    filed: Filed  # what runs take from them
    reports: tuple[Report, ...] = ()
    triton: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(t for t in self.targets if t in LIMITS)

    def rooms(self, target: str) -> dict[str, int]:
        """For how many blocks an SM the compiler had to make room, by kernel; its own choice for the others."""
        return {r.name: r.blocks for r in self.reports if r.target == target and r.blocks}

    def contents(self) -> dict[str, bytes]:
        """The files to write. The same machine code gives the same report, however long it took and wherever it was found."""
        out = {INDEX: msgspec.json.format(msgspec.json.encode(self._index()), indent=2) + b"\n"}
        out[LAUNCHES] = self.launches_text().encode()
        if self.reports:
            lasting = [{k: v for k, v in asdict(r).items() if k not in ("seconds", "cached")} for r in self.reports]
            out[REPORT] = msgspec.json.format(msgspec.json.encode(_Filed(self.triton, lasting)), indent=2) + b"\n"
        for target, held in self.filed.code.items():
            out[code_path(target)] = pack_code({name: one.cubin for name, one in held.items()})
        return out

    def launches_text(self) -> str:
        """Every program's and every run's, each under the arithmetic and machine it is for."""
        return "".join(f"launches {key}\n{text}\n" for key, text in self.filed.programs.items())

    def kernel_text(self, name: str) -> str:
        """A kernel for people to read: what it is for and what became of it, and its family's source."""
        kernel = self.filed.kernels[name]
        return header(kernel, self.steps[name], self.used[name], [r for r in self.reports if r.name == name]) + source(kernel)

    def _index(self) -> _Index:
        compiled = {k.name for k in self.machine}
        return _Index(library_digest(), self.targets, self.numerics, {
            name: _Entry(
                k.family, dict(k.constants), dict(zip(k.parameters, k.types, strict=True)), k.warps, k.stages, name in compiled,
                self.used[name], self.steps[name],
            ) for name, k in self.filed.kernels.items()
        })  # fmt: skip

    def with_reports(self, data: bytes, code: Mapping[str, bytes]) -> Kernels:
        """These with the reports of a file and the machine code of others, by target; ValueError where they are not about them."""
        filed = msgspec.json.decode(data, type=_Filed)
        found = [msgspec.convert({**entry, "seconds": 0.0, "cached": True}, Report) for entry in filed.kernels]
        if [(r.target, r.name) for r in found] != [(t, k.name) for t in self.gpus for k in self.machine]:
            raise ValueError("it reports on other kernels")
        if any(not _possible(r) for r in found) or not filed.triton.isprintable():
            raise ValueError("it says what no compiler does")
        return self.with_code(found, {target: unpack_code(data) for target, data in code.items()}, filed.triton)

    def with_code(self, reports: Sequence[Report], cubins: Mapping[str, Mapping[str, bytes]], triton: str) -> Kernels:
        """These as machine code by the release `triton`: a report and a cubin a target and kernel."""
        if {(r.target, r.name) for r in reports} != {(t, name) for t, held in cubins.items() for name in held}:
            raise ValueError("reports and machine code are of other kernels")
        code: dict[str, dict[str, MachineCode]] = {target: {} for target in cubins}
        for r in reports:
            code[r.target][r.name] = MachineCode(cubins[r.target][r.name], r.launch)
        return replace(self, reports=tuple(reports), triton=triton, filed=replace(self.filed, code=code, triton=triton))


def _possible(report: Report) -> bool:
    """Whether a compiler may have said so: these are counts, and no SM has more than 32 blocks."""
    counts = [v for v in vars(report).values() if type(v) is int] + list(report.instructions.values())
    return all(0 <= v < 1 << 40 for v in counts) and report.blocks <= 32 and all(map(str.isprintable, report.instructions))


def emit_files(compiled: Compiled, targets: Sequence[str], numerics: Sequence[str]) -> Kernels:
    """All that an artifact for these targets holds of its kernels, before any of them is compiled."""
    emitter = Emitter()
    machine = network_kernels(compiled, numerics, GPU, emitter) if any(t in LIMITS for t in targets) else []
    if INTERPRET in targets:
        network_kernels(compiled, numerics, INTERPRETER, emitter)
    steps, used = ({n: tuple(dict.fromkeys(getattr(u, of) for u in us)) for n, us in emitter.uses.items()} for of in ("step", "numerics"))
    programs = {key: print_launches(launches) for key, launches in emitter.programs.items()}
    programs |= {key: print_script(script) for key, script in emitter.scripts.items()}
    filed = Filed(emitter.kernels, programs, plan=compiled.plan)
    return Kernels(tuple(targets), tuple(numerics), steps, used, tuple(machine), filed)


def read_files(contents: Mapping[str, bytes], targets: Sequence[str], numerics: Sequence[str]) -> Kernels:
    """What `Kernels.contents` wrote, without its reports; nothing is compiled. Stale where another library made it, ValueError where
    the files do not fit each other, or a kernel is not what its name says.
    """
    index = msgspec.json.decode(contents[INDEX], type=_Index)
    if index.library != library_digest():
        raise Stale("another version of polytriton made them")
    if (index.targets, index.numerics) != (tuple(targets), tuple(numerics)):
        raise ValueError(f"{INDEX} is of {', '.join(index.targets)} in {', '.join(index.numerics)}")
    kernels = {name: _kernel(name, entry) for name, entry in index.kernels.items()}
    launches = contents[LAUNCHES].decode("ascii")
    said = "".join(step for entry in index.kernels.values() for step in entry.steps)
    if not all(map(_printable, (launches, said))):  # a terminal does what control characters say
        raise ValueError("they hold characters that cannot be printed")
    if bare := [name for name, entry in index.kernels.items() if not entry.steps]:
        raise ValueError(f"{INDEX} names no step of {bare[0]}")
    texts = _PROGRAM.split(launches)
    programs = {key: text.removesuffix("\n") for key, text in zip(texts[1::2], texts[2::2], strict=True)}
    machine = tuple(kernels[name] for name, entry in index.kernels.items() if entry.machine)
    steps, used = ({name: getattr(entry, of) for name, entry in index.kernels.items()} for of in ("steps", "numerics"))
    return Kernels(tuple(targets), tuple(numerics), steps, used, machine, Filed(kernels, programs))


def _printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _kernel(name: str, entry: _Entry) -> Kernel:
    """The kernel that the library makes of an entry, which must be the one that the entry says."""
    if entry.family not in CATALOGUE or not entry.numerics or not ARITHMETICS.keys() >= set(entry.numerics):
        raise ValueError(f"{name} is of no family or arithmetic that there is")
    kernel = make_kernel(entry.family, tuple(sorted(entry.constants.items())), entry.numerics[0], entry.warps, entry.stages)
    if (kernel.name, kernel.parameters, kernel.types) != (name, tuple(entry.parameters), tuple(entry.parameters.values())):
        raise ValueError(f"{name} is not what its family and constants make")
    return kernel


def differing(kernels: Kernels, compiled: Compiled) -> list[str]:
    """The files that this library would write otherwise for the network: made again and compared."""
    want, held = emit_files(compiled, kernels.targets, kernels.numerics).contents(), kernels.contents()
    made_by_triton = {REPORT, *map(code_path, kernels.gpus)}
    return sorted(name for name in want.keys() | (held.keys() - made_by_triton) if want.get(name) != held.get(name))
