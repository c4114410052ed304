"""Single nodes of an interval pass, by the launches that a script lists for them."""

from __future__ import annotations

import torch

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Plan
from polytriton.ir.script import HeldSymbols, RunScript
from polytriton.kernels.affine import count_source
from polytriton.kernels.script import DEPLOYMENTS, ScriptLowering, deployment
from polytriton.runtime.forward import AffineParts, Boxes, Forward
from polytriton.runtime.gpu.places import Places
from polytriton.runtime.gpu.player import RunState
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.kit import Kit
from polytriton.runtime.soundness import SEMANTICS, flushes
from polytriton.runtime.tables import Tables

CPU = torch.device("cpu")
Sizes = tuple[torch.Tensor, torch.Tensor]  # the largest magnitude and the sum of magnitudes of every part of an image, [batch, parts]


class NodeRun:
    """A network whose nodes are transferred one at a time."""

    def __init__(self, net: Net, semantics: str) -> None:
        self.net, self.forward = net, Forward(net, SEMANTICS[semantics], CPU)
        self.kit = Kit(net, Plan(net.name, ()), self.forward, ARITHMETICS["float64"])
        self.backend = TritonBackend(self.kit, "float64", CPU, True, 1 << 30)
        self.places = Places(self.backend, 0)

    def lowering(self, held: list[str]) -> ScriptLowering:
        sem = self.forward.semantics
        how = DEPLOYMENTS[deployment(sem.real, sem.passes, flushes(sem))]
        made = ScriptLowering(self.backend.emitter, self.backend.frames, self.backend.numerics, how, True)
        made.begin("interval")
        made.held = HeldSymbols(s for name in held for s in (f"low:{name}", f"high:{name}"))
        return made

    def transfer(self, node: Node, boxes: Boxes) -> None:
        """Adds the node's box, magnitude and error."""
        made = self.lowering(list(node.inputs))
        made.box(node)
        self._play(made, boxes)

    def sums(self, node: Node, boxes: Boxes) -> AffineParts:
        """What the layer's kernel alone makes."""
        made = self.lowering(list(node.inputs))
        made._sums(node, count_source(node, self.forward.semantics.real))
        self._play(made, boxes)
        return self.places.sums(node.name)

    def measure(self, name: str, boxes: Boxes) -> Sizes:
        made = self.lowering([name])
        made._measure_once(name)
        self._play(made, boxes)
        return self.sizes(name)

    def sizes(self, name: str) -> Sizes:
        biggest, total = (self.places.tensor(f"{kind}:{name}").view(self.places.batch, -1) for kind in ("biggest", "total"))
        return biggest, total

    def _play(self, made: ScriptLowering, boxes: Boxes) -> None:
        self.backend.script = RunScript(self.net.name, {"interval": made.out})
        self.backend.player.parts.clear()
        self.places = Places(self.backend, boxes.batch)
        for end, values in (("low", boxes.lo), ("high", boxes.hi)):
            for name, value in values.items():
                self.places.put(f"{end}:{name}", value)
        self.backend.player._go(RunState("interval", self.places, boxes, Tables(self.kit, boxes)))
