"""Results and bounds as pandas tables, where pandas is installed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from polytriton.errors import UsageError
from polytriton.guard import guard
from polytriton.results import Bounds, Radius, Result

if TYPE_CHECKING:
    import pandas


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("tables need pandas, which is not installed", "pip install pandas") from None
    return pandas


@guard
def to_pandas(what: Result | Radius | Iterable[Result] | Iterable[Radius] | Bounds) -> pandas.DataFrame:
    """Results or radii: one row each. Bounds: one row a box and neuron, the outputs under the layer name "output"."""
    pandas = _pandas()
    if isinstance(what, Bounds):
        return pandas.concat([_layer(pandas, name, lo, hi) for name, lo, hi in _sides(what)], ignore_index=True)
    held: list[Result | Radius] = [what] if isinstance(what, Result | Radius) else list(what)
    if strange := [type(r).__name__ for r in held if not isinstance(r, Result | Radius)]:
        raise UsageError(f"a table cannot be made of {strange[0]}", "give a Result, a Radius, a list of one of them, or Bounds")
    results, radii = [r for r in held if isinstance(r, Result)], [r for r in held if isinstance(r, Radius)]
    if results and radii:
        raise UsageError("results and radii make no common table", "one table each, or results.with_radii(radii).to_pandas()")
    if radii:
        return pandas.DataFrame([_radius_row(r) for r in radii])
    return pandas.DataFrame([_row(r) for r in results], columns=list(_row(_EMPTY)))


@guard
def float_below(value: Fraction | None) -> float | None:
    """The nearest float that claims no more than the number."""
    if value is None:
        return None
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def _radius_row(r: Radius) -> dict[str, Any]:
    """`radius` is a float at most as large as what was proved, which stands beside it exactly."""
    return {
        "radius": float_below(r.proved),
        "proved": None if r.proved is None else str(r.proved),
        "not_proved": None if r.not_proved is None else str(r.not_proved),
        "verdict": r.verdict,
        "finished": r.finished,
        "queries": r.queries,
        "seconds": r.seconds,
    }


def _row(r: Result) -> dict[str, Any]:
    """`rival` is the label with the least margin; margins and counterexample stay as they are, one object a cell."""
    worst = int(r.margins.argmin()) if len(r.rivals) == len(r.margins) > 0 else None
    return {
        "verdict": r.verdict,
        "margin": r.margin,
        "label": r.label,
        "rival": None if worst is None else r.rivals[worst],
        "epsilon": None if r.picture is None else str(r.picture.epsilon),
        "norm": None if r.picture is None else r.picture.norm,
        "radius": None if r.radius is None else float_below(r.radius.proved),
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
