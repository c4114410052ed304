"""Results and bounds as pandas tables, where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from polytriton.errors import UsageError
from polytriton.guard import guarded
from polytriton.results import Bounds, Result

if TYPE_CHECKING:
    import pandas


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("tables need pandas, which is not installed", "pip install pandas") from None
    return pandas


@guarded
def to_pandas(what: Result | Iterable[Result] | Bounds) -> pandas.DataFrame:
    """Results: one row each. Bounds: one row a box and neuron, the outputs under the layer name "output"."""
    pandas = _pandas()
    if isinstance(what, Bounds):
        return pandas.concat([_layer(pandas, name, lo, hi) for name, lo, hi in _sides(what)], ignore_index=True)
    results = [what] if isinstance(what, Result) else list(what)
    if strange := [type(r).__name__ for r in results if not isinstance(r, Result)]:
        raise UsageError(f"a table cannot be made of {strange[0]}", "give a Result, a list of them, or Bounds")
    return pandas.DataFrame([_row(r) for r in results], columns=list(_row(_EMPTY)))


def _row(r: Result) -> dict[str, Any]:
    """`rival` is the label with the least margin; margins and counterexample stay as they are, one object a cell."""
    worst = int(r.margins.argmin()) if len(r.rivals) == len(r.margins) > 0 else None
    return {
        "verdict": r.verdict,
        "margin": r.margin,
        "label": r.label,
        "rival": None if worst is None else r.rivals[worst],
        "epsilon": None if r.picture is None else str(r.picture.epsilon),
        "seconds": r.seconds,
        "semantics": r.semantics,
        "numerics": r.numerics,
        "ended_by": r.ended_by,
        "margins": r.margins,
        "counterexample": None if r.counterexample is None else r.counterexample.x,
    }


_EMPTY = Result("unknown", np.zeros(0), 0.0)


def _sides(bounds: Bounds) -> list[tuple[str, np.ndarray, np.ndarray]]:
    return [*((name, side.lo, side.hi) for name, side in bounds.layers.items()), ("output", bounds.lo, bounds.hi)]


def _layer(pandas: Any, name: str, lo: np.ndarray, hi: np.ndarray) -> Any:
    boxes, neurons = len(lo), int(np.prod(lo.shape[1:], dtype=np.int64))
    return pandas.DataFrame(
        {
            "layer": name,
            "box": np.repeat(np.arange(boxes), neurons),
            "neuron": np.tile(np.arange(neurons), boxes),
            "lo": lo.reshape(-1),
            "hi": hi.reshape(-1),
        }
    )
