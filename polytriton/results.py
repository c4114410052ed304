"""What a verifier answers: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

VERDICTS = ("unsat", "sat", "unknown", "timeout")


@dataclass(frozen=True, eq=False)
class Interval:
    """Bounds of one layer, [batch, *shape]."""

    lo: np.ndarray
    hi: np.ndarray


@dataclass(frozen=True, eq=False)
class Bounds:
    """Output bounds [batch, outputs]; `layers` holds the bounds of every nonlinear operator's input by node name."""

    lo: np.ndarray
    hi: np.ndarray
    layers: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input of the unsafe set and what the original model answers there, replayed in onnxruntime."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True, eq=False)
class Result:
    """One query's verdict: unsat (the property holds, proved), sat (violated), unknown or timeout.

    margins: for each unsafe piece the best lower bound by which one of its rows is missed; positive means the piece is
    proved empty. For a classification there is one piece a rival label, in the order of `rivals`.
    """

    verdict: str
    margins: np.ndarray
    seconds: float
    counterexample: Counterexample | None = None
    label: int | None = None
    rivals: tuple[int, ...] = ()
    semantics: str = "float32"

    @property
    def margin(self) -> float:
        """The worst margin; +inf where there is nothing to prove."""
        return float(self.margins.min(initial=np.inf))
