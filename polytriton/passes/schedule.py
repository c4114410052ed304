"""Where candidate bounds are taken and finished rows leave.

A candidate may be taken at any frontier. Over the output x of a nonlinear operator the box of x is never worse than the
relaxation's line over the box of its input, so one check before each nonlinear step, and the end, see the best of all.
`input` takes a bound only at the end, as CROWN does.
"""

from __future__ import annotations

from dataclasses import replace

from polytriton.ir.net import Net
from polytriton.ir.plan import Plan

NAME = "schedule"
CHOICES = ("all", "input")


def requires(net: Net, plan: Plan) -> str | None:
    return None


def run(net: Net, plan: Plan, candidates: str = "all") -> Plan:
    def mark(op: str) -> bool:
        return op == "input" or (candidates == "all" and op in ("relu", "maxpool"))

    programs = [replace(p, steps=tuple(replace(s, check=mark(s.op)) for s in p.steps)) for p in plan]
    return replace(plan, programs=tuple(programs), candidates=candidates)


def ensures(net: Net, plan: Plan) -> str | None:
    for p in plan:
        if not p.steps[-1].check:
            return f"the program of %{p.target} ends without a bound"
    return None
