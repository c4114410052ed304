"""Properties become what the prover is asked: groups of linear forms over boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytriton.frontend.norm_balls import BoxBalls, NormBall
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
    balls: BoxBalls | None = None


def questions(prop: Property) -> Questions | None:
    """Every disjunct is one group of forms over its box; boxes shared by disjuncts are shared here."""
    if not prop.disjuncts:
        return None
    boxes: dict[tuple[int, int, int], int] = {}
    lows: list[np.ndarray] = []
    highs: list[np.ndarray] = []
    balls: list[NormBall | None] = []
    image: list[int] = []
    group: list[int] = []
    parts: list[tuple[np.ndarray, ...]] = []
    for k, d in enumerate(prop.disjuncts):
        at = boxes.setdefault((id(d.lo), id(d.hi), id(d.ball)), len(boxes))
        if at == len(lows):
            lows.append(d.lo)
            highs.append(d.hi)
            balls.append(d.ball)
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
        BoxBalls.join([None if b is None else b.enclosed for b in balls]),
    )


def rivals(prop: Property) -> tuple[int, ...]:
    """The labels that the pieces of a classification property let win."""
    return tuple(i for d in prop.disjuncts for i, c in d.rows[0].y if c < 0)


def unite(asked: Sequence[Questions]) -> tuple[Questions, np.ndarray]:
    """All questions as one, and where each one's groups begin and end in it."""
    boxes = np.cumsum([0, *(len(q.lo) for q in asked)])
    groups = np.cumsum([0, *(int(q.group.max()) + 1 for q in asked)])

    def join(name: str, begins: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate([getattr(q, name) + (0 if begins is None else begins[k]) for k, q in enumerate(asked)])

    def fill(name: str, like: str) -> np.ndarray | None:
        """What some questions have; the others have none of it, which is zero."""
        if all(getattr(q, name) is None for q in asked):
            return None
        parts = [getattr(q, name) for q in asked]
        return np.concatenate(
            [np.zeros((len(q.image), getattr(q, like).shape[1])) if v is None else v for q, v in zip(asked, parts, strict=True)]
        )

    together = Questions(
        join("lo"), join("hi"), join("image", boxes), join("over_output"), join("constant"), join("group", groups),
        fill("over_input", "lo"), fill("output_error", "over_output"), fill("input_error", "lo"),
        BoxBalls.join([q.balls for q in asked]),
    )  # fmt: skip
    return together, groups
