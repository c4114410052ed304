"""Where candidate bounds are taken and finished rows leave.

A candidate may be taken at any frontier. Over the output x of a nonlinear operator the box of x is never worse than the
relaxation's line over the box of its input, so one check before each nonlinear step, and the end, see the best of all.
`input` takes a bound only at the end, as CROWN does.

The frontier right behind a neuron's own affine layer is skipped: its candidate is what the interval pass found already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from polytriton.ir.net import Net
from polytriton.ir.ops import OPS
from polytriton.ir.plan import Plan, Program, Step
from polytriton.limit import go_on

NAME = "schedule"
CHOICES = ("all", "input")


def requires(net: Net, plan: Plan) -> str | None:
    return None


def run(net: Net, plan: Plan, candidates: str = "all") -> Plan:
    programs = []
    for p in plan:
        go_on()
        programs.append(replace(p, steps=_mark(p, candidates)))
    return replace(plan, programs=tuple(programs), candidates=candidates)


def _mark(program: Program, candidates: str) -> tuple[Step, ...]:
    steps = []
    affine = 0  # substitutions so far; a join or a merge is one, since it makes a frontier the interval pass never saw
    for s in program.steps:
        known = program.kind == "bound" and affine <= 1
        check = s.op == "input" or (candidates == "all" and s.op in OPS and OPS[s.op].kind == "nonlinear" and not known)
        steps.append(replace(s, check=check))
        affine += s.op not in ("start", "dense")
        affine += s.op in ("add", "sub", "concat")
    return tuple(steps)


def skip_checks(plan: Plan, skips: Mapping[str, Collection[str]]) -> Plan:
    """The plan with fewer checks in its bound programs: `skips` names, by a program's target, the nodes before whose steps none is taken.

    A candidate that is not looked at is a bound less to choose from, and rows that it would have decided go on: bounds may be
    looser and are as sound. The last check and those of the query stay.
    """

    def keep(p: Program) -> Program:
        gone = skips.get(p.target, ()) if p.kind == "bound" else ()
        return replace(p, steps=tuple(replace(s, check=s.check and (s.op == "input" or s.node not in gone)) for s in p.steps))

    return replace(plan, programs=tuple(keep(p) for p in plan))


def ensures(net: Net, plan: Plan) -> str | None:
    for p in plan:
        if not p.steps[-1].check:
            return f"the program of %{p.target} ends without a bound"
    return None
