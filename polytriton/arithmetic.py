"""The arithmetics of coefficients: what kernels and libraries compute, and what is charged for it, a row each.

The invariant and what each number is for: docs/soundness.md, sections 2, 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from polytriton.rounding import INNER, PARTS, U64, gammas, split_error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INTERVAL = "interval"  # the form of the paper's arithmetic: intervals, every operation rounded outward


@dataclass(frozen=True)
class Arithmetic:
    """Computed: numbers of `type` (Triton's name of it), multiplied in the form `form` by `instruction`, in sums of `inner` terms from zero
    whose blocks float64 adds up (0: all terms of an entry in one chain). Where `form` splits operands, `parts` multiplications on tensor
    cores make a product, under a stated model of them.

    Charged: `u`, the type's unit roundoff, and `eta`, the largest loss to underflow of one operation; split products flush parts of an
    operand, up to three times what a plain product loses. `centred`: what products of layers round is charged by how far the operand may
    lie from a point of its box, in place of its magnitude. `flushes`: weights below `eta` count as zero, for some processors take a hundred
    times as long for their products; float32 rows pay `eta` for each such weight anyway.

    `fuse_taps`: up to how many taps a convolution applies the ReLU itself; `columns`, `warps`, `stages`: the widest tile of a product on a
    GPU, who computes it, and how far it loads ahead.
    """

    name: str
    type: str
    form: str
    u: float
    eta: float
    instruction: str
    inner: int = 0
    parts: int = 1
    fuse_taps: int = 1
    columns: int = 64
    warps: int = 8
    stages: int = 3
    centred: bool = False
    flushes: bool = False

    @cached_property
    def dtype(self) -> torch.dtype:
        import torch  # by then it is there: what compiles kernels alone does without

        return torch.float64 if self.type == "tl.float64" else torch.float32

    def product_error(self, terms: Tensor) -> Tensor:
        """|fl(M W) - M W| relative to |M||W| where so many terms can differ from zero (underflow is charged apart).

        A block is at most gamma_inner off; that the blocks' float64 sum and its final rounding are at most two more roundings
        to u needs fewer than 2^28 blocks. Split products: every block's `parts` * inner additions count, zeros too.
        """
        if not self.inner:
            return gammas(terms, self.u)
        if self.parts == 1:
            return gammas(terms.clamp(max=self.inner) + 2, self.u)
        return terms.double() * 0.0 + split_error(self.parts, self.u)


U32, ETA32, ETA64 = 2.0**-24, 2.0**-126, 2.0**-1022

ARITHMETICS = {
    a.name: a
    for a in (
        Arithmetic("float64", "tl.float64", "ieee", U64, ETA64, "DMMA", columns=128, warps=4),
        Arithmetic("float32", "tl.float32", "ieee", U32, ETA32, "FFMA", inner=INNER),
        Arithmetic("tf32x3", "tl.float32", "tf32x3", U32, 8 * ETA32, "HGMMA", inner=INNER, parts=PARTS["tf32x3"]),
        Arithmetic("bf16x6", "tl.float32", "bf16x6", U32, 8 * ETA32, "HGMMA", inner=INNER, parts=PARTS["bf16x6"]),
        Arithmetic("interval64", "tl.float64", INTERVAL, U64, ETA64, "DFMA"),
        Arithmetic("interval32", "tl.float32", INTERVAL, U32, ETA32, "FFMA"),
    )
}
LIBRARY = {  # what torch's libraries multiply
    "float64": replace(ARITHMETICS["float64"], inner=0),
    "float32": replace(ARITHMETICS["float32"], inner=0, centred=True, flushes=True),
}
