"""Whether a winner won: the best of many trials was lucky too.

Both sides are timed afresh, in a new process and in turns, so that a machine that comes to be faster or slower is so for both. The ratio
that is told, and a configuration that is kept, rest on these times alone. The interval about the middle ratio is that of its order
statistics: whatever the noise looks like, the true middle lies between the k-th smallest and the k-th largest of n rounds with probability
1 - 2 P(Binomial(n, 1/2) < k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from statistics import median

ROUNDS, MOST = 11, 31  # at least; at most, where the rounds differ much
SURE = 0.97  # of the interval
NARROW = 0.03  # an interval that need not become narrower
GAIN = 0.97  # a winner takes at most this share of the default's time
LOSSES = 4  # lost in turn at the start, a trial is over: to a configuration that is the faster one, luck does that once in 2^4 trials
HOPELESS = 1.25  # so much slower in both first turns, too

Pair = tuple[float, float]  # seconds: the default's and the challenger's


def is_lost(ratios: list[float]) -> bool:
    """Whether a trial may end: the configuration is slower than the default, in a race whose error LOSSES states."""
    return (len(ratios) >= 2 and min(ratios) > HOPELESS) or (len(ratios) == LOSSES and min(ratios) >= 1)


@dataclass(frozen=True)
class Duel:
    """Seconds of each round, in order: the default's and the challenger's."""

    default: tuple[float, ...]
    challenger: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The challenger's time as a share of the default's, measured side by side."""
        return [c / d for c, d in zip(self.challenger, self.default, strict=True)]

    @property
    def interval(self) -> tuple[float, float]:
        """In which the middle ratio lies, but for a probability of 1 - SURE."""
        n, held = len(self.ratios), sorted(self.ratios)
        beyond, k = 2.0 ** (1 - n), 0  # the probability that it lies outside the k-th of either side
        while k + 1 < (n + 1) // 2 and beyond + 2 * comb(n, k + 1) / 2.0**n <= 1 - SURE:
            k += 1
            beyond += 2 * comb(n, k) / 2.0**n
        return held[k], held[n - 1 - k]

    @property
    def narrow(self) -> bool:
        low, high = self.interval
        return high - low <= NARROW * median(self.ratios)

    @property
    def speedup(self) -> float:
        """Times faster; where the rounds never agreed, by no more than the interval's unfavourable end says."""
        return 1 / (median(self.ratios) if self.narrow else self.interval[1])

    @property
    def won(self) -> bool:
        if len(self.ratios) < ROUNDS:  # interrupted: what is not known is not claimed
            return False
        share = median(self.challenger) / median(self.default)
        return max(1 / self.speedup, share) <= GAIN and self.interval[1] < 1


def duel(ask: Callable[[], Pair], least: int = ROUNDS, most: int = MOST) -> Duel:
    """Rounds until the ratio is known well, or `most` were fought. Ctrl-C ends it early."""
    times: list[Pair] = []
    try:
        while len(times) < least or (len(times) < most and not _make(times).narrow):
            times.append(ask())
    except KeyboardInterrupt:
        pass
    return _make(times)


def _make(times: list[Pair]) -> Duel:
    return Duel(tuple(d for d, _ in times), tuple(c for _, c in times))
