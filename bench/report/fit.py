"""What the figures say: exponents of growth, and how large a change of a median must be before it is one.

**Noise.** A row holds the median m of n runs and their range R, longest less shortest. Of n values with standard deviation s the range is
d2(n) s on average (the table of control charts, for normal values), and the standard error of the median is about sqrt(pi/2) s / sqrt(n).
So e = 1.2533 R / (d2(n) sqrt(n) m) is the relative standard error. Two rows differ where

    |log(m' / m)| > log(1 + max(FLOOR, Z(n) sqrt(e^2 + e'^2)))

with Z(n) as wide as few runs demand (R is itself a guess; two runs may agree by chance) and a floor for what no spread within a
run shows: other code layout, another boot, another neighbour. A row of one run has no spread and is never judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

D2 = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970, 10: 3.078}
FLOOR = 0.05
PAIRS, PAIRED = 10, 6.0  # pairs of images needed for a judgement, and Z for the median of their ratios
MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean


def width(runs: int) -> float:
    """Z(n): about one false alarm in a thousand pairs, of normal and of exponential times; found by simulation, checked by a test."""
    return {2: 24.0, 3: 7.0, 4: 5.0}.get(runs, 4.3 if runs < 7 else 4.0)


def relative_error(seconds: float, spread: float, runs: int) -> float:
    """Relative standard error of a median; infinite where one run was made."""
    if runs < 2 or not seconds > 0:
        return math.inf
    return MEDIAN * spread / (D2.get(runs, 3.078) * math.sqrt(runs) * seconds)


def threshold(a: tuple[float, float, int], b: tuple[float, float, int], floor: float = FLOOR) -> float:
    """By which factor less one (seconds, spread, runs) of two rows may differ and still be the same."""
    both = math.hypot(relative_error(*a), relative_error(*b))
    return max(floor, width(min(a[2], b[2])) * both) if math.isfinite(both) else math.inf


@dataclass(frozen=True)
class Change:
    """One figure before and after: `ratio` above 1 is slower, and counts where it leaves 1 / (1 + noise) .. 1 + noise."""

    before: float
    after: float
    noise: float

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def verdict(self) -> str:
        if not math.isfinite(self.noise):
            return "one run"
        return "slower" if self.ratio > 1 + self.noise else "faster" if self.ratio < 1 / (1 + self.noise) else "same"


def compare_pairs(before: Sequence[float], after: Sequence[float], floor: float = FLOOR) -> Change:
    """Two medians of the same images, each timed once a side: noise is that of the median of the logarithms of their ratios."""
    a = statistics.median(before)
    logs = [math.log(y / x) for x, y in zip(before, after, strict=True)]
    middle = statistics.median(logs)
    if len(logs) < PAIRS:
        return Change(a, a * math.exp(middle), math.inf)
    deviation = 1.4826 * statistics.median(abs(v - middle) for v in logs)
    noise = math.expm1(PAIRED * MEDIAN * deviation / math.sqrt(len(logs)))
    return Change(a, a * math.exp(middle), max(floor, noise))


@dataclass(frozen=True)
class Power:
    """y = factor * x ** exponent, by least squares on logarithms; `error` is the exponent's standard error (0 for two points)."""

    exponent: float
    factor: float
    error: float

    def value(self, x: float) -> float:
        return self.factor * x**self.exponent


def power(points: Sequence[tuple[float, float]]) -> Power | None:
    """None where there are not two different x."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    mx, my = (statistics.fmean(v) for v in zip(*logs, strict=True))
    sxx = sum((x - mx) ** 2 for x, _ in logs)
    slope = sum((x - mx) * (y - my) for x, y in logs) / sxx
    rest = sum((y - my - slope * (x - mx)) ** 2 for x, y in logs)
    error = math.sqrt(rest / (len(logs) - 2) / sxx) if len(logs) > 2 else 0.0
    return Power(slope, math.exp(my - slope * mx), error)


def tail(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The larger half of the sizes, three at least: small ones measure overheads."""
    held = sorted(points)
    return held[-max(3, (len(held) + 1) // 2) :]
