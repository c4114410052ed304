"""Plan: what the verifier does. One back-substitution program a bounded node, and one for the query.

A program's rows are linear forms over its target node; every step substitutes one node of the frontier by what it
reads. Nothing here depends on an image, and every shape is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from polytriton.errors import InvalidIR
from polytriton.ir.net import Net, Node, Shape

PAYMENTS = ("relu", "sum", "product", "behind")  # what a step may pay, in the order in which it is written; passes/charge.py defines them
AHEAD = ("conv", "linear", "add")  # affine steps that a ReLU right before them may pay for


@dataclass(frozen=True)
class Axis:
    """The cells [stride*i - offset, stride*i - offset + size) a row at position i depends on, along one axis.

    `stride` 0 and `offset` 0 mean the whole axis, the same for every row.
    """

    size: int
    stride: int
    offset: int

    @property
    def whole(self) -> bool:
        return self.stride == 0


@dataclass(frozen=True)
class Window:
    """A dependence set: a cuboid of height x width cells, all channels deep."""

    h: Axis
    w: Axis

    @property
    def cells(self) -> int:
        return self.h.size * self.w.size

    @property
    def whole(self) -> bool:
        return self.h.whole and self.w.whole


def physical(shape: Shape) -> tuple[int, int, int]:
    """Rows hold a node's coefficients as [height, width, channels]; what is no image is one cell."""
    if len(shape) == 3:
        return shape[1], shape[2], shape[0]
    size = 1
    for d in shape:
        size *= d
    return 1, 1, size


def extent(node: Node) -> tuple[int, int, int]:
    return physical(node.shape)


@dataclass(frozen=True)
class Step:
    """`node` is substituted by the nodes `to`, whose coefficients then stand on `windows`.

    op is the node's own operator, or: start (identity or query rows), merge (contributions to one node add up),
    dense (a window becomes the whole image), input (the end: the box decides).
    """

    op: str
    node: str
    to: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    check: bool = False  # a candidate bound is taken before the step, and finished rows leave
    mask: bool = False  # cells off the image must be zeroed after the step
    pay: tuple[str, ...] | None = None  # the roundings that the step charges; None before the pass `charge`
    ops: int = 0  # floating-point operations a row
    bytes: int = 0  # bytes a row holds while the step runs

    def pays(self, kind: str) -> bool:
        if self.pay is None:
            raise InvalidIR(f"{self.op} %{self.node} does not say what it pays", "run the pass charge on the plan")
        return kind in self.pay


@dataclass(frozen=True)
class Program:
    """`kind` is bound (two identity rows a neuron: +x and -x) or query (rows given over the target)."""

    kind: str
    target: str
    steps: tuple[Step, ...]

    @cached_property
    def row_bytes(self) -> int:
        return max((s.bytes for s in self.steps), default=0)

    @cached_property
    def row_ops(self) -> int:
        return sum(s.ops for s in self.steps)


@dataclass(frozen=True)
class Plan:
    """Programs in the order in which their nodes are bounded; the query comes last."""

    name: str
    programs: tuple[Program, ...]
    candidates: str = "all"
    halos: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)  # cells read off the image: top, left, bottom, right

    def __iter__(self) -> Iterator[Program]:
        return iter(self.programs)

    @cached_property
    def pending(self) -> frozenset[str]:
        """Nodes whose coefficients may be products that a nonlinear operator rounded: whatever reads such a row pays for that."""
        steps = [s for p in self for s in p.steps]
        return frozenset([*(s.node for s in steps if s.pays("relu")), *(s.to[0] for s in steps if s.pays("behind"))])

    def bound(self, node: str) -> Program:
        return next(p for p in self.programs if p.kind == "bound" and p.target == node)

    @cached_property
    def query(self) -> Program:
        return next(p for p in self.programs if p.kind == "query")

    def count_ops(self, net: Net) -> int:
        """Of one image, where every neuron gets rows of both sides, and the query one."""
        return sum(p.row_ops * (2 * net.node(p.target).size if p.kind == "bound" else 1) for p in self.programs)
