"""`polytriton compile --target`: which machines an artifact's kernels are for, and what became of them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from polytriton.commands.options import option
from polytriton.commands.screen import TerminalBar
from polytriton.errors import UsageError
from polytriton.knobs import knobs
from polytriton.workers.processors import processors

if TYPE_CHECKING:
    from polytriton.kernels.files import Kernels
    from polytriton.kernels.spec import Report
    from polytriton.passes.pipeline import Compiled

BOTH = "float64,float32"


@dataclass(frozen=True)
class Targets:
    """Where the artifact's kernels are to run."""

    target: Annotated[
        list[str] | None,
        option("--target", metavar="T,...", help="cpu (the default), interpret, cuda:80, cuda:86, cuda:89, cuda:90; cuda: the GPUs here."),
    ] = None
    numerics: Annotated[
        str | None,
        option(
            "--numerics",
            metavar="N,...",
            help=f"The kernels' coefficients: float64, float32, tf32x3, bf16x6, interval64, interval32; by default {BOTH}.",
        ),
    ] = None
    max_spills: Annotated[
        int | None, option("--max-spills", metavar="N", help="Register spills allowed in a kernel; by default none.")
    ] = None
    jobs: Annotated[int | None, option("--jobs", metavar="N", help="Kernels compiled at a time; one a CPU by default.")] = None

    def order(self) -> Order | None:
        """What is asked for, checked before any work is done; None where the artifact needs no kernels."""
        from polytriton.arithmetic import ARITHMETICS
        from polytriton.kernels.build import triton_version

        targets = _targets(_names(self.target or ["cpu"]))
        gpus = [t for t in targets if t.startswith("cuda")]
        asked = (("--numerics", self.numerics, targets), ("--max-spills", self.max_spills, gpus), ("--jobs", self.jobs, gpus))
        for name, value, needs in asked:
            if value is not None and not needs:
                raise UsageError(f"{name} is about kernels, and no target here needs it", "add one, for example --target cuda:90")
        numerics = _names([self.numerics or BOTH])
        for name in numerics:
            if name not in ARITHMETICS:
                raise UsageError(f"--numerics: there is no {name!r}", f"use one or more of: {', '.join(ARITHMETICS)}")
        spills, jobs = self.max_spills or 0, self.jobs if self.jobs is not None else processors()
        if spills < 0:
            raise UsageError(f"--max-spills {spills} is negative", "give 0 or more")
        if not 1 <= jobs <= 4096:
            raise UsageError(f"--jobs {jobs} is out of range", "give 1 or more")
        if gpus:
            triton_version()  # where there is none, that is said first
        return Order(targets, numerics, spills, jobs) if targets else None


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """Comma separated or repeated, each once."""
    return tuple(dict.fromkeys(name.strip() for text in given for name in text.split(",")))


def _targets(names: Sequence[str]) -> tuple[str, ...]:
    """Those that have kernels; `cuda` is whatever GPUs are here."""
    from polytriton.kernels.files import TARGETS

    found: list[str] = []
    for name in names:
        if name not in ("cpu", "cuda", *TARGETS):
            known = ", ".join(("cpu", *TARGETS))
            raise UsageError(f"--target: there is no {name!r}", f"use one or more of: {known}; or cuda for the GPUs here")
        found += _here() if name == "cuda" else [name] if name != "cpu" else []
    return tuple(dict.fromkeys(found))


def _here() -> list[str]:
    import torch

    from polytriton.kernels.sass import LIMITS

    remedy = f"name it: --target {', or --target '.join(LIMITS)}"
    if not torch.cuda.is_available():
        raise UsageError("--target cuda: this machine shows torch no GPU to take the target from", remedy)
    found = ["cuda:{}{}".format(*torch.cuda.get_device_capability(k)) for k in range(torch.cuda.device_count())]
    for name in found:
        if name not in LIMITS:
            raise UsageError(f"--target cuda: the GPU here is {name}, for which no kernels are compiled", f"for another GPU {remedy}")
    return found


@dataclass(frozen=True)
class Order:
    """Kernels to emit and, for GPUs, to compile."""

    targets: tuple[str, ...]
    numerics: tuple[str, ...]
    spills: int
    jobs: int

    def carry_out(self, compiled: Compiled) -> Kernels:
        """KernelError where a kernel cannot be compiled or is not good enough."""
        from polytriton.kernels.build import check, compile_all, triton_version
        from polytriton.kernels.files import emit_files

        kernels = emit_files(compiled, self.targets, self.numerics)
        reports: list[Report] = []
        cubins: dict[str, dict[str, bytes]] = {}
        for target in kernels.gpus:
            with Bar(target) as bar:
                built = compile_all(kernels.machine, target, cache=knobs().cubins, jobs=self.jobs, progress=bar.tell)
            found = [b.report for b in built]
            check(found, kernels.machine, self.spills)
            reports += found
            cubins[target] = {b.kernel.name: b.cubin for b in built}
        return kernels.with_code(reports, cubins, triton_version()) if reports else kernels


class Bar(TerminalBar):
    """Progress of a target's kernels: elsewhere than on a terminal a line now and then."""

    def __init__(self, target: str) -> None:
        super().__init__(("{task.description}", "bar", "count", "time", "{task.fields[name]}"), f"kernels for {target}", name="")
        self.target = target

    def tell(self, done: int, total: int, name: str) -> None:
        if self.bar:
            self.bar.update(self.task, completed=done, total=total, name=name)
        elif self.line_is_due():
            self.print_line(f"kernels for {self.target}: {done}/{total}")


def show(kernels: Kernels, file: TextIO) -> None:
    """One table a target, wide enough to be read by a program where it is no terminal."""
    from rich.console import Console

    from polytriton.kernels.report import report_table

    console = Console(file=file, width=None if file.isatty() else 200, markup=False, highlight=False)
    for target in kernels.gpus:
        found = [r for r in kernels.reports if r.target == target]
        print(f"{target}: {len(found)} kernels by Triton {kernels.triton}", file=file)
        console.print(report_table(found))


def describe_kernels(kernels: Kernels | None) -> dict[str, Any]:
    """The same and the kernels' steps, as plain data."""
    from polytriton.kernels.report import report_json

    if kernels is None:
        return {"targets": [], "numerics": [], "kernels": [], "triton": "", "reports": []}
    return {
        "targets": kernels.targets,
        "numerics": kernels.numerics,
        "kernels": [{"name": name, "steps": steps} for name, steps in kernels.steps.items()],
        "triton": kernels.triton,
        "reports": report_json(kernels.reports),
    }
