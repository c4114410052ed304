"""The frontier while a program becomes launches, and the geometry that kernels are specialised to."""

from __future__ import annotations

from dataclasses import dataclass

from polytriton.ir.launches import Constants
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Plan, Window, extent


@dataclass(frozen=True)
class FrontierEntry:
    """Coefficients over a node: a buffer (None: rows that are single neurons), where its rows lie, and a sign to apply."""

    window: Window
    buffer: int | None
    slot: str | None = None
    sign: int = 1
    relu: str = ""  # a ReLU still to be multiplied in by the next step
    due: bool = False  # what that ReLU, or one with a pass of its own, pays for the next step is left to the next step's kernel


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


def phases(node: Node) -> tuple[int, int]:
    """Along either axis, in how many ways taps reach cells: by the stride, unless taps lie apart."""
    strides, gaps = node.ints("s", (1, 1)), node.ints("d", (1, 1))
    ph, pw = (s if d == 1 else 1 for s, d in zip(strides, gaps, strict=True))
    return ph, pw


def place(window: Window, prefix: str = "") -> Constants:
    """Where a row's window begins: row_h RH - OH, row_w RW - OW. A whole image begins at zero, whatever the row."""
    return {
        f"{prefix}RH": window.h.stride, f"{prefix}OH": window.h.offset, f"{prefix}RW": window.w.stride, f"{prefix}OW": window.w.offset,
    }  # fmt: skip
