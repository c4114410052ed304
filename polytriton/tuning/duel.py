"""Whether a winner won: the best of many trials was lucky too, and its trial and the default's lie minutes apart.

Both are timed afresh, in turns, so that a machine that comes to be faster or slower is so for both. A ratio is told, and a
configuration kept, only where these times alone support it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

ROUNDS = 7
RUNS = 3  # timed runs of each side a round, of which the middle one counts
LOST = 1  # rounds that a winner may lose to a busy machine: by luck alone six of seven are won once in sixteen times
GAIN = 0.99  # a winner takes at most this share of the default's time
NOISE = 3.0  # times the middle deviation of the rounds' ratios that a gain must exceed


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
    def noise(self) -> float:
        """How far a round's ratio lies from the middle one, for half of the rounds."""
        middle = median(self.ratios)
        return median(abs(r - middle) for r in self.ratios)

    @property
    def won(self) -> bool:
        if len(self.ratios) < ROUNDS:  # interrupted: what is not known is not claimed
            return False
        share = median(self.challenger) / median(self.default)
        middle, lost = median(self.ratios), sum(r >= 1 for r in self.ratios)
        return max(middle, share) <= GAIN and lost <= LOST and 1 - middle > NOISE * self.noise


def duel(default: Callable[[], float], challenger: Callable[[], float]) -> Duel:
    """Each round asks both; who is asked first changes, since the second may find a warmer machine. Ctrl-C ends it early."""
    times: tuple[list[float], list[float]] = ([], [])
    try:
        for k in range(ROUNDS):
            pair = {side: (default, challenger)[side]() for side in ((0, 1) if k % 2 == 0 else (1, 0))}
            for side in (0, 1):
                times[side].append(pair[side])
    except KeyboardInterrupt:
        pass
    return Duel(tuple(times[0]), tuple(times[1]))
