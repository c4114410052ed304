"""The arithmetics of the coefficients, and the constants that kernels are told."""

from __future__ import annotations

from dataclasses import dataclass

from polytriton.ir.launches import Constant
from polytriton.rounding import INNER

Constants = dict[str, Constant]
INTERVAL = "interval"  # the form of the paper's arithmetic: intervals, every operation rounded outward


@dataclass(frozen=True)
class Numerics:
    """The arithmetic of the coefficients. `inner`: additions after which a product is carried on in float64; 0 for never."""

    name: str
    type: str
    form: str
    u: float
    instruction: str
    inner: int = 0
    fuse_taps: int = 1
    stages: int = 3


NUMERICS = {
    n.name: n
    for n in (
        Numerics("float64", "tl.float64", "ieee", 2.0**-53, "DMMA"),
        Numerics("float32", "tl.float32", "ieee", 2.0**-24, "FFMA", inner=INNER),
        Numerics("tf32x3", "tl.float32", "tf32x3", 2.0**-24, "HGMMA", inner=INNER),
        Numerics("bf16x6", "tl.float32", "bf16x6", 2.0**-24, "HGMMA", inner=INNER),
        Numerics("interval64", "tl.float64", INTERVAL, 2.0**-53, "DFMA"),
        Numerics("interval32", "tl.float32", INTERVAL, 2.0**-24, "FFMA"),
    )
}
