"""The rules a Net and a Plan obey before and after every pass."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from polytriton.errors import InvalidIR
from polytriton.ir.net import Net, Ref
from polytriton.ir.ops import OPS, infer_shape, relaxed_nodes
from polytriton.ir.plan import AHEAD, PAYMENTS, Axis, Plan, Program, Step, extent
from polytriton.ir.text import NAME
from polytriton.limit import go_on

Need = Callable[[bool, Step, str], None]  # raises InvalidIR naming the step where a rule does not hold
MAX_CELLS = 1 << 22  # of one activation: the largest of VGG16 on 224x224 images has 3.2 million


def check_net(net: Net) -> None:
    """Raises InvalidIR at the first broken rule, naming the node."""
    if not net.nodes or net.nodes[0].op != "input":
        raise InvalidIR(f"net @{net.name} does not begin with its input", "put the input node first")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (net.name, *(n.name for n in net), *net.weights):
        if not re.fullmatch(NAME, name):
            raise InvalidIR(f"net @{net.name}: {name!r} is no name", "use ASCII letters, digits and underscores only")
    for node in net:
        go_on()
        if node.name in shapes:
            raise InvalidIR(f"%{node.name} is defined twice", "give every node its own name")
        if node.op == "input" and shapes:
            raise InvalidIR(f"%{node.name} is a second input", "polytriton nets have exactly one")
        for i in node.inputs:
            if i not in shapes:
                raise InvalidIR(f"%{node.name} reads %{i} before it is defined", "sort the nodes topologically")
        if min(node.shape, default=1) < 1:
            raise InvalidIR(f"%{node.name} = {node.op}: shape {list(node.shape)} holds no cell", "every dimension must be at least 1")
        if node.size > MAX_CELLS:
            raise InvalidIR(f"%{node.name} = {node.op}: {node.size} cells (limit {MAX_CELLS})", "make the network smaller")
        got = infer_shape(node, [shapes[i] for i in node.inputs], net.weights)
        if got != node.shape:
            raise InvalidIR(f"%{node.name} = {node.op}: declared {list(node.shape)}, inferred {list(got)}", "correct the declared shape")
        for key, value in node.attrs.items():
            if isinstance(value, Ref):
                _check_weight(net, node.name, key, value)
        shapes[node.name] = node.shape
    if net.output not in shapes:
        raise InvalidIR(f"net @{net.name} returns %{net.output}, which is not defined", "return a defined node")


def _check_weight(net: Net, name: str, key: str, ref: Ref) -> None:
    if ref.name not in net.weights:
        raise InvalidIR(f"%{name}: weight @{ref.name} is missing", "load the weights with the text")
    array = net.weights[ref.name]
    integral = key in ("take", "index")
    if integral != np.issubdtype(array.dtype, np.integer) or not (integral or array.dtype in (np.float32, np.float64)):
        raise InvalidIR(f"%{name}: weight @{ref.name} has type {array.dtype}", "indices are int64, weights float32 or float64")
    if not integral and not np.isfinite(array).all():
        raise InvalidIR(f"%{name}: weight @{ref.name} holds NaN or infinity", "no bound can be certified; repair or retrain the network")


def check_plan(net: Net, plan: Plan) -> None:
    """Raises InvalidIR at the first broken rule, naming program and step."""
    targets = [(p.kind, p.target) for p in plan]
    if [k for k, _ in targets].count("query") != 1 or targets[-1][0] != "query":
        raise InvalidIR(f"plan @{plan.name} does not end with its one query", "put the query last")
    if len(set(targets)) != len(targets):
        raise InvalidIR(f"plan @{plan.name} bounds a node twice", "keep one program a node")
    names = net.by_name.keys()
    for name in (*plan.halos, *(t for _, t in targets)):
        if name not in names:
            raise InvalidIR(f"plan @{plan.name} speaks of %{name}, which is not defined", "use the network the plan was made from")
    pending = relaxed_nodes(net) if any(s.pay is not None for p in plan for s in p.steps) else None
    for program in plan:
        go_on()
        _check_program(net, plan, program, pending)


def _check_program(net: Net, plan: Plan, program: Program, pending: set[str] | None) -> None:
    """`pending`: nodes that a nonlinear operator reads; None for a plan that does not say yet who pays."""

    def need(ok: bool, step: Step, why: str) -> None:
        if not ok:
            raise InvalidIR(f"{program.kind} %{program.target}: {step.op} %{step.node}: {why}", "compile the network again")

    nodes, steps = net.by_name, program.steps
    if len(steps) < 2:
        raise InvalidIR(f"{program.kind} %{program.target} has no steps", "compile the network again")
    frontier = {program.target}
    waiting: list[str] = []  # contributions to a node of the frontier that are not merged yet
    gone: set[str] = set()
    for k, step in enumerate(steps):
        need(len(step.to) == len(step.windows), step, "a window for every operand is missing")
        need(step.node in frontier, step, "is not at the frontier")
        need((k == 0) == (step.op == "start") and (k == len(steps) - 1) == (step.op == "input"), step, "stands in the wrong place")
        need(step.op == "merge" or step.node not in waiting, step, "comes before a merge")
        if step.op in ("start", "dense", "merge"):
            need(step.to == (step.node,), step, "leads to another node")
            need(step.op != "merge" or step.node in waiting, step, "has nothing to merge")
            if step.op == "merge":
                waiting.remove(step.node)
        elif step.op == "input":
            need(step.node == net.input.name and frontier == {step.node}, step, "something else is left")
        else:
            need(step.op == nodes[step.node].op and step.to == nodes[step.node].inputs, step, "is not what the network computes")
            frontier.remove(step.node)
            gone.add(step.node)
            for name in step.to:
                need(name not in gone, step, f"reaches %{name}, which was substituted before")
                waiting += [name] * (name in frontier)
                frontier.add(name)
        _check_windows(net, plan, program, step, need)
    if pending is not None:
        _check_payments(steps, pending, need)


def _check_payments(steps: tuple[Step, ...], pending: set[str], need: Need) -> None:
    """Every rounding is paid, and paid once: by its own step, or by the ReLU right before it (soundness.md, section 7)."""
    ahead: tuple[str, ...] = ()  # what the step before has paid for this one
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        need(step.pay is not None, step, "does not say what it pays")
        pay = step.pay or ()
        need(list(pay) == [k for k in PAYMENTS if k in pay], step, "pays in another order, twice, or what is not known")
        spec = OPS.get(step.op)
        owed = {"sum"} if step.op == "merge" else {"product"} if spec is not None and spec.kind not in ("nonlinear", "input") else set()
        if step.node in pending and step.op not in ("start", "dense"):
            owed.add("relu")
        own = [k for k in pay if k != "behind"]
        for kind in (*own, *ahead):
            need(kind in owed, step, f"pays {kind}, which it does not owe")
            need((*own, *ahead).count(kind) == 1, step, f"pays {kind} twice")
        for kind in owed:
            need(kind in own or kind in ahead, step, f"forgets to pay {kind}")
        ahead = ()
        if "behind" in pay:
            met = after is not None and step.op == "relu" and after.op in AHEAD and after.node == step.to[0]
            need(met and after is not None and not after.check, step, "pays for a step that is not right behind it")
            ahead = ("relu", "product")


def _check_windows(net: Net, plan: Plan, program: Program, step: Step, need: Need) -> None:
    positions = (1, 1) if program.kind == "query" else extent(net.node(program.target))[:2]
    for name, window in zip(step.to, step.windows, strict=True):
        top, left, bottom, right = plan.halos.get(name, (0, 0, 0, 0))
        sides = zip((window.h, window.w), extent(net.node(name)), positions, ((top, bottom), (left, right)), strict=False)
        for axis, cells, count, (low, high) in sides:
            need(axis.size >= 1 and axis.stride >= 0, step, f"a window over %{name} holds no cell")
            need(not axis.whole or axis == Axis(cells, 0, 0), step, f"a whole window over %{name} is not its image")
            over = axis.stride * (count - 1) - axis.offset + axis.size - cells
            need(not plan.halos or axis.whole or (axis.offset <= low and over <= high), step, f"a window leaves the margin of %{name}")
