"""The ascent by generated kernels: whole turns are asked for, and nothing in one waits for the host.

`AscentKernels` stands in for `Ascent`, and is one: what has no kernel goes through torch as on a CPU. What it proposes needs no trust
either (kernels/device/ascent.py). A turn of all rows is a fixed list of launches (kernels/ascent.py) on tensors that stay where they are;
rates and the number of the turn lie on the device. So the host asks for turn after turn, and looks at the clock on the way: it is never
more than AHEAD turns before the device, so that a search still ends when it should.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net, Node
from polytriton.kernels.ascent import AscentTurn, TurnLowering, serves
from polytriton.kernels.choose import Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.runtime.ascent import DECAY, Ascent, AscentRows
from polytriton.runtime.ascent_lines import BESIDE, FIRST, SECOND, Found
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.layers import Layer, from_physical, to_physical
from polytriton.runtime.settings import on_device

NUMERICS = "float32"
AHEAD = 4  # turns
NUMBERS = 4  # of a turn: kernels.device.ascent.RATES


@dataclass
class _Neurons:
    """A ReLU's, [rows, height, width, channels]: their boxes, the signs assumed of them, and their free numbers."""

    lo: Tensor
    hi: Tensor
    side: Tensor | None
    free: Tensor

    @property
    def open(self) -> Tensor:
        return (self.lo < 0) & (self.hi > 0)


def turn_kernels(net: Net, targets: Iterable[str], sizes: Sizes) -> list[Kernel]:
    """Those of the turns that a search asks for: rows over a target, under no assumed signs and under signs of every ReLU."""
    emitter, relus = Emitter(), frozenset(n.name for n in net if n.op == "relu")
    for target in targets if serves(net) else ():
        for signed in (frozenset[str](), relus):
            TurnLowering(emitter, net, ARITHMETICS[NUMERICS], target, signed, False, sizes).turn()
    return list(emitter.kernels.values())


