"""What a program becomes: launches over symbols, buffers with their lives, and the geometry that kernels are specialised to."""

from __future__ import annotations

from dataclasses import dataclass, field

from polytriton.ir.net import Net
from polytriton.ir.plan import Plan, Program, Window, extent
from polytriton.kernels.emit import Constants
from polytriton.kernels.spec import Kernel


@dataclass(frozen=True)
class Launch:
    """Grid: (ceil(capacity * cells / block) * times, columns) programs. `bind` names the tensor of every parameter.

    Launches of one region (lanes.py; 0: none) with different lanes may run at the same time.
    """

    kernel: Kernel
    bind: tuple[str, ...]
    block: int
    cells: int = 1
    times: int = 1
    columns: int = 1
    lane: int = 0
    region: int = 0

    @property
    def function(self) -> str:
        """The library kernel that it is a specialisation of."""
        return self.kernel.name.rpartition("_")[0]

    def grid(self, capacity: int) -> tuple[int, int]:
        """CUDA's limits: a launcher beyond them may launch nothing and say nothing."""
        rows = -(-capacity * self.cells // self.block) * self.times
        assert rows * self.columns < 1 << 31 and self.columns <= 65535, f"{self.kernel.name}: {rows} x {self.columns} programs"
        return rows, self.columns


@dataclass(frozen=True)
class FrontierEntry:
    """Coefficients over a node: a buffer (None: rows that are single neurons), where its rows lie, and a sign to apply."""

    window: Window
    buffer: int | None
    slot: str | None = None
    sign: int = 1
    relu: str = ""  # a ReLU still to be multiplied in by the next step
    due: bool = False  # what that ReLU, or one with a pass of its own, pays for the next step is left to the next step's kernel


@dataclass
class Launches:
    """One program: its launches, the values a row takes in each buffer, the row states it passes through."""

    program: Program
    steps: list[Launch] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    lives: list[list[int]] = field(default_factory=list)  # first and last launch that touches each buffer
    slots: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])  # the first launch of every state
    ops: dict[int, int] = field(default_factory=dict)  # operations the Plan counts a row, by the state the row has reached

    @property
    def states(self) -> int:
        return len(self.begins)

    def parts(self) -> list[tuple[int, int, int]]:
        """The launches cut behind the compactions into states 2, 4, 8, ...: begin, end, and how many states have been reached there.

        Between two parts a host may stop where no row is left. A part is twice the one before, so that they are few.
        """
        cuts = [2**k for k in range(1, len(self.begins).bit_length()) if 2**k < len(self.begins)]
        ends = [*((self.begins[s], s + 1) for s in cuts), (len(self.steps), self.states)]
        return [(begin, end, states) for begin, (end, states) in zip([0, *(e for e, _ in ends[:-1])], ends, strict=True)]


@dataclass(frozen=True)
class Frames:
    """Frames of all nodes."""

    net: Net
    plan: Plan

    def frame(self, name: str) -> tuple[tuple[int, int, int], tuple[int, int, int, int]]:
        return extent(self.net.node(name)), self.plan.halos.get(name, (0, 0, 0, 0))

    def geometry(self, name: str, prefix: str = "") -> Constants:
        """START, PLANE and PITCH of a node's tables."""
        (h, w, c), (top, left, bottom, right) = self.frame(name)
        pitch = (left + w + right) * c
        return {f"{prefix}START": top * pitch + left * c, f"{prefix}PLANE": (top + h + bottom) * pitch, f"{prefix}PITCH": pitch}


def place(window: Window, prefix: str = "") -> Constants:
    """Where a row's window begins: row_h RH - OH, row_w RW - OW. A whole image begins at zero, whatever the row."""
    return {
        f"{prefix}RH": window.h.stride, f"{prefix}OH": window.h.offset, f"{prefix}RW": window.w.stride, f"{prefix}OW": window.w.offset,
    }  # fmt: skip
