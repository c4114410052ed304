"""A page's place on the disk: nothing but an earlier page is replaced, and what is written is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import polytriton
from polytriton.errors import UsageError
from polytriton.guard import guard
from polytriton.pages.document import beginning
from polytriton.pages.facts import facts
from polytriton.pages.page import MAKER, page
from polytriton.results import Result
from polytriton.runs.records import Image
from polytriton.show.words import plural
from polytriton.whole import told_of_writing, write_whole


@guard
def report(
    results: Result | Iterable[Result], path: str | os.PathLike[str], *, title: str | None = None, pictures: int = 200
) -> Path:
    """Writes one self-contained HTML page about results, as `polytriton report` does of a results file; only an earlier page is replaced.

    pictures: the most images to show, violated ones first. title: by default what was asked, in words.
    """
    from polytriton.runs.saved import records_of  # with torch: the command needs none

    held, target = [results] if isinstance(results, Result) else list(results), Path(path)
    records = records_of(held)
    if not records:
        raise UsageError("there are no results to report on", "give a Result, or what verify returned for several images")
    check_replaceable(target)
    places = {(r.image.file, r.image.index): k for k, r in enumerate(records) if r.image is not None}

    def find(image: Image) -> np.ndarray | None:
        picture = held[places[image.file, image.index]].picture
        return None if picture is None else picture.shown

    source = f"Made by polytriton {polytriton.__version__} from {plural(len(records), 'result')}."
    write_page(target, page(records, facts(records), title=title, source=source, known={}, pictures=pictures, find=find))
    return target


def check_replaceable(target: Path) -> None:
    """Only an earlier page may be overwritten: a wrong -o must not cost anybody results."""
    if not os.path.lexists(target):
        return
    begins = beginning(MAKER).encode()
    try:
        with target.open("rb") as file:
            own = target.is_file() and file.read(len(begins)) in (begins, b"")
    except OSError:
        own = False
    if not own:
        raise UsageError(
            f"{target} is no page of polytriton: it is not overwritten", "choose another file with -o, for example report.html"
        )


def write_page(target: Path, made: str) -> None:
    """Whole or not at all."""
    with told_of_writing(str(target)):
        write_whole(target, made.encode(errors="replace"))
