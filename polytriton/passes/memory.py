"""What a row costs: floating-point operations and bytes of every step, and how far windows reach off each image.

Bytes count coefficients of the wider type (float64); a run in float32 needs half. The chunk size follows from the
largest step of a program and the budget, never from trial and error.
"""

from __future__ import annotations

from dataclasses import replace

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Plan, Program, Step, Window, extent
from polytriton.limit import go_on
from polytriton.passes.windows import overhang

NAME = "memory"
WORD = 8


def requires(net: Net, plan: Plan) -> str | None:
    return None


def run(net: Net, plan: Plan) -> Plan:
    nodes = net.by_name
    halos: dict[str, tuple[int, int, int, int]] = {}
    programs = []
    for p in plan:
        go_on()
        programs.append(_cost(nodes, p, net, halos))
    return replace(plan, programs=tuple(programs), halos=halos)


def ensures(net: Net, plan: Plan) -> str | None:
    for p in plan:
        if p.row_bytes <= 0:
            return f"the program of %{p.target} costs nothing"
    return None


def chunk_rows(program: Program, word: int, budget: int) -> int:
    """Rows that fit the budget at once when coefficients take `word` bytes; 0 where not even one does."""
    return int(budget // max(1, program.row_bytes * word // WORD))


def _values(node: Node, window: Window) -> int:
    return window.cells * extent(node)[2]


def _ops(net: Net, node: Node, step: Step, window: Window) -> int:
    """Multiplications and additions of one step on one row (what a dense implementation performs)."""
    size = _values(node, window)
    if step.op == "conv":
        w = net.weight(node, "w")
        assert w is not None
        return 2 * size * int(w.shape[1] * w.shape[2] * w.shape[3]) + 4 * size
    if step.op == "linear":
        return 2 * node.size * net.by_name[node.inputs[0]].size + 4 * node.size
    if step.op == "maxpool":
        k = node.ints("k")
        return 4 * size * k[0] * k[1]
    return {"relu": 8, "mul": 10, **dict.fromkeys(CURVES, 8), "scale": 6, "merge": 4, "input": 4}.get(step.op, 0) * size


def _cost(nodes: dict[str, Node], program: Program, net: Net, halos: dict[str, tuple[int, int, int, int]]) -> Program:
    th, tw, _ = extent(nodes[program.target])
    frontier: dict[str, Window] = {}
    steps: list[Step] = []
    for step in program.steps:
        before = frontier.get(step.node) or step.windows[0]
        ops = _ops(net, nodes[step.node], step, before)
        held = sum(_values(nodes[n], w) for n, w in frontier.items())
        made = sum(_values(nodes[n], w) for n, w in zip(step.to, step.windows, strict=True))
        scratch = _scratch(net, nodes[step.node], step, before)
        if step.op not in ("start", "merge", "dense"):
            frontier.pop(step.node, None)
        merged = [(n, w) for n, w in zip(step.to, step.windows, strict=True) if n not in frontier]
        frontier.update(merged)
        steps.append(replace(step, ops=ops, bytes=WORD * (held + made + scratch)))
        for name, w in zip(step.to, step.windows, strict=True):
            positions = (th, tw) if not w.whole else (1, 1)
            h, wd, _ = extent(nodes[name])
            (t, b), (l_, r) = overhang(w.h, positions[0], h), overhang(w.w, positions[1], wd)
            old = halos.get(name, (0, 0, 0, 0))
            halos[name] = (max(old[0], t), max(old[1], l_), max(old[2], b), max(old[3], r))
        if step.op in ("merge", "dense"):
            frontier[step.node] = step.windows[0]
    return replace(program, steps=tuple(steps))


def _scratch(net: Net, node: Node, step: Step, window: Window) -> int:
    """Temporary values of the slowest form of the step: gathered tables, or a product before it is shifted and summed."""
    size = _values(node, window)
    if step.op == "conv":
        w = net.weight(node, "w")
        assert w is not None
        return size + window.cells * int(w.shape[1] * node.integer("g", 1) * w.shape[2] * w.shape[3])
    return 6 * size
