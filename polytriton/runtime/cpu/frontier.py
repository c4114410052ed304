"""What a block of rows stands on while a program is walked, and how its constants and errors are paid.

Invariant of every row before and after every step: target >= sum over the frontier of M.x + constant - error, where the constant is
still to lose the value at its centre of every entry in `owed`: the next pass over the entry's coefficients makes it by the way.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Step, Window
from polytriton.rounding import dot_error, sum_error
from polytriton.runtime.cpu.torch_backend import Place, Rows, TorchBackend
from polytriton.runtime.narrow import Narrow
from polytriton.runtime.results import Identity
from polytriton.runtime.tables import Tables

Entry = tuple["Tensor | Identity", Window]


class Frontier:
    """A block of rows, the entries they have at nodes, and what these owe."""

    def __init__(self, backend: TorchBackend, tables: Tables, rows: Rows) -> None:
        self.backend, self.tables, self.rows, self.kit = backend, tables, rows, tables.kit
        self.frontier: dict[str, Entry] = {}
        self.arriving: dict[str, list[Entry]] = {}
        self.narrow: dict[str, Narrow] = {}  # entries that have these cells alone: between a dense layer, a ReLU and the next layer
        self.owed: dict[str, Tensor] = {}  # of entries that a product made: its centre's point, a table (centres.py)

    def _place(self, name: str, window: Window) -> Place:
        """Where the rows' windows lie in the node's tables."""
        return self.kit.frames[name].place(self.rows, window)

    def _extent(self, name: str) -> tuple[int, int, int]:
        f = self.kit.frames[name]
        return f.h, f.w, f.channels

    def _pay_pending(self, step: Step, m: Tensor, window: Window) -> None:
        """Charges the rounding of M_j lambda_j at once, where the step pays it and has no vector that contains it."""
        if step.pays("relu"):
            name, place = step.node, self._place(step.node, window)
            weight = self.backend.weigh(m, place, self.tables.xabs(name))
            scale = self.kit.pending[name] * sum_error(place.height * place.line)
            self.backend.pay(self.rows, None, 0.0, weight, scale, self.tables.floor(name))

    def _pay_product(self, step: Step, m: Tensor | Identity, window: Window) -> None:
        """Charges substituting the step's affine node, where the step pays it."""
        if not step.pays("product"):
            return
        if isinstance(m, Identity):
            self._charge_identity(step.node, m)
        else:
            self._charge(step.node, m, window)

    def _charge(self, name: str, m: Tensor, window: Window) -> None:
        """The constant and the error of substituting an affine node."""
        place = self._place(name, window)
        t, floor = self.tables.charge(name)
        spatial = self.kit.varies(name) and not window.whole
        bias = torch.zeros(1, place.line, dtype=torch.float64, device=m.device) if spatial else self.tables.constants(name, place.width)
        constant, error = self.backend.charge(m, place, t, bias)
        if spatial:
            b = self.kit.forward.layers[name].b
            table = self.kit.frames[name].table(b.expand(self.tables.boxes.batch, *b.shape))
            constant = self.backend.table_dot(m, place, table)
        self.backend.pay(self.rows, constant, 1.0, error, sum_error(place.height * place.line), floor)

    def _owe_centre(self, step: Step) -> None:
        """The value at its centre of a product just given is to leave the constant, which has the centre's image for it (centres.py)."""
        found, name = self.tables.centre_tables(step.node), step.to[0]
        if found is not None and self.arriving.get(name):  # what waits there has no pass of its own
            self._pay_centre(name, self.arriving[name][-1], found[1])
        elif found is not None:
            point, held = found[1], self.narrow.get(name)
            self.owed[name] = point if held is None else held.point(step.node, point)

    def _leave_centre(self, name: str) -> None:
        """Pays what an entry of the frontier owes by a pass of its own."""
        point = self.owed.pop(name, None)
        if point is not None:
            self._pay_centre(name, self.frontier[name], point)

    def _pay_centre(self, name: str, entry: Entry, point: Tensor) -> None:
        """What the sum rounds was charged with the product (`Tables._vector`)."""
        m, window = entry
        assert isinstance(m, Tensor)
        value, *_ = self.backend.concretize(m, self._place(name, window), point, point)
        self.backend.pay(self.rows, value, -1.0)

    def _charge_identity(self, name: str, m: Identity) -> None:
        """The same for a row that is one neuron: no sum, so no rounding but the vector's own."""
        at = (self.rows.image, self.rows.h, self.rows.w, m.channel)
        layer = self.kit.forward.layers.get(name)
        constant = None
        if layer is not None:
            constant = m.sign * (layer.b[m.channel] if layer.node.op == "conv" else layer.b[at[1:]])
        self.backend.pay(self.rows, constant, 1.0, self.tables.first(name)[at])

    def _pay_cuts(self, each: Tensor, size: Tensor) -> None:
        """The constants of rows with slopes of their own, two products a cell at most, and what their sum rounds."""
        terms = 2 * each.shape[1] * each.shape[2]
        self.backend.pay(self.rows, each.sum((1, 2)), 1.0, size.sum((1, 2)), 2 * dot_error(terms) * sum_error(terms))

    # ---- frontier ---------------------------------------------------------------------------------------

    def _take(self, node: Node) -> Entry:
        self._leave_centre(node.name)
        return self.frontier.pop(node.name)

    def _give(self, step: Step, *entries: Tensor | Identity) -> None:
        for name, window, entry in zip(step.to, step.windows, entries, strict=True):
            if name in self.frontier:
                self.arriving.setdefault(name, []).append((entry, window))
            else:
                self.frontier[name] = (entry, window)

    def _matrix(self, name: str, m: Identity) -> Tensor:
        """Identity rows written out on a 1x1 window (or on a vector)."""
        frame = self.kit.frames[name]
        out = torch.zeros(len(self.rows), 1, 1, frame.channels, dtype=self.kit.coefficients.dtype, device=self.backend.device)
        out[torch.arange(len(out), device=out.device), 0, 0, m.channel] = m.sign.to(out.dtype)
        return out

    def _own(self, m: Tensor) -> Tensor:
        """Coefficients that may be overwritten: copied where another entry lies in the same memory."""
        memory = m.untyped_storage().data_ptr()
        waiting = (entry for entries in self.arriving.values() for entry in entries)
        others = (o for o, _ in chain(self.frontier.values(), waiting) if isinstance(o, Tensor))
        return m.clone() if any(o.untyped_storage().data_ptr() == memory for o in others) else m

    def _dense_entry(self, name: str, entry: Entry) -> tuple[Tensor, Window]:
        m, window = entry
        return (m if isinstance(m, Tensor) else self._matrix(name, m)), window
