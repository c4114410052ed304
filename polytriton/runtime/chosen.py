"""Slopes and multipliers that rows bring along, chosen by anyone: what a walk takes of them is sound whatever they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Window
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.relax import round_up
from polytriton.runtime.results import Rows
from polytriton.runtime.tables import Tables


@dataclass
class Chosen:
    """For some ReLUs, [rows of the program, height, width, channels]: slopes of lines below, and multipliers of operands' signs."""

    below: dict[str, Tensor]
    multipliers: dict[str, Tensor] = field(default_factory=dict)

    def relax(self, backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, m: Tensor) -> tuple[Tensor, Tensor]:
        """As the backend's `relax`, and rows over f(y) become rows over y; also the sum of intercepts, at most zero.

        A slope is taken where the box leaves the operator undecided, moved into [its own slope, 1], rounded up: there f(y) - a y is at
        least zero for every y, and the operator's own error, if it has one, is in the table's lower cut, which may only be lower.

        A multiplier b is taken where the batch says that rows may have one, the box shows its sign and the operator is a plain ReLU: M y
        = M z or 0 with nothing rounded, and M z >= (M - b) z for b > 0 and z >= 0, as for b < 0 and z <= 0. Rounding M - b is monotone:
        nothing is to be charged.
        """
        kit, source, slope = tables.kit, node.inputs[0], node.number("slope")
        frame, lines = kit.frames[node.name], tables.lines(node)
        at, mine = frame.place(rows, window), frame.place(replace(rows, image=rows.index), window)
        x, gather = m.reshape(len(m), at.height, at.line), backend._gather
        lo, hi = (gather(t, kit.frames[source].place(rows, window)) for t in tables.box(source))
        below = gather(lines.below, at)
        if slope <= 1.0:
            least = float(round_up(torch.tensor(slope, dtype=torch.float64), x.dtype))
            own = gather(frame.table(self.below[node.name].to(x.dtype)), mine).nan_to_num(1.0).clamp(least, 1.0)
            below = torch.where((lo < 0) & (hi > 0), own, below)
        total = (x.clamp(max=0).double() * gather(lines.upper_cut, at).double()).sum((1, 2))
        if lines.lower_cut is not None:
            total = total + (x.clamp(min=0).double() * gather(lines.lower_cut, at).double()).sum((1, 2))
        out = x * torch.where(x < 0, gather(lines.above, at), below)
        less, signed = self.multipliers.get(node.name), tables.boxes.signed.get(node.name)
        if less is not None and signed is not None and slope == 0.0:
            b = gather(frame.table(less.to(x.dtype)), mine).nan_to_num(0.0, 0.0, 0.0)
            may = gather(frame.table(signed.to(x.dtype)), at) != 0
            out = out - torch.where(may & (((b > 0) & (lo >= 0)) | ((b < 0) & (hi <= 0))), b, torch.zeros_like(b))
        return out.view_as(m), total
