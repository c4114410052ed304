"""Compiles kernels to cubins ahead of time, without a GPU, and says whether what came out is good enough to run."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache as remembered
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from polytriton.errors import KernelError, UsageError
from polytriton.ir.launches import Kernel
from polytriton.kernels.identity import tools
from polytriton.kernels.pool import work
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.spec import OLDEST, Report
from polytriton.kernels.store import Store, key

SHOWN, LINES = 8, 12  # kernels a message tells about, and lines on each
Progress = Callable[[int, int, str], None]


class Built(NamedTuple):
    kernel: Kernel
    report: Report
    cubin: bytes


class Failed(NamedTuple):
    """A kernel that Triton refused, or on which it crashed or took too long."""

    kernel: Kernel
    reason: str


def _quiet(done: int, total: int, name: str) -> None:
    """Progress nobody looks at."""


def compile_all(
    kernels: Sequence[Kernel], target: str, *, cache: Path | None, jobs: int = 2, timeout: float = 120, progress: Progress = _quiet
) -> list[Built]:
    """Every kernel's report and cubin; KernelError naming those that failed, once all others are compiled and in the cache."""
    made = compile_each(kernels, target, cache=cache, jobs=jobs, timeout=timeout, progress=progress)
    failed = [m for m in made if isinstance(m, Failed)]
    if failed:
        remedy = "this is an error of polytriton or of Triton: please report it with the network and the Triton version"
        raise KernelError(
            _list(f"Triton {triton_version()} cannot compile for {target}", [f"{m.kernel.name}: {m.reason}" for m in failed]), remedy
        )
    return [m for m in made if isinstance(m, Built)]


def compile_each(
    kernels: Sequence[Kernel], target: str, *, cache: Path | None, jobs: int = 2, timeout: float = 120, progress: Progress = _quiet,
    begin: Callable[[int], None] = lambda missing: None, seconds: float = math.inf,
) -> list[Built | Failed]:  # fmt: skip
    """As compile_all, for a caller that can do without some: one outcome a kernel, in their order.

    `timeout` seconds are for one kernel, `seconds` for all of them; `progress` hears how many of how many are done and the name of the
    last, `begin` how many are to be compiled, where any are.
    """
    end = time.monotonic() + seconds
    if target not in LIMITS:
        raise UsageError(f"{target!r} is no target for kernels", f"choose one of {', '.join(LIMITS)}")
    version, store = triton_version(), Store(cache)
    replaced = tools(os.environ)
    places: dict[str, list[int]] = {}
    for k, kernel in enumerate(kernels):
        places.setdefault(key(kernel, target, version, replaced), []).append(k)
    outcomes: dict[int, Built | Failed] = {}

    def finish(name: str, report: Report | None, cubin: bytes, reason: str) -> None:
        for k in places[name]:
            kernel = kernels[k]
            outcomes[k] = Failed(kernel, reason) if report is None else Built(kernel, report, cubin)
            progress(len(outcomes), len(kernels), kernel.name)

    missing = []
    for name in places:
        found = store.get(name)
        if found is None:
            missing.append(name)
        else:
            finish(name, *found, "")
    if missing:
        begin(len(missing))
        with closing(work([kernels[places[name][0]] for name in missing], target, jobs=jobs, timeout=timeout)) as replies:
            for k, reply in replies:
                if reply.report is not None:
                    store.put(missing[k], reply.report, reply.cubin)
                finish(missing[k], reply.report, reply.cubin, reply.error)
                if time.monotonic() > end:
                    break
        store.trim()
    return [outcomes.get(k, Failed(kernel, "the time was up")) for k, kernel in enumerate(kernels)]


def check(reports: Sequence[Report], kernels: Sequence[Kernel], limit_spills: int = 0) -> None:
    """KernelError where a kernel fits no SM, lacks the instruction it was written for, or spills more than the limit."""
    large, absent, spilling = [], [], []
    for report, kernel in zip(reports, kernels, strict=True):
        if report.occupancy == 0:
            large.append(f"{kernel.name}: {kernel.warps} warps of {report.registers} registers, {report.shared} bytes of shared memory")
        wanted = _wanted_instruction(kernel, report)
        if wanted and not report.instructions[wanted]:
            present = ", ".join(f"{n} {name}" for name, n in report.instructions.items() if n) or "none of its kind"
            absent.append(f"{kernel.name}: no {wanted}, but {present}")
        if report.spills > limit_spills:
            spilling.append(f"{kernel.name}: {report.spill_loads} loads and {report.spill_stores} stores, {report.registers} registers")
    target = reports[0].target if reports else ""
    if large:
        raise KernelError(_list(f"kernels are too large for {target}", large), "compile for another --target")
    if absent:
        remedy = f"this Triton ({triton_version()}) chose other instructions: install another release, or compile for another --target"
        raise KernelError(_list(f"kernels for {target} lack the instruction they were written for", absent), remedy)
    if spilling:
        remedy = f"--max-spills {max(r.spills for r in reports)} accepts this slower code; another --target may need none"
        raise KernelError(_list(f"kernels for {target} spill registers to memory", spilling), remedy)


def _wanted_instruction(kernel: Kernel, report: Report) -> str:
    """HGMMA came with Hopper: the tensor cores before it do the same by HMMA."""
    return "HMMA" if kernel.instruction == "HGMMA" and int(report.target.removeprefix("cuda:")) < 90 else kernel.instruction


def _list(head: str, lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n  ".join([f"{head}:", *map(_short, lines[:SHOWN]), *more])


def _short(text: str) -> str:
    """Triton shows a function from its first line to the wrong one: its first and last lines tell enough."""
    lines = text.split("\n")
    if len(lines) > LINES:
        lines = [lines[0], "...", *lines[2 - LINES :]]
    return "\n    ".join(lines)


@remembered
def triton_version() -> str:
    """The version of the Triton that workers will import; read from its file, for importing it takes a second."""
    oldest = ".".join(map(str, OLDEST))
    remedy = f"kernels are compiled on Linux with Triton {oldest} or newer (pip install triton); --target cpu needs none"
    spec = find_spec("triton") if platform.system() == "Linux" else None
    if spec is None or spec.origin is None:
        raise KernelError("Triton is not installed here", remedy)
    found = re.search(r"^__version__\s*=\s*['\"](\d+)\.(\d+)([^'\"]*)", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise KernelError(f"the Triton in {spec.origin} does not tell its version", remedy)
    if (int(found[1]), int(found[2])) < OLDEST:
        raise KernelError(f"Triton {found[1]}.{found[2]}{found[3]} is too old", remedy)
    return f"{found[1]}.{found[2]}{found[3]}"
