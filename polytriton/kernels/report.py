"""Reports of compiled kernels, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from polytriton.kernels.spec import Report


def report_table(reports: Sequence[Report]) -> Table:
    """One line a kernel; spills are loads + stores, `warps` those that live on one SM."""
    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", min_width=max((len(r.name) for r in reports), default=0))
    for name in ("registers", "shared", "stack", "spills", "warps", "arithmetic", "bytes", "seconds"):
        table.add_column(name, justify="left" if name == "arithmetic" else "right", overflow="fold")
    for r in reports:
        arithmetic = ", ".join(f"{n} {name}" for name, n in r.instructions.items() if n) or "-"
        spills = f"{r.spill_loads}+{r.spill_stores}" if r.spills else "0"
        seconds = "cached" if r.cached else f"{r.seconds:.2f}"
        cells = (r.registers, r.shared, r.stack, spills, r.occupancy, arithmetic, r.cubin_bytes, seconds)
        table.add_row(r.name, *map(str, cells), style="red" if not r.occupancy else "yellow" if r.spills else None)
    return table


def report_json(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """The same and the rest, as objects of plain types, without what only a launcher wants to know."""
    return [{name: value for name, value in asdict(r).items() if name != "launch"} for r in reports]
