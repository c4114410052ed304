"""The Plans that a configuration chooses among, and what a run by one of them tells of a run by another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import print_plan
from polytriton.passes.pipeline import Compiled, replan
from polytriton.runtime.config import DEFAULT, Config
from polytriton.tuning.checks import Seen
from polytriton.tuning.cpu_cost import Load
from polytriton.tuning.space import Conv, PlanStep, step_convs

SHARES = (1.0, 0.65, 0.5, 0.35, 0.2)  # of an image, from which on a window becomes all of it: those that are tried


def shares(compiled: Compiled) -> dict[float, Plan]:
    """The plans that differ, the default's first: most shares of small networks give the same one."""
    found = {DEFAULT.whole: compiled.plan}
    known = {print_plan(compiled.plan)}
    for share in SHARES:
        plan = replan(compiled, share, {})
        text = print_plan(plan)
        if text not in known:
            known.add(text)
            found[share] = plan
    return found


class Plans:
    """What a run of the default is expected to be under another plan: convolutions by their new shapes, values of row passes."""

    def __init__(self, compiled: Compiled, plans: Mapping[float, Plan], seen: Seen) -> None:
        self.seen = seen
        self.convs: dict[float, dict[PlanStep, Conv]] = {share: dict(step_convs(compiled.net, plan)) for share, plan in plans.items()}

    @property
    def shapes(self) -> dict[str, Conv]:
        """Every convolution of every plan by its key."""
        return {conv.key: conv for convs in self.convs.values() for conv in convs.values()}

    def load(self, old: Load, config: Config) -> Load:
        """Rows, calls and values as the configuration's plan has them. That rows stay longer without a check is not known here."""
        values, passes = self.seen.savings(config.skips)
        made = replace(old, values=max(0.0, old.values - values), passes=max(1, old.passes - passes))
        return made if config.whole == DEFAULT.whole or config.whole not in self.convs else self._move(made, config.whole)

    def _move(self, old: Load, share: float) -> Load:
        before, after = self.convs[DEFAULT.whole], self.convs[share]
        came = {at: self.seen.convs.get(at, 0) for at in before}
        all_rows = {key: sum(came[at] for at, conv in before.items() if conv.key == key) for key in old.rows}
        rows: dict[str, float] = {}
        calls: dict[str, float] = {}
        for at, conv in before.items():
            if conv.key in old.rows and all_rows[conv.key]:
                part, key = came[at] / all_rows[conv.key], after[at].key
                rows[key] = rows.get(key, 0.0) + part * old.rows[conv.key]
                calls[key] = calls.get(key, 0.0) + part * old.calls[conv.key]
        sizes = [sum(came[at] * conv.size for at, conv in convs.items() if at in came) for convs in (before, after)]
        grown = sizes[1] / sizes[0] if sizes[0] else 1.0
        return replace(
            old, rows={k: round(v) for k, v in rows.items()}, calls={k: max(1, round(v)) for k, v in calls.items()},
            values=old.values * grown,
        )  # fmt: skip
