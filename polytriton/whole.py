"""Files that are there whole or not at all, or grow by whole lines, whoever is killed meanwhile; and what a user hears of places."""

from __future__ import annotations

import csv
import errno
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polytriton.errors import NoSpace, UsageError

MISTAKES = (errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG)


def write_whole(path: Path, *data: bytes | memoryview) -> None:
    """Writes beside the place and moves it there: a reader sees the old file or the new one, all parts of it."""
    made = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(made, "xb") as file:
            for part in data:
                file.write(part)
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


def csv_line(cells: Iterable[object]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


class LineFile:
    """A file that grows by whole lines: each is written by one system call, and what a kill or a full disk cut off is dropped when the file
    is opened again.

    `read` is told what the file holds before anything is changed; `fresh`: the file is begun again. `what` and `full` are for the message
    where the disk is full, and how to go on.
    """

    def __init__(self, path: Path, read: Callable[[bytes], None], *, fresh: bool, what: str, full: str) -> None:
        self.what, self.full = what, full
        existing = path.read_bytes() if not fresh and path.is_file() else b""
        whole = existing[: existing.rfind(b"\n") + 1]
        read(whole)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)  # Windows would write \r\n
        self._fd = os.open(path, flags | (os.O_TRUNC if fresh else 0), 0o666)
        if len(whole) < len(existing):
            os.ftruncate(self._fd, len(whole))
        self.empty = not whole

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """All of the bytes or none of them."""
        size, left = os.fstat(self._fd).st_size, data
        try:
            while left:
                left = left[os.write(self._fd, left) :]
            if sync:
                os.fsync(self._fd)
        except BaseException as error:  # a full disk, or Ctrl-C between two writes
            with suppress(OSError):  # a pipe or a device has no length
                os.ftruncate(self._fd, size)
            if isinstance(error, OSError):
                raise NoSpace(f"cannot write {self.what}: {error.strerror or error}", self.full) from error
            raise

    def close(self) -> None:
        os.close(self._fd)
