"""What a result tells of the question it answers: records are made of it, and a run that goes on with them knows what it need not ask."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polytriton.prove.options import OWN
from polytriton.results import Origin, Picture, Result, ResultList

if TYPE_CHECKING:
    from polytriton.api import Verifier


def origin(verifier: Verifier, name: str, **asked: Any) -> Origin:
    """`asked`: fields of the Origin."""
    o, source = verifier.options, verifier.source
    sha, output = ("", "") if source is None else (source.sha256, source.output_name)
    return Origin(verifier.path, name, sha, output, o.dtype, o.candidates, "" if o.method == OWN else o.method, **asked)


def digest(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Path and SHA-256 of the file that a property was read from; empty of a text."""
    try:
        path = Path(source)
        return (os.fspath(source), hashlib.sha256(path.read_bytes()).hexdigest()) if path.is_file() else ("", "")
    except (OSError, ValueError):  # a text is no name of a file
        return "", ""


def image_results(
    verifier: Verifier, results: Sequence[Result], pictures: Sequence[Picture], file: str, given: Sequence[int] | None, **asked: Any
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
        replace(r, picture=picture, origin=origin(
            verifier, f"{stem}[{k}]", file=file, index=k, given=None if given is None else given[k], answer=answers.get(k), **asked
        ))
        for k, (r, picture) in enumerate(zip(results, pictures, strict=True))
    )  # fmt: skip
