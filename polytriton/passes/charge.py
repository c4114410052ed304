"""Who pays which rounding: what every step charges to the row's `err` (soundness.md, sections 5, 7 and 9).

  relu     the coefficients that the step takes may be products that a nonlinear operator rounded, where one reads the node.
           An affine step pays that with its vector; a nonlinear one, a merge and the input before anything can cancel or hide it.
  sum      a merge adds two contributions.
  product  an affine node is substituted: its vector t and its constants.
  behind   a ReLU pays in its own pass over the row what the affine step right behind it owes, which then pays nothing.

What a step's own scalars round, and what windows of a pool that meet in a cell add up, belongs to the step and is not listed.
The checker (ir/check.py) counts: each of these once, never twice. Executors obey and decide nothing. A candidate is a reading of the
row, so it pays for itself, at every node of the frontier that `Plan.pending` names.
"""

from __future__ import annotations

from dataclasses import replace

from polytriton.ir.net import Net
from polytriton.ir.ops import OPS, relaxed_nodes
from polytriton.ir.plan import AHEAD, Plan, Program, Step
from polytriton.limit import go_on

NAME = "charge"


def requires(net: Net, plan: Plan) -> str | None:
    return None


def run(net: Net, plan: Plan) -> Plan:
    pending, programs = relaxed_nodes(net), []
    for p in plan:
        go_on()
        programs.append(replace(p, steps=_charge(p, pending)))
    return replace(plan, programs=tuple(programs))


def _charge(program: Program, pending: set[str]) -> tuple[Step, ...]:
    steps: list[Step] = []
    ahead = False  # whether the ReLU before has paid for this step
    for step, after in zip(program.steps, [*program.steps[1:], None], strict=True):
        pay = [] if ahead else _debt(step, pending)
        ahead = after is not None and step.op == "relu" and after.op in AHEAD and after.node in step.to and not after.check
        steps.append(replace(step, pay=(*pay, *["behind"] * ahead)))
    return tuple(steps)


def _debt(step: Step, pending: set[str]) -> list[str]:
    """What the step costs, whoever pays it; coefficients that `start` writes and `dense` moves are not used yet."""
    if step.op in ("start", "dense"):
        return []
    affine = step.op in OPS and OPS[step.op].kind in ("affine", "layout")
    return ["relu"] * (step.node in pending) + ["sum"] * (step.op == "merge") + ["product"] * affine


def ensures(net: Net, plan: Plan) -> str | None:
    for p in plan:
        if any(s.pay is None for s in p.steps):
            return f"a step of the program of %{p.target} does not say what it pays"
    return None
