"""Small files that are there whole or not at all, whoever is killed while they are written; and what a user hears of places."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polytriton.errors import NoSpace, UsageError

MISTAKES = (errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG)


def write_whole(path: Path, data: bytes) -> None:
    """Writes beside the place and moves it there: a reader sees the old file or the new one."""
    made = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(made, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


@contextmanager
def told_of_writing(what: str) -> Iterator[None]:
    """A place that nobody may write to is the user's mistake; a disk that is full is none."""
    try:
        yield
    except OSError as error:
        why = f"cannot write {what}: {error.strerror or error}"
        if error.errno in MISTAKES:
            raise UsageError(why, "choose a file in a folder you may write to") from error
        raise NoSpace(why, "free some space, or choose another place") from error


def save_whole(path: Path, data: bytes, what: str, *, overwrite: bool) -> Path:
    """Where a user says; a file that holds something already is kept, unless it may be overwritten."""
    with told_of_writing(f"{what} to {path}"):
        if not overwrite and path.exists() and path.stat().st_size:
            raise UsageError(f"{path} is there already", "choose another file, or save(path, overwrite=True)")
        write_whole(path, data)
    return path