class AscentKernels(Ascent):
    """The ascent for one network on the device of a backend, whose kernels it shares."""

    def __init__(self, backend: TritonBackend, expire: Callable[[], None] = lambda: None) -> None:
        super().__init__(backend.kit.net, backend.device, expire)
        self.backend, self.layers, self.device = backend, backend.kit.forward.layers, backend.device
        self.by_kernels = serves(self.net)
        self._emitter = Emitter(stock=backend.stock)
        self._turns: dict[tuple[str, frozenset[str], bool], AscentTurn] = {}
        self._weights: dict[str, Tensor] = {}

    def improve(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        if not self.by_kernels or not len(rows.start):
            return super().improve(rows, steps, rate)
        with torch.inference_mode():
            return self._climb(rows, steps, rate)

    def turn(self, rows: AscentRows) -> AscentTurn:
        key = rows.target, frozenset(rows.signs), rows.over_input is not None
        if key not in self._turns:
            lowering = TurnLowering(self._emitter, self.net, ARITHMETICS[NUMERICS], *key, self.backend.sizes)
            self._turns[key] = lowering.turn()
        return self._turns[key]

    def _climb(self, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        turn, count = self.turn(rows), len(rows.start)
        neurons = {relu: self._neurons(rows, self.net.node(relu)) for relu in turn.met}
        tensors = self._tensors(rows, turn, neurons, steps, rate)
        part = Part([self.backend.call(launch, count, tensors.__getitem__) for launch in turn.steps], 0)
        waits: deque[Any] = deque()
        with on_device(self.device):
            try:
                for _ in range(steps + 1):
                    if len(waits) == AHEAD:
                        waits.popleft().synchronize()
                    self.expire()  # ends the ascent as the clock ends a search: by raising
                    self.backend.part(part)  # a graph from the second turn on
                    if self.device.type == "cuda":
                        waits.append(torch.cuda.Event())
                        waits[-1].record()
            finally:
                if part.graph is not None and waits:
                    waits[-1].synchronize()  # the graph goes with this call
        self.corners = from_physical(tensors["corner"], self.net.input.shape).flatten(1)
        return {relu: self._collect(relu, n, tensors) for relu, n in neurons.items()}

    # ---- tensors ----------------------------------------------------------------------------------------

    def _physical(self, values: Tensor, node: Node) -> Tensor:
        return to_physical(values.to(self.device, torch.float32), node.shape).contiguous()

    def _neurons(self, rows: AscentRows, node: Node) -> _Neurons:
        """Boxes and where the ascent begins: DeepPoly's slopes and no multipliers, or what the rows bring along."""
        lo, hi = (self._physical(v, node) for v in rows.operands[node.inputs[0]])
        sign, below, multiplier = (
            None if v is None else self._physical(v, node) for v in (d.get(node.name) for d in (rows.signs, rows.slopes, rows.multipliers))
        )
        slopes = torch.where(hi > -lo, 1.0, node.number("slope")) if below is None else below
        free = torch.zeros_like(lo) if multiplier is None else multiplier.clamp(min=0)
        side = None if sign is None else sign.to(torch.int8)
        return _Neurons(lo, hi, side, torch.where((lo < 0) & (hi > 0), slopes, free))

    def _tensors(self, rows: AscentRows, turn: AscentTurn, neurons: Mapping[str, _Neurons], steps: int, rate: float) -> dict[str, Tensor]:
        """What every symbol stands for."""
        count, source, target = len(rows.start), self.net.input, self.net.node(rows.target)
        made = {f"buf:{k}": self._empty(count, size) for k, size in enumerate(turn.buffers)}
        made["buf:0"] = self._physical(rows.start, target)
        made |= {"low:" + source.name: self._physical(rows.lo, source), "high:" + source.name: self._physical(rows.hi, source)}
        for node in self._find_sources(rows.target):
            made[f"value:{node.name}"] = self._empty(count, node.size)
            made |= self._of_layer(node) if node.name in self.layers else {}
        for relu, n in neurons.items():
            made |= {f"low:{relu}": n.lo, f"high:{relu}": n.hi, f"free:{relu}": n.free, f"kept:{relu}": n.free.clone()}
            made |= {f"{kind}:{relu}": torch.zeros_like(n.lo) for kind in ("mean", "square", "loss")}
            made |= {} if n.side is None else {f"side:{relu}": n.side}
        if rows.over_input is not None:
            made["over"] = self._physical(rows.over_input, source)
        goal = torch.zeros(count) if rows.constant is None else rows.constant
        made["corner"] = made["low:" + source.name].clone()
        made["goal"] = goal.to(self.device, torch.float32).double()
        made["worth"] = torch.zeros(count, dtype=torch.float64, device=self.device)
        made["best"] = torch.full((count,), -torch.inf, dtype=torch.float64, device=self.device)
        made["better"] = torch.zeros(count, dtype=torch.int8, device=self.device)
        made["count:0"] = torch.tensor([count], dtype=torch.int64, device=self.device)
        made["turn"] = torch.zeros(1, dtype=torch.int64, device=self.device)
        rates = [(rate * DECAY**k, BESIDE * rate * DECAY**k, 1 / (1 - FIRST**k), 1 / (1 - SECOND**k)) for k in range(1, steps + 2)]
        made["numbers"] = torch.tensor(rates, dtype=torch.float64, device=self.device)
        return made

    def _empty(self, count: int, size: int) -> Tensor:
        return torch.empty(count, size, dtype=torch.float32, device=self.device)

    def _of_layer(self, node: Node) -> dict[str, Tensor]:
        """A layer's weights as the kernels read them, made once: [K, N] one way is [N, K] the other."""
        symbols = [f"{kind}:{node.name}" for kind in ("points", "weight", "bias")]
        if symbols[0] not in self._weights:
            layer: Layer = self.layers[node.name]
            w, dense = layer.stored.float(), node.op == "linear"
            points = w.contiguous() if dense else w.permute(0, 2, 3, 1).contiguous()
            back = points if dense else w.permute(2, 3, 0, 1).contiguous()
            self._weights |= dict(zip(symbols, (points, back, layer.b.flatten().contiguous()), strict=True))
        return {s: self._weights[s] for s in symbols}

    def _collect(self, relu: str, n: _Neurons, tensors: Mapping[str, Tensor]) -> Found:
        node, kept = self.net.node(relu), tensors[f"kept:{relu}"]
        below = torch.where(n.open, kept, torch.where(n.lo >= 0, 1.0, node.number("slope")))
        signed = None if n.side is None else torch.where(n.open, 0.0, n.side * kept)
        values = (None if v is None else from_physical(v, node.shape) for v in (below, signed, tensors[f"loss:{relu}"]))
        return Found(*values)  # type: ignore[arg-type]
