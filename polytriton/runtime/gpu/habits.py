"""What the last batches were like, by layer: how far rows go ahead of what the host will learn. None of it shows in a bound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

MORE = 1.25  # room for so many times the neurons of the last batch's images
WINDOW = 16  # batches by which a leap is measured


@dataclass(frozen=True)
class Need:
    """Of one batch in a layer: undecided neurons an image, the parts of the program after which no row of the likelier sign was left, and
    whether the other sign had to follow.
    """

    neurons: float
    parts: int
    both: bool


@dataclass
class Habit:
    """What the last batch was like, and those before it."""

    neurons: float
    parts: int = 1
    needs: deque[Need] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def see(self, parts: int, both: bool) -> None:
        """The last batch's neurons are known already."""
        self.needs.append(Need(self.neurons, parts, both))

    def most(self) -> Need:
        """Whatever was the most in a batch."""
        return Need(max(need.neurons for need in self.needs), max(need.parts for need in self.needs), any(need.both for need in self.needs))


def expect(neurons: float, batch: int) -> int:
    """Rows to have room for, where an image had so many neurons."""
    return ceil(MORE * neurons * batch)
