"""What the prover tells the falsifier: what a failed proof left open, and whether the network errs at one exact point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from polytriton.frontend.query import Disjunct, Exact, Property, as_rationals, float_bounds
from polytriton.prove.questions import Questions
from polytriton.runtime import settings
from polytriton.runtime.attack import Aim
from polytriton.runtime.layers import from_physical

if TYPE_CHECKING:
    from polytriton.prove.attempt import Answers
    from polytriton.prove.decider import Decider, Try


def reaches(decider: Decider, how: Try, d: Disjunct, point: Exact) -> bool:
    """Whether the network, as the decider's semantics reads it, certainly fulfils the piece's rows at an exact point of its box.

    The interval pass encloses the outputs of the float64 box around the point; a row is judged at its worst corner, in rationals.
    """
    ends = torch.tensor([float_bounds(v) for v in point], dtype=torch.float64).T.contiguous()
    with decider.turn, settings.pin_settings(decider.device):
        boxes = decider.engine(how).interval(ends[:1], ends[1:])
    node = decider.compiled.net.node(decider.compiled.net.output)
    lo, hi = (as_rationals(from_physical(v, node.shape).flatten().tolist()) for v in (boxes.lo[node.name], boxes.hi[node.name]))
    if lo is None or hi is None:
        return False
    for row in d.rows:
        worst = list(lo)
        for i, c in row.y:
            worst[i] = hi[i] if c > 0 else lo[i]
        if not row.holds(point, worst):
            return False
    return True


def aim(prop: Property, q: Questions, answers: Answers, first: int = 0) -> Aim:
    """What a failed proof left open of a property whose pieces are the groups from `first` on."""
    count = len(prop.disjuncts)
    slopes: dict[int, list[np.ndarray]] = {}
    for form, found in sorted((answers.slopes or {}).items()):
        piece = int(q.group[form]) - first
        if 0 <= piece < count:
            slopes.setdefault(piece, []).append(found)
    pieces = np.flatnonzero(~answers.settled[first : first + count]).tolist()
    return Aim(prop, pieces, {k: np.stack(v) for k, v in slopes.items()})
