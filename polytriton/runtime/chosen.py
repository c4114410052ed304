"""Slopes and multipliers that rows bring along, chosen by anyone: what a walk takes of them is sound whatever they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Window
from polytriton.runtime.cpu.torch_backend import OwnLines, Place, TorchBackend
from polytriton.runtime.curves import curve_cuts
from polytriton.runtime.planes import plane_cuts
from polytriton.runtime.relax import round_up
from polytriton.runtime.results import Rows
from polytriton.runtime.tables import Tables


@dataclass
class Chosen:
    """For some operators, [rows of the program, height, width, channels]: slopes of a ReLU's line below, of the line that the row takes
    beside a smooth function, of its plane beside a product (`second`: by the other factor); multipliers of the signs of ReLUs' operands,
    and of the ends of smooth functions' boxes.
    """

    slopes: dict[str, Tensor]
    multipliers: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)

    def relax(self, backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, m: Tensor) -> tuple[Tensor, Tensor]:
        """As the backend's `relax`, and rows over f(y) become rows over y; also the sum of intercepts, at most zero.

        A slope is taken where the box leaves the operator undecided, moved into [its own slope, 1], rounded up: there f(y) - a y is at
        least zero for every y, and the operator's own error, if it has one, is in the table's lower cut, which may only be lower.

        A multiplier b is taken where the batch says that rows may have one, the box shows its sign and the operator is a plain ReLU: M y
        = M z or 0 with nothing rounded, and M z >= (M - b) z for b > 0 and z >= 0, as for b < 0 and z <= 0. Rounding M - b is monotone:
        nothing is to be charged.
        """
        kit, source, slope = tables.kit, node.inputs[0], node.number("slope")
        frame, (lo, hi) = kit.frames[node.name], tables.box(source)
        mine = frame.place(replace(rows, image=rows.index), window)

        def table(values: Tensor) -> Tensor:
            return frame.table(values.to(m.dtype))

        least = float(round_up(torch.tensor(slope, dtype=torch.float64), m.dtype))
        own, signed = OwnLines(mine, least, table(self.slopes[node.name])), tables.boxes.signed.get(node.name)
        if node.name in self.multipliers and signed is not None and slope == 0.0:
            own = replace(own, multipliers=table(self.multipliers[node.name]), may=table(signed))
        box = lo, hi, kit.frames[source].place(rows, window)
        return backend.relax_chosen(m, frame.place(rows, window), tables.lines(node), box, own)

    def bend(
        self, backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, m: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rows over a smooth function f(y) become rows over y; also the constant of each cell, float64, the sum of its parts' magnitudes,
        and the products that were rounded before a multiplier changed them.

        A cut is taken of the stored slope, whatever it is, over the box as the tables have it: outside the one that lines are made of. It
        is below f where m > 0, above where m < 0.

        A multiplier b makes N' of a coefficient N, about N - b. Whatever N' is, N y >= N' y + (N - N') e, with e the lower end of y's box
        where N > N' and the upper one where N < N'.
        """
        x, at, inside = self._cells(backend, tables, rows, node, window, m)
        k = self._own(self.slopes, backend, tables, rows, node, window, x)
        lo, hi = (backend._gather(t, tables.kit.frames[node.inputs[0]].place(rows, window)).double() for t in tables.box(node.inputs[0]))
        error, used = self._error(backend, tables, node, at), inside & (x != 0)
        cuts = torch.zeros_like(x)
        cuts[used] = curve_cuts(node, lo[used], hi[used], k[used], x[used] < 0, None if error is None else error[used])
        constant = x.double() * cuts.double()
        n = x * torch.where(inside, k, torch.zeros_like(k))
        if node.name not in self.multipliers:
            return n.view_as(m), constant, constant.abs(), None
        less = self._own(self.multipliers, backend, tables, rows, node, window, x)
        left = torch.where(inside & torch.isfinite(lo) & torch.isfinite(hi), n - less, n)
        moved = n.double() - left.double()
        taken = torch.where(moved == 0, torch.zeros_like(moved), moved * torch.where(moved > 0, lo, hi))
        rounded = torch.where(moved == 0, torch.zeros_like(n), n)
        return left.view_as(m), constant + taken, constant.abs() + taken.abs(), rounded.view_as(m)

    def tilt(
        self, backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, m: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rows over a product become rows over its two factors; also the constant of each cell, as for a smooth function."""
        x, at, inside = self._cells(backend, tables, rows, node, window, m)
        slopes = [self._own(v, backend, tables, rows, node, window, x) for v in (self.slopes, self.second)]
        frames = tables.kit.frames
        ends = [[backend._gather(t, frames[i].place(rows, window)).double() for t in tables.box(i)] for i in node.inputs]
        (a, b), (c, d) = ends
        low, high = plane_cuts(slopes[0], slopes[1], (a, c), (b, d), self._error(backend, tables, node, at))
        zero = torch.zeros_like(x)
        cuts = torch.where(inside & (x != 0), torch.where(x < 0, high, low), zero)
        first, second = ((x * torch.where(inside, k, zero)).view_as(m) for k in slopes)
        return (first, second), x.double() * cuts.double()

    def _cells(
        self, backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, m: Tensor
    ) -> tuple[Tensor, Place, Tensor]:
        """Coefficients by cells, where these lie, and which lie on the image: what is beside it is no value of the function."""
        at = tables.kit.frames[node.name].place(rows, window)
        return m.reshape(len(m), at.height, at.line), at, backend._gather(tables.image_mask(node.name), at) != 0

    def _own(
        self, values: dict[str, Tensor], backend: TorchBackend, tables: Tables, rows: Rows, node: Node, window: Window, x: Tensor
    ) -> Tensor:
        """What rows bring of their own, as numbers of the coefficient type; what is no number is zero."""
        frame = tables.kit.frames[node.name]
        mine = frame.place(replace(rows, image=rows.index), window)
        return backend._gather(frame.table(values[node.name].to(x.dtype)), mine).nan_to_num(0.0, 0.0, 0.0)

    def _error(self, backend: TorchBackend, tables: Tables, node: Node, at: Place) -> Tensor | None:
        """How far the deployed result may lie from the exact one."""
        if tables.kit.forward.semantics.real:
            return None
        return backend._gather(tables.kit.frames[node.name].table(tables.boxes.error[node.name]), at)
