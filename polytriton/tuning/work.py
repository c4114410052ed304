"""What a session times: boxes and linear forms of the output, decided as `verify` decides them, or all bounded to the end.

By default a seeded box inside the unit cube and the margins of the label at its centre; better the user's own queries.
"""

from __future__ import annotations

import io
from dataclasses import fields

import numpy as np

from polytriton.api import Verifier
from polytriton.ir import interp
from polytriton.prove.decider import Try
from polytriton.prove.questions import BoxBalls, Questions

MARGINS = 10  # rivals of the default workload, at most
BALL = "ball "  # begins the names of what a file of questions holds of their balls


def default_work(verifier: Verifier, seed: int, epsilon: float = 1 / 255) -> Questions:
    """One ball around a random point."""
    rng = np.random.default_rng(seed)
    x = rng.random((1, verifier.inputs)).astype(np.float32).astype(np.float64)
    y = interp.run(verifier.net, x)[0]
    label = int(y.argmax())
    rivals = [j for j in range(verifier.outputs) if j != label][: MARGINS - 1]
    forms = np.zeros((max(1, len(rivals)), verifier.outputs))
    forms[:, label] = 1.0
    for row, rival in enumerate(rivals):
        forms[row, rival] = -1.0
    return questions(np.clip(x - epsilon, 0, 1), np.clip(x + epsilon, 0, 1), forms)


def questions(lo: np.ndarray, hi: np.ndarray, forms: np.ndarray) -> Questions:
    """Every form over every box."""
    count, rows = len(lo), len(forms)
    every = np.arange(count * rows)
    over = np.ascontiguousarray(np.broadcast_to(forms, (count, *forms.shape)).reshape(-1, forms.shape[1]))
    return Questions(lo, hi, np.repeat(np.arange(count), rows), over, np.zeros(count * rows), every)


def run(verifier: Verifier, q: Questions) -> np.ndarray:
    """The work: bounds of all forms, in the arithmetic that is tried first."""
    decider = verifier._decider
    return decider.prove(q, [Try(decider.first_dtype(), verifier.options.candidates)], exhaustive=True).best


def decide(verifier: Verifier, q: Questions, workload: str) -> None:
    """What is timed: the tries that `verify` makes, proved forms leaving early; or the bounds of all forms, as `margins` wants them."""
    if workload == "bounds":
        run(verifier, q)
        return
    decider = verifier._decider
    answers = decider.prove(q, statistics=False)
    decider.prove(q, decider.tries(patient=True), answers=answers, statistics=False)


def pack(q: Questions) -> bytes:
    """The questions as an .npz file."""
    out = io.BytesIO()
    given = {f.name: value for f in fields(q) if f.name != "balls" and (value := getattr(q, f.name)) is not None}
    if q.balls is not None:
        given |= {BALL + f.name: getattr(q.balls, f.name) for f in fields(q.balls)}
    np.savez(out, **given)
    return out.getvalue()


def unpack(data: bytes) -> Questions:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        given = {name: held[name] for name in held.files}
    ball = {name.removeprefix(BALL): given.pop(name) for name in list(given) if name.startswith(BALL)}
    return Questions(**given, balls=BoxBalls(**{**ball, "norm": str(ball["norm"])}) if ball else None)
