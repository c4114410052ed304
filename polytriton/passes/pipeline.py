"""The passes in order, each checked before and after; what a `--dump-ir` shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from polytriton.errors import InvalidIR, PassError, UsageError
from polytriton.ir.check import check_net
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import print_plan
from polytriton.ir.text import print_net
from polytriton.passes import fold, joins, layout, lower, memory, schedule

NET_PASSES = {"fold": fold, "layout": layout, "joins": joins}
PLAN_PASSES = {"lower": lower, "schedule": schedule, "memory": memory}
# layout operators may hide a batch norm from its convolution, and a merged layer may free a gather: fold on both sides
SEQUENCE = ("fold", "layout", "fold", "joins")

Observer = Callable[[str, str, float], None]  # stage name, text after it, seconds


@dataclass(frozen=True)
class Compiled:
    """What the passes leave: the folded network and the plan over its nodes."""

    net: Net
    plan: Plan


def _quiet(stage: str, text: str, seconds: float) -> None:
    """Nobody watches."""


def run_net_pass(name: str, net: Net, before: list[str]) -> Net:
    """One Net pass between its own conditions and the checker."""
    module = NET_PASSES.get(name)
    if module is None:
        raise UsageError(f"there is no pass {name!r}", f"passes: {', '.join([*NET_PASSES, *PLAN_PASSES])}")
    problem = module.requires(net)
    if problem:
        raise PassError(f"pass {name} cannot run: {problem} (before it: {', '.join(before) or 'nothing'})", "run the earlier passes first")
    out: Net = module.run(net)
    try:
        check_net(out)
    except InvalidIR as error:
        raise PassError(f"pass {name} broke the network: {error.message} (before it: {', '.join(before) or 'nothing'})", "please report the network") from error
    problem = module.ensures(out)
    if problem:
        raise PassError(f"pass {name} did not finish: {problem} (before it: {', '.join(before) or 'nothing'})", "please report the network")
    return out


def fold_net(net: Net, observe: Observer = _quiet) -> Net:
    """All Net passes, in order."""
    check_net(net)
    observe("import", print_net(net), 0.0)
    done: list[str] = []
    for name in SEQUENCE:
        start = time.perf_counter()
        net = run_net_pass(name, net, done)
        done.append(name)
        observe(name, print_net(net), time.perf_counter() - start)
    return net


def make_plan(net: Net, candidates: str = "all", observe: Observer = _quiet) -> Plan:
    """Lowering and the Plan passes; `net` is folded."""
    start = time.perf_counter()
    problem = lower.requires(net)
    if problem:
        raise PassError(f"pass lower cannot run: {problem}", "run fold, layout and joins first")
    plan = lower.run(net)
    _ensure("lower", lower.ensures(plan))
    observe("lower", print_plan(plan), time.perf_counter() - start)
    if candidates not in schedule.CHOICES:
        raise UsageError(f"candidates={candidates!r} is unknown", f"use one of: {', '.join(schedule.CHOICES)}")
    plan = schedule.run(net, plan, candidates)
    _ensure("schedule", schedule.ensures(net, plan))
    observe("schedule", print_plan(plan), 0.0)
    plan = memory.run(net, plan)
    _ensure("memory", memory.ensures(net, plan))
    observe("memory", print_plan(plan), 0.0)
    return plan


def _ensure(name: str, problem: str | None) -> None:
    if problem:
        raise PassError(f"pass {name} did not finish: {problem}", "please report the network")


def compile_net(net: Net, candidates: str = "all", observe: Observer = _quiet) -> Compiled:
    folded = fold_net(net, observe)
    return Compiled(folded, make_plan(folded, candidates, observe))
