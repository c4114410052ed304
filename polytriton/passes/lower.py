"""Net -> Plan: one back-substitution program for every node a nonlinear operator reads, and one for the query.

A frontier of (node, window) starts at the target. The topologically latest node is substituted first, so a node is
reached only when all its readers are done. What they leave on it meets by `merge`, on the union of their windows: the
branches of a residual sum at the node where they part, its immediate dominator, without anyone having to name it.
"""

from __future__ import annotations

import numpy as np

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import OPS, relaxed_nodes
from polytriton.ir.plan import Plan, Program, Step, Window, extent
from polytriton.limit import go_on
from polytriton.passes import windows as win

NAME = "lower"
RESTS = ("relu", "maxpool", "mul", "input", *CURVES)  # a window may hang over the image's border where one of these comes next


def requires(net: Net) -> str | None:
    """Layout operators other than a gather are gone."""
    for n in net:
        if n.op in ("reshape", "transpose", "slice", "pad"):
            return f"%{n.name}: {n.op} was not folded"
    return None


def bounded_nodes(net: Net) -> list[str]:
    """Nodes whose bounds decide a relaxation and are not known from their own operand's box alone."""
    wanted = relaxed_nodes(net)
    return [n.name for n in net if n.name in wanted and OPS[n.op].kind not in ("nonlinear", "input")]


def run(net: Net, share: float = win.DENSE_SHARE) -> Plan:
    """`share`: of an image's cells from which on a window becomes the whole image. The cells that it gains have zero coefficients."""
    nodes = net.by_name
    # one affine layer over the input box: the interval pass is exact there already
    deep = [n for n in bounded_nodes(net) if nodes[n].inputs != (net.input.name,)]
    programs = [write_program(net, name, "bound", share) for name in deep]
    programs.append(write_program(net, net.output, "query", share))
    return Plan(net.name, tuple(programs))


def ensures(plan: Plan) -> str | None:
    for p in plan:
        if not p.steps or p.steps[0].op != "start" or p.steps[-1].op != "input":
            return f"the program of %{p.target} does not run from start to input"
    return None


def channel_gather(net: Net, node: Node) -> np.ndarray | None:
    """The channel picked for each output channel where a gather moves whole channels of an image (or of a vector)."""
    source = net.node(node.inputs[0])
    index = net.weight(node, "index")
    assert index is not None
    if len(source.shape) != 3 or len(node.shape) != 3 or source.shape[1:] != node.shape[1:]:
        return None
    cells = source.shape[1] * source.shape[2]
    grid = index.reshape(node.shape[0], cells)
    picked = grid[:, 0] // cells
    return picked if bool((grid == picked[:, None] * cells + np.arange(cells)).all()) and index.min() >= 0 else None


class _ProgramWriter:
    """Writes one program: the frontier maps a node to the window its coefficients stand on."""

    def __init__(self, net: Net, target: str, kind: str, share: float) -> None:
        self.nodes = net.by_name
        self.net, self.share = net, share
        self.order = {n.name: i for i, n in enumerate(net)}
        th, tw, _ = extent(self.nodes[target])
        query = kind == "query" or (th, tw) == (1, 1)
        self.positions = (1, 1) if query else (th, tw)
        start = win.whole(th, tw) if query else win.POINT
        self.frontier: dict[str, Window] = {target: start}
        self.steps = [Step("start", target, (target,), (start,))]

    def image(self, name: str) -> tuple[int, int]:
        h, w, _ = extent(self.nodes[name])
        return h, w

    def to_dense(self, name: str) -> None:
        self._widen(name, win.whole(*self.image(name)))

    def _widen(self, name: str, window: Window) -> None:
        if self.frontier[name] != window:
            self.frontier[name] = window
            self.steps.append(Step("dense", name, (name,), (window,)))

    def put(self, step: Step) -> None:
        """Appends a step and moves its windows to the frontier, uniting where a node is there already."""
        self.steps.append(step)
        for name, window in zip(step.to, step.windows, strict=True):
            if name in self.frontier:
                window = self._densify(name, win.union(self.frontier[name], window, self.image(name)))
                self.frontier[name] = window
                self.steps.append(Step("merge", name, (name,), (window,)))
            else:
                self.frontier[name] = window
        for name in dict.fromkeys(step.to):
            self._widen(name, self._densify(name, self.frontier[name]))

    def _densify(self, name: str, window: Window) -> Window:
        return win.densify(window, self.image(name), self.share)

    def substitute(self, node: Node) -> None:
        if node.op == "linear" or (node.op == "concat" and not self._by_channel(node)):
            self.to_dense(node.name)
        if node.op == "gather" and channel_gather(self.net, node) is None:
            self.to_dense(node.name)
        window = self.frontier.pop(node.name)
        to = node.inputs
        if node.op in ("conv", "maxpool"):
            k, s, p, d = node.ints("k"), node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0)), node.ints("d", (1, 1))
            grown = Window(win.input_axis(window.h, k[0], s[0], p[0], d[0]), win.input_axis(window.w, k[1], s[1], p[1], d[1]))
            out = win.clip_window(grown, self.positions, self.image(to[0]))
            self.put(Step(node.op, node.name, to, (out,), mask=self._needs_mask(to[0], out)))
        elif node.op in ("linear", "gather"):
            moved = node.op == "gather" and channel_gather(self.net, node) is not None
            self.put(Step(node.op, node.name, to, (window if moved else win.whole(*self.image(to[0])),)))
        elif node.op == "concat" and not self._by_channel(node):
            self.put(Step(node.op, node.name, to, tuple(win.whole(*self.image(o)) for o in to)))
        else:
            self.put(Step(node.op, node.name, to, (window,) * len(to)))

    def _by_channel(self, node: Node) -> bool:
        return node.integer("axis") == 0 and (len(node.shape) == 3 or len(node.shape) == 1)

    def _needs_mask(self, name: str, window: Window) -> bool:
        """An affine node's coefficients off the image would be carried on; other nodes meet them with zeros."""
        over = [win.overhang(a, p, n) for a, p, n in zip((window.h, window.w), self.positions, self.image(name), strict=True)]
        return self.nodes[name].op not in RESTS and any(max(o) > 0 for o in over)


def write_program(net: Net, target: str, kind: str, share: float) -> Program:
    """The steps from a node back to the input; nothing is said yet of checks, charges and costs."""
    writer = _ProgramWriter(net, target, kind, share)
    while True:
        latest = max(writer.frontier, key=lambda name: writer.order[name])
        if latest == net.input.name:
            break
        go_on()
        writer.substitute(writer.nodes[latest])
    writer.steps.append(Step("input", net.input.name))
    return Program(kind, target, tuple(writer.steps))
