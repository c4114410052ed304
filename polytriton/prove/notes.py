"""Notes of a search, as they come: records of one kind, of which memory holds a few, however many there are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

BLOCK = 1 << 20  # bytes that memory holds before they go to the disk
PARTS = 256  # pieces of it: one of a record takes ten times what it holds


class Notes:
    """With a `folder`, records lie in a file there that has no name: whoever ends this process, and however, leaves nothing behind. Without
    one they stay in memory, as befits those of a batch, which travel from process to process.

    A disk that takes no more raises OSError, and the notes are as useless as none: what they held is given back.
    """

    def __init__(self, kind: Sequence[tuple[str, str]], folder: Path | None = None) -> None:
        self.kind, self.folder = np.dtype(list(kind)), folder
        self._parts: list[np.ndarray] = []  # the last ones; the file holds those before
        self._file: IO[bytes] | None = None
        self._held = self._filed = 0

    def __len__(self) -> int:
        return self._filed + self._held

    def add(self, *columns: np.ndarray) -> None:
        """A record for each of the columns' rows."""
        some = np.empty(len(columns[0]), self.kind)
        for name, column in zip(self.kind.names or (), columns, strict=True):
            some[name] = column
        self._keep(some)

    def extend(self, other: Notes) -> None:
        """Those of another, of the same kind, that has never filed any."""
        for part in other._parts:
            self._keep(part)

    def _keep(self, some: np.ndarray) -> None:
        if not len(some):
            return
        self._parts.append(some)
        self._held += len(some)
        if self.folder is not None and self._held * self.kind.itemsize >= BLOCK:
            self._write()
        elif len(self._parts) == PARTS:
            self._parts = [np.concatenate(self._parts)]

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self.folder, prefix=".notes-", buffering=0)  # noqa: SIM115  for as long as notes come
            left = np.concatenate(self._parts).data.cast("B")
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self.clear()
            raise
        self._filed, self._held, self._parts = self._filed + self._held, 0, []

    def clear(self) -> None:
        """None are left, and the disk has its room back."""
        file, self._file = self._file, None
        self._filed, self._held, self._parts = 0, 0, []
        if file is not None:
            file.close()

    def records(self) -> np.ndarray:
        """All of them. Those of a file are mapped: they take memory where they are read, for as long as there is some."""
        if self._file is None:
            return np.concatenate([np.empty(0, self.kind), *self._parts])
        if self._held:
            self._write()
        return np.memmap(self._file, self.kind, "r", shape=(self._filed,))
