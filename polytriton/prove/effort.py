"""How hard bounds are worked for: one pass, both choices of candidates, or slopes chosen for every row besides.

Every number is a lower bound that some charged walk has given; the greater of two lower bounds is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import torch

from polytriton.errors import UsageError
from polytriton.passes import schedule
from polytriton.prove.options import OWN
from polytriton.prove.questions import Questions
from polytriton.prove.tight import Tight
from polytriton.results import Bounds, Interval
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent
from polytriton.runtime.engine import Progress
from polytriton.runtime.forward import Boxes

if TYPE_CHECKING:
    from polytriton.prove.decider import Decider

EFFORTS = ("quick", "tight", "best")


def check_effort(effort: str) -> None:
    if effort not in EFFORTS:
        raise UsageError(f"effort={effort!r} is unknown", f"use one of: {', '.join(EFFORTS)}")


def bounds(decider: Decider, lo: np.ndarray, hi: np.ndarray, effort: str, progress: Progress) -> Bounds:
    """Bounds of the outputs and of every nonlinear operator's input, for boxes [batch, inputs]."""
    found = _one_pass(decider, lo, hi, _candidates(decider, effort)[0], progress)
    for candidates in _candidates(decider, effort)[1:]:
        found = _meet(found, _one_pass(decider, lo, hi, candidates, progress))
    return _meet(found, _chosen_bounds(decider, lo, hi, progress)) if _chooses(decider, effort) else found


def margins(decider: Decider, q: Questions, effort: str, progress: Progress) -> np.ndarray:
    """A lower bound of every form, none of them leaving early."""
    best = np.full(len(q.image), -np.inf)
    for candidates in _candidates(decider, effort):
        tries = decider.tries(patient=False, candidates=candidates)
        best = np.maximum(best, decider.prove(q, tries, progress=progress, exhaustive=True, statistics=False).best)
    return np.maximum(best, _chosen_margins(decider, q, progress)) if _chooses(decider, effort) else best


def _candidates(decider: Decider, effort: str) -> list[str]:
    """The passes. A pass whose bounds are taken at the input alone is CROWN's; neither is always the better one, and a pass that began
    with the other's boxes would be neither.
    """
    mine, effort = decider.options.candidates, effort if decider.options.method == OWN else "quick"
    return [mine, *(c for c in schedule.CHOICES if c != mine and effort != "quick")]


def _chooses(decider: Decider, effort: str) -> bool:
    return effort == "best" and decider.options.method == OWN and Ascent.serves(decider.compiled.net)


def _one_pass(decider: Decider, lo: np.ndarray, hi: np.ndarray, candidates: str, progress: Progress) -> Bounds:
    parts = []
    with decider.turn, closing(decider.boxes(lo, hi, progress, candidates)) as refined:  # an error keeps no setting pinned
        for engine, boxes in refined:
            parts.append(Bounds(*decider.output_bounds(engine, boxes), _intervals(decider.layer_bounds(boxes, engine))))
    return _join(parts)


def _chosen_bounds(decider: Decider, lo: np.ndarray, hi: np.ndarray, progress: Progress) -> Bounds:
    """By rows with slopes of their own, those of the outputs one pair for each."""
    n, outputs, eye = len(lo), decider.outputs, np.eye(decider.outputs)
    rows = np.tile(np.concatenate([eye, -eye]), (n, 1))
    image = np.repeat(np.arange(n), 2 * outputs)
    best = np.full(len(rows), -np.inf)
    layers = []
    for tight, boxes, mine, found in _choose_slopes(decider, Questions(lo, hi, image, rows, np.zeros(len(rows)), image), progress):
        best[mine] = found
        layers.append(Bounds(np.zeros(0), np.zeros(0), _intervals(decider.layer_bounds(boxes, tight.engine))))
    low, high = np.split(best.reshape(n, -1), 2, axis=1)
    return Bounds(low, -high, _join(layers).layers)


def _chosen_margins(decider: Decider, q: Questions, progress: Progress) -> np.ndarray:
    best = np.full(len(q.image), -np.inf)
    for _, _, mine, found in _choose_slopes(decider, q, progress):
        best[mine] = found
    return best


def _choose_slopes(decider: Decider, q: Questions, progress: Progress) -> Iterator[tuple[Tight, Boxes, np.ndarray, np.ndarray]]:
    """Boxes by slopes of their own, a batch at a time, and bounds of the forms over them; `mine`: which forms these are."""
    with decider.turn, settings.pin_settings(decider.device), decider._threads():
        tight = Tight(decider, decider.tries(patient=False)[0])
        for part in decider.batches(len(q.lo), tight.engine):
            box = tuple(torch.from_numpy(v[part]).to(decider.device) for v in (q.lo, q.hi))
            boxes = tight.refine(box[0], box[1], None, progress)
            mine = np.flatnonzero((q.image >= part.start) & (q.image < part.stop))
            progress("slopes for the query", 0, 1)
            forms = decider.forms(q, mine, q.image[mine] - part.start)
            yield tight, boxes, mine, tight.query(boxes, forms, (box[0], box[1]), None, goal=float("inf")).best.cpu().numpy()


def _intervals(layers: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Interval]:
    return {name: Interval(*pair) for name, pair in layers.items()}


def _join(parts: list[Bounds]) -> Bounds:
    """Batches one after another."""
    layers = {
        name: Interval(*(np.concatenate([getattr(p.layers[name], side) for p in parts]) for side in ("lo", "hi")))
        for name in parts[0].layers
    }  # fmt: skip
    return Bounds(np.concatenate([p.lo for p in parts]), np.concatenate([p.hi for p in parts]), layers)


def _meet(a: Bounds, b: Bounds) -> Bounds:
    """Both hold."""
    layers = {
        name: Interval(np.maximum(side.lo, b.layers[name].lo), np.minimum(side.hi, b.layers[name].hi)) for name, side in a.layers.items()
    }
    return Bounds(np.maximum(a.lo, b.lo), np.minimum(a.hi, b.hi), layers)
