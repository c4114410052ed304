"""Tables of a ReLU behind a dense layer without the cells that one image's rows leave out: those that are off.

Such a cell is zero for every execution. The ReLU's lines there are zero with no cut, so a row has no coefficient behind it, and what
it has before adds nothing to a bound, a charge or a constant: sums without these cells are sums of the same numbers but for zeros.
Only vectors are treated so: tables of images have a margin for padded convolutions, and a cell's number is no place in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.ir.plan import Step
from polytriton.runtime.cpu.torch_backend import Compact, Place

if TYPE_CHECKING:
    from polytriton.runtime.tables import Tables


@dataclass(frozen=True)
class Narrow:
    """`cells` of the ReLU and of its operand, the layer `part`; every table has one image's line of them."""

    image: int
    cells: Tensor
    part: Compact
    box: tuple[Tensor, Tensor]
    below: Tensor
    above: Tensor
    upper_cut: Tensor
    gap: Tensor | None
    t: Tensor
    floor: Tensor
    bias: Tensor
    kept: dict[tuple[str, str], Tensor] = field(default_factory=dict, compare=False)

    def keep(self, name: str, what: str, make: Callable[[], Tensor]) -> Tensor:
        """These columns of what rows meet on their way here from the layer `name`."""
        if (name, what) not in self.kept:
            table = make()
            self.kept[name, what] = table.reshape(-1, table.shape[-1]).index_select(1, self.cells)
        return self.kept[name, what]

    def point(self, name: str, table: Tensor) -> Tensor:
        """The line, of these cells, of the centre that rows are to meet on their way here from the layer `name`."""
        return self.keep(name, "point", lambda: table.flatten(1)[self.image][None])[0]

    def place(self, rows: int) -> Place:
        """Where so many rows lie: all at the one line."""
        base = torch.zeros(rows, dtype=torch.int64, device=self.cells.device)
        return Place(base, 0, 1, 1, len(self.cells))


def find_cells(flags: Tensor) -> Tensor:
    """Numbers of the cells that are true. Numpy takes a third of torch's time for a layer's, and lets no other thread in meanwhile."""
    return torch.from_numpy(np.flatnonzero(flags.numpy())) if flags.device.type == "cpu" else torch.nonzero(flags.flatten()).flatten()


def lies_between(name: str, coming: Sequence[Step]) -> bool:
    """Whether the steps to come are a ReLU `name`, with what it pays for the affine node behind it, and a dense layer that it reads."""
    if len(coming) < 2:
        return False
    relu, dense = coming
    one = relu.op == "relu" and relu.node == name and relu.pays("behind") and not relu.pays("relu")
    return one and dense.op == "linear" and relu.to[0] == dense.node


def stack_lines(tables: Tables, relu: Node) -> Tensor:
    """What rows meet at a ReLU and the node that it reads, [tables, batch, cells]: its box, lines and gap, and that node's charge."""
    lines, t = tables.lines(relu), tables.charge(relu.inputs[0])[0]
    met = *tables.box(relu.name), lines.below, lines.above, lines.upper_cut, t, *(() if lines.gap is None else (lines.gap,))
    return torch.stack([table.flatten(1) for table in met])


def make_narrow(tables: Tables, relu: Node, image: int, part: Compact) -> Narrow:
    """Of a ReLU whose lines have no cut below, and the part of its operand that the image's rows refer to."""
    source, cells = relu.inputs[0], part.outputs
    low, high, below, above, cut, t, *gap = tables.line_stack(relu)[:, image].index_select(1, cells).unbind()
    bias = tables.constants(source, 1)
    own = bias[image] if bias.dim() == 4 else bias
    floor = tables.charge(source)[1]
    return Narrow(
        image, cells, part, (low, high), below, above, cut, gap[0] if gap else None, t, floor, own.flatten().index_select(0, cells)[None]
    )
