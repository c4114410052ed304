"""Numbers in words that claim no more than was proved, wherever they are read."""

from __future__ import annotations

import math
from fractions import Fraction


def decimal_below(value: Fraction, digits: int = 4) -> str:
    """A decimal at most as large as the number: a rounded radius must not claim more than was proved."""
    if value <= 0:
        return "0" if value == 0 else f"{float(value):.{digits}g}"
    step = Fraction(10) ** (math.floor(math.log10(float(value))) - digits + 1) if float(value) > 0 else Fraction(1)
    return f"{float(value // step * step):.{digits}g}"


def decimal_above(value: Fraction, digits: int = 4) -> str:
    """A decimal at least as large."""
    if value <= 0 or float(value) == 0:
        return decimal_below(value, digits)
    step = Fraction(10) ** (math.floor(math.log10(float(value))) - digits + 1)
    return f"{float(-(-value // step) * step):.{digits}g}"


def share(part: float) -> str:
    """A share in per cent, never rounded up to all of it."""
    return f"{min(math.floor(1000 * part) / 10, 99.9):.1f} %" if part < 1 else "100 %"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
