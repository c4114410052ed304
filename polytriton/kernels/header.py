"""A kernel as a person reads it: its family's source under a head that says what it is for, with which constants, and what became of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Kernel
from polytriton.kernels.catalogue import CATALOGUE, place
from polytriton.kernels.closure import read_closure, read_function
from polytriton.kernels.spec import Report

STEPS, WIDTH, INDENT = 6, 140, " " * 12  # steps that are named; columns


def header(kernel: Kernel, steps: Sequence[str], numerics: Sequence[str], reports: Sequence[Report] = ()) -> str:
    """Comment lines: the steps that launch the kernel, in which arithmetics, and what each GPU makes of it."""
    constants = dict(kernel.constants)
    facts = [CATALOGUE[kernel.family].facts(constants, ARITHMETICS[name]) for name in numerics]
    lines = [
        ("steps", [*steps[:STEPS], *([f"and {len(steps) - STEPS} more"] if len(steps) > STEPS else [])]),
        ("numerics", [", ".join(numerics)]),
        ("windows", dict.fromkeys(fact.windows for fact in facts)),
        ("sums", dict.fromkeys(fact.sums for fact in facts)),
        ("error", dict.fromkeys(e for fact in facts for e in fact.errors)),
        ("constants", [" ".join(f"{name}={value}" for name, value in kernel.constants)]),
        ("pointers", [" ".join(f"{p}:{t}" for p, t in zip(kernel.parameters, kernel.types, strict=True))]),
        ("launch", [" ".join(f"{k}={v}" for k, v in kernel.options.items())]),
        *((report.target, [_machine(report)]) for report in reports),
    ]
    out = [f"# {kernel.name}"]
    for head, values in lines:
        for k, value in enumerate(v for v in values if v):
            first = f"#   {head if k == 0 else '':<9} "
            out += textwrap.wrap(
                value, WIDTH, initial_indent=first, subsequent_indent=f"#{INDENT} ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join([*out, ""])


def _machine(report: Report) -> str:
    counts = [f"{n} {name}" for name, n in report.instructions.items() if n]
    return ", ".join([f"{report.registers} registers", f"{report.spills} spills", *counts])


def source(kernel: Kernel) -> str:
    """The family's function, behind the record of its constants and all of the library that it calls or reads."""
    module, name = place(kernel.family)
    record = read_function(module, name).record
    parts = [*["from dataclasses import dataclass\n"] * bool(record), "import triton\nimport triton.language as tl", ""]
    for definition in (*(read_closure(module, record) if record else ()), *read_closure(module, name)):
        parts += [definition.text.rstrip(), ""] if definition.is_constant else ["", definition.text.rstrip(), ""]
    return "\n".join(parts)
