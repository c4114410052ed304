"""The kernels of a compiled network as files: NAME.py for every specialisation, which orders it answers and what launches it, and what
became of it as machine code.

    kernels/NAME.py        one specialised kernel      kernels/launches.ptir  every program's launches, by arithmetic and machine
    kernels/index.json     the library they are of, and of every kernel its orders, parameters and steps (kernels/stock.py)
    kernels/report.json    for GPUs: registers, spills, instructions, and what a launcher is told
    kernels/cuda_90.safetensors  the machine code for a GPU, by kernel
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polytriton.ir.launch_text import print_launches
from polytriton.ir.launches import Filed, Kernel, MachineCode
from polytriton.kernels.choose import GPU, INTERPRETER
from polytriton.kernels.emit import blank_name, kernel_name
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.header import SHA256, header
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
    """What index.json holds of a kernel beside its text. `machine`: it is compiled for the artifact's GPUs."""

    parameters: tuple[str, ...]
    types: tuple[str, ...]
    warps: int
    stages: int
    instruction: str
    machine: bool
    steps: tuple[str, ...]
    orders: tuple[str, ...]


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    library: str
    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    kernels: dict[str, _Entry]


class Stale(ValueError):
    """Kernels of another library than this one's."""


def kernel_path(name: str) -> str:
    """A kernel's place in an artifact."""
    return f"{FOLDER}/{name}.py"


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
    """A network's kernels for some targets: `files` by their path in the artifact, and by kernel the steps that use it."""

    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    files: dict[str, str]
    steps: dict[str, tuple[str, ...]]
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
        out = {path: text.encode() for path, text in self.files.items()}
        out[INDEX] = msgspec.json.format(msgspec.json.encode(self._index()), indent=2) + b"\n"
        out[LAUNCHES] = self.launches_text().encode()
        if self.reports:
            lasting = [{k: v for k, v in asdict(r).items() if k not in ("seconds", "cached")} for r in self.reports]
            out[REPORT] = msgspec.json.format(msgspec.json.encode(_Filed(self.triton, lasting)), indent=2) + b"\n"
        for target, held in self.filed.code.items():
            out[code_path(target)] = pack_code({name: one.cubin for name, one in held.items()})
        return out

    def launches_text(self) -> str:
        """Every program's, each under the arithmetic and machine it is for."""
        return "".join(f"launches {key}\n{text}\n" for key, text in self.filed.programs.items())

    def _index(self) -> _Index:
        orders: dict[str, list[str]] = {name: [] for name in self.filed.kernels}
        for order, name in self.filed.orders.items():
            orders[name].append(order)
        compiled = {k.name for k in self.machine}
        return _Index(library_digest(), self.targets, self.numerics, {
            name: _Entry(k.parameters, k.types, k.warps, k.stages, k.instruction, name in compiled, self.steps[name], tuple(orders[name]))
            for name, k in self.filed.kernels.items()
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
    files = {kernel_path(name): header(kernel, emitter.uses[name]) + kernel.source for name, kernel in emitter.kernels.items()}
    steps = {name: tuple(dict.fromkeys(use.step for use in uses)) for name, uses in emitter.uses.items()}
    programs = {key: print_launches(launches) for key, launches in emitter.programs.items()}
    filed = Filed(emitter.kernels, emitter.orders, programs, plan=compiled.plan)
    return Kernels(tuple(targets), tuple(numerics), files, steps, tuple(machine), filed)


def read_files(contents: Mapping[str, bytes], targets: Sequence[str], numerics: Sequence[str]) -> Kernels:
    """What `Kernels.contents` wrote, without its reports; neither emits nor compiles. Stale where another library made it,
    ValueError where the files do not fit each other.
    """
    index = msgspec.json.decode(contents[INDEX], type=_Index)
    if index.library != library_digest():
        raise Stale("another version of polytriton made them")
    files = {path: data.decode("ascii") for path, data in contents.items() if path.endswith(".py")}
    if odd := sorted(files.keys() ^ {kernel_path(name) for name in index.kernels}):
        raise ValueError(f"{INDEX} and the folder do not both have {odd[0]}")
    if (index.targets, index.numerics) != (tuple(targets), tuple(numerics)):
        raise ValueError(f"{INDEX} is of {', '.join(index.targets)} in {', '.join(index.numerics)}")
    kernels = {name: _kernel(name, files[kernel_path(name)], entry) for name, entry in index.kernels.items()}
    orders = {order: name for name, entry in index.kernels.items() for order in entry.orders}
    launches = contents[LAUNCHES].decode("ascii")
    said = "".join(step for entry in index.kernels.values() for step in entry.steps)
    if not all(map(_printable, (*files.values(), launches, said))):  # a terminal does what control characters say
        raise ValueError("they hold characters that cannot be printed")
    if bare := [name for name, entry in index.kernels.items() if not entry.steps]:
        raise ValueError(f"{INDEX} names no step of {bare[0]}")
    texts = _PROGRAM.split(launches)
    programs = {key: text.removesuffix("\n") for key, text in zip(texts[1::2], texts[2::2], strict=True)}
    machine = tuple(kernels[name] for name, entry in index.kernels.items() if entry.machine)
    steps = {name: entry.steps for name, entry in index.kernels.items()}
    return Kernels(tuple(targets), tuple(numerics), files, steps, machine, Filed(kernels, orders, programs))


def _printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _kernel(name: str, text: str, entry: _Entry) -> Kernel:
    """A kernel from its file: its name and the last line of its head hold hashes of what follows."""
    head, said, rest = text.partition(SHA256)
    digest, _, source = rest.partition("\n")
    function = name.rpartition("_")[0]
    own = kernel_name(function, source.replace(name, blank_name(function)), entry.types, entry.warps, entry.stages)
    remarks = all(line.startswith("#") for line in head.splitlines())
    if not (said and remarks) or hashlib.sha256(source.encode()).hexdigest() != digest or own != name:
        raise ValueError(f"{kernel_path(name)} is not as it was emitted")
    return Kernel(name, source, entry.parameters, entry.types, entry.warps, entry.stages, entry.instruction, entry.parameters)


def differing(kernels: Kernels, compiled: Compiled) -> list[str]:
    """The files that this library would write otherwise for the network: made again, all of them, and compared."""
    want, held = emit_files(compiled, kernels.targets, kernels.numerics).contents(), kernels.contents()
    made_by_triton = {REPORT, *map(code_path, kernels.gpus)}
    return sorted(name for name in want.keys() | (held.keys() - made_by_triton) if want.get(name) != held.get(name))
