"""Exact linear forms of VNN-LIB texts: decimals as rationals, sums and multiples of forms, and what comparing two of them says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from polytriton.frontend.vnnlib_dnf import Formula, Junction, Leaf

MAX_EXPONENT = 400  # ten to the 400 is already beyond float64
MAX_DIGITS = 1_000
MAX_BITS = 20_000

NUMBER = re.compile(r"[-+]?(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([-+]?\d+))?", re.ASCII)
ZERO, ONE, MINUS = Fraction(0), Fraction(1), Fraction(-1)


class BadLine(Exception):
    """A message and a remedy that still lack the line number."""


@dataclass(slots=True)
class Linear:
    """sum terms + const; owned by whoever holds it, so a sum may grow in place."""

    terms: dict[int, Fraction]
    const: Fraction

    def negate(self) -> Linear:
        return Linear({k: -c for k, c in self.terms.items()}, -self.const)

    def scale(self, by: Fraction) -> Linear:
        terms = {k: _limit(c * by) for k, c in self.terms.items()} if by else {}
        return Linear(terms, _limit(self.const * by))

    def accumulate(self, other: Linear, plus: bool) -> None:
        for k, c in other.terms.items():
            old = self.terms.get(k, ZERO)
            total = old + c if plus else old - c
            if total:
                self.terms[k] = _limit(total)
            else:
                del self.terms[k]
        if other.const:
            self.const = _limit(self.const + other.const if plus else self.const - other.const)


def number(token: str) -> Fraction | None:
    """The exact value of a decimal, or None where the token is no number."""
    found = NUMBER.fullmatch(token)
    if found is None:
        return None
    whole, part, only, exponent = found.groups()
    digits = (whole or "") + (part or only or "")
    if len(digits) > MAX_DIGITS:
        raise BadLine(f"a number of {len(digits)} digits", f"write at most {MAX_DIGITS}")
    scale = 0
    if exponent:
        if len(exponent) > 9 or abs(int(exponent)) > MAX_EXPONENT:
            raise BadLine(f"exponent of `{token[:40]}` is out of range", f"float64 ends near 1e308; at most {MAX_EXPONENT} is read")
        scale = int(exponent)
    scale -= len(part or only or "")
    mantissa = -int(digits) if token[0] == "-" else int(digits)
    return Fraction(mantissa * 10**scale) if scale >= 0 else Fraction(mantissa, 10**-scale)


def _limit(value: Fraction) -> Fraction:
    """Stops numbers that grow without end, e.g. a product of many huge constants."""
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise BadLine("an exact constant grows beyond any use", "write the constant out as one decimal")
    return value


def compare_linear(op: str, left: Linear, right: Linear) -> Formula:
    """What `left op right` says, where > and >= are written with their sides swapped."""
    terms = dict(left.terms)
    for k, c in right.terms.items():
        total = terms[k] - c if k in terms else MINUS if c is ONE else -c
        if total:
            terms[k] = total
        else:
            del terms[k]
    const = right.const if not left.const else right.const - left.const if right.const else -left.const
    if op in ("<=", ">=", "<", ">"):
        return leaf_of(terms, const, op in ("<", ">"))
    below, above = leaf_of(terms, const, False), leaf_of({k: -c for k, c in terms.items()}, -const, False)
    both = Junction("and", (below, above))
    return both if op in ("=", "==") else Junction("not", (both,))


def leaf_of(terms: dict[int, Fraction], const: Fraction, strict: bool) -> Formula:
    """A comparison; one whose variables cancel is a truth value."""
    if terms:
        return Leaf(terms, const, strict)
    return Junction("and" if (const > 0 or (const == 0 and not strict)) else "or")
