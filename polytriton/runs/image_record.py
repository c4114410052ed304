"""What the record of an image query holds besides the verdict: the image as a page draws it, and its certified radius."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from polytriton.api import Verifier
from polytriton.prove.radius import certify_radius
from polytriton.results import Radius
from polytriton.runs.queries import Ball
from polytriton.runs.records import Certified, Image, Record
from polytriton.runtime.engine import Progress, _silent
from polytriton.show.pixels import pack


def with_image(record: Record, ball: Ball, verifier: Verifier, progress: Progress = _silent) -> Record:
    image = Image(ball.file, ball.index, list(ball.shape), ball.mean, ball.std, ball.clip, pack(ball.image))
    radius = None
    if ball.certify is not None and record.label is not None:
        radius = _certify(record, record.label, ball, verifier, progress)
    return msgspec.structs.replace(record, image=image, radius=radius)


def _certify(record: Record, label: int, ball: Ball, verifier: Verifier, progress: Progress) -> Certified:
    """The search begins with what the query itself has shown."""
    assert ball.certify is not None
    epsilon = Fraction(ball.epsilon)
    wrong = record.note.startswith("misclassified")
    targets = None if ball.targets is None else tuple(t for t in ball.targets if t != label)
    found = certify_radius(
        verifier, ball.image, label, start=epsilon, mean=[Fraction(v) for v in ball.mean], std=[Fraction(v) for v in ball.std],
        clip=None if ball.clip is None else (Fraction(ball.clip[0]), Fraction(ball.clip[1])), targets=targets,
        tolerance=Fraction(ball.certify.tolerance), timeout=ball.certify.timeout,
        known=[(Fraction(0) if wrong and record.verdict == "sat" else epsilon, record.verdict)], progress=progress,
        norm=ball.norm,
    )  # fmt: skip
    return plain(found)


def plain(found: Radius) -> Certified:
    proved, above = (None if v is None else str(v) for v in (found.proved, found.not_proved))
    return Certified(proved, above, found.verdict, found.finished, found.queries, found.seconds)
