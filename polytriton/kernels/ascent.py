"""One turn of the ascent as launches: rows go back to the input, points forward, then every slope and multiplier moves.

The way back is the Lowering of a program that charges nothing and that no row leaves, on whole images; its ReLUs take lines of the row's
own. kernels/device/ascent.py has what the kernels compute, and why nothing of it is charged.

Symbols beside a Lowering's own: `buf:0` the rows, `value:NODE` points, `low:`, `high:`, `free:`, `side:`, `mean:`, `square:`, `kept:` and
`loss:` of a ReLU's neurons, `low:` and `high:` of the input, `over`, `worth`, `best`, `better`, `goal`, `corner`, `numbers`, `turn`;
`weight:` a layer's weights on the way back, `points:` those on the way forward.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constants, Launch
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Plan, Step, extent
from polytriton.kernels.affine import AFFINE, choose_points
from polytriton.kernels.choose import GPU, Sizes, Tiles
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames, FrontierEntry
from polytriton.passes import lower, memory
from polytriton.passes.windows import DENSE_SHARE, whole

SERVED = ("input", "relu", "add", "sub", *AFFINE)
ALONE = Tiles(1 << 31, {"B": 1024}, warps=4, stages=1)  # one program, however many rows


@dataclass(frozen=True)
class AscentTurn:
    """`buffers`: values a row of each `buf:`; `met`: of each ReLU the symbol of the rows' coefficients over it; `ops`: of a row."""

    steps: tuple[Launch, ...]
    buffers: tuple[int, ...]
    met: dict[str, str]
    ops: int


def serves(net: Net) -> bool:
    """Whether every operator of the network has kernels both ways; an input whose cells were moved about has none."""
    return all(n.op in SERVED for n in net) and not net.input.attrs


class TurnLowering(Lowering):
    """Writes the launches of one turn for rows over `target`. `signed`: ReLUs with neurons of assumed signs; `over`: rows bring along
    coefficients over the input.
    """

    def __init__(
        self, emitter: Emitter, net: Net, numerics: Arithmetic, target: str, signed: Collection[str], over: bool, sizes: Sizes = GPU
    ) -> None:
        program = lower.write_program(net, target, "query", DENSE_SHARE)
        steps = tuple(_free(net, s) for s in program.steps if s.op != "dense")
        plan = memory.run(net, Plan(net.name, (replace(program, steps=steps),)))
        super().__init__(emitter, Frames(net, plan), numerics, plan.query, sizes)
        self.net, self.signed, self.over = net, signed, over
        self.met: dict[str, str] = {}

    def turn(self) -> AscentTurn:
        launches, reached = self.run(), {s.node for s in self.program.steps}
        self._corners()
        for node in (n for n in self.net if n.name in reached and n.inputs):
            self.step = Step(node.op, node.name, pay=())
            if node.op == "relu":
                self._follow(node)
            elif node.op in AFFINE:
                self._points(node)
            else:
                self._sum(node)
        self._judge()
        for relu in self.met:
            self._climb(self.nodes[relu])
        self._launch("end_turn", {}, self._bind("best", "goal", "turn"), ALONE)
        forward = sum(s.ops for s in self.program.steps if s.op in (*AFFINE, "relu"))
        return AscentTurn(tuple(launches.steps), tuple(launches.buffers), self.met, self.program.row_ops + forward)

    def _bind(self, *own: str, **given: str) -> dict[str, str]:
        return {**self._rows(), **{f"{name}_ptr": name for name in own}, **{f"{name}_ptr": symbol for name, symbol in given.items()}}

    def _of_relu(self, node: Node) -> tuple[Constants, dict[str, str]]:
        kinds = {"lo": "low", "hi": "high", **{k: k for k in ("free", "side", "mean", "square", "kept", "loss")}}
        constants: Constants = {"SIGNED": node.name in self.signed, "LOW": float(node.number("slope")), "SIZE": node.size}
        return constants, self._bind(**{p: f"{kind}:{node.name}" for p, kind in kinds.items()})

    # ---- back -------------------------------------------------------------------------------------------

    def _relu(self, node: Node, step: Step) -> None:
        entry = self._write(node.name, self.frontier.pop(node.name))
        self.met[node.name] = f"buf:{entry.buffer}"
        out, (constants, bind) = self._buffer(node.inputs[0], entry.window), self._of_relu(node)
        tiles = self.sizes.rows(node.size, tensors=2)
        bind |= {"m_ptr": self.met[node.name], "out_ptr": f"buf:{out}"}
        self._launch("relax_own", constants, bind, tiles, columns=-(-node.size // tiles.constants["BQ"]))
        self._give(step, FrontierEntry(entry.window, out))

    def _corners(self) -> None:
        node = self.net.input
        entry = self._write(node.name, self.frontier[node.name])
        bind = self._bind("over", "worth", m=f"buf:{entry.buffer}", lo=f"low:{node.name}", hi=f"high:{node.name}", out=f"value:{node.name}")
        self._launch("take_corners", {"OVER": self.over, "SIZE": node.size}, bind, self.sizes.rows(node.size, tensors=2))

    # ---- forward ----------------------------------------------------------------------------------------

    def _follow(self, node: Node) -> None:
        constants, bind = self._of_relu(node)
        bind |= self._bind("worth", m=self.met[node.name], z=f"value:{node.inputs[0]}", out=f"value:{node.name}")
        self._launch("follow_own", constants, bind, self.sizes.rows(node.size, tensors=2))

    def _points(self, node: Node) -> None:
        made, (h, w, c), g = choose_points(node, self.nodes[node.inputs[0]], self.numerics, self.sizes), extent(node), node.integer("g", 1)
        dense, bn = node.op == "linear", made.tiles.constants["BN"]
        columns = -(-node.size // bn) if dense else g * -(-(c // g) // bn)
        bind = self._bind(lo=f"value:{node.inputs[0]}", w=f"points:{node.name}", bias=f"bias:{node.name}", out=f"value:{node.name}")
        self._launch(made.function, made.constants, bind, made.tiles, cells=1 if dense else h * w, columns=columns)

    def _sum(self, node: Node) -> None:
        window, b_sign = whole(*extent(node)[:2]), -1 if node.op == "sub" else 1
        constants = self._joining(node.name, FrontierEntry(window, None), FrontierEntry(window, None, sign=b_sign), window)
        a, b = (f"value:{i}" for i in node.inputs)
        self._launch("join_rows", constants, self._bind(a=a, b=b, out=f"value:{node.name}"), self.sizes.rows(node.size, tensors=2))

    # ---- the end ----------------------------------------------------------------------------------------

    def _judge(self) -> None:
        target, source = self.nodes[self.program.target], self.net.input
        bind = self._bind("worth", "best", "better", "corner", m="buf:0", a=f"value:{target.name}", x=f"value:{source.name}")
        tiles = self.sizes.rows(max(target.size, source.size), tensors=2)
        self._launch("judge_rows", {"SIZE": target.size, "INPUTS": source.size}, bind, tiles)

    def _climb(self, node: Node) -> None:
        constants, bind = self._of_relu(node)
        bind |= self._bind("better", "numbers", "turn", m=self.met[node.name], z=f"value:{node.inputs[0]}")
        tiles = self.sizes.rows(node.size, tensors=2)
        self._launch("climb_rows", constants, bind, tiles, columns=-(-node.size // tiles.constants["BQ"]))


def _free(net: Net, step: Step) -> Step:
    """The step on whole images, without a check or a charge."""
    windows = tuple(whole(*extent(net.node(name))[:2]) for name in step.to)
    return replace(step, windows=windows, check=False, mask=False, pay=())
