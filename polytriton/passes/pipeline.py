"""The passes in order, each checked before and after; what a `--dump-ir` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from polytriton.errors import InvalidIR, PassError, PolytritonError, UsageError
from polytriton.ir.agree import disagreement
from polytriton.ir.check import check_net, check_plan
from polytriton.ir.launches import Filed
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import print_plan
from polytriton.ir.text import print_net
from polytriton.limit import go_on
from polytriton.passes import charge, fold, layout, lower, memory, schedule
from polytriton.passes.windows import DENSE_SHARE

NET_PASSES = {"fold": fold, "layout": layout}
PLAN_PASSES = {"lower": lower, "schedule": schedule, "charge": charge, "memory": memory}
# layout operators may hide a batch norm from its convolution, and a merged layer may free a gather: fold on both sides
SEQUENCE = ("fold", "layout", "fold")

T = TypeVar("T")
Observer = Callable[[str, str, float], None]  # stage name, text after it, seconds


@dataclass(frozen=True)
class Compiled:
    """What the passes leave: the folded network and the plan over its nodes; and what is `filed` beside them in an artifact."""

    net: Net
    plan: Plan
    filed: Filed | None = field(default=None, compare=False, repr=False)


def _quiet(stage: str, text: str, seconds: float) -> None:
    """Nobody watches."""


def run_net_pass(name: str, net: Net, before: list[str]) -> Net:
    """One Net pass between its own conditions and the checker."""
    module = NET_PASSES.get(name)
    if module is None:
        raise UsageError(f"there is no pass {name!r}", f"passes: {', '.join([*NET_PASSES, *PLAN_PASSES])}")
    problem = module.requires(net)
    if problem:
        raise _failure(name, f"cannot run: {problem}", before, "run the earlier passes first")
    return _guard(name, before, lambda: module.run(net), check_net, module.ensures)


def _failure(name: str, why: str, before: list[str], remedy: str = "please report the network") -> PassError:
    return PassError(f"pass {name} {why} (before it: {', '.join(before) or 'nothing'})", remedy)


def _guard(name: str, before: list[str], work: Callable[[], T], check: Callable[[T], None], ensures: Callable[[T], str | None]) -> T:
    """What a pass makes, checked; whatever goes wrong names the pass and those before it."""
    go_on()
    try:
        out = work()
    except (PolytritonError, MemoryError):
        raise
    except Exception as error:
        raise _failure(name, f"failed: {type(error).__name__}: {error}", before) from error
    try:
        check(out)
    except InvalidIR as error:
        raise _failure(name, f"broke its result: {error.message}", before) from error
    problem = ensures(out)
    if problem:
        raise _failure(name, f"did not finish: {problem}", before)
    return out


def fold_net(net: Net, observe: Observer = _quiet) -> Net:
    """All Net passes, in order."""
    check_net(net)
    given = net
    observe("import", print_net(net), 0.0)
    done: list[str] = []
    for name in SEQUENCE:
        start = time.perf_counter()
        net = run_net_pass(name, net, done)
        done.append(name)
        observe(name, print_net(net), time.perf_counter() - start)
    problem = disagreement(given, net)
    if problem:
        raise PassError(f"the passes made another network: {problem}", "please report the network")
    return net


def make_plan(net: Net, candidates: str = "all", observe: Observer = _quiet, whole: float = DENSE_SHARE) -> Plan:
    """Lowering and the Plan passes; `net` is folded. `whole`: the share of an image from which on a window becomes all of it."""
    if candidates not in schedule.CHOICES:
        raise UsageError(f"candidates={candidates!r} is unknown", f"use one of: {', '.join(schedule.CHOICES)}")
    done = list(SEQUENCE)
    plan: Plan | None = None
    for name in PLAN_PASSES:
        start = time.perf_counter()
        plan = run_plan_pass(name, net, plan, done, candidates, whole)
        done.append(name)
        if observe is not _quiet:  # the text of a plan of many programs takes as long as a pass
            observe(name, print_plan(plan), time.perf_counter() - start)
    assert plan is not None
    return plan


def replan(compiled: Compiled, whole: float, skips: Mapping[str, Collection[str]]) -> Plan:
    """The plan as a configuration wants it: windows that switch at another share of the image, fewer checks."""
    plan = compiled.plan if whole == DENSE_SHARE else make_plan(compiled.net, compiled.plan.candidates, whole=whole)
    return schedule.skip_checks(plan, skips) if skips else plan


def run_plan_pass(
    name: str, net: Net, plan: Plan | None, before: list[str], candidates: str = "all", whole: float = DENSE_SHARE
) -> Plan:
    """One Plan pass between its own conditions and the checker; only `lower` needs no plan."""

    def guard(work: Callable[[], Plan], ensures: Callable[[Plan], str | None]) -> Plan:
        return _guard(name, before, work, lambda p: check_plan(net, p), ensures)

    if name == "lower":
        problem = lower.requires(net)
        if problem:
            raise _failure(name, f"cannot run: {problem}", [], "run fold and layout first")
        return guard(lambda: lower.run(net, whole), lower.ensures)
    assert plan is not None
    if name == "schedule":
        return guard(lambda: schedule.run(net, plan, candidates), lambda p: schedule.ensures(net, p))
    module = charge if name == "charge" else memory
    return guard(lambda: module.run(net, plan), lambda p: module.ensures(net, p))


def compile_net(net: Net, candidates: str = "all", observe: Observer = _quiet) -> Compiled:
    folded = fold_net(net, observe)
    return Compiled(folded, make_plan(folded, candidates, observe))
