"""The kernels of a compiled network as files: NAME.py for every specialisation, and what became of them as machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from polytriton.kernels.choose import GPU, INTERPRETER
from polytriton.kernels.emit import Emitter
from polytriton.kernels.header import header
from polytriton.kernels.network import network_kernels
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.spec import Kernel, Report

if TYPE_CHECKING:
    from polytriton.passes.pipeline import Compiled

FOLDER, REPORT = "kernels", "kernels/report.json"
INTERPRET = "interpret"
TARGETS = (INTERPRET, *LIMITS)


class _Filed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What report.json holds: the compiler's version, and of every report all but how it was come by."""

    triton: str
    kernels: list[dict[str, Any]]


def kernel_path(name: str) -> str:
    """A kernel's place in an artifact."""
    return f"{FOLDER}/{name}.py"


@dataclass(frozen=True)
class Kernels:
    """A network's kernels for some targets: `files` by their path in the artifact, and by kernel the steps that use it."""

    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    files: dict[str, str]
    steps: dict[str, tuple[str, ...]]
    machine: tuple[Kernel, ...]  # those that are compiled for GPUs
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
        if self.reports:
            lasting = [{k: v for k, v in asdict(r).items() if k not in ("seconds", "cached")} for r in self.reports]
            out[REPORT] = msgspec.json.format(msgspec.json.encode(_Filed(self.triton, lasting)), indent=2) + b"\n"
        return out

    def with_reports(self, data: bytes) -> Kernels:
        """These with the reports of a file; ValueError where it is not about them."""
        filed = msgspec.json.decode(data, type=_Filed)
        found = [msgspec.convert({**entry, "seconds": 0.0, "cached": True}, Report) for entry in filed.kernels]
        if [(r.target, r.name) for r in found] != [(t, k.name) for t in self.gpus for k in self.machine]:
            raise ValueError("it reports on other kernels")
        return replace(self, reports=tuple(found), triton=filed.triton)


def emit_files(compiled: Compiled, targets: Sequence[str], numerics: Sequence[str]) -> Kernels:
    """All that an artifact for these targets holds of its kernels, before any of them is compiled."""
    emitter = Emitter()
    machine = network_kernels(compiled, numerics, GPU, emitter) if any(t in LIMITS for t in targets) else []
    if INTERPRET in targets:
        network_kernels(compiled, numerics, INTERPRETER, emitter)
    files = {kernel_path(name): header(kernel, emitter.uses[name]) + kernel.source for name, kernel in emitter.kernels.items()}
    steps = {name: tuple(dict.fromkeys(use.step for use in uses)) for name, uses in emitter.uses.items()}
    return Kernels(tuple(targets), tuple(numerics), files, steps, tuple(machine))
