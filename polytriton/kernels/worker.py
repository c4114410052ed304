"""Compiles kernels one after the other: what runs in a worker of pool.py."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from polytriton.ir.launches import COUNTED, Kernel
from polytriton.kernels.load import triton_source
from polytriton.kernels.sass import occupancy, opcodes, usage
from polytriton.kernels.spec import FUSION, Report, room

THREAD = 255  # registers a thread has at most


@dataclass(frozen=True)
class BuildJob:
    kernel: Kernel
    target: str
    number: int

    def encode(self) -> bytes:
        """By the standard library: msgspec is not on every machine that has a GPU."""
        return json.dumps([*asdict(self.kernel).values(), self.target, self.number]).encode()

    @staticmethod
    def decode(data: bytes) -> BuildJob:
        name, family, constants, parameters, types, *rest, target, number = json.loads(data)
        return BuildJob(Kernel(name, family, tuple(map(tuple, constants)), tuple(parameters), tuple(types), *rest), target, number)


@dataclass(frozen=True)
class BuildReply:
    """A report with its cubin, or why there is none."""

    report: Report | None = None
    cubin: bytes = b""
    error: str = ""

    def encode(self) -> bytes:
        return b"!" + self.error.encode() if self.report is None else b"+" + self.report.encode(self.cubin)

    @staticmethod
    def decode(data: bytes) -> BuildReply:
        return BuildReply(*Report.decode(data[1:])) if data[:1] == b"+" else BuildReply(error=data[1:].decode())


def handler() -> Callable[[bytes], bytes]:
    import triton  # noqa: F401  so that a worker that is ready can compile

    folder = Path.cwd() / "work"
    folder.mkdir(exist_ok=True)

    def answer(data: bytes) -> bytes:
        job = BuildJob.decode(data)
        return build(job.kernel, job.target, folder / f"{job.kernel.name}_{job.number}").encode()

    return answer


def build(kernel: Kernel, target: str, stem: Path) -> BuildReply:
    """Machine code for `target` and what is in it; files are written beside `stem`.

    Where ptxas spills, mostly a word or two for one block more on an SM, it is asked to make room for that many blocks, then for
    ever fewer, which gives a thread more registers; the first code without a spill is taken, else its first choice.
    """
    began = time.perf_counter()
    report, cubin = _compile(kernel, target, stem, 0)
    most = report.occupancy // kernel.warps if report.spills and report.registers < THREAD else 0
    for blocks in range(most, 0, -1):
        other, code = _compile(kernel, target, stem, blocks)
        if not other.spills:
            report, cubin = other, code
        if not other.spills or other.registers >= THREAD:
            break
    return BuildReply(replace(report, seconds=time.perf_counter() - began), cubin)


def _compile(kernel: Kernel, target: str, stem: Path, blocks: int) -> tuple[Report, bytes]:
    import triton
    from triton.backends.compiler import GPUTarget

    backend, arch = target.split(":")
    options = {**kernel.options, **room(blocks), **FUSION}
    compiled = triton.compile(triton_source(kernel), target=GPUTarget(backend, int(arch), 32), options=options)
    cubin: bytes = compiled.asm["cubin"]
    file = stem.with_suffix(".cubin")
    file.write_bytes(cubin)
    shown = dump(file)
    registers, stack = usage(shown, compiled.metadata.name)
    counts = opcodes(shown)
    shared = int(compiled.metadata.shared)
    report = Report(
        name=kernel.name,
        target=target,
        registers=registers,
        shared=shared,
        spill_loads=counts["LDL"],
        spill_stores=counts["STL"],
        stack=stack,
        instructions={name: counts[name] for name in COUNTED},
        occupancy=occupancy(target, registers, shared, kernel.warps),
        cubin_bytes=len(cubin),
        seconds=0.0,
        cached=False,
        blocks=blocks,
        launch=launch_facts(compiled.metadata_group),
    )
    return report, cubin


def launch_facts(files: Mapping[str, str]) -> str:
    """Triton's metadata of compiled code without what is about the machine that compiled it."""
    (path,) = (file for name, file in files.items() if name.endswith(".json"))
    facts = json.loads(Path(path).read_text(encoding="utf-8"))
    return json.dumps({key: facts[key] for key in sorted(facts.keys() - {"extern_libs", "hash"})})


def dump(cubin: Path) -> str:
    """Resource usage and instructions, by the cuobjdump that came with Triton (it finds nvdisasm beside itself)."""
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", str(cubin)]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ran.returncode:
        raise RuntimeError(f"cuobjdump failed with code {ran.returncode}: {ran.stderr.strip()[:300]}")
    return ran.stdout
