"""Which cells a row truly depends on, by brute force, and whether a plan's windows hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Axis, Program, Step, Window, extent
from polytriton.passes.pipeline import fold_net, make_plan

Cell = tuple[int, int]


def cells(axis: Axis, i: int) -> set[int]:
    start = axis.stride * i - axis.offset
    return set(range(start, start + axis.size))


@dataclass
class Dependence:
    """Which cells of each frontier node one row truly depends on; `inside` drops those off the image at once."""

    net: Net
    inside: bool
    frontier: dict[str, set[Cell]] = field(default_factory=dict)

    def begin(self, target: str, at: set[Cell]) -> None:
        self.frontier = {target: at}

    def _taps(self, node: Node, some: set[Cell]) -> Iterator[Cell]:
        k, s, p, d = node.ints("k"), node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0)), node.ints("d", (1, 1))
        for h, w in some:
            for i in range(k[0]):
                for j in range(k[1]):
                    yield h * s[0] - p[0] + i * d[0], w * s[1] - p[1] + j * d[1]

    def substitute(self, step: Step) -> list[set[Cell]]:
        """Moves on; what each operand received from this step alone."""
        node = self.net.node(step.node)
        some = self.frontier.pop(step.node)
        given = []
        for to in node.inputs:
            h, w, _ = extent(self.net.node(to))
            image = {(i, j) for i in range(h) for j in range(w)}
            if node.op in ("conv", "maxpool"):
                got = set(self._taps(node, some))
            elif node.op in ("relu", "scale", "add", "sub", "concat"):
                got = set(some)
            else:
                got = image
            given.append(got & image if self.inside else got)
            self.frontier[to] = self.frontier.get(to, set()) | given[-1]
        return given


def rows(program: Program, net: Net) -> Iterator[tuple[int, int, set[Cell]]]:
    h, w, _ = extent(net.node(program.target))
    if program.kind == "query":
        yield 0, 0, {(i, j) for i in range(h) for j in range(w)}
        return
    for i in range(h):
        for j in range(w):
            yield i, j, {(i, j)}


def contains(net: Net) -> None:
    """Every true dependence lies in its window, at every step and row."""
    folded = fold_net(net)
    for program in make_plan(folded):
        for i, j, at in rows(program, folded):
            truth = Dependence(folded, inside=True)
            truth.begin(program.target, at)
            waiting: list[str] = []  # contributions that a merge has not yet joined
            for step in program.steps[1:-1]:
                if step.op in ("dense", "merge"):
                    if step.op == "merge":
                        waiting.remove(step.node)
                    if step.node not in waiting:
                        holds(step.windows[0], i, j, truth.frontier[step.node], step)
                    continue
                before = set(truth.frontier)
                for to, window, given_ in zip(step.to, step.windows, truth.substitute(step), strict=True):
                    holds(window, i, j, given_, step)
                    waiting += [to] * (to in before)
                    before.add(to)
            assert not waiting, "a contribution was never merged"
            assert set(truth.frontier) == {folded.input.name}


def holds(window: Window, i: int, j: int, truth: set[Cell], step: Step) -> None:
    """Every cell that row i, j depends on lies in its window."""
    missing = {(h, w) for h, w in truth if h not in cells(window.h, i) or w not in cells(window.w, j)}
    assert not missing, f"{step}: row {i},{j} depends on {sorted(missing)[:3]} outside its window"
