"""Results of images with what they tell of their questions: records are made of it, and a run that goes on with them asks nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polytriton.prove.prover import NetProver
from polytriton.results import Picture, Result, ResultList


def image_results(
    verifier: NetProver, results: Sequence[Result], pictures: Sequence[Picture], file: str, given: Sequence[int] | None, **asked: Any
) -> ResultList:
    """The results with their images and origins. `file`: the images', if any; `given`: labels that are not the network's own answers.

    Where a label was given and is not proved, the network is asked what it says of the image itself.
    """
    doubtful = [k for k, r in enumerate(results) if given is not None and r.verdict != "unsat"]
    answers = dict[int, int]()
    if doubtful:
        pixels, first = np.stack([pictures[k].pixels for k in doubtful]), pictures[0]
        answers = dict(zip(doubtful, verifier.predict(pixels, mean=first.mean, std=first.std).argmax(1).tolist(), strict=True))
    stem = Path(file).stem if file else "image"
    return ResultList(
        replace(r, picture=picture, origin=replace(
            verifier._origin(f"{stem}[{k}]"), file=file, index=k, given=None if given is None else given[k], answer=answers.get(k), **asked
        ))
        for k, (r, picture) in enumerate(zip(results, pictures, strict=True))
    )  # fmt: skip
