"""A page's place on the disk: nothing but an earlier page is replaced, and what is written is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from polytriton.errors import NoSpace, UsageError
from polytriton.pages.page import START


def check_replaceable(target: Path) -> None:
    """Only an earlier page may be overwritten: a wrong -o must not cost anybody results."""
    if not os.path.lexists(target):
        return
    beginning = START.encode()
    try:
        with target.open("rb") as file:
            own = target.is_file() and file.read(len(beginning)) in (beginning, b"")
    except OSError:
        own = False
    if not own:
        raise UsageError(
            f"{target} is no page of polytriton: it is not overwritten", "choose another file with -o, for example report.html"
        )


def write_page(target: Path, made: str) -> None:
    """Whole or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}", "choose a file in a folder you may write to") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n", errors="replace") as file:
            file.write(made)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError):
            raise NoSpace(f"cannot write {target}: {error.strerror or error}", "free some space, or choose another place") from error
        raise
