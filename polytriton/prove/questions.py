"""Properties become what the prover is asked: groups of linear forms over boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytriton.frontend.query import Property, matrix


@dataclass
class Questions:
    """Forms over boxes [batch, values] (user order, float64); a group is settled by one positive form: an unsafe piece is empty.

    constant is subtracted: a form's bound is that of C y + D x - constant.
    """

    lo: np.ndarray
    hi: np.ndarray
    image: np.ndarray
    over_output: np.ndarray
    constant: np.ndarray
    group: np.ndarray
    over_input: np.ndarray | None = None
    output_error: np.ndarray | None = None
    input_error: np.ndarray | None = None


def questions(prop: Property) -> Questions | None:
    """Every disjunct is one group of forms over its box; boxes shared by disjuncts are shared here."""
    if not prop.disjuncts:
        return None
    boxes: dict[tuple[int, int], int] = {}
    lows: list[np.ndarray] = []
    highs: list[np.ndarray] = []
    image: list[int] = []
    group: list[int] = []
    parts: list[tuple[np.ndarray, ...]] = []
    for k, d in enumerate(prop.disjuncts):
        at = boxes.setdefault((id(d.lo), id(d.hi)), len(boxes))
        if at == len(lows):
            lows.append(d.lo)
            highs.append(d.hi)
        if not d.rows:  # the whole box is unsafe: a form that no bound makes positive
            parts.append(
                (np.zeros((1, prop.n_out)), np.zeros((1, prop.n_in)), np.zeros(1), np.zeros((1, prop.n_out)), np.zeros((1, prop.n_in)))
            )
        else:
            m = matrix(d.rows, prop.n_out, prop.n_in)
            parts.append((m.C, m.D, m.const_up, m.C_err, m.D_err))
        image += [at] * len(parts[-1][2])
        group += [k] * len(parts[-1][2])
    c, d_, const, c_err, d_err = (np.concatenate(v) for v in zip(*parts, strict=True))
    mixed = bool(d_.any() or d_err.any())
    return Questions(
        np.stack(lows),
        np.stack(highs),
        np.array(image),
        c,
        const,
        np.array(group),
        d_ if mixed else None,
        c_err,
        d_err if mixed else None,
    )


def united(asked: Sequence[Questions]) -> tuple[Questions, np.ndarray]:
    """All questions as one, and where each one's groups begin and end in it. Coefficients are exact and have no input part."""
    assert not any(q.over_input is not None or (q.output_error is not None and q.output_error.any()) for q in asked)
    boxes = np.cumsum([0, *(len(q.lo) for q in asked)])
    groups = np.cumsum([0, *(int(q.group.max()) + 1 for q in asked)])
    together = Questions(
        lo=np.concatenate([q.lo for q in asked]),
        hi=np.concatenate([q.hi for q in asked]),
        image=np.concatenate([q.image + b for q, b in zip(asked, boxes[:-1], strict=True)]),
        over_output=np.concatenate([q.over_output for q in asked]),
        constant=np.concatenate([q.constant for q in asked]),
        group=np.concatenate([q.group + g for q, g in zip(asked, groups[:-1], strict=True)]),
    )
    return together, groups
