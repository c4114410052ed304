"""The rounding constants that kernels and runtime charge alike. u is the unit roundoff of the arithmetic in question."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

U64 = 2.0**-53
GROW = 1 + 2.0**-34  # covers the roundings of sums of up to half a million non-negative numbers (layers.py refuses wider ones)
# Merged layers hide intermediate values: factors up to 2^60 in all (passes/fold.py), so a magnitude up to this cannot have overflowed
# before the merge.
BIG = 2.0**60
INNER = 32  # terms that a generated kernel adds in float32 before it goes on in float64


def gamma(n: float, u: float) -> float:
    """n u / (1 - n u), rounded up; infinite where the bound breaks down."""
    return (n * u) / (1 - n * u) * GROW if n * u < 0.5 else float("inf")


def gammas(n: Tensor, u: float) -> Tensor:
    """gamma for a table of counts."""
    x = n * u
    return (x / (1 - x) * GROW).where(x < 0.5, float("inf"))


def one_rounding(u: float) -> float:
    """What one rounding costs at most, relative to the number that is stored."""
    return u * (1 + 2.0**-20)


def dot_error(terms: int) -> float:
    """Relative error of a float64 row sum of so many exact products, any order."""
    return 2 * (terms + 8) * U64


def sum_error(terms: int) -> float:
    """Factor that enlarges a float64 row sum of terms of one sign past its own rounding."""
    return 1 + dot_error(terms) + 8 * U64


def flush_loss(eta: float, factor: float = 1.0) -> float:
    """What flushing may cost an elementwise operation."""
    return 4 * eta * max(1.0, abs(factor))


PARTS = {"tf32x3": 3, "bf16x6": 6}  # multiplications that make a split product
SPLIT = 2.0**-18  # of |x||w|: what the parts of a split product leave out
CORE = 2.0**-22  # what a tensor core's addition may lose of the magnitudes added so far: the stated model


def split_error(parts: int, u: float) -> float:
    """Relative error of blocks of INNER split products of so many parts, then two roundings to u; zeros count like any term."""
    block = gamma(parts * INNER + parts, CORE)
    return ((1 + SPLIT) * (1 + block) * (1 + 4 * u) - 1) * GROW
